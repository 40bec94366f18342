"""kill -9 of a real nsqd while messages are buried, wait for their next attempt, are kicked, discarded and redelivered.

Topic t has two channels: the consumers of `work` fail in all ways, and those of `other` finish everything. Whatever is
kicked on `work` must not reach `other`.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from nsqcommon.wire.commands import fin, mpub, rdy, req
from nsqcommon.wire.extensions import bury, req_free
from nsqcommon.wire.message import Message
from tests.simulation.buried_ledger import ChannelLedger, Listed, Place
from tests.simulation.promise import Violation
from tests.support.process import Nsqd
from tests.support.traffic import Consumer, Tasks

MAX_ATTEMPTS: Final = 3
POLICY: Final = f"""
[[policy]]
channel = "work"
max_attempts = {MAX_ATTEMPTS}
backoff = "exponential"
backoff_min = "20ms"
backoff_max = "200ms"
"""
SHORT_SEGMENTS: Final = "max-bytes-per-file=65536"  # so that they go, and buried messages are compacted
# How many messages are buried before a kill. Before a late one, an operator has also tried everything once.
EARLY: Final = range(20)
LATE: Final = range(20, 200)
_FEW: Final = 5  # messages that each first action takes, so that it leaves some of the 20 for the next
_BUSY_TIMEOUT: Final = 120.0  # for that, on a busy machine
_MSG_TIMEOUT: Final = 3_000  # milliseconds; on a busy machine an answer may take more than a second
_PAGE: Final = 5_000
_CHANNEL: Final = "topic=t&channel=work"


VERBS: Final = ("buried", "kicked", "discarded", "redelivered")


class Outcome:
    def __init__(self) -> None:
        self.work = ChannelLedger("work", MAX_ATTEMPTS)
        self.other = ChannelLedger("other", None)
        self.kills = 0
        self.numbers = itertools.count(1)

    def __str__(self) -> str:
        counts = self.work.counts
        acknowledged = sum(known.is_acknowledged for known in self.work.known.values())
        done = ", ".join(f"{counts[what]:,} {what}" for what in ("deliveries", *VERBS))
        return f"{self.kills} kills: {acknowledged:,} messages acknowledged, {done}; 0 lost, 0 where they should not be"


def run(
    folder: Path,
    outcome: Outcome,
    *,
    kills: int,
    seed: int,
    environ: Mapping[str, str] | None = None,
    after_kill: Callable[[], None] = lambda: None,
) -> None:
    """Kill nsqd so often. Raise AssertionError, with the seed and the log, if something is wrong.

    `after_kill` is called after each start that has found every message where it should be.
    """
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    chance = random.Random(seed)
    with Nsqd(folder / "data", f"policy-file={policy}", SHORT_SEGMENTS, environ=environ) as nsqd:
        try:
            nsqd.post("/topic/create?topic=t")
            for name in ("work", "other"):
                nsqd.post(f"/channel/create?topic=t&channel={name}")
            for number in range(kills):
                load = _Load(nsqd, outcome, chance)
                load.go_on_for(chance.choice(EARLY if number % 3 == 2 else LATE))
                killed_at = time.monotonic()
                nsqd.kill()
                load.ended()
                for ledger in (outcome.work, outcome.other):
                    ledger.ended(killed_at)
                outcome.kills += 1
                nsqd.start()
                _compare(nsqd, outcome.work)
                after_kill()
            _check_the_end(nsqd, outcome)
        except Exception as error:
            log = "\n".join(nsqd.log.splitlines()[-60:])
            raise AssertionError(f"{log}\n\nkill {outcome.kills}, seed {seed}: {error!r}") from error


class _Load:
    """Threads that go on until their connections break."""

    def __init__(self, nsqd: Nsqd, outcome: Outcome, chance: random.Random) -> None:
        self._has_operated = threading.Event()
        self._nsqd = nsqd
        self._outcome = outcome
        tasks = (self._publish, self._fail, self._fail, self._finish, self._operate)
        self._tasks = Tasks(tasks, chance)
        self.stopping = self._tasks.stopping
        self._tasks.start()

    def go_on_for(self, buried: int) -> None:
        """Let it go on until so many messages were buried, or something is wrong, which `ended` raises."""
        goal, deadline = self._outcome.work.counts["buried"] + buried, time.monotonic() + _BUSY_TIMEOUT
        while not self._tasks.violations:
            has_operated = self._has_operated.is_set() or buried in EARLY
            if has_operated and self._outcome.work.counts["buried"] >= goal:
                return
            assert time.monotonic() < deadline, "the load has come to a standstill"
            self.stopping.wait(0.005)

    def ended(self) -> None:
        self._tasks.ended()

    def _publish(self, chance: random.Random) -> None:
        outcome = self._outcome
        with Consumer(self._nsqd.tcp) as client:
            while not self.stopping.is_set():
                numbers = [next(outcome.numbers) for _ in range(chance.randint(1, 10))]
                outcome.work.sending(numbers)
                outcome.other.sending(numbers)
                command = mpub("t", [b"%d %b" % (number, b"." * chance.choice((0, 300))) for number in numbers])
                assert client.ask(command) == b"OK"
                outcome.work.acknowledged(numbers)
                outcome.other.acknowledged(numbers)
                self.stopping.wait(chance.uniform(0, 0.02))

    def _finish(self, chance: random.Random) -> None:
        with _consumer(self._nsqd, "other", 100) as client:
            while not self.stopping.is_set():
                _finish_next(client, self._outcome.other, chance.uniform(0, 0.05))

    # The channel that fails

    def _fail(self, chance: random.Random) -> None:
        """Consume for a while, and then leave without anything unread."""
        ledger = self._outcome.work
        with _consumer(self._nsqd, "work", chance.choice((1, 10, 50))) as client:
            until = time.monotonic() + chance.uniform(0.05, 0.4)
            while time.monotonic() < until:
                try:
                    message = client.message(0.02)
                except TimeoutError:
                    continue
                _answer(client, ledger, [message, *_unread(client, chance.choice((0, 5)))], chance)
            client.send(rdy(0))
            client.in_step()
            _answer(client, ledger, _unread(client, 1_000_000), chance)

    # Operators

    def _operate(self, chance: random.Random) -> None:
        if not self._has_operated.is_set():  # before a kick of all, after which it is open where the others are
            for operate in (self._discard, self._kick, self._redeliver):
                operate(chance.randint(1, _FEW))
            self._has_operated.set()
        self.stopping.wait(chance.uniform(0, 0.1))
        luck = chance.random()
        # Not before each of the others has found something: a kick of all goes on in the next life.
        if luck < 0.35 and all(self._outcome.work.counts[verb] for verb in VERBS):
            self._kick_all(chance)
        elif luck < 0.6:
            self._kick(chance.randint(0, 20))
        elif luck < 0.8:
            self._discard(chance.randint(0, 20))
        else:
            self._redeliver(chance.randint(0, 5))

    def _kick(self, most: int) -> None:
        self._take(self._outcome.work.some(Place.BURIED, most), Place.BURIED, Place.DUE, "kick", "kicked")

    def _discard(self, most: int) -> None:
        self._take(self._outcome.work.some(Place.BURIED, most), Place.BURIED, Place.GONE, "discard", "discarded")

    def _redeliver(self, most: int) -> None:
        self._take(self._outcome.work.some(Place.GONE, most), Place.GONE, Place.DUE, "redeliver", "redelivered")

    def _kick_all(self, chance: random.Random) -> None:
        self._outcome.work.kicking_all()
        answer = self._nsqd.http("POST", f"/channel/kick?{_CHANNEL}&rate={chance.choice((0, 50, 500))}")
        assert answer.status in {200, 409}, answer  # a job is under way
        self._outcome.work.kicked_all()

    def _take(self, messages: dict[int, int], frm: Place, to: Place, verb: str, what: str) -> None:
        if messages:
            versions = self._outcome.work.taking(messages, to)
            query = urlencode({"sequence": [*messages.values()]}, doseq=True)
            answer = self._nsqd.http("POST", f"/channel/{verb}?{_CHANNEL}&{query}")
            assert answer.status == 200, answer
            outdated = answer.json.get("gone", 0)
            self._outcome.work.taken(versions, frm, what, answer.json[what], outdated=outdated)


def _consumer(nsqd: Nsqd, channel: str, ready: int) -> Consumer:
    client = Consumer(nsqd.tcp)
    try:
        client.identify(feature_negotiation=True, extensions=["bury"], msg_timeout=_MSG_TIMEOUT)
        client.subscribe("t", channel, ready=ready)
    except BaseException:
        client.close()
        raise
    return client


def _unread(client: Consumer, most: int) -> list[Message]:
    """Return messages that have come already."""
    return [client._messages.popleft() for _ in range(min(most, len(client._messages)))]


def _number(message: Message) -> int:
    return int(message.body.partition(b" ")[0])


def _answer(client: Consumer, ledger: ChannelLedger, messages: Iterable[Message], chance: random.Random) -> None:
    """Answer in random ways. What may have buried a message is made sure of."""
    buried: list[tuple[int, int]] = []
    for message in messages:
        number = _number(message)
        version = ledger.arrived(number, message.attempts)
        luck = chance.random()
        if luck < 0.5:
            ledger.finishing(number)
            client.send(fin(message.id))
        elif luck < 0.75:
            ledger.burying(number)
            client.send(bury(message.id, f"bad {number % 5}"))
            buried.append((number, version))
        elif luck < 0.9:
            if ledger.requeueing(number):
                buried.append((number, version))
            client.send(req(message.id, chance.choice((0, 0, 30))))
        elif luck < 0.98:
            ledger.requeueing_free(number)
            client.send(req_free(message.id, chance.choice((0, 0, 30))))
        else:
            ledger.keeping(number)
    if buried:
        client.in_step()
        for number, version in buried:
            ledger.buried(number, version)


def _finish_next(client: Consumer, ledger: ChannelLedger, timeout: float) -> bool:
    try:
        message = client.message(timeout)
    except TimeoutError:
        return False
    ledger.arrived(_number(message), message.attempts)
    ledger.finishing(_number(message))
    client.send(fin(message.id))
    return True


# Between two lives


def _listed(nsqd: Nsqd) -> list[Listed]:
    found: list[Listed] = []
    after = ""
    while True:
        answer = nsqd.http("GET", f"/channel/buried?{_CHANNEL}&limit={_PAGE}{after}")
        assert answer.status == 200, answer
        lines = [json.loads(line) for line in answer.body.splitlines()]
        if unread := [line for line in lines if "body" not in line]:
            raise Violation(f"buried messages cannot be read: {unread[:3]}")
        found += [Listed(int(it["body"].partition(" ")[0]), it["sequence"], it["attempts"]) for it in lines]
        if len(lines) < _PAGE:
            return found
        after = f"&after={found[-1].sequence}"


def _compare(nsqd: Nsqd, ledger: ChannelLedger, *, is_drained: bool = False) -> None:
    jobs = nsqd.http("GET", f"/channel/jobs?{_CHANNEL}").json["jobs"]  # first, as it may end in between
    job_is_under_way = any(job["ended_at"] is None for job in jobs)
    ledger.compare(_listed(nsqd), job_is_under_way=job_is_under_way, is_drained=is_drained)


def _drain(nsqd: Nsqd, name: str, ledger: ChannelLedger) -> None:
    deadline = time.monotonic() + 60
    with _consumer(nsqd, name, 100) as client:
        while True:
            if _finish_next(client, ledger, 0.05):
                continue
            client.in_step()
            left = nsqd.channel("t", name)
            if not any(left[count] for count in ("depth", "in_flight_count", "deferred_count")):
                return
            if time.monotonic() > deadline:
                raise Violation(f"{name} does not run dry: {left}")


def _check_the_end(nsqd: Nsqd, outcome: Outcome) -> None:
    work = outcome.work
    nsqd.post(f"/channel/jobs/stop?{_CHANNEL}")
    _compare(nsqd, work)
    for name, ledger in (("work", work), ("other", outcome.other)):
        _drain(nsqd, name, ledger)
    _compare(nsqd, work, is_drained=True)
    for ledger in (work, outcome.other):
        if missing := ledger.missing():
            raise Violation(f"{ledger.name}: {len(missing)} messages are lost: {missing[:20]}")
    expected = {line.number for line in _listed(nsqd)}
    work.kicking_all()
    nsqd.post(f"/channel/kick?{_CHANNEL}")
    work.kicked_all()
    _drain(nsqd, "work", work)
    left = {number for number in expected if work.known[number].possible != {Place.GONE}}
    if left or nsqd.channel("t", "work").get("buried_count"):
        raise Violation(f"buried messages did not come back: {sorted(left)[:20]}")
    nsqd.restart()
    for name in ("work", "other"):
        if (shown := nsqd.channel("t", name))["depth"]:
            raise Violation(f"finished messages came back: {shown}")
