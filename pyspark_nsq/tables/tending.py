"""Joins a table's small files and removes unneeded ones, as `upkeep.py` decides, once or beside a stream.

A stream never waits for this, and never ends because of it: a failure is reported, counted, and tried again later.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from pyarrow.fs import FileSelector, FileType

from pyspark_nsq.kinds import Format
from pyspark_nsq.observing import tell
from pyspark_nsq.stores.storage import cause_of, read_text, replace_text
from pyspark_nsq.tables.joining import join, named_files
from pyspark_nsq.tables.upkeep import FoundFile, Policy, Tended, joinings, known_from, known_removals, leftovers

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from pyspark_nsq.stores.places import Place
    from pyspark_nsq.tables.table import Table

_MARK: Final = "_nsqpipe_upkeep.json"  # time of the last vacuum; Delta ignores names that begin with _
_PATIENCE: Final = 60.0  # seconds for a running look when the stream ends

Observer = Callable[[Tended], None]


def tend(table: Table, policy: Policy, *, now: float, vacuum_now: bool = False) -> Tended:
    """Tend the table once. A table that doesn't exist yet needs nothing."""
    if table.format is Format.ICEBERG:
        return _tend_iceberg(table, policy, now=now)
    if not table.exists():
        return Tended(table=table.path)
    joined, made = join_small(table, policy, now)
    removed = 0
    if policy.vacuum_after is not None and (vacuum_now or _is_due(table.place, policy, now)):
        removed = vacuum(table, policy.vacuum_after, now)
        replace_text(table.place.child(_MARK), json.dumps({"vacuumed": now}))
    files = len(table.delta().file_uris())
    return Tended(table=table.path, files=files, joined=joined, made=made, removed=removed)


def _tend_iceberg(table: Table, policy: Policy, *, now: float) -> Tended:
    """Expire snapshots, remove crash leftovers. pyiceberg cannot join files."""
    from pyspark_nsq.tables import iceberg_tables

    with iceberg_tables.existing(table) as opened:
        if opened is None:
            return Tended(table=table.path)
        place, removed = iceberg_tables.place_of_files(table, opened), 0
        if policy.vacuum_after is not None:
            iceberg_tables.expire(opened, now - policy.vacuum_after)
            if _is_due(place, policy, now):
                found = _files_below(place)
                removed = _remove(place, leftovers(found, iceberg_tables.names_needed(opened), now))
                replace_text(place.child(_MARK), json.dumps({"vacuumed": now}))
        return Tended(table=table.path, files=iceberg_tables.count_files(opened), removed=removed)


def join_small(table: Table, policy: Policy, now: float) -> tuple[int, int]:
    """Join small files. Return how many files are gone, and how many replaced them."""
    joined = made = 0
    for joining in joinings(named_files(table.delta()), policy, now):
        if join(table.place, joining):
            joined += len(joining.files)
            made += 1
    return joined, made


def vacuum(table: Table, keep: float, now: float) -> int:
    """Remove files that only versions older than `keep` seconds need, and leftovers of crashes. Return how many."""
    properties = _knowing_removals(table.delta(), keep, now)
    found = [it for it in _files_below(table.place) if not it.path.startswith("_delta_log/")]
    delta = table.delta()  # after the list: see leftovers()
    removed = delta.vacuum(retention_hours=int(keep // 3600), dry_run=True, enforce_retention_duration=False)
    if removed:  # a vacuum makes two commits, so we skip it if there is nothing to do
        delta.vacuum(retention_hours=int(keep // 3600), dry_run=False, enforce_retention_duration=False)
    abandoned = leftovers(found, _names_needed(delta), now, known_from=known_from(properties, keep, now))
    return len(removed) + _remove(table.place, abandoned)


def _files_below(place: Place) -> list[FoundFile]:
    filesystem, root = place.filesystem()
    selector = FileSelector(root, recursive=True, allow_not_found=True)
    return [
        FoundFile(it.path.removeprefix(f"{root}/"), it.mtime_ns / 1e9)
        for it in filesystem.get_file_info(selector)
        if it.type is FileType.File
    ]


def _remove(place: Place, paths: Sequence[str]) -> int:
    filesystem, root = place.filesystem()
    for path in paths:
        filesystem.delete_file(f"{root}/{path}")
    return len(paths)


def _knowing_removals(delta: DeltaTable, keep: float, now: float) -> dict[str, str]:
    """Make the table keep the notes of its removals for as long as versions are kept. Return its properties."""
    properties = dict(delta.metadata().configuration)
    if changed := known_removals(properties, keep, now):
        delta.alter.set_table_properties(changed, raise_if_not_exists=False)
    return properties | changed


def _names_needed(delta: DeltaTable) -> set[str]:
    """Return the names of all files needed by the newest version, or by an earlier one that may still be read."""
    gone = delta.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
    return {unquote(path).rpartition("/")[2] for path in [*gone, *delta.file_uris()]}


def _is_due(place: Place, policy: Policy, now: float) -> bool:
    try:
        last = float(json.loads(read_text(place.child(_MARK)) or "{}").get("vacuumed", 0))
    except (ValueError, TypeError, AttributeError):
        last = 0.0
    return not 0 <= now - last < policy.vacuum_every


# Beside a stream


@contextmanager
def tended(tables: Sequence[Table], policy: Policy | None, observers: Sequence[Observer]) -> Iterator[None]:
    """Tend these tables in a thread while the block runs, and once more at its end, unless it failed."""
    if policy is None or not tables:
        yield
        return
    stop = threading.Event()

    def look() -> None:
        for table in tables:
            tell(observers, tend_safely(table, policy, now=time.time()))

    def keep_on() -> None:
        while not stop.wait(policy.every):
            look()

    thread = threading.Thread(target=keep_on, daemon=True, name="upkeep")
    thread.start()
    try:
        yield
    finally:
        stop.set()
    thread.join(_PATIENCE)
    if not thread.is_alive():
        look()


def tend_safely(table: Table, policy: Policy, *, now: float) -> Tended:
    try:
        return tend(table, policy, now=now)
    except Exception as error:  # from us or three libraries; the thread has to live, because upkeep would end with it
        return Tended(table=table.path, failed=cause_of(error, table.place))
