"""One table of settings per daemon. It defines flags, file, environment, --help, checks and reference pages.

A table is a frozen dataclass. `option()` declares its fields:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options(BaseOptions):
        max_msg_size: int = option(1_048_576, "largest message, in bytes", at_least=1)
        msg_timeout: Nanoseconds = option(MINUTE, "when a message comes back", kind=DURATION)

`parse()` creates an instance. A flag wins over an environment variable, which wins over the TOML file, which wins over
the default. All durations are whole nanoseconds, as in NSQ's HTTP API; use `seconds()` in code that waits. Flags have
the syntax of Go's `flag` package, because NSQ's users rely on it in their scripts.
"""

from __future__ import annotations

import dataclasses
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeVar

from nsqcommon.durations import (
    DURATION_EXAMPLES,
    HOUR,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    Nanoseconds,
    format_duration,
    parse_duration,
    seconds,
)
from nsqcommon.logs import LOG_FORMATS, LogLevel
from nsqcommon.option_kinds import (
    BOOLEAN,
    DURATION,
    FLOAT,
    FLOATS,
    INTEGER,
    LEVEL,
    STRING,
    STRINGS,
    OptionKind,
    kind_of,
    one_of,
    words_kind,
)
from nsqcommon.startup import StartupError
from nsqcommon.wire.quoting import quote

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Includes everything that tables are made of, so that a table needs only one import.
__all__ = [
    "BOOLEAN",
    "DURATION",
    "EVERYWHERE",
    "FLOAT",
    "FLOATS",
    "HELP",
    "HOUR",
    "INTEGER",
    "LEVEL",
    "MICROSECOND",
    "MILLISECOND",
    "MINUTE",
    "SECOND",
    "STRING",
    "STRINGS",
    "BaseOptions",
    "CommandLine",
    "Flags",
    "HelpRequested",
    "Nanoseconds",
    "Option",
    "OptionKind",
    "UsageError",
    "VersionRequested",
    "change",
    "computed_option",
    "flag_lines",
    "format_duration",
    "format_value",
    "help_text",
    "one_of",
    "option",
    "parse",
    "parse_duration",
    "read_flags",
    "seconds",
    "table_of",
    "tool_usage",
    "usage",
    "variable_of",
    "words_kind",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound="BaseOptions")
TableT = TypeVar("TableT", bound="DataclassInstance")


class UsageError(Exception):
    """The command line is wrong: print the message to stderr, and exit with status 2.

    Unlike Go's `flag` package, daemons and tools don't print `usage`: among 200 lines, users would miss the message.
    """

    exit_status: Final = 2

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.message = message
        self.usage = usage

    def line(self, program: str) -> str:
        return f"{program}: {self.message}; see {program} --help"


class HelpRequested(Exception):
    """`--help` was given: print the usage and exit with status 0."""

    def __init__(self, usage: str) -> None:
        super().__init__(usage)
        self.usage = usage


class VersionRequested(Exception):
    """`--version` was given."""


# --- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of a table. `key` is the option's name in the TOML file and under `/config/`."""

    name: str
    flag: str
    key: str
    help: str
    kind: OptionKind[Any]
    default: Any  # MISSING if it is computed
    default_shown: str | None
    at_least: int | None
    at_most: int | None
    below: int | None
    is_deprecated: bool
    at_run_time: bool
    is_argument: bool  # no flag, but an argument: nsqcommon.subcommands

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING and self.default_shown is None

    def shown_default(self) -> str:
        if self.default_shown is not None:
            return self.default_shown
        if self.default is None or self.is_required:
            return ""
        return str(self.kind.show(self.default))

    def check(self, value: Any) -> None:
        if (
            (self.at_least is not None and value < self.at_least)
            or (self.at_most is not None and value > self.at_most)
            or (self.below is not None and value >= self.below)
        ):
            raise StartupError(f"--{self.flag} must be {self._bounds()}")

    def _bounds(self) -> str:
        if self.at_most is not None:
            return f"[{self.at_least},{self.at_most}]"
        if self.below is not None:
            return f"[{self.at_least},{self.below})"
        if self.kind is DURATION and self.at_least == 1:
            return "> 0"
        return f">= {self.kind.show(self.at_least)}"


