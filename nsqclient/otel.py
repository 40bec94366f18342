"""Traces across NSQ, by OpenTelemetry: publishes and handlers as spans of one trace (docs/how-to/trace.md).

It needs the extra `otel`. The context travels in the headers `traceparent` and `tracestate` of each message, or in
those of the global propagator. Tracing never makes a publish fail: an nsqd without headers gets the message without
them.

    tracing = Tracing()
    producer = tracing.producer(producer)            # its publishes are spans
    await consumer.run(tracing.handler(handler))     # so are the calls of its handler
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from nsqclient.core.errors import GiveUp, Requeue, Unsupported
from nsqclient.core.publication import with_group, with_group_in_all
from nsqcommon.wire.headers import BadHeaders, encode_headers

if TYPE_CHECKING:
    from opentelemetry.context import Context

Headers = Mapping[str, bytes | str]
Group = str | bytes

_SYSTEM: Final = "nsq"


class Received(Protocol):
    """A message of any of the consumers: on trio, on asyncio, or in a thread."""

    @property
    def id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def attempts(self) -> int: ...


class AsyncProducer(Protocol):
    """The methods of a producer that are traced, on trio or on asyncio."""

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None,
        key: str | None,
        headers: Headers | None,
        timeout: float | None,
    ) -> None: ...

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None,
        headers: Iterable[Headers] | None,
        timeout: float | None,
    ) -> None: ...


class SyncProducer(Protocol):
    """The methods of a producer for plain scripts that are traced."""

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None,
        key: str | None,
        headers: Headers | None,
        timeout: float | None,
    ) -> None: ...

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None,
        headers: Iterable[Headers] | None,
        timeout: float | None,
    ) -> None: ...


HandlerT = TypeVar("HandlerT", bound=Callable[[Any], Any])


class Tracing:
    """Makes spans of publishes and of handlers."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """The default of `provider` is the global one."""
        self._tracer = trace.get_tracer("nsqclient", tracer_provider=provider)

    # Publishing

    def producer(self, producer: AsyncProducer) -> TracedProducer:
        """Return a producer, on trio or on asyncio, whose publishes are spans."""
        return TracedProducer(self, producer)

    def sync_producer(self, producer: SyncProducer) -> SyncTracedProducer:
        """Return a producer for plain scripts whose publishes are spans."""
        return SyncTracedProducer(self, producer)

    @contextmanager
    def sending(self, topic: str, count: int = 1) -> Iterator[Span]:
        """Make a span for the publish in this block, for publishers that `producer` doesn't cover."""
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.destination.name": topic,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
        }
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        with self._span(f"publish {topic}", SpanKind.PRODUCER, attributes) as span:
            yield span

    # Consuming

    def handler(self, handler: HandlerT) -> HandlerT:
        """Wrap a handler of messages or of batches, so that its calls are spans. An async handler stays async."""
        if inspect.iscoroutinefunction(handler):

            @wraps(handler)
            async def traced_async(received: Any) -> Any:
                with self.processing(received):
                    return await cast(Callable[[Any], Awaitable[Any]], handler)(received)

            return cast(HandlerT, traced_async)

        @wraps(handler)
        def traced(received: Any) -> Any:
            with self.processing(received):
                return handler(received)

        return cast(HandlerT, traced)

    @contextmanager
    def processing(self, received: Received | Sequence[Received]) -> Iterator[Span]:
        """Make a span for processing a message or a batch in this block.

        The span of a single message belongs to the trace of its publish. The span of a batch belongs to none of the
        publishes' traces. Both have links to the spans of the publishes.
        """
        messages = received if isinstance(received, Sequence) else (received,)
        contexts = [_context_of(message) for message in messages]
        links = [Link(sent) for it in contexts if (sent := trace.get_current_span(it).get_span_context()).is_valid]
        attributes: dict[str, str | int] = {
            "messaging.system": _SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
        }
        if messages:
            attributes["messaging.destination.name"] = messages[0].topic
            attributes["messaging.destination.subscription.name"] = messages[0].channel
        if isinstance(received, Sequence):
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes["messaging.message.id"] = received.id
            attributes["messaging.message.body.size"] = len(received.body)
            attributes["messaging.nsq.attempts"] = received.attempts
        name = f"process {messages[0].topic}" if messages else "process"
        parent = contexts[0] if not isinstance(received, Sequence) else None
        with self._span(name, SpanKind.CONSUMER, attributes, context=parent, links=links) as span:
            yield span

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, str | int],
        *,
        context: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            context,
            kind,
            attributes,
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except (Requeue, GiveUp) as answer:  # not an error: the handler asks for it
                span.add_event(type(answer).__name__)
                raise
            except Exception as error:
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise


