"""What becomes of messages before they lie in a table: the same in a stream and in a batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from nsqpipe.quality import Rule, judged, observed
from nsqpipe.selection import unfolded, with_selected
from nsqpipe.transforms import decoded, with_partitions
from pyspark_nsqtable.decoding import Decoder, RawDecoder
from pyspark_nsqtable.landing import packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    decoder: Decoder = field(default_factory=RawDecoder)
    rules: tuple[Rule, ...] = ()
    select: str = ""  # what the table gets, as SQL
    drops_body: bool = False  # of what was understood; the quarantine always has it

    @property
    def can_fail(self) -> bool:
        return self.decoder.value_type is not None or bool(self.rules)

    @property
    def needs_sql(self) -> bool:
        """Whether Spark has to see the rows."""
        return bool(self.rules or self.select)

    @property
    def judge(self) -> str:
        """A fingerprint of what decides which rows fail."""
        return hashlib.sha256(f"{packed(self.decoder)} {self.rules}".encode()).hexdigest()

    def judged(self, rows: DataFrame) -> DataFrame:
        """All rows, with the cause why one fails; what was broken is counted on the way."""
        found = judged(observed(self._decoded(rows), self.rules), self.rules)
        return with_selected(found, self.select) if self.select else found

    def good(self, rows: DataFrame) -> DataFrame:
        """What the table gets. What was broken is counted on the way."""
        found = self.judged(rows)
        if self.can_fail:
            found = found.where(F.col("error").isNull()).drop("error")
        if self.select:
            return unfolded(found)
        return found.drop("body") if self.drops_body else found

    def bad(self, rows: DataFrame) -> DataFrame:
        """What the quarantine gets: messages as they came, and what is wrong with them."""
        found = judged(self._decoded(rows), self.rules).where(F.col("error").isNotNull())
        return found.drop("value")

    def _decoded(self, rows: DataFrame) -> DataFrame:
        return with_partitions(decoded(rows, self.decoder))
