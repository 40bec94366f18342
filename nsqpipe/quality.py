"""`nsqpipe land --rules`: rules in a small TOML file; rows that break one go to the quarantine or are counted.

[[rule]]
name = "amount is positive"
check = "value.amount > 0"          # SQL; null counts as broken
then = "quarantine"                 # or "count"
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from nsqpipe.failures import PipeFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Then(StrEnum):
    QUARANTINE = "quarantine"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: str
    then: Then


def load_rules(path: Path) -> list[Rule]:
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise PipeFailed(f"{path}: {error}") from None
    rules = [_rule(path, number, entry) for number, entry in enumerate(found.get("rule", []), 1)]
    if not rules:
        raise PipeFailed(f"{path} has no [[rule]]")
    return rules


def _rule(path: Path, number: int, entry: dict[str, Any]) -> Rule:
    unknown = set(entry) - {"name", "check", "then"}
    if unknown or not isinstance(entry.get("check"), str):
        raise PipeFailed(f"{path}: rule {number} needs a check, and knows name, check and then")
    try:
        then = Then(entry.get("then", "quarantine"))
    except ValueError:
        raise PipeFailed(f"{path}: rule {number}: then is quarantine or count, not {entry['then']!r}") from None
    return Rule(str(entry.get("name", entry["check"])), entry["check"], then)


def judged(rows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """`error` says which rule a row has broken, if it had none before. What is only counted changes nothing."""
    if rules and "error" not in rows.columns:
        rows = rows.withColumn("error", F.lit(None).cast("string"))
    for rule in rules:
        if rule.then is Then.QUARANTINE:
            broken = F.col("error").isNull() & _breaks(rule)
            rows = rows.withColumn("error", F.when(broken, F.lit(f"rule: {rule.name}")).otherwise(F.col("error")))
    return rows


def observed(rows: DataFrame, rules: Sequence[Rule], name: str = "quality") -> DataFrame:
    """Counts broken rules on the way, without a job of their own: they come with each batch's progress."""
    counts = [F.count(F.when(_breaks(rule), 1)).alias(rule.name) for rule in rules]
    return rows.observe(name, F.count("*").alias("rows"), *counts) if counts else rows


def broken_counts(rows: DataFrame, rules: Sequence[Rule]) -> dict[str, int]:
    counts = [F.count(F.when(_breaks(rule), 1)).alias(rule.name) for rule in rules]
    found = rows.agg(F.count("*").alias("rows"), *counts).first()
    return {} if found is None else {name: int(count) for name, count in found.asDict().items()}


def _breaks(rule: Rule) -> Column:
    return ~F.coalesce(F.expr(rule.check), F.lit(False))
