"""Two nsqd and two nsqlookupd that know each other, as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import Nsqd, Nsqlookupd, eventually


@dataclass
class Cluster:
    lookupds: tuple[Nsqlookupd, Nsqlookupd]
    nodes: tuple[Nsqd, Nsqd]

    @property
    def lookupd_options(self) -> list[str]:
        return [f"lookupd-http-address=127.0.0.1:{it.http_address[1]}" for it in self.lookupds]

    @property
    def nsqd_options(self) -> list[str]:
        return [f"nsqd-http-address={name_of(it)}" for it in self.nodes]

    def wait_for(self, topic: str, count: int = 2) -> None:
        eventually(lambda: all(len(it.producers(topic)) == count for it in self.lookupds))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic wherever it is: an nsqadmin that other tests share would go on asking for it."""
        for daemon in (*self.nodes, *self.lookupds):
            daemon.http("POST", f"/topic/delete?topic={topic}")


def name_of(node: Nsqd | Nsqlookupd) -> str:
    return f"127.0.0.1:{node.http_address[1]}"


@contextmanager
def a_cluster(folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        lookupds = stack.enter_context(Nsqlookupd()), stack.enter_context(Nsqlookupd())
        options = [f"lookupd-tcp-address=127.0.0.1:{it.tcp[1]}" for it in lookupds]
        nodes = tuple(
            stack.enter_context(Nsqd(folder / name, "broadcast-address=127.0.0.1", *options)) for name in ("n1", "n2")
        )
        yield Cluster(lookupds, (nodes[0], nodes[1]))
