"""What rules about groups cost a channel that consumes a backlog of 10,000 groups, and what one group that is stuck costs.

Each rule is measured beside none, with the same messages, whose groups come in turn or at random: a C load generator
that has 5,000 messages in flight, and nsqclient, which has 200.

Then half of all messages belong to one group, whose first message is never finished. With `order` the rest of it is
held. The others' rate is compared with that beside the same group when it isn't stuck. What held messages take is
nsqd's memory beyond that of as many messages of groups of which none is stuck.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.brokers import Broker, nsqd_factory
from bench.processes import resident_megabytes
from bench.report import Benchmark, Row, at_least, at_most
from bench.runner import Compared, Measured, chosen
from bench.settings import Settings
from bench.work import Work
from bench.workloads import CHANNEL, SIZE, fill
from scripts.command_line import option

PLAIN: Final = "plain"
_ORDER: Final = 'order = "group"\nmax_attempts = 10\n'
_SHARE: Final = 'share = "group"\n'
RULES: Final[Mapping[str, str]] = {
    PLAIN: "",
    "two": "max_in_flight_per_group = 2\n",
    "order": _ORDER,
    "share": _SHARE,
    "both": _ORDER + _SHARE,
}
TEXTS: Final = {"two": "two of a group", "order": "order", "share": "share", "both": "order and share"}
CLIENTS: Final = {"loadgen": "the load generator", "nsqclient": "nsqclient"}
DRAWS: Final = {"turn": "groups in turn", "random": "groups at random"}
STUCK, LOOSE, NONE_STUCK = "stuck", "not stuck", "none stuck"
COST: Final = at_least(0.7)
OTHERS: Final = at_least(0.9)
HELD: Final = at_most(5.6)  # bytes: 100 MB for half of 10,000 messages a second that are held for an hour
_LIMIT: Final = 300.0


@dataclass(kw_only=True)
class GroupsSettings(Settings):
    runs: int = option(5, "runs of each row")
    messages: int = option(1_000_000, "consumed by the load generator in each run, and by nsqclient a quarter of them")
    groups: int = option(10_000, "groups that the messages belong to")
    held: int = option(2_000_000, f"messages of the group that is {STUCK}, and of the others together")
    only: str = option("", f"some of: {', '.join([*TEXTS, STUCK])}", word="ROW,...")


def run(settings: GroupsSettings, work: Work) -> list[Row]:
    wanted = chosen(settings.only, [*TEXTS, STUCK])
    rules = [name for name in TEXTS if name in wanted]
    rows = _costs(settings, work, rules) if rules else []
    return [*rows, *_stuck(settings, work)] if STUCK in wanted else rows


def _nsqd(settings: GroupsSettings, work: Work, rule: str) -> AbstractContextManager[Broker]:
    """Run nsqd with a rule for all channels."""
    policy = work.folder / f"{rule}.toml"
    policy.write_text(policy_of(rule))
    return nsqd_factory(work, settings.build, [f"--policy-file={policy}", *settings.flag])()


def policy_of(rule: str) -> str:
    return f'[[policy]]\nchannel = "*"\n{RULES[rule]}' if RULES[rule] else ""


# What rules cost


def _costs(settings: GroupsSettings, work: Work, rules: list[str]) -> list[Row]:
    sides = {rule: partial(_consume_all_ways, settings, work, rule) for rule in (PLAIN, *rules)}
    compared = Compared(sides, settings.runs)
    return [
        compared.row(f"{client}, {draw}", f"{TEXTS[rule]}, {groups}, {name}", rule, PLAIN, demand=COST)
        for client, name in CLIENTS.items()
        for draw, groups in DRAWS.items()
        for rule in rules
    ]


def _consume_all_ways(settings: GroupsSettings, work: Work, rule: str, number: int) -> dict[str, Measured]:
    with _nsqd(settings, work, rule) as broker:
        return {
            f"{client}, {draw}": _consume(settings, work, broker, client, draw) for client in CLIENTS for draw in DRAWS
        }


def _consume(settings: GroupsSettings, work: Work, broker: Broker, client: str, draw: str) -> Measured:
    topic = f"bench_{client}_{draw}"
    broker.make_channel(topic, CHANNEL)
    count = settings.messages if client == "loadgen" else settings.messages // 4
    fill(work, broker, topic, count, SIZE, 200, f"groups={settings.groups}", f"draw={draw}")
    before = broker.processor_seconds()
    if client == "loadgen":
        load = work.load("sub", broker.tcp_port, topic, CHANNEL, 2, 2500, _LIMIT, f"count={count}", at_most=_LIMIT)
    else:
        load = work.python("bench.clients.nsqclient_load", broker.tcp_port, "sub", topic, _LIMIT, count, at_most=_LIMIT)
    used = broker.processor_seconds() - before
    broker.post_all([f"/topic/delete?topic={topic}"])
    return Measured(load["msgs_per_s"], used * 1e6 / load["msgs"])


# One group that is stuck


def _stuck(settings: GroupsSettings, work: Work) -> list[Row]:
    sides = {name: partial(_beside, settings, work, name) for name in (STUCK, LOOSE, NONE_STUCK)}
    compared = Compared(sides, settings.runs)
    grown, others = compared.values(STUCK, "grown"), compared.values(NONE_STUCK, "grown")
    each = tuple((mine - theirs) * 1e6 / settings.held for mine, theirs in zip(grown, others, strict=True))
    return [
        compared.row("rate", "others beside a group that is stuck", STUCK, LOOSE, demand=OTHERS),
        Row(f"each of {settings.held:,} messages that are held", "bytes", each, HELD),
    ]


def _beside(settings: GroupsSettings, work: Work, side: str, number: int) -> dict[str, Measured]:
    """Consume messages of which half belong to one group, until all others are finished."""
    topic, count = "bench_stuck", 2 * settings.held
    draw = "turn" if side == NONE_STUCK else "half"
    with _nsqd(settings, work, "order") as broker:
        broker.make_channel(topic, CHANNEL)
        fill(work, broker, topic, count, SIZE, 200, f"groups={settings.groups}", f"draw={draw}")
        resident, used = resident_megabytes(broker.pid), broker.processor_seconds()
        apart = {STUCK: ("apart=0", "stuck=1"), LOOSE: ("apart=0",), NONE_STUCK: ()}[side]
        wanted = count if side == NONE_STUCK else settings.held
        words = (topic, CHANNEL, 2, 2500, _LIMIT, f"count={wanted}", *apart)
        load = work.load("sub", broker.tcp_port, *words, at_most=_LIMIT)
        return {
            "rate": Measured(load["finished_per_s"], (broker.processor_seconds() - used) * 1e6 / wanted),
            "grown": Measured(resident_megabytes(broker.pid) - resident),
        }


BENCHMARK: Final = Benchmark(
    "groups", "What do rules about groups cost, and a group that is stuck?", GroupsSettings, run, at_most=60
)
