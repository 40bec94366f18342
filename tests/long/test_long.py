"""What `scripts/test-long` does with its list: it runs, ends what hangs, and says what it has found, with the seed."""

from __future__ import annotations

import importlib
import os
import select
from pathlib import Path

import pytest

from tests.long.__main__ import main, run
from tests.long.forms import FORMS, Form
from tests.support.needs import MODULES, need
from tests.support.process import ROOT

GOOD = Form("good", "passes", 1, ("-c", "print('seed {seed} of', {count})"), per_minute=100)
BAD = Form("bad", "fails", 1, ("-c", "raise SystemExit('lost with seed {seed}')"))
LACKS = Form("lacks", "cannot run", 1, ("-c", "1"), needs=("no-such-program",))


def test_it_sums_up_and_fails_if_one_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed=7"], (GOOD, BAD, LACKS), tmp_path) == 1
    said = capsys.readouterr().out
    assert "== good, seed 7: python -c" in said
    assert "lost with seed 7" in said
    *_, total, good, bad, lacks = said.splitlines()
    assert total == "== seed 7: 3 long forms, 1 failed, 1 skipped"
    assert good.startswith("good")
    assert good.endswith("seed 7 of 100")
    assert bad.startswith("FAILED")
    assert bad.endswith(f"seed 7, {tmp_path / 'bad.log'}")
    assert lacks.endswith("no no-such-program")


def test_it_passes_if_all_pass(tmp_path: Path) -> None:
    assert main([], (GOOD, LACKS), tmp_path) == 0


def test_it_runs_those_that_are_named(tmp_path: Path) -> None:
    assert main(["good", "lacks"], (GOOD, BAD, LACKS), tmp_path) == 0


def test_an_unknown_name_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["godo"], (GOOD,), tmp_path) == 2
    assert "no such form: godo" in capsys.readouterr().err


def test_minutes_scale_what_can_be_scaled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes=0.5", "--seed=7"], (GOOD,), tmp_path) == 0
    assert capsys.readouterr().out.endswith("seed 7 of 50\n")
    assert BAD.takes(0.5) == 1


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "many"])
def test_minutes_have_to_be_some(minutes: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([f"--minutes={minutes}"], (GOOD,), tmp_path)


def test_what_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        hangs = Form("hangs", "never ends", 1, ("-c", f"import os; os.system('sleep 1000 >{fifo} & sleep 1000')"))
        assert run(hangs, 7, None, tmp_path, limit=1.0).verdict == "HANGS"
        assert select.select([held], (), (), 30)[0], "somebody still has it open"
        assert os.read(held, 1) == b""
    finally:
        os.close(held)


def test_they_are_listed_with_their_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--minutes=2"], (GOOD, BAD)) == 0
    good, bad, _ = capsys.readouterr().out.splitlines()
    assert good.split() == ["good", "2", "min*", "passes"]
    assert bad.split() == ["bad", "1", "min", "fails"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_each_form_is_a_command_that_there_is(
    form: Form, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its program understands each option but the one that nobody has, which keeps it from beginning."""
    need(*(name for name in form.needs if name in MODULES))
    _, _, module, *words = form.started_with(7, 0.01)[0]  # python -m module ...
    if module == "pytest":
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
        return
    name = f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
    monkeypatch.setattr("sys.argv", [module, *words, "--no-such-option"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 2
    assert "error: No such option: --no-such-option" in capsys.readouterr().err


def test_no_two_forms_have_the_same_name() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_documents_name_each_form(form: Form) -> None:
    assert f"| `{form.name}` |" in (ROOT / "docs/how-to/test-faults.md").read_text(encoding="utf-8")
