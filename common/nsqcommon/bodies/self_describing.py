"""Parses bodies that describe themselves: JSON and MessagePack."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final, NoReturn

import msgpack
import msgspec

from nsqcommon.bodies.parsing import Cause, Unfit

_AT: Final = re.compile(r"\s*\(byte (\d+)\)")


class JsonParser:
    """Parses JSON as RFC 8259 defines it, in UTF-8. If a key occurs twice, the last one wins."""

    def __init__(self, *, exact: bool) -> None:
        """`exact` keeps a number's digits, for decimals. It takes longer."""
        self._exact = exact
        self._decode = msgspec.json.Decoder(float_hook=Decimal if exact else None).decode

    def __reduce__(self) -> tuple[object, ...]:
        return _json_parser, (self._exact,)

    @property
    def identity(self) -> tuple[object, ...]:
        return "json", self._exact

    def typed(self, record: type[msgspec.Struct]) -> Callable[[bytes], object] | None:
        return msgspec.json.Decoder(record).decode

    def parse(self, body: bytes) -> object:
        try:
            return self._decode(body)
        except RecursionError:
            raise Unfit(Cause.NOT_JSON, "nested too deep") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            _need_utf8(body)
            if "out of range" in str(error):
                return _with_any_number(body)
            raise _malformed(Cause.NOT_JSON, body, str(error)) from None


class MsgpackParser:
    """Parses bodies with one MessagePack value."""

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder().decode

    def __reduce__(self) -> tuple[object, ...]:
        return MsgpackParser, ()

    @property
    def identity(self) -> tuple[object, ...]:
        return ("msgpack",)

    def typed(self, record: type[msgspec.Struct]) -> Callable[[bytes], object] | None:
        return msgspec.msgpack.Decoder(record).decode

    def parse(self, body: bytes) -> object:
        try:
            return self._decode(body)
        except RecursionError:
            raise Unfit(Cause.NOT_MSGPACK, "nested too deep") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:  # TypeError: a map's key is a map
            _need_utf8_in_strings(body)
            raise _malformed(Cause.NOT_MSGPACK, body, str(error)) from None


def _json_parser(exact: bool) -> JsonParser:
    return JsonParser(exact=exact)


def _need_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Unfit(Cause.NOT_UTF8, f"byte 0x{body[error.start]:02x} at {error.start}") from None


def _need_utf8_in_strings(body: bytes) -> None:
    """Refuse MessagePack with a string that isn't UTF-8. From 0.23 on, msgspec doesn't name the byte."""
    try:
        msgpack.unpackb(body, strict_map_key=False)
    except UnicodeDecodeError as error:
        raise Unfit(Cause.NOT_UTF8, f"a string with byte 0x{error.object[error.start]:02x}") from None
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        pass  # malformed in another way


def _malformed(cause: Cause, body: bytes, text: str) -> Unfit:
    """Translate msgspec's messages, like `JSON is malformed: expected ':' (byte 5)`."""
    if not body:
        return Unfit(cause, "the body is empty")
    found = _AT.search(text)
    if found is None:
        place = len(body)
        said = "ends too early" if "truncated" in text else text
    else:
        place = int(found[1])
        said = _AT.sub("", text).rpartition("malformed: ")[2]
    if said == "trailing characters":
        # For JSON, msgspec names the byte after the first trailing character.
        return Unfit(Cause.TRAILING, f"from byte {place - 1 if cause is Cause.NOT_JSON else place} on")
    return Unfit(cause, f"{said} at byte {place}")


def _with_any_number(body: bytes) -> object:
    """Parse JSON with numbers too large for msgspec.

    Such a number overflows its field, or is in a field that the schema doesn't have.
    """
    try:
        return json.loads(body, parse_float=Decimal, parse_int=_any_integer, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unfit(Cause.NOT_JSON, str(error)) from None


def _any_integer(text: str) -> object:
    return int(text) if len(text) < 300 else Decimal(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
