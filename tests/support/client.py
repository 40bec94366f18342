"""A small NSQ client on a plain blocking socket, for tests that say byte by byte what they send and expect.

Every wait has a limit. `Client` keeps nothing secret: whatever it did not ask for (a heartbeat where a test counts
them) is there with `frame()`.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from types import TracebackType
from typing import Any, Final, Self

from nsqcommon.wire import commands
from nsqcommon.wire.frames import Frame, FrameReader, FrameType
from nsqcommon.wire.message import Message, decode_message

TIMEOUT: Final = 30.0  # seconds; only a broken broker takes longer, even where other tests keep the processors busy
HEARTBEAT: Final = b"_heartbeat_"
NOBODY: Final = b"f" * 16  # an id that no message has
_MOST: Final = 16 << 20


def open_socket(address: tuple[str, int]) -> socket.socket:
    """Connect to a host and port, or to the path of a unix socket, whose port is -1."""
    host, port = address
    if port >= 0:
        return socket.create_connection(address, timeout=TIMEOUT)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(TIMEOUT)
        sock.connect(host)
    except BaseException:
        sock.close()
        raise
    return sock


class Disconnected(Exception):
    """The broker closed the connection."""


class Refused(Exception):
    """The broker answered with an error frame."""


class Client:
    def __init__(self, address: tuple[str, int], *, magic: bytes = commands.MAGIC) -> None:
        self.sock = open_socket(address)
        self._frames = FrameReader(_MOST)
        self._messages: deque[Message] = deque()  # messages that came while the test waited for something else
        try:
            if self.sock.family != socket.AF_UNIX:
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.send(magic)
        except OSError:  # the broker has gone between the two
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    # What is sent

    def send(self, *pieces: bytes) -> None:
        self.sock.settimeout(TIMEOUT)
        self.sock.sendall(b"".join(pieces))

    def no_more(self) -> None:
        """Close our direction of the connection: the broker sees the end, and we can still read its answers."""
        self.sock.shutdown(socket.SHUT_WR)

    # What comes

    def frame(self, timeout: float = TIMEOUT) -> Frame:
        """Return the next frame of any kind. Raise TimeoutError or Disconnected."""
        deadline = time.monotonic() + timeout
        while (frame := self._frames.next_frame()) is None:
            self._frames.receive(self._receive(deadline))
        return frame

    def _receive(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no frame in time")
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(1 << 18)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Disconnected from error
        if not data:
            raise Disconnected
        return data

    def response(self, timeout: float = TIMEOUT) -> bytes:
        """Return the next response that is not a heartbeat. Messages that come before it are kept. Raise Refused."""
        frame = self._next_answer(timeout)
        if frame.type is FrameType.ERROR:
            raise Refused(frame.data.decode("utf-8", "backslashreplace"))
        return frame.data

    def error(self, timeout: float = TIMEOUT) -> bytes:
        """Return the text of the next answer, which must be an error."""
        frame = self._next_answer(timeout)
        assert frame.type is FrameType.ERROR, frame
        return frame.data

    def _next_answer(self, timeout: float) -> Frame:
        deadline = time.monotonic() + timeout
        while True:
            frame = self.frame(deadline - time.monotonic())
            if frame.type in (FrameType.MESSAGE, FrameType.HEADED_MESSAGE):
                self._messages.append(_message_in(frame))
            elif frame.data != HEARTBEAT:
                return frame

    def message(self, timeout: float = TIMEOUT) -> Message:
        """Return the next message, skipping heartbeats."""
        if self._messages:
            return self._messages.popleft()
        deadline = time.monotonic() + timeout
        while True:
            frame = self.frame(deadline - time.monotonic())
            if frame.type in (FrameType.MESSAGE, FrameType.HEADED_MESSAGE):
                return _message_in(frame)
            assert frame.data == HEARTBEAT, frame

    def kept_message(self) -> Message | None:
        """Return a message that came while something else was waited for, or None."""
        return self._messages.popleft() if self._messages else None

    def messages(self, count: int, timeout: float = TIMEOUT) -> list[Message]:
        deadline = time.monotonic() + timeout
        return [self.message(deadline - time.monotonic()) for _ in range(count)]

    def bodies(self, count: int, timeout: float = TIMEOUT) -> list[bytes]:
        return [message.body for message in self.messages(count, timeout)]

    def stays_silent(self, seconds: float) -> bool:
        """Return whether nothing but heartbeats comes for this long."""
        deadline = time.monotonic() + seconds
        try:
            while not self._messages and self.frame(deadline - time.monotonic()).data == HEARTBEAT:
                pass
        except TimeoutError:
            return True
        return False

    def closes(self, timeout: float = TIMEOUT) -> bool:
        """Return whether the broker closes the connection now, without sending anything else."""
        try:
            frame = self.frame(timeout)
        except Disconnected:
            return True
        except TimeoutError:
            return False
        raise AssertionError(f"not closed, but {frame}")

    def raw(self, count: int, timeout: float = TIMEOUT) -> bytes:
        """Return this many bytes as they come. Nothing may have been read as a frame before."""
        deadline = time.monotonic() + timeout
        data = b""
        while len(data) < count:
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise Disconnected
            data += piece
        return data

    def rest(self, timeout: float = TIMEOUT) -> bytes:
        """Return all bytes that come until the broker closes the connection."""
        deadline = time.monotonic() + timeout
        data = bytearray()
        try:
            while True:
                data += self._receive(deadline)
        except Disconnected:
            return bytes(data)

    # Frequent commands

    def identify(self, **fields: object) -> Any:
        """Send IDENTIFY with these fields, and return the answer: decoded, or OK as bytes."""
        self.send(commands.identify(json.dumps(fields).encode()))
        answer = self.response()
        return json.loads(answer) if answer.startswith(b"{") else answer

    def ask(self, *pieces: bytes) -> bytes:
        """Send the command, and return the response."""
        self.send(*pieces)
        return self.response()

    def subscribe(self, topic: str, channel: str = "c", *, ready: int | None = None) -> None:
        assert self.ask(commands.sub(topic, channel)) == b"OK"
        if ready is not None:
            self.send(commands.rdy(ready))

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish one body with PUB, several with MPUB."""
        command = commands.pub(topic, bodies[0]) if len(bodies) == 1 else commands.mpub(topic, bodies)
        assert self.ask(command) == b"OK"

    def defer(self, topic: str, milliseconds: int, body: bytes) -> None:
        assert self.ask(commands.dpub(topic, milliseconds, body)) == b"OK"

    def finish(self, *messages: Message) -> None:
        self.send(*(commands.fin(message.id) for message in messages))

    def requeue(self, message: Message, milliseconds: int = 0) -> None:
        self.send(commands.req(message.id, milliseconds))

    def in_step(self) -> None:
        """Return when the broker has carried out everything that was sent before.

        Its answer to a bad FIN comes in order. Only for a connection that consumes.
        """
        self.send(commands.fin(NOBODY))
        assert self.error() == b"E_FIN_FAILED FIN " + NOBODY + b" failed ID not in flight"


def _message_in(frame: Frame) -> Message:
    return decode_message(frame.data, is_headed=frame.type is FrameType.HEADED_MESSAGE)
