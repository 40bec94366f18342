"""The kinds of option values: how to parse one from a flag, an environment variable or TOML, and how to show it.

We convert TOML values as NSQ does, except for integers as booleans (docs/reference/differences.md).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar

from nsqcommon import nsq_json
from nsqcommon.durations import MILLISECOND, Nanoseconds, format_duration, parse_long_duration
from nsqcommon.logs import LogLevel
from nsqcommon.passwords import mask_option, mask_url
from nsqcommon.startup import StartupError

T = TypeVar("T")
W = TypeVar("W", bound=str)

_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionKind(Generic[T]):
    """How to parse and show values of one kind.

    `parse` takes the text of a flag, and `convert` the value in a TOML file. Both raise ValueError with the reason. The
    values of a repeated kind are tuples, and `parse` returns the items that one use of the flag adds. For example,
    `--lookupd-tcp-address=a:4160` adds ("a:4160",).
    """

    word: str  # for the value in --help, such as `int`
    parse: Callable[[str], T]
    convert: Callable[[object], T]
    show: Callable[[T], str] = str  # for people: --help, the reference page, error messages
    render: Callable[[T], str] = str  # for `GET /config/<key>`
    put: Callable[[str], T] | None = None  # for `PUT /config/<key>`, if that differs from `parse`
    is_bare: bool = False  # `--flag` alone means true
    is_repeated: bool = False
    is_descending: bool = False  # NSQ sorts values from flags, but not from the file
    may_be_secret: bool = False  # errors don't show the value
    has_own_words: bool = False  # NSQ reports a bad value as "failed parsing <key> <value>"


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
        # A leading 0 means octal in Go; Python wants 0o.
        value = int(text, 8) if re.fullmatch(r"[+-]?0[0-7_]+", text) else int(text, 0)
    except ValueError:
        raise ValueError("parse error") from None
    if value not in _INT64:
        raise ValueError("value out of range")
    return value


_GO_FLOAT: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _parse_float(text: str) -> float:
    if not _GO_FLOAT.fullmatch(text):
        raise ValueError("parse error")
    value = float(text)
    if math.isinf(value):
        raise ValueError("value out of range")
    return value


def _convert_float(value: object) -> float:
    return _parse_float(str(value)) if isinstance(value, int | float | str) else _wrong_type(value)


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
        return parse_long_duration(value)
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
    try:
        value = json.loads(text)  # its error is a ValueError
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return () if value is None else _convert_strings(value) if isinstance(value, list) else _wrong_type(value)


def _convert_by_text(parse: Callable[[str], T]) -> Callable[[object], T]:
    """Return a `convert` for a kind of words, some of which TOML may hold as a boolean or integer, such as `true`."""
    return lambda value: parse(str(value).lower() if isinstance(value, bool) else str(value))


def _render_list(values: Sequence[object]) -> str:
    return nsq_json.dumps(values).decode()


def _render_strings(values: Sequence[str]) -> str:
    return _render_list([mask_option(value) for value in values])


def _show_boolean(value: bool) -> str:
    return "true" if value else "false"


def _show_list(values: Sequence[object]) -> str:
    return ",".join(str(value) for value in values)


BOOLEAN: Final = OptionKind(
    word="", parse=_parse_boolean, convert=_convert_boolean, show=_show_boolean, render=_show_boolean, is_bare=True
)
INTEGER: Final = OptionKind(word="int", parse=_parse_integer, convert=_convert_integer)
FLOAT: Final = OptionKind(word="float", parse=_parse_float, convert=_convert_float, show=lambda value: f"{value:g}")
STRING: Final = OptionKind(word="string", parse=str, convert=_convert_string, render=mask_option)
DURATION: Final = OptionKind(
    word="duration", parse=parse_long_duration, convert=_convert_duration, show=format_duration
)
STRINGS: Final[OptionKind[tuple[str, ...]]] = OptionKind(
    word="value",
    parse=lambda text: (text,),
    convert=_convert_strings,
    show=_show_list,
    render=_render_strings,
    put=_put_strings,
    is_repeated=True,
)
SECRET_URLS: Final = dataclasses.replace(
    STRINGS, render=lambda values: _render_list([mask_url(value) for value in values]), may_be_secret=True
)
FLOATS: Final = OptionKind(
    word="value",
    parse=_parse_floats,
    convert=_convert_floats,
    show=_show_list,
    render=_render_list,
    is_repeated=True,
    is_descending=True,
)


def words_kind(
    word: str, parse: Callable[[str], T], *, show: Callable[[T], str], render: Callable[[T], str], is_bare: bool = False
) -> OptionKind[T]:
    """Return a kind whose values are a few words, spelled the same in flags, environment and TOML."""
    return OptionKind(
        word=word,
        parse=parse,
        convert=_convert_by_text(parse),
        show=show,
        render=render,
        is_bare=is_bare,
        has_own_words=True,
    )


def one_of(*words: W) -> OptionKind[W]:
    """Return a kind that accepts only these words, which may be the members of a StrEnum."""

    def parse(text: str) -> W:
        for word in words:
            if word == text:
                return word
        raise ValueError(f"must be one of {', '.join(words)}")

    return words_kind("|".join(words), parse, show=str, render=str)


LEVEL: Final = words_kind("level", LogLevel.parse, show=lambda level: level.word, render=lambda level: str(level.value))


def kind_of(default: object) -> OptionKind[Any]:
    """Return the kind of an option with this default."""
    match default:
        case bool():
            return BOOLEAN
        case int():
            return INTEGER
        case float():
            return FLOAT
        case str():
            return STRING
        case tuple():
            return STRINGS
    raise TypeError(f"an option with the default {default!r} needs a kind")
