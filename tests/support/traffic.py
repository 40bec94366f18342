"""A load on a real nsqd that does everything at once, and records in the ledger (`promises.py`) what clients know.

The load goes on until its connections break, so a kill comes in the middle of everything.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Final, NamedTuple

from nsqcommon.wire.commands import dpub, fin, mpub, pub, rdy, req, sub, touch
from nsqcommon.wire.frames import Frame
from tests.support.client import NOBODY, TIMEOUT, Client, Disconnected, Refused
from tests.support.http_consumer import HttpConsumer, HttpRefused
from tests.support.http_traffic import answer_over_http
from tests.support.process import Nsqd
from tests.support.promises import OPEN, Channel, Ledger, Requeue, Topic, Violation

STEADY_TOPICS: Final = ("steady-0", "steady-1")
STEADY_CHANNELS: Final = ("a", "b")
PASSING_TOPICS: Final = ("passing-0", "passing-1", "passing-2")
PASSING_CHANNELS: Final = ("x", "y")
DRAIN_TIMEOUT: Final = 60.0
BUSY_TIMEOUT: Final = 120.0  # for some thousand messages, on a busy machine

BROKEN: Final = (Disconnected, OSError, TimeoutError, http.client.HTTPException)  # what a kill looks like


class Undecided(Exception):
    """A change was refused because the disk has failed.

    It takes effect all the same, and only an end of nsqd may undo it.
    """


class Pace(NamedTuple):
    publishers: int = 3
    consumers: int = 5
    http_consumers: int = 0
    longest_pause: float = 0.004  # seconds between two publishes of one publisher
    longest_delay: int = 1500  # milliseconds


FAST: Final = Pace(http_consumers=2)


class Consumer(Client):
    """A consumer that ignores errors about messages in flight that were emptied meanwhile."""

    def frame(self, timeout: float = TIMEOUT) -> Frame:
        deadline = time.monotonic() + timeout
        while True:
            frame = super().frame(deadline - time.monotonic())
            if not (frame.data.endswith(b"failed ID not in flight") and NOBODY not in frame.data):
                return frame


def new_ledger() -> Ledger:
    return Ledger(steady=STEADY_TOPICS, passing=PASSING_TOPICS)


# The load


class Tasks:
    """Threads that repeat a task each, until their connections break."""

    def __init__(self, tasks: Iterable[Callable[[random.Random], None]], chance: random.Random) -> None:
        self.stopping = threading.Event()
        self.violations: list[Exception] = []
        self.broken: list[Exception] = []  # what has ended tasks: a kill, or a broker that is too slow
        self._threads = [
            threading.Thread(target=self._repeat, args=(task, random.Random(chance.random())), daemon=True)
            for task in tasks
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _repeat(self, task: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            while not self.stopping.is_set():
                task(chance)
        except BROKEN as error:
            self.broken.append(error)
        except Exception as error:
            self.violations.append(error)

    def ended(self) -> None:
        """Wait for the threads, and raise what went wrong in them."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(30)
        if self.violations:
            raise self.violations[0]


