"""Messages that are being buried are a finding, with the most frequent reason; those that lie there are a remark."""

from __future__ import annotations

from typing import Any

from nsqadmin.cluster.model import BuriedReason, Finding, Severity
from nsqadmin.cluster.policy_counts import LATELY
from tests.nsqadmin.diagnosis.test_diagnosis import Trends, about, only, said
from tests.support.picture import channel, channel_node, client


def burying(recent: int, finished: float = 0.0, *, in_all: int = 198, **fields: Any) -> Finding:
    """Return the finding about a channel that has buried some in five minutes, and has finished some a second."""
    row = channel_node(buried_count=in_all, buried_recent=recent, clients=(client(),), **fields)
    return only(about(channel(row), Trends(finished=[finished] * 60)))


def test_d39_messages_are_being_buried() -> None:
    finding = burying(12, finished=100.0)
    assert (finding.rule, finding.severity) == ("D39", Severity.WARNING)
    assert finding.verdict == "Messages are buried: 12 messages in the last 5 min"
    assert said(finding)["buried in total"] == "198"


def test_d39_is_a_problem_where_a_large_share_is_buried() -> None:
    """Recorded: invoices/ledger buried 1.5 a second for 50 minutes, and no verdict had the word."""
    reasons = BuriedReason(pattern="no such customer: *", count=150), BuriedReason(pattern="no address", count=48)
    finding = burying(450, finished=1.0, buried_reasons=reasons)
    assert (finding.rule, finding.severity) == ("D39", Severity.PROBLEM)
    assert (
        finding.verdict
        == "Messages are buried: 60 % of those handled in the last 5 min, most often “no such customer: *”"
    )
    assert said(finding)["reasons"] == "no such customer: *: 150; no address: 48"


def test_d39_a_large_share_of_a_few_says_little() -> None:
    assert burying(3).severity is Severity.WARNING


def test_d39_has_seen_the_first_one_if_all_were_buried_lately() -> None:
    """An incident whose rule looks back further than nsqadmin runs is said to be older, here with no reason."""
    assert (burying(12, in_all=12).window, burying(12, in_all=13).window) == (0.0, LATELY)


def test_d39_a_long_reason_is_cut() -> None:
    finding = burying(3, buried_reasons=(BuriedReason(pattern="x" * 200, count=3),))
    assert finding.verdict.endswith("x" * 79 + "…”")


def test_d40_buried_messages_that_just_lie_there_are_a_remark() -> None:
    finding = burying(0)
    assert (finding.rule, finding.severity) == ("D40", Severity.INFO)
    assert finding.verdict == "198 messages are buried"
