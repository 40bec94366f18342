"""One nsqlookupd at one address: connect, IDENTIFY, register, PING, and reconnect.

NSQ has one loop for all peers: a peer that does not answer delays the others by a second for each command, and a broken
connection is noticed only by its next command. Here each peer's task also reads, and reconnects by itself.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon.net import join_host_port
from nsqcommon.wakeup import Wakeup
from nsqcommon.wire.lookup import MAGIC, BadReply, PeerAddress, encode_command, reason_in
from nsqd.lookup.conversation import AT_ONCE, Conversation
from nsqd.lookup.registration import RegistrationRefused, identified
from nsqd.lookup.times import (
    FIRST_PING,
    FIRST_TRY_LIMIT,
    LONGEST_BACKOFF,
    LONGEST_BACKOFF_OF_NEW,
    PING_INTERVAL,
    SHORTEST_BACKOFF,
)

if TYPE_CHECKING:
    from nsqd.lookup.registration import RegistrationState, Words

log = logging.getLogger(__name__)

_MOST_LOGGED: Final = 32  # commands sent together; a longer run, such as a resync, is one line


class LookupdPeer:
    """One nsqlookupd at one address."""

    def __init__(
        self,
        name: str,
        registration: RegistrationState,
        *,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        find_twin: Callable[[PeerAddress], LookupdPeer | None],
        state: Callable[[], Words],
        is_known: Callable[[], bool],
        me: bytes,
        most: int,
    ) -> None:
        self.name = name
        self.reachable_at: PeerAddress | None = None  # kept after a disconnect
        self.silent_until = -inf
        self.connected = False
        self.left = trio.Event()  # set when its connection has ended
        self.dry_run = trio.Event()  # the first attempt to connect has ended
        self.first_try_ends = trio.current_time() + FIRST_TRY_LIMIT
        self.scope = trio.CancelScope()
        self._registration = registration
        self._connect = connect
        self._find_twin = find_twin
        self._state = state  # the words to say after PING
        self._is_known = is_known  # some nsqlookupd has heard of this node since its start
        self._me = me
        self._most = most  # bytes of a reply
        self._news = Wakeup()
        self._failures = 0
        self._is_unreachable = False  # by others, as nsqlookupd has found
        self._conversation: Conversation | None = None  # while topics can be registered
        self._goodbye = ""  # the word to say, once asked to leave

    def changed(self, topic_name: str) -> None:
        self._registration.changed(topic_name)
        self._news.set()

    def state_changed(self) -> None:
        """Note that there are other words to say after PING."""
        self._news.set()

    def leave(self, goodbye: str) -> None:
        """Make `run` say goodbye and end. `Lookup.leave` gives it IO_LIMIT seconds."""
        self._goodbye = goodbye
        self._news.set()

    def announce(self) -> None:
        """Send what is new, within the limit for unanswered commands.

        The task sends the rest, and reads the replies.
        """
        conversation = self._conversation
        if conversation is not None and (commands := self._registration.next_commands(conversation.room)):
            self._log_commands(commands)
            conversation.tell([encode_command(*words) for words in commands])

    async def run(self) -> None:
        """Connect, register and reconnect until the scope is cancelled or goodbye is said."""
        with self.scope:
            while not self._goodbye:
                twin: LookupdPeer | None = None
                try:
                    twin = await self._visit()
                # A bare stream error of trio and an exception group of the nursery are both caught here.
                except* (
                    OSError,
                    trio.BrokenResourceError,
                    trio.ClosedResourceError,
                    BadReply,
                    RegistrationRefused,
                ) as group:
                    self._failed(_first_cause(group))
                finally:
                    self.connected = False
                    self._conversation = None
                    self.left.set()
                    self._registration.disconnected()
                    self.dry_run.set()
                if twin is not None:
                    log.info("LOOKUPD(%s): is the same as %s, and is told only there", self.name, twin.name)
                    await twin.left.wait()
                await trio.sleep(self._backoff())

    def _failed(self, error: BaseException) -> None:
        # Log an outage once, not for each attempt.
        level = logging.DEBUG if self._failures else logging.WARNING
        self._failures += 1
        log.log(level, "LOOKUPD(%s): %s", self.name, error)

    def _backoff(self) -> float:
        # Clients know a node that was registered before, and go on using it. One that is new is found only when it is
        # registered, so it does not leave nsqlookupd alone for so long.
        most = LONGEST_BACKOFF if self._is_known() else LONGEST_BACKOFF_OF_NEW
        longest = min(most, SHORTEST_BACKOFF * 2.0 ** min(self._failures - 1, 10))
        # Jitter: not all nodes should return at once after a restart of nsqlookupd.
        return longest * random.uniform(0.5, 1.0)

    async def _visit(self) -> LookupdPeer | None:
        """Hold one connection until it breaks, which raises, or until goodbye is said (None).

        Returns another peer if that one turns out to be the same nsqlookupd.
        """
        log.log(logging.DEBUG if self._failures else logging.INFO, "LOOKUP connecting to %s", self.name)
        stream = await self._connect()
        try:
            async with trio.open_nursery() as nursery:
                conversation = Conversation(stream, self._most)
                nursery.start_soon(conversation.listen)
                address = await self._introduce(conversation)
                twin = self._find_twin(address)
                if twin is None:
                    await self._register(conversation)
                nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(stream)
        return twin

    async def _introduce(self, conversation: Conversation) -> PeerAddress:
        (reply,) = await conversation.ask(encode_command("IDENTIFY", body=self._me), before=MAGIC)
        address = self.reachable_at = identified(reply)
        self.dry_run.set()
        log.info(
            "LOOKUPD(%s): connected http=%s", self.name, join_host_port(address.broadcast_address, address.http_port)
        )
        if not address.broadcast_address:
            log.error("LOOKUPD(%s): no broadcast address", self.name)
        return address

    async def _register(self, conversation: Conversation) -> None:
        """Register everything, then each change, with a PING in between. Return after saying goodbye.

        Each PING says which state the node is in. A new state is said at once, and before a new connection registers
        anything: clients must not take the node for one that accepts messages.
        """
        self.connected = True
        self.left = trio.Event()
        self._registration.connected()
        self._conversation = conversation
        next_ping = trio.current_time() + FIRST_PING
        said: Words = ()
        while not self._goodbye:
            self._news.clear()
            if trio.current_time() >= next_ping or said != self._state():
                next_ping = trio.current_time() + PING_INTERVAL
                said = self._state()
                replies = await conversation.ask(encode_command("PING", *said))
                self._judge(replies)
                self._hear_verdict(replies[-1])
            if commands := self._registration.next_commands(AT_ONCE):
                self._log_commands(commands)
                self._judge(await conversation.ask(*(encode_command(*words) for words in commands)))
                continue
            if conversation.was_told:
                self._judge(await conversation.ask())
                continue
            self._failures = 0
            with trio.move_on_at(next_ping):
                await self._news.wait()
        self._judge(await conversation.ask(encode_command("PING", self._goodbye)))

    def _log_commands(self, commands: list[Words]) -> None:
        if len(commands) > _MOST_LOGGED:
            log.info("LOOKUPD(%s): %d commands, the first is %s", self.name, len(commands), " ".join(commands[0]))
            return
        for words in commands:
            log.info("LOOKUPD(%s): %s %s", self.name, "channel" if len(words) == 3 else "topic", " ".join(words))

    def _hear_verdict(self, reply: bytes) -> None:
        """Log whether nsqlookupd can reach this node, whenever that has changed."""
        reason = reason_in(reply)
        if bool(reason) != self._is_unreachable:
            if reason:
                log.warning(
                    "LOOKUPD(%s): this node cannot be reached: %s. Clients will not reach it either: "
                    "set --broadcast-address to a name or an address that others can reach",
                    self.name,
                    reason,
                )
            else:
                log.info("LOOKUPD(%s): this node can be reached now", self.name)
        self._is_unreachable = bool(reason)

    def _judge(self, replies: list[bytes]) -> None:
        """Log errors. There is nothing else to do: after an error, nsqlookupd closes the connection."""
        for reply in replies:
            if reply.startswith(b"E_"):
                log.warning("LOOKUPD(%s): %s", self.name, reply[:200].decode("utf-8", "backslashreplace"))


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.__cause__ if isinstance(error, trio.BrokenResourceError) and error.__cause__ else error
