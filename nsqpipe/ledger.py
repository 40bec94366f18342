"""Builds the last line of a job: the number of rows read, where they are, and what happened to the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqpipe.progress import Tally
from pyspark_nsq.failures import first_cause
from pyspark_nsq.kinds import Format

if TYPE_CHECKING:
    from pyspark_nsq.tables.table import Table


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a table."""

    rows: int | None  # None: its log doesn't say
    files: frozenset[str]


class Ledger:
    """Counts the rows in reports of a job's queries. The number of landed rows comes from the tables."""

    def __init__(self, name: str, where: str) -> None:
        self._name = name
        self._where = where
        self._tallies: dict[str, Tally] = {}
        self._tables: list[_Watched] = []

    def watch(self, what: str, table: Table) -> None:
        self._tables.append(_Watched(what, table, _contents(table)))

    def observe(self, query: str, report: Mapping[str, Any]) -> None:
        self._tallies.setdefault(query, Tally()).add(report)

    def summary(self, seconds: float) -> str:
        """Return the last line of a job that took this many seconds.

        `land: 1,200 rows read in 3.1 s, 1,199 landed in 4 files, 1 quarantined in 1 file, 0 late, 0 behind; table
        /data/t`
        """
        tallies = self._tallies.values()
        parts = [f"{max((it.rows for it in tallies), default=0):,} rows read in {seconds:.1f} s"]
        parts += [table.summary() for table in self._tables]
        late = max((it.late for it in tallies), default=0)
        parts.append(f"at least {late:,} late" if late else "0 late")
        parts.append(
            f"{max((it.behind for it in tallies), default=0):,} behind" if tallies else "no batch was finished"
        )
        if missing := self.missing:
            parts.append(f"without {', '.join(missing)}")
        return f"{self._name}: {', '.join(parts)}; {self._where}"

    @property
    def missing(self) -> dict[str, str]:
        """The nodes that did not answer at the end, and why."""
        return {node: why for it in self._tallies.values() for node, why in it.missing.items()}


@dataclass(frozen=True, slots=True)
class _Watched:
    what: str
    table: Table
    before: Contents | str  # a text: why it is unknown

    def summary(self) -> str:
        after = _contents(self.table)
        if isinstance(self.before, str) or isinstance(after, str):
            return f"{self.what}: not known ({after if isinstance(after, str) else self.before})"
        files = len(after.files - self.before.files)
        among = f"in {files:,} {'file' if files == 1 else 'files'}"
        if after.rows is None or self.before.rows is None:
            return f"{self.what} {among}"
        return f"{after.rows - self.before.rows:,} {self.what} {among}"


def _contents(table: Table) -> Contents | str:
    """Return the table's content, or a text that says why it is unknown."""
    try:
        match table.format:
            case Format.DELTA:
                return _delta(table)
            case Format.ICEBERG:
                from pyspark_nsq.tables import iceberg_tables

                return Contents(*iceberg_tables.contents(table))
            case Format.PARQUET:
                return _parquet(table.path)
    except Exception as error:  # whatever the storage raises, it must not change how the job ends
        return first_cause(error)


def _delta(table: Table) -> Contents:
    import pyarrow as pa

    if not table.exists():
        return Contents(0, frozenset())
    actions = pa.table(table.delta().get_add_actions(flatten=True))
    rows = actions["num_records"]
    return Contents(None if rows.null_count else sum(rows.to_pylist()), frozenset(actions["path"].to_pylist()))


def _parquet(path: str) -> Contents:
    """Count the existing files; only Spark knows which of them belong to the table."""
    if "://" in path:
        raise ValueError("Parquet files are counted on local disks only")
    return Contents(None, frozenset(str(it) for it in Path(path).rglob("*.parquet")))
