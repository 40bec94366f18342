"""What a Delta table says of itself, how far it goes in each lane, and appending that keeps to it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError

from pyspark_nsqtable.ends import MARK, Refused, Span, advanced, application, joined, judgement
from pyspark_nsqtable.files import DataFile
from pyspark_nsqtable.lease import check_leases
from pyspark_nsqtable.places import Place
from pyspark_nsqtable.schemas import additions, retried, widen
from pyspark_nsqtable.sink import Target, action_of, check_fits, taken_turn, turn_of
from pyspark_nsqtable.unnamed import Unnamed, is_made

SELECTS: Final = "nsq/select"  # application of a table with what SQL has made of messages: only SQL can add to it


class AnotherJob(Exception):
    """Somebody else lands into the table at the same time."""


class NotJoined(Exception):
    """The batch does not join what the table has, or nobody can say what the table has."""


@dataclass
class Share:
    """What a task adds to one table: files, and the spans they are of, with the ends that the table had then."""

    spans: list[Span] = field(default_factory=list)
    ends: dict[str, int | None] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Which micro-batch a commit is of, and what else the table's log is to say of it."""

    query: str
    number: int
    told: Mapping[str, str]
    marks: Sequence[str] = ()  # applications by which the table says what kind of table it is, once


@dataclass(frozen=True, slots=True)
class Beside:
    """To which table a quarantine belongs, and who decides what lies in which of the two."""

    table: Target
    judge: int  # a fingerprint of the decoder and the rules


@dataclass(frozen=True, slots=True)
class Commit:
    """An append that may be made."""

    target: Target
    table: DeltaTable
    files: Sequence[DataFile]
    ends: Mapping[str, int]  # those that change
    of: str = ""  # the id of the table to which this one is the quarantine
    judge: int = 0  # whose rows a quarantine gets

    def widen(self) -> bool:
        """Give the table the fields that the rows bring and it lacks, and return whether it lacked some."""
        rows = Schema.from_arrow(self.target.schema)
        if not (self.ends and self.files and additions(self.table.schema(), rows)):
            return False
        widen(self.table, rows)
        return True

    def make(self, batch: Batch, brought: Unnamed) -> None:
        """Raises AnotherJob, or LeaseExpired. What the table had before is not added again."""
        if not self.ends:
            return
        check_leases((file.modified / 1000 for file in self.files), time.time())
        try:
            brought.try_commit(lambda: self._append(batch))
        except CommitFailedError as failure:
            if "Concurrent transaction" not in str(failure):
                raise
            raise another_job(self.target, next(iter(self.ends))) from failure

    def _append(self, batch: Batch) -> None:
        marks = [Transaction(it, 1) for it in (MARK, *batch.marks) if self.table.transaction_version(it) is None]
        if not is_marked(self.table):  # rows that were chosen by what it had then may be ours to bring
            marks.append(taken_turn(turn_of(self.table)))
        known = [Transaction(application(lane, self.of), end) for lane, end in self.ends.items()]
        if self.of:
            known += [Transaction(judgement(lane, self.of), self.judge) for lane in self.ends]
        properties = CommitProperties(
            custom_metadata={"nsq.query": batch.query, "nsq.batch": str(batch.number), **batch.told},
            app_transactions=[*marks, *known, Transaction(batch.query, batch.number)],
        )
        self.table.create_write_transaction(
            [action_of(file) for file in self.files],
            mode="append",
            schema=self.target.schema,
            partition_by=list(self.target.partitioning) or None,
            commit_properties=properties,
        )


def append(
    target: Target, shares: Sequence[Share], batch: Batch, brought: Unnamed, *, beside: Beside | None = None
) -> None:
    """Append what the tasks have brought. Whenever somebody has changed the schema meanwhile, it is judged anew.

    What fails is no failure if the table has the batch: an answer may be lost, and a store may refuse the repetition of a request
    that it has taken.
    """

    def attempt() -> None:
        commit = prepare(target, shares, beside=beside)
        if commit.widen():  # a commit of its own, during which others may have added messages
            commit = prepare(target, shares, beside=beside)
        commit.make(batch, brought)

    try:
        retried(attempt, again=lambda: None)
    except Exception:
        if not is_made(lambda: _has(target, shares, batch, beside)):
            raise


def _has(target: Target, shares: Sequence[Share], batch: Batch, beside: Beside | None) -> bool:
    if beside is not None:
        check_judge(target, shares, beside)
    table = target.table()
    spans = joined(span for share in shares for span in share.spans)
    ends = _ends(table, spans, beside=existing(beside.table) if beside else None)
    return table.transaction_version(batch.query) == batch.number and all(
        end is not None and end >= spans[lane].end for lane, end in ends.items()
    )


