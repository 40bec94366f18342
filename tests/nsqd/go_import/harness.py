"""What tests of the import share: a Go data path with some queues, and the import as nsqd runs it at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsqd.go_import.take_over import take_over
from nsqd.log.files import Files
from nsqd.log.store import DiskStore
from tests.support.go_data import GoData, Message, messages
from tests.support.log_settings import log_settings

Queues = dict[str, dict[str, list[Message]]]


def import_(folder: Path, *, files: Files | None = None, begin: bool = True, **settings: int) -> None:
    """Import as nsqd does at its start."""
    store = DiskStore.open(folder, log_settings(), files=files)
    numbers: Any = {"node_id": 7, "max_msg_size": 1 << 20, "max_bytes_per_file": 20_000} | settings
    try:
        take_over(store.data_path, store.files, begin=begin, **numbers)
    finally:
        store.abandon()


def write(folder: Path, queues: Queues, *, paused: tuple[str, ...] = ()) -> GoData:
    go = GoData(folder, max_bytes_per_file=5_000)
    for topic, by_channel in queues.items():
        for channel, written in by_channel.items():
            go.queue(f"{topic}:{channel}" if channel else topic, written)
    go.metadata(
        {topic: {name: f"{topic}:{name}" in paused for name in by if name} for topic, by in queues.items()},
        paused=paused,
    )
    return go


def some(count: int = 100, *, first: int = 0, attempts: tuple[int, ...] = (0,)) -> list[Message]:
    return list(messages(count, seed=first, first=first, attempts=attempts))
