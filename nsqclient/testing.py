"""An nsqd in memory, for tests of handlers and publishers: no process, no sockets, and trio's clock.

    async def test_a_poison_message_becomes_a_dead_letter(autojump_clock):
        async with MemoryNSQD() as server:
            server.put("orders", b"boom", attempts=6)
            async with open_consumer("orders", "billing", nsqd=[server], dead_letter="orders.dead") as consumer:
                await server.wait_empty("orders", "billing")
            assert server.bodies("orders.dead") == [b"boom"]

It speaks our nsqd's protocol without TLS, compression and AUTH. If you need a real broker, use the fixture `nsq_broker`
of the pytest plugin `nsqpytest`, which comes with nsq-suite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count, pairwise
from struct import Struct
from types import TracebackType
from typing import Any, Final, Self

import trio
from trio.testing import memory_stream_pair

from nsqclient._memory import Channel, InFlightMessage, MemoryBroker, MemoryMessage
from nsqclient.core.publication import Group, Headers, with_group
from nsqcommon.wakeup import Wakeup
from nsqcommon.wire import commands
from nsqcommon.wire.commands import CommandReader, SizeLimits
from nsqcommon.wire.extensions import BURY, EXTENSIONS, HEADERS, KEYS, granted
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, FrameType, error_frame, response_frame
from nsqcommon.wire.headers import NONE as NO_HEADERS
from nsqcommon.wire.headers import encode_headers, header_offsets
from nsqcommon.wire.message import Message, encode_message

__all__ = ["MemoryNSQD", "Said"]

_names: Final = count(1)
_prefix: Final = Struct(">ii")
_MSG_TIMEOUT: Final = 60.0
_MAX_MSG_TIMEOUT: Final = 900.0
_WORDS: Final = {Fault.FIN_FAILED: "FIN", Fault.REQ_FAILED: "REQ", Fault.BURY_FAILED: "BURY"}
_REPLY: Final[Mapping[str, object]] = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": int(_MAX_MSG_TIMEOUT * 1000),
    "msg_timeout": int(_MSG_TIMEOUT * 1000),
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}


@dataclass(frozen=True, slots=True)
class Said:
    """A command from a client."""

    time: float  # on trio's clock
    connection: int  # counted from 1; 0: an HTTP request
    text: str  # the command's line: "RDY 5"


class MemoryNSQD:
    """Use it in place of an address: `open_consumer(..., nsqd=[server])`, `open_producer(server)`.

    `commands` has everything that clients have sent. `reply` has keys to add to the answer to IDENTIFY, or is the whole
    answer. Without `heartbeats` it never sends any. Without `extensions` it is like NSQ's own nsqd: no burying, no
    keys, no headers. Your `on_command` may handle a command itself: it returns the bytes to send, or None for the usual
    execution, or raises nsqcommon.wire.faults.ProtocolError. A producer's `cancel` and `reschedule` find messages by
    the key of their publish.
    """

    def __init__(
        self,
        *,
        reply: Mapping[str, object] | bytes = {},
        heartbeats: bool = True,
        extensions: tuple[str, ...] = EXTENSIONS,
        on_command: Callable[[int, str], bytes | None] | Callable[[int, str], None] | None = None,
    ) -> None:
        self.commands: list[Said] = []
        self.is_up = True  # False: connections are refused
        self._name = f"memory-nsqd-{next(_names)}:4150"
        self._reply = reply
        self._heartbeats = heartbeats
        self._extensions = extensions
        self._on_command = on_command
        self._broker = MemoryBroker()
        self._clients: list[_Client] = []
        self._connections = count(1)
        self._stack = AsyncExitStack()
        self._tasks: trio.Nursery | None = None
        self._changed = trio.Event()

    def __str__(self) -> str:
        return self._name

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(trio.open_nursery())
        self._tasks.start_soon(self._keep_time)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    async def connect(self) -> trio.abc.Stream:
        """Return a new connection. Called by the library. Raise OSError if the server is down."""
        await trio.lowlevel.checkpoint()
        if not self.is_up or self._tasks is None:
            raise ConnectionRefusedError("connection refused")
        ours, theirs = memory_stream_pair()
        client = _Client(
            self._broker,
            next(self._connections),
            theirs,
            reply=self._reply,
            heartbeats=self._heartbeats,
            extensions=self._extensions,
            hear=self._hear,
            happened=self._happened,
        )
        self._clients.append(client)
        self._tasks.start_soon(self._serve, client)
        return ours

    async def post(self, target: str) -> tuple[int, bytes]:
        """Answer a POST that cancels or reschedules a message. Called by the library. Raise OSError if down."""
        await trio.lowlevel.checkpoint()
        if not self.is_up:
            raise ConnectionRefusedError("connection refused")
        self.commands.append(Said(trio.current_time(), 0, f"POST {target}"))
        answer = self._broker.recall(target, trio.current_time())
        self._happened()
        return answer

    # For tests

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        attempts: int = 1,
        headers: Headers | None = None,
        group: Group | None = None,
    ) -> str:
        """Publish a message and return its id. `attempts` is the number of its first delivery.

        Raises ValueError for invalid headers and for an invalid group.
        """
        given = with_group(headers, group)
        encoded = encode_headers(given) if given else b""
        stored = self._broker.new_message(body, attempts=attempts - 1, headers=encoded)
        self._broker.publish(topic, stored)
        self._happened()
        return stored.id.decode()

    def bodies(self, topic: str) -> list[bytes]:
        """Return the bodies of all messages ever published to the topic."""
        return list(self._broker.topic(topic).bodies)

    def finished(self, topic: str, channel: str) -> list[bytes]:
        """Return the bodies of the channel's finished messages, in the order of their FIN."""
        return list(self._broker.channel(topic, channel).finished)

    def buried(self, topic: str, channel: str) -> list[tuple[bytes, str]]:
        """Return body and reason of the channel's buried messages, in the order of their BURY."""
        return [(stored.body, reason) for stored, reason in self._broker.channel(topic, channel).buried]

    def depth(self, topic: str, channel: str) -> int:
        """Return the number of messages waiting in the channel, including deferred ones."""
        found = self._broker.channel(topic, channel)
        return len(found.waiting) + len(found.deferred)

    async def wait_empty(self, topic: str, channel: str) -> None:
        """Wait until every message of the channel is finished or buried."""
        await self.wait_until(lambda: self._broker.channel(topic, channel).is_empty)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true. It is checked after every change of the server's state."""
        while not condition():
            await self._changed.wait()
        await trio.lowlevel.checkpoint()

    def said(self, connection: int | None = None, *words: str) -> list[str]:
        """Return the commands of one connection, or of all. With `words`, only the ones that begin with one of them."""
        return [
            said.text
            for said in self.commands
            if connection in (None, said.connection) and (not words or said.text.split(" ")[0] in words)
        ]

    def break_connections(self) -> None:
        """Break all connections, like a failing network."""
        for client in list(self._clients):
            client.drop()

    def send(self, frame: bytes) -> None:
        """Send these raw bytes to all clients."""
        for client in self._clients:
            client.send(frame)

    @property
    def connections(self) -> int:
        """The number of clients."""
        return len(self._clients)

    # Implementation

    async def _serve(self, client: _Client) -> None:
        try:
            await client.serve()
        finally:
            self._clients.remove(client)
            self._happened()

    def _hear(self, connection: int, text: str) -> bytes | None:
        """Note a command. Return what `on_command` answers instead of the server."""
        self.commands.append(Said(trio.current_time(), connection, text))
        return self._on_command(connection, text) if self._on_command else None

    def _happened(self) -> None:
        self._broker.hand_out()
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _keep_time(self) -> None:
        """Return deferred and timed-out messages to their channels."""
        while True:
            changed = self._changed
            with trio.move_on_at(min([time for time, _ in self._broker.deadlines()], default=float("inf"))):
                await changed.wait()
            now = trio.current_time()
            if due := [act for time, act in self._broker.deadlines() if time <= now]:
                for act in due:
                    act()
                self._happened()


