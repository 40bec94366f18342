"""What random lives may be like, and what their policies say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from nsqd.ack_option import Ack
from nsqd.broker.rules import NO_TOPIC_RULES, BackoffRule, ChannelRules, Overflow, TopicRules
from nsqd.log.retention import Retention
from tests.simulation.disk import Crash

_SECOND: Final = 1_000_000_000  # nanoseconds
_BACKOFF: Final = BackoffRule(exponential=True, shortest_ms=200, longest_ms=3_000, jitter=0.1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a run. `crashes` and `fails` choose among the things that can happen to it."""

    ack: Ack | None = None  # None: chosen by the seed
    crashes: tuple[Crash, ...] = tuple(Crash)
    fails: bool = True
    syncs_files: bool = True
    buries: bool = True  # messages that fail are buried, kicked and discarded
    limits: bool = True  # some policies have times to live, bounds and breakers; only with `buries`
    cancels: bool = True  # messages that wait are taken back and moved
    groups: bool = False  # messages have groups, and policies have rules about them
    history: bool = False  # with seeks, restored backlogs, redeliveries, retention, and a disk reserve


ANYTHING: Final = Plan()
POWER_LOSS: Final = Plan(ack=Ack.SYNCED, crashes=tuple(crash for crash in Crash if crash.is_power_cut), fails=False)

HISTORY: Final = Plan(history=True)
GROUPS: Final = Plan(history=True, groups=True)


def command_for(name: str, seed: int, plan: Plan) -> str:
    """Return the command that repeats the life, with a trace."""
    without = " --without-buries" if not plan.buries else "" if plan.limits else " --without-limits"
    without += "" if plan.cancels else " --without-cancels"
    return f"python -m tests.simulation {name} --from {seed} --seeds 1 --verbose{without}"


def settings_of_history(random: Random) -> dict[str, Any]:
    def retention() -> Retention:
        seconds, size = random.choice(((0, 0), (2, 0), (30, 0), (0, 500), (0, 5000), (30, 5000)))
        return Retention(seconds * 1_000_000_000, size)

    return {
        "retention": retention(),
        "topic_retention": {"scratch": retention()},
        "disk_reserve": random.choice((0, 0, 100_000)),
    }


def rules_of_failures(random: Random) -> ChannelRules:
    """Return rules about messages that fail, or none."""
    most = random.choice((None, None, 1, 2, 4))
    return ChannelRules(max_attempts=most, max_buried=random.choice((None, None, None, 2)))


def drawn_rules(random: Random, rules: ChannelRules) -> tuple[ChannelRules, TopicRules]:
    """Return these rules with limits and a breaker, and bounds of topics. Half of all policies have none of these."""
    if random.random() < 0.5:
        return rules, NO_TOPIC_RULES
    ttl = random.choice((None, 0.15, 1.0, 20.0, 100.0))
    messages, size = _bounds(random)
    rules = replace(
        rules,
        breaker=random.choice((None, None, 0.3, 1.0)),
        ttl=None if ttl is None else int(ttl * _SECOND),
        ttl_buries=random.random() < 0.5,
        max_messages=messages,
        max_bytes=size,
        overflow=random.choice(tuple(Overflow)),
    )
    messages, size = _bounds(random)
    overflow = random.choice((Overflow.REJECT, Overflow.DROP_OLDEST))
    return rules, TopicRules(max_messages=messages, max_bytes=size, overflow=overflow)


def with_groups(random: Random, rules: ChannelRules) -> ChannelRules:
    """Return these rules with other ones about groups, or with none in one case of eight."""
    backoff, most = random.choice((None, None, None, _BACKOFF)), random.choice((None, None, None, 1, 2, 5))
    rules = replace(rules, backoff=backoff, max_in_flight=most)
    if random.random() < 0.125:
        return replace(rules, max_in_flight_per_group=None, order=None, share=None, weights=(), max_held=None)
    is_shared = random.random() < 0.5
    return replace(
        rules,
        max_in_flight_per_group=random.choice((None, None, 1, 2, 3)),
        order=random.choice((None, "group", "group")),
        share="group" if is_shared else None,
        weights=random.choice(((), (("a", 3),), (("b", 2), ("c", 5)))) if is_shared else (),
        max_held=random.choice((None, None, None, 3, 20)),
    )


def _bounds(random: Random) -> tuple[int | None, int | None]:
    """Return the most messages and bytes."""
    return random.choice(
        ((None, None), (None, None), (1, None), (3, None), (5, None), (12, None), (None, 500), (8, 2000))
    )
