"""A cluster with one of everything, as a recording: for looking at pages, and for tests of them.

python -m tests.browser.demo FILE        writes it as a snapshot file
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from nsqadmin.cluster.model import (
    CLUSTER_SERIES,
    Activity,
    Channel,
    Client,
    Evidence,
    Finding,
    Health,
    Latency,
    Lookupd,
    Memory,
    Metric,
    Node,
    Percentile,
    Producer,
    Rates,
    Reader,
    ReaderNode,
    Recording,
    Series,
    Severity,
    Snapshot,
    Span,
    Topic,
    TopicNode,
    Totals,
    Unanswered,
    Untold,
    channel_series,
    node_series,
    topic_series,
)
from nsqadmin.cluster.recording import encode
from tests.support.picture import NOW, channel, channel_node, client, node, topic

N1, N2, N3 = "nsqd-1.example:4151", "nsqd-2.example:4151", "10.0.3.17:4151"
L1, L2 = "lookup-1.example:4161", "lookup-2.example:4161"
STEPS = {Span.MINUTES: (5.0, 144), Span.HOURS: (60.0, 360), Span.DAYS: (600.0, 1008)}


def demo() -> Recording:
    """Return healthy, slow, failing, paused and unattended channels, a dead node and an inactive name."""
    snapshot = Snapshot(
        index=41,
        taken_at=NOW,
        interval=5.0,
        has_lookupds=True,
        took=0.04,
        nodes=_nodes(),
        lookupds=(
            Lookupd(
                address=L1,
                health=Health.OK,
                since=NOW - 90000,
                answered_in=0.002,
                version="1.3.0",
                topics=("archive", "clicks#ephemeral", "orders", "payments", "signups"),
                nodes=(N1, N2, N3),
            ),
            Lookupd(
                address=L2,
                health=Health.OK,
                since=NOW - 90000,
                answered_in=0.003,
                version="1.3.0",
                topics=("archive", "clicks#ephemeral", "old-import", "orders", "payments", "signups"),
                nodes=(N1, N2),
            ),
        ),
        topics=_topics(),
        producers=(
            Producer(
                node=N1,
                client_id="checkout",
                hostname="web-01",
                remote_address="10.0.1.5:50124",
                user_agent="go-nsq/1.1.0",
                connect_time=NOW - 86400 * 3,
                counts=(("orders", 812_331, 61.0),),
            ),
            Producer(
                node=N2,
                client_id="checkout",
                hostname="web-02",
                remote_address="10.0.1.6:50311",
                user_agent="go-nsq/1.1.0",
                connect_time=NOW - 4000,
                counts=(("orders", 12_331, 34.2), ("signups", 40, 0.1)),
            ),
        ),
        findings=_findings(),
        unanswered=(
            Unanswered(
                what="1 of 3 nsqd did not answer.",
                where=N3,
                advice="What is on it is missing here. It may be stopped, or its broadcast address is one that cannot be reached from this server: see --broadcast-address.",
                raw="dial tcp 10.0.3.17:4151: connect: connection refused",
            ),
        ),
        totals=Totals(
            topic_count=6,
            channel_count=8,
            client_count=16,
            depth=78_402,
            in_flight_count=341,
            deferred_count=161,
            rates=Rates(incoming=1240.0, finished=1180.0),
        ),
    )
    return Recording(snapshot=snapshot, series=_all_series(snapshot), activity=_activity())


def _nodes() -> tuple[Node, ...]:
    both = (L1, L2)
    return (
        node(
            N1,
            hostname="nsqd-1",
            lookupds=both,
            start_time=NOW - 86400 * 4.2,
            answered_in=0.004,
            memory=Memory(heap_in_use=181_000_000, heap_objects=820_000, collections=412),
            topic_count=5,
            channel_count=8,
            client_count=9,
            depth=52_110,
            in_flight_count=240,
            message_count=4_123_992,
            rates=Rates(incoming=812.0, finished=790.0),
            region="eu",
            zone="eu-a",
            clock_skew=0.01,
        ),
        node(
            N2,
            hostname="nsqd-2",
            lookupds=both,
            start_time=NOW - 5100,
            answered_in=1.31,
            health=Health.SLOW,
            topic_count=4,
            channel_count=6,
            client_count=7,
            depth=26_292,
            in_flight_count=101,
            message_count=1_203_881,
            rates=Rates(incoming=428.0, finished=390.0),
            region="eu",
            zone="eu-b",
            version="1.2.1",
            out_of_date=True,
            has_history=False,
            tombstones=("signups",),
        ),
        node(
            N3,
            hostname="nsqd-3",
            lookupds=(L1,),
            health=Health.DOWN,
            since=NOW - 1260,
            error="dial tcp 10.0.3.17:4151: connect: connection refused",
            explanation="Nothing listens there. It may be stopped, or it is announced under an address that this server cannot reach; set --broadcast-address.",
            own_health="",
        ),
    )


def _clients(
    address: str, name: str, count: int, *, ready: int, in_flight: int, rate: float, **fields: object
) -> tuple[Client, ...]:
    return tuple(
        client(
            address,
            client_id=f"{name}-{at + 1:02}",
            hostname=f"{name}-{at + 1:02}.example",
            remote_address=f"10.0.2.{at + 10}:4{at}812",
            user_agent="go-nsq/1.1.0" if at % 2 else "nsqclient/0.1.0",
            ready_count=ready,
            in_flight_count=in_flight if at else min(ready, in_flight * 2),
            finish_count=91_222 - at * 1771,
            message_count=92_000,
            requeue_count=12 * at,
            finish_rate=rate if at else rate / 8,
            requeue_rate=0.0,
            timeout_rate=0.0,
            oldest_in_flight=None if not in_flight else 2.4 if at else 48.0,
            connect_time=NOW - 3721 * (at + 1),
            tls=at == 1,
            tls_version="TLS 1.3",
            snappy=at == 2,
            zone="eu-a" if at % 2 else "",
            **fields,
        )
        for at in range(count)
    )


def _readers() -> tuple[Reader, ...]:
    """Return three readers: one that keeps up, one that was stopped, one from which retention has taken messages."""

    def on(node: str = N1, **fields: object) -> ReaderNode:
        known = {"as_of": NOW - 1, "heard": NOW - 4, "committed": NOW - 4, "retention_time": 86_400.0}
        return ReaderNode(node=node, **{**known, **fields})  # type: ignore[arg-type]

    return (
        Reader(
            name="nsqpipe aggregate",
            into="/var/lib/nsqpipe/results.json",
            format="json",
            hosts=("etl-2.example",),
            nodes=(on(heard=NOW - 11_520, committed=NOW - 11_600, behind=702_114, behind_time=50_100.0, rate=0.0),),
        ),
        Reader(
            name="nsqpipe land",
            into="s3://lake/tables/orders-by-topic-date-and-hour",
            format="delta",
            hosts=("etl-1.example",),
            nodes=(on(behind=1_204, behind_bytes=240_800, behind_time=12.6, rate=95.2),),
            unheard=(N3,),
        ),
        Reader(
            name="night-report",
            into="",
            nodes=(
                on(heard=NOW - 90_000, committed=NOW - 90_000, behind=900_100, behind_time=86_400.0, missed=11_231),
            ),
        ),
    )


def _topics() -> tuple[Topic, ...]:
    latency = Latency(
        count=3,
        percentiles=(
            Percentile(quantile=0.5, average=1.2e7, minimum=1e7, maximum=1.5e7),
            Percentile(quantile=0.99, average=7.2e8, minimum=5e8, maximum=7.9e8),
        ),
    )
    fraud = channel(
        channel_node(
            N1,
            depth=45_000,
            backend_depth=35_000,
            in_flight_count=100,
            message_count=912_331,
            requeue_count=31_200,
            timeout_count=12,
            clients=_clients(N1, "fraud", 4, ready=25, in_flight=25, rate=6.0),
            latency=latency,
        ),
        channel_node(
            N2,
            depth=20_190,
            backend_depth=10_190,
            in_flight_count=50,
            message_count=402_117,
            requeue_count=11_020,
            clients=_clients(N2, "fraud", 2, ready=25, in_flight=25, rate=6.1),
            latency=latency,
        ),
        topic="orders",
        name="fraud",
        rates=Rates(incoming=95.2, finished=40.0, requeued=0.4, timed_out=0.1, failed=0.5),
        oldest_age=768.0,
        latency=latency,
    )
    billing = channel(
        channel_node(
            N1,
            depth=12,
            in_flight_count=40,
            message_count=912_331,
            clients=_clients(N1, "billing", 3, ready=200, in_flight=14, rate=32.0),
        ),
        channel_node(
            N2,
            depth=0,
            in_flight_count=11,
            message_count=402_117,
            clients=_clients(N2, "billing", 3, ready=200, in_flight=4, rate=11.0),
        ),
        topic="orders",
        name="billing",
        rates=Rates(incoming=95.2, finished=95.6, requeued=0.0, timed_out=0.0, failed=0.0),
        oldest_age=0.1,
        drain_time=0.3,
    )
    sampler = channel(
        channel_node(
            N1,
            depth=0,
            message_count=912_331,
            clients=_clients(N1, "archive-sampler", 1, ready=1, in_flight=0, rate=9.0, sample_rate=10),
        ),
        topic="orders",
        name="sampled#ephemeral",
        rates=Rates(incoming=61.0, finished=61.0, requeued=0.0, timed_out=0.0, failed=0.0),
    )
    ledger = channel(
        channel_node(
            N1,
            depth=8_210,
            message_count=99_201,
            paused=True,
            clients=_clients(N1, "ledger", 1, ready=0, in_flight=0, rate=0.0),
        ),
        channel_node(N2, depth=3, message_count=8_012),
        topic="payments",
        name="ledger",
        rates=Rates(incoming=12.0, finished=0.2, requeued=0.0, timed_out=0.0, failed=0.0),
        oldest_age=4010.0,
    )
    mailer = channel(
        channel_node(
            N1,
            depth=161,
            deferred_count=161,
            message_count=5_221,
            in_flight_count=5,
            clients=_clients(N1, "mailer", 1, ready=5, in_flight=5, rate=0.4),
        ),
        topic="signups",
        name="mailer",
        rates=Rates(incoming=0.4, finished=0.3, requeued=0.2, timed_out=0.0, failed=0.2),
        oldest_age=44.0,
        drain_time=310.0,
    )
    warehouse = channel(
        channel_node(N1, depth=1_201, message_count=88_121),
        channel_node(N2, depth=402, message_count=21_000),
        topic="signups",
        name="warehouse-loader.with-a-rather-long-name_v2",
        rates=Rates(incoming=0.4, finished=0.0, requeued=0.0, timed_out=0.0, failed=0.0),
        oldest_age=86_400.0,
    )
    both = (L1, L2)
    return (
        topic(
            name="archive",
            nodes=(
                TopicNode(
                    node=N1, depth=3_201, backend_depth=3_201, message_count=3_201, message_bytes=912_000, has_log=True
                ),
            ),
            rates=Rates(incoming=0.02, bytes=40.0),
            message_count=3_201,
            message_bytes=912_000,
            lookupds=both,
        ),
        topic(
            name="clicks#ephemeral",
            nodes=(TopicNode(node=N1, message_count=100_201, message_bytes=12_912_000),),
            rates=Rates(incoming=1060.0, bytes=212_000.0),
            message_count=100_201,
            message_bytes=12_912_000,
            lookupds=both,
        ),
        Topic(name="old-import", lookupds=(L2,), registered_channels=("loader",)),
        topic(
            billing,
            fraud,
            sampler,
            name="orders",
            readers=_readers(),
            readers_untold=(Untold(node=N2, reason="it keeps no readable log: it is a Go nsqd or an older version"),),
            nodes=(
                TopicNode(node=N1, message_count=912_331, message_bytes=182_466_200, has_log=True),
                TopicNode(node=N2, message_count=402_117, message_bytes=80_423_400),
            ),
            rates=Rates(incoming=95.2, bytes=19_040.0),
            message_count=1_314_448,
            message_bytes=262_889_600,
            lookupds=both,
        ),
        topic(
            ledger,
            name="payments",
            nodes=(
                TopicNode(node=N1, message_count=99_201, message_bytes=9_920_100, has_log=True),
                TopicNode(node=N2, message_count=8_012, message_bytes=801_200),
            ),
            rates=Rates(incoming=12.0, bytes=1_200.0),
            message_count=107_213,
            message_bytes=10_721_300,
            lookupds=both,
        ),
        topic(
            mailer,
            warehouse,
            name="signups",
            nodes=(
                TopicNode(node=N1, message_count=88_121, message_bytes=4_406_050, has_log=True),
                TopicNode(node=N2, message_count=21_000, message_bytes=1_050_000, tombstoned=True),
            ),
            rates=Rates(incoming=0.5, bytes=25.0),
            message_count=109_121,
            message_bytes=5_456_050,
            lookupds=both,
        ),
    )


def _findings() -> tuple[Finding, ...]:
    def of(
        rule: str, severity: Severity, verdict: str, advice: str, *evidence: tuple[str, str], **fields: object
    ) -> Finding:
        facts = tuple(Evidence(label=label, value=value) for label, value in evidence)
        return Finding(rule=rule, severity=severity, verdict=verdict, advice=advice, evidence=facts, **fields)  # type: ignore[arg-type]

    return (
        of(
            "D6",
            Severity.PROBLEM,
            "Consumers are saturated: they finish 40/s, 95/s arrive.",
            "About 2.4 times as many consumers are needed, or a larger max_in_flight if they have time left.",
            ("in flight", "150"),
            ("ready", "150"),
            ("finished", "40/s"),
            ("arriving", "95/s"),
            topic="orders",
            channel="fraud",
            window=60.0,
            since=NOW - 1800,
            is_inferred=True,
        ),
        of(
            "D16",
            Severity.PROBLEM,
            "This nsqd does not answer since 21 minutes.",
            "It may be stopped, or its broadcast address is one that this server cannot reach.",
            ("error", "connection refused"),
            node=N3,
            since=NOW - 1260,
        ),
        of(
            "D3",
            Severity.PROBLEM,
            "No consumer is connected.",
            "Start a consumer. The last one was seen an hour ago.",
            ("depth", "1,603"),
            ("consumers", "0"),
            topic="signups",
            channel="warehouse-loader.with-a-rather-long-name_v2",
            since=NOW - 3600,
        ),
        of(
            "D2",
            Severity.WARNING,
            "Paused on 1 of 2 nodes.",
            "Unpause it there, or pause the rest.",
            ("paused on", N1),
            topic="payments",
            channel="ledger",
            since=NOW - 4010,
            action="unpause_channel",
        ),
        of(
            "D13",
            Severity.WARNING,
            "Messages wait in the topic until a channel exists.",
            "Create a channel, or let a consumer subscribe.",
            ("waiting", "3,201"),
            topic="archive",
            action="create_channel",
        ),
        of(
            "D16",
            Severity.WARNING,
            "Not known to all nsqlookupds.",
            "Check its --lookupd-tcp-address.",
            ("known to", L1),
            node=N3,
            since=NOW - 1260,
        ),
        of(
            "D10",
            Severity.INFO,
            "161 messages wait for their delay; they are not ready to be delivered.",
            "This is by design.",
            ("deferred", "161"),
            topic="signups",
            channel="mailer",
        ),
        of(
            "D12",
            Severity.INFO,
            "archive-sampler-01 takes 10 % by design; the rest is dropped for this channel.",
            "",
            ("sample rate", "10 %"),
            topic="orders",
            channel="sampled#ephemeral",
        ),
    )


def _activity() -> tuple[Activity, ...]:
    return (
        Activity(
            at=NOW - 30,
            what="channel_appeared",
            text="The channel sampled#ephemeral of orders has appeared.",
            topic="orders",
            channel="sampled#ephemeral",
        ),
        Activity(at=NOW - 1260, what="node_down", text=f"{N3} no longer answers.", nodes=(N3,)),
        Activity(
            at=NOW - 4010,
            what="pause_channel",
            text="Paused channel payments/ledger",
            user="ana",
            remote="10.1.2.3:55012",
            topic="payments",
            channel="ledger",
            nodes=(N1, N2),
            result="partly",
            took=0.012,
        ),
        Activity(
            at=NOW - 86400,
            what="delete_channel",
            text="Deleted channel payments/old",
            user="ben",
            remote="10.1.2.4:51112",
            topic="payments",
            channel="old",
            nodes=(N1,),
            result="ok",
            took=0.008,
        ),
    )


# History: waves, with a gap in which no node was asked


def _wave(
    level: float, count: int, *, period: float = 40.0, growth: float = 0.0, swing: float = 0.15
) -> tuple[float | None, ...]:
    return tuple(
        None
        if count // 3 <= at < count // 3 + 3
        else max(0.0, level * (1 + swing * math.sin(at * 6.28 / period) + growth * (at / count - 1)))
        for at in range(count)
    )


def _series(span: Span, **levels: tuple[float, float]) -> Series:
    step, count = STEPS[span]
    return Series(
        end=NOW,
        step=step,
        values={Metric(name).value: _wave(level, count, growth=growth) for name, (level, growth) in levels.items()},
    )


def _all_series(snapshot: Snapshot) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for span in Span:
        found[f"{CLUSTER_SERIES}@{span}"] = _series(
            span,
            incoming=(1240, 0.1),
            finished=(1180, 0),
            depth=(78_402, 0.6),
            in_flight=(341, 0),
            findings=(6, 0.9),
            problems=(3, 0.9),
        )
        for one in snapshot.topics:
            found[f"{topic_series(one.name)}@{span}"] = _series(
                span, incoming=(one.rates.incoming or 0, 0.1), depth=(one.depth, 0), bytes=(one.rates.bytes or 0, 0)
            )
            for it in one.channels:
                found[f"{channel_series(one.name, it.name)}@{span}"] = _of_channel(span, it)
        for known in snapshot.nodes:
            found[f"{node_series(known.address)}@{span}"] = _series(
                span,
                incoming=(known.rates.incoming or 0, 0),
                depth=(known.depth, 0.4),
                in_flight=(known.in_flight_count, 0),
            )
    return found


def _of_channel(span: Span, it: Channel) -> Series:
    rates = it.rates
    return _series(
        span,
        depth=(it.depth, 0.7),
        backend_depth=(it.backend_depth, 0.8),
        in_flight=(it.in_flight_count, 0),
        deferred=(it.deferred_count, 0),
        incoming=(rates.incoming or 0, 0),
        finished=(rates.finished or 0, 0),
        requeued=(rates.requeued or 0, 0),
        timed_out=(rates.timed_out or 0, 0),
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(encode(demo()))