class Load:
    """Threads that do everything at once, until their connections break."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, chance: random.Random, pace: Pace = FAST) -> None:
        self.nsqd = nsqd
        self.ledger = ledger
        self.pace = pace
        self.violations: list[Exception] = []
        self.stopping = threading.Event()
        jobs = [self._publish] * pace.publishers + [self._consume] * pace.consumers + [self._operate]
        jobs += [self._consume_over_http] * pace.http_consumers
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
                except Undecided:
                    self.ledger.undecided += 1
                    self.stopping.wait(0.005)
        except Exception as error:
            self.violations.append(error)

    def go_on_until(self, is_enough: Callable[[], bool]) -> None:
        """Let it go on until this is so, or something is wrong, which `ended` raises."""
        deadline = time.monotonic() + BUSY_TIMEOUT
        while not (is_enough() or self.violations):
            self.stopping.wait(0.005)
            assert time.monotonic() < deadline, "the load has come to a standstill"

    def ended(self) -> None:
        """Wait for all threads, which end when nsqd is gone. Raise what went wrong in one of them."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(30)
        if self.violations:
            raise self.violations[0]

    # Publishing

    def _publish(self, chance: random.Random) -> None:
        with Client(self.nsqd.tcp) as client:
            while not self.stopping.is_set():
                topic = self.ledger.topics[chance.choice([*self.ledger.topics])]
                if topic.passing:
                    with topic.busy:
                        if topic.there:
                            self._publish_once(client, topic, chance)
                else:
                    self._publish_once(client, topic, chance)
                self.stopping.wait(chance.uniform(0, self.pace.longest_pause))

    def _publish_once(self, client: Client, topic: Topic, chance: random.Random) -> None:
        kind = chance.choice(("PUB", "PUB", "MPUB", "DPUB"))
        delay = chance.randrange(self.pace.longest_delay) if kind == "DPUB" else 0
        numbers = self.ledger.sending(chance.randint(2, 10) if kind == "MPUB" else 1, delay / 1000)
        bodies = [b"%d %b" % (number, b"." * chance.choice((0, 100, 3000))) for number in numbers]
        command = {
            "PUB": lambda: pub(topic.name, bodies[0]),
            "MPUB": lambda: mpub(topic.name, bodies),
            "DPUB": lambda: dpub(topic.name, delay, bodies[0]),
        }[kind]()
        try:
            answer = client.ask(command)
        except Refused as refused:
            self.ledger.answered_refused(numbers, str(refused))
        else:
            assert answer == b"OK", answer
            self.ledger.answered_ok(topic, numbers)

    # Consuming

    def _consume(self, chance: random.Random) -> None:
        found = _pick_channel(self.ledger, chance)
        if found is None:
            self.stopping.wait(0.01)
            return
        topic, channel = found
        with Consumer(self.nsqd.tcp) as client:
            with topic.busy:  # SUB would create a topic again that has just been deleted
                if topic.channels.get(channel.name) is not channel:
                    return
                self._subscribe(client, topic, channel.name)
            client.send(rdy(chance.choice((1, 10, 100))))
            until = time.monotonic() + chance.uniform(0.05, 0.4)
            consume(client, channel, self.ledger, chance, until=until, longest_delay=self.pace.longest_delay)

    def _consume_over_http(self, chance: random.Random) -> None:
        found = _pick_channel(self.ledger, chance)
        if found is None:
            self.stopping.wait(0.01)
            return
        topic, channel = found
        with HttpConsumer(self.nsqd.http_address, topic.name, channel.name) as consumer:
            until = time.monotonic() + chance.uniform(0.05, 0.4)
            while time.monotonic() < until:
                with topic.busy:  # see `_consume`
                    if topic.channels.get(channel.name) is not channel:
                        return
                    messages = consumer.take(chance.choice((1, 10, 100)), lease="10s")
                try:
                    answer_over_http(consumer, channel, self.ledger, chance, messages, self.pace.longest_delay)
                except HttpRefused as refused:
                    with topic.busy:
                        was_deleted = topic.channels.get(channel.name) is not channel or channel.leaving
                    if refused.status != HTTPStatus.NOT_FOUND or not was_deleted:
                        raise
                    return

    def _subscribe(self, client: Client, topic: Topic, channel: str) -> None:
        """Subscribe. After the OK the channel exists, and has to survive."""
        sent_at = time.monotonic()
        try:
            answer = client.ask(sub(topic.name, channel))
        except Refused as refused:
            if self.ledger.was_sick(sent_at):
                raise Undecided(str(refused)) from refused
            raise
        assert answer == b"OK", answer

    # Operating

    def _operate(self, chance: random.Random) -> None:
        while not self.stopping.is_set():
            topic = self.ledger.topics[chance.choice([*self.ledger.topics])]
            with topic.busy:
                if topic.there is None:
                    pass  # the next start says whether it is there
                elif topic.passing and (not topic.there or chance.random() < 0.1):
                    self._create_or_delete_topic(topic)
                elif chance.random() < 0.05:
                    self._empty_topic(topic)
                else:
                    name = chance.choice(PASSING_CHANNELS + (() if topic.passing else STEADY_CHANNELS))
                    self._change(topic, name, chance)
            self.stopping.wait(chance.uniform(0, 0.02))

    def _post(self, path: str) -> None:
        """Send a POST, and return when nsqd has promised the change."""
        sent_at = time.monotonic()
        answer = self.nsqd.http("POST", path)
        if answer.status == 500 and self.ledger.was_sick(sent_at):
            raise Undecided(path)
        assert answer.status == 200, (path, answer)

    def _create_or_delete_topic(self, topic: Topic) -> None:
        verb = "delete" if topic.there else "create"
        self.ledger.topic_changing(topic)
        self._post(f"/topic/{verb}?topic={topic.name}")
        self.ledger.topic_changed(topic, there=verb == "create")

    def _empty_topic(self, topic: Topic) -> None:
        """Empty a topic of what waits for a first channel; messages that channels have got stay.

        Only where nobody publishes and no pause holds messages back, or nobody could tell which ones are meant.
        """
        if topic.passing and topic.paused is False:
            self.ledger.emptying_topic(topic)
            self._post(f"/topic/empty?topic={topic.name}")

    def _change(self, topic: Topic, name: str, chance: random.Random) -> None:
        channel = topic.channels.get(name)
        if channel is None:
            self._create_channel(topic, name, chance)
        elif channel.is_open:
            pass  # the next start says whether it is there
        elif name in PASSING_CHANNELS and chance.random() < 0.2:
            self._delete_channel(topic, channel)
        elif chance.random() < 0.1:
            self._empty_channel(topic, channel)
        elif chance.random() < 0.5:
            self._pause(topic, channel)
        else:
            self._pause(topic, None)

    def _create_channel(self, topic: Topic, name: str, chance: random.Random) -> None:
        channel = Channel(name)
        self.ledger.channel_comes(topic, channel)
        if chance.random() < 0.5:
            self._post(f"/channel/create?topic={topic.name}&channel={name}")
        else:
            with Client(self.nsqd.tcp) as client:
                self._subscribe(client, topic, name)
        self.ledger.channel_is_there(topic, channel)

    def _delete_channel(self, topic: Topic, channel: Channel) -> None:
        self.ledger.channel_goes(channel)
        self._post(f"/channel/delete?topic={topic.name}&channel={channel.name}")
        self.ledger.channel_is_gone(topic, channel)

    def _empty_channel(self, topic: Topic, channel: Channel) -> None:
        going = self.ledger.emptying(topic, channel)
        self._post(f"/channel/empty?topic={topic.name}&channel={channel.name}")
        self.ledger.emptied(channel, going)

    def _pause(self, topic: Topic, channel: Channel | None) -> None:
        target = channel or topic
        verb = "unpause" if target.paused else "pause"
        self.ledger.pausing(target)
        where = (
            f"channel/{verb}?topic={topic.name}&channel={channel.name}"
            if channel
            else f"topic/{verb}?topic={topic.name}"
        )
        self._post(f"/{where}")
        self.ledger.pause_is(target, verb == "pause")


