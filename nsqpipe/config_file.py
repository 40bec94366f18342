"""Reads the file of `--config`: a TOML table for each command, with values for options that are not given."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from nsqpipe.settings import Job, settings_of

STORAGE: Final = "storage"  # the table about object stores, for all commands

Jobs = Mapping[str, type[Job]]  # by the name of their command; in a group, it has two words
Values = dict[str, Any]  # by the name of the field


def read_config(path: Path, jobs: Jobs) -> dict[str, Values]:
    """Return the values for each command. Raises ValueError, which names the file and what is wrong."""
    try:
        found = tomllib.loads(path.read_text())
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
    """Yield fields and their values.

    An option is spelled with - or _; a repeatable one has a list or a single value.
    """
    known = {it.key: it for it in settings_of(job) if it.flag}
    for spelled, value in options.items():
        found = known.get(spelled.replace("-", "_"))
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
