"""Decides, before Spark starts, where a table stands and if a checkpoint belongs to it. An error is one line.

A Delta or Iceberg table itself knows its end of each lane. So losing a checkpoint does no harm, because landing
continues from the table. A checkpoint that is behind the table only repeats messages, which aren't added again. A
checkpoint that is ahead of the table isn't this table's.

A Parquet table, as Spark's file sink writes it, only knows the numbers of its batches. It skips a batch whose number it
has: a new checkpoint would begin with number 0 again, and nothing would land. So each checkpoint that fills a table
writes a note into the table's folder. The note's name is the query id in the checkpoint. A job may only continue if no
other checkpoint's note is there.

A job writes its note first, and only then looks for others. So if two jobs begin at the same time, at least one of them
sees the other's note, on a disk as well as in a store. Both may see each other and stop, before either has written a
row. A note never expires: its checkpoint may be on a disk of another machine, where its job still runs, so only a
person can know that it won't come back.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyarrow.fs import FileSelector, FileType

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import NsqError, Unreachable
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane, LaneBounds, resolve
from pyspark_nsq.options import SourceOptions, source_options
from pyspark_nsq.reports import lanes_of
from pyspark_nsq.source.checkpoints import (
    batches_in,
    check_topics,
    committed_in,
    make_checkpoint,
    offsets_of,
    planned_in,
    query_in,
)
from pyspark_nsq.stores.storage import names_in, read_text, remove_file, replace_text
from pyspark_nsq.tables.appending import is_accounted
from pyspark_nsq.tables.ends import Refused, Span, application, new_end
from pyspark_nsq.tables.shares import rows_without_ends
from pyspark_nsq.tables.table import Format, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from pyspark_nsq.source.queries import From
    from pyspark_nsq.stores.places import Place

NOTES: Final = "_landed_by"  # folder of notes; readers ignore names that begin with _
_NOTE: Final = ".json"
_STARTS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_BOUNDS: Final = (*_STARTS, "endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp", "lanes")


def check_standing(source: From, table: Table) -> From:
    """Return the source with its start. If the table's checkpoint was lost, it starts at the table's end.

    Raises PipeFailed if messages would be missing or duplicated, or if we can't rule that out.
    """
    try:
        options = source_options(source.as_options())
        checkpoint = Checkpoint.at(table.checkpoint_place)
        check_topics(checkpoint.spans, options, str(table.checkpoint_place))
        if table.format is Format.PARQUET:
            _check_parquet(table, checkpoint)
            return source
        held = _held(table)
        if checkpoint.spans:
            _check_joins(table, held, checkpoint)
            return source
        return source if held is None else _going_on(source, options, held)
    except NsqError as error:
        raise PipeFailed(str(error)) from error


def claim(table: Table) -> None:
    """Write a note into a Parquet table that this checkpoint fills it.

    Raises PipeFailed if another one has begun to.
    """
    place = table.checkpoint_place
    if not query_in(place):
        make_checkpoint(place, str(uuid.uuid4()))
    checkpoint = Checkpoint.at(place)
    _check_parquet(table, checkpoint)
    if checkpoint.id in _notes_in(table):
        return
    note = _note(table, checkpoint.id)
    replace_text(note, json.dumps({"checkpoint": place.absolute(), "host": socket.gethostname()}))
    try:
        _check_parquet(table, checkpoint)
    except PipeFailed:
        remove_file(note)
        raise


def up_to_the_end(source: From, table: Table) -> tuple[From | None, int]:
    """Return the part that a batch may add to a table, and how many of its messages are left to landing.

    Messages past the table's ends are left to landing, which would add them again. A lane that the table doesn't know
    is left to landing completely. None: everything is left to landing, or there is nothing to read.
    """
    delta = table.delta() if table.exists() else None
    if delta is None or not is_accounted(delta):
        return source, 0
    held = _HeldByDelta(delta)
    try:
        options = source_options(source.as_options())
        cluster = Cluster(options, Http(options.access))
        heads = cluster.heads()
        find, lossless = cluster.sequence_at, options.lossless
        begins = resolve(options.start, heads, find, option="startingOffsets", lossless=lossless)
        asked = resolve(options.end, heads, find, option="endingOffsets", lossless=lossless)
    except NsqError as error:
        raise PipeFailed(str(error)) from error
    places: dict[Lane, tuple[int, int]] = {}
    left = 0
    for lane, begin in begins.items():
        end = min(asked[lane], held.end_of(str(lane)) or 0)
        if begin < end:
            places[lane] = begin, end
        left += max(0, asked[lane] - max(begin, end))
    return (_within(source, places) if places else None), left


def _within(source: From, places: Mapping[Lane, tuple[int, int]]) -> From:
    """Return a source that reads these messages, and no other lane."""
    bounds = {
        "startingOffsets": json.dumps({str(lane): begin for lane, (begin, _) in sorted(places.items())}),
        "endingOffsets": json.dumps({str(lane): end for lane, (_, end) in sorted(places.items())}),
        "lanes": ",".join(map(str, sorted(places))),
    }
    kept = {name: text for name, text in source.options.items() if name.lower() not in _BOUNDS}
    return replace(source, topics=tuple(sorted({lane.topic for lane in places})), options={**kept, **bounds})


# Checkpoints


@dataclass(frozen=True, slots=True)
class Checkpoint:
    place: Place
    id: str  # of its query; empty: there is no checkpoint yet
    spans: Mapping[str, Span]  # where the next batch begins in each lane, as spans without messages

    @classmethod
    def at(cls, place: Place) -> Checkpoint:
        """Read a checkpoint. Raises PipeFailed."""
        query, planned = query_in(place), planned_in(place)
        if not planned:
            return cls(place, query, {})
        last = planned[-1]
        written = _offset_in(place, last)
        places = lanes_of(written)
        if last in committed_in(place):
            opens = isinstance(written, dict) and bool(written.get("initial"))
            return cls(place, query, {lane: Span(lane, at, at, opens) for lane, at in places.items()})
        # The last batch isn't committed, so Spark repeats it, from the end of the previous batch.
        begins = lanes_of(written, "begins")
        before = lanes_of(_offset_in(place, last - 1)) if last - 1 in planned else {}
        spans = {lane: Span(lane, at, at) for lane, at in before.items()}
        return cls(place, query, spans | {lane: Span(lane, at, at, True) for lane, at in begins.items()})

    @property
    def goes_on(self) -> bool:
        """True if something was landed from this checkpoint before."""
        return any(not span.opens for span in self.spans.values())


def _offset_in(checkpoint: Place, batch: int) -> Any:
    offsets = offsets_of(checkpoint, batch)
    if len(offsets) != 1:
        raise PipeFailed(f"the checkpoint {checkpoint} is not this job's: its offsets are not those of one source")
    return offsets[0]


# Tables that know their ends


class Held(Protocol):
    """The table's content by its own account."""

    def end_of(self, lane: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _HeldByDelta:
    table: DeltaTable

    def end_of(self, lane: str) -> int | None:
        end: int | None = self.table.transaction_version(application(lane))
        return end


def _held(table: Table) -> Held | None:
    """Return the table's content; None if it doesn't exist.

    Raises PipeFailed if it has rows that no ends account for.
    """
    if table.format is Format.ICEBERG:
        from pyspark_nsq.tables import iceberg_tables

        return iceberg_tables.standing(table)
    if not table.exists():
        return None
    delta = table.delta()
    if not is_accounted(delta) and delta.file_uris():
        raise PipeFailed(rows_without_ends(f"the table at {table.path}"))
    return _HeldByDelta(delta)


def _check_joins(table: Table, held: Held | None, checkpoint: Checkpoint) -> None:
    for lane, span in checkpoint.spans.items():
        end = None if held is None else held.end_of(lane)
        try:
            new_end(span, end)
        except Refused:
            raise PipeFailed(
                f"the checkpoint {checkpoint.place} goes on at {span.begin} of lane {lane}, and {_end_text(table, held, end)}: "
                "it is another table's, or the table was replaced. Name a new checkpoint: landing then begins where the table "
                "ends"
            ) from None


def _end_text(table: Table, held: Held | None, end: int | None) -> str:
    if held is None:
        return f"there is no table at {table.path}"
    return f"the table {table.path} {'has nothing of that lane' if end is None else f'ends at {end}'}"


def _going_on(source: From, options: SourceOptions, held: Held) -> From:
    """Return the source with the table's ends as its start; lanes without ends begin where the options say."""
    cluster = Cluster(options, Http(options.access))
    heads = {head.lane: head for head in _heads(cluster, options)}
    ends = {lane: end for lane in heads if (end := held.end_of(str(lane))) is not None}
    if not ends:
        return source
    start = options.start
    if isinstance(start, LaneBounds):
        start = replace(start, lanes={lane: at for lane, at in start.lanes.items() if lane not in ends})
    others = {lane: head for lane, head in heads.items() if lane not in ends}
    option, find = "startingOffsets", cluster.sequence_at
    begins = ends | resolve(start, others, find, option=option, lossless=options.lossless)
    written = json.dumps({str(lane): at for lane, at in sorted(begins.items())})
    kept = {name: text for name, text in source.options.items() if name.lower() not in _STARTS}
    return replace(source, options={**kept, "startingOffsets": written})


def _heads(cluster: Cluster, options: SourceOptions) -> Iterator[Head]:
    """Yield the visible lanes.

    If a lane's node is down, the lane begins with its first message once the node is back, and the table adds the rest.
    """
    for place in cluster.places(left_out=None if options.lossless else []):
        try:
            found = cluster.head(place)
        except Unreachable:
            if options.lossless and cluster.knows_all_nodes:
                raise
            continue
        if isinstance(found, Head):
            yield found


# Parquet


def _check_parquet(table: Table, checkpoint: Checkpoint) -> None:
    notes = _notes_in(table)
    is_ours = checkpoint.id in notes
    others = [_checkpoint_in(_note(table, it)) for it in notes if it != checkpoint.id]
    if batches_in(table.place.child("_spark_metadata")):
        if others or not is_ours:
            filled = f", which the checkpoint {' and '.join(others)} has filled" if others else ""
            raise PipeFailed(
                f"the checkpoint {checkpoint.place} is not the one that has filled the Parquet table {table.path}{filled}: "
                "such a table does not say which messages it has; name another table, or land into Delta, which does"
            )
        return
    if others:
        raise PipeFailed(
            f"another job, with the checkpoint {' and '.join(others)}, has begun to fill {table.path}: name another table, "
            f"or remove the note in {table.place.child(NOTES)} once that job has ended for good"
        )
    if checkpoint.goes_on:
        raise PipeFailed(
            f"the checkpoint {checkpoint.place} has landed messages, but there is no table at {table.path} that has them: "
            "to land all of them again name a new checkpoint"
        )
    if not is_ours and _has_files(table.place):  # with our note, they are leftovers of our first batch
        raise PipeFailed(f"{table.path} has files that no landing has written: name another table")


def _notes_in(table: Table) -> list[str]:
    """Return the ids of the checkpoints that have begun to fill the table."""
    names = names_in(table.place.child(NOTES))
    return sorted(it.removesuffix(_NOTE) for it in names if it.endswith(_NOTE) and not it.startswith("."))


def _note(table: Table, query: str) -> Place:
    return table.place.child(NOTES).child(f"{query}{_NOTE}")


def _checkpoint_in(note: Place) -> str:
    """Return the checkpoint that a note names. A torn note counts as well, but can't name its checkpoint."""
    try:
        found = json.loads(read_text(note) or "")
        return f"{found['checkpoint']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return f"whose note is {note}"


# Files


def _has_files(folder: Place) -> bool:
    filesystem, root = folder.filesystem()
    found = filesystem.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    return any(info.type is FileType.File and info.base_name.endswith(".parquet") for info in found)
