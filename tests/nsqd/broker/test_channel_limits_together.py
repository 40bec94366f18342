"""`max_in_flight` together with limits, order and shares of groups, whatever consumers, operators and crashes do."""

from __future__ import annotations

from itertools import permutations
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqcommon.wire.commands import identify, nop
from nsqd.broker import operator_actions
from tests.nsqd.broker.burying import consumer_of
from tests.nsqd.broker.grouping import Grouped
from tests.support.lengths import sized
from tests.support.node import Client

WAITING: Final = ("new", "again")
UNFINISHED: Final = ("new", "again", "later", "in flight")
DELAY: Final = 40.0  # seconds, of a requeue or a publish
TIMEOUT: Final = 60.0
# No sum of these is a delay or a time-out, so that it's always clear whether one has passed.
SHORT, LONG = 25.0, 61.0
GROUPS: Final = "aaaabb-c"  # of the messages that are published: one group has more than others
WEIGHTS: Final = {"b": 2}
# A group may be ahead by the round that each of them began with, and by the one that it is being served in.
ROUNDS_AHEAD: Final = 2

RULES: Final = st.fixed_dictionaries(
    {
        "max_in_flight": st.sampled_from([None, 1, 2, 3, 5]),
        "max_in_flight_per_group": st.sampled_from([None, 1, 2]),
        "order": st.sampled_from([None, "group"]),
        "share": st.sampled_from([None, "group"]),
    }
)
STEPS: Final = st.sampled_from(
    [
        "publish",
        "delay",
        "publish",
        "finish",
        "finish",
        "finish",
        "requeue",
        "defer",
        "bury",
        "kick",
        "short",
        "long",
        "crash",
        "rules",
        "cancel",
    ]
)


