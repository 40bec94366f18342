"""Shows landed messages to a person: a sample of rows, and a bar for each of the last minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SAMPLE: Final = 10
_MINUTES: Final = 30
_WIDTH: Final = 50


def show_table(rows: DataFrame, out: TextIO) -> None:
    out.write(f"{rows.count():,} messages, the last of them:\n")
    shown = [name for name in ("topic", "sequence", "timestamp", "body", "value") if name in rows.columns]
    last = rows.select(*shown).orderBy(F.desc("timestamp"), F.desc("sequence")).limit(_SAMPLE).collect()
    out.writelines("  ".join(_cell(row[name]) for name in shown) + "\n" for row in reversed(last))
    minutes = rows.groupBy(F.date_trunc("minute", "timestamp").alias("minute")).count()
    found = minutes.orderBy(F.desc("minute")).limit(_MINUTES).collect()
    out.write("\nmessages a minute (UTC):\n")
    out.writelines(
        line + "\n" for line in chart([(f"{row['minute']:%m-%d %H:%M}", int(row["count"])) for row in reversed(found)])
    )


def chart(values: list[tuple[str, int]]) -> list[str]:
    most = max((count for _, count in values), default=0)
    return [f"{name} {'█' * round(count * _WIDTH / most) if most else ''} {count:,}" for name, count in values]


def _cell(value: object) -> str:
    text = bytes(value).decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
