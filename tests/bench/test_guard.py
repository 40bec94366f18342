"""`python -m bench guard` judges counts by the stored figures, and says in one line why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench import guard
from bench.__main__ import main
from bench.builds import Build
from bench.guard import counting
from bench.guard.figures import Figure, Judgement, Verdict, judge, load_figures, store
from bench.work import Failed

COUNTS = {"PUB": 1000.0, "FIN": 500.0}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """Counts that a test may change, in place of those by Valgrind, and no stored figures."""
    counts = dict(COUNTS)

    def count(build: Build, *, tree: Path | None = None) -> Mapping[str, float]:
        return dict(COUNTS if tree else counts)

    monkeypatch.setattr(guard, "FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr(guard, "check_tools", lambda: None)
    monkeypatch.setattr(guard, "key_of", lambda build: f"{build}, CPython 9")
    monkeypatch.setattr(guard, "count", count)
    return counts


@pytest.mark.parametrize(
    ("base", "last", "verdict"),
    [
        (1000, 1000, Verdict.AS_BEFORE),
        (1000, 991, Verdict.AS_BEFORE),
        (1000, 989, Verdict.WORSE),
        (1000, 1009, Verdict.AS_BEFORE),
        (1000, 1012, Verdict.BETTER),
        (972, 1000, Verdict.AS_BEFORE),
        (970, 1000, Verdict.WORSE),
        (970, 1012, Verdict.WORSE),
        (2000, 1000, Verdict.AS_BEFORE),
    ],
)
def test_one_percent_in_one_change_and_three_in_all(base: float, last: float, verdict: Verdict) -> None:
    judged = Judgement("PUB", Figure(base=base, last=last), 1000)
    assert judged.verdict is verdict
    assert bool(judged.finding) is (verdict is not Verdict.AS_BEFORE)


def test_a_load_without_a_figure_would_be_unguarded() -> None:
    with pytest.raises(Failed, match="run it with --store"):
        judge({"PUB": Figure(1000, 1000)}, COUNTS)


def test_storing_moves_last_and_base_only_when_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    store(path, "here", {"PUB": 1000}, moves_base=False)
    store(path, "elsewhere", {"PUB": 7}, moves_base=False)
    store(path, "here", {"PUB": 1020}, moves_base=False)
    assert load_figures(path) == {"here": {"PUB": Figure(1000, 1020)}, "elsewhere": {"PUB": Figure(7, 7)}}
    store(path, "here", {"PUB": 1020}, moves_base=True)
    assert load_figures(path)["here"] == {"PUB": Figure(1020, 1020)}


def test_a_change_that_costs_too_much_fails(counted: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "--build=pure", "--store"]) == 0
    assert main(["guard", "--build=pure"]) == 0
    counted["FIN"] = 506
    assert main(["guard", "--build=pure"]) == 1
    assert capsys.readouterr().out.endswith("FIN costs 1.2% more than last: at most 1% in one change\n")
    assert main(["guard", "--build=pure", "--store"]) == 0
    assert main(["guard", "--build=pure"]) == 0


def test_another_checkout_takes_the_place_of_the_figures(counted: dict[str, float], tmp_path: Path) -> None:
    assert main(["guard", "--build=pure", f"--against={tmp_path}"]) == 0
    counted["PUB"] = 1011
    assert main(["guard", "--build=pure", f"--against={tmp_path}"]) == 1


def test_an_unknown_key_is_skipped_with_one_line(counted: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "--build=pure"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "pure: skipped, there are no figures for pure, CPython 9\n")


def test_a_machine_without_valgrind_is_skipped_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["guard", "--build=pure"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "pure: skipped, there is no valgrind here\n")


def test_the_key_of_the_compiled_build_names_both_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_python", lambda build: "python")
    monkeypatch.setattr(counting, "_valgrind", lambda: "valgrind")
    monkeypatch.setattr(counting, "_compiler", lambda: "cc")
    monkeypatch.setattr(counting, "_output", lambda command: f"{command[0]} 1.2\nmore")
    key = counting.key_of(Build.COMPILED)
    assert key.startswith("compiled, ")
    assert "mypyc " in key
    assert key.endswith(", compiler 1.2")
    assert "mypyc" not in counting.key_of(Build.PURE)
