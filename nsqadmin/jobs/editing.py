"""Edits the arguments of a job inside the body of its message, and leaves every other byte as it is.

The body is JSON, and we replace parts of its text instead of parsing it and writing it again. Otherwise an edit of one
argument would also change what the library and other programs wrote, such as 1.10 (to 1.1) or an escape. Celery's
arguments are JSON in a text of that JSON, perhaps in Base64:

    {"body": "[[17], {}, {\\"chain\\": null}]", "headers": {"task": "shop.charge", "argsrepr": "(17,)", ...}, ...}
               ^^^^  ^^                                                                  ^^^^^ what we replace

`args` and `kwargs` are shown indented if that changes no value; otherwise as they are.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from nsqadmin.upstream import strict_json

MOST: Final = 1 << 20  # bytes of a body: parsing a larger one would hold up others
_CELERY: Final = "celery"
_JSON: Final = "application/json"
_LONGEST_REPR: Final = 1024  # characters, as in Celery
_space: Final = re.compile(r"[ \t\n\r]*")
_token: Final = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\n\r]+')

Span = tuple[int, int]  # of a text


class CannotEdit(Exception):
    """The arguments can't be edited by themselves; the message says why, for the user."""


class _Repeated(ValueError):
    """An object has a name twice; the message says which one."""


class BadArguments(Exception):
    """The edited text is wrong; the message says why, for the user."""


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a job as JSON, and the body around them."""

    args: str
    kwargs: str
    _body: str
    _library: str
    _inner: str  # the text that has the arguments: the body, or Celery's text in it
    _spans: tuple[Span, Span]  # of args and kwargs in that text

    def edited(self, args: str, kwargs: str) -> bytes:
        """Return the body with these arguments. Arguments that haven't changed stay as they are. Raise BadArguments."""
        args, kwargs = _typed(args, "args", list, "[...]"), _typed(kwargs, "kwargs", dict, "{...}")
        changes = [
            (span, _compact(text))
            for span, text, shown in zip(self._spans, (args, kwargs), (self.args, self.kwargs), strict=True)
            if _compact(text) != _compact(shown)
        ]
        inner = _spliced(self._inner, changes)
        if self._library != _CELERY:
            return inner.encode()
        try:
            return _spliced(self._body, _celery_changes(self._body, inner) if changes else []).encode()
        except RecursionError as error:  # in Celery's text they are nested one level deeper
            raise BadArguments("the arguments are nested too deeply") from error


def call_in(body: bytes, library: str) -> Call:
    """Find the arguments in the body of a job. Raise CannotEdit."""
    if len(body) > MOST:
        raise CannotEdit(f"the body is larger than {MOST >> 20} MiB")
    try:
        text = body.decode()
        document = _parsed(text)
        if library == _CELERY:
            inner = _celery_text(document)
            _parsed(inner)
            args, kwargs, *_ = _items(inner)
        else:
            inner, members = text, _members(text)
            args, kwargs = members["args"], members["kwargs"]
        if inner[args[0]] != "[" or inner[kwargs[0]] != "{":
            raise TypeError("no arguments")
        shown = _shown(inner[slice(*args)]), _shown(inner[slice(*kwargs)])
    except _Repeated as error:
        raise CannotEdit(str(error)) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise CannotEdit(f"the body isn't in the usual form of {library or 'a job queue'}") from error
    return Call(*shown, text, library, inner, (args, kwargs))


def problem_with_json(text: str) -> str:
    """Return why a text isn't JSON, or what is odd about it; "": it is fine."""
    try:
        _parsed(text)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    return ""


# Celery


def _celery_text(document: Any) -> str:
    """Return the text with the arguments. Raise CannotEdit for another content type than JSON."""
    if (kind := document.get("content-type", _JSON)) != _JSON:
        raise CannotEdit(f"they are serialized as {str(kind)[:60]!r}, which only workers read")
    inner = document["body"]
    return b64decode(inner, validate=True).decode() if _is_base64(document) else str(inner)


