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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from nsqcommon.wire.commands import fin, mpub, rdy, req
from nsqcommon.wire.extensions import bury, req_free
from nsqcommon.wire.message import Message
from tests.simulation.buried_ledger import ChannelLedger, Listed, Place
from tests.simulation.killing import KillRun, Load, check_nothing_comes_back, consumer, drain, unread
from tests.simulation.promise import Violation
from tests.support.process import Nsqd
from tests.support.traffic import Consumer

MAX_ATTEMPTS: Final = 3
POLICY: Final = f"""
[[policy]]
channel = "work"
max_attempts = {MAX_ATTEMPTS}
backoff = "exponential"
backoff_min = "20ms"
backoff_max = "200ms"
"""
_FEW: Final = 5  # messages that each first action takes, so that it leaves some of the 20 for the next
_MSG_TIMEOUT: Final = 3_000  # milliseconds; on a busy machine an answer may take more than a second
_PAGE: Final = 5_000
_CHANNEL: Final = "topic=t&channel=work"


VERBS: Final = ("buried", "kicked", "discarded", "redelivered")


class BuryKills(KillRun):
    channels = ("work", "other")
    early = range(20)  # buried messages
    late = range(20, 200)  # and an operator has tried everything once

    def __init__(self) -> None:
        super().__init__()
        self.work = ChannelLedger("work", MAX_ATTEMPTS)
        self.other = ChannelLedger("other", None)
        self.numbers = itertools.count(1)

    def __str__(self) -> str:
        counts = self.work.counts
        acknowledged = sum(known.is_acknowledged for known in self.work.known.values())
        done = ", ".join(f"{counts[what]:,} {what}" for what in ("deliveries", *VERBS))
        return f"{self.kills} kills: {acknowledged:,} messages acknowledged, {done}; 0 lost, 0 where they should not be"

    def options(self, folder: Path) -> Sequence[str]:
        policy = folder / "policy.toml"
        policy.write_text(POLICY)
        return (f"policy-file={policy}",)

    def ledgers(self) -> Sequence[ChannelLedger]:
        return self.work, self.other

    def load(self, nsqd: Nsqd, chance: random.Random) -> Load:
        return _Load(nsqd, self, chance)

    def check_start(self, nsqd: Nsqd, chance: random.Random) -> None:
        _compare(nsqd, self.work)

    def check_end(self, nsqd: Nsqd) -> None:
        _check_the_end(nsqd, self)


