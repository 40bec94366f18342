"""Metrics about tables, which the reference lists, too: so nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Kind = Literal["counter", "gauge"]
TABLES: Final[Mapping[str, tuple[Kind, str]]] = {  # labelled with the table
    "nsqpipe_table_files": ("gauge", "Files that the table names."),
    "nsqpipe_files_joined_total": ("counter", "Small files that became part of a large one."),
    "nsqpipe_files_removed_total": ("counter", "Files removed that no version needs, or that a crash has left."),
    "nsqpipe_upkeep_failures_total": ("counter", "Looks at the table that failed; each is tried again."),
}
