"""The pytest plugin `nsq`: a real broker in the test's process, on free ports, with a temporary data path.

    def test_a_published_message_is_there(nsq_broker):
        with nsqclient.sync.producer(nsq_broker.tcp_address) as producer:
            producer.publish("orders", b"one")

Each test that uses `nsq_broker` has its own broker.

pytest imports this module in every run of every project with nsq-suite installed, even if its tests don't use the
broker. So it imports nothing else of ours, and not trio, before a test asks for a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Broker", "nsq_broker", "running_broker"]


@dataclass(frozen=True, slots=True)
class Broker:
    """The addresses of a running broker, host:port, for TCP and for HTTP."""

    tcp_address: str
    http_address: str


@pytest.fixture
def nsq_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a real nsqd for this test."""
    with running_broker(tmp_path_factory.mktemp("nsqd")) as broker:
        yield broker


@contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """Run a real nsqd in a thread until the end of the block, with its data in `folder`."""
    from nsqpytest._broker_thread import running_nsqd

    with running_nsqd(folder) as (tcp_address, http_address):
        yield Broker(tcp_address, http_address)