def check_judge(quarantine: Target, shares: Sequence[Share], beside: Beside) -> None:
    """Raises NotJoined where a quarantine is ahead of its table, and what is to be landed is judged by somebody else.

    A crash between the two commits leaves it ahead. Whoever goes on with the same decoder and rules finds the same rows in it. By
    others, some of its rows would be landed as well, and some that fail now would be in neither table.
    """
    table, bad = existing(beside.table), existing(quarantine)
    if table is None or bad is None:
        return
    of = str(table.metadata().id)
    for lane in sorted({span.lane for share in shares for span in share.spans}):
        end, ahead = table.transaction_version(application(lane)), bad.transaction_version(application(lane, of))
        is_ahead = ahead is not None and (end is None or ahead > end)
        if is_ahead and bad.transaction_version(judgement(lane, of)) != beside.judge:
            raise NotJoined(
                f"the quarantine at {quarantine.path} is ahead of the table at {beside.table.path}, as after a crash: messages "
                f"before {ahead} of lane {lane} were judged by another decoder or other rules; land once more with these, "
                "or name another quarantine"
            )


def prepare(target: Target, shares: Sequence[Share], *, beside: Beside | None = None) -> Commit:
    """Judges what the tasks have written, and adds none of it. `beside` says to which table a quarantine belongs.

    Raises NotJoined where rows would be missing, and AnotherJob where the table is no longer what the tasks saw.
    """
    spans = joined(span for share in shares for span in share.spans)
    table = target.table()
    check_fits(table, target)
    if not is_marked(table) and table.file_uris():
        raise NotJoined(rows_without_ends(target.path))
    main = None if beside is None else beside.table.table()
    ends = _ends(table, spans, beside=main)
    for share in shares:
        for lane, seen in share.ends.items():
            if ends[lane] != seen:
                raise another_job(target, lane)
    try:
        after = advanced(spans, ends)
    except Refused as refused:
        raise NotJoined(f"{target.path}: {refused}") from None
    files = [file for share in shares for file in share.files]
    if beside is None or main is None:
        return Commit(target, table, files, after)
    return Commit(target, table, files, after, str(main.metadata().id), beside.judge)


def ends_of(target: Target, lanes: Iterable[str], *, beside: Target | None = None) -> dict[str, int | None]:
    """How far the table goes, for a task; a quarantine goes as far as the table `beside` it at least.

    To open a table of ten thousand files takes as long as reading a hundred thousand messages, so a worker keeps it open and
    asks only what has come since. Should that miss something, `prepare` finds it.
    """
    if beside is None:
        return _ends(_kept_open(target.place), lanes)
    main = _kept_open(beside.place)
    # A quarantine knows nothing of a table that is still to be made.
    return _ends(None if main is None else _kept_open(target.place), lanes, beside=main)


def _kept_open(place: Place) -> DeltaTable | None:
    if not DeltaTable.is_deltatable(**place.for_delta()):
        return None
    table = _opened(place)
    table.update_incremental()
    return table


@lru_cache(maxsize=8)
def _opened(place: Place) -> DeltaTable:
    return DeltaTable(**place.for_delta())


def existing(target: Target | None) -> DeltaTable | None:
    """The table, if there is one."""
    if target is None or not DeltaTable.is_deltatable(**target.place.for_delta()):
        return None
    return DeltaTable(**target.place.for_delta())


def is_marked(table: DeltaTable) -> bool:
    """Whether all rows of the table are accounted for by ends."""
    return table.transaction_version(MARK) is not None


def _ends(table: DeltaTable | None, lanes: Iterable[str], *, beside: DeltaTable | None = None) -> dict[str, int | None]:
    """Where `beside` is given, `table` is its quarantine."""
    of = "" if beside is None else str(beside.metadata().id)
    found: dict[str, int | None] = {}
    for lane in lanes:
        ends = [
            it.transaction_version(application(lane, id)) for it, id in ((table, of), (beside, "")) if it is not None
        ]
        found[lane] = max((end for end in ends if end is not None), default=None)
    return found


def rows_without_ends(path: str) -> str:
    return (
        f"the table at {path} has rows, and does not say which messages of which log they are: "
        "whether a message is there already cannot be known; name another table"
    )


def another_job(target: Target, lane: str) -> AnotherJob:
    return AnotherJob(f"another job lands into the table at {target.path}: it took messages of lane {lane} meanwhile")
