"""kill -9 of a real nsqd while consumers handle groups: in order, or with a limit and fair shares.

Topic t has two channels. On `ordered`, messages are requeued, time out, are buried and kicked, and the rules beside the
order change at run time. On `limited`, a few messages of each group may be in flight, and groups share.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from nsqcommon.wire.commands import fin, hmpub, rdy, req
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.headers import encode_headers
from nsqcommon.wire.message import Message
from tests.simulation.group_ledger import TIMES_OUT, GroupLedger, Name
from tests.simulation.promise import Violation
from tests.support.process import Nsqd
from tests.support.traffic import Consumer, Tasks

GROUPS: Final = tuple(f"group {number}" for number in range(12))  # the first one is larger than the others
LIMIT: Final = 2
BESIDE_THE_ORDER: Final = (
    "",
    'share = "group"',
    'share = "group"\nweights = {"group 0" = 3}',
    "max_held = 30",
    'share = "group"\nmax_held = 30',
)
EARLY: Final = range(1, 40)  # deliveries of `ordered` before a kill
LATE: Final = range(100, 400)
_SHORT_SEGMENTS: Final = "max-bytes-per-file=65536"  # so that held messages are compacted
_SHORT_TIMEOUT: Final = 1_000  # milliseconds: the least that nsqd allows
_LONG_TIMEOUT: Final = 600_000  # nothing times out
DELAYS: Final = (0, 0, 30, 2_000)  # milliseconds; the longest is still under way after a restart
_AHEAD: Final = 300  # messages that publishers are ahead of `ordered`
_BUSY_TIMEOUT: Final = 120.0


class Outcome:
    def __init__(self) -> None:
        self.ordered = GroupLedger("ordered", limit=TIMES_OUT, is_ordered=True)
        self.limited = GroupLedger("limited", limit=LIMIT, is_ordered=False)
        self.kills = 0
        self.acknowledged = 0

    def __str__(self) -> str:
        ordered = self.ordered.counts
        done = ", ".join(f"{ordered[what]:,} {what}" for what in ("deliveries", "requeued", "buried", "kicks", "again"))
        return (
            f"{self.kills} kills: {self.acknowledged:,} messages acknowledged, in order: {done}, "
            f"with a limit: {self.limited.counts['deliveries']:,} deliveries; 0 violations, 0 lost"
        )


def run(
    folder: Path,
    outcome: Outcome,
    *,
    kills: int,
    seed: int,
    environ: Mapping[str, str] | None = None,
    after_kill: Callable[[], None] = lambda: None,
) -> None:
    """Kill nsqd so often. Raise AssertionError, with the seed and the log, if something is wrong."""
    policy, chance = folder / "policy.toml", random.Random(seed)
    write_policy(policy, BESIDE_THE_ORDER[0])
    with Nsqd(folder / "data", f"policy-file={policy}", _SHORT_SEGMENTS, "max-msg-timeout=1h", environ=environ) as nsqd:
        try:
            nsqd.post("/topic/create?topic=t")
            for name in ("ordered", "limited"):
                nsqd.post(f"/channel/create?topic=t&channel={name}")
            for number in range(kills):
                load = _Load(nsqd, outcome, policy, chance)
                load.go_on_for(chance.choice(EARLY if number % 3 == 2 else LATE))
                killed_at = time.monotonic()
                nsqd.kill()
                load.ended()
                for ledger in (outcome.ordered, outcome.limited):
                    ledger.ended(killed_at)
                outcome.kills += 1
                nsqd.start()
                after_kill()
            _check_the_end(nsqd, outcome)
        except Exception as error:
            log = "\n".join(nsqd.log.splitlines()[-60:])
            raise AssertionError(f"{log}\n\nkill {outcome.kills}, seed {seed}: {error!r}") from error


def write_policy(path: Path, beside_the_order: str) -> None:
    """Write the file as editors do: nsqd must not read a half of it."""
    text = f"""
