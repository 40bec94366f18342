"""kill -9 at random moments, under every kind of load, and a ledger of what may not be lost: `python -m tests.e2e.kill9`.

One *life* is a start of nsqd, load from several threads, and a kill. The load goes on until its connections break, so
the kill comes in the middle of everything. What was answered is a promise and goes into the ledger; what was under way
when the kill came is open, and for topics, channels and pauses the next start says which way it went.

The promises, all of them checked with each delivery and each start:

- A message whose OK was read arrives on every channel that was there before it was sent; with no channel there, on the first one.
- Topics, channels, pauses and deletions whose reply was read are so after every kill.
- What was finished FIN_GRACE before the kill, or in this life, never comes again.
- Attempts never go down; within one life, and over a requeue known to be heeded, they go up.
- Nothing deferred, by DPUB or by a requeue known to be heeded, comes early.
"""

from __future__ import annotations

import argparse
import http.client
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from common.wire.commands import dpub, fin, mpub, pub, rdy, req, sub, touch
from common.wire.message import Message
from tests.support.client import Client, Disconnected
from tests.support.process import Nsqd

FIN_GRACE: Final = 0.5  # seconds; a second is promised, a tenth is what it takes
STEADY_TOPICS: Final = ("steady-0", "steady-1")
STEADY_CHANNELS: Final = ("a", "b")
PASSING_TOPICS: Final = ("passing-0", "passing-1", "passing-2")
PASSING_CHANNELS: Final = ("x", "y")
PUBLISHERS: Final = 3
CONSUMERS: Final = 5
LONGEST_DELAY: Final = 1500  # milliseconds
DRAIN_TIMEOUT: Final = 60.0

BROKEN: Final = (Disconnected, OSError, TimeoutError, http.client.HTTPException)  # what a kill looks like from outside


class Violation(Exception):
    """A promise was broken."""


# The ledger


@dataclass(slots=True)
class Sent:
    """A message, from before it is sent."""

    sent_at: float
    delay: float = 0.0


@dataclass(slots=True)
class Requeue:
    due: float
    life: int
    heeded: bool = False  # an answer that came after it was read


@dataclass(slots=True, eq=False)
class Channel:
    """One life of a channel's name, from its creation to its deletion."""

    name: str
    there_since: float = float("inf")  # its creation was answered
    leaving: bool = False  # its deletion was sent
    paused: bool | None = False  # None: open
    required: set[int] = field(default_factory=set)
    attempts: dict[int, tuple[int, int]] = field(default_factory=dict)  # and in which life
    finished: dict[int, tuple[float, int]] = field(default_factory=dict)  # when, and in which life
    requeued: dict[int, Requeue] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Topic:
    name: str
    passing: bool
    there: bool | None = False  # None: open
    paused: bool | None = False
    channels: dict[str, Channel] = field(default_factory=dict)
    backlog: set[int] = field(default_factory=set)  # acknowledged while there was no channel
    busy: threading.Lock = field(default_factory=threading.Lock)  # who publishes to or reshapes a passing topic


