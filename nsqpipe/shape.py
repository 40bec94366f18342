"""The processing of messages before they land in a table, the same for streams and batches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from nsqpipe.quality import Rule, judged, observed
from nsqpipe.selection import unfolded, with_selected
from nsqpipe.transforms import decoded, with_partitions
from pyspark_nsq.bodies.decoding import Decoder, RawDecoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    decoder: Decoder = field(default_factory=RawDecoder)
    rules: tuple[Rule, ...] = ()
    select: str = ""  # SQL for the columns that replace body and value in the table
    drops_body: bool = False  # the table gets no bodies; the quarantine always does

    @property
    def can_fail(self) -> bool:
        return self.decoder.value_type is not None or bool(self.rules)

    @property
    def needs_sql(self) -> bool:
        """True if Spark has to see the messages."""
        return bool(self.rules or self.select)

    @property
    def judge(self) -> str:
        """A fingerprint of the rules for failing rows. Tables keep it, so it must not depend on class names."""
        rules = [(rule.name, rule.check, rule.then.value) for rule in self.rules]
        return hashlib.sha256(repr((self.decoder.identity, rules)).encode()).hexdigest()

    def judged(self, rows: DataFrame) -> DataFrame:
        """Return all rows, with an error in each failed one. Broken rules are counted on the way."""
        found = judged(observed(self._decoded(rows), self.rules), self.rules)
        return with_selected(found, self.select) if self.select else found

    def good(self, rows: DataFrame) -> DataFrame:
        """Return the rows for the table. Broken rules are counted on the way."""
        found = self.judged(rows)
        if self.can_fail:
            found = found.where(F.col("error").isNull()).drop("error")
        if self.select:
            return unfolded(found)
        return found.drop("body") if self.drops_body else found

    def bad(self, rows: DataFrame) -> DataFrame:
        """Return the rows for the quarantine: the original messages, with their errors."""
        found = judged(self._decoded(rows), self.rules).where(F.col("error").isNotNull())
        return found.drop("value")

    def _decoded(self, rows: DataFrame) -> DataFrame:
        return with_partitions(decoded(rows, self.decoder))
