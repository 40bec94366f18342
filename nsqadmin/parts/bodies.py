"""Shows bodies of messages as indented JSON, text, or bytes, with the hits of a search marked.

A body that was decoded is shown so, and as it was published in the forms of text and bytes. All content is escaped and
never becomes HTML.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from nsqadmin import numbers
from nsqadmin.messages.filters import MISSING, field_at, text_of
from nsqadmin.upstream import strict_json

if TYPE_CHECKING:
    from nsqadmin.messages.filters import Filter
    from nsqadmin.messages.model import Message

MOST: Final = 32 * 1024  # bytes of a body that a page shows; the whole body can be downloaded
FORMS: Final = ("auto", "json", "text", "hex", "base64")
_OF_DECODED: Final = FORMS[:2]
_PREVIEW: Final = 160  # characters
_PREVIEW_BYTES: Final = 12  # of a body that is not text
_ROW: Final = 16  # bytes of a line of hexadecimal
_DEEPEST: Final = 500  # deeper JSON is shown as text: newer Pythons parse it, and its indentation would be megabytes
_bracket: Final = re.compile(r'"(?:\\.|[^"\\])*"|[\[\]{}]')
_control: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_tag: Final = re.compile(r"(<[^>]*>)")
_NONE: Final = object()
_token: Final = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*")(?P<colon>\s*:)?|(?P<word>\b(?:true|false|null)\b)|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    message: Message
    form: str  # one of FORMS but "auto"; empty if the user may not see the body
    text: Markup
    preview: Markup
    is_cut: bool
    columns: tuple[str, ...] = ()  # values of the chosen fields
    forms: tuple[str, ...] = ()  # in which its viewer may see it

    @property
    def problem(self) -> str:
        """Why the body isn't decoded; "": it is, or it doesn't need to be."""
        return self.message.decoded.problem if self.message.decoded is not None else ""


def shown(
    message: Message, form: str = "auto", *, marks: Marks | None = None, columns: tuple[str, ...] = ()
) -> ShownMessage:
    """Show a message. `marks` finds the hits of a search; `columns` are fields of JSON, such as `customer.country`."""
    readable = message.readable
    if readable is None:
        empty = ("",) * len(columns)
        return ShownMessage(message=message, form="", text=Markup(""), preview=Markup(""), is_cut=False, columns=empty)
    guessed = form_of(readable)
    whole = message.body if message.body is not None and form not in _OF_DECODED else readable
    is_cut = len(whole) > MOST
    chosen = guessed if form == "auto" else form
    return ShownMessage(
        message=message,
        form=chosen,
        text=marked(_WRITERS[chosen](whole[:MOST], is_cut), marks),
        preview=marked(escape(preview(readable, guessed)), marks),
        is_cut=is_cut,
        columns=_values(readable, columns) if columns else (),
        forms=FORMS if message.decoded is None or message.body is not None else _OF_DECODED,
    )


Marks = re.Pattern[str]


def marks_of(wanted: Filter) -> Marks | None:
    """Return a pattern for the texts of a search, ignoring case; None if there are none."""
    terms = "|".join(re.escape(str(escape(term))) for term in wanted.terms)
    if not terms:
        return None
    hit = f"({terms})" if wanted.text else rf"(?<!\w)({terms})(?!\w)"
    return re.compile(rf"{hit}|&#?\w+;", re.IGNORECASE)  # no hit begins within an escaped character


def marked(html: Markup, marks: Marks | None) -> Markup:
    """Mark the hits in the text between tags. `html` has no tags but ours."""
    if marks is None:
        return html
    parts = _tag.split(str(html))
    parts[::2] = [marks.sub(_mark, part) for part in parts[::2]]
    return Markup("".join(parts))


def _mark(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f"<mark>{found[1]}</mark>"


def _values(body: bytes, columns: tuple[str, ...]) -> tuple[str, ...]:
    try:
        document = strict_json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return ("",) * len(columns)
    found = (field_at(document, tuple(column.split("."))) for column in columns)
    return tuple("" if value is MISSING else _line(text_of(value)) for value in found)


def form_of(body: bytes) -> str:
    """Guess the form of a body."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return "hex"
    if _control.search(text):
        return "hex"
    # We don't show all of a longer one, and so can't indent it.
    if len(body) <= MOST and text.lstrip()[:1] in ("{", "["):
        return "text" if _document_in(text) is _NONE else "json"
    return "text"


def preview(body: bytes, form: str = "") -> str:
    """Return the start of the body on one line: JSON with its escapes decoded, and bytes as bytes."""
    form = form or form_of(body)
    if form == "hex":
        return (
            f"binary {numbers.size(len(body))} · {body[:_PREVIEW_BYTES].hex(' ')}{'…' * (len(body) > _PREVIEW_BYTES)}"
        )
    if form == "json" and len(body) <= MOST and b"\\u" in body:
        text = json.dumps(strict_json.loads(body.decode()), ensure_ascii=False)
        body = text.encode("utf-8", "backslashreplace")
    return _line(body[: _PREVIEW * 4].decode("utf-8", "replace"))


def _line(text: str) -> str:
    line = "".join(letter if letter.isprintable() else " " for letter in " ".join(text[: _PREVIEW * 4].split()))
    return line[:_PREVIEW]


def _json(body: bytes, is_cut: bool) -> Markup:
    text = indented(body.decode("utf-8", "replace"))
    return _text(body, is_cut) if text is None else coloured(text)  # None also if the body was cut


def indented(text: str) -> str | None:
    """Return JSON with a line for each member; None if it isn't JSON, or we can't write it again unchanged."""
    document = _document_in(text)
    if document is _NONE:
        return None
    again = json.dumps(document, indent=2, ensure_ascii=False)
    return again.encode("utf-8", "backslashreplace").decode()  # a lone surrogate stays an escape


def _document_in(text: str) -> Any:
    """Return the JSON document, or _NONE if it isn't JSON, or is nested too deeply to be shown as such."""
    if nesting(text) > _DEEPEST:
        return _NONE
    try:
        return strict_json.loads(text)
    except (ValueError, RecursionError):
        return _NONE


def nesting(text: str) -> int:
    """Return how deeply JSON is nested, or the limit if it is surely below the limit."""
    if text.count("[") + text.count("{") <= _DEEPEST:
        return _DEEPEST
    deepest = depth = 0
    for found in _bracket.finditer(text):
        if found[0] in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in ("]", "}"):
            depth -= 1
    return deepest


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
