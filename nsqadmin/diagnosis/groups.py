"""Rules about the groups of messages (`nsq-group`): D36 to D38."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.message_groups import MANY
from nsqadmin.cluster.model import Channel, ChannelNode, Evidence, Finding, Severity
from nsqadmin.cluster.policy_counts import LATELY
from nsqadmin.diagnosis.words import age, counted, in_minutes, number, say

if TYPE_CHECKING:
    from nsqadmin.diagnosis.case import Case

_IGNORED: Final = "nsq-group ignored"  # nsqd's name for it
_NEARLY: Final = 0.9  # of max_held
_STUCK: Final = 600.0  # seconds that a group's oldest held message has waited
_HALF: Final = 0.5


def full_of_held(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find channels that may hold no more messages, so that a message of any group may be stuck behind the others."""
    answering = [row for row in channel.nodes if row.node not in channel.silent]
    full = [row for row in answering if row.held_full_since is not None]
    if not full:
        yield from _nearly_full(channel, case, [it for it in answering if it.max_held])
        return
    now = case.snapshot.taken_at
    where = f" on {len(full)} of {counted(len(channel.nodes), 'node')}" if len(full) < len(channel.nodes) else ""
    yield case.finding(
        "D36",
        Severity.PROBLEM,
        f"max_held is reached{where}: new messages of all groups wait behind the held ones",
        "Messages are held because others of their groups are in flight or have failed. The tab Groups names the groups "
        "that hold most: find out why their messages are not finished. There you can move or bury all waiting messages of one "
        "group. If there are simply many, raise max_held in the policy file.",
        number("held", sum(row.held_count for row in full)),
        number("groups", sum(row.group_count or 0 for row in full)),
        number("waiting", channel.depth),
        age("for", max(now - (row.held_full_since or now) for row in full)),
        say("reached on", ", ".join(row.node for row in full)),
        *_largest(full),
    )


def _nearly_full(channel: Channel, case: Case, rows: Sequence[ChannelNode]) -> Iterator[Finding]:
    nearly = [row for row in rows if row.held_count >= row.max_held * _NEARLY]
    if nearly:
        yield case.finding(
            "D36",
            Severity.WARNING,
            "max_held is nearly reached: then new messages of all groups wait behind the held ones",
            "The tab Groups names the groups that hold most: find out why their messages are not finished. There you can "
            "move or bury all waiting messages of a group. If there are simply many, raise max_held in the policy file.",
            number("held", sum(row.held_count for row in nearly)),
            number("max_held", sum(row.max_held for row in nearly)),
            say("on", ", ".join(row.node for row in nearly)),
            *_largest(nearly),
        )


def _largest(rows: Sequence[ChannelNode]) -> Iterator[Evidence]:
    """Name the groups that hold most, if they are known."""
    groups = sorted((it for row in rows for it in row.largest_groups if it.held), key=lambda it: -it.held)
    if groups:
        yield say("largest groups", ", ".join(f"{it.name or 'without a group'}: {it.held:,}" for it in groups[:3]))


def held_up_by_one(channel: Channel, case: Case) -> Iterator[Finding]:
    """Find a group that has been stuck for a while and holds most of the held messages of a node."""
    now = case.snapshot.taken_at
    for row in channel.nodes:
        group = max(row.largest_groups, key=lambda it: it.held, default=None)
        if group is None or row.node in channel.silent or row.held_full_since is not None:
            continue
        if group.held < max(MANY, row.held_count * _HALF) or now - (group.oldest_at or now) < _STUCK:
            continue
        name = f"The group {group.name}" if group.name else "The messages without a group"
        yield case.finding(
            "D38",
            Severity.WARNING,
            f"{name} {'holds' if group.name else 'hold'} most of the held messages: {group.held:,} of {row.held_count:,}",
            "If the policy has an order or a limit for each group, its messages wait for others of the group, which are in "
            "flight or have failed: find out why those are not finished. With fair shares alone they wait for their turn, "
            "and more consumers would help. Other groups are not affected. In the tab Groups you can move or bury all waiting "
            "messages of the group.",
            number("held", group.held),
            number("in flight", group.in_flight),
            number("to be delivered again", group.again),
            age("oldest held", now - (group.oldest_at or now)),
            say("on", row.node),
        )
        return


def ignored_headers(channel: Channel, case: Case) -> Iterator[Finding]:
    ignored = sum(count for cause, count in channel.policy_recent if cause == _IGNORED)
    if not ignored:
        return
    yield case.finding(
        "D37",
        Severity.WARNING,
        f"{counted(ignored, 'message').capitalize()} of the last {in_minutes(LATELY)} had a wrong nsq-group",
        "The header is empty, longer than 128 bytes or not UTF-8, so these messages count as without a group: they have "
        "no order and no limit. Find out which publisher sends them.",
        number("wrong headers", ignored),
        window=LATELY,
    )
