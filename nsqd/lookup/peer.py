"""One nsqlookupd at one address: connect, IDENTIFY, register, PING, and reconnect.

NSQ has one loop for all peers. A peer that hangs delays each command to the others by a second, and NSQ only notices a
broken connection at the next command. Here each peer has a task, which also reads, so it notices a broken connection
at once and reconnects.
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
from nsqd.lookup.registration import RegistrationRefused, address_in
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

_MOST_LOGGED: Final = 32  # commands logged one by one; a longer run, such as a resync, is a single line


class LookupdPeer:
    """Keeps this node registered with one nsqlookupd at one address."""

    def __init__(
        self,
        name: str,
        registration: RegistrationState,
        *,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        find_twin: Callable[[PeerAddress], LookupdPeer | None],
        state: Callable[[], Words],
        has_connected: Callable[[], bool],
        me: bytes,
        most: int,
    ) -> None:
        self.name = name
        self.reachable_at: PeerAddress | None = None  # from its reply to IDENTIFY; stays after a disconnect
        self.silent_until = -inf
        self.connected = False
        self.left = trio.Event()  # set when the connection has ended
        self.first_try_over = trio.Event()  # set after the first attempt to connect, successful or not
        self.first_try_deadline = trio.current_time() + FIRST_TRY_LIMIT
        self.scope = trio.CancelScope()
        self._registration = registration
        self._connect = connect
        self._find_twin = find_twin
        self._state = state  # returns the parameters of PING
        self._has_connected = has_connected  # returns whether any nsqlookupd has accepted our IDENTIFY
        self._me = me
        self._most = most  # bytes in a reply
        self._wakeup = Wakeup()
        self._failures = 0
        self._is_unreachable = False  # nsqlookupd failed to connect back to us
        self._conversation: Conversation | None = None  # set while we can register topics
        self._goodbye = ""  # the last PING's parameter, once `leave` has been called

    def changed(self, topic_name: str) -> None:
        self._registration.changed(topic_name)
        self._wakeup.set()

    def state_changed(self) -> None:
        """Send a PING soon, because `state` has changed."""
        self._wakeup.set()

    def leave(self, goodbye: str) -> None:
        """Make `run` say goodbye and return. `Lookup.leave` gives it IO_LIMIT seconds."""
        self._goodbye = goodbye
        self._wakeup.set()

    def announce(self) -> None:
        """Send the changes now, up to the limit of unanswered commands. `run` sends the rest, and reads the replies."""
        conversation = self._conversation
        if conversation is not None and (commands := self._registration.next_commands(conversation.room)):
            self._log_commands(commands)
            conversation.send_now([encode_command(*words) for words in commands])

    async def run(self) -> None:
        """Connect, register and reconnect until the scope is cancelled or we have said goodbye."""
        with self.scope:
            while not self._goodbye:
                twin: LookupdPeer | None = None
                try:
                    twin = await self._hold_connection()
                # `except*` catches both the nursery's exception group and a bare error from connecting.
                except* (
                    OSError,
                    trio.BrokenResourceError,
                    trio.ClosedResourceError,
                    BadReply,
                    RegistrationRefused,
                ) as group:
                    self._log_failure(_first_cause(group))
                finally:
                    self.connected = False
                    self._conversation = None
                    self.left.set()
                    self._registration.disconnected()
                    self.first_try_over.set()
                if twin is not None:
                    log.info("LOOKUPD(%s): duplicate of %s, skipping", self.name, twin.name)
                    await twin.left.wait()
                await trio.sleep(self._backoff())

    def _log_failure(self, error: BaseException) -> None:
        # Warn once per outage, not once per attempt.
        level = logging.DEBUG if self._failures else logging.WARNING
        self._failures += 1
        log.log(level, "LOOKUPD(%s): %s", self.name, error)

    def _backoff(self) -> float:
        # Clients that know this node go on using it during an outage. But they can't find a new node before it is
        # registered, so a new node retries more often.
        most = LONGEST_BACKOFF if self._has_connected() else LONGEST_BACKOFF_OF_NEW
        longest = min(most, SHORTEST_BACKOFF * 2.0 ** min(self._failures - 1, 10))
        # Jitter, so that after a restart of nsqlookupd not all nodes come back at the same moment.
        return longest * random.uniform(0.5, 1.0)

    async def _hold_connection(self) -> LookupdPeer | None:
        """Connect, and keep the connection until we have said goodbye. Raises if it breaks.

        If another peer is already connected to the same nsqlookupd, disconnects and returns that peer.
        """
        log.log(logging.DEBUG if self._failures else logging.INFO, "LOOKUP connecting to %s", self.name)
        stream = await self._connect()
        try:
            async with trio.open_nursery() as nursery:
                conversation = Conversation(stream, self._most)
                nursery.start_soon(conversation.listen)
                address = await self._identify(conversation)
                twin = self._find_twin(address)
                if twin is None:
                    await self._register(conversation)
                nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(stream)
        return twin

    async def _identify(self, conversation: Conversation) -> PeerAddress:
        (reply,) = await conversation.ask(encode_command("IDENTIFY", body=self._me), before=MAGIC)
        address = self.reachable_at = address_in(reply)
        self.first_try_over.set()
        log.info(
            "LOOKUPD(%s): connected http=%s", self.name, join_host_port(address.broadcast_address, address.http_port)
        )
        if not address.broadcast_address:
            log.error("LOOKUPD(%s): no broadcast address", self.name)
        return address

    async def _register(self, conversation: Conversation) -> None:
        """Register everything, then each change, with PINGs in between. Returns after the goodbye.

        Each PING carries the node's state. A new connection sends one before it registers anything, so that clients
        don't, for example, publish to a draining node. A change of state is sent at once, without waiting for
        PING_INTERVAL.
        """
        self.connected = True
        self.left = trio.Event()
        self._registration.connected()
        self._conversation = conversation
        next_ping = trio.current_time() + FIRST_PING
        sent_state: Words = ()
        while not self._goodbye:
            self._wakeup.clear()
            if trio.current_time() >= next_ping or sent_state != self._state():
                next_ping = trio.current_time() + PING_INTERVAL
                sent_state = self._state()
                replies = await conversation.ask(encode_command("PING", *sent_state))
                self._log_errors(replies)
                self._note_reachability(replies[-1])
            if commands := self._registration.next_commands(AT_ONCE):
                self._log_commands(commands)
                self._log_errors(await conversation.ask(*(encode_command(*words) for words in commands)))
                continue
            if conversation.has_unread_replies:
                self._log_errors(await conversation.ask())
                continue
            self._failures = 0
            with trio.move_on_at(next_ping):
                await self._wakeup.wait()
        self._log_errors(await conversation.ask(encode_command("PING", self._goodbye)))

    def _log_commands(self, commands: list[Words]) -> None:
        if len(commands) > _MOST_LOGGED:
            log.info("LOOKUPD(%s): %d commands, the first is %s", self.name, len(commands), " ".join(commands[0]))
            return
        for words in commands:
            log.info("LOOKUPD(%s): %s %s", self.name, "channel" if len(words) == 3 else "topic", " ".join(words))

    def _note_reachability(self, reply: bytes) -> None:
        """Log whether nsqlookupd can connect to this node, whenever that changes."""
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

    def _log_errors(self, replies: list[bytes]) -> None:
        """Log errors. We don't need to do more, because nsqlookupd closes the connection after an error."""
        for reply in replies:
            if reply.startswith(b"E_"):
                log.warning("LOOKUPD(%s): %s", self.name, reply[:200].decode("utf-8", "backslashreplace"))


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.__cause__ if isinstance(error, trio.BrokenResourceError) and error.__cause__ else error