class _Load(Load):
    def __init__(self, nsqd: Nsqd, run: BuryKills, chance: random.Random) -> None:
        self._has_operated = threading.Event()
        self._nsqd = nsqd
        self._run = run
        tasks = (self._publish, self._fail, self._fail, self._finish, self._operate)
        super().__init__(
            tasks,
            chance,
            lambda: run.work.counts["buried"],
            lambda buried: self._has_operated.is_set() or buried in run.early,
        )

    def _publish(self, chance: random.Random) -> None:
        run = self._run
        with Consumer(self._nsqd.tcp) as client:
            while not self.stopping.is_set():
                numbers = [next(run.numbers) for _ in range(chance.randint(1, 10))]
                run.work.sending(numbers)
                run.other.sending(numbers)
                command = mpub("t", [b"%d %b" % (number, b"." * chance.choice((0, 300))) for number in numbers])
                assert client.ask(command) == b"OK"
                run.work.acknowledged(numbers)
                run.other.acknowledged(numbers)
                self.stopping.wait(chance.uniform(0, 0.02))

    def _finish(self, chance: random.Random) -> None:
        with _consumer(self._nsqd, "other", 100) as client:
            while not self.stopping.is_set():
                _finish_next(client, self._run.other, chance.uniform(0, 0.05))

    # The channel that fails

    def _fail(self, chance: random.Random) -> None:
        """Consume for a while, and then leave without anything unread."""
        ledger = self._run.work
        with _consumer(self._nsqd, "work", chance.choice((1, 10, 50))) as client:
            until = time.monotonic() + chance.uniform(0.05, 0.4)
            while time.monotonic() < until:
                try:
                    message = client.message(0.02)
                except TimeoutError:
                    continue
                _answer(client, ledger, [message, *unread(client, chance.choice((0, 5)))], chance)
            client.send(rdy(0))
            client.in_step()
            _answer(client, ledger, unread(client), chance)

    # Operators

    def _operate(self, chance: random.Random) -> None:
        if not self._has_operated.is_set():  # before a kick of all, after which it is open where the others are
            for operate in (self._discard, self._kick, self._redeliver):
                operate(chance.randint(1, _FEW))
            self._has_operated.set()
        self.stopping.wait(chance.uniform(0, 0.1))
        luck = chance.random()
        # Not before each of the others has found something: a kick of all goes on in the next life.
        if luck < 0.35 and all(self._run.work.counts[verb] for verb in VERBS):
            self._kick_all(chance)
        elif luck < 0.6:
            self._kick(chance.randint(0, 20))
        elif luck < 0.8:
            self._discard(chance.randint(0, 20))
        else:
            self._redeliver(chance.randint(0, 5))

    def _kick(self, most: int) -> None:
        self._take(self._run.work.some(Place.BURIED, most), Place.BURIED, Place.DUE, "kick", "kicked")

    def _discard(self, most: int) -> None:
        self._take(self._run.work.some(Place.BURIED, most), Place.BURIED, Place.GONE, "discard", "discarded")

    def _redeliver(self, most: int) -> None:
        self._take(self._run.work.some(Place.GONE, most), Place.GONE, Place.DUE, "redeliver", "redelivered")

    def _kick_all(self, chance: random.Random) -> None:
        self._run.work.kicking_all()
        answer = self._nsqd.http("POST", f"/channel/kick?{_CHANNEL}&rate={chance.choice((0, 50, 500))}")
        assert answer.status in {200, 409}, answer  # a job is under way
        self._run.work.kicked_all()

    def _take(self, messages: dict[int, int], frm: Place, to: Place, verb: str, what: str) -> None:
        if messages:
            versions = self._run.work.taking(messages, to)
            query = urlencode({"sequence": [*messages.values()]}, doseq=True)
            answer = self._nsqd.http("POST", f"/channel/{verb}?{_CHANNEL}&{query}")
            assert answer.status == 200, answer
            outdated = answer.json.get("gone", 0)
            self._run.work.taken(versions, frm, what, answer.json[what], outdated=outdated)


def _consumer(nsqd: Nsqd, channel: str, ready: int) -> Consumer:
    return consumer(nsqd, channel, ready=ready, msg_timeout=_MSG_TIMEOUT)


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


def _finish_next(client: Consumer, ledger: ChannelLedger, timeout: float) -> None:
    with suppress(TimeoutError):
        _finish(client, ledger, client.message(timeout))


def _finish(client: Consumer, ledger: ChannelLedger, message: Message) -> None:
    ledger.arrived(_number(message), message.attempts)
    ledger.finishing(_number(message))
    client.send(fin(message.id))


# Between two lives


def _listed(nsqd: Nsqd) -> list[Listed]:
    found: list[Listed] = []
    after = ""
    while True:
        answer = nsqd.http("GET", f"/channel/buried?{_CHANNEL}&limit={_PAGE}{after}")
        assert answer.status == 200, answer
        lines = [json.loads(line) for line in answer.body.splitlines()]
        if unreadable := [line for line in lines if "body" not in line]:
            raise Violation(f"buried messages cannot be read: {unreadable[:3]}")
        found += [Listed(int(it["body"].partition(" ")[0]), it["sequence"], it["attempts"]) for it in lines]
        if len(lines) < _PAGE:
            return found
        after = f"&after={found[-1].sequence}"


def _compare(nsqd: Nsqd, ledger: ChannelLedger, *, is_drained: bool = False) -> None:
    jobs = nsqd.http("GET", f"/channel/jobs?{_CHANNEL}").json["jobs"]  # first, as it may end in between
    job_is_under_way = any(job["ended_at"] is None for job in jobs)
    ledger.compare(_listed(nsqd), job_is_under_way=job_is_under_way, is_drained=is_drained)


def _drain(nsqd: Nsqd, name: str, ledger: ChannelLedger) -> None:
    with _consumer(nsqd, name, 100) as client:
        drain(nsqd, name, client, partial(_finish, client, ledger))


def _check_the_end(nsqd: Nsqd, run: BuryKills) -> None:
    work = run.work
    nsqd.post(f"/channel/jobs/stop?{_CHANNEL}")
    _compare(nsqd, work)
    for name, ledger in (("work", work), ("other", run.other)):
        _drain(nsqd, name, ledger)
    _compare(nsqd, work, is_drained=True)
    for ledger in (work, run.other):
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
    check_nothing_comes_back(nsqd, run.channels)
