"""The table of rules: the family and the effect of each.

A **family** holds the rules that say the same kind of thing about an object, so that you care about the worst of them.
An object and a family make an incident: if a channel's consumers first hang and then leave, that is one incident which
changes, but if they also fail messages, that is a second one. What is in different families never hides each other: a
muted warning about a node's policy file says nothing about its death.

An **effect** says what happens to messages. It decides the order of incidents (`impact.py`), and whether one gets worse.

A rule with several kinds of findings has a row for each facet: `D16:clock`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Finding


class Family(StrEnum):
    # Topics and channels
    DELIVERY = "delivery"  # messages reach no consumer, or not fast enough
    HANDLING = "handling"  # consumers fail or are slow
    BURIAL = "burial"  # messages are buried
    LOSS = "loss"  # messages are dropped
    REFUSAL = "refusal"  # publishes are refused
    GROUPS = "groups"
    EXPIRY = "expiry"  # the topic or channel is deleted soon
    LOAD = "load"
    DELAY = "delay"
    SAMPLING = "sampling"
    UNKNOWN = "unknown"
    # Nodes
    REACH = "reach"  # nsqadmin or clients cannot reach it
    HEALTH = "health"  # it says that it is not well, most often because of its disk
    ACCESS = "access"
    DRAINING = "draining"
    REGISTRATION = "registration"
    VERSION = "version"
    CLOCK = "clock"
    POLICY = "policy"
    STORE = "store"  # its copy in an object store
    BOUNDS = "bounds"  # nsqadmin leaves something out
    OTHER = "other"


class Effect(IntEnum):
    """What happens to messages, the worst last."""

    NONE = 0
    WAITING = 1
    GROWING = 2
    STUCK = 3  # they wait, and none is finished
    LOST = 4
    AWAY = 5  # everything on a node is out of reach


class Rule(NamedTuple):
    family: Family
    effect: Effect = Effect.NONE
    is_switch: bool = False  # somebody has switched it, so it is over as soon as it is switched back
    patience: float = 0.0  # seconds that it has to last before it is shown
    echo: float = 0.0  # seconds for which it is still found after its cause is gone, because it looks at rates
    spreads: bool = False  # its findings name where it is in `others`, and with more of these it is worse


_OF_A_START: Final = 30.0  # seconds in which consumers connect to a node that has come back
_OF_LONG_WORK: Final = 600.0  # seconds
_OF_RATES: Final = 60.0  # seconds: rates of consumers are counted over the last 30 to 60
_UNLISTED: Final = Rule(Family.OTHER, Effect.WAITING)

RULES: Final[Mapping[str, Rule]] = {
    # Delivery to consumers
    "D1": Rule(Family.DELIVERY, Effect.WAITING, is_switch=True),
    "D2": Rule(Family.DELIVERY, Effect.WAITING, is_switch=True),
    "D3": Rule(Family.DELIVERY, Effect.STUCK),
    "D4": Rule(Family.DELIVERY, Effect.STUCK, patience=_OF_A_START, spreads=True),
    "D5": Rule(Family.DELIVERY, Effect.STUCK),
    "D6": Rule(Family.DELIVERY, Effect.GROWING),
    "D7": Rule(Family.DELIVERY, Effect.STUCK, spreads=True),
    "D13": Rule(Family.DELIVERY, Effect.WAITING),
    "D14": Rule(Family.DELIVERY, Effect.STUCK),
    "D20": Rule(Family.DELIVERY, Effect.STUCK, is_switch=True, spreads=True),
    # What consumers do with messages
    "D8": Rule(Family.HANDLING, Effect.WAITING),
    "D9": Rule(Family.HANDLING, Effect.WAITING, echo=_OF_RATES),
    "D9:behind": Rule(Family.HANDLING, Effect.WAITING, patience=_OF_LONG_WORK),
    "D18": Rule(Family.HANDLING, Effect.WAITING),
    "D39": Rule(Family.BURIAL, Effect.WAITING),
    "D40": Rule(Family.BURIAL),
    "D41": Rule(Family.HANDLING),
    "D42": Rule(Family.HANDLING),
    # What policies do
    "D21": Rule(Family.REFUSAL, Effect.STUCK),
    "D22": Rule(Family.LOSS, Effect.LOST),
    "D23": Rule(Family.LOSS, Effect.LOST),
    "D24": Rule(Family.EXPIRY, Effect.NONE),
    "D36": Rule(Family.GROUPS, Effect.GROWING),
    "D37": Rule(Family.GROUPS),
    "D38": Rule(Family.GROUPS, Effect.WAITING),
    # Remarks
    "D10": Rule(Family.DELAY),
    "D11": Rule(Family.LOAD),
    "D12": Rule(Family.SAMPLING),
    "D15": Rule(Family.LOAD),
    "D17": Rule(Family.UNKNOWN),
    # Nodes and nsqlookupds
    "D16:reach": Rule(Family.REACH, Effect.AWAY),
    "D27": Rule(Family.REACH, Effect.WAITING),
    "D16:health": Rule(Family.HEALTH, Effect.AWAY),
    "D16:token": Rule(Family.ACCESS),
    "D16:draining": Rule(Family.DRAINING),
    "D16:registration": Rule(Family.REGISTRATION, Effect.WAITING, spreads=True),
    "D16:twin": Rule(Family.REGISTRATION),
    "D16:version": Rule(Family.VERSION),
    "D16:clock": Rule(Family.CLOCK),
    "D16:bounds": Rule(Family.BOUNDS),
    "D25": Rule(Family.POLICY),
    "D26": Rule(Family.POLICY),
    "D28": Rule(Family.STORE, Effect.STUCK),
    "D29": Rule(Family.STORE, Effect.WAITING),
    "D30": Rule(Family.STORE),
    "D31": Rule(Family.STORE, Effect.WAITING),
    "D32": Rule(Family.STORE, Effect.STUCK),
    "D33": Rule(Family.STORE),
}


def rule_of(finding: Finding) -> Rule:
    return RULES.get(name_of_rule(finding), _UNLISTED)


def name_of_rule(finding: Finding) -> str:
    return f"{finding.rule}:{finding.facet}" if finding.facet else finding.rule
