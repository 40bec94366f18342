"""What a slot says was done to the files of a node.

A slot has its operations in order, and as its body the bytes that were written, one after the other. If you repeat the
operations of a chain from its first slot to any later one, you have a data path that `kill -9` could have left at that
moment. For example, a topic's first message:

    MakeFolder("topics/t.orders")
    Replace("topics/t.orders/log.json", 71)
    OpenFile(3, "topics/t.orders/00000000.log")
    Write(3, 0, 118)

A file that is open has a number. It means nothing outside of its run, so that the first slot of a run can be read
without the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from nsqcommon.remote.framing import BadObject, NewerFormat
from nsqcommon.remote.names import Run, parse_run


@dataclass(frozen=True, slots=True)
class OpenFile:
    """From here on, `file` is the file of this path. It is created if it doesn't exist."""

    file: int
    path: str


@dataclass(frozen=True, slots=True)
class Write:
    """The next `length` bytes of the body were written to this file."""

    file: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The file was made shorter, or longer with zeros."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Rename:
    """A file or folder got another name. What had that name before is gone."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A file or a folder with all that is in it was removed."""

    path: str


@dataclass(frozen=True, slots=True)
class MakeFolder:
    path: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The file has the next `length` bytes of the body as its whole content, in one step."""

    path: str
    length: int


@dataclass(frozen=True, slots=True)
class UseBlob:
    """The file has the content of an object of its own, which was stored before."""

    path: str
    object: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The root of this run is stored. From now on, chains may be read from there."""

    run: Run


Operation: TypeAlias = OpenFile | Write | Cut | Rename | Remove | MakeFolder | Replace | UseBlob | Commit

_WORDS: Final[dict[type[Operation], str]] = {
    OpenFile: "open",
    Write: "write",
    Cut: "cut",
    Rename: "name",
    Remove: "gone",
    MakeFolder: "folder",
    Replace: "whole",
    UseBlob: "blob",
    Commit: "commit",
}
_NUMBERS: Final = 48  # bytes at most, of an operation without its paths


def body_length(operation: Operation) -> int:
    """Return how many bytes of the body are this operation's."""
    return operation.length if isinstance(operation, Write | Replace) else 0


def header_length(operation: Operation) -> int:
    """Return how many bytes an operation takes in a header at most, because paths are ASCII."""
    match operation:
        case Rename(source, target):
            return _NUMBERS + len(source) + len(target)
        case UseBlob(path, blob):
            return _NUMBERS + len(path) + len(blob)
        case OpenFile(_, path) | Remove(path) | MakeFolder(path) | Replace(path):
            return _NUMBERS + len(path)
        case Commit(run):
            return _NUMBERS + len(str(run))
        case _:
            return _NUMBERS


def encode_operations(operations: Iterable[Operation]) -> list[list[Any]]:
    return [
        ["commit", str(it.run)]
        if isinstance(it, Commit)
        else [_WORDS[type(it)], *[getattr(it, name) for name in it.__slots__]]  # `astuple` would copy each value
        for it in operations
    ]


def decode_operations(found: object) -> tuple[Operation, ...]:
    """Return the operations of a slot. Raises BadObject, and NewerFormat if it has a word that is unknown here."""
    if not isinstance(found, list):
        raise BadObject("the operations are not a list")
    return tuple(map(_decode, found))


def _decode(found: object) -> Operation:
    match found:
        case [str(word), *arguments] if word in _SIGNATURES:
            make, kinds = _SIGNATURES[word]
            if len(arguments) == len(kinds) and all(map(_is, arguments, kinds)):
                return make(*arguments)
        case [str(word), *_]:
            raise NewerFormat(f"has the operation {word!r}, which this version doesn't know")
    raise BadObject(f"{found!r} is not an operation")


def _is(argument: object, kind: type) -> bool:
    return type(argument) is kind and not (isinstance(argument, int) and argument < 0)


_SIGNATURES: Final[dict[str, tuple[Callable[..., Operation], Sequence[type]]]] = {
    "open": (OpenFile, (int, str)),
    "write": (Write, (int, int, int)),
    "cut": (Cut, (int, int)),
    "name": (Rename, (str, str)),
    "gone": (Remove, (str,)),
    "folder": (MakeFolder, (str,)),
    "whole": (Replace, (str, int)),
    "blob": (UseBlob, (str, str, int, int)),
    "commit": (lambda run: Commit(parse_run(run)), (str,)),
}
