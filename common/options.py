"""One table of settings for each daemon; flags, file, environment, --help, checks and reference come from it.

A table is a frozen dataclass whose fields are made by `option()`:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options(BaseOptions):
        max_msg_size: int = option(1_048_576, "largest message, in bytes", at_least=1)
        msg_timeout: Nanoseconds = option(MINUTE, "when a message comes back", kind=DURATION)

`parse()` makes one of it. A flag beats an environment variable, that beats the TOML file, that the default.
All durations are whole nanoseconds, as NSQ's HTTP API shows them; `seconds()` is for whoever waits.
The syntax of flags is that of Go's `flag` package, because that is what NSQ's users have in their scripts.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NoReturn, Self, TypeVar

from common import nsq_json
from common.logs import LOG_FORMATS, LogLevel
from common.startup import StartupError
from common.wire.quoting import quote

log = logging.getLogger(__name__)

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound="BaseOptions")

Nanoseconds = int

MICROSECOND: Final[Nanoseconds] = 1_000
MILLISECOND: Final[Nanoseconds] = 1_000 * MICROSECOND
SECOND: Final[Nanoseconds] = 1_000 * MILLISECOND
MINUTE: Final[Nanoseconds] = 60 * SECOND
HOUR: Final[Nanoseconds] = 60 * MINUTE

_INT64: Final = range(-(2**63), 2**63)


class UsageError(Exception):
    """The command line is wrong: message and usage belong on stderr, and the exit status is 2."""

    exit_status: Final = 2

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.message = message
        self.usage = usage


class HelpRequested(Exception):
    """`--help` was given: the usage belongs on stderr, and the exit status is 0."""

    def __init__(self, usage: str) -> None:
        super().__init__(usage)
        self.usage = usage


class VersionRequested(Exception):
    """`--version` was given."""


# --- durations


def seconds(duration: Nanoseconds) -> float:
    return duration / SECOND


_DURATION_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_UNITS: Final[Mapping[str, Nanoseconds]] = {
    "ns": 1,
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "μs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}


def parse_duration(text: str) -> Nanoseconds:
    """Go's notation: `300ms`, `1.5h`, `1m30s500ms`, and `0` as the only bare number. ValueError for anything else."""
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest) or at == 0:
        part = _DURATION_PART.match(rest, at)
        if part is None or not (part[1] or part[2]):
            raise ValueError("parse error")
        unit, fraction = _UNITS[part[3]], part[2] or ""
        total += int(part[1] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        at = part.end()
    if total not in _INT64:
        raise ValueError("parse error")
    return -total if text.startswith("-") else total


def format_duration(duration: Nanoseconds) -> str:
    """As Go prints it: `1h0m0s`, `1m0s`, `2.5s`, `250ms`, `0s`."""
    if duration < 0:
        return "-" + format_duration(-duration)
    if duration < SECOND:
        for word, unit in (("ms", MILLISECOND), ("µs", MICROSECOND), ("ns", 1)):
            if duration >= unit:
                return _decimal(duration, unit) + word
        return "0s"
    minutes, rest = divmod(duration, MINUTE)
    hours, minutes = divmod(minutes, 60)
    text = _decimal(rest, SECOND) + "s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)


# --- kinds of values


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """How one sort of value is read and shown.

    `parse` reads a flag's text and `convert` what TOML gives; both raise ValueError with the reason. A repeated
    kind's value is a tuple, and its `parse` gives what one use of the flag adds.
    """

    word: str  # stands for the value in --help
    parse: Callable[[str], T]
    convert: Callable[[object], T]
    show: Callable[[T], str] = str  # for people: --help, the reference page, error messages
    render: Callable[[T], str] = str  # for `GET /config/<key>`
    put: Callable[[str], T] | None = None  # for `PUT /config/<key>`, where this is not `parse`
    is_bare: bool = False  # `--flag` alone means true
    is_repeated: bool = False
    has_own_words: bool = False  # NSQ says "failed parsing <key> <value>" for these


def _parse_boolean(text: str) -> bool:
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if text in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    raise ValueError("parse error")


def _parse_integer(text: str) -> int:
    if not text.isascii() or text != text.strip():
        raise ValueError("parse error")
    try:
        # Go reads a leading 0 as octal, where Python wants 0o.
        value = int(text, 8) if re.fullmatch(r"[+-]?0[0-7_]+", text) else int(text, 0)
    except ValueError:
        raise ValueError("parse error") from None
    if value not in _INT64:
        raise ValueError("value out of range")
    return value


def _parse_floats(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise StartupError(f"Could not parse: {text}") from None  # NSQ exits 1 here, not 2


def _wrong_type(value: object) -> NoReturn:
    raise ValueError(f"invalid value type {type(value).__name__}")


def _convert_boolean(value: object) -> bool:
    # NSQ reads the integers 0 and 1 the wrong way round: docs/reference/differences.md.
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    return _parse_boolean(value) if isinstance(value, str) else _wrong_type(value)


def _convert_integer(value: object) -> int:
    if isinstance(value, str) and re.fullmatch("[+-]?[0-9]+", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        _wrong_type(value)
    return value


def _convert_string(value: object) -> str:
    return value if isinstance(value, str) else _wrong_type(value)


def _convert_duration(value: object) -> Nanoseconds:
    if isinstance(value, str):
        return parse_duration(value)
    return _convert_integer(value) * MILLISECOND


def _convert_strings(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split(",")) if value else ()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    _wrong_type(value)


def _convert_floats(value: object) -> tuple[float, ...]:
    if isinstance(value, str):
        return _parse_floats(value) if value else ()
    if isinstance(value, list) and all(isinstance(item, int | float) for item in value):
        return tuple(float(item) for item in value)
    _wrong_type(value)


def _put_strings(text: str) -> tuple[str, ...]:
    value = json.loads(text)  # its error is a ValueError
    return () if value is None else _convert_strings(value) if isinstance(value, list) else _wrong_type(value)


def _convert_by_text(parse: Callable[[str], T]) -> Callable[[object], T]:
    """For words that TOML may also hold as a boolean or an integer."""
    return lambda value: parse(str(value).lower() if isinstance(value, bool) else str(value))


def _render_list(values: Sequence[object]) -> str:
    return nsq_json.dumps(values).decode()


def _show_boolean(value: bool) -> str:
    return "true" if value else "false"


def _show_list(values: Sequence[object]) -> str:
    return ",".join(str(value) for value in values)


BOOLEAN: Final = Kind(
    word="", parse=_parse_boolean, convert=_convert_boolean, show=_show_boolean, render=_show_boolean, is_bare=True
)
INTEGER: Final = Kind(word="int", parse=_parse_integer, convert=_convert_integer)
STRING: Final = Kind(word="string", parse=str, convert=_convert_string)
DURATION: Final = Kind(word="duration", parse=parse_duration, convert=_convert_duration, show=format_duration)
STRINGS: Final[Kind[tuple[str, ...]]] = Kind(
    word="value",
    parse=lambda text: (text,),
    convert=_convert_strings,
    show=_show_list,
    render=_render_list,
    put=_put_strings,
    is_repeated=True,
)
FLOATS: Final = Kind(
    word="value",
    parse=_parse_floats,
    convert=_convert_floats,
    show=_show_list,
    render=_render_list,
    is_repeated=True,
)


def own_words(
    word: str, parse: Callable[[str], T], *, show: Callable[[T], str], render: Callable[[T], str], is_bare: bool = False
) -> Kind[T]:
    """A kind whose values are a few words, the same wherever they are read."""
    return Kind(
        word=word,
        parse=parse,
        convert=_convert_by_text(parse),
        show=show,
        render=render,
        is_bare=is_bare,
        has_own_words=True,
    )


def one_of(*words: str) -> Kind[str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return own_words("|".join(words), parse, show=str, render=str)


LEVEL: Final = own_words("level", LogLevel.parse, show=lambda level: level.word, render=lambda level: str(level.value))


def _kind_of(default: object) -> Kind[Any]:
    match default:
        case bool():
            return BOOLEAN
        case int():
            return INTEGER
        case str():
            return STRING
        case tuple():
            return STRINGS
    raise TypeError(f"an option with the default {default!r} needs a kind")


# --- the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of a table. `key` is its name in the TOML file and under `/config/`."""

    name: str
    flag: str
    key: str
    help: str
    kind: Kind[Any]
    default: Any  # MISSING where it is computed
    default_shown: str | None
    at_least: int | None
    at_most: int | None
    below: int | None
    is_deprecated: bool
    is_planned: bool
    at_run_time: bool

    def shown_default(self) -> str:
        if self.default_shown is not None:
            return self.default_shown
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
    kind: Kind[Any] | None = None,
    flag: str | None = None,
    toml: str | None = None,
    at_least: int | None = None,
    at_most: int | None = None,
    below: int | None = None,
    deprecated: bool = False,
    planned: bool = False,
    at_run_time: bool = False,
) -> T:
    """A field of a table. The kind follows from the default where it can: bool, int, str, or tuple of str.

    `flag` and `toml` are for names that do not follow from the field's. A deprecated option is only a flag and has
    no effect; a planned one is read and has none yet, which a warning says. What is settable `at_run_time` takes `PUT /config/<key>`.
    """
    settings = {
        "help": help,
        "kind": kind or _kind_of(default),
        "flag": flag,
        "key": toml,
        "default_shown": None,
        "at_least": at_least,
        "at_most": at_most,
        "below": below,
        "is_deprecated": deprecated,
        "is_planned": planned,
        "at_run_time": at_run_time,
    }
    made: T = field(default=default, metadata=settings)
    return made


def computed_option(compute: Callable[[], T], shown: str, help: str, **settings: Any) -> T:
    """An option whose default depends on the machine; `shown` says on what."""
    kind = settings.pop("kind", None) or _kind_of(compute())
    described: Any = option(None, help, kind=kind, **settings)
    made: T = field(default_factory=compute, metadata={**described.metadata, "default_shown": shown})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOptions:
    """What every daemon's table has, because `common.daemon` needs it."""

    log_level: LogLevel = option(
        LogLevel.INFO, "what to log: debug, info, warn, error, or fatal", kind=LEVEL, at_run_time=True
    )
    log_prefix: str = option("", "what each line of the log begins with")
    log_format: str = option("nsq", "how the log is written: nsq (NSQ's lines) or json", kind=one_of(*LOG_FORMATS))

    def checked(self) -> Self:
        """These options, checked against each other and completed; StartupError when they cannot be used.

        Each option's own bounds have been checked before.
        """
        return self


def table_of(options_class: type[BaseOptions]) -> tuple[Option, ...]:
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
    """The options of `program`, from its arguments (without its own name), the environment and the TOML file.

    Raises UsageError, HelpRequested, VersionRequested, or StartupError with the whole line to print.
    """
    table = table_of(options_class)
    flags = _CommandLine(program, table)
    flags.read(argv)
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
    for row in table:
        if row.is_planned and row.name in values:
            log.warning("--%s has no effect yet", row.flag)
    return options


def variable_of(program: str, flag: str) -> str:
    """The environment variable that stands for a flag: NSQD_TCP_ADDRESS for nsqd's tcp-address."""
    return f"{program}_{flag}".replace("-", "_").upper()


class _CommandLine:
    """Go's `flag` package: one dash or two, `--flag=value` or `--flag value`, and a bare word ends it all."""

    def __init__(self, program: str, table: Sequence[Option]) -> None:
        self._program = program
        self._table = table
        self._rows = {row.flag: row for row in table}
        self.values: dict[str, Any] = {}
        self.config: str | None = None

    def read(self, argv: Sequence[str]) -> None:
        left = list(reversed(argv))
        wants_version = False
        while left and len(left[-1]) > 1 and left[-1].startswith("-") and left[-1] != "--":
            argument = left.pop()
            flag, equals, text = argument.removeprefix("-").removeprefix("-").partition("=")
            if not flag or flag.startswith("-"):
                self._refuse(f"bad flag syntax: {argument}")
            value = text if equals else None
            if flag == "version":
                wants_version = value is None or self._boolean(flag, value)
            elif flag == "config":
                self.config = self._text(flag, value, left)
            elif flag in self._rows:
                self._set(self._rows[flag], value, left)
            elif flag in ("h", "help"):
                raise HelpRequested(usage(self._program, self._table))
            else:
                self._refuse(f"flag provided but not defined: -{flag}")
        if wants_version:
            raise VersionRequested

    def _set(self, row: Option, value: str | None, left: list[str]) -> None:
        if row.kind.is_bare and value is None:
            self.values[row.name] = row.kind.parse("true")
            return
        text = self._text(row.flag, value, left)
        try:
            parsed = row.kind.parse(text)
        except ValueError as error:
            self._refuse_value(row.flag, text, str(error), is_boolean=row.kind.is_bare)
        self.values[row.name] = self.values.get(row.name, ()) + parsed if row.kind.is_repeated else parsed

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
        raise UsageError(message, usage(self._program, self._table))


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape")).decode()


def _read_environment(environ: Mapping[str, str], table: Sequence[Option], program: str) -> dict[str, Any]:
    # Unknown NSQD_... variables are none of our business: Kubernetes sets some for every service called nsqd.
    values = {}
    for row in table:
        variable = variable_of(program, row.flag)
        text = environ.get(variable)
        if text is None or row.is_deprecated:
            continue
        try:
            # A list is written with commas here, as there is only one variable.
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
    """What `GET /config/<key>` answers; KeyError for an unknown key. Text is raw, durations are nanoseconds."""
    row = _row_of(options, key)
    return str(row.kind.render(getattr(options, row.name)))


def change(options: OptionsT, key: str, text: str) -> OptionsT:
    """What `PUT /config/<key>` makes of the options.

    KeyError for a key that is unknown or fixed after the start; ValueError for a bad value.
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


# --- for people

_EVERYWHERE: Final = (
    ("config", "string", "path to a TOML file with settings", ""),
    ("help", "", "print this and exit", ""),
    ("version", "", "print the version and exit", ""),
)


def usage(program: str, table: Sequence[Option]) -> str:
    """All of `--help`, in the shape that Go gives it."""
    entries = [*_EVERYWHERE, *((row.flag, row.kind.word, _help_text(row), _default_text(row)) for row in table)]
    lines = [f"Usage of {program}:"]
    for flag, word, text, default in sorted(entries):
        lines.append(f"  --{flag} {word}".rstrip())
        lines.append(f"    \t{text}{f' (default {default})' if default else ''}")
    lines.append("")
    lines.append(
        f"A flag may be written with one dash or two. Without it counts the environment ({program.upper()}_... in"
    )
    lines.append("capitals, with _ for -), then the file of --config, then the default.")
    return "\n".join(lines)


def _help_text(row: Option) -> str:
    if row.is_deprecated:
        return f"deprecated, no effect: {row.help}"
    repeated = " (may be given multiple times)" if row.kind.is_repeated else ""
    return row.help + repeated + (" (no effect yet)" if row.is_planned else "")


def _default_text(row: Option) -> str:
    text = row.shown_default()
    if row.kind.is_bare and text == "false":
        return ""
    return f'"{text}"' if row.kind is STRING and text and row.default_shown is None else text


def reference_page(options_class: type[BaseOptions], program: str, *, about: str) -> str:
    """The Markdown page of a table. `about` is the paragraph that stands above it."""
    lines = [
        f"# Options of {program}",
        "",
        "<!-- Written by scripts/make-reference from the table of options. Change the table, not this page. -->",
        "",
        about.strip(),
        "",
        "| Flag | Type | Default | Meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [_reference_line(row) for row in sorted(table_of(options_class), key=lambda row: row.flag)]
    lines += [f"| `--{flag}` | {word or 'bool'} | | {text} |" for flag, word, text, _ in _EVERYWHERE]
    return "\n".join(lines) + "\n"


def _reference_line(row: Option) -> str:
    word = "list" if row.kind.is_repeated else row.kind.word or "bool"
    default = row.shown_default()
    shown = "" if not default else default if row.default_shown else f"`{default}`"
    text = _help_text(row)
    if row.key != row.flag.replace("-", "_"):
        text += f". In the file and under `/config/`: `{row.key}`"
    if row.at_run_time:
        text += ". Can be changed at run time"
    cells = (f"`--{row.flag}`", word, shown, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
