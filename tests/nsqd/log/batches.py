"""Batches for the tests of the log: fixed ones and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hypothesis import strategies as st

from nsqd.broker.batch import Batch

UNSIGNED_64 = st.integers(0, 2**64 - 1)


def make_batch(
    sequence: int,
    bodies: Sequence[bytes],
    *,
    timestamp: int = 1,
    delay_ms: int = 0,
    base_id: int | None = None,
    key: bytes = b"",
) -> Batch:
    payload = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    offsets = [0, *accumulate(4 + len(body) for body in bodies)]
    return Batch(sequence, 1000 + sequence if base_id is None else base_id, timestamp, payload, offsets, delay_ms, key)


def bodies_of(batch: Batch) -> list[bytes]:
    return [batch.body(sequence) for sequence in range(batch.base_sequence, batch.end_sequence)]


def facts(batch: Batch) -> tuple[object, ...]:
    """Return everything that makes up a batch, for comparing."""
    return (
        batch.base_sequence,
        batch.base_id,
        batch.timestamp,
        batch.delay_ms,
        batch.count,
        batch.payload,
        list(batch.offsets),
    )


@st.composite
def batches(draw: st.DrawFn, *, sequence: int | None = None) -> Batch:
    bodies = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=12))
    if draw(st.booleans()):  # often all messages have the same size
        bodies = [body.ljust(40) for body in bodies]
    return make_batch(
        draw(st.integers(0, 2**63)) if sequence is None else sequence,
        bodies,
        timestamp=draw(st.integers(-(2**63), 2**63 - 1)),
        delay_ms=draw(UNSIGNED_64),
        base_id=draw(UNSIGNED_64),
    )


@st.composite
def batch_runs(draw: st.DrawFn, *, first: int = 0, most: int = 8) -> list[Batch]:
    """Generate consecutive batches, at least one."""
    run = [draw(batches(sequence=first))]
    for _ in range(draw(st.integers(0, most - 1))):
        run.append(draw(batches(sequence=run[-1].end_sequence)))
    return run
