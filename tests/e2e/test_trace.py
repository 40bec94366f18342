"""Traces by OpenTelemetry, collected by its own SDK: from an HTTP publish or a producer to the handlers of two channels."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio
from opentelemetry import propagate
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

import nsqclient
import nsqclient.aio
import nsqclient.sync
from nsqclient.otel import Tracing
from nsqclient.testing import MemoryNSQD
from tests.support.process import Nsqd
from tests.support.tools import LIMIT, address


class Collector:
    """A collector of spans, and what makes them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)
        self.tracer: Tracer = provider.get_tracer("test")

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]

    def trace(self) -> int:
        """Return the one trace to which all spans belong."""
        (trace,) = {it.context.trace_id for it in self._exporter.get_finished_spans() if it.context is not None}
        return int(trace)


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def two_channels(nsqd: Nsqd, topic: str) -> Nsqd:
    nsqd.post(f"/topic/create?topic={topic}")
    for channel in ("a", "b"):
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    return nsqd


def handle_in_trio(collector: Collector, nsqd: Nsqd, topic: str, channel: str, handler: Callable[..., Any]) -> None:
    """Handle one message, traced."""

    async def main() -> None:
        with trio.fail_after(LIMIT):
            async with nsqclient.open_consumer(topic, channel, nsqd=[address(nsqd.tcp)]) as consumer:
                async for message in consumer:
                    async with message:
                        await collector.tracing.handler(handler)(message)
                    break

    trio.run(main)


def check_two_handlers(collector: Collector, sender: ReadableSpan, topic: str) -> None:
    """Both handlers have spans below the sender's, with a link to it."""
    assert sender.context is not None
    handled = collector.spans(SpanKind.CONSUMER)
    assert {(it.attributes or {})["messaging.destination.subscription.name"] for it in handled} == {"a", "b"}
    for span in handled:
        attributes = dict(span.attributes or {})
        assert (span.name, attributes["messaging.system"]) == (f"process {topic}", "nsq")
        assert (attributes["messaging.operation.type"], attributes["messaging.nsq.attempts"]) == ("process", 1)
        assert attributes["messaging.destination.name"] == topic
        assert span.parent is not None
        assert span.parent.span_id == sender.context.span_id
        assert [link.context.span_id for link in span.links] == [sender.context.span_id]
        assert span.status.status_code is StatusCode.UNSET
    assert collector.trace() == sender.context.trace_id


async def note(message: Any) -> None:
    assert message.body == b"one"


def test_from_an_http_publish_to_the_handlers_of_two_channels(
    collector: Collector, two_channels: Nsqd, topic: str
) -> None:
    headers: dict[str, str] = {}
    with collector.tracer.start_as_current_span("POST /pub", kind=SpanKind.CLIENT):
        propagate.inject(headers)  # as an instrumented HTTP client does
        assert two_channels.http("POST", f"/pub?topic={topic}", b"one", headers=headers).status == 200
    for channel in ("a", "b"):
        handle_in_trio(collector, two_channels, topic, channel, note)
    (sender,) = collector.spans(SpanKind.CLIENT)
    check_two_handlers(collector, sender, topic)


def publish_in_trio(collector: Collector, nsqd: Nsqd, topic: str, count: int) -> None:
    async def main() -> None:
        async with nsqclient.open_producer(address(nsqd.tcp)) as plain:
            producer = collector.tracing.producer(plain)
            await (producer.publish(topic, b"one") if count == 1 else producer.publish_many(topic, [b"one"] * count))

    trio.run(main)


def publish_in_asyncio(collector: Collector, nsqd: Nsqd, topic: str, count: int) -> None:
    async def main() -> None:
        async with nsqclient.aio.open_producer(address(nsqd.tcp)) as plain:
            producer = collector.tracing.producer(plain)
            await (producer.publish(topic, b"one") if count == 1 else producer.publish_many(topic, [b"one"] * count))

    asyncio.run(main())


