"""What the parts share: settings, one Spark session, fresh nsqd, and messages in topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Final

from bench.brokers import Broker, running_nsqd
from bench.processes import wait_until
from bench.spark.session import open_session
from bench.spark.settings import SparkSettings
from bench.work import HOST, Failed, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "bench_spark"
KEEP: Final = "--retention-bytes=1TB"
PUBLISHES: Final = 100  # publishes a second, unless that makes each larger than
MOST_TOGETHER: Final = 1000
DIFFERENT: Final = ("verify=1", "noise=1")  # different bodies, as Parquet would shrink equal ones to nothing
FILL_LIMIT: Final = 300
_VISIBLE_LIMIT: Final = 30.0


@dataclass
class Stage:
    settings: SparkSettings
    work: Work
    folder: Path

    @classmethod
    @contextmanager
    def open(cls, settings: SparkSettings, work: Work) -> Iterator[Stage]:
        with work.new_folder("spark") as folder:
            stage = cls(settings, work, folder)
            try:
                yield stage
            finally:
                if "spark" in vars(stage):
                    stage.spark.stop()

    @cached_property
    def spark(self) -> SparkSession:
        return open_session(self.folder)

    @contextmanager
    def broker(self) -> Iterator[Broker]:
        flags = [*self.settings.flag, KEEP]
        with self.work.new_folder("data") as data, running_nsqd(data, self.settings.build, flags) as (broker, _):
            yield broker

    def tables(self) -> AbstractContextManager[Path]:
        return self.work.new_folder("tables")

    def count(self, size: int) -> int:
        """Return how many messages of this size to read or write, in whole batches."""
        count = min(int(self.settings.count), int(self.settings.megabytes * 1e6 / size))
        return max(1, count // int(self.settings.batch)) * int(self.settings.batch)

    def fill(self, broker: Broker, size: int) -> int:
        """Publish messages, wait until all can be read, and return how many there are."""
        count, batch = self.count(size), self.settings.batch
        what = (TOPIC, 2, batch, size, FILL_LIMIT, 4, f"count={count}", *DIFFERENT)
        self.work.load("pub", broker.tcp_port, *what, at_most=FILL_LIMIT)
        wait_until_readable(broker, TOPIC, count)
        return count

    def publishing(
        self, broker: Broker, topic: str, *, rate: float, size: int, seconds: float
    ) -> AbstractContextManager[Popen[bytes]]:
        """Publish with a hundred MPUBs a second, or more if they would be large, in a process that ends by itself."""
        together = max(1, min(MOST_TOGETHER, int(rate) // PUBLISHES))
        what = (topic, 1, together, size, seconds, 8, f"rate={int(rate)}", *DIFFERENT)
        return self.work.loading("pub", broker.tcp_port, *what)


def where(broker: Broker, topic: str = TOPIC) -> dict[str, str]:
    """Return the options that source and sink need for this broker and topic."""
    return {"nsqd": f"{HOST}:{broker.http_port}", "topic": topic}


def wait_until_readable(broker: Broker, topic: str, count: int) -> None:
    """Wait until exactly this many messages can be read: what is written but not synced yet cannot."""
    wait_until(lambda: int(broker.log(topic)["next"]) >= count, _VISIBLE_LIMIT, f"{count} messages can be read")
    if (there := int(broker.log(topic)["next"])) != count:
        raise Failed(f"{count} were published, and {there} are in the topic")


def per_second(count: int, job: Callable[[], object]) -> float:
    began = time.monotonic()
    job()
    return count / (time.monotonic() - began)


def named(what: str, size: int) -> str:
    return f"{what}, {size:,} bytes"