def _is_base64(document: Any) -> bool:
    return bool(document["properties"].get("body_encoding") == "base64")


def _celery_changes(body: str, inner: str) -> Iterator[tuple[Span, str]]:
    """Yield what to replace in the body: the text with the arguments, and what the worker logs of them."""
    written = b64encode(inner.encode()).decode() if _is_base64(json.loads(body)) else inner
    members = _members(body)
    yield members["body"], json.dumps(written)
    args, kwargs, *_ = json.loads(inner)
    if "headers" not in members or body[members["headers"][0]] != "{":
        return
    headers = _members(body, members["headers"][0])
    for name, value in (("argsrepr", tuple(args)), ("kwargsrepr", kwargs)):
        if name in headers:
            yield headers[name], json.dumps(repr(value)[:_LONGEST_REPR])


# Text


def _parsed(text: str) -> Any:
    """Parse strictly. Raise ValueError also for a name that is twice in an object, because parsers differ on these."""
    return _STRICT.decode(text)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(f"the name {next(it for it in names if names.count(it) > 1)!r:.60} is there twice")
    return found


_STRICT: Final = json.JSONDecoder(
    parse_constant=strict_json.DECODER.parse_constant,
    parse_float=strict_json.DECODER.parse_float,
    object_pairs_hook=_without_repeats,
)


def _typed(text: str, name: str, kind: type, form: str) -> str:
    if problem := problem_with_json(text):
        raise BadArguments(f"{name}: {problem}")
    if not isinstance(json.loads(text), kind):
        raise BadArguments(f"{name}: expected {form}")
    return text


def _shown(text: str) -> str:
    """Return JSON indented and readable, or as it is if that would change a number."""
    exact = True

    def number(of: type) -> Any:
        def parse(digits: str) -> Any:
            nonlocal exact
            value = of(digits)
            exact = exact and repr(value) == digits
            return value

        return parse

    document = json.loads(text, parse_float=number(float), parse_int=number(int))
    written = json.dumps(document, ensure_ascii=False, indent=2) if exact else text
    written = written if len(written) <= 1_000 + 4 * len(text) else text  # deep nesting makes megabytes of indentation
    # Characters that aren't visible, such as those that change the direction of text, must not deceive the editor.
    return "".join(it if it.isprintable() or it in "\n\t\r" else json.dumps(it)[1:-1] for it in written)


def _compact(text: str) -> str:
    """Return JSON without space between its tokens."""
    return _token.sub(lambda found: found[1] or "", text)


def _spliced(text: str, changes: list[tuple[Span, str]] | Iterator[tuple[Span, str]]) -> str:
    for (first, end), new in sorted(changes, reverse=True):
        text = text[:first] + new + text[end:]
    return text


def _members(text: str, at: int = 0) -> dict[str, Span]:
    """Return where the value of each member of an object is. The text is valid JSON."""
    at = _after_space(text, at)
    if text[at] != "{":
        raise TypeError("no object")
    spans: dict[str, Span] = {}
    at = _after_space(text, at + 1)
    while text[at] != "}":
        name, at = _STRICT.raw_decode(text, _after_space(text, at + (text[at] == ",")))
        first = _after_space(text, _after_space(text, at) + 1)  # the colon
        _, end = _STRICT.raw_decode(text, first)
        spans[name] = first, end
        at = _after_space(text, end)
    return spans


def _items(text: str) -> list[Span]:
    """Return where each item of a list is. The text is valid JSON."""
    at = _after_space(text, 0)
    if text[at] != "[":
        raise TypeError("no list")
    spans: list[Span] = []
    at = _after_space(text, at + 1)
    while text[at] != "]":
        first = _after_space(text, at + (text[at] == ","))
        _, end = _STRICT.raw_decode(text, first)
        spans.append((first, end))
        at = _after_space(text, end)
    return spans


def _after_space(text: str, at: int) -> int:
    found = _space.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()