class Ledger:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.life = 0
        self.killed_at: dict[int, float] = {}
        self.messages: dict[int, Sent] = {}
        self.topics = {name: Topic(name, passing=False) for name in STEADY_TOPICS}
        self.topics |= {name: Topic(name, passing=True) for name in PASSING_TOPICS}
        self.acknowledged = self.delivered = self.again = 0

    # Publishing

    def sending(self, count: int, delay: float = 0.0) -> list[int]:
        with self.lock:
            now = time.monotonic()
            numbers = list(range(len(self.messages), len(self.messages) + count))
            self.messages.update((number, Sent(now, delay)) for number in numbers)
            return numbers

    def answered_ok(self, topic: Topic, numbers: list[int]) -> None:
        with self.lock:
            self.acknowledged += len(numbers)
            sent_at = self.messages[numbers[0]].sent_at
            for channel in topic.channels.values():
                if channel.there_since <= sent_at:
                    channel.required.update(
                        it for it in numbers if it not in channel.attempts
                    )  # or it came before its OK
            if not topic.channels:
                topic.backlog.update(numbers)

    def history(self, channel: Channel, number: int) -> str:
        """What is known of a message, for the one who looks for what became of it."""
        sent = self.messages[number]
        life, killed = next(
            ((it, at) for it, at in self.killed_at.items() if at > sent.sent_at), (self.life, sent.sent_at)
        )
        return (
            f"sent in life {life}, {killed - sent.sent_at:.3f} s before its end, delay {sent.delay}, "
            f"channel there {sent.sent_at - channel.there_since:.3f} s before"
        )

    # Consuming

    def arrived(self, channel: Channel, message: Message) -> int:
        now = time.monotonic()
        with self.lock:
            self.delivered += 1
            number = int(message.body.split()[0])
            sent = self.messages.get(number)
            if sent is None:
                raise Violation(f"message {number} was never sent")
            if now < sent.sent_at + sent.delay:
                raise Violation(f"deferred message {number} early by {sent.sent_at + sent.delay - now:.3f} s")
            self._check_finish(channel, number)
            heeded = self._check_requeue(channel, number, now)
            self._check_attempts(channel, number, message.attempts, heeded=heeded)
            channel.attempts[number] = (message.attempts, self.life)
            channel.required.discard(number)
            return number

    def _check_finish(self, channel: Channel, number: int) -> None:
        finished = channel.finished.pop(number, None)
        if finished is None:
            return
        self.again += 1
        when, life = finished
        if life == self.life:
            raise Violation(f"message {number} came again after its FIN")
        if (before := self.killed_at[life] - when) > FIN_GRACE:
            raise Violation(f"message {number} came again, though finished {before:.3f} s before the kill")

    def _check_requeue(self, channel: Channel, number: int, now: float) -> bool:
        requeue = channel.requeued.pop(number, None)
        if requeue is None or (requeue.life != self.life and not requeue.heeded):
            return False
        if now < requeue.due:
            raise Violation(f"requeued message {number} early by {requeue.due - now:.3f} s")
        return True

    def _check_attempts(self, channel: Channel, number: int, attempts: int, *, heeded: bool) -> None:
        last, life = channel.attempts.get(number, (0, self.life))
        least = last + 1 if heeded or life == self.life else last
        if attempts < least:
            raise Violation(f"attempts of message {number} are {attempts} after {last} on {channel.name}")

    def finishing(self, channel: Channel, number: int) -> None:
        """Just after the FIN was sent."""
        with self.lock:
            channel.finished[number] = (time.monotonic(), self.life)

    def requeueing(self, channel: Channel, number: int, delay: float) -> Requeue:
        """Just before the REQ is sent."""
        with self.lock:
            requeue = channel.requeued[number] = Requeue(time.monotonic() + delay, self.life)
            return requeue


# The load


