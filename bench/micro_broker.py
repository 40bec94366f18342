"""What the broker's core costs without sockets and disk: nanoseconds per message.  python -m bench.micro_broker"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Collection, Sequence
from time import perf_counter_ns

from nsqcommon.wire import commands
from nsqcommon.wire.commands import SizeLimits
from nsqcommon.wire.identify import ClientSettings, ServerFeatures
from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.broker import Broker
from nsqd.broker.change import Change
from nsqd.broker.message_id import IdSource
from nsqd.broker.rules import NO_RULES
from nsqd.broker.store import DiskSnapshot, KeyedPublish
from nsqd.broker.turn import finish_turn
from nsqd.client.protocol import ClientProtocol
from nsqd.client.rules import ClientRules
from nsqd.options import Options
from nsqd.start import broker_settings

BODY = b"x" * 200


class NoLog:
    """A log that keeps batches in memory and settles receipts at once."""

    first: int = 0
    cached_from: int = 0

    keys_from: int = -1

    def __init__(self) -> None:
        self.tail: int = 0
        self.batches: deque[Batch] = deque()

    def take_keys(self) -> tuple[list[tuple[bytes, int]], list[KeyedPublish]]:
        return [], []

    def deferred_keys(self, wanted: Sequence[int]) -> list[KeyedPublish]:
        return []

    def has_room(self, count: int, size: int) -> bool:
        return True

    def bytes_from(self, sequence: int) -> int:
        return 0

    def refusal(self) -> str | None:
        return None

    def refusal_now(self) -> str | None:
        return None

    def answer_repeat(self, earlier: Receipt) -> Receipt:
        return earlier

    def append(self, batch: Batch, receipt: Receipt) -> None:
        self.batches.append(batch)
        self.tail = batch.end_sequence
        receipt.settle()

    def batch_at(self, sequence: int) -> Batch | None:
        while self.batches and self.batches[0].end_sequence <= sequence:
            self.batches.popleft()
        return self.batches[0]

    def next_readable(self, sequence: int) -> int:
        return sequence

    def end_of_refused(self, sequence: int) -> int:
        return sequence

    def older_than(self, timestamp: int) -> int:
        return 0

    def outdated(self) -> int:
        return 0

    def file_of(self, sequence: int) -> int:
        return 0

    def waits_for_removal(self, passed: int) -> bool:
        return False

    @property
    def waits_for_copy(self) -> bool:
        return False

    def release(self, sequence: int, passed: int | None = None) -> None:
        pass


class NoStore:
    health = "OK"

    def disk(self) -> DiskSnapshot:
        return DiskSnapshot()

    def create_log(self, topic: str) -> NoLog:
        return NoLog()

    def drop_log(self, topic: str) -> None:
        pass

    def record(self, change: Change, *, urgent: bool) -> None:
        pass

    def reserve_ids(self, until: int) -> None:
        pass

    # Called by a turn

    journal_error = publishing_error = None

    def write_journal(self) -> bool:
        return True

    def write_logs(self) -> None:
        pass


STORE = NoStore()
RULES = ClientRules(
    limits=SizeLimits(),
    features=ServerFeatures(
        max_rdy_count=2500,
        version="",
        max_msg_timeout_ms=900_000,
        max_heartbeat_interval_ms=60_000,
        max_output_buffer_size=65536,
        min_output_buffer_timeout_ms=25,
        max_output_buffer_timeout_ms=30_000,
        max_deflate_level=6,
        tls=False,
        snappy=False,
        deflate=False,
        auth_required=False,
        topology_region="",
        topology_zone="",
        extensions=(),
    ),
    defaults=ClientSettings(output_buffer_timeout_ms=250, msg_timeout_ms=60_000),
    max_req_timeout_ms=3_600_000,
    max_defer_timeout_ms=3_600_000,
    max_channel_consumers=0,
)


def make_broker() -> Broker:
    ids = IdSource(1, timestamp=10**18, reserved=0, reserve=lambda until: None)
    return Broker(
        STORE,
        broker_settings(Options()),
        ids=ids,
        now=0.0,
        timestamp=10**18,
        random_percent=lambda: 0,
        rules=NO_RULES,
        note=print,
        learns=False,
    )


def end_turn(broker: Broker) -> None:
    finish_turn(broker, STORE, announce=tell_nobody, flush=do_nothing)


def do_nothing() -> None:
    pass


def tell_nobody(topics: Collection[str]) -> None:
    pass


def make_client(broker: Broker) -> ClientProtocol:
    client = ClientProtocol(
        broker,
        RULES,
        remote_address="",
        remote_host="",
        wake=lambda: None,
        note=lambda level, text: None,
        upgrade=lambda client, granted, early: None,
    )
    client.receive(commands.MAGIC, 0.0)
    return client


def publish(stream: bytes, turns: int) -> None:
    broker = make_broker()
    client = make_client(broker)
    for _ in range(turns):
        client.receive(stream, 0.0)
        end_turn(broker)
        b"".join(client.bytes_to_send())


def consume(batch: int, messages: int) -> None:
    broker = make_broker()
    publisher, consumer = make_client(broker), make_client(broker)
    consumer.receive(commands.sub("t", "c") + commands.rdy(2500), 0.0)
    stream = commands.mpub("t", [BODY] * batch) if batch > 1 else commands.pub("t", BODY)
    done = 0
    while done < messages:
        publisher.receive(stream, 0.0)
        end_turn(broker)
        publisher.bytes_to_send()
        sent = b"".join(consumer.bytes_to_send())
        at, fins = 0, []
        while at < len(sent):
            size = int.from_bytes(sent[at : at + 4], "big")
            if sent[at + 7] == 2:
                fins.append(b"FIN " + sent[at + 18 : at + 34] + b"\n")
            at += 4 + size
        consumer.sent(0)
        start = perf_counter_ns()
        consumer.receive(b"".join(fins), 0.0)
        broker.record_progress()
        global finishing
        finishing += perf_counter_ns() - start
        done += batch


finishing = 0


def measure(name: str, work: Callable[[], None], messages: int) -> None:
    gc.collect()
    best = min(_timed(work) for _ in range(3))
    print(f"{name:40} {best / messages:8.0f} ns/message")


def _timed(work: Callable[[], None]) -> int:
    start = perf_counter_ns()
    work()
    return perf_counter_ns() - start


def main() -> None:
    gc.disable()
    single = commands.pub("t", BODY)
    measure("PUB, one in a turn", lambda: publish(single, 20_000), 20_000)
    measure("PUB, 64 in a turn", lambda: publish(single * 64, 500), 32_000)
    many = commands.mpub("t", [BODY] * 200)
    measure("MPUB of 200", lambda: publish(many, 500), 100_000)
    global finishing
    for batch in (1, 200):
        finishing = 0
        measure(f"publish {batch}, deliver, FIN (with the test's cutting)", lambda b=batch: consume(b, 20_000), 20_000)  # type: ignore[misc]
        print(f"{'  of it FIN and progress':40} {finishing / 60_000:8.0f} ns/message")


if __name__ == "__main__":
    main()
