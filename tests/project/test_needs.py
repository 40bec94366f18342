"""What a test needs of the machine: skipped with a short reason where it is missing, failed where CI is set."""

from __future__ import annotations

import pytest

from tests.support.needs import missing

FILE = """
import pytest
from tests.support.needs import need

@pytest.mark.needs("sh", "no-such-program")
def test_marked(): assert False

@pytest.fixture
def it(): need("no-such-program")

def test_with_a_fixture(it): assert False

@pytest.mark.needs("sh")
def test_of_what_is_there(): pass
"""
CONFTEST = "from tests.conftest import pytest_runtest_setup\n"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers = needs(*names): skip\n")
    pytester.makepyfile(FILE)
    return pytester


def test_a_test_is_skipped_with_what_is_missing(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    done = project.runpytest_inprocess("-rs", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, skipped=2)
    done.stdout.fnmatch_lines(["SKIPPED*: no no-such-program"])


def test_in_ci_it_fails(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    done = project.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, errors=2)
    done.stdout.fnmatch_lines(["no no-such-program, and CI has to have it*"])


def test_only_the_first_missing_thing_is_named_so_that_reasons_can_be_counted() -> None:
    assert missing("sh", "no-such", "neither-this") == "no no-such"
    assert missing("sh") == ""
