"""Scripts of an exchange: what is sent, and what has to come back, byte for byte. README.md explains the format.

What a server says is written in the lines of a script, too, so that comparing two servers is comparing text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent

_LINE: Final = re.compile(r"(?:(?P<only>ours|nsq) )?(?P<name>[a-z]+)(?P<way>[<>]) (?P<rest>.*)")
_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\*(\d+))?|`([^`]*)`|#(-?\d+)|([\[\]])|(end)| +')
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")
_NAMED: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_PLAIN: Final = re.compile(rb"[ !#-\[\]-~]*")
_WITH_QUOTES: Final = re.compile(rb"[ -_a-~]*")

HTTP: Final = "http"
WEB: Final = "web"  # the beginning of the name of a connection that speaks HTTP, byte by byte


class Line(NamedTuple):
    name: str  # of the connection; "http" for a request on a connection of its own
    is_sent: bool
    text: str
    only: str = ""  # "ours" or "nsq": what the other one says is another line

    def __str__(self) -> str:
        return f"{self.name}{'>' if self.is_sent else '<'} {self.text}"


@dataclass(slots=True)
class Script:
    title: str
    server: str  # the folder: how the server is set up
    place: str  # file and line
    number: int
    rules: list[str] = field(default_factory=list)
    differs: str = ""  # a heading of docs/reference/differences.md
    lines: list[Line] = field(default_factory=list)

    @property
    def topic(self) -> str:
        """Return a name that no other script uses, as long as any other's."""
        return f"script-{self.number:04}"

    @property
    def needs_http(self) -> bool:
        return any(line.name == HTTP or line.name.startswith(WEB) for line in self.lines)

    def of(self, whose: str) -> list[Line]:
        """Return the lines for one server, "ours" or "nsq"."""
        return [line._replace(only="") for line in self.lines if line.only in ("", whose)]

    def expected(self, whose: str) -> list[str]:
        return [str(line) for line in self.of(whose)]


def read() -> list[Script]:
    scripts: list[Script] = []
    for path in sorted(FOLDER.glob("*/*.txt")):
        scripts += parse(path.parent.name, path.name, path.read_text().splitlines(), first=len(scripts))
    return scripts


def parse(server: str, file: str, text: Iterable[str], *, first: int = 0) -> list[Script]:
    """Return the scripts of a file. `first`: the number of the first one, among all."""
    scripts: list[Script] = []
    for number, line in enumerate(text, 1):
        place = f"tests/conformance/{server}/{file}:{number}"
        if line.startswith("== "):
            scripts.append(Script(line[3:], server, place, first + len(scripts)))
        elif line.startswith("-- differs: "):
            scripts[-1].differs = line.removeprefix("-- differs: ")
        elif line.startswith("-- "):
            scripts[-1].rules.append(line[3:])
        elif line and not line.startswith("//"):
            match = _LINE.fullmatch(line)
            assert match is not None, f"{place}: {line}"
            scripts[-1].lines.append(Line(match["name"], match["way"] == ">", match["rest"], match["only"] or ""))
    return scripts


def encode(text: str) -> bytes | None:
    """Return the bytes that a line sends, or None for `end`: the direction is closed."""
    open_groups = [b""]
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, f"not understood: {text[at:]}"
        at = match.end()
        quoted, times, raw, number, bracket, end = match.groups()
        if quoted is not None:
            open_groups[-1] += _unescaped(quoted) * int(times or 1)
        elif raw is not None:
            open_groups[-1] += raw.encode()
        elif number is not None:
            open_groups[-1] += pack(">i", int(number))
        elif bracket == "[":
            open_groups.append(b"")
        elif bracket == "]":
            inner = open_groups.pop()
            open_groups[-1] += pack(">i", len(inner)) + inner
        elif end:
            assert text == "end"
            return None
    (encoded,) = open_groups
    return encoded


def _unescaped(text: str) -> bytes:
    def one(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _NAMED[match[2]]

    pieces = []
    at = 0
    for match in _ESCAPE.finditer(text):
        pieces += [text[at : match.start()].encode(), one(match).encode("latin-1")]
        at = match.end()
    return b"".join([*pieces, text[at:].encode()])


def quoted(data: bytes) -> str:
    """Return bytes as a script has them: in one way only, so that equal bytes are equal text."""
    if _PLAIN.fullmatch(data):
        return f'"{data.decode()}"'
    if _WITH_QUOTES.fullmatch(data):
        return f"`{data.decode()}`"
    return '"' + "".join(_escaped(byte) for byte in data) + '"'


def _escaped(byte: int) -> str:
    for letter, meaning in _NAMED.items():
        if byte == ord(meaning):
            return "\\" + letter
    return chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"
