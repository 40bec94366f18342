"""A new identity for a copied or restored data path, so that nobody mistakes it for the original.

The node and each log get new ids. What readers of history saw under the old ids stays true for the original. The new
ids are written to the journal first, then to each log's own file, and finally to node.json. After an interruption, run
it again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nsqd.log.data_path import (
    LOG_JSON,
    NODE_JSON,
    DataPath,
    DataPathError,
    NodeFile,
    keep_small_file_aside,
    read_node,
    write_log_json,
    write_node,
)
from nsqd.log.journal.journal import Journal
from nsqd.log.journal.own_changes import RESERVED_AHEAD, LogCheckpoint, checkpoint_change, node_change, split_changes
from nsqd.log.journal.recovery import JournalContents
from nsqd.log.segment import base_of_name

if TYPE_CHECKING:
    from nsqd.log.files import Files


def give_new_identity(files: Files, folder: Path, *, new_id: Callable[[], str]) -> tuple[str, dict[str, str]]:
    """Return the new node id, and the new log ids by topic. Raises DataPathError or OSError."""
    data_path = DataPath(folder, files, new_id=new_id)
    journal = Journal(folder, files, on_waiting=lambda: None, on_written=lambda: None)
    told = split_changes(journal.recover(JournalContents()))
    found = read_node(files, folder)
    ids_reserved = told.ids_reserved + RESERVED_AHEAD
    if isinstance(found, NodeFile):
        ids_reserved = max(found.ids_reserved, told.ids_reserved)
    elif not told.node:
        raise DataPathError(
            f"{folder / NODE_JSON} is {found}: start nsqd on it once, which finds out what was given out"
        )
    node = new_id()
    logs: dict[str, str] = {}
    for topic in data_path.topic_names():
        log_id = data_path.read_log_id(data_path.topic_folder(topic))
        if log_id not in told.gone:
            logs[topic] = new_id()
    journal.record_quietly([node_change(node, ids_reserved)])
    for topic, log_id in logs.items():
        known = told.checkpoints.get(topic)
        place = known[1:] if known is not None else _beginning(files, data_path.topic_folder(topic))
        journal.record_quietly([checkpoint_change(topic, LogCheckpoint(log_id, *place))])
    try:
        _write(files, journal)
    finally:
        journal.close()
    for topic, log_id in logs.items():
        path = data_path.topic_folder(topic)
        if data_path.read_log_id(path) is None:
            keep_small_file_aside(files, path / LOG_JSON)
        write_log_json(files, path, topic, log_id, durable=True)
    if not isinstance(found, NodeFile):
        keep_small_file_aside(files, folder / NODE_JSON)
    write_node(files, folder, NodeFile(node, ids_reserved, journal.synced_end))
    return node, logs


def _beginning(files: Files, folder: Path) -> tuple[int, int, int]:
    bases = [base for name in files.names_in(folder) if (base := base_of_name(name)) is not None]
    first = min(bases, default=0)
    return first, 0, first


def _write(files: Files, journal: Journal) -> None:
    if journal.write():
        sync = journal.begin_sync(also_quiet=True)
        if sync is not None:
            sync.perform(files)
            journal.end_sync(sync)
    if journal.error is not None:
        raise DataPathError(journal.error.text)
