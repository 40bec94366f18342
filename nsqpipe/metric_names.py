"""The metrics of tables. This module doesn't need Spark, because the reference pages are generated from it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Kind = Literal["counter", "gauge"]
TABLES: Final[Mapping[str, tuple[Kind, str]]] = {  # labelled with the table
    "nsqpipe_table_files": ("gauge", "Files that the table's newest version has."),
    "nsqpipe_files_joined_total": ("counter", "Small files that became part of a large one."),
    "nsqpipe_files_removed_total": (
        "counter",
        "Files removed because no version needs them, or because a crash left them.",
    ),
    "nsqpipe_upkeep_failures_total": ("counter", "Upkeep of the table that failed; it is tried again."),
}
