"""Text in double quotes, as in NSQ's error messages (Go's %q)."""

from __future__ import annotations

from typing import Final

_SHORT: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def quote(data: bytes) -> bytes:
    """Return the bytes in quotes, with everything escaped that isn't printable Unicode."""
    # surrogateescape turns each invalid byte into a lone surrogate, which valid text can't contain.
    text = data.decode("utf-8", "surrogateescape")
    return ('"' + "".join(map(_escaped, text)) + '"').encode()


def _escaped(character: str) -> str:
    if (short := _SHORT.get(character)) is not None:
        return short
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
