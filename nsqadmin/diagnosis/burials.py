"""Rules about buried messages: D39 and D40.

Messages that are being buried fail for good, so somebody has to look why. Those that only lie there are no more than a
remark, however many: `max_buried` of the policy file is the limit for those who want one (D20).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Channel, Evidence, Finding, Metric, Severity
from nsqadmin.cluster.policy_counts import LATELY
from nsqadmin.diagnosis.words import counted, in_minutes, number, rate, say

if TYPE_CHECKING:
    from nsqadmin.diagnosis.case import Case

_LARGE: Final = 0.2  # share of the messages that leave the channel
_FEW: Final = 10  # messages; a share of fewer says little
_MOST_NAMED: Final = 3  # reasons
_LONGEST: Final = 80  # characters of a reason in a verdict


def growing(channel: Channel, case: Case) -> Iterator[Finding]:
    buried = channel.buried_recent
    if not buried or all(row.is_burying is False for row in channel.nodes):
        return  # none since the previous answer: the finding stays for a while, see `upkeep.py`
    finished = sum(case.recent(Metric.FINISHED, LATELY)) * case.snapshot.interval  # messages
    share = buried / (buried + finished)
    is_large = buried >= _FEW and share > _LARGE
    reasons = _reasons(channel)
    verdict = (
        f"Messages are buried: {numbers.percent(share)} of those handled in the last {in_minutes(LATELY)}"
        if is_large
        else f"Messages are buried: {counted(buried, 'message')} in the last {in_minutes(LATELY)}"
    )
    yield case.finding(
        "D39",
        Severity.PROBLEM if is_large else Severity.WARNING,
        verdict + (f", most often “{_short(reasons[0][0])}”" if reasons else ""),
        "They have failed for good. The tab Buried lists them by reason: when the cause is fixed, kick one to test it, "
        "then the others.",
        number(f"buried in the last {in_minutes(LATELY)}", buried),
        number("buried in total", channel.buried_count),
        rate("finished", case.mean(Metric.FINISHED, LATELY)),
        *_told(reasons),
        # If all that are buried were buried lately, we have seen the first one, so the incident begins with it.
        window=LATELY if channel.buried_count > buried else 0.0,
    )


def lying(channel: Channel, case: Case) -> Iterator[Finding]:
    if not channel.buried_count or channel.buried_recent or channel.paused_why:
        return  # the rules about those that are being buried, or D20, say so
    yield case.finding(
        "D40",
        Severity.INFO,
        f"{counted(channel.buried_count, 'message')} {'is' if channel.buried_count == 1 else 'are'} buried",
        "They have failed for good, and stay until you kick or discard them in the tab Buried. No more are being added.",
        number("buried", channel.buried_count),
        *_told(_reasons(channel)),
    )


def _reasons(channel: Channel) -> list[tuple[str, int]]:
    """Return the reasons on all nodes that were asked, most frequent first."""
    counts: dict[str, int] = {}
    for row in channel.nodes:
        for it in row.buried_reasons:
            counts[it.pattern] = counts.get(it.pattern, 0) + it.count
    return sorted(counts.items(), key=lambda it: (-it[1], it[0]))


def _told(reasons: list[tuple[str, int]]) -> Iterator[Evidence]:
    if reasons:
        named = "; ".join(f"{_short(text)}: {count:,}" for text, count in reasons[:_MOST_NAMED])
        yield say("reasons", named)


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1] + "…"