def _pick_channel(ledger: Ledger, chance: random.Random) -> tuple[Topic, Channel] | None:
    with ledger.lock:
        found = [
            (topic, channel)
            for topic in ledger.topics.values()
            if topic.there
            for channel in topic.channels.values()
            if not channel.is_open and not channel.paused
        ]
    return chance.choice(found) if found else None


def consume(
    client: Client, channel: Channel, ledger: Ledger, chance: random.Random, *, until: float, longest_delay: int
) -> None:
    """Consume until the connection breaks, and answer in random ways.

    Now and then it makes sure that nsqd has carried out all its answers.
    """
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
            delay = chance.choice((0, chance.randrange(longest_delay)))
            requeues.append(ledger.requeueing(channel, number, delay / 1000))
            client.send(req(message.id, delay))
        elif luck < 0.98:
            client.send(touch(message.id))
        if len(requeues) >= 5:
            client.in_step()
            for requeue in requeues:
                requeue.heeded_at = time.monotonic()
            requeues.clear()


# Between two lives


def check_shape(nsqd: Nsqd, ledger: Ledger) -> None:
    """Check that every answered change holds, and settle open ones by what is found."""
    found = {it["topic_name"]: it for it in nsqd.stats()["topics"]}
    if unknown := found.keys() - ledger.topics.keys():
        raise Violation(f"topics from nowhere: {unknown}")
    for topic in ledger.topics.values():
        there = topic.name in found
        if topic.there is not None and topic.there != there:
            _check_forgotten_topic(ledger, topic, there=there)
        topic.there = there
        if not there:
            topic.forget()
            continue
        kept = ledger.change_is_kept(topic.paused_at)
        topic.paused = _agreed(topic.paused, found[topic.name]["paused"], kept, f"pause of topic {topic.name}")
        _check_channels(ledger, topic, {it["channel_name"]: it for it in found[topic.name]["channels"]})


def _check_forgotten_topic(ledger: Ledger, topic: Topic, *, there: bool) -> None:
    """Only a creation may be forgotten, and only if the topic held nothing that has to be there."""
    if there or ledger.change_is_kept(topic.there_at):
        raise Violation(f"topic {topic.name} is {'there' if there else 'missing'}")
    if topic.backlog or any(channel.required for channel in topic.channels.values()):
        raise Violation(f"topic {topic.name} is missing, and had messages")


