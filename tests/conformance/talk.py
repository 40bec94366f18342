"""Runs a script against a server, and returns what was said, in the lines of a script."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from nsqcommon.wire.frames import FrameType
from nsqcommon.wire.message import decode_message
from tests.conformance.masks import masked
from tests.conformance.script import HTTP, Line, Script, encode, quoted

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
        ports: tuple[int, int] = (0, 0),  # the server's, for TCP and HTTP
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._script = script
        self._ports = ports
        self._clock = clock
        self._connect = connect
        self._request = request
        self._connections: dict[str, Connection] = {}
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
        return said + [f"{name}< {left}" for name in self._connections for left in self._leftovers(name)]

    def _send(self, line: Line) -> str:
        if line.name == HTTP:
            self._answer = self._ask(line.text)
            return line.text
        if line.name not in self._connections:
            self._connections[line.name] = self._connect()
        data = encode(line.text.replace("<topic>", self._script.topic))
        if data is None:
            self._connections[line.name].no_more()
        else:
            self._connections[line.name].send(_ID.sub(lambda match: self._ids[match[1]], data))
        return line.text

    def _hear(self, name: str) -> str:
        if name == HTTP:
            return self._answer
        if name in self._ended:
            return END
        try:
            frame = self._connections[name].frame()
        except TimeoutError:
            return NOTHING
        if frame is None:
            self._ended.add(name)
            return END
        return self._shown(*frame)

    def _leftovers(self, name: str) -> list[str]:
        """Return what a connection has still to say, until its end. Heartbeats come when they come."""
        if name in self._ended:
            return []
        self._connections[name].no_more()
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

    def _shown_answer(self, status: int, headers: Mapping[str, str], body: bytes) -> str:
        """Show what a client relies on: `STATUS TYPE [nsq] [header]... [body]`."""
        content = headers.get("content-type")
        words = [str(status), _TYPES.get(content, f"({content})")]
        if headers.get("x-nsq-content-type") == "nsq; version=1.0":
            words.append("nsq")
        words += [f"{name}: {headers[name]}" for name in ("allow", "location") if name in headers]
        return self._masked(" ".join(words)) + (f" {self._shown_bytes(body)}" if body else "")
