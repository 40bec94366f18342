"""Command lines of scripts and benchmarks: what typer makes of a dataclass, and that no other framework is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.command_line import Command, argument, option, read_command, read_options, required

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("bench", "common", "deploy", "examples", "nsqadmin", "nsqclient", "nsqd", "nsqjobs", "nsqlookupd", "nsqpipe"),
    *("nsqpytest", "nsqtools", "pyspark_nsq", "pyspark_nsqtable", "scripts", "tests"),
)
OTHERS = {"argparse", "click", "docopt", "fire", "getopt", "optparse"}
SUSPECT = re.compile(rf"^\s*(?:import|from)\s+(?:{'|'.join(OTHERS)})\b", re.MULTILINE)
EXEMPT = {ROOT / "nsqjobs/django/management/commands"}  # Django hands its commands a parser of argparse


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (it.name.partition(".")[0] for it in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def test_no_other_framework_for_command_lines_is_used() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.parent not in EXEMPT]
    # Only these are parsed, as all would take seconds. Others have such a line in a text for another process.
    suspects = [path for path in files if SUSPECT.search(path.read_text(encoding="utf-8"))]
    assert not [str(path.relative_to(ROOT)) for path in suspects if OTHERS & {*_imports(path)}]
    assert len(files) > 1000


@dataclass(frozen=True, kw_only=True)
class Noise:
    target: Path = argument("where to")
    words: tuple[str, ...] = argument("to say", default=())
    host: tuple[str, ...] = required("who hears it", word="HOST:PORT")
    rate: float = option(50, "messages a second")
    shift: int | None = option(None, "of ports", word="N")
    only: tuple[str, ...] = option(("a", "b"), "some of: a, b", parse=lambda text: tuple(text.split(",")))
    store: str = option("file", "which", choices=("file", "s3"))
    first: int = option(0, "the first one", flag="--from")
    loud: bool = option(False, "even at night")

    def __post_init__(self) -> None:
        if self.loud and self.store == "s3":
            raise ValueError("--loud: not allowed with --store=s3")


def noise(*arguments: str) -> Noise:
    return read_options(Noise, arguments, name="make-noise", about="Makes noise.\n\n    make-noise HERE\n    and there")


def test_the_defaults_are_the_dataclass_own() -> None:
    assert noise("here", "--host=a:1") == Noise(target=Path("here"), host=("a:1",))


def test_options_stand_before_and_after_arguments() -> None:
    words = [
        "--host=a:1",
        "here",
        "hi",
        "--host",
        "b:2",
        "--rate=3",
        "--shift=4",
        "ho",
        "--only=c,d",
        "--from=7",
        "--loud",
    ]
    assert noise(*words) == Noise(
        target=Path("here"),
        words=("hi", "ho"),
        host=("a:1", "b:2"),
        rate=3.0,
        shift=4,
        only=("c", "d"),
        first=7,
        loud=True,
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host=a"], "Missing argument 'TARGET'"),
        (["here"], "Missing option '--host'"),
        (["here", "--host=a", "--rate=x"], "Invalid value for '--rate'"),
        (["here", "--host=a", "--store=tape"], "'tape' is not one of file, s3"),
        (["here", "--host=a", "--no-loud"], "No such option: --no-loud"),
        (["here", "--host=a", "--loud", "--store=s3"], "--loud: not allowed with --store=s3"),
    ],
)
def test_what_is_wrong_is_said_with_status_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        noise(*arguments)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_plain_text_with_defaults(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        noise(flag)
    said = capsys.readouterr().out
    assert said.startswith(
        "Usage: make-noise [OPTIONS] {TARGET} [WORDS]...\n\n  Makes noise.\n\n      make-noise HERE\n      and"
    )
    assert "--host HOST:PORT  who hears it  [required]\n" in said
    assert "messages a second (default: 50)\n" in said
    assert "--loud            even at night\n" in said


def test_other_options_are_left_to_another_program() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Runs:
        runs: int = argument("how many")
        others: tuple[str, ...] = argument("for pytest", default=())
        seed: int = option(1, "of the first")

    given = ["3", "tests", "-k", "tls", "--tb=short", "--seed=2", "-x", "-rh"]
    found = read_options(Runs, given, name="test-flakes", about="", leaves_others=True)
    assert found == Runs(runs=3, others=("tests", "-k", "tls", "--tb=short", "-x", "-rh"), seed=2)


def test_a_program_may_have_several_commands(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Quiet:
        minutes: float = option(1.0, "how long")

    commands = {"noise": Command(Noise, "makes noise"), "quiet": Command(Quiet, "makes none")}
    found = read_command(commands, ["quiet", "--minutes=2"], name="sounds", about="Makes sounds.")
    assert found == ("quiet", Quiet(minutes=2))
    for arguments, status in ((["--help"], "0"), (["quiet", "-h"], "0"), ([], "2"), (["song"], "2")):
        with pytest.raises(SystemExit, match=status):
            read_command(commands, arguments, name="sounds", about="Makes sounds.")
    assert "  quiet  makes none\n" in capsys.readouterr().out
