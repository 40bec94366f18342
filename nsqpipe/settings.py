"""One table for each job: a frozen dataclass with fields from `setting()`.

    @dataclass(frozen=True, kw_only=True)
    class Compact(Job):
        "Joins a Delta table's small files."
        table: str = setting("the table's folder")
        target_mb: int = setting("target size of a file, in megabytes", 128, at_least=1)

The command line, the `--config` file, `--help` and the reference page are generated from it. A field without a default
is required. Its type limits its values: a tuple means that the option may be repeated, an enum that it takes one of its
words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

Parse = Callable[[str], Any]  # raises ValueError, whose text says what was expected

_SETTING: Final = "setting"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of a command. Jobs that share settings inherit them; the settings of the last base come first."""

    def problems(self) -> Iterator[str]:
        """Yield problems with the combination of settings, each of which may be valid."""
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of a table."""

    name: str
    flag: str  # empty: it is an argument, not an option
    help: str
    type: type  # of one value: str, int, float, bool, Path, or an enum
    repeats: bool
    default: Any  # MISSING: it is required
    at_least: float | None
    parse: Parse | None

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def key(self) -> str:
        """The key in the TOML file."""
        return self.flag.removeprefix("--").replace("-", "_")

    def shown_default(self) -> str:
        """Return the default for `--help`: nothing if it is empty or off."""
        if self.default in (MISSING, None, "", (), False):
            return ""
        return str(self.default)


def setting(
    help: str,
    default: Any = MISSING,
    *,
    flag: str = "",
    at_least: float | None = None,
    parse: Parse | None = None,
    is_secret: bool = False,
) -> Any:
    """Make a field that is an option. `flag` defaults to the field's name; `parse` converts the word to the value.

    A secret is left out of `repr`.
    """
    about = {"help": help, "flag": flag, "at_least": at_least, "parse": parse}
    return field(default=default, repr=not is_secret, metadata={_SETTING: about})


def rest(help: str) -> Any:
    """Make a field for all words that aren't options."""
    return field(default=(), metadata={_SETTING: {"help": help, "flag": None, "at_least": None, "parse": None}})


def argument(help: str) -> Any:
    """Make a field for one word that isn't an option. It is required."""
    return field(metadata={_SETTING: {"help": help, "flag": None, "at_least": None, "parse": None}})


def settings_of(job: type[Job]) -> list[Setting]:
    types = get_type_hints(job)
    return [_setting(it.name, types[it.name], it.default, **it.metadata[_SETTING]) for it in fields(job)]


def _setting(name: str, annotation: Any, default: Any, *, flag: str | None, **about: Any) -> Setting:
    repeats = get_origin(annotation) is tuple
    choices = [it for it in get_args(annotation) if it not in (NoneType, Ellipsis)]
    kind = choices[0] if choices else annotation
    if kind not in (str, int, float, bool, Path) and not (isinstance(kind, type) and issubclass(kind, StrEnum)):
        kind = str  # `parse` converts it
    shown = "" if flag is None else flag or f"--{name.replace('_', '-')}"
    return Setting(name=name, flag=shown, type=kind, repeats=repeats, default=default, **about)


# Parsers


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"expected NAME=VALUE, not {text!r}")
    return name, value


def place(text: str) -> tuple[str, int]:
    lane, _, sequence = text.rpartition("=")
    if not lane or not (sequence.isascii() and sequence.isdigit()):
        raise ValueError(f"expected LANE=SEQUENCE, not {text!r}")
    if len(lane.split("/")) != 3 or not all(lane.split("/")):
        raise ValueError(f"{lane!r} is not a lane: expected <node>/<topic>/<log>")
    return lane, int(sequence)


def interval(text: str) -> str:
    """Check an interval in Spark's spelling."""
    unit = r"(?:week|day|hour|minute|second|millisecond|microsecond)s?"
    if text and not re.fullmatch(rf"(?:interval\s+)?\d+(?:\.\d+)?\s+{unit}(?:\s+\d+\s+{unit})*", text.strip().lower()):
        raise ValueError(f"expected a duration, as in '10 seconds', not {text!r}")
    return text


def moment(text: str) -> str:
    try:
        datetime.fromisoformat(text or "1970-01-01")
    except ValueError:
        raise ValueError(f"expected a time, as in 2026-03-01T12:00:00Z, not {text!r}") from None
    return text


def listening(text: str) -> str:
    """Check an address to listen at. Without a host, only this machine can connect."""
    if text and not re.fullmatch(r".*:\d{1,5}", text):
        raise ValueError(f"expected host:port, not {text!r}")
    return text