def _check_channels(ledger: Ledger, topic: Topic, found: dict[str, dict[str, bool]]) -> None:
    if unknown := found.keys() - topic.channels.keys():
        raise Violation(f"channels from nowhere on {topic.name}: {unknown}")
    for channel in list(topic.channels.values()):
        label = f"channel {topic.name}/{channel.name}"
        if channel.name not in found:
            if not channel.is_open:
                _check_forgotten_channel(ledger, topic, channel)
            ledger.channel_is_gone(topic, channel)
            continue
        channel.leaving = False
        kept = ledger.change_is_kept(channel.paused_at)
        channel.paused = _agreed(channel.paused, found[channel.name]["paused"], kept, f"pause of {label}")
        if channel.there_since == OPEN:
            ledger.channel_is_there(topic, channel)
        elif channel.owed_since == OPEN:
            channel.owed_since = time.monotonic()


def _check_forgotten_channel(ledger: Ledger, topic: Topic, channel: Channel) -> None:
    """Check that only the creation may have been forgotten, with nothing sent to the channel since.

    The messages that it found waiting wait again.
    """
    label = f"channel {topic.name}/{channel.name} is missing"
    if ledger.change_is_kept(channel.there_since):
        raise Violation(label)
    if later := {it for it in channel.required if ledger.messages[it].sent_at >= channel.there_since}:
        raise Violation(f"{label}, and with it {len(later)} messages that were sent when it was there")
    ledger.count_lost(channel)
    topic.backlog |= channel.required


def _agreed(known: bool | None, found: bool, kept: bool, what: str) -> bool:
    if known is not None and known != found and (kept or known):  # of pauses, only an end may be forgotten
        raise Violation(f"{what} is {found}, not {known}")
    return found


def set_up(nsqd: Nsqd, ledger: Ledger) -> None:
    for topic in ledger.topics.values():
        if topic.passing:
            continue
        nsqd.post(f"/topic/create?topic={topic.name}")
        ledger.topic_changed(topic, there=True)
        for name in STEADY_CHANNELS:
            nsqd.post(f"/channel/create?topic={topic.name}&channel={name}")
            topic.channels[name] = channel = Channel(name)
            ledger.channel_is_there(topic, channel)


def drain(nsqd: Nsqd, ledger: Ledger) -> None:
    """Consume and finish everything that is left, and check that nothing is missing.

    Messages that are excused and do not come count as lost.
    """
    missing: list[str] = []
    for topic in ledger.topics.values():
        if not topic.there:
            continue
        nsqd.post(f"/topic/unpause?topic={topic.name}")
        if topic.backlog:
            nsqd.post(f"/channel/create?topic={topic.name}&channel=late")
            topic.channels["late"] = late = Channel("late")
            ledger.channel_is_there(topic, late)
        for channel in topic.channels.values():
            nsqd.post(f"/channel/unpause?topic={topic.name}&channel={channel.name}")
            with Client(nsqd.tcp) as client:
                client.subscribe(topic.name, channel.name, ready=1000)
                _drain_channel(nsqd, ledger, topic, channel, client)
            ledger.count_lost(channel)
            missing += [
                f"{topic.name}/{channel.name} {number}: {ledger.history(channel, number)}"
                for number in sorted(channel.required)
            ]
    if missing:
        raise Violation(f"{len(missing)} messages of channels are lost:\n" + "\n".join(missing[:20]))


def _drain_channel(nsqd: Nsqd, ledger: Ledger, topic: Topic, channel: Channel, client: Client) -> None:
    deadline = time.monotonic() + DRAIN_TIMEOUT
    while True:
        try:
            message = client.message(0.02)
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


def check_nothing_is_left(nsqd: Nsqd) -> None:
    """Check that nothing is left after a drain and a clean stop."""
    if left := [channel for channel in _channels(nsqd) if channel["depth"] or channel["deferred_count"]]:
        raise Violation(f"finished messages came back: {left}")


def _channels(nsqd: Nsqd) -> Iterator[dict[str, int]]:
    for topic in nsqd.stats()["topics"]:
        yield from topic["channels"]


def log_of(nsqd: Nsqd) -> str:
    """Return the end of nsqd's log, without the answers that make sure that commands were carried out."""
    return "\n".join([line for line in nsqd.log.splitlines() if "f" * 16 not in line][-100:])
