"""Messages on their way to a viewer: decoded, masked, and matched against a search.

Decoding takes a thread, and a thread takes a while to begin. So messages that need it wait until there are enough for
one go, and the others behind them wait as well, so that all come out in their order. Without a decoder, a message goes
straight through.

A user without the right `payload` gets the decoded body with its masks, and never the bytes that were published: the
masks would not find a field in them. A body that can't be decoded is hidden from such a user, and so are the reasons,
because they may quote it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from nsqadmin.access import Right
from nsqadmin.decoding.decoder import Undecodable
from nsqadmin.decoding.decoders import SLICE, ByContentType
from nsqadmin.messages.masking import MASK
from nsqadmin.messages.model import Decoded, Message

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.decoding.decoder import Decoder
    from nsqadmin.decoding.decoders import Choice, Decoders
    from nsqadmin.messages.filters import Filter
    from nsqadmin.messages.masking import Masking

_MOST_WAITING: Final = 500  # messages
_MOST_BYTES: Final = 1 << 20  # of the waiting messages' bodies
_MOST_SECONDS: Final = 5.0  # for decoding the messages of a page
_MOST_DECODED: Final = 32 << 20  # bytes of decoded bodies to return at once: a thousand bytes may become six million

T = TypeVar("T")


class Seen(NamedTuple, Generic[T]):
    """A message as its viewer may see it."""

    of: T  # given with the message
    message: Message | None  # None: it has no body
    is_wanted: bool


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T]):
    of: T
    message: Message | None
    choice: Choice | None


class Looking(Generic[T]):
    """One viewer's look at messages of one topic."""

    def __init__(self, decoders: Decoders, masking: Masking, identity: Identity, topic: str, wanted: Filter) -> None:
        self._decoders = decoders
        self._masking = masking
        self._topic = topic
        self._wanted = wanted
        self._may_see = identity.may(Right.PAYLOAD, topic)
        self._waiting: deque[_Waiting[T]] = deque()
        self._ready: list[Seen[T]] = []  # since the last return
        self._size = 0  # bytes of waiting bodies
        self._made = 0  # bytes of decoded bodies that are ready
        self._spent = 0.0  # seconds in the thread
        self._fields: dict[int, tuple[Decoder, Callable[[bytes], Any]]] = {}  # by the decoder's id

    async def add(self, of: T, message: Message | None) -> list[Seen[T]]:
        """Add a message, and return those that are ready, in the order in which they were added."""
        choice = None
        if message is not None and message.body is not None and self._may_match(message):
            choice = self._decoders.choose(self._topic, message.headers)
        if choice is None and not self._waiting and not self._ready:
            return [self._seen(of, message)]
        self._waiting.append(_Waiting(of, message, choice))
        self._size += message.size if message is not None else 0
        if len(self._waiting) >= _MOST_WAITING or self._size >= _MOST_BYTES:
            return await self.rest()
        return []

    async def rest(self) -> list[Seen[T]]:
        """Return all messages that have been added and not returned."""
        await self.work()
        return self.take()

    async def work(self) -> None:
        """Look at all messages that have been added. If this is cancelled, those that are ready can still be taken."""
        while self._waiting:
            done = await self._decoders.in_thread(self._look)
            for one in done:  # not before: if we are cancelled in the meantime, they still wait
                self._waiting.popleft()
                self._size -= one.message.size if one.message is not None else 0
            self._ready += done

    def take(self) -> list[Seen[T]]:
        """Return the messages that are ready."""
        self._made, ready, self._ready = 0, self._ready, []
        return ready

    def _may_match(self, message: Message) -> bool:
        """Return False if the message can't match, whatever its body is: then it needn't be decoded."""
        return not self._may_see or self._wanted.may_match(message)

    def _look(self) -> list[Seen[T]]:
        """Look at waiting messages, for a slice of time. Runs in a thread."""
        ready: list[Seen[T]] = []
        began = now = perf_counter()
        for one in self._waiting:
            ready.append(self._decoded(one))
            now = perf_counter()
            if now - began >= SLICE:
                break
        self._spent += now - began
        return ready

    def _seen(self, of: T, message: Message | None) -> Seen[T]:
        """Return a message without a decoder."""
        if message is None:
            return Seen(of, None, self._wanted.is_empty)
        if message.headers and (why := self._decoders.why_not(self._topic, message.headers)):
            message = replace(message, decoded=Decoded(how="", problem=why))
        seen = self._masked(message)
        return Seen(of, seen, self._wanted.matches(seen.body or b"", seen))

    def _masked(self, message: Message) -> Message:
        if self._may_see or message.body is None:
            return message
        masked = self._masking.masked(message.body)
        # The rules are for bodies. We don't know what headers and keys give away, so only users with the right see
        # them.
        return replace(message, body=masked, is_masked=masked != message.body, key="", headers={})

    # In the thread

    def _decoded(self, one: _Waiting[T]) -> Seen[T]:
        message = one.message
        if one.choice is None or message is None or message.body is None:
            return self._seen(one.of, message)
        if not self._may_see:
            return self._decoded_and_masked(one.of, message, one.choice)
        try:
            decoder = self._decoders.built(one.choice)
            # Most messages of a search are no hits. For those we only read the fields that it names.
            if self._wanted.paths and not self._wanted.holds(self._fields_of(decoder)(message.body), message):
                return Seen(one.of, message, False)
            self._check_time()
            content = decoder.read(message.body)
            if not self._wanted.matches(content, message):
                return Seen(one.of, message, False)
            if problem := self._why_no_room(content):
                known = Decoded(how=decoder.name, problem=problem)
            else:
                known = Decoded(how=decoder.name, content=content, remark=decoder.remark(message.body))
            return Seen(one.of, replace(message, decoded=known), True)
        except Undecodable as error:
            known = Decoded(how=_name_of(one.choice), problem=str(error))
        return Seen(one.of, replace(message, decoded=known), self._wanted.matches(message.body, message))

    def _decoded_and_masked(self, of: T, message: Message, choice: Choice) -> Seen[T]:
        content, name, is_masked = None, _name_of(choice), False
        try:
            decoder = self._decoders.built(choice)
            name = decoder.name
            self._check_time()
            whole = decoder.read(message.body or b"", hidden_bytes=MASK)
            content = self._masking.masked(whole)
            is_masked = content != whole or f'"{MASK}"'.encode() in whole
            problem = ""
        except Undecodable:
            problem = f"{name}: the body does not fit" if name else "the body does not fit"
        known = Decoded(how=name, content=content, problem=problem)
        seen = replace(message, body=None, is_masked=is_masked, key="", headers={}, decoded=known)
        is_wanted = self._wanted.matches(content or b"", seen)
        if is_wanted and content is not None and (problem := self._why_no_room(content)):
            seen = replace(seen, decoded=Decoded(how=name, problem=problem))
        return Seen(of, seen if is_wanted else replace(seen, decoded=None), is_wanted)

    def _fields_of(self, decoder: Decoder) -> Callable[[bytes], Any]:
        if (found := self._fields.get(id(decoder))) is None:
            found = self._fields[id(decoder)] = decoder, decoder.fields(self._wanted.paths)
        return found[1]

    def _why_no_room(self, content: bytes) -> str:
        """Return why a decoded body is not kept; "": it is."""
        if self._made + len(content) > _MOST_DECODED:
            return f"not decoded, because the other bodies have more than {_MOST_DECODED >> 20} MiB"
        self._made += len(content)
        return ""

    def _check_time(self) -> None:
        """Raise Undecodable if a page has taken its time. A search is bounded by its own time."""
        if self._spent > _MOST_SECONDS and self._wanted.is_empty:
            raise Undecodable(f"not decoded, because the other bodies have taken {_MOST_SECONDS:.0f} s")


def _name_of(choice: Choice) -> str:
    return "" if isinstance(choice, ByContentType) else choice.name
