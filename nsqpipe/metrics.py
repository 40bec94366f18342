"""The page of `--metrics-address`: what `pyspark_nsq.listener` knows about the queries of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nsqpipe.failures import PipeFailed
from pyspark_nsq.errors import BadOption
from pyspark_nsq.listener import NsqListener, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def serving(spark: SparkSession, address: str) -> Iterator[None]:
    """Meanwhile; without an address nobody asks."""
    if not address:
        yield
        return
    listener = NsqListener()
    try:
        server = serve(listener.states, address)
    except BadOption as error:
        raise PipeFailed(f"--metrics-address {error}") from None
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        spark.streams.removeListener(listener)
