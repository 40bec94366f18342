"""What everybody looks at: the sampler's picture, or a file's. Both are this."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from common.startup import StartupError
from nsqadmin.cluster.model import Activity, Recording, Series, Snapshot, Span
from nsqadmin.cluster.recording import NotASnapshot, decode


class View(Protocol):
    @property
    def snapshot(self) -> Snapshot:
        """The newest picture, whole: take it once for each answer."""
        ...

    def series(self, key: str, span: Span) -> Series | None:
        """How the numbers of `model.channel_series(...)` and its like went; None: nothing is known of it."""
        ...

    def activity(self) -> tuple[Activity, ...]:
        """What happened, the newest first."""
        ...

    def look_at(self, topic: str = "") -> None:
        """Somebody looks at this topic, or at all consumers: the next sweeps ask for its clients, for a while."""
        ...

    async def refreshed(self, topic: str = "") -> Snapshot:
        """All nodes are asked anew now, with this topic's clients. For asyncio."""
        ...


class SavedView:
    """A file: nothing moves."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @property
    def snapshot(self) -> Snapshot:
        return self._recording.snapshot

    def series(self, key: str, span: Span) -> Series | None:
        return self._recording.series.get(f"{key}@{span}")

    def activity(self) -> tuple[Activity, ...]:
        return self._recording.activity

    def look_at(self, topic: str = "") -> None:
        """A file holds what it holds."""

    async def refreshed(self, topic: str = "") -> Snapshot:
        return self.snapshot


def open_saved(path: str) -> SavedView:
    try:
        return SavedView(decode(Path(path).read_bytes()))
    except (OSError, NotASnapshot) as error:
        raise StartupError(f"failed to read --snapshot ({path}) - {error}") from error


def recorded(view: View, keys: Callable[[Snapshot], list[str]]) -> Recording:
    """What is seen now, to be kept in a file."""
    snapshot = view.snapshot
    series = {
        f"{key}@{span}": found
        for key in keys(snapshot)
        for span in Span
        if (found := view.series(key, span)) is not None
    }
    return Recording(snapshot=snapshot, series=series, activity=view.activity())
