"""Whether too many rows of a landed table went to its quarantine: `quarantine_share.py TABLE --at-most 0.01`.

It reads what the tables' logs say of their files, and no rows. Exit status 3 when the share is above, as `nsqpipe lag` has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer
from deltalake import DeltaTable


@dataclass(frozen=True)
class Landed:
    good: int
    quarantined: int

    @property
    def share(self) -> float:
        return self.quarantined / max(1, self.good + self.quarantined)


def landed(table: str, days: int = 1) -> Landed:
    """Count messages of today and of so many days before: in all of a large table a bad hour would not be seen."""
    since = datetime.now(UTC).date() - timedelta(days=days)
    return Landed(_rows(table, since), _rows(f"{table}.quarantine", since))


def _rows(table: str, since: date) -> int:
    if not DeltaTable.is_deltatable(table):
        return 0  # a quarantine is made with the first row that fails
    files = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    is_new = pc.greater_equal(files["partition.date"].cast(pa.date32()), pa.scalar(since))
    return int(pc.sum(files.filter(is_new)["num_records"]).as_py() or 0)


def main(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="a Delta table that nsqpipe has landed")],
    at_most: Annotated[float, typer.Option(help="the share that is no alarm")] = 0.01,
) -> None:
    """Say how many of a table's messages went to its quarantine, today and yesterday."""
    found = landed(table)
    print(f"{found.quarantined:,} of {found.good + found.quarantined:,} messages are in quarantine: {found.share:.2%}")
    raise typer.Exit(3 if found.share > at_most else 0)


if __name__ == "__main__":
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(main)
    app()