class TracedProducer:
    """A producer on trio or on asyncio, with two traced methods. Everything else is the producer's own."""

    def __init__(self, tracing: Tracing, producer: AsyncProducer) -> None:
        self._tracing = tracing
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish with the producer, in a span of its own."""
        headers = with_group(headers, group)
        with self._tracing.sending(topic):
            for more in _ways(headers):
                try:
                    await self._producer.publish(topic, body, delay=delay, key=key, headers=more, timeout=timeout)
                except Unsupported:
                    if more == headers:
                        raise
                else:
                    return

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None = None,
        headers: Iterable[Headers] | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish with the producer, in one span for all messages."""
        bodies = list(bodies)
        headers = with_group_in_all(headers, group, len(bodies))
        with self._tracing.sending(topic, len(bodies)):
            for more in _ways_of_many(headers, len(bodies)):
                try:
                    await self._producer.publish_many(topic, bodies, key=key, headers=more, timeout=timeout)
                except Unsupported:
                    if more == headers:
                        raise
                else:
                    return


class SyncTracedProducer:
    """A producer for plain scripts, with two traced methods. Everything else is the producer's own."""

    def __init__(self, tracing: Tracing, producer: SyncProducer) -> None:
        self._tracing = tracing
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: str | None = None,
        headers: Headers | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish with the producer, in a span of its own."""
        headers = with_group(headers, group)
        with self._tracing.sending(topic):
            for more in _ways(headers):
                try:
                    self._producer.publish(topic, body, delay=delay, key=key, headers=more, timeout=timeout)
                except Unsupported:
                    if more == headers:
                        raise
                else:
                    return

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: str | None = None,
        headers: Iterable[Headers] | None = None,
        group: Group | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish with the producer, in one span for all messages."""
        bodies = list(bodies)
        headers = with_group_in_all(headers, group, len(bodies))
        with self._tracing.sending(topic, len(bodies)):
            for more in _ways_of_many(headers, len(bodies)):
                try:
                    self._producer.publish_many(topic, bodies, key=key, headers=more, timeout=timeout)
                except Unsupported:
                    if more == headers:
                        raise
                else:
                    return


def _ways(headers: Headers | None) -> tuple[Headers | None, ...]:
    """Return the headers with the current context, and without it for an nsqd that knows no headers."""
    more = _with_context(headers)
    return (more, headers) if more else (headers,)


def _ways_of_many(headers: Iterable[Headers] | None, count: int) -> tuple[list[Headers] | None, ...]:
    given = list(headers) if headers is not None else None
    more = [_with_context(it) for it in (given if given is not None else [{}] * count)]
    return (more, given) if any(more) else (given,)


def _with_context(headers: Headers | None) -> Headers:
    """Add the current context to the headers, if there is room. The caller's headers win."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    more = {**carrier, **(headers or {})}
    return more if _fits(more) else headers or {}


def _fits(headers: Headers) -> bool:
    try:
        encode_headers(headers)
    except BadHeaders:
        return False
    return True


def _context_of(message: Received) -> Context:
    """Return the context in which a message was published."""
    try:
        headers = message.headers
    except ValueError:  # headers that can't be decoded don't concern the trace
        headers = {}
    return propagate.extract({name: value.decode("latin-1") for name, value in headers.items()})
