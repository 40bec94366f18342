"""Rules about the groups of messages (`nsq-group`): D36 and D37."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Channel, Finding, Severity
from nsqadmin.cluster.policy_counts import LATELY
from nsqadmin.diagnosis.words import age, counted, number, say

if TYPE_CHECKING:
    from nsqadmin.diagnosis.case import Case

_IGNORED: Final = "nsq-group ignored"  # nsqd's name for it


def full_of_held(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find channels that may hold no more messages, so that a message of any group may be stuck behind the others."""
    full = [row for row in channel.nodes if row.held_full_since is not None and row.node not in channel.silent]
    if not full:
        return
    now = case.snapshot.taken_at
    where = f" on {len(full)} of {counted(len(channel.nodes), 'node')}" if len(full) < len(channel.nodes) else ""
    yield case.finding(
        "D36",
        Severity.PROBLEM,
        f"max_held is reached{where}: new messages of all groups wait behind the held ones",
        "Messages are held because others of their groups are in flight or have failed. The tab Groups names the groups "
        "that hold most: find out why their messages are not finished. There you can move or bury all that waits of one "
        "group. If they only are many, raise max_held in the policy file.",
        number("held", sum(row.held_count for row in full)),
        number("groups", sum(row.group_count or 0 for row in full)),
        number("waiting", channel.depth),
        age("for", max(now - (row.held_full_since or now) for row in full)),
        say("reached on", ", ".join(row.node for row in full)),
    )


def ignored_headers(channel: Channel, case: Case) -> Iterator[Finding]:
    ignored = sum(count for cause, count in channel.policy_recent if cause == _IGNORED)
    if not ignored:
        return
    yield case.finding(
        "D37",
        Severity.WARNING,
        f"{counted(ignored, 'message').capitalize()} of the last minutes had a wrong nsq-group",
        "The header is empty, longer than 128 bytes or not UTF-8, so these messages count as without a group: they have "
        "no order and no limit. Find out which publisher sends them.",
        number("wrong headers", ignored),
        window=LATELY,
    )
