"""Shows bodies of messages as indented JSON, text, or bytes. Everything in them is escaped and never becomes HTML."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from nsqadmin.upstream import strict_json

if TYPE_CHECKING:
    from nsqadmin.messages.model import Message

MOST: Final = 32 * 1024  # bytes of a body that a page shows; the whole body can be downloaded
FORMS: Final = ("auto", "json", "text", "hex", "base64")
_PREVIEW: Final = 160  # characters
_ROW: Final = 16  # bytes of a line of hexadecimal
_token: Final = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*")(?P<colon>\s*:)?|(?P<word>\b(?:true|false|null)\b)|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    message: Message
    form: str  # one of FORMS but "auto"; empty if the user may not see the body
    text: Markup
    preview: str
    is_cut: bool


def shown(message: Message, form: str = "auto") -> ShownMessage:
    if message.body is None:
        return ShownMessage(message=message, form="", text=Markup(""), preview="", is_cut=False)
    body = message.body[:MOST]
    is_cut = len(message.body) > MOST
    chosen = form_of(message.body) if form == "auto" else form
    text = _WRITERS[chosen](body, is_cut)
    return ShownMessage(message=message, form=chosen, text=text, preview=preview(body), is_cut=is_cut)


def form_of(body: bytes) -> str:
    """Guess the form of a body."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return "hex"
    if any(ord(letter) < 32 and letter not in "\t\r\n" for letter in text):
        return "hex"
    if text.lstrip()[:1] in ("{", "["):
        return "text" if indented(text) is None else "json"
    return "text"


def preview(body: bytes) -> str:
    """Return the beginning of the body on one line."""
    text = body[: _PREVIEW * 4].decode("utf-8", "replace")
    line = "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
    return line[:_PREVIEW]


def _json(body: bytes, is_cut: bool) -> Markup:
    text = indented(body.decode("utf-8", "replace"))
    return _text(body, is_cut) if text is None else coloured(text)  # None also if the body was cut


def indented(text: str) -> str | None:
    """Return JSON with a line for each member; None if it is not JSON, or cannot be written again unchanged."""
    try:
        document = strict_json.loads(text)
        again = json.dumps(document, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return again.encode("utf-8", "backslashreplace").decode()  # a lone surrogate stays an escape


def coloured(text: str) -> Markup:
    """Colour the parts of JSON. Every part is escaped."""
    parts: list[str] = []
    at = 0
    for found in _token.finditer(text):
        parts.append(str(escape(text[at : found.start()])))
        if found["string"] is not None:
            kind = "key" if found["colon"] is not None else "string"
            parts.append(f'<span class="json-{kind}">{escape(found["string"])}</span>{escape(found["colon"] or "")}')
        else:
            kind = "word" if found["word"] is not None else "number"
            parts.append(f'<span class="json-{kind}">{escape(found[0])}</span>')
        at = found.end()
    parts.append(str(escape(text[at:])))
    return Markup("".join(parts))


def _text(body: bytes, is_cut: bool) -> Markup:
    return escape(body.decode("utf-8", "replace"))


def _hex(body: bytes, is_cut: bool) -> Markup:
    lines = []
    for at in range(0, len(body), _ROW):
        row = body[at : at + _ROW]
        letters = "".join(chr(octet) if 32 <= octet < 127 else "." for octet in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{_ROW * 3 - 1}}  {letters}")
    return escape("\n".join(lines))


def _base64(body: bytes, is_cut: bool) -> Markup:
    return escape(b64encode(body).decode())


_WRITERS: Final = {"json": _json, "text": _text, "hex": _hex, "base64": _base64}
