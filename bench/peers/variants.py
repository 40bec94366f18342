"""What is compared: each broker with the durability that its documents recommend, and with its default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from bench import rivals, servers
from bench.builds import Build
from bench.limit import Limit
from bench.peers.loads import LOADS, ONLY_PUBLISHING

OURS: Final = "nsqd"  # the start of the names of ours
GO: Final = "go-nsqd"  # and of the original's
LIMIT: Final = "limit"  # the name of the one that isn't a broker


class Promise(StrEnum):
    """What an acknowledged message has survived. Only equal promises are compared."""

    WRITTEN = "written"
    SYNCED = "synced"
    MEMORY = "memory"


PROMISES: Final = {
    Promise.WRITTEN: "Acknowledged when written to the page cache: the end of the process loses nothing, a power cut may",
    Promise.SYNCED: "Acknowledged when flushed to the disk: a power cut loses nothing",
    Promise.MEMORY: "Acknowledged in memory: the end of the process may lose it",
}


SURVIVES: Final = {  # the promises that a kill -9 cannot break, in a few words
    Promise.WRITTEN: "acknowledged when written (survives kill -9)",
    Promise.SYNCED: "acknowledged when flushed (survives a power cut)",
}
REFERENCES: Final = {  # what the ratios compare with: ours in pure Python with the same promise
    Promise.WRITTEN: f"{OURS}-pure",
    Promise.SYNCED: f"{OURS}-pure-synced",
    Promise.MEMORY: f"{OURS}-pure-memory",
}


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    label: str
    promise: Promise
    durability: str
    kind: type[servers.Server]
    make: Callable[[Path], servers.Server]
    has_backlog: bool = False  # it is the one of its broker that is filled with the large backlog
    client: str = ""  # the language of its own client, if that takes the place of our load generator: it is not ranked
    loads: Sequence[str] = LOADS  # that it can take

    @property
    def version(self) -> str:
        return self.kind.version()


def variants(flags: Sequence[str] = (), go_nsqd: str = "") -> list[Variant]:
    """Return all. `flags` are for ours, and `go_nsqd` is the binary of Go's nsqd."""
    return [
        _limit(),  # next to ours in each round, with which it is compared
        *_ours(flags),
        *_go_nsqd(servers.go_nsqd(go_nsqd)),
        *_redis("Redis", servers.Redis),
        *_redis("Valkey", rivals.Valkey),
        *_nats(),
        *_rabbitmq(rivals.newest_rabbitmq()),
        *_beanstalkd(),
        *_kafka(),
    ]


def _limit() -> Variant:
    return Variant(
        LIMIT,
        "limit (C)",
        Promise.WRITTEN,
        "no broker: OK when the message is in a file, which is never flushed and never read",
        Limit,
        Limit,
        loads=ONLY_PUBLISHING,
    )


def _ours(flags: Sequence[str]) -> list[Variant]:
    return [
        Variant(
            f"{OURS}-{build}" + ("" if promise is Promise.WRITTEN else f"-{promise}"),
            f"nsqd, {build}" + ("" if promise is Promise.WRITTEN else f", {promise}"),
            promise,
            durability,
            servers.Nsqd,
            partial(servers.Nsqd, python=build.python(), flags=(f"--ack={promise}", *flags)),
            has_backlog=promise is Promise.WRITTEN,
        )
        for promise, durability in (
            (Promise.WRITTEN, "the default, `--ack written`: OK when it is in the log's file; flushed within 2 s"),
            (Promise.SYNCED, "`--ack synced`: OK after fsync, which publishes of one turn share"),
            (Promise.MEMORY, "`--ack memory`, NSQ's own promise: OK at once; written soon after"),
        )
        for build in (Build.PURE, Build.COMPILED)
    ]


def _go_nsqd(kind: type[servers.GoNsqd]) -> list[Variant]:
    return [
        Variant(
            f"{GO}-disk",
            "Go nsqd, on disk",
            Promise.WRITTEN,
            "`--mem-queue-size=0`: OK when it is in the topic's file; flushed every 2,500 messages or 2 s, never before"
            " the OK. kill -9 takes all of a queue that was never flushed, and what a consumer has in its hands",
            kind,
            lambda folder: kind(folder, "--mem-queue-size=0"),
            has_backlog=True,
        ),
        Variant(
            f"{GO}-default",
            "Go nsqd, as installed",
            Promise.MEMORY,
            "its default, `--mem-queue-size=10000`: OK when it is in memory; what is beyond 10,000 messages of a topic"
            " and of a channel is on disk, without a flush before the OK",
            kind,
            kind,
        ),
    ]