class Load:
    """Threads that do everything at once, until their connections break."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, chance: random.Random) -> None:
        self.nsqd = nsqd
        self.ledger = ledger
        self.violations: list[Exception] = []
        self.stopping = threading.Event()
        jobs = [self._publish] * PUBLISHERS + [self._consume] * CONSUMERS + [self._operate]
        self._threads = [
            threading.Thread(target=self._guarded, args=(job, random.Random(chance.random())), daemon=True)
            for job in jobs
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, job: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            while not self.stopping.is_set():
                try:
                    job(chance)
                except BROKEN:
                    self.stopping.wait(0.005)
        except Exception as error:
            self.violations.append(error)

    def ended(self) -> None:
        """Waits for all threads; they end when nsqd is gone. Raises what went wrong in one of them."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(30)
        if self.violations:
            raise self.violations[0]

    # Publishing

    def _publish(self, chance: random.Random) -> None:
        with Client(self.nsqd.tcp) as client:
            while not self.stopping.is_set():
                topic = self.ledger.topics[chance.choice(STEADY_TOPICS + PASSING_TOPICS)]
                if topic.passing:
                    with topic.busy:
                        if topic.there:
                            self._publish_once(client, topic, chance)
                else:
                    self._publish_once(client, topic, chance)
                self.stopping.wait(chance.uniform(0, 0.004))

    def _publish_once(self, client: Client, topic: Topic, chance: random.Random) -> None:
        kind = chance.choice(("PUB", "PUB", "MPUB", "DPUB"))
        delay = chance.randrange(LONGEST_DELAY) if kind == "DPUB" else 0
        numbers = self.ledger.sending(chance.randint(2, 10) if kind == "MPUB" else 1, delay / 1000)
        bodies = [b"%d %b" % (number, b"." * chance.choice((0, 100, 3000))) for number in numbers]
        command = {
            "PUB": lambda: pub(topic.name, bodies[0]),
            "MPUB": lambda: mpub(topic.name, bodies),
            "DPUB": lambda: dpub(topic.name, delay, bodies[0]),
        }[kind]()
        if client.ask(command) == b"OK":
            self.ledger.answered_ok(topic, numbers)

    # Consuming

    def _consume(self, chance: random.Random) -> None:
        found = _pick_channel(self.ledger, chance)
        if found is None:
            self.stopping.wait(0.01)
            return
        topic, channel = found
        with Client(self.nsqd.tcp) as client:
            with topic.busy:  # SUB would make again what has just been deleted
                if topic.channels.get(channel.name) is not channel:
                    return
                if client.ask(sub(topic.name, channel.name)) != b"OK":
                    raise Violation("SUB without OK")
            client.send(rdy(chance.choice((1, 10, 100))))
            consume(client, channel, self.ledger, chance, until=time.monotonic() + chance.uniform(0.05, 0.4))

    # Operating

    def _operate(self, chance: random.Random) -> None:
        while not self.stopping.is_set():
            topic = self.ledger.topics[chance.choice(STEADY_TOPICS + PASSING_TOPICS)]
            with topic.busy:
                if topic.passing and (not topic.there or chance.random() < 0.1):
                    self._create_or_delete_topic(topic)
                else:
                    name = chance.choice(PASSING_CHANNELS + (() if topic.passing else STEADY_CHANNELS))
                    self._change(topic, name, chance)
            self.stopping.wait(chance.uniform(0, 0.02))

    def _create_or_delete_topic(self, topic: Topic) -> None:
        verb = "delete" if topic.there else "create"
        topic.there = None
        for channel in topic.channels.values():
            channel.leaving = True
        self.nsqd.post(f"/topic/{verb}?topic={topic.name}")
        topic.there = verb == "create"
        with self.ledger.lock:
            topic.channels.clear()
            topic.backlog.clear()
        topic.paused = False

    def _change(self, topic: Topic, name: str, chance: random.Random) -> None:
        channel = topic.channels.get(name)
        if channel is None:
            self._create_channel(topic, name, chance)
        elif name in PASSING_CHANNELS and chance.random() < 0.2:
            self._delete_channel(topic, channel)
        elif chance.random() < 0.5:
            self._pause(topic, channel)
        else:
            self._pause(topic, None)

    def _create_channel(self, topic: Topic, name: str, chance: random.Random) -> None:
        channel = Channel(name)
        with self.ledger.lock:
            topic.channels[name] = channel
        if chance.random() < 0.5:
            self.nsqd.post(f"/channel/create?topic={topic.name}&channel={name}")
        else:
            with Client(self.nsqd.tcp) as client:
                client.subscribe(topic.name, name)
        _is_there(self.ledger, topic, channel)

    def _delete_channel(self, topic: Topic, channel: Channel) -> None:
        channel.leaving = True
        self.nsqd.post(f"/channel/delete?topic={topic.name}&channel={channel.name}")
        with self.ledger.lock:
            del topic.channels[channel.name]

    def _pause(self, topic: Topic, channel: Channel | None) -> None:
        target = channel or topic
        verb = "unpause" if target.paused else "pause"
        target.paused = None
        where = (
            f"channel/{verb}?topic={topic.name}&channel={channel.name}"
            if channel
            else f"topic/{verb}?topic={topic.name}"
        )
        self.nsqd.post(f"/{where}")
        target.paused = verb == "pause"


