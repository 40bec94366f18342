"""What a test needs of the machine: skipped with a short reason where it is missing, failed where CI is set."""

from __future__ import annotations

import pytest

from tests.support import needs
from tests.support.needs import FOLDERS, missing, needed_by
from tests.support.process import ROOT

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


def test_a_file_whose_folder_needs_more_is_skipped_without_being_imported(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(needs, "FOLDERS", {str(pytester.path): ("sh", "no-such-program")})
    pytester.makeconftest("from tests.conftest import pytest_pycollect_makemodule\n")
    pytester.makepyfile("import no_such_module\ndef test_it(): pass\n")
    done = pytester.runpytest_inprocess("-rs", "-p", "no:cacheprovider")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED*: no no-such-program"])


def test_folders_that_need_more_are_there() -> None:
    for folder in FOLDERS:
        assert (ROOT / folder).is_dir()
        assert needed_by(ROOT / folder / "test_it.py") == FOLDERS[folder]
    assert needed_by(ROOT / "tests" / "nsqd" / "test_it.py") == ()
