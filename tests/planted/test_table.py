"""The table of planted bugs fits the product: each row can be planted, and names a promise and suites that exist."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from tests.planted.planting import DoesNotFit, bug_named, changed, plant, planted
from tests.planted.table import BUGS, DEATHS, STOPS, SUITES, Bug
from tests.support.process import ROOT

GUARANTEES = (ROOT / "docs/explanation/guarantees.md").read_text(encoding="utf-8")
ALL = (*BUGS, *DEATHS, *STOPS)


@pytest.mark.parametrize("name", [bug.name for bug in ALL])
def test_a_bug_can_be_planted(name: str) -> None:
    try:
        with planted(name):
            pass
    except ModuleNotFoundError as missing:  # of an extra, as in an environment that has `dev` alone
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no {missing.name}")


@pytest.mark.parametrize(
    ("name", "old", "new", "where"),
    [
        ("the breaker never trips", "FEWEST: Final = 20", "FEWEST: Final = 21", "<module>"),
        (
            "a failed sync counts as a sync",
            "class LogSync:\n",
            "class LogSync:\n    error = ''\n",
            "LogSync",
        ),
    ],
)
def test_what_does_not_stand_in_a_function_is_an_error(name: str, old: str, new: str, where: str) -> None:
    bug = replace(bug_named(name), edits=((old, new),))
    with pytest.raises(DoesNotFit, match=f"nothing can be planted at {where}"):
        plant(bug)


def test_each_promise_has_a_bug() -> None:
    promised = GUARANTEES.partition("## Promised")[2].partition("## Not promised")[0]
    promises = re.findall(r"^\*\*(.+?)\*\*", promised, re.MULTILINE)
    assert len(promises) > 10
    assert not [it for it in promises if not any(bug.promise.startswith(it.rstrip(".")) for bug in BUGS)]


def test_no_two_bugs_have_the_same_name() -> None:
    assert len({bug.name for bug in ALL}) == len(ALL)
    assert not any(";" in bug.name for bug in ALL), "it separates them in a variable"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_breaks_something_that_is_promised(bug: Bug) -> None:
    assert bug.promise in GUARANTEES
    assert bug.suites, "nobody has to find it"
    assert set(bug.suites) <= SUITES.keys()


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_has_tests(suite: str) -> None:
    paths = [it for it in SUITES[suite] if not it.startswith("-")]
    assert paths
    assert all((ROOT / path).exists() for path in paths)


def test_a_planted_bug_is_there_and_goes_again() -> None:
    from nsqd.broker.policy import FEWEST, Breaker

    breaker = Breaker(0.5)
    breaker.delivered(FEWEST, 0.0)
    breaker.buried(FEWEST, 0.0)
    assert breaker.has_tripped(0.0)
    with planted("the breaker never trips"):
        assert not breaker.has_tripped(0.0)
    assert breaker.has_tripped(0.0)


def test_a_place_that_is_not_there_once_is_an_error() -> None:
    bug = bug_named("the breaker never trips")
    with pytest.raises(DoesNotFit, match="0 times instead of once"):
        changed("nothing of the kind\n", bug)
    ((old, _),) = bug.edits
    with pytest.raises(DoesNotFit, match="2 times instead of once"):
        changed(old * 2, bug)


def test_a_change_outside_of_functions_cannot_be_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.planted.planting._functions_of", lambda module: iter(()))
    with pytest.raises(DoesNotFit, match=r"nothing can be planted at Breaker\.has_tripped"):
        plant(bug_named("the breaker never trips"))
