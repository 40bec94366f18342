"""A topic for each test of a module, on a node that the tests share."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head
from pyspark_nsq.options import source_options
from tests.support.process import Nsqd
from tests.support.spark import address


@dataclass(frozen=True)
class Orders:
    """A topic with a hundred messages, whose bodies are their numbers."""

    nsqd: Nsqd
    topic: str

    @property
    def source(self) -> dict[str, str]:
        return {"nsqd": address(self.nsqd), "topic": self.topic}

    @property
    def head(self) -> Head:
        options = source_options(self.source)
        (head,) = Cluster(options, Http(options.access)).heads().values()
        return head
