"""`nsqpipe land --rules`: reads rules from a small TOML file. Rows that break one are quarantined or counted.

[[rule]]
name = "amount is positive"
check = "value.amount > 0"          # SQL; null counts as broken
then = "quarantine"                 # or "count"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from nsqpipe.configuration import read_tables
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.listener import OBSERVED
from pyspark_nsq.tables.marks import MARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


UNPARSED: Final = "not parsed"
ROWS: Final = "rows"
_OURS: Final = (UNPARSED, ROWS)


class Then(StrEnum):
    QUARANTINE = "quarantine"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: str
    then: Then


def load_rules(path: Path) -> list[Rule]:
    """Read the rules of a file. Raises PipeFailed."""
    try:
        found = read_tables(path)
    except (OSError, ValueError) as error:
        raise PipeFailed(f"{path}: {error}") from None
    rules = [_rule(path, number, entry) for number, entry in enumerate(found.get("rule", []), 1)]
    if not rules:
        raise PipeFailed(f"{path} has no [[rule]]")
    names = [rule.name for rule in rules]
    if twice := {name for name in names if [*names, *_OURS].count(name) > 1}:
        raise PipeFailed(f"{path}: each rule needs a name of its own, but there are several named {', '.join(twice)}")
    return rules


def _rule(path: Path, number: int, entry: dict[str, Any]) -> Rule:
    unknown = set(entry) - {"name", "check", "then"}
    if unknown or not isinstance(entry.get("check"), str):
        raise PipeFailed(f"{path}: rule {number} needs a check, and may have name, check and then")
    try:
        then = Then(entry.get("then", "quarantine"))
    except ValueError:
        raise PipeFailed(f"{path}: rule {number}: then must be quarantine or count, not {entry['then']!r}") from None
    return Rule(str(entry.get("name", entry["check"])), entry["check"], then)


def judged(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Set `error` of good rows to the rule that they break. Rules that only count change nothing."""
    if rules and "error" not in rows.columns:
        rows = rows.withColumn("error", F.lit(None).cast("string"))
    for rule in rules:
        if rule.then is Then.QUARANTINE:
            broken = F.col("error").isNull() & _breaks(rule)
            rows = rows.withColumn("error", F.when(broken, F.lit(f"rule: {rule.name}")).otherwise(F.col("error")))
    return rows


def observed(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Count the rows that break rules on the way, without another job: Spark reports the counts with each batch.

    A row that couldn't be parsed is counted as such, and breaks no rule.
    """
    is_row = F.col(MARK).isNull() if MARK in rows.columns else F.lit(True)
    parsed = F.col("error").isNull() if "error" in rows.columns else F.lit(True)
    counts = [F.count(F.when(is_row & parsed & _breaks(rule), 1)).alias(rule.name) for rule in rules]
    if "error" in rows.columns:
        counts.append(F.count(F.when(is_row & ~parsed, 1)).alias(UNPARSED))
    return rows.observe(OBSERVED, *counts) if counts else rows


def broken_counts(rows: DataFrame, rules: Sequence[Rule]) -> dict[str, int]:
    """Return how many rows break each rule, and under `ROWS` the total."""
    counts = [F.count(F.when(_breaks(rule), 1)).alias(rule.name) for rule in rules]
    found = rows.agg(F.count("*").alias(ROWS), *counts).first()
    return {} if found is None else {name: int(count) for name, count in found.asDict().items()}


def _breaks(rule: Rule) -> Column:
    return ~F.coalesce(F.expr(rule.check), F.lit(False))