class Checked:
    """A channel with two consumers, and what a plain list of its messages says about each delivery."""

    def __init__(self, rules: dict[str, Any]) -> None:
        self.rules = rules
        self.it = Grouped(**self._all_rules())
        self.places: dict[str, str] = {}  # of each message, in the order of the log
        self.until: dict[str, float] = {}  # when a time-out or delay ends
        self.ahead: dict[tuple[str, str], float] = {}  # rounds that a group got more than another one that could go
        self.cold: list[str] = []  # messages that have to be read from disk: those of another group may come meanwhile
        self.subscribe()

    def subscribe(self) -> None:
        self.clients = [self._consumer(), self._consumer()]
        self.settle()

    def _consumer(self) -> Client:
        client = self.it.node.client(b"  V2" + identify(b'{"heartbeat_interval":60000}') + b"SUB t c\n")
        client.say(b"RDY 6\n")
        return client

    def _all_rules(self) -> dict[str, Any]:
        return {**self.rules, "weights": tuple(WEIGHTS.items()) if self.rules["share"] else ()}

    @property
    def limit(self) -> int:
        return 1 if self.rules["order"] else self.rules["max_in_flight_per_group"] or 1_000

    @property
    def most(self) -> int:
        return self.rules["max_in_flight"] or 1_000

    def of(self, *places: str, group: str = "") -> list[str]:
        return [word for word, place in self.places.items() if place in places and word.startswith(group)]

    # What happens

    def do(self, step: str, number: int) -> None:
        flying, node = self.of("in flight"), self.it.node
        word = flying[number % len(flying)] if flying else ""
        if step == "publish":
            words = self._new_words(1 + number % 9)
            self.places |= dict.fromkeys(words, "new")
            self.it.publish(" ".join(words))
        elif step == "delay":
            words = self._new_words(1 + number % 3)
            self.places |= dict.fromkeys(words, "delayed")
            self.until |= dict.fromkeys(words, node.now + DELAY)
            self.it.publish(" ".join(words), delay_ms=int(DELAY * 1000))
        elif step == "rules":
            self.it.follow(**self._all_rules())
        elif step in ("short", "long"):
            node.pass_time(SHORT if step == "short" else LONG)
            for client in self.clients:
                client.say(nop())
        elif step == "crash":
            self.places |= dict.fromkeys(flying, "again")
            self.it.crash()
            self.ahead.clear()  # nothing records whose turn it is
            if number % 2:
                self.it.node.store.logs["t"].cold_before = 0  # all is in memory already
            else:
                self.cold = list(self.places)
            self.subscribe()
        elif step == "kick":
            self._kick(number)
        elif step == "cancel":
            self._cancel(number)
        elif word:
            self._answer(step, word)
        self.settle()

    def _new_words(self, count: int) -> list[str]:
        first = len(self.places)
        return [f"{GROUPS[it % len(GROUPS)]}{it}" for it in range(first, first + count)]

    def _answer(self, step: str, word: str) -> None:
        owner = self.it.real.in_flight.owner(self.it.ids[word])
        client = next(it for it in self.clients if consumer_of(self.it.real, it) is owner)
        self.places[word] = {"finish": "finished", "requeue": "again", "defer": "later", "bury": "buried"}[step]
        self.until[word] = self.it.node.now + DELAY
        heard = {
            "finish": lambda: self.it.finish(client, word),
            "requeue": lambda: self.it.requeue(client, word),
            "defer": lambda: self.it.requeue(client, word, int(DELAY * 1000)),
            "bury": lambda: self.it.bury(client, word),
        }[step]()
        self.delivered(heard.split())

    def _kick(self, number: int) -> None:
        if buried := self.of("buried"):
            word = buried[number % len(buried)]
            self.places[word] = "again"
            operator_actions.take_buried(self.it.real, "kick", self.it.of(word))

    def _cancel(self, number: int) -> None:
        if waiting := self.of("new", "again", "later", "delayed"):
            word = waiting[number % len(waiting)]
            self.places[word] = "finished"
            operator_actions.cancel(self.it.real, BitMap64(self.it.of(word)))

    def settle(self) -> None:
        """Let everything come that can come now, and check it."""
        node = self.it.node
        for word, until in self.until.items():
            if until <= node.now and self.places[word] in ("in flight", "later", "delayed"):
                self.places[word] = "again"
        node.turn()
        node.load()
        for _ in range(3):  # at most so many slices
            node.pass_time(0.0)
            node.load()
        self.delivered([word for client in self.clients for word in self.it.got(client).split()])
        self.nothing_waits_that_could_go()

    # What must hold

    def could_go(self) -> set[str]:
        """Return the groups that have a message that could be delivered, if the channel and a consumer have room."""
        found = set()
        for group in set(GROUPS):
            candidates = self.of("new", "again", "later", group=group)
            if group != "-":
                if len(self.of("in flight", group=group)) >= self.limit:
                    continue
                if self.rules["order"]:
                    candidates = candidates[:1]
            if any(self.places[word] in WAITING for word in candidates):
                found.add(group)
        return found

    def delivered(self, words: list[str]) -> None:
        """Check what consumers have got in one turn."""
        before = self.could_go()
        for word in words:
            assert self.places[word] in WAITING, f"{word} was {self.places[word]}"
        self.places |= dict.fromkeys(words, "in flight")
        self.until |= dict.fromkeys(words, self.it.node.now + TIMEOUT)
        assert not words or len(self.of("in flight")) <= self.most, "too many in flight"
        for group in {word[0] for word in words} - {"-"}:
            flying = self.of("in flight", group=group)
            assert len(flying) <= self.limit, f"too many of {group} in flight: {flying}"
            if self.rules["order"]:
                earlier = [
                    it for it in self.of("new", "again", "later", group=group) if self._comes_before(it, flying[0])
                ]
                assert not earlier, f"{flying[0]} came before {earlier}"
        if self.rules["share"] and not any(self.places[word] in UNFINISHED for word in self.cold):
            self._shares_are_fair(words, before & self.could_go())
        else:
            self.ahead.clear()

    def _comes_before(self, word: str, other: str) -> bool:
        return self.it.sequences[word] < self.it.sequences[other]

    def _shares_are_fair(self, words: list[str], all_the_time: set[str]) -> None:
        """Check that no group that could go has been left behind by another one that could go just as long."""
        self.ahead = {pair: it for pair, it in self.ahead.items() if set(pair) <= all_the_time}
        for group, other in permutations(all_the_time, 2):
            rounds = [sum(word[0] == it for word in words) / WEIGHTS.get(it, 1) for it in (group, other)]
            self.ahead[group, other] = ahead = self.ahead.get((group, other), 0) + rounds[0] - rounds[1]
            assert ahead <= ROUNDS_AHEAD, f"{group} has got {ahead} rounds more than {other}"

    def nothing_waits_that_could_go(self) -> None:
        has_room = any(consumer_of(self.it.real, client).room > 0 for client in self.clients)
        if has_room and len(self.of("in flight")) < self.most:
            assert not self.could_go(), f"{self.could_go()} could go"


@settings(max_examples=sized(short=100, long=2_000))
@given(RULES, st.lists(st.tuples(STEPS, st.integers(0, 1_000), RULES), max_size=50))
def test_all_limits_hold_together_and_free_places_are_used_at_once(
    rules: dict[str, Any], steps: list[tuple[str, int, dict[str, Any]]]
) -> None:
    checked = Checked(rules)
    checked.do("publish", 7)
    for step, number, others in steps:
        if step == "rules":
            checked.rules = others
            checked.ahead.clear()
        checked.do(step, number)
