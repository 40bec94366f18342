"""What a traced producer passes on, and what a traced handler's span says."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from nsqclient import GiveUp, Requeue, Unsupported, open_consumer, open_producer
from nsqclient.otel import Tracing
from nsqclient.testing import MemoryNSQD
from tests.support.jumping import jumping


@jumping
async def test_a_group_is_published_beside_the_trace() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        traced = Tracing(TracerProvider()).producer(producer)
        await traced.publish("t", b"one", group="ana")
        await traced.publish_many("t", [b"two", b"three"], group="ben")
        async with open_consumer("t", "c", nsqd=server) as consumer:
            groups = []
            async for message in consumer:
                groups.append(message.group)
                message.finish()
                if len(groups) == 3:
                    break
        assert groups == ["ana", "ben", "ben"]
        with pytest.raises(ValueError, match="invalid group"):
            await traced.publish("t", b"four", group="")


@jumping
async def test_a_group_is_not_left_out_for_an_nsqd_without_headers() -> None:
    async with MemoryNSQD(extensions=()) as server, open_producer(server) as producer:
        traced = Tracing(TracerProvider()).producer(producer)
        await traced.publish("t", b"one")
        with pytest.raises(Unsupported):
            await traced.publish("t", b"two", group="ana")
        with pytest.raises(Unsupported):
            await traced.publish_many("t", [b"three"], group="ana")
        assert server.bodies("t") == [b"one"]


@pytest.mark.parametrize(
    ("raised", "status", "description"),
    [
        (ValueError("no such order"), StatusCode.ERROR, "no such order"),
        (Requeue(), StatusCode.UNSET, None),
        (GiveUp("too late"), StatusCode.UNSET, None),
    ],
)
def test_only_an_error_is_one_in_its_span(raised: Exception, status: StatusCode, description: str | None) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with pytest.raises(type(raised)), Tracing(provider).processing([]):
        raise raised
    (span,) = spans.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (status, description)
