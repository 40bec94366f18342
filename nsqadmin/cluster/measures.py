"""The numbers of topics and channels that nsqd reports: one field each, from which everything else follows.

The fields are in the records of the model, and therefore in `/api/v2`. A field's measure has its name in `/stats` and
its texts for the nodes table, the glossary, the live cells and `/metrics`. Reading and summing use these fields, too,
so to add a number of nsqd's you only add a field here.

Computed values (rates, ages, ready counts) aren't here, and neither are `paused` and latencies, which aren't simple
sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Unit = Literal["count", "size"]  # the form in which pages show it


class Counted(IntEnum):
    """How a measure counts. Columns and metrics are in this order."""

    HELD = 0  # messages there now
    HAPPENED = 1  # outcomes of messages since nsqd started
    ARRIVED = 2  # messages since nsqd started
    CONSUMERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    name: str = ""  # of its field
    key: str = ""  # in /stats; a foreign or older nsqd may not send it, which counts as 0
    is_nsqs: bool  # every nsqd has it, so its column is always shown; ours are shown if they aren't 0
    counted: Counted
    unit: Unit
    label: str  # label of its column, and its title in the glossary
    column: str  # sort key in tables; empty: no table has it
    word: str  # its entry in the glossary
    words: str  # text of that entry; empty: glossary.py or another measure has it
    is_live: bool
    cell: str  # last part of its key among the live cells
    metric: str  # nsq_topic_<metric> or nsq_channel_<metric>; empty: it has none
    help: str  # help text of the metric
    read: Callable[[Any], int]  # from a record that has the field


def number(
    label: str = "",
    words: str = "",
    *,
    column: str = "",
    word: str | None = None,
    key: str = "",
    is_nsqs: bool = False,
    counted: Counted = Counted.HAPPENED,
    unit: Unit = "count",
    is_live: bool = True,
    cell: str = "",
    metric: str = "",
    help: str = "",
) -> int:
    """Declare the field of a measure. By default, `key` and `cell` are the name of the field, and `word` is that of the
    column.
    """
    measure = Measure(
        key=key,
        is_nsqs=is_nsqs,
        counted=counted,
        unit=unit,
        label=label,
        column=column,
        word=column if word is None else word,
        words=words,
        is_live=is_live,
        cell=cell,
        metric=metric,
        help=help,
        read=attrgetter(""),
    )
    return field(default=0, metadata={"measure": measure})


def measures_of(record: type[ChannelNumbers | TopicNumbers]) -> Sequence[Measure]:
    """Return the measures of a record, in column order."""
    found = [_named(it.name, it.metadata["measure"]) for it in fields(record) if "measure" in it.metadata]
    return sorted(found, key=lambda it: it.counted)


def _named(name: str, it: Measure) -> Measure:
    return replace(it, name=name, key=it.key or name, cell=it.cell or name, read=attrgetter(name))


_ON_DISK: Final = "The part of the depth that is no longer in memory and has to be read from disk first. A Python nsqd keeps every message on disk, and counts here those that are not in its cache."
_MESSAGES: Final = (
    "All messages since this nsqd started. After a restart it starts from the messages that were left over."
)


# The order of the fields is that of `/api/v2`: NSQ's first.


@dataclass(frozen=True, slots=True)
class ChannelNumbers:
    """The counts of a channel on a node, and their sums over nodes."""

    NUMBERS_AFTER: ClassVar[tuple[str, str]]  # see `members_of` in recording.py

    depth: int = number(
        "Depth",
        "Messages that wait to be delivered. It does not include those that a consumer is handling (in flight) and those with a delay (deferred).",
        column="depth",
        is_nsqs=True,
        counted=Counted.HELD,
        metric="depth",
        help="Waiting messages.",
    )
    backend_depth: int = number("On disk", _ON_DISK, column="disk", is_nsqs=True, counted=Counted.HELD)
    in_flight_count: int = number(
        "In flight",
        "Messages that were sent to a consumer and are neither finished, requeued nor timed out.",
        column="inflight",
        word="in-flight",
        is_nsqs=True,
        counted=Counted.HELD,
        cell="in_flight",
        metric="in_flight",
        help="Messages being handled.",
    )
    deferred_count: int = number(
        "Deferred",
        "Messages that were published or requeued with a delay, which is not over yet. The depth does not include them.",
        column="deferred",
        is_nsqs=True,
        counted=Counted.HELD,
        cell="deferred",
        metric="deferred",
        help="Messages that wait for their delay.",
    )
    message_count: int = number("Messages", _MESSAGES, column="messages", is_nsqs=True, counted=Counted.ARRIVED)
    requeue_count: int = number(
        "Requeued",
        "Messages that consumers have requeued, usually because handling them failed.",
        column="requeued",
        is_nsqs=True,
    )
    timeout_count: int = number(
        "Timed out",
        "Messages that a consumer has kept longer than msg_timeout without an answer; they are delivered again.",
        column="timed-out",
        is_nsqs=True,
    )
    client_count: int = number(
        "Consumers",
        column="consumers",
        is_nsqs=True,
        counted=Counted.CONSUMERS,
        cell="clients",
        metric="clients",
        help="Connected consumers.",
    )
    buried_count: int = number(
        "Buried",
        "Messages that have failed for good. They stay in the channel with the reason. They aren't delivered, and don't count in the depth, until you kick them, which requeues them, or discard them. Only a Python nsqd buries messages.",
        column="buried",
        counted=Counted.HELD,
        cell="buried",
        metric="buried",
        help="Messages that have failed for good and are no longer delivered.",
    )
    max_in_flight: int = number(
        "In flight at most",
        "How many messages may be in flight on each node, for all consumers together, by max_in_flight of its policy file. The nodes' sum is the most that can be in flight. Only a Python nsqd has such a limit.",
        column="limit",
        word="max-in-flight",
        counted=Counted.HELD,
        metric="max_in_flight",
        help="The most messages that may be in flight, by the nodes' policy files; 0: no limit.",
    )
    held_count: int = number(
        "Held",
        "The part of the depth that waits for other messages of its groups (nsq-group), because the policy file has an order, a limit or shares for groups. Only a Python nsqd has groups.",
        column="held",
        counted=Counted.HELD,
        cell="held",
        metric="held",
        help="The part of the waiting messages that waits for others of their groups.",
    )

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth


@dataclass(frozen=True, slots=True)
class TopicNumbers:
    """The counts of a topic on a node, and their sums over nodes."""

    NUMBERS_AFTER: ClassVar[tuple[str, str]]

    depth: int = number(  # messages waiting for a first channel, or for the end of the topic's pause
        "Waiting in topic",
        "Messages that no channel has received yet, because the topic has no channel or is paused. Messages in a channel are counted there.",
        column="depth",
        word="topic-depth",
        is_nsqs=True,
        counted=Counted.HELD,
        metric="depth",
        help="Messages that no channel has received yet.",
    )
    backend_depth: int = number("On disk", column="disk", is_nsqs=True, counted=Counted.HELD)
    message_count: int = number(
        "Messages",
        column="messages",
        is_nsqs=True,
        counted=Counted.ARRIVED,
        metric="messages",
        help="Messages since the nodes started.",
    )
    message_bytes: int = number(
        "Data", column="data", word="", is_nsqs=True, counted=Counted.ARRIVED, unit="size", is_live=False
    )
    repeat_count: int = number(  # repeats, recognized by their keys and dropped
        "Repeats",
        "Repeated publishes since this nsqd started: it knew their key, so it kept no second message.",
        word="repeats",
        counted=Counted.ARRIVED,
        metric="repeats",
        help="Repeated publishes since the nodes started: their key was known, so no second message was kept.",
    )

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth
