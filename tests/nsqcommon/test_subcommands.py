"""Subcommands and arguments: where flags may stand, what is refused and how, and the help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from nsqcommon.options import option
from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, argument, parsed_by, repeated, required, run_command, run_one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    source: Path = argument("what to copy", kind=parsed_by(Path, "PATH"))
    target: str = argument("where to", kind=parsed_by(str, "PATH"))
    name: str = required("what the copy is called", kind=parsed_by(str, "NAME"))
    count: int = option(1, "how many copies", at_least=1)
    dry: bool = option(False, "only say what would be copied")
    quiet: bool = option(False, "say nothing")
    skip: tuple[int, ...] = option((), "a copy to leave out", kind=repeated(int, "N"))

    def __post_init__(self) -> None:
        if self.dry and self.quiet:
            raise StartupError("--quiet: not allowed with --dry")


def copied(*argv: str) -> CopyOptions:
    asked: list[CopyOptions] = []
    assert run_command(copying(asked), argv, "copy") == len(asked)
    return asked[0]


def copying(asked: list[CopyOptions]) -> Command[CopyOptions]:
    def run(options: CopyOptions) -> int:
        asked.append(options)
        return len(asked)

    return Command(
        table=CopyOptions, run=run, summary="make copies", about="Copies things.", closing="exit status:\n  0  done"
    )


EXPECTED = CopyOptions(source=Path("a"), target="b", name="c", dry=True)


@pytest.mark.parametrize(
    "argv",
    [
        ["--name=c", "--dry", "a", "b"],
        ["a", "b", "--name", "c", "-dry"],
        ["-name=c", "a", "--dry", "b"],
        ["--name=c", "a", "--dry=true", "--", "b"],
    ],
)
def test_flags_stand_before_between_or_after_the_arguments(argv: list[str]) -> None:
    assert copied(*argv) == EXPECTED


def test_what_follows_two_dashes_is_an_argument() -> None:
    options = copied("--name=c", "--", "-a", "--dry")
    assert (options.source, options.target, options.dry) == (Path("-a"), "--dry", False)


def test_a_flag_may_be_repeated() -> None:
    assert copied("a", "b", "--name=c", "--skip=3", "--skip", "1").skip == (3, 1)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "the following arguments are required: SOURCE, TARGET, --name"),
        (["a", "--name=c"], "the following arguments are required: TARGET"),
        (["a", "b", "c", "d", "--name=c"], "unrecognized arguments: c d"),
        (["a", "b", "--nmae=c"], "flag provided but not defined: -nmae"),
        (["a", "b", "--version"], "flag provided but not defined: -version"),
        (["a", "b", "--name=c", "--count=0"], "--count must be >= 1"),
        (["a", "b", "--name=c", "--skip=x"], 'invalid value "x" for flag -skip: '),
        (["a", "b", "--name=c", "--dry", "--quiet"], "--quiet: not allowed with --dry"),
    ],
)
def test_what_is_wrong_is_said_in_two_lines(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(copying([]), argv, "copy") == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage == "usage: copy [flags] --name NAME SOURCE TARGET"
    assert error.startswith(f"copy: error: {text}")


def test_an_argument_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Numbers:
        first: int = argument("a number", kind=parsed_by(int, "N"))

    assert run_command(Command(table=Numbers, run=lambda it: it.first, about=""), ["x"], "add") == 2
    assert "add: error: argument FIRST: invalid literal for int()" in capsys.readouterr().err


def test_help_has_arguments_flags_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(copying([]), ["--help"], "copy") == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: copy [flags] --name NAME SOURCE TARGET\n\nCopies things.\n\n  SOURCE\n")
    assert "\n  --count int\n    \thow many copies (default 1)\n" in said
    assert "\n  --name NAME\n    \twhat the copy is called\n" in said
    assert said.endswith("\n\nexit status:\n  0  done\n")


def test_the_first_argument_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[CopyOptions] = []
    commands = {"copy": copying(asked)}
    assert run_one_of(commands, ["copy", "a", "b", "--name=c", "--dry"], "disk", about="Looks after disks.") == 1
    assert asked == [EXPECTED]
    assert run_one_of(commands, ["--help"], "disk", about="Looks after disks.") == 0
    assert "Looks after disks.\n\n  copy\n    \tmake copies\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "text"), [([], "the following arguments are required: COMMAND"), (["move"], "unknown command: move")]
)
def test_another_command_is_refused(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_one_of({"copy": copying([])}, argv, "disk", about="") == 2
    assert capsys.readouterr().err == f"usage: disk COMMAND\ndisk: error: {text}\n"
