"""The write buffer: what fits, what is taken for a write, and what is rolled back."""

from __future__ import annotations

import pytest
from hypothesis import given

from nsqd.broker.batch import Batch, Receipt
from nsqd.log.record import decode_batch, decode_header, size_of
from nsqd.log.writing.write_buffer import WriteBuffer
from tests.nsqd.log.batches import batch_runs, facts, make_batch


def filled(count: int, *, acknowledged: int = 0) -> WriteBuffer:
    buffer = WriteBuffer()
    for sequence in range(count):
        buffer.add(make_batch(sequence, [b"x"]))
        if sequence >= acknowledged:
            buffer.receipts.append(Receipt())
    return buffer


def sequences(batches: list[Batch]) -> list[int]:
    return [batch.base_sequence for batch in batches]


@given(batch_runs())
def test_buffers_are_the_records_of_the_batches(run: list[Batch]) -> None:
    buffer = WriteBuffer()
    for batch in run:
        buffer.add(batch)
    data = b"".join(buffer.buffers)
    assert len(data) == buffer.size == sum(map(size_of, run))
    position = 0
    for batch in run:
        header = decode_header(data, position)
        assert header is not None
        found = decode_batch(header, data, position)
        assert found is not None
        assert facts(found) == facts(batch)
        position += header.size


SIZE = size_of(make_batch(0, [b"x"]))


@pytest.mark.parametrize(
    ("room", "takes_any", "fitting"),
    [(3 * SIZE, False, 3), (3 * SIZE - 1, False, 2), (SIZE - 1, False, 0), (0, True, 1), (9 * SIZE, True, 3)],
)
def test_a_segment_takes_what_fits_and_an_empty_one_at_least_one_batch(
    room: int, takes_any: bool, fitting: int
) -> None:
    assert filled(3).fitting(room, takes_any=takes_any) == (fitting, fitting * SIZE)


def test_receipts_are_those_of_the_last_batches() -> None:
    buffer = filled(4, acknowledged=2)
    last = buffer.receipts[1]
    batches, receipts = buffer.take(3, 3 * SIZE)
    assert (sequences(batches), len(receipts)) == ([0, 1, 2], 1)
    assert (sequences(buffer.batches), buffer.receipts, buffer.size) == ([3], [last], SIZE)


def test_taking_acknowledged_batches_takes_no_receipt() -> None:
    buffer = filled(4, acknowledged=3)
    assert buffer.take(2, 2 * SIZE)[1] == []
    assert len(buffer.receipts) == 1


def test_taking_all_leaves_nothing() -> None:
    buffer = filled(2, acknowledged=1)
    batches, receipts = buffer.take_all()
    assert (sequences(batches), len(receipts)) == ([0, 1], 1)
    assert (buffer.batches, buffer.receipts, buffer.buffers, buffer.size) == ([], [], [], 0)


def test_rolling_back_keeps_what_was_acknowledged() -> None:
    buffer = filled(4, acknowledged=1)
    assert len(buffer.roll_back()) == 3
    assert (sequences(buffer.batches), buffer.receipts, buffer.size) == ([0], [], SIZE)
    assert buffer.size == len(b"".join(buffer.buffers))
