"""`--select`: a table gets of each message what SQL makes of it, once, and nothing that SQL leaves out."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from nsqpipe import maintenance
from nsqpipe.decoders import make_decoder
from nsqpipe.land import prepare_landing
from nsqpipe.quality import Rule, Then
from nsqpipe.shape import Shape
from pyspark_nsq.failures import PipeFailed, WrongUsage
from pyspark_nsq.kinds import Format, Kind
from pyspark_nsq.tables.reland import Reland, reland
from tests.support.pipe import IN_FOLDERS, Pipeline, source_of
from tests.support.process import Nsqd
from tests.support.spark import numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JSON: Final = make_decoder(Kind.JSON, "email string, amount int")
POSITIVE: Final = Rule("positive", "value.amount > 0", Then.QUARANTINE)
MASKED: Final = (
    "sha2(value.email, 256) as email, value.amount as amount, value.amount * 2 as twice, split(value.email, '@') as parts, "
    "md5(body) as body"
)
FROM: Final = ["topic", "node", "sequence", "id", "timestamp"]


def order(number: int) -> bytes:
    return b'{"email":"u%d@example.org","amount":%d}' % (number, number)


@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_a_table_gets_what_is_selected_and_the_quarantine_bodies_as_they_came(
    kind: Format, spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    shape = Shape(decoder=JSON, rules=(POSITIVE,), select=MASKED)
    pipeline = Pipeline(spark, source_of(nsqd, "orders", maxRowsPerTrigger=12), tmp_path, kind=kind, shape=shape)
    publish(nsqd, "orders", [order(number) for number in range(1, 21)] + [b"no JSON", order(0)])
    pipeline.land()
    pipeline.forget_commit(pipeline.last_batch())
    pipeline.land()
    assert sorted(pipeline.rows.columns) == sorted([*FROM, "date", "hour", "email", "amount", "twice", "parts", "body"])
    found = pipeline.rows.orderBy("sequence").collect()
    assert [(row.amount, row.twice) for row in found] == [(number, 2 * number) for number in range(1, 21)]
    assert [row.email for row in found] == [hashlib.sha256(b"u%d@example.org" % it).hexdigest() for it in range(1, 21)]
    assert found[0].parts == ["u1", "example.org"]
    assert found[0].body == hashlib.md5(order(1)).hexdigest()
    bad = pipeline.quarantine.read(spark).orderBy("sequence").collect()
    assert [bytes(row.body) for row in bad] == [b"no JSON", order(0)]
    assert not any(name in pipeline.quarantine.read(spark).columns for name in ("email", "twice", "_selected"))


def test_bodies_that_nobody_decodes_can_be_cut_as_well(spark: SparkSession, nsqd: Nsqd, tmp_path: Path) -> None:
    shape = Shape(select="cast(cast(body as string) as int) * 2 as twice")
    pipeline = Pipeline(spark, source_of(nsqd, "numbers"), tmp_path, shape=shape)
    publish(nsqd, "numbers", numbered(50))
    pipeline.land()
    assert sorted(row.twice for row in pipeline.rows.collect()) == list(range(0, 100, 2))
    assert "body" not in pipeline.rows.columns


@pytest.mark.parametrize(
    ("select", "complaint"),
    [
        ("*", "the column topic is kept as it is: select others, such as body, value or value.*"),
        ("value.amount as sequence", "the column sequence is kept as it is"),
        ("value.amount, value.*", "there are two columns amount"),
        ("value.amount, upper(value.email)", "column 2 has no name: end it with `as NAME`"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_one_line(
    select: str, complaint: str, spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", [order(1)])
    pipeline = Pipeline(spark, source_of(nsqd, "orders"), tmp_path, shape=Shape(decoder=JSON, select=select))
    with pytest.raises(WrongUsage) as failure:
        pipeline.land()
    assert complaint in str(failure.value)


def test_a_body_that_was_not_understood_comes_by_backfill_and_never_unmasked(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path
) -> None:
    publish(nsqd, "orders", [order(1), b'{"email":"a@b","amount":2.5}'])
    pipeline = Pipeline(spark, source_of(nsqd, "orders"), tmp_path, shape=Shape(decoder=JSON, select=MASKED))
    pipeline.land()
    assert pipeline.rows.count() == 1
    places = pipeline.table.place, pipeline.quarantine.place
    corrected = make_decoder(Kind.JSON, "email string, amount double")
    with pytest.raises(PipeFailed, match="was filled with --select, and reland cannot run SQL"):
        reland(Reland(table=places[0], quarantine=places[1], decoder=corrected))
    for forgotten in (Shape(decoder=corrected), Shape()):
        with pytest.raises(PipeFailed, match="give the same --select, or name another table"):
            prepare_landing(replace(pipeline.job, shape=forgotten))
        with pytest.raises(PipeFailed, match="give the same --select, or name another table"):
            maintenance.backfill(spark, pipeline.job.source, forgotten, pipeline.table, pipeline.quarantine)
    shape = Shape(decoder=corrected, select=MASKED.replace("value.amount", "cast(value.amount as int)"))
    found = maintenance.backfill(spark, pipeline.job.source, shape, pipeline.table, pipeline.quarantine)
    assert found == {"added": 1, "quarantined": 0, "left_to_land": 0}
    assert sorted((row.amount, row.twice, row.parts[0]) for row in pipeline.rows.collect()) == [
        (1, 2, "u1"),
        (2, 4, "a"),
    ]