def option(
    default: T,
    help: str,
    *,
    kind: OptionKind[Any] | None = None,
    flag: str | None = None,
    toml: str | None = None,
    at_least: int | None = None,
    at_most: int | None = None,
    below: int | None = None,
    deprecated: bool = False,
    at_run_time: bool = False,
) -> T:
    """Declare a field of a table. You needn't pass a `kind` if the default is a bool, int, float, str or tuple of str.

    Pass `flag` or `toml` if the option's name there differs from the field's. We accept a deprecated option as a flag
    only, and ignore it. With `at_run_time`, `PUT /config/<key>` can change the option.
    """
    settings = {
        "help": help,
        "kind": kind or kind_of(default),
        "flag": flag,
        "key": toml,
        "default_shown": None,
        "at_least": at_least,
        "at_most": at_most,
        "below": below,
        "is_deprecated": deprecated,
        "at_run_time": at_run_time,
        "is_argument": False,
    }
    made: T = field(default=default, metadata=settings)
    return made


def computed_option(compute: Callable[[], T], shown: str, help: str, **settings: Any) -> T:
    """Declare an option whose default depends on the machine; `shown` describes the default in `--help`."""
    kind = settings.pop("kind", None) or kind_of(compute())
    described: Any = option(None, help, kind=kind, **settings)
    made: T = field(default_factory=compute, metadata={**described.metadata, "default_shown": shown})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOptions:
    """The options that `nsqcommon.daemon` needs, so every daemon has them."""

    log_level: LogLevel = option(
        LogLevel.INFO, "log level: debug, info, warn, error, or fatal", kind=LEVEL, at_run_time=True
    )
    log_prefix: str = option("", "prefix of each log line")
    log_format: str = option("nsq", "log format: nsq (NSQ's lines) or json", kind=one_of(*LOG_FORMATS))

    def checked(self) -> Self:
        """Check the options against each other, and return them completed. Raises StartupError if they conflict.

        `parse` has already checked the limits of each option.
        """
        return self


def table_of(options_class: type[DataclassInstance]) -> tuple[Option, ...]:
    """Return the rows of a table in the order of its fields."""
    return tuple(
        Option(
            name=row.name,
            default=row.default,
            flag=row.metadata["flag"] or row.name.replace("_", "-"),
            key=row.metadata["key"] or row.name,
            **{name: value for name, value in row.metadata.items() if name not in ("flag", "key")},
        )
        for row in dataclasses.fields(options_class)
    )


# --- reading


def parse(options_class: type[OptionsT], argv: Sequence[str], environ: Mapping[str, str], program: str) -> OptionsT:
    """Read the options of `program` from its arguments (without argv[0]), the environment and the TOML file.

    Raises UsageError, HelpRequested, VersionRequested, or StartupError with the whole line to print.
    """
    table = table_of(options_class)
    flags = CommandLine(table, usage(program, table), has_file=True)
    left = flags.read(argv)
    if flags.wants_version:
        raise VersionRequested
    if any(left):  # Go's programs ignore it, and all flags after it; an empty one is an unset variable of a script
        raise UsageError(f"unexpected argument {_quoted(left[0])}", usage(program, table))
    config = flags.config if flags.config is not None else environ.get(variable_of(program, "config"), "")
    values = {
        **_read_file(config, table),
        **_read_environment(environ, table, program),
        **flags.values,
    }
    try:
        options = options_class(**values)
        for row in table:
            row.check(getattr(options, row.name))
        options = options.checked()
    except StartupError as error:
        raise StartupError(f"failed to instantiate {program} - {error}") from error
    return options


@dataclass(frozen=True, slots=True)
class Flags(Generic[T]):
    """A tool's command line, as `read_flags` has read it."""

    options: T
    wants_version: bool
    rest: tuple[str, ...]  # the arguments from the first non-flag on


def read_flags(options_class: type[TableT], argv: Sequence[str], program: str, *, closing: str = "") -> Flags[TableT]:
    """Read a tool's command line. Tools use neither the environment nor a file.

    This doesn't check the limits of the options. `closing` ends the usage text. Raises UsageError or HelpRequested.
    """
    table = table_of(options_class)
    flags = CommandLine(table, tool_usage(program, table, closing), has_file=False)
    left = flags.read(argv)
    return Flags(options_class(**flags.values), flags.wants_version, left)


