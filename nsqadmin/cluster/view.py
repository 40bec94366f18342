"""The view: the snapshot that pages and APIs show. The sampler is one, and so is a snapshot file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nsqadmin.cluster.model import Activity, Metric, Recording, Series, Snapshot, Span
from nsqadmin.cluster.recording import NotASnapshot, decode
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Producer, Topic


class View(Protocol):
    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot. Take it once for each answer, because the next access may return a newer one."""
        ...

    @property
    def started_at(self) -> float:
        """When nsqadmin began to watch; 0 for a snapshot file."""
        ...

    def series(self, key: str, span: Span, metrics: Collection[Metric] = tuple(Metric)) -> Series | None:
        """Return the history for a key such as `model.channel_series(...)`; None if it has none.

        It is quicker with few metrics.
        """
        ...

    def activity(self) -> tuple[Activity, ...]:
        """Return the activity, newest first."""
        ...

    def look_at(self, topic: str = "") -> None:
        """Note that someone looks at this topic, or at all consumers: for a while, sweeps request their clients."""
        ...

    async def refreshed(self, topic: str = "") -> Snapshot:
        """Poll all nodes now, with this topic's clients, and return the new snapshot. Called under asyncio."""
        ...

    async def after_actions(self) -> Snapshot:
        """Return the newest snapshot, or if it is older than an action of this nsqadmin, the next one. As `refreshed`."""
        ...


class SavedView:
    """The content of a snapshot file, which never changes."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @property
    def snapshot(self) -> Snapshot:
        return self._recording.snapshot

    @property
    def started_at(self) -> float:
        return 0.0

    def series(self, key: str, span: Span, metrics: Collection[Metric] = tuple(Metric)) -> Series | None:
        return self._recording.series.get(f"{key}@{span}")

    def activity(self) -> tuple[Activity, ...]:
        return self._recording.activity

    def look_at(self, topic: str = "") -> None:
        """Do nothing: a file has no more to offer."""

    async def refreshed(self, topic: str = "") -> Snapshot:
        return self.snapshot

    async def after_actions(self) -> Snapshot:
        return self.snapshot


def open_saved(path: str) -> SavedView:
    try:
        return SavedView(decode(Path(path).read_bytes()))
    except (OSError, NotASnapshot) as error:
        raise StartupError(f"failed to read --snapshot ({path}) - {error}") from error


def recorded(view: View, keys: Callable[[Snapshot], list[str]]) -> Recording:
    """Return the present state, with the series of `keys`, for a snapshot file."""
    snapshot = view.snapshot
    series = {
        f"{key}@{span}": found
        for key in keys(snapshot)
        for span in Span
        if (found := view.series(key, span)) is not None
    }
    return Recording(snapshot=snapshot, series=series, activity=view.activity())


def seen_by(snapshot: Snapshot, user: Identity) -> Snapshot:
    """Return the part of the snapshot that a user may see: without hidden topics, and without the words of nodes.

    A node's own words, such as the text of an error, can name any topic. Most users see everything, and get the
    snapshot itself.
    """
    if user.sees_everything:
        return snapshot
    sees = user.sees
    return replace(
        snapshot,
        topics=tuple(_without_words(topic, user) for topic in snapshot.topics if sees(topic.name)),
        nodes=tuple(node.seen_by(sees) for node in snapshot.nodes),
        lookupds=tuple(lookupd.seen_by(sees) for lookupd in snapshot.lookupds),
        unanswered=tuple(it.without_quote() for it in snapshot.unanswered),
        findings=tuple(found.without_quotes() for found in snapshot.findings if not found.topic or sees(found.topic)),
        pauses=tuple(paused for paused in snapshot.pauses if sees(paused.topic)),
        producers=None if snapshot.producers is None else tuple(_seen_producers(snapshot.producers, sees)),
        _by_name={},
        _by_address={},
    )


def _without_words(topic: Topic, user: Identity) -> Topic:
    if not topic.readers_untold:
        return topic
    return replace(
        topic, readers_untold=tuple(replace(it, reason=user.quoted(it.reason)) for it in topic.readers_untold)
    )


def _seen_producers(producers: Iterable[Producer], sees: Callable[[str], bool]) -> Iterator[Producer]:
    """Yield the producers, reduced to what the user may see. Skips producers that only publish to hidden topics."""
    for producer in producers:
        if counts := tuple(count for count in producer.counts if sees(count[0])):
            yield replace(producer, counts=counts)
