"""A store that keeps its two promises and no other: creates and gets of one name are linearizable.

A call can be lost on the way, or wait and happen much later, when its sender has given up or is dead. Its answer can be
lost. It can happen twice. All calls for some names take very long, however often they are repeated. A create can be answered "exists" although there is nothing, as S3's conflict is. The hint may
be missing, or any that there ever was. The store can be away for one machine or for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from nsqcommon.remote.names import HINT
from nsqcommon.remote.root import FilePart
from nsqd.remote.object_store import Created

_ENDS_A_RUN: Final = re.compile(rb".{12,16}(?:end|fence)", re.DOTALL)


class Sender(Protocol):
    """A process that has made a call."""

    is_alive: bool
    is_frozen: bool

    @property
    def is_cut_off(self) -> bool:
        """Whether the store is away for its machine."""

    def answered(self, call: Call) -> None: ...

    def lost(self, call: Call) -> None:
        """Note that there will be no answer. The call may have happened, or happen later."""


class Call:
    def __init__(
        self,
        sender: Sender | None,
        verb: str,
        name: str,
        data: bytes = b"",
        *,
        size: int = 0,
        parts: Sequence[FilePart] = (),
    ) -> None:
        self.sender = sender
        self.verb = verb
        self.name = name
        self.data = data
        self.size = size  # of a get; 0: all of it
        self.parts = parts  # of a read
        self.has_happened = False
        self.result: bytes | Created | None = None
        self.found: dict[FilePart, bytes | None] = {}  # what a read has got, or a part of that
        self.is_lost = False  # it will never happen, or its answer will never come


class FaultyStore:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.objects: dict[str, bytes] = {}
        self.calls: list[Call] = []
        self.is_away = False
        self.slow_names = random.choice((0.0, 0.0, 0.01, 0.03))  # the share of names for which calls take long
        self._slow: dict[str, bool] = {}
        self._hints: list[bytes | None] = [None]
        self.on_create: Callable[[Call], None] = lambda call: None

    def send(self, call: Call) -> Call:
        self.calls.append(call)
        return call

    def step(self) -> None:
        """Let something happen to one call."""
        self._progress(self.random.choice(self.calls))

    def step_for(self, sender: Sender) -> None:
        """Let something happen to a call of this sender, which can do nothing else than wait."""
        if calls := [it for it in self.calls if it.sender is sender]:
            self._progress(self.random.choice(calls))

    def _progress(self, call: Call) -> None:
        random, sender = self.random, call.sender
        if self._is_slow(call) and random.random() < 0.95:
            return
        if call.has_happened:
            self._answer(call)
        elif (
            (self.is_away or (sender is not None and sender.is_cut_off)) and random.random() < 0.9
        ) or random.random() < 0.1:
            self._lose(call)
        elif call.verb == "create" and random.random() < 0.02:
            call.has_happened, call.result = True, Created.EXISTS  # it has not: a conflict that is to be tried again
        else:
            self.happen(call)
            if random.random() < 0.03:
                self.happen(call)

    def _is_slow(self, call: Call) -> bool:
        if call.name not in self._slow:
            share = 5 * self.slow_names if _ENDS_A_RUN.match(call.data) else self.slow_names  # these matter most
            self._slow[call.name] = self.random.random() < share
        return self._slow[call.name]

    def give_up(self) -> None:
        """Let a sender stop waiting for one call. It may still happen, now or much later."""
        call = self.random.choice(self.calls)
        if call.sender is not None and call.sender.is_alive and not call.sender.is_frozen:
            self.calls.remove(call)
            if not call.has_happened:
                self.calls.append(Call(None, call.verb, call.name, call.data))
            call.sender.lost(call)

    def sever(self, sender: Sender) -> None:
        """Lose what a sender has under way and what hasn't happened yet. It hears of that when it goes on."""
        for call in self.calls:
            if call.sender is sender and not call.has_happened:
                call.has_happened = call.is_lost = True

    def answer_all(self) -> None:
        """Let every call of a process that is alive happen, and answer it."""
        for call in [it for it in self.calls if it.sender is not None and it.sender.is_alive]:
            if not call.has_happened:
                self.happen(call)
            self.calls.remove(call)
            if call.sender is not None and call.sender.is_alive:
                (call.sender.lost if call.is_lost else call.sender.answered)(call)

    def finish(self) -> None:
        """Let most calls that are under way happen, although no process waits for them any more."""
        for call in self.calls:
            if not call.has_happened and self.random.random() < 0.7:
                self.happen(call)
        self.calls.clear()
        self.is_away = False

    def happen(self, call: Call) -> None:
        call.has_happened = True
        match call.verb:
            case "create":
                call.result = self._create(call)
            case "get" if call.name == HINT:
                call.result = self.random.choice(self._hints)
            case "get":
                found = self.objects.get(call.name)
                call.result = found[: call.size or None] if found is not None else None
            case "read":
                call.found = {it: self._range(it) for it in call.parts if self.random.random() > 0.05}
            case "delete":
                for name in call.name.split(" "):
                    self.objects.pop(name, None)
            case "overwrite":
                self._hints.append(call.data)

    def _range(self, part: FilePart) -> bytes | None:
        found = self.objects.get(part.object)
        return found[part.offset : part.offset + part.length] if found is not None else None

    def _create(self, call: Call) -> Created:
        if call.name in self.objects:
            return Created.EXISTS
        self.objects[call.name] = call.data
        self.on_create(call)
        return Created.CREATED

    def _lose(self, call: Call) -> None:
        self.calls.remove(call)
        if call.sender is not None and call.sender.is_alive:
            call.sender.lost(call)

    def _answer(self, call: Call) -> None:
        sender = call.sender
        if sender is None or not sender.is_alive:
            self.calls.remove(call)
        elif not sender.is_frozen:
            self.calls.remove(call)
            if call.is_lost or sender.is_cut_off or self.random.random() < 0.15:
                sender.lost(call)
            else:
                sender.answered(call)