def _redis(name: str, kind: type[servers.Redis]) -> list[Variant]:
    log = ("--appendonly", "yes", "--save", "", "--appendfsync")
    return [
        Variant(
            f"{name.lower()}-everysec",
            f"{name}, everysec",
            Promise.WRITTEN,
            "`appendonly yes`, `appendfsync everysec`, which its documents recommend: answered when it is in the"
            " append-only file; flushed each second",
            kind,
            lambda folder: kind(folder, *log, "everysec"),
            has_backlog=True,
        ),
        Variant(
            f"{name.lower()}-always",
            f"{name}, always",
            Promise.SYNCED,
            "`appendonly yes`, `appendfsync always`: answered after fsync, which commands of one turn share",
            kind,
            lambda folder: kind(folder, *log, "always"),
        ),
        Variant(
            f"{name.lower()}-default",
            f"{name}, as installed",
            Promise.MEMORY,
            "its default: no append-only file; a snapshot after 60 s at the earliest",
            kind,
            kind,
        ),
    ]


def _nats() -> list[Variant]:
    return [
        Variant(
            "nats",
            "NATS JetStream",
            Promise.WRITTEN,
            "a stream with file storage, its default: PubAck when it is written; flushed every 2 minutes, as its documents say",
            servers.Nats,
            servers.Nats,
            has_backlog=True,
        ),
        Variant(
            "nats-always",
            "NATS, always",
            Promise.SYNCED,
            "a stream with file storage, `sync_interval: always`: PubAck after fsync",
            servers.NatsAlways,
            servers.NatsAlways,
        ),
    ]


def _rabbitmq(kind: type[servers.RabbitMq]) -> list[Variant]:
    # 3.10 calls fsync for each confirm of a classic queue, and 4.0 never does: we counted.
    classic, told = (
        (Promise.SYNCED, "confirmed when persisted to disk")
        if kind.flushes_classic_queues()
        else (Promise.WRITTEN, "confirmed when it is written, without a flush since version 4")
    )
    return [
        Variant(
            "rabbitmq-quorum",
            "RabbitMQ, quorum",
            Promise.SYNCED,
            "a quorum queue (on one node), which its documents recommend: confirmed after fsync of the Raft log",
            kind,
            lambda folder: kind(folder, "quorum"),
        ),
        Variant(
            "rabbitmq-classic",
            "RabbitMQ, classic",
            classic,
            f"a durable classic queue, its default kind, persistent messages: {told}",
            kind,
            lambda folder: kind(folder, "classic"),
            has_backlog=True,
        ),
    ]


def _beanstalkd() -> list[Variant]:
    return [
        Variant(
            "beanstalkd",
            "beanstalkd, binlog",
            Promise.WRITTEN,
            "`-b`, its only durability: INSERTED when it is in the binlog; flushed at most every 50 ms, the default of `-f`",
            servers.Beanstalkd,
            servers.Beanstalkd,
            has_backlog=True,
        ),
        Variant(
            "beanstalkd-always",
            "beanstalkd, always",
            Promise.SYNCED,
            "`-b` and `-f 0`: INSERTED after fsync, one for each message",
            servers.Beanstalkd,
            lambda folder: servers.Beanstalkd(folder, "-f", "0"),
        ),
        Variant(
            "beanstalkd-default",
            "beanstalkd, as installed",
            Promise.MEMORY,
            "its default: no binlog",
            servers.Beanstalkd,
            lambda folder: servers.Beanstalkd(folder, has_log=False),
        ),
    ]


def _kafka() -> list[Variant]:
    return [
        Variant(
            "kafka",
            "Kafka, share group",
            Promise.WRITTEN,
            "a topic of one partition without replicas, `acks=all`: acknowledged when it is written; flushed when the"
            " kernel does so, as its documents say. Its client has `linger.ms=0`, and acknowledges each message",
            rivals.Kafka,
            rivals.Kafka,
            has_backlog=True,
            client="Java",
        )
    ]