def variable_of(program: str, flag: str) -> str:
    """Return the environment variable for a flag: for example, NSQD_TCP_ADDRESS for nsqd's tcp-address."""
    return f"{program}_{flag}".replace("-", "_").upper()


class CommandLine:
    """Parses flags like Go's `flag` package: with one dash or two, and with `=` or a space before the value.

    The first argument that isn't a flag ends the flags.
    """

    def __init__(self, table: Sequence[Option], usage: str, *, has_file: bool) -> None:
        self._usage = usage
        self._rows = {row.flag: row for row in table if not row.is_argument}
        self._has_file = has_file
        self.values: dict[str, Any] = {}
        self.config: str | None = None
        self.wants_version = False
        self.is_over = False  # there was a `--`, after which all are arguments

    def read(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Parse the flags, and return the arguments from the first non-flag on."""
        left = list(reversed(argv))
        # As in Go, a lone dash is an argument, not a flag.
        while left and len(left[-1]) > 1 and left[-1].startswith("-") and left[-1] != "--":
            argument = left.pop()
            flag, equals, text = argument.removeprefix("-").removeprefix("-").partition("=")
            if not flag or flag.startswith("-"):
                self._refuse(f"bad flag syntax: {argument}")
            value = text if equals else None
            if flag == "version":
                self.wants_version = value is None or self._boolean(flag, value)
            elif flag == "config" and self._has_file:
                self.config = self._text(flag, value, left)
            elif flag in self._rows:
                self._set(self._rows[flag], value, left)
            elif flag in ("h", "help"):
                raise HelpRequested(self._usage)
            else:
                self._refuse(f"flag provided but not defined: -{flag}{self._similar(flag)}")
        if left and left[-1] == "--":
            left.pop()
            self.is_over = True
        return tuple(reversed(left))

    def _similar(self, flag: str) -> str:
        """Return a hint at the flag that was probably meant, or ""."""
        from difflib import get_close_matches  # only needed for a mistake

        known = [*self._rows, *(["config"] if self._has_file else []), "help", "version"]
        found = get_close_matches(flag.replace("_", "-"), known, n=1)
        return f" (did you mean --{found[0]}?)" if found else ""

    def _set(self, row: Option, value: str | None, left: list[str]) -> None:
        if row.kind.is_bare and value is None:
            self.values[row.name] = row.kind.parse("true")
            return
        text = self._text(row.flag, value, left)
        try:
            parsed = row.kind.parse(text)
        except ValueError as error:
            if row.kind.may_be_secret:
                self._refuse(f"invalid value for flag -{row.flag}: {error}")
            self._refuse_value(row.flag, text, str(error), is_boolean=row.kind.is_bare)
        if row.kind.is_repeated:
            parsed = self.values.get(row.name, ()) + parsed
        if row.kind.is_descending:
            parsed = tuple(sorted(parsed, reverse=True))
        self.values[row.name] = parsed

    def _text(self, flag: str, value: str | None, left: list[str]) -> str:
        if value is not None:
            return value
        if not left:
            self._refuse(f"flag needs an argument: -{flag}")
        return left.pop()

    def _boolean(self, flag: str, text: str) -> bool:
        try:
            return BOOLEAN.parse(text)
        except ValueError as error:
            self._refuse_value(flag, text, str(error), is_boolean=True)

    def _refuse_value(self, flag: str, text: str, reason: str, *, is_boolean: bool) -> NoReturn:
        if is_boolean:
            self._refuse(f"invalid boolean value {_quoted(text)} for -{flag}: {reason}")
        self._refuse(f"invalid value {_quoted(text)} for flag -{flag}: {reason}")

    def _refuse(self, message: str) -> NoReturn:
        raise UsageError(message, self._usage)


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape")).decode()


def _read_environment(environ: Mapping[str, str], table: Sequence[Option], program: str) -> dict[str, Any]:
    # We ignore unknown NSQD_... variables, because Kubernetes sets some for every service called nsqd.
    values = {}
    for row in table:
        variable = variable_of(program, row.flag)
        text = environ.get(variable)
        if text is None or row.is_deprecated:
            continue
        try:
            # A repeated option has only one variable, so commas separate its values.
            values[row.name] = row.kind.convert(text) if row.kind.is_repeated else row.kind.parse(text)
        except ValueError as error:
            raise StartupError(f"invalid value {_quoted(text)} for environment variable {variable}: {error}") from error
    return values


def _read_file(path: str, table: Sequence[Option]) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except (OSError, ValueError) as error:
        cause = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise StartupError(f"failed to load config file {path} - {cause}") from error
    rows = {row.key: row for row in table if not row.is_deprecated}
    values = {}
    for key, value in content.items():
        if key in rows:
            values[rows[key].name] = _converted(rows[key], value)
        else:
            log.warning("config file %s: unknown key %s has no effect", path, key)
    return values


def _converted(row: Option, value: object) -> Any:
    try:
        return row.kind.convert(value)
    except ValueError as error:
        if row.kind.has_own_words:
            raise StartupError(f"failed parsing {row.key} {value}") from error
        raise StartupError(
            f"Resolve failed to coerce value {value} ({row.shown_default()}) for field {row.key} - {error}"
        ) from error


# --- at run time


def format_value(options: BaseOptions, key: str) -> str:
    """Return a value as `GET /config/<key>` shows it, durations in nanoseconds. Raises KeyError for a bad key."""
    row = _row_of(options, key)
    return str(row.kind.render(getattr(options, row.name)))


def change(options: OptionsT, key: str, text: str) -> OptionsT:
    """Return a copy of the options with the value that `PUT /config/<key>` sets.

    Raises KeyError if there is no such key or its option can't change at run time, and ValueError for a bad value.
    """
    row = _row_of(options, key)
    if not row.at_run_time:
        raise KeyError(key)
    value = (row.kind.put or row.kind.parse)(text)
    return dataclasses.replace(options, **{row.name: value})


def _row_of(options: BaseOptions, key: str) -> Option:
    for row in table_of(type(options)):
        if row.key == key and not row.is_deprecated:
            return row
    raise KeyError(key)


# --- help texts

HELP: Final = ("help", "", "print this help and exit", "")
_TOOL_FLAGS: Final = (
    HELP,
    ("version", "", "print the version and exit", ""),
)
# The flags that every daemon has outside its table: flag, type, meaning, default.
EVERYWHERE: Final = (("config", "string", "path to a TOML file with settings", ""), *_TOOL_FLAGS)


def usage(program: str, table: Sequence[Option]) -> str:
    """Return a daemon's whole `--help` text, in Go's layout."""
    closing = (
        "A flag may be written with one dash or two. If it is absent, its value comes from the environment\n"
        f"({program.upper()}_LOG_LEVEL for --log-level), then the --config file, then the default."
    )
    return _usage(program, table, EVERYWHERE, closing)


def tool_usage(program: str, table: Sequence[Option], closing: str) -> str:
    """Return a tool's whole `--help` text, which ends with `closing`."""
    return _usage(program, table, _TOOL_FLAGS, closing)


def _usage(program: str, table: Sequence[Option], others: Sequence[tuple[str, str, str, str]], closing: str) -> str:
    durations = (
        f"A duration has units, such as {DURATION_EXAMPLES}." if any(row.kind is DURATION for row in table) else ""
    )
    lines = [f"Usage of {program}:", *flag_lines(table, others)]
    return "\n".join([*lines, *(f"\n{text}" for text in (durations, closing) if text)])


def flag_lines(table: Sequence[Option], others: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return the lines about all flags, in Go's layout. `others` are flags outside the table, as in EVERYWHERE."""
    entries = [*others, *((row.flag, row.kind.word, help_text(row), _default_text(row)) for row in table)]
    lines = []
    for flag, word, text, default in sorted(entries):
        lines.append(f"  --{flag} {word}".rstrip())
        lines.append(f"    \t{text}{f' (default {default})' if default else ''}")
    return lines


def help_text(row: Option) -> str:
    """Return an option's description for `--help` and the reference page."""
    if row.is_deprecated:
        return f"deprecated, no effect: {row.help}"
    repeated = " (may be given multiple times)" if row.kind.is_repeated else ""
    return row.help + repeated


def _default_text(row: Option) -> str:
    text = row.shown_default()
    if row.kind.is_bare and text == "false":
        return ""
    return _quoted(text) if row.kind is STRING and text and row.default_shown is None else text
