"""Clients of one owner of a node: they publish in all ways, consume, and read history, and note it in the ledger."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from nsqcommon.wire.commands import dpub, fin, mpub, pub, rdy, req
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.message import Message
from tests.failover.ledger import Ledger, Place, Violation
from tests.support.client import Client, Refused
from tests.support.process import Nsqd
from tests.support.traffic import BROKEN, Consumer

PUBLISHERS: Final = 3
OTHER_PUBLISHERS: Final = 1  # to topics that don't wait for the store
KEYED_PUBLISHERS: Final = 2
LONGEST_DELAY: Final = 400  # ms
PATIENCE: Final = 120.0  # seconds, on a busy machine
_READY: Final = (1, 20, 200)
_PAUSE: Final = 0.02  # seconds, at most, between two publishes
_TICK: Final = 0.02
_PAGE: Final = 2000
_FAILED: Final = ("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED")


class Load:
    """Clients that go on until their owner is gone, or doesn't own the node any more.

    With `is_refused` a publish may get an error, as one does while the store is away. Without, it is a violation.
    """

    def __init__(
        self, nsqd: Nsqd, ledger: Ledger, chance: random.Random, *, is_refused: bool = False, reads: bool = True
    ) -> None:
        self.first_ok: float | None = None  # when the first publish was answered
        self.acknowledged = 0  # messages, by this owner
        self._nsqd = nsqd
        self._ledger = ledger
        self._life = ledger.life
        self._is_refused = is_refused
        self._violations: list[Exception] = []
        self._stopping = threading.Event()
        jobs: list[Callable[[random.Random], None]] = [partial(self._publish, ledger.waiting_topics)] * PUBLISHERS
        jobs += [partial(self._publish, ledger.other_topics)] * OTHER_PUBLISHERS
        jobs += [self._publish_with_keys] * KEYED_PUBLISHERS
        jobs += [partial(self._consume, topic, channel) for topic in ledger.topics for channel in ledger.channels]
        jobs += [partial(self._read, topic) for topic in ledger.topics if reads]
        jobs += [self._measure_lateness]
        self._threads = [
            threading.Thread(target=self._guarded, args=(job, random.Random(chance.random())), daemon=True)
            for job in jobs
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, job: Callable[[random.Random], None], chance: random.Random) -> None:
        while not self._stopping.is_set():
            try:
                job(chance)
            except BROKEN:
                self._stopping.wait(_TICK)
            except Exception as error:
                self._violations.append(error)
                return

    def raise_violation(self) -> None:
        if self._violations:
            raise self._violations[0]

    def go_on_until(self, is_enough: Callable[[], bool], timeout: float = PATIENCE) -> None:
        """Let it go on until this is so. Raise what is wrong."""
        deadline = time.monotonic() + timeout
        while not is_enough():
            self.raise_violation()
            assert time.monotonic() < deadline, "the load has come to a standstill"
            self._stopping.wait(0.002)

    def go_on_for(self, messages: int) -> None:
        """Let it go on until this owner has acknowledged so many messages."""
        self.go_on_until(lambda: self.acknowledged >= messages)

    def stop(self) -> None:
        """Have the clients end by themselves. Those that wait for an answer go on until there is one, or no owner."""
        self._stopping.set()

    def ended(self) -> None:
        """Wait for all clients, whose owner is gone. Raise what went wrong for one of them."""
        self.stop()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client hasn't noticed that its owner is gone"
        self.raise_violation()

    # Publishing

    def _publish(self, topics: tuple[str, ...], chance: random.Random) -> None:
        with Client(self._nsqd.tcp) as client:
            while not self._stopping.is_set():
                topic = chance.choice(topics)
                kind = chance.choice(("PUB", "PUB", "MPUB", "DPUB"))
                delay = chance.randrange(LONGEST_DELAY) if kind == "DPUB" else 0
                numbers = self._ledger.sending(
                    topic, chance.randint(2, 20) if kind == "MPUB" else 1, delay=delay / 1000
                )
                bodies = [_body(number, chance) for number in numbers]
                if kind == "DPUB":
                    command = dpub(topic, delay, bodies[0])
                else:
                    command = mpub(topic, bodies) if kind == "MPUB" else pub(topic, bodies[0])
                if not self._is_acknowledged(client, command, numbers):
                    return
                self._stopping.wait(chance.uniform(0, _PAUSE))

    def _publish_with_keys(self, chance: random.Random) -> None:
        """Publish with keys, and repeat what got no answer, perhaps from another owner."""
        with Client(self._nsqd.tcp) as client:
            client.identify(feature_negotiation=True, extensions=["keys"])
            while not self._stopping.is_set():
                number = self._ledger.take_unanswered()
                if number is None:
                    topic, key = chance.choice(self._ledger.waiting_topics), b"k%x" % chance.getrandbits(60)
                    (number,) = self._ledger.sending(topic, 1, key=key)
                sent = self._ledger.messages[number]
                body = _body(number, chance)
                command = b"PUB %b %b\n%b%b" % (sent.topic.encode(), sent.key, len(body).to_bytes(4, "big"), body)
                is_answered = False
                try:
                    is_answered = self._is_acknowledged(client, command, [number])
                finally:
                    if not is_answered:
                        self._ledger.send_again(number)
                if not is_answered:
                    return
                self._stopping.wait(chance.uniform(0, _PAUSE))

    def _is_acknowledged(self, client: Client, command: bytes, numbers: list[int]) -> bool:
        try:
            answer = client.ask(command)
        except Refused as refusal:
            if not self._is_refused or not str(refusal).startswith(_FAILED):
                raise
            self._ledger.refused()
            self._stopping.wait(_TICK)
            return False
        assert answer == b"OK", answer
        self._ledger.answered(numbers, self._life)
        self.acknowledged += len(numbers)
        if self.first_ok is None:
            self.first_ok = time.monotonic()
        return True

    # Consuming

    def _consume(self, topic: str, channel: str, chance: random.Random) -> None:
        with subscribed(self._nsqd, topic, channel) as client:
            client.send(rdy(chance.choice(_READY)))
            consumer = _Answers(client, self._ledger, channel, self._life, chance)
            while not self._stopping.is_set():
                try:
                    consumer.answer(client.message(_TICK))
                except TimeoutError:
                    continue
            consumer.leave()

    # Reading history

    def _read(self, topic: str, chance: random.Random) -> None:
        place = 0
        while not self._stopping.is_set():
            log, stored, place = read_history(self._nsqd, self._ledger, topic, place)
            for sequence, number in stored:
                self._ledger.read(topic, log, sequence, number)
            self._stopping.wait(chance.uniform(0, 0.2))

    # The machine

    def _measure_lateness(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            time.sleep(_TICK)  # not for something: how long it takes is the question
            self._ledger.lateness = max(self._ledger.lateness, time.monotonic() - began - _TICK)


class _Answers:
    """What one consumer does with its messages."""

    def __init__(self, client: Consumer, ledger: Ledger, channel: str, life: int, chance: random.Random) -> None:
        self._client = client
        self._ledger = ledger
        self._channel = channel
        self._life = life
        self._chance = chance
        self._kept: list[tuple[int, Message]] = []  # in flight, as long as the consumer is there
        self._unsure: list[Place] = []  # requeued or buried, and perhaps not carried out

    def answer(self, message: Message) -> None:
        client, chance = self._client, self._chance
        number = self._ledger.arrived(self._channel, message, self._life)
        luck = chance.random()
        if luck < 0.85:
            self._finish(number, message)
        elif luck < 0.95:
            self._requeue(number, message, chance.choice((0, chance.randrange(LONGEST_DELAY))))
        elif luck < 0.99:
            self._unsure.append(self._ledger.burying(self._channel, number, self._life))
            client.send(bury(message.id, "bad"))
        else:
            self._kept.append((number, message))
        if len(self._unsure) >= 5:
            self._make_sure()

    def _finish(self, number: int, message: Message) -> None:
        self._client.send(fin(message.id))
        self._ledger.finishing(self._channel, number, self._life)

    def _requeue(self, number: int, message: Message, delay: int) -> None:
        self._unsure.append(self._ledger.requeueing(self._channel, number, delay / 1000, self._life))
        self._client.send(req(message.id, delay))

    def _make_sure(self) -> None:
        self._client.in_step()
        for place in self._unsure:
            place.heeded_at = time.monotonic()
        self._unsure.clear()

    def leave(self) -> None:
        """Leave nothing in flight, because what is would come back to the channel a minute later."""
        self._client.send(rdy(0))
        self._client.in_step()
        while (message := self._client.kept_message()) is not None:
            self._finish(self._ledger.arrived(self._channel, message, self._life), message)
        for number, message in self._kept:
            self._requeue(number, message, 0)
        self._make_sure()


def subscribed(nsqd: Nsqd, topic: str, channel: str) -> Consumer:
    """Connect a consumer that may bury messages."""
    client = Consumer(nsqd.tcp)
    try:
        client.identify(feature_negotiation=True, extensions=["bury"])
        client.subscribe(topic, channel)
    except BaseException:
        client.close()
        raise
    return client


def read_history(nsqd: Nsqd, ledger: Ledger, topic: str, place: int) -> tuple[str, list[tuple[int, int]], int]:
    """Return the id of a topic's log, and sequences and numbers of messages from this place on; and the next place."""
    found = nsqd.http("GET", f"/topic/log?topic={topic}").json
    stop = min(found["next"], place + _PAGE)
    if found["first"] >= stop or place >= stop:
        return found["log"], [], max(place, found["first"])
    place = max(place, found["first"])
    answer = nsqd.http("GET", f"/topic/read?topic={topic}&from={place}&to={stop}")
    if answer.status == 410:  # retention has removed them in between
        return found["log"], [], place
    assert answer.status == 200, answer
    lines = [json.loads(line) for line in answer.body.splitlines()]
    if gaps := [it for it in lines if "gap" in it and not ledger.is_reported(topic, *it["gap"])]:
        raise Violation(f"{topic} has gaps: {gaps}")
    stored = [(it["sequence"], int(it["body"].split()[0])) for it in lines if "body" in it]
    return found["log"], stored, lines[-1].get("next", stop)


def _body(number: int, chance: random.Random) -> bytes:
    return b"%d %b" % (number, b"." * chance.choice((0, 0, 100, 3000)))
