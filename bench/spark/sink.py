"""`df.write.format("nsq")` of rows that Spark makes."""

from __future__ import annotations

from typing import Final

from bench.report import Row, at_least
from bench.spark.stage import TOPIC, Stage, named, per_second, wait_until_readable, where
from bench.work import say

AIM: Final = 400_000
AIMED_AT: Final = 200  # bytes; with larger messages the limit is bytes, not messages
TASKS: Final = 2


def measure(stage: Stage, size: int) -> list[Row]:
    count, runs = stage.count(size), stage.settings.runs + 1
    rows = stage.spark.range(0, count, 1, TASKS).selectExpr(f"lpad(cast(id as string), {size}, 'x') as body")
    with stage.broker() as broker:
        writer = rows.write.format("nsq").mode("append").options(**where(broker))
        values = [per_second(count, writer.save) for _ in range(runs)]
        wait_until_readable(broker, TOPIC, runs * count)
    name = named("sink", size)
    say(f"{name}: {', '.join(f'{value:,.0f}' for value in values[1:])} msg/s")
    return [Row(name, "msg/s", tuple(values[1:]), at_least(AIM) if size <= AIMED_AT else None)]
