"""Command lines with subcommands and arguments, from tables of options: `nsqd fsck DATA_PATH --json`.

The flags are those of daemons and tools (nsqcommon.options). Here they may also follow the arguments.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from nsqcommon.option_kinds import OptionKind
from nsqcommon.options import (
    HELP,
    CommandLine,
    HelpRequested,
    Option,
    UsageError,
    flag_lines,
    help_text,
    option,
    table_of,
)
from nsqcommon.passwords import mask_passwords
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
TableT = TypeVar("TableT", bound="DataclassInstance")

_SYNTAX: Final = "A flag may be written with one dash or two, before or after the arguments."


# --- the table


def parsed_by(parse: Callable[[str], T], word: str, *, show: Callable[[T], str] = str) -> OptionKind[T]:
    """Return a kind of value that has no form of its own in TOML. `parse` raises ValueError with the reason."""
    return OptionKind(word=word, parse=parse, convert=lambda value: parse(str(value)), show=show)


def repeated(parse: Callable[[str], T], word: str, *, may_be_secret: bool = False) -> OptionKind[tuple[T, ...]]:
    """Return the kind of a flag that may be given several times."""

    def parse_one(text: str) -> tuple[T, ...]:
        return (parse(text),)

    def show(values: tuple[T, ...]) -> str:
        return ",".join(map(str, values))

    return dataclasses.replace(parsed_by(parse_one, word, show=show), is_repeated=True, may_be_secret=may_be_secret)


def required(help: str, *, kind: OptionKind[T]) -> T:
    """Declare a flag that must be given. Combinations are checked in the table's `__post_init__` (StartupError)."""
    described: Any = option(None, help, kind=kind)
    made: T = field(metadata=described.metadata)
    return made


def argument(help: str, *, kind: OptionKind[T], default: Any = dataclasses.MISSING) -> T:
    """Declare an argument. It has the name of its field: DATA_PATH for `data_path`."""
    described: Any = option(None, help, kind=kind)
    made: T = field(default=default, metadata={**described.metadata, "is_argument": True})
    return made


# --- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[TableT]):
    """A command: its options and arguments, its help, and its function. `run` returns the exit status."""

    table: type[TableT]
    run: Callable[[TableT], int]
    summary: str = ""  # for the list of commands
    about: str
    closing: str = ""  # the end of the help, such as the exit statuses


Commands = Mapping[str, Command[Any]]


def run_one_of(commands: Commands, argv: Sequence[str], program: str, *, about: str) -> int:
    """Run the command that the first argument names, and return the exit status: 2 if the command line is wrong."""
    name = argv[0] if argv else ""
    if name in commands:
        return run_command(commands[name], argv[1:], f"{program} {name}")
    if name in ("-h", "-help", "--help"):
        sys.stdout.write(_usage_of_all(commands, program, about))
        return 0
    wrong = f"unknown command: {name}" if argv else "the following arguments are required: COMMAND"
    return _tell(UsageError(wrong, f"{program} COMMAND"), program)


def run_command(command: Command[TableT], argv: Sequence[str], program: str) -> int:
    """Read the command line, run the command, and return the exit status: 2 if the command line is wrong."""
    try:
        options = read_command(command, argv, program)
    except HelpRequested as request:
        sys.stdout.write(f"usage: {request.usage}\n\n{_help(command)}")
        return 0
    except UsageError as error:
        return _tell(error, program)
    return command.run(options)


def _tell(error: UsageError, program: str) -> int:
    sys.stderr.write(f"usage: {error.usage}\n{program}: error: {mask_passwords(error.message)}\n")
    return error.exit_status


def read_command(command: Command[TableT], argv: Sequence[str], program: str) -> TableT:
    """Return the options and arguments. Raises UsageError or HelpRequested."""
    table = table_of(command.table)
    synopsis = _synopsis(table, program)

    def refuse(message: str) -> NoReturn:
        raise UsageError(message, synopsis)

    line = CommandLine(table, synopsis, has_file=False)
    words: list[str] = []
    left = line.read(argv)
    while left and not line.is_over:
        words.append(left[0])
        left = line.read(left[1:])
    words += left
    if line.wants_version:
        refuse("flag provided but not defined: -version")
    values = line.values
    arguments = [row for row in table if row.is_argument]
    for row, word in zip(arguments, words, strict=False):
        try:
            values[row.name] = row.kind.parse(word)
        except ValueError as error:
            refuse(f"argument {row.name.upper()}: {error}")
    if missing := [_named(row) for row in table if row.is_required and row.name not in values]:
        refuse(f"the following arguments are required: {', '.join(missing)}")
    if more := words[len(arguments) :]:
        refuse(f"unrecognized arguments: {' '.join(more)}")
    try:
        options = command.table(**values)
        for row in table:
            row.check(getattr(options, row.name))
    except StartupError as error:
        refuse(str(error))
    return options


# --- help


def _named(row: Option) -> str:
    return row.name.upper() if row.is_argument else f"--{row.flag}"


def _synopsis(table: Sequence[Option], program: str) -> str:
    words = [f"--{row.flag} {row.kind.word}" for row in table if row.is_required and not row.is_argument]
    words += [_named(row) if row.is_required else f"[{_named(row)}]" for row in table if row.is_argument]
    return " ".join([program, "[flags]", *words])


def _help(command: Command[Any]) -> str:
    table = table_of(command.table)
    lines = [command.about.strip(), ""]
    for row in table:
        if row.is_argument:
            lines += [f"  {_named(row)}", f"    \t{help_text(row)}"]
    lines += [*flag_lines([row for row in table if not row.is_argument], [HELP]), "", _SYNTAX]
    if command.closing:
        lines += ["", command.closing.strip()]
    return "\n".join(lines) + "\n"


def _usage_of_all(commands: Commands, program: str, about: str) -> str:
    lines = [f"usage: {program} COMMAND", "", about.strip(), ""]
    for name, command in commands.items():
        lines += [f"  {name}", f"    \t{command.summary}"]
    return "\n".join([*lines, "", f"{program} COMMAND --help says more."]) + "\n"
