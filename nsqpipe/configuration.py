"""Reads the TOML files of jobs: their tables, names and values of options, and the `--config` file.

That file has a table for each command, with values for missing options. The file of `nsqpipe run` has a table for each
job (`pipeline.py`), and the `--rules` file has one for each rule (`quality.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from nsqpipe.settings import Job, Setting, pair, settings_of

STORAGE: Final = "storage"  # the table about object stores, for all commands

Jobs = Mapping[str, type[Job]]  # by the name of their command; in a group, it has two words
Values = dict[str, Any]  # by the name of the field


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file. Raises OSError or ValueError."""
    with path.open("rb") as file:
        return tomllib.load(file)


def read_config(path: Path, jobs: Jobs) -> dict[str, Values]:
    """Return the values for each command. Raises ValueError with the file and the error."""
    try:
        found = read_tables(path)
        stored = found.pop(STORAGE, {})
        if not isinstance(stored, dict):
            raise ValueError(f"{STORAGE} is a table of options")
        said = {name: dict(_values(name, options, jobs[name])) for name, options in _tables(found, jobs)}
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {path}: {error}") from None
    if stored:
        words = [f"{name}={value}" for name, value in stored.items()]
        for name, job in jobs.items():
            if any(it.name == STORAGE for it in settings_of(job)):
                said.setdefault(name, {}).setdefault(STORAGE, words)
    return said


def _tables(found: Mapping[str, Any], jobs: Jobs, group: str = "") -> Iterator[tuple[str, Values]]:
    groups = {first for first, _, second in (name.partition(" ") for name in jobs) if second}
    for key, options in found.items():
        name = f"{group} {key}".strip()
        if not isinstance(options, dict) or name not in {*groups, *jobs}:
            raise ValueError(f"{_spelled(name)} is not a command with options")
        if name in groups:
            yield from _tables(options, jobs, name)
        else:
            yield name, options


def _values(name: str, options: Values, job: type[Job]) -> Iterator[tuple[str, Any]]:
    """Yield fields and their values. A repeatable option has a list or a single value."""
    known = by_key(it for it in settings_of(job) if it.flag)
    for spelled, value in options.items():
        found = known.get(key_of(spelled))
        if found is None:
            raise ValueError(f"{_spelled(name)} has no option {spelled}")
        if isinstance(value, dict):
            raise ValueError(f"{_spelled(name)}: {spelled} is a table, but should be a value")
        if found.repeats:
            value = value if isinstance(value, list) else [value]
        elif isinstance(value, list):
            raise ValueError(f"{_spelled(name)}: {spelled} is given once, and cannot be a list")
        yield found.name, value


def _spelled(name: str) -> str:
    """Return how TOML spells the name of a command's table."""
    return name.replace(" ", ".")


# Names and values


def key_of(spelled: str) -> str:
    """Return the key of an option, whose name is spelled with - or _."""
    return spelled.replace("-", "_")


def by_key(settings: Iterable[Setting]) -> dict[str, Setting]:
    return {it.key: it for it in settings}


def value_of(it: Setting, given: Any) -> Any:
    """Convert a TOML value to the setting's type. Raises ValueError, which names the valid values."""
    if not it.repeats:
        return _one(it, given)
    if isinstance(given, dict) and it.parse is pair:
        given = [f"{name}={_text(value)}" for name, value in given.items()]
    return tuple(_one(it, word) for word in (given if isinstance(given, list) else [given]))


def _one(it: Setting, given: Any) -> Any:
    if it.type in (bool, int, float):
        return _number(it, given)
    if not isinstance(given, str):
        raise ValueError(f"expected a text, not {given!r}")
    if it.parse is not None:
        return it.parse(given)
    if issubclass(it.type, StrEnum) and given not in set(it.type):
        raise ValueError(f"expected {', '.join(it.type)}, not {given!r}")
    return it.type(given)


def _number(it: Setting, given: Any) -> Any:
    """Check a boolean or a number. TOML distinguishes true, 1 and 1.0; we only accept 1 for 1.0."""
    if it.type is bool:
        if not isinstance(given, bool):
            raise ValueError(f"expected true or false, not {given!r}")
        return given
    kinds, wanted = ((int,), "a whole number") if it.type is int else ((int, float), "a number")
    if isinstance(given, bool) or not isinstance(given, kinds):
        raise ValueError(f"expected {wanted}, not {given!r}")
    if it.at_least is not None and given < it.at_least:
        raise ValueError(f"expected {wanted}, at least {it.at_least:g}, not {given!r}")
    return it.type(given)


def _text(value: Any) -> str:
    """Return the text of a value for Spark or a store, whose options we don't know."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise ValueError(f"expected a text or a number, not {value!r}")
    return str(value)