def _pick_channel(ledger: Ledger, chance: random.Random) -> tuple[Topic, Channel] | None:
    with ledger.lock:
        found = [
            (topic, channel)
            for topic in ledger.topics.values()
            if topic.there
            for channel in topic.channels.values()
            if channel.there_since != float("inf") and not channel.leaving and not channel.paused
        ]
    return chance.choice(found) if found else None


def _is_there(ledger: Ledger, topic: Topic, channel: Channel) -> None:
    """Its creation was answered, or seen after a start. The first channel gets what has waited."""
    with ledger.lock:
        channel.there_since = time.monotonic()
        channel.required |= topic.backlog
        topic.backlog.clear()


def consume(client: Client, channel: Channel, ledger: Ledger, chance: random.Random, *, until: float) -> None:
    """Takes messages and does with them what consumers do; now and then it makes sure that all this was heeded."""
    requeues: list[Requeue] = []
    while (left := until - time.monotonic()) > 0:
        try:
            message = client.message(min(left, 0.05))
        except TimeoutError:
            continue
        number = ledger.arrived(channel, message)
        luck = chance.random()
        if luck < 0.86:
            client.send(fin(message.id))
            ledger.finishing(channel, number)
        elif luck < 0.97:
            delay = chance.choice((0, chance.randrange(LONGEST_DELAY)))
            requeues.append(ledger.requeueing(channel, number, delay / 1000))
            client.send(req(message.id, delay))
        elif luck < 0.98:
            client.send(touch(message.id))
        if len(requeues) >= 5:
            client.in_step()
            for requeue in requeues:
                requeue.heeded = True
            requeues.clear()


# Between two lives


def check_shape(nsqd: Nsqd, ledger: Ledger) -> None:
    """Everything that was answered is so; what was open is settled as it is found."""
    found = {it["topic_name"]: it for it in nsqd.stats()["topics"]}
    if unknown := found.keys() - ledger.topics.keys():
        raise Violation(f"topics from nowhere: {unknown}")
    for topic in ledger.topics.values():
        there = topic.name in found
        if topic.there is not None and topic.there != there:
            raise Violation(f"topic {topic.name} is {'there' if there else 'missing'}")
        topic.there = there
        if not there:
            topic.channels.clear()
            topic.backlog.clear()
            topic.paused = False
            continue
        topic.paused = _agreed(topic.paused, found[topic.name]["paused"], f"pause of topic {topic.name}")
        _check_channels(ledger, topic, {it["channel_name"]: it for it in found[topic.name]["channels"]})


def _check_channels(ledger: Ledger, topic: Topic, found: dict[str, dict[str, bool]]) -> None:
    if unknown := found.keys() - topic.channels.keys():
        raise Violation(f"channels from nowhere on {topic.name}: {unknown}")
    for channel in list(topic.channels.values()):
        label = f"channel {topic.name}/{channel.name}"
        is_open = channel.leaving or channel.there_since == float("inf")
        if channel.name not in found:
            if not is_open:
                raise Violation(f"{label} is missing")
            del topic.channels[channel.name]
            continue
        channel.leaving = False
        channel.paused = _agreed(channel.paused, found[channel.name]["paused"], f"pause of {label}")
        if channel.there_since == float("inf"):
            _is_there(ledger, topic, channel)


def _agreed(known: bool | None, found: bool, what: str) -> bool:
    if known is not None and known != found:
        raise Violation(f"{what} is {found}, not {known}")
    return found