class _Client:
    def __init__(
        self,
        broker: MemoryBroker,
        number: int,
        stream: trio.abc.Stream,
        *,
        reply: Mapping[str, object] | bytes,
        heartbeats: bool,
        extensions: tuple[str, ...],
        hear: Callable[[int, str], bytes | None],
        happened: Callable[[], None],
    ) -> None:
        self.rdy = 0
        self.is_closing = False
        self.in_flight: dict[bytes, InFlightMessage] = {}
        self._broker = broker
        self._number = number
        self._reply = reply
        self._heartbeats = heartbeats
        self._extensions = extensions
        self._hear = hear
        self._happened = happened
        self._stream = stream
        self._reader = CommandReader(SizeLimits(), lambda params: None)
        self._channel: Channel | None = None
        self._outgoing: list[bytes] = []
        self._wakeup = Wakeup()
        self._scope = trio.CancelScope()
        self._heartbeat = 30.0
        self._msg_timeout = _MSG_TIMEOUT
        self._buries = False  # the extension was granted
        self._takes_keys = False  # likewise
        self._takes_headers = False  # likewise
        self._magic = b""
        self._is_ending = False  # drop the connection once everything is written

    # Bytes

    async def serve(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._beat)
                    await self._read()
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._forget()
            await trio.aclose_forcefully(self._stream)

    def drop(self) -> None:
        self._scope.cancel()

    def send(self, frame: bytes) -> None:
        self._outgoing.append(frame)
        self._wakeup.set()

    def deliver(self, stored: MemoryMessage) -> None:
        stored.attempts += 1
        now = trio.current_time()
        self.in_flight[stored.id] = InFlightMessage(stored, now, now + self._msg_timeout)
        headers = stored.headers if self._takes_headers and stored.headers != NO_HEADERS else b""
        kind = FrameType.HEADED_MESSAGE if headers else FrameType.MESSAGE
        data = encode_message(Message(stored.timestamp, stored.attempts, stored.id, stored.body, headers))
        self.send(_prefix.pack(4 + len(data), kind) + data)

    async def _read(self) -> None:
        async for data in self._stream:
            if len(self._magic) < len(commands.MAGIC):
                missing = len(commands.MAGIC) - len(self._magic)
                self._magic += data[:missing]
                data = data[missing:]
            self._reader.receive(bytes(data))
            while not self._is_ending and (command := self._reader.next_command()) is not None:
                self._heed(command)
            self._happened()

    async def _write(self) -> None:
        while True:
            await self._wakeup.wait()
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            await self._stream.send_all(data)
            if self._is_ending:
                self.drop()

    async def _beat(self) -> None:
        while self._heartbeats and self._heartbeat > 0:
            await trio.sleep(self._heartbeat)
            self.send(HEARTBEAT_FRAME)

    def _forget(self) -> None:
        """Remove the client. As in nsqd, its unanswered messages come back at their timeout."""
        if self._channel is not None:
            self._channel.clients.remove(self)
            self._channel.deferred += [(entry.deadline, entry.stored) for entry in self.in_flight.values()]
            self._happened()

    # Commands

    def _heed(self, command: commands.Command) -> None:
        lines = (
            [b"FIN " + id for id in command.ids]
            if isinstance(command, commands.Finishes)
            else [b" ".join(command.params)]
        )
        body = command.body if isinstance(command, commands.BodyCommand) else b""
        if isinstance(command, commands.PublishCommand | commands.Publications):
            body = command.payload
        for line in lines:
            text = line.decode()
            try:
                instead = self._hear(self._number, text)
                if instead is None:
                    self._carry_out(text.split(" "), body, command)
                else:
                    self.send(instead)
            except ProtocolError as error:
                self.send(error_frame(error))
                self._is_ending = error.fatal

    def _carry_out(self, words: list[str], body: bytes, command: commands.Command) -> None:
        match words:
            case ["IDENTIFY"]:
                self._identify(json.loads(body))
            case ["SUB", topic, channel]:
                self._subscribe(topic, channel)
            case ["RDY", number]:
                self.rdy = int(number)
            case ["FIN", id]:
                self._take(Fault.FIN_FAILED, id, lambda entry: self._finished(entry.stored))
            case ["REQ", id, delay, *rest]:
                is_free = self._buries and rest[:1] == ["free"]
                self._take(Fault.REQ_FAILED, id, lambda entry: self._requeue(entry.stored, int(delay) / 1000, is_free))
            case ["BURY", id, *reason] if self._buries:
                self._take(Fault.BURY_FAILED, id, lambda entry: self._bury(entry.stored, " ".join(reason)))
            case ["TOUCH", id]:
                self._touch(id)
            case ["CLS"]:
                self.is_closing = True
                self.send(CLOSE_WAIT_FRAME)
            case ["PUB", topic, *key]:
                self._publish(topic, [(body[4:], _headers_of(command))], 0.0, *key)
            case ["DPUB", topic, delay, *key]:
                self._publish(topic, [(body[4:], _headers_of(command))], int(delay) / 1000, *key)
            case ["MPUB", topic, *key]:
                assert isinstance(command, commands.Publications)
                self._publish(topic, _messages_of(command), 0.0, *key)
            case ["NOP"]:
                pass
            case _:
                raise ProtocolError(Fault.INVALID, f"invalid command {words[0]}")

    def _identify(self, asked: dict[str, Any]) -> None:
        self._msg_timeout = (asked["msg_timeout"] or _MSG_TIMEOUT * 1000) / 1000
        self._heartbeat = asked["heartbeat_interval"] / 1000
        names = asked.get("extensions")
        extensions = granted(tuple(names) if names is not None else None, self._extensions)
        self._buries = BURY in extensions
        self._takes_keys = KEYS in extensions
        self._takes_headers = HEADERS in extensions
        self._reader.take_headers(self._takes_headers)
        reply = self._reply
        if not isinstance(reply, bytes):
            told = {"extensions": extensions} if names is not None else {}
            reply = json.dumps({**_REPLY, "msg_timeout": int(self._msg_timeout * 1000), **told, **reply}).encode()
        self.send(response_frame(reply))

    def _subscribe(self, topic: str, channel: str) -> None:
        self._channel = self._broker.channel(topic, channel)
        self._channel.clients.append(self)
        self.send(OK_FRAME)

    def _take(self, fault: Fault, id: str, act: Callable[[InFlightMessage], None]) -> None:
        entry = self.in_flight.pop(id.encode(), None)
        if entry is None:
            raise ProtocolError(fault, f"{_WORDS[fault]} {id} failed ID not in flight", fatal=False)
        act(entry)

    def _finished(self, stored: MemoryMessage) -> None:
        assert self._channel is not None
        self._channel.finished.append(stored.body)

    def _bury(self, stored: MemoryMessage, reason: str) -> None:
        assert self._channel is not None
        self._channel.buried.append((stored, reason))

    def _requeue(self, stored: MemoryMessage, delay: float, is_free: bool) -> None:
        assert self._channel is not None
        stored.attempts -= is_free
        if delay:
            self._channel.deferred.append((trio.current_time() + delay, stored))
        else:
            self._channel.waiting.append(stored)

    def _touch(self, id: str) -> None:
        entry = self.in_flight.get(id.encode())
        if entry is None:
            raise ProtocolError(Fault.TOUCH_FAILED, f"TOUCH {id} failed ID not in flight", fatal=False)
        entry.deadline = min(trio.current_time() + self._msg_timeout, entry.since + _MAX_MSG_TIMEOUT)

    def _publish(self, topic: str, messages: list[tuple[bytes, bytes]], delay: float, key: str = "", *_: str) -> None:
        is_new = not (self._takes_keys and key) or self._broker.take_key(topic, key, len(messages))
        due = trio.current_time() + delay if delay else None
        for body, headers in messages if is_new else ():
            stored = self._broker.new_message(body, headers=headers, key=key if self._takes_keys else "")
            self._broker.publish(topic, stored, due)
        self._happened()
        self.send(OK_FRAME)


def _headers_of(command: commands.Command) -> bytes:
    return command.headers if isinstance(command, commands.HeadedPublication) else b""


def _messages_of(command: commands.Publications) -> list[tuple[bytes, bytes]]:
    bodies = [command.payload[start + 4 : end] for start, end in pairwise(command.offsets)]
    if not isinstance(command, commands.HeadedPublications):
        return [(body, b"") for body in bodies]
    places = header_offsets(command.headers, len(bodies)) or ()
    return [(body, command.headers[start:end]) for body, (start, end) in zip(bodies, pairwise(places), strict=True)]
