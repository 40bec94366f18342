"""The impact of a finding: the one number that orders findings, incidents and cards.

    impact = effect x severity x (1 + messages) x (1 + messages a second)

It is a logarithm, in bits, so that one step is a doubling, and the effect counts eight doublings a rank. So 60,000
messages that are stuck come before 50 without a consumer, but a channel that loses a hundred a second comes before both.

The severity counts more than everything else together: a list that says "the worst first" and has a yellow card above a
red one is read as unsorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp2, log2
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Severity

if TYPE_CHECKING:
    from nsqadmin.diagnosis.rules import Effect

_OF_EFFECT: Final = 8.0  # bits for each rank
_OF_SEVERITY: Final = {Severity.PROBLEM: 128.0, Severity.WARNING: 0.0, Severity.INFO: -128.0}  # more than all the rest


def impact(effect: Effect, severity: Severity, *, messages: float = 0.0, speed: float = 0.0) -> float:
    """Return the impact. `messages` wait or are lost, and `speed` says by how many a second they get more."""
    return _OF_EFFECT * effect + _OF_SEVERITY[severity] + log2(1.0 + max(messages, 0.0)) + log2(1.0 + max(speed, 0.0))


def together(impacts: Iterable[float]) -> float:
    """Return the impact of several findings."""
    each = tuple(impacts)
    most = max(each)
    return most + log2(sum(exp2(it - most) for it in each))
