"""Reads a Delta table's ends of lanes, and appends batches accordingly."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from pyarrow.fs import FileSystem

from pyspark_nsq.stores.places import Place
from pyspark_nsq.tables.ends import ACCOUNTED, application, judgement, known_ends
from pyspark_nsq.tables.files import DataFile
from pyspark_nsq.tables.lease import check_leases
from pyspark_nsq.tables.schemas import additions, retried, widen
from pyspark_nsq.tables.shares import (
    Batch,
    NotJoined,
    Share,
    another_job,
    are_there,
    check_ahead,
    files_of,
    lanes_of,
    new_ends,
    rows_without_ends,
)
from pyspark_nsq.tables.sink import Target, action_of, check_fits, taken_turn, turn_of
from pyspark_nsq.tables.unnamed import Unnamed, is_made


@dataclass(frozen=True, slots=True)
class Beside:
    """A quarantine's table, and the fingerprint of the rules that decide which rows go where."""

    table: Target
    judge: int  # a fingerprint of the decoder and the rules, which together judge each row


@dataclass(frozen=True, slots=True)
class Commit:
    """An append that the table's ends allow."""

    target: Target
    table: DeltaTable
    files: Sequence[DataFile]
    ends: Mapping[str, int]  # new ends of the lanes whose ends change
    of: str = ""  # for a quarantine: the id of its table
    judge: int = 0  # for a quarantine: see `Beside`

    def widen(self) -> bool:
        """Add fields of the rows that the table lacks to its schema. Return True if there were any."""
        rows = Schema.from_arrow(self.target.schema)
        if not (self.ends and self.files and additions(self.table.schema(), rows)):
            return False
        widen(self.table, rows)
        return True

    def make(self, batch: Batch, brought: Unnamed) -> None:
        """Make the commit, unless the table already has everything. Raises AnotherJob or LeaseExpired."""
        if not self.ends:
            return
        check_leases((file.modified / 1000 for file in self.files), time.time())
        try:
            brought.try_commit(lambda: self._append(batch))
        except CommitFailedError as failure:
            if "Concurrent transaction" not in str(failure):
                raise
            raise another_job(name_of(self.target), next(iter(self.ends))) from failure

    def _append(self, batch: Batch) -> None:
        marks = [Transaction(it, 1) for it in (ACCOUNTED, *batch.marks) if self.table.transaction_version(it) is None]
        # The first landing ends the turn of backfills that chose their rows by the table's content before: both would
        # add them.
        if not is_accounted(self.table):
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


@dataclass(frozen=True, slots=True)
class DeltaDestination:
    """A Delta table that landing adds rows to. `beside` is given for a quarantine."""

    target: Target
    beside: Beside | None = None

    keeps_columns: ClassVar[bool] = False  # Delta's log has the partition values of each file

    @property
    def schema(self) -> pa.Schema:
        return self.target.schema

    @property
    def partitioning(self) -> tuple[str, ...]:
        return self.target.partitioning

    def filesystem(self) -> tuple[FileSystem, str]:
        return self.target.filesystem()

    def ends_of(self, lanes: Iterable[str]) -> dict[str, int | None]:
        """Return the table's ends of these lanes, as a task knows them.

        Opening a table of ten thousand files takes as long as reading a hundred thousand messages. So a worker keeps
        the table open, and only reads new commits. If it misses something, the commit in the driver notices.
        """
        if self.beside is None:
            return _ends(_kept_open(self.target.place), lanes)
        main = _kept_open(self.beside.table.place)
        # As long as the table doesn't exist, its quarantine can't have ends for it.
        return _ends(None if main is None else _kept_open(self.target.place), lanes, beside=main)

    def check_judge(self, shares: Sequence[Share]) -> None:
        if self.beside is None:
            return
        table, bad = existing(self.beside.table), existing(self.target)
        if table is not None and bad is not None:
            check_ahead(
                (table.transaction_version, bad.transaction_version),
                shares,
                of=str(table.metadata().id),
                judge=self.beside.judge,
                names=(name_of(self.beside.table), f"the quarantine at {self.target.path}"),
            )

    def prepare(self, shares: Sequence[Share]) -> None:
        self._judged(shares)

    def append(self, shares: Sequence[Share], batch: Batch, brought: Unnamed) -> None:
        """Append the tasks' files; check them again whenever another writer has changed the schema in the meantime.

        An error is ignored if the table has the batch: the answer to the commit may have been lost, or a store may have
        refused the repeat of a request that it had already accepted.
        """

        def attempt() -> None:
            commit = self._judged(shares)
            if commit.widen():  # a separate commit, during which others may have added messages
                commit = self._judged(shares)
            commit.make(batch, brought)

        try:
            retried(attempt, again=lambda: None)
        except Exception:
            if not is_made(lambda: self._has(shares, batch)):
                raise

    def _judged(self, shares: Sequence[Share]) -> Commit:
        """Return the commit that adds the tasks' files. Raises NotJoined, AnotherJob, or BadTable."""
        table = self.target.table()
        check_fits(table, self.target)
        if not is_accounted(table) and table.file_uris():
            raise NotJoined(rows_without_ends(name_of(self.target)))
        main = None if self.beside is None else self.beside.table.table()
        ends = _ends(table, lanes_of(shares), beside=main)
        after, files = new_ends(shares, ends, name_of(self.target)), files_of(shares)
        if self.beside is None or main is None:
            return Commit(self.target, table, files, after)
        return Commit(self.target, table, files, after, str(main.metadata().id), self.beside.judge)

    def _has(self, shares: Sequence[Share], batch: Batch) -> bool:
        self.check_judge(shares)
        table = self.target.table()
        beside = None if self.beside is None else existing(self.beside.table)
        is_named: bool = table.transaction_version(batch.query) == batch.number
        return is_named and are_there(shares, _ends(table, lanes_of(shares), beside=beside))


def _kept_open(place: Place) -> DeltaTable | None:
    if not DeltaTable.is_deltatable(**place.for_delta()):
        return None
    table = _opened(place)
    table.update_incremental()
    return table


@lru_cache(maxsize=8)
def _opened(place: Place) -> DeltaTable:
    return DeltaTable(**place.for_delta())


def existing(target: Target) -> DeltaTable | None:
    """Return the table, or None if it does not exist."""
    if not DeltaTable.is_deltatable(**target.place.for_delta()):
        return None
    return DeltaTable(**target.place.for_delta())


def is_accounted(table: DeltaTable) -> bool:
    """Return True if the ends of its lanes account for all rows of the table."""
    return table.transaction_version(ACCOUNTED) is not None


def _ends(table: DeltaTable | None, lanes: Iterable[str], *, beside: DeltaTable | None = None) -> dict[str, int | None]:
    """Return the table's ends. With `beside`, `table` is its quarantine."""
    said = None if table is None else table.transaction_version
    if beside is None:
        return known_ends(lanes, said)
    return known_ends(lanes, said, of=str(beside.metadata().id), beside=beside.transaction_version)


def name_of(target: Target) -> str:
    """Return its name for people."""
    return f"the table at {target.path}"
