"""One life of each suite. The long form is `python -m tests.failover SUITE --count 1000`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.failover.__main__ import STANDBY_AFTER, main, summary
from tests.failover.stores import NewStore, stores
from tests.failover.suites import SUITES, Suite, live
from tests.planted.planting import bugs_for, with_bug
from tests.support.lengths import new_chance, sized
from tests.support.needs import need

_CHANCE = new_chance()
_NEEDS = {"rf5": "C compiler"}
HERE = {name: it for name, it in SUITES.items() if not it.has_spark}  # the others: tests/spark/test_failovers.py


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewStore]:
    need("obstore")
    with stores("moto", tmp_path_factory.mktemp("moto")) as new_store:
        yield new_store


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewStore]:
    need("obstore")
    with stores("fake", tmp_path_factory.mktemp("fake")) as new_store:
        yield new_store


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewStore]:
    with stores("file", tmp_path_factory.mktemp("file")) as new_store:
        yield new_store


# Most of what a life with moto takes is moto's. `nsqd remote check` finds nothing wrong with the fake, either:
# tests/nsqd/remote/stores/whole/test_object_stores.py.
ALSO = sized(short=[], long=[("rf1", "moto"), ("rf3", "moto")])
KINDS = {"rf3": "fake"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "kind"), [*ALSO, *((name, KINDS.get(name, it.kinds[0])) for name, it in HERE.items())]
)
def test_no_promise_is_broken(suite: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if suite in _NEEDS:
        need(_NEEDS[suite])
    new_store: NewStore = request.getfixturevalue(kind)
    outcome = live(SUITES[suite], tmp_path, _CHANCE.getrandbits(32), new_store)
    assert outcome.failovers


# The short form of the others takes too long for what it adds to this one.
STANDBYS = sized(short=["rf1"], long=[name for name, it in HERE.items() if it.has_standby])


@pytest.mark.slow
@pytest.mark.parametrize("suite", STANDBYS)
def test_no_promise_is_broken_when_a_standby_takes_over(
    suite: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    new_store: NewStore = request.getfixturevalue(SUITES[suite].kinds[0])
    outcome = live(SUITES[suite], tmp_path, _CHANCE.getrandbits(32), new_store, standby_after=STANDBY_AFTER)
    assert outcome.failovers


# Which suite finds a planted bug, and what it says
_FOUND_BY = {
    "a publisher that waits for the store is answered when its message is written": (
        "rf1",
        "lost|lacks|topics and channels are",
    ),
    "a slot that exists counts as our own earlier try": ("rf2", "has answered OK to a publish that came after"),
}
_MOST_LIVES = 5


@pytest.mark.slow
@pytest.mark.parametrize("bug", bugs_for("failovers"))
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, file: NewStore) -> None:
    suite, verdict = _FOUND_BY[bug]
    with pytest.raises(AssertionError, match=verdict):
        _live_some_lives(SUITES[suite], tmp_path, file, with_bug(bug))


def _live_some_lives(suite: Suite, folder: Path, new_store: NewStore, environ: Mapping[str, str]) -> None:
    """Live until a promise is broken. An early kill may come when the bug has done no harm yet."""
    for seed in range(_MOST_LIVES):
        life = folder / str(seed)
        life.mkdir()
        live(suite, life, seed, new_store, environ)


# The command


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, str]], None]:
    """Have lives take no time; some seeds end with these violations."""

    def replace(violations: dict[int, str]) -> None:
        def life(suite: object, seed: int, new_store: object, *, standby_after: str) -> dict[str, object]:
            if seed in violations:
                return {"seed": seed, "seconds": 1.0, "violation": violations[seed]}
            return {"seed": seed, "seconds": 1.0, "violation": None, "failovers": 2, "pauses": [seed, 1.0]}

        monkeypatch.setattr("tests.failover.__main__.run_life", life)

    return replace


def test_results_are_appended_and_summed_up(
    lives: Callable[[dict[int, str]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lives({2: "message 7 is lost"})
    results = tmp_path / "results"
    assert main(["rf1", "--from-seed=0", "--count=2", f"--results={results}"]) == 0
    assert main(["rf1", "--from-seed=2", "--count=2", f"--results={results}"]) == 1
    assert [json.loads(line)["seed"] for line in results.read_text().splitlines()] == [0, 1, 2, 3]
    said = capsys.readouterr().out
    assert "message 7 is lost" in said
    assert "4 lives, 1 with a violation, 6 failovers in 4 s" in said
    assert "seeds with a violation: 2" in said
    assert "the next OK: p50 1.00 s, p99 3.00 s, at most 3.00 s" in said


def test_a_suite_is_refused_with_a_store_that_it_cannot_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rf3", "--store=file"]) == 2
    assert "rf3 needs --store=moto or ceph" in capsys.readouterr().out


def test_lives_with_a_standby_are_summed_up_apart(
    lives: Callable[[dict[int, str]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lives({})
    results = tmp_path / "results"
    assert main(["rf1", "--from-seed=0", "--count=2", f"--results={results}"]) == 0
    assert main(["rf1", "--from-seed=2", "--count=1", f"--results={results}", "--standby"]) == 0
    assert main(["rf1", "--from-seed=3", "--count=1", f"--results={results}", "--standby=10s"]) == 0
    assert [json.loads(line)["standby"] for line in results.read_text().splitlines()] == ["", "", "1s", "10s"]
    assert capsys.readouterr().out.count("1 lives, 0 with a violation") == 2
    assert main(["rf4", "--standby"]) == 2


def test_nothing_is_summed_up_of_nothing() -> None:
    assert summary([]) == "0 lives, 0 with a violation, 0 failovers in 0 s"