def publish_in_a_script(collector: Collector, nsqd: Nsqd, topic: str, count: int) -> None:
    with nsqclient.sync.producer(address(nsqd.tcp)) as plain:
        producer = collector.tracing.sync_producer(plain)
        if count == 1:
            producer.publish(topic, b"one")
        else:
            producer.publish_many(topic, [b"one"] * count)


PUBLISHERS = [publish_in_trio, publish_in_asyncio, publish_in_a_script]


@pytest.mark.parametrize("publish", PUBLISHERS)
def test_from_a_producer_to_the_handlers_of_two_channels(
    collector: Collector, two_channels: Nsqd, topic: str, publish: Callable[..., None]
) -> None:
    with collector.tracer.start_as_current_span("checkout"):
        publish(collector, two_channels, topic, 1)
    for channel in ("a", "b"):
        handle_in_trio(collector, two_channels, topic, channel, note)
    (sender,) = collector.spans(SpanKind.PRODUCER)
    assert (sender.name, (sender.attributes or {})["messaging.operation.type"]) == (f"publish {topic}", "send")
    check_two_handlers(collector, sender, topic)


@pytest.mark.parametrize("publish", PUBLISHERS)
def test_a_batch_has_links_to_all_its_publishes_and_no_parent(
    collector: Collector, two_channels: Nsqd, topic: str, publish: Callable[..., None]
) -> None:
    publish(collector, two_channels, topic, 3)
    publish(collector, two_channels, topic, 1)

    async def main() -> None:
        with trio.fail_after(LIMIT):
            config = nsqclient.Config(max_in_flight=4)
            consumers = nsqclient.open_consumer(topic, "a", nsqd=[address(two_channels.tcp)], config=config)
            async with consumers as consumer:
                async for batch in consumer.batches(4, max_wait=LIMIT):
                    collector.tracing.handler(lambda messages: messages.finish())(batch)
                    break

    trio.run(main)
    (handled,) = collector.spans(SpanKind.CONSUMER)
    many, one = collector.spans(SpanKind.PRODUCER)
    assert many.context is not None
    assert one.context is not None
    assert (many.attributes or {})["messaging.batch.message_count"] == 3
    assert (handled.attributes or {})["messaging.batch.message_count"] == 4
    assert handled.parent is None
    links = sorted(link.context.span_id for link in handled.links)
    assert links == sorted([many.context.span_id] * 3 + [one.context.span_id])


def test_a_handler_that_fails_is_an_error_and_one_that_asks_for_a_requeue_is_none(
    collector: Collector, two_channels: Nsqd, topic: str
) -> None:
    async def fail(message: Any) -> None:
        raise ZeroDivisionError("no")

    async def requeue(message: Any) -> None:
        raise nsqclient.Requeue

    publish_in_trio(collector, two_channels, topic, 1)
    with pytest.raises(ZeroDivisionError):
        handle_in_trio(collector, two_channels, topic, "a", fail)
    handle_in_trio(collector, two_channels, topic, "b", requeue)
    failed, requeued = collector.spans(SpanKind.CONSUMER)
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "no")
    assert [event.name for event in failed.events] == ["exception"]
    assert (requeued.status.status_code, [event.name for event in requeued.events]) == (StatusCode.UNSET, ["Requeue"])


def test_at_an_nsqd_that_knows_no_headers_publishing_goes_on(collector: Collector, topic: str) -> None:
    async def main() -> None:
        with trio.fail_after(LIMIT):
            async with MemoryNSQD(extensions=()) as old, nsqclient.open_producer(old) as plain:
                producer = collector.tracing.producer(plain)
                await producer.publish(topic, b"one")
                await producer.publish_many(topic, [b"two", b"three"])
                with pytest.raises(nsqclient.Unsupported):
                    await producer.publish(topic, b"four", headers={"mine": b"1"})
                assert old.bodies(topic) == [b"one", b"two", b"three"]

    trio.run(main)


def test_nothing_of_it_is_imported_unless_asked_for() -> None:
    code = "import sys, nsqclient, nsqclient.aio, nsqclient.sync; sys.exit(any('opentelemetry' in it for it in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