def set_up(nsqd: Nsqd, ledger: Ledger) -> None:
    for name in STEADY_TOPICS:
        topic = ledger.topics[name]
        nsqd.post(f"/topic/create?topic={name}")
        topic.there = True
        for channel_name in STEADY_CHANNELS:
            nsqd.post(f"/channel/create?topic={name}&channel={channel_name}")
            topic.channels[channel_name] = channel = Channel(channel_name)
            _is_there(ledger, topic, channel)


def drain(nsqd: Nsqd, ledger: Ledger) -> None:
    """Consumes and finishes all that is left, and misses nothing."""
    for topic in ledger.topics.values():
        if not topic.there:
            continue
        nsqd.post(f"/topic/unpause?topic={topic.name}")
        for channel in topic.channels.values():
            nsqd.post(f"/channel/unpause?topic={topic.name}&channel={channel.name}")
            with Client(nsqd.tcp) as client:
                client.subscribe(topic.name, channel.name, ready=1000)
                _drain_channel(nsqd, ledger, topic, channel, client)
            if channel.required:
                lost = [f"{it} {ledger.history(channel, it)}" for it in sorted(channel.required)]
                raise Violation(f"{len(lost)} messages lost on {topic.name}/{channel.name}:\n" + "\n".join(lost[:20]))


def _drain_channel(nsqd: Nsqd, ledger: Ledger, topic: Topic, channel: Channel, client: Client) -> None:
    deadline = time.monotonic() + DRAIN_TIMEOUT
    while True:
        try:
            message = client.message(0.1)
        except TimeoutError:
            client.in_step()
            left = nsqd.channel(topic.name, channel.name)
            if left["depth"] == left["in_flight_count"] == left["deferred_count"] == 0:
                return
            if time.monotonic() > deadline:
                raise Violation(f"{topic.name}/{channel.name} does not run dry: {left}") from None
            continue
        number = ledger.arrived(channel, message)
        client.send(fin(message.id))
        ledger.finishing(channel, number)


def run(data_path: Path, *, cycles: int, seed: int, options: tuple[str, ...] = ()) -> Ledger:
    """Raises AssertionError, with the seed and the log, when a promise was broken."""
    chance = random.Random(seed)
    ledger = Ledger()
    with Nsqd(data_path, *options) as nsqd:
        try:
            set_up(nsqd, ledger)
            for _ in range(cycles):
                load = Load(nsqd, ledger, chance)
                load.stopping.wait(chance.choice((chance.uniform(0, 0.2), chance.uniform(0.2, 0.9))))
                ledger.killed_at[ledger.life] = time.monotonic()
                nsqd.kill()
                load.ended()
                ledger.life += 1
                nsqd.start()
                check_shape(nsqd, ledger)
            drain(nsqd, ledger)
            nsqd.restart()
            assert all(left == 0 for left in _left(nsqd)), "finished messages came back"
        except Exception as error:
            raise AssertionError(
                f"{log_of(nsqd)}\n\nlife {ledger.life}, seed {seed}: {type(error).__name__} {error}"
            ) from error
    return ledger


def log_of(nsqd: Nsqd) -> str:
    """The end of its log, without the answers that make sure of being heeded."""
    return "\n".join([line for line in nsqd.log.splitlines() if "f" * 16 not in line][-100:])


def _left(nsqd: Nsqd) -> Iterator[int]:
    for topic in nsqd.stats()["topics"]:
        for channel in topic["channels"]:
            yield channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kill9", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("options", nargs="*", help="options of nsqd without dashes, as max-bytes-per-file=65536")
    arguments = parser.parse_args()
    sys.stdout.write(f"seed {arguments.seed}\n")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        ledger = run(Path(folder), cycles=arguments.cycles, seed=arguments.seed, options=tuple(arguments.options))
    sys.stdout.write(
        f"{arguments.cycles} kills in {time.monotonic() - began:.0f} s: {ledger.acknowledged} messages acknowledged, "
        f"{ledger.delivered} deliveries, {ledger.again} of them after a FIN just before a kill; nothing lost\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
