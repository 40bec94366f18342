"""Assigns new ids to a copied data path. It stands alone because it writes files without examining anything.

The node and each log get new ids. Otherwise history readers could mix up the copy and the original, once both have
given the same sequences to different messages. We write the new ids to the journal first, then to each log.json,
and to node.json last. If this is interrupted, run it again.
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
from nsqd.log.journal.own_changes import (
    KEYS,
    RESERVED_AHEAD,
    LogCheckpoint,
    RecoveredChanges,
    checkpoint_change,
    node_change,
    split_changes,
)
from nsqd.log.journal.recovery import JournalContents
from nsqd.log.segment import base_of_name

if TYPE_CHECKING:
    from nsqd.log.files import Files


def give_new_identity(files: Files, folder: Path, *, new_id: Callable[[], str]) -> tuple[str, dict[str, str]]:
    """Assign new ids to the node and its logs.

    Returns the node's id, and the log ids by topic. Raises DataPathError or OSError.
    """
    data_path = DataPath(folder, files, new_id=new_id)
    journal = Journal(folder, files, on_waiting=lambda: None, on_written=lambda: None)
    recovered = split_changes(journal.recover(JournalContents()))
    found = read_node(files, folder)
    ids_reserved = recovered.ids_reserved + RESERVED_AHEAD
    if isinstance(found, NodeFile):
        ids_reserved = max(found.ids_reserved, recovered.ids_reserved)
    elif not recovered.node:
        raise DataPathError(
            f"{folder / NODE_JSON} is {found}; start nsqd once first, to find out which message ids are in use"
        )
    node = new_id()
    logs: dict[str, str] = {}
    for topic in data_path.topic_names():
        log_id = data_path.read_log_id(data_path.topic_folder(topic))
        if log_id not in recovered.gone:
            logs[topic] = new_id()
    journal.record_quietly([node_change(node, ids_reserved)])
    for topic, log_id in logs.items():
        path = data_path.topic_folder(topic)
        known = recovered.checkpoints.get(topic)
        if known is not None and _is_of_another_log(known, data_path.read_log_id(path), recovered):
            # Do the same as nsqd at startup: the journal's cursors mean nothing here, so the channels start over.
            journal.record_quietly([("cut", topic, 0), (KEYS, topic, 0)])
            known = None
        place = known[1:] if known is not None else _beginning(files, path)
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


def _is_of_another_log(known: LogCheckpoint, log_id: str | None, recovered: RecoveredChanges) -> bool:
    """Return whether the journal's checkpoint is for another log than the one in the folder.

    For example, you restored the journal from a backup, and the topic has been deleted and created again since. But if
    the journal has replaced the folder's id, it's the same log: we were interrupted before we wrote the new id to
    log.json.
    """
    return log_id is not None and log_id != known.log_id and log_id not in recovered.replaced


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
