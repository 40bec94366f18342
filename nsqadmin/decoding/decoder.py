"""One decoder: unpacks a body, and makes JSON of it. It runs in a thread, and keeps within bounds.

body ──► gzip ──► confluent ──► protobuf ──► values ──► JSON
         steps from bytes to bytes           a parser
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nsqadmin.decoding.unpacking import Unpackable, check_size
from nsqcommon.bodies.as_json import TooMuch, as_json
from nsqcommon.bodies.parsing import Cause, Tree, Unfit, tree_of

MOST_VALUES: Final = 50_000  # of one body: JSON of more would hold up other threads for too long
_NAMED: Final = frozenset((Cause.TRAILING, Cause.NOT_CONFLUENT, Cause.UNKNOWN_SCHEMA))  # causes that details don't have
Paths = Collection[tuple[str, ...]]


class Undecodable(Exception):
    """The body doesn't fit; the message says why and where, and may quote it."""


class BodyParser(Protocol):
    """The last step of a decoder."""

    @property
    def name(self) -> str:
        """Its format for users, such as `Protobuf shop.Order`."""

    def parse(self, body: bytes) -> object:
        """Return the body's values. Raise Unfit."""

    def parsing_only(self, paths: Paths) -> Callable[[bytes], object]:
        """Return a function like `parse` whose values have the fields at these paths, and perhaps more."""

    def remark(self, body: bytes) -> str:
        """Return a remark on a body that was parsed; "": there is none."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    unpack: Callable[[bytes], bytes]  # raises Unpackable or Unfit


class Decoder:
    def __init__(self, steps: Sequence[Step], parser: BodyParser | None) -> None:
        """Without a parser, the unpacked body is shown like one that was published so."""
        self._steps = tuple(steps)
        self._parser = parser
        self.name = ", ".join([*(it.name for it in steps), *([parser.name] if parser is not None else [])])

    def read(self, body: bytes, *, hidden_bytes: str | None = None) -> bytes:
        """Return the readable body: JSON, or without a parser, the unpacked bytes. Raise Undecodable.

        With `hidden_bytes`, that text stands for fields that are bytes.
        """
        unpacked = self._unpacked(body)
        if self._parser is None:
            return unpacked
        with self._explained():
            value = as_json(self._parser.parse(check_size(unpacked)), most=MOST_VALUES, hidden_bytes=hidden_bytes)
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")

    def remark(self, body: bytes) -> str:
        """Return a remark on a body that was read; "": there is none."""
        return self._parser.remark(self._unpacked(body)) if self._parser is not None else ""

    def fields(self, paths: Paths) -> Callable[[bytes], Any]:
        """Return a function from a body to a document that has the fields at these paths. It raises Undecodable.

        It takes a tenth of the time of `read`, and a search calls it for each message.
        """
        if self._parser is None:
            return lambda body: _loaded(self._unpacked(body))
        parse, tree = self._parser.parsing_only(paths), tree_of(paths)

        def read(body: bytes) -> Any:
            unpacked = self._unpacked(body)
            with self._explained():
                return _only(parse(check_size(unpacked)), tree)

        return read

    def _unpacked(self, body: bytes) -> bytes:
        for step in self._steps:
            try:
                body = check_size(step.unpack(check_size(body)))
            except (Unpackable, Unfit) as error:
                raise Undecodable(f"{step.name}: {_detail_of(error)}") from None
        return body

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise Undecodable for the parser's errors."""
        name = self._parser.name if self._parser is not None else ""
        try:
            yield
        except (Unpackable, Unfit, TooMuch) as error:
            raise Undecodable(f"{name}: {_detail_of(error)}") from None
        except RecursionError:
            raise Undecodable(f"{name}: nested too deep") from None
        except MemoryError:
            raise Undecodable(f"{name}: takes too much memory") from None
        except Exception as error:  # garbage may make a library raise anything, and it must not hide other messages
            raise Undecodable(f"{name}: {type(error).__name__}: {error}"[:200]) from error


def _only(value: Any, tree: Tree) -> Any:
    """Return the JSON of the parts of the value that the tree has, and perhaps more."""
    if not tree or type(value) is not dict or not all(type(key) is str for key in value):
        return as_json(value, most=MOST_VALUES)
    return {step: _only(value[step], inner) for step, inner in tree.items() if step in value}


def _detail_of(error: Exception) -> str:
    if not isinstance(error, Unfit):
        return str(error)
    return f"{error.cause}: {error.detail}" if error.cause in _NAMED else error.detail


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Undecodable("the unpacked body is not JSON") from None
