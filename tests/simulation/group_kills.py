"""kill -9 of a real nsqd while consumers handle groups: in order, or with a limit and fair shares.

Topic t has two channels. On `ordered`, messages are requeued, time out, are buried and kicked, and the rules beside the
order change at run time. On `limited`, a few messages of each group may be in flight, and groups share.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from nsqcommon.wire.commands import fin, hmpub, rdy, req
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.headers import encode_headers
from nsqcommon.wire.message import Message
from tests.simulation.group_ledger import TIMES_OUT, GroupLedger, Name
from tests.simulation.killing import KillRun, Load, check_nothing_comes_back, consumer, drain, unread
from tests.simulation.promise import Violation
from tests.support.process import Nsqd
from tests.support.traffic import Consumer

GROUPS: Final = tuple(f"group {number}" for number in range(12))  # the first one is larger than the others
LIMIT: Final = 2
BESIDE_THE_ORDER: Final = (
    "",
    'share = "group"',
    'share = "group"\nweights = {"group 0" = 3}',
    "max_held = 30",
    'share = "group"\nmax_held = 30',
)
_SHORT_TIMEOUT: Final = 1_000  # milliseconds: the least that nsqd allows
_LONG_TIMEOUT: Final = 600_000  # nothing times out
DELAYS: Final = (0, 0, 30, 2_000)  # milliseconds; the longest is still under way after a restart
_AHEAD: Final = 300  # messages that publishers are ahead of `ordered`
_MORE: Final = 50  # that they may be ahead in a life than they were at its start


class GroupKills(KillRun):
    channels = ("ordered", "limited")
    early = range(1, 40)  # deliveries of `ordered`
    late = range(100, 400)

    def __init__(self) -> None:
        super().__init__()
        self.ordered = GroupLedger("ordered", limit=TIMES_OUT, is_ordered=True)
        self.limited = GroupLedger("limited", limit=LIMIT, is_ordered=False)
        self.acknowledged = 0
        self.policy = Path()

    def __str__(self) -> str:
        ordered = self.ordered.counts
        done = ", ".join(f"{ordered[what]:,} {what}" for what in ("deliveries", "requeued", "buried", "kicks", "again"))
        return (
            f"{self.kills} kills: {self.acknowledged:,} messages acknowledged, in order: {done}, "
            f"with a limit: {self.limited.counts['deliveries']:,} deliveries; 0 violations, 0 lost"
        )

    @property
    def ahead(self) -> int:
        return self.acknowledged - self.ordered.counts["deliveries"]

    def options(self, folder: Path) -> Sequence[str]:
        self.policy = folder / "policy.toml"
        write_policy(self.policy, BESIDE_THE_ORDER[0])
        return f"policy-file={self.policy}", "max-msg-timeout=1h"

    def ledgers(self) -> Sequence[GroupLedger]:
        return self.ordered, self.limited

    def load(self, nsqd: Nsqd, chance: random.Random) -> Load:
        return _Load(nsqd, self, chance)

    def check_start(self, nsqd: Nsqd, chance: random.Random) -> None:
        """Do nothing: the ledgers notice what is wrong by what consumers get."""

    def check_end(self, nsqd: Nsqd) -> None:
        _check_the_end(nsqd, self)


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


class _Load(Load):
    def __init__(self, nsqd: Nsqd, run: GroupKills, chance: random.Random) -> None:
        self._nsqd = nsqd
        self._run = run
        # In each life something is published, also if all that was ahead is lost. Without it, nobody would notice.
        self._most_ahead = max(_AHEAD, run.ahead + _MORE)
        halves = GROUPS[::2], GROUPS[1::2]  # each group has one publisher
        tasks: list[Callable[[random.Random], None]] = [
            *(lambda chance, groups=half: self._publish(groups, chance) for half in halves),
            *[self._keep_order] * 3,
            *[self._keep_limit] * 2,
            self._operate,
        ]
        super().__init__(tasks, chance, lambda: run.ordered.counts["deliveries"])

    def _publish(self, groups: Sequence[str], chance: random.Random) -> None:
        run = self._run
        with Consumer(self._nsqd.tcp) as client:
            client.identify(feature_negotiation=True, extensions=["headers"])
            while not self.stopping.is_set():
                if run.ahead > self._most_ahead:
                    self.stopping.wait(0.01)
                    continue
                large = [groups[0]] * chance.choice((0, 0, 8))
                some = large + [chance.choice(groups) for _ in range(chance.randint(1, 8))]
                names = run.ordered.sending(some)
                assert names == run.limited.sending(some)
                messages = [(encode_headers({"nsq-group": it[0]}), b"%b/%d" % (it[0].encode(), it[1])) for it in names]
                assert client.ask(hmpub("t", messages)) == b"OK"
                run.ordered.acknowledged(names)
                run.limited.acknowledged(names)
                run.acknowledged += len(names)
                self.stopping.wait(chance.uniform(0, 0.01))

    # Consuming

    def _keep_order(self, chance: random.Random) -> None:
        """Consume for a while, in all ways, and then leave without anything unread."""
        ledger = self._run.ordered
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
            finished += _answer(client, ledger, unread(client), chance)
            client.in_step()
        ledger.are_gone(finished)

    def _keep_limit(self, chance: random.Random) -> None:
        """Consume some messages, which stay in flight together for a while, and leave without any."""
        ledger = self._run.limited
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
            for message in [*kept, *(_arrived(it, ledger) for it in unread(client))]:
                finished += _answer_kept(client, ledger, message, chance)
            client.in_step()
        ledger.are_gone(finished)

    # Operators

    def _operate(self, chance: random.Random) -> None:
        self.stopping.wait(chance.uniform(0, 0.1))
        if chance.random() < 0.5:
            self._run.ordered.kicking_all()
            answer = self._nsqd.http("POST", "/channel/kick?topic=t&channel=ordered")
            assert answer.status in {200, 409}, answer  # a job is under way
            self._run.ordered.kicked_all()
        else:
            write_policy(self._run.policy, chance.choice(BESIDE_THE_ORDER))


def _consumer(nsqd: Nsqd, channel: str, ready: int, timeout: int) -> Consumer:
    return consumer(nsqd, channel, ready=ready, msg_timeout=timeout)


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


def _check_the_end(nsqd: Nsqd, run: GroupKills) -> None:
    run.ordered.kicking_all()
    nsqd.post("/channel/kick?topic=t&channel=ordered")
    for name, ledger in (("ordered", run.ordered), ("limited", run.limited)):
        _drain(nsqd, name, ledger)
        if left := ledger.left():
            raise Violation(f"{name}: {len(left)} messages are lost: {left[:20]}")
    check_nothing_comes_back(nsqd, run.channels)


def _drain(nsqd: Nsqd, name: str, ledger: GroupLedger) -> None:
    with _consumer(nsqd, name, 100, _LONG_TIMEOUT) as client:

        def finish(message: Message) -> None:
            ledger.arrived(_name(message), message.attempts)
            ledger.finishing(_name(message))
            client.send(fin(message.id))

        drain(nsqd, name, client, finish)
