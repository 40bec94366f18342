"""Runs a script against a server, and returns what was said, in the lines of a script."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from nsqcommon.wire.frames import FrameType
from nsqcommon.wire.message import decode_message
from tests.conformance.masks import masked
from tests.conformance.script import HTTP, WEB, Line, Script, encode, quoted

Frame = tuple[int, bytes]  # of nsqlookupd, whose replies have no type: always a response
END: Final = "end"
NOTHING: Final = "nothing"  # that came in time
HEARTBEAT: Final = 'response "_heartbeat_"'
_HOUR_NS: Final = 3_600_000_000_000
_ID: Final = re.compile(rb"<id ([^>]*)>")
_KINDS: Final = {FrameType.RESPONSE: "response", FrameType.ERROR: "error"}
_TYPES: Final = {"text/plain; charset=utf-8": "text", "application/json; charset=utf-8": "json", None: "-"}


class Connection(Protocol):
    def send(self, data: bytes) -> None: ...

    def no_more(self) -> None:
        """Say that nothing more will be sent."""

    def frame(self) -> Frame | None:
        """Return the next frame, or None at the end. Raise TimeoutError."""


class WebAnswer(NamedTuple):
    version: str
    status: int
    headers: Mapping[str, str]
    body: bytes


class WebConnection(Protocol):
    def send(self, data: bytes) -> None: ...

    def no_more(self) -> None: ...

    def answer(self) -> WebAnswer | None:
        """Return the answer to the last request, or None at the end. Raise TimeoutError."""


class Request(Protocol):
    def __call__(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]: ...


class Conversation:
    """One run of a script."""

    def __init__(
        self,
        script: Script,
        connect: Callable[[], Connection],
        request: Request | None,
        connect_web: Callable[[], WebConnection] | None = None,
        ports: tuple[int, int] = (0, 0),  # the server's, for TCP and HTTP
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._script = script
        self._ports = ports
        self._clock = clock
        self._connect = connect
        self._connect_web = connect_web
        self._request = request
        self._connections: dict[str, Connection] = {}
        self._webs: dict[str, WebConnection] = {}
        self._ended: set[str] = set()
        self._ids: dict[bytes, bytes] = {}  # by body
        self._answer = ""  # of the last request over HTTP

    def run(self, server: str) -> list[str]:
        """Return what was sent and what was said, as far as it was what the script says, and one line more."""
        said: list[str] = []
        for line in self._script.of(server):
            actual = self._send(line) if line.is_sent else self._hear(line.name)
            said.append(str(line._replace(text=actual)))
            if actual != line.text:
                return said
        names = [*self._connections, *self._webs]
        return said + [f"{name}< {left}" for name in names for left in self._leftovers(name)]

    def _send(self, line: Line) -> str:
        if line.name == HTTP:
            self._answer = self._ask(line.text)
            return line.text
        connection = self._opened(line.name)
        data = encode(line.text.replace("<topic>", self._script.topic))
        if data is None:
            connection.no_more()
        else:
            connection.send(_ID.sub(lambda match: self._ids[match[1]], data))
        return line.text

    def _opened(self, name: str) -> Connection | WebConnection:
        if not name.startswith(WEB):
            return self._connections.get(name) or self._connections.setdefault(name, self._connect())
        assert self._connect_web is not None
        return self._webs.get(name) or self._webs.setdefault(name, self._connect_web())

    def _hear(self, name: str) -> str:
        if name == HTTP:
            return self._answer
        if name in self._ended:
            return END
        try:
            shown = self._next_of_web(name) if name.startswith(WEB) else self._next(name)
        except TimeoutError:
            return NOTHING
        if shown == END:
            self._ended.add(name)
        return shown

    def _next(self, name: str) -> str:
        frame = self._connections[name].frame()
        return END if frame is None else self._shown(*frame)

    def _next_of_web(self, name: str) -> str:
        answer = self._webs[name].answer()
        if answer is None:
            return END
        return f"{answer.version} {self._shown_answer(answer.status, answer.headers, answer.body, ('connection',))}"

    def _leftovers(self, name: str) -> list[str]:
        """Return what a connection has still to say, until its end. Heartbeats come when they come."""
        if name in self._ended:
            return []
        self._opened(name).no_more()
        found = []
        while (heard := self._hear(name)) != END:
            if heard != HEARTBEAT:
                found.append(heard)
            if heard == NOTHING:
                break
        return found

    def _shown(self, kind: int, data: bytes) -> str:
        if kind == FrameType.MESSAGE:
            return self._shown_message(data)
        word = _KINDS.get(FrameType(kind), f"frame {kind}")
        return f"{word} {self._shown_bytes(data)}"

    def _shown_message(self, data: bytes) -> str:
        message = decode_message(data, is_headed=False)
        remarks = ""
        if not re.fullmatch(rb"[0-9a-f]{16}", message.id):
            remarks += f" whose id is {message.id!r}"
        if self._ids.setdefault(message.body, message.id) != message.id:
            remarks += " with another id"
        if abs(message.timestamp - self._clock()) > _HOUR_NS:
            remarks += f" of {message.timestamp}"
        return f"message {message.attempts} {self._shown_bytes(message.body)}{remarks}"

    def _shown_bytes(self, data: bytes) -> str:
        for body, message_id in self._ids.items():
            data = data.replace(message_id, b"<id %b>" % body)
        return quoted(self._masked(data.decode("latin-1")).encode("latin-1"))

    def _masked(self, text: str) -> str:
        tcp_port, http_port = self._ports
        return masked(text.replace(self._script.topic, "<topic>"), tcp_port=tcp_port, http_port=http_port)

    # HTTP

    def _ask(self, text: str) -> str:
        """Send a request, `METHOD PATH [Name=value]... [body]`, and return the answer."""
        assert self._request is not None
        match = re.fullmatch(r'([A-Z]+) (\S+)((?: [A-Z][\w-]*=\S+)*)(?: (["`\[#].*))?', text)
        assert match is not None, text
        method, path, headers, body = match.groups()
        path = path.replace("<topic>", self._script.topic)
        sent = None if body is None else encode(body.replace("<topic>", self._script.topic))
        return self._shown_answer(*self._request(method, path, sent, dict(it.split("=") for it in headers.split())))

    def _shown_answer(
        self, status: int, headers: Mapping[str, str], body: bytes, shown: tuple[str, ...] = ("allow", "location")
    ) -> str:
        """Show what a client relies on: `STATUS TYPE [nsq] [header]... [body]`."""
        content = headers.get("content-type")
        words = [str(status), _TYPES.get(content, f"({content})")]
        if headers.get("x-nsq-content-type") == "nsq; version=1.0":
            words.append("nsq")
        words += [f"{name}: {headers[name]}" for name in shown if name in headers]
        return self._masked(" ".join(words)) + (f" {self._shown_bytes(body)}" if body else "")