[[policy]]
channel = "ordered"
order = "group"
{beside_the_order}

[[policy]]
channel = "limited"
max_in_flight_per_group = {LIMIT}
share = "group"
"""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class _Load:
    """Threads that go on until their connections break."""

    def __init__(self, nsqd: Nsqd, outcome: Outcome, policy: Path, chance: random.Random) -> None:
        self._nsqd = nsqd
        self._outcome = outcome
        self._policy = policy
        halves = GROUPS[::2], GROUPS[1::2]  # each group has one publisher
        tasks: list[Callable[[random.Random], None]] = [
            *(lambda chance, groups=half: self._publish(groups, chance) for half in halves),
            *[self._keep_order] * 3,
            *[self._keep_limit] * 2,
            self._operate,
        ]
        self._tasks = Tasks(tasks, chance)
        self.stopping = self._tasks.stopping
        self._tasks.start()

    def go_on_for(self, deliveries: int) -> None:
        """Let it go on until so many were delivered in order, or something is wrong, which `ended` raises."""
        counts, deadline = self._outcome.ordered.counts, time.monotonic() + _BUSY_TIMEOUT
        goal = counts["deliveries"] + deliveries
        while not self._tasks.violations and counts["deliveries"] < goal:
            assert time.monotonic() < deadline, "the load has come to a standstill"
            self.stopping.wait(0.005)

    def ended(self) -> None:
        self._tasks.ended()

    def _publish(self, groups: Sequence[str], chance: random.Random) -> None:
        outcome = self._outcome
        with Consumer(self._nsqd.tcp) as client:
            client.identify(feature_negotiation=True, extensions=["headers"])
            while not self.stopping.is_set():
                if outcome.acknowledged > outcome.ordered.counts["deliveries"] + _AHEAD:
                    self.stopping.wait(0.01)
                    continue
                large = [groups[0]] * chance.choice((0, 0, 8))
                some = large + [chance.choice(groups) for _ in range(chance.randint(1, 8))]
                names = outcome.ordered.sending(some)
                assert names == outcome.limited.sending(some)
                messages = [(encode_headers({"nsq-group": it[0]}), b"%b/%d" % (it[0].encode(), it[1])) for it in names]
                assert client.ask(hmpub("t", messages)) == b"OK"
                outcome.ordered.acknowledged(names)
                outcome.limited.acknowledged(names)
                outcome.acknowledged += len(names)
                self.stopping.wait(chance.uniform(0, 0.01))

    # Consuming

    def _keep_order(self, chance: random.Random) -> None:
        """Consume for a while, in all ways, and then leave without anything unread."""
        ledger = self._outcome.ordered
        with _consumer(self._nsqd, "ordered", chance.choice((1, 5, 50)), _SHORT_TIMEOUT) as client:
            until, finished = time.monotonic() + chance.uniform(0.05, 0.4), list[Name]()
            while time.monotonic() < until:
                try:
                    message = client.message(0.02)
                except TimeoutError:
                    continue
                finished += _answer(client, ledger, [message], chance)
            client.send(rdy(0))
            client.in_step()
            finished += _answer(client, ledger, _unread(client), chance)
            client.in_step()
        ledger.are_gone(finished)

    def _keep_limit(self, chance: random.Random) -> None:
        """Consume some messages, which stay in flight together for a while, and leave without any."""
        ledger = self._outcome.limited
        with _consumer(self._nsqd, "limited", chance.choice((3, 20)), _LONG_TIMEOUT) as client:
            until = time.monotonic() + chance.uniform(0.05, 0.4)
            kept, finished = list[Message](), list[Name]()
            while time.monotonic() < until:
                try:
                    kept.append(_arrived(client.message(0.02), ledger))
                except TimeoutError:
                    pass
                chance.shuffle(kept)
                while kept and (len(kept) >= 3 or chance.random() < 0.5):
                    finished += _answer_kept(client, ledger, kept.pop(), chance)
            client.send(rdy(0))
            client.in_step()
            for message in [*kept, *(_arrived(it, ledger) for it in _unread(client))]:
                finished += _answer_kept(client, ledger, message, chance)
            client.in_step()
        ledger.are_gone(finished)

    # Operators

    def _operate(self, chance: random.Random) -> None:
        self.stopping.wait(chance.uniform(0, 0.1))
        if chance.random() < 0.5:
            self._outcome.ordered.kicking_all()
            answer = self._nsqd.http("POST", "/channel/kick?topic=t&channel=ordered")
            assert answer.status in {200, 409}, answer  # a job is under way
            self._outcome.ordered.kicked_all()
        else:
            write_policy(self._policy, chance.choice(BESIDE_THE_ORDER))


def _consumer(nsqd: Nsqd, channel: str, ready: int, timeout: int) -> Consumer:
    client = Consumer(nsqd.tcp)
    try:
        client.identify(feature_negotiation=True, extensions=["bury"], msg_timeout=timeout)
        client.subscribe("t", channel, ready=ready)
    except BaseException:
        client.close()
        raise
    return client


def _unread(client: Consumer) -> list[Message]:
    """Return messages that have come already."""
    found = []
    while (message := client.kept_message()) is not None:
        found.append(message)
    return found


def _name(message: Message) -> Name:
    group, _, number = message.body.decode().rpartition("/")
    return group, int(number)


def _arrived(message: Message, ledger: GroupLedger) -> Message:
    ledger.arrived(_name(message), message.attempts)
    return message


def _answer(client: Consumer, ledger: GroupLedger, messages: list[Message], chance: random.Random) -> list[Name]:
    """Answer in random ways, or let a message time out. Return what was finished or buried."""
    finished = []
    for message in messages:
        name, luck = _name(_arrived(message, ledger)), chance.random()
        if luck < 0.8:
            ledger.finishing(name)
            client.send(fin(message.id))
            finished.append(name)
        elif luck < 0.9:
            ledger.requeueing(name)
            client.send(req(message.id, chance.choice(DELAYS)))
        elif luck < 0.99:
            ledger.burying(name)
            client.send(bury(message.id, "bad"))
            finished.append(name)
    return finished


def _answer_kept(client: Consumer, ledger: GroupLedger, message: Message, chance: random.Random) -> list[Name]:
    """Answer, and return the message if it was finished."""
    name = _name(message)
    if chance.random() < 0.9:
        ledger.finishing(name)
        client.send(fin(message.id))
        return [name]
    ledger.requeueing(name)
    client.send(req(message.id, chance.choice((0, 30))))
    return []


# The end


def _check_the_end(nsqd: Nsqd, outcome: Outcome) -> None:
    outcome.ordered.kicking_all()
    nsqd.post("/channel/kick?topic=t&channel=ordered")
    for name, ledger in (("ordered", outcome.ordered), ("limited", outcome.limited)):
        _drain(nsqd, name, ledger)
        if left := ledger.left():
            raise Violation(f"{name}: {len(left)} messages are lost: {left[:20]}")
    nsqd.restart()
    for name in ("ordered", "limited"):
        if (shown := nsqd.channel("t", name))["depth"]:
            raise Violation(f"finished messages came back: {shown}")


def _drain(nsqd: Nsqd, name: str, ledger: GroupLedger) -> None:
    deadline = time.monotonic() + _BUSY_TIMEOUT
    with _consumer(nsqd, name, 100, _LONG_TIMEOUT) as client:
        while True:
            try:
                message = client.message(0.05)
            except TimeoutError:
                client.in_step()
                left = nsqd.channel("t", name)
                if not any(left[count] for count in ("depth", "in_flight_count", "deferred_count")):
                    return
                if time.monotonic() > deadline:
                    raise Violation(f"{name} does not run dry: {left}") from None
                continue
            ledger.arrived(_name(message), message.attempts)
            ledger.finishing(_name(message))
            client.send(fin(message.id))
