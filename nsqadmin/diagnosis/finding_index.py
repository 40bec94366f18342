"""The subjects of findings: channels, topics and nodes, and the sums of their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from nsqadmin.cluster.internal import is_internal
from nsqadmin.cluster.model import TAIL_PREFIX
from nsqadmin.diagnosis.incident import Cause, CauseKind, Numbers
from nsqadmin.diagnosis.rules import Family

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel, Finding, Snapshot


class Index:
    """Finds channels by name. `Snapshot.channel` scans a topic's channels, which is too slow for thousands of them."""

    def __init__(
        self, snapshot: Snapshot, findings: Iterable[Finding], sees: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`sees` says which topics the viewer may see."""
        self.snapshot = snapshot
        self._sees = sees
        self._by_silent_node: Counter[str] | None = None
        self._channels: dict[tuple[str, str], Channel] = {}
        for name in {finding.topic for finding in findings if finding.channel}:
            if (topic := snapshot.topic(name)) is not None:
                for channel in topic.channels:
                    self._channels[name, channel.name] = channel

    def channel(self, finding: Finding) -> Channel | None:
        return self._channels.get((finding.topic, finding.channel))

    def channels_on(self, silent: str) -> int:
        """Return how many channels a silent node has, whatever else is found about them."""
        if self._by_silent_node is None:
            topics = (it for it in self.snapshot.topics if not is_internal(it.name) and self._sees(it.name))
            channels = (channel for topic in topics for channel in topic.channels)
            self._by_silent_node = Counter(
                node for channel in channels if not channel.name.startswith(TAIL_PREFIX) for node in channel.silent
            )
        return self._by_silent_node[silent]

    def numbers(self, cause: Cause, findings: Sequence[Finding]) -> Numbers:
        """Return the sums over the findings' channels, topics and nodes, each counted once."""
        waiting, last_known, incoming, channels, is_known = 0, 0, 0.0, 0, False
        for topic_name, channel_name in {(finding.topic, finding.channel) for finding in findings if finding.topic}:
            found = self._channels.get((topic_name, channel_name)) if channel_name else self.snapshot.topic(topic_name)
            channels += bool(channel_name)
            if found is not None:
                waiting += found.depth
                if found.silent:
                    last_known += sum(row.depth for row in found.nodes if row.node in found.silent)
                incoming += found.rates.incoming or 0.0
                is_known |= found.rates.incoming is not None
        if not channels or cause.kind is CauseKind.NODE:
            found_nodes = map(self.snapshot.node, {finding.node for finding in findings if finding.node})
            nodes = [node for node in found_nodes if node is not None]
            if on_nodes := sum(node.depth for node in nodes):
                waiting = on_nodes
                last_known = sum(node.depth for node in nodes if not node.is_reachable)
        if cause.kind is CauseKind.NODE and cause.family is Family.REACH:
            channels = max(channels, self.channels_on(cause.name))
        return Numbers(
            waiting=waiting,
            last_known=last_known,
            incoming=incoming if is_known else None,
            channels=channels,
            findings=len(findings),
        )
