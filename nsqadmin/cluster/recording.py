"""The snapshot file: a `Recording` as JSON and back.

Missing fields get their defaults and unknown ones are ignored, so that you can open the file of another release.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from nsqadmin.cluster.model import Recording

FORMAT: Final = "nsqadmin-snapshot-1"

T = TypeVar("T")


class NotASnapshot(ValueError):
    """The text is not a snapshot file; the message says why."""


def encode(recording: Recording) -> bytes:
    return json.dumps({"format": FORMAT, **to_json(recording)}, separators=(",", ":"), ensure_ascii=False).encode()


def decode(text: bytes) -> Recording:
    """Parse the output of `encode`. Raise NotASnapshot for anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotASnapshot(str(error)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise NotASnapshot(f'expected an object with "format":"{FORMAT}"')
    return from_json(Recording, document)


def to_json(value: Any) -> Any:
    """Convert a value of the model to dicts, lists and plain values, for snapshot files and the answers of `api/v2`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _shown(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_json(member) for key, member in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [to_json(member) for member in value]
    return value


def from_json(kind: type[T], value: object) -> T:
    """Convert the output of `to_json` back to a `kind`. Raise NotASnapshot if it doesn't fit."""
    decoded: T = _decoded(kind, value, kind.__name__)
    return decoded


def _shown(kind: type) -> tuple[str, ...]:
    return tuple(name for name in _hints(kind) if not name.startswith("_"))


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in members_of(kind)}


def members_of(kind: type) -> list[str]:
    """Return the names of a record's fields in the order of its JSON.

    That is the order of their declarations, but a record that inherits numbers says where to put these: NSQ's come
    after the first field of its NUMBERS_AFTER, and ours after the second.
    """
    fields = dataclasses.fields(kind)
    places: tuple[str, str] | None = getattr(kind, "NUMBERS_AFTER", None)
    if places is None:
        return [it.name for it in fields]
    own = inspect.get_annotations(kind)
    inherited = [it for it in fields if it.name not in own]
    members: list[str] = []
    for it in fields:
        if it.name in own:
            members.append(it.name)
            for place, is_nsqs in zip(places, (True, False), strict=True):
                if it.name == place:
                    members += [it.name for it in inherited if it.metadata["measure"].is_nsqs is is_nsqs]
    return members


def _decoded(kind: Any, value: object, where: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        return _decoded(next(member for member in get_args(kind) if member is not NoneType), value, where)
    if origin is tuple:
        return _decoded_tuple(get_args(kind), value, where)
    if origin is not None:  # Mapping[str, ...]
        members = _expect(dict, value, where)
        return {key: _decoded(get_args(kind)[1], member, f"{where}.{key}") for key, member in members.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _decoded_object(kind, _expect(dict, value, where), where)
    if issubclass(kind, StrEnum):
        try:
            return kind(value)
        except ValueError as error:
            raise NotASnapshot(f"{where}: {error}") from error
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(kind, value, where)


def _decoded_tuple(kinds: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    members = _expect(list, value, where)
    if kinds[-1] is Ellipsis:
        return tuple(_decoded(kinds[0], member, f"{where}[{at}]") for at, member in enumerate(members))
    if len(members) != len(kinds):
        raise NotASnapshot(f"{where}: expected {len(kinds)} values, got {len(members)}")
    return tuple(_decoded(kind, member, where) for kind, member in zip(kinds, members, strict=True))


def _decoded_object(kind: type, members: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    given = {name: _decoded(hints[name], members[name], f"{where}.{name}") for name in _shown(kind) if name in members}
    try:
        return kind(**given)
    except TypeError as error:
        raise NotASnapshot(f"{where}: {error}") from error


def _expect(kind: type[T], value: object, where: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise NotASnapshot(f"{where}: expected {kind.__name__}, got {type(value).__name__}")
    return value
