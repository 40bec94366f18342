"""One decoder: unpacks a body, and makes JSON of it. It runs in a thread, and keeps within bounds.

body ──► gzip ──► confluent ──► protobuf ──► values ──► JSON
         steps from bytes to bytes           a parser
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nsqadmin.decoding.unpacking import Unpackable, check_size
from nsqcommon.bodies.as_json import TooMuch, as_json
from nsqcommon.bodies.parsing import Cause, Unfit

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

    def read(self, body: bytes, *, hidden_bytes: str | None = None) -> tuple[bytes, str]:
        """Return the readable body, and a remark on it or "". Raise Undecodable.

        It is JSON or, without a parser, the unpacked bytes. With `hidden_bytes`, that text stands for fields that are
        bytes.
        """
        unpacked = self._unpacked(body)
        if self._parser is None:
            return unpacked, ""
        value = self._value(self._parser.parse, unpacked, hidden_bytes)
        content = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
        return content, self._parser.remark(unpacked)

    def fields(self, paths: Paths) -> Callable[[bytes], Any]:
        """Return a function from a body to a document that has the fields at these paths. It raises Undecodable."""
        if self._parser is None:
            return lambda body: _loaded(self._unpacked(body))
        parse = self._parser.parsing_only(paths)
        return lambda body: self._value(parse, self._unpacked(body), None)

    def _unpacked(self, body: bytes) -> bytes:
        for step in self._steps:
            try:
                body = check_size(step.unpack(check_size(body)))
            except (Unpackable, Unfit) as error:
                raise Undecodable(f"{step.name}: {_detail_of(error)}") from None
        return body

    def _value(self, parse: Callable[[bytes], object], body: bytes, hidden_bytes: str | None) -> Any:
        assert self._parser is not None
        try:
            return as_json(parse(check_size(body)), most=MOST_VALUES, hidden_bytes=hidden_bytes)
        except (Unpackable, Unfit, TooMuch) as error:
            raise Undecodable(f"{self._parser.name}: {_detail_of(error)}") from None
        except RecursionError:
            raise Undecodable(f"{self._parser.name}: nested too deep") from None
        except MemoryError:
            raise Undecodable(f"{self._parser.name}: takes too much memory") from None


def _detail_of(error: Exception) -> str:
    if not isinstance(error, Unfit):
        return str(error)
    return f"{error.cause}: {error.detail}" if error.cause in _NAMED else error.detail


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Undecodable("the unpacked body is not JSON") from None
