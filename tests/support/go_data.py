"""Data paths as a Go nsqd leaves them, written byte for byte from what is known of its files.

    go = GoData(tmp_path)
    go.queue("t", messages)
    go.queue("t:c", messages, consumed=10)
    go.metadata({"t": {"c": False}}, paused=["t"])

`deliverable` reads an nsqd's own data path without the code that imports, and says what each channel would be given.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqd.broker.journal_replay import TopicState, replay
from nsqd.log.record import decode_batch, scan
from nsqd.log.store import DiskStore
from tests.support.log_settings import log_settings

if TYPE_CHECKING:
    from nsqd.log.record import Header

_record: Final = Struct(">iqH16s").pack
_EPOCH: Final = 1288834974288
START: Final = 1_775_097_402_976_800_768  # an arbitrary time, in nanoseconds


class Message(NamedTuple):
    id: bytes
    timestamp: int
    attempts: int
    body: bytes

    @property
    def record(self) -> bytes:
        return _record(26 + len(self.body), self.timestamp, self.attempts, self.id) + self.body


def message_id(timestamp: int, sequence: int = 0, *, node: int = 617) -> bytes:
    return b"%016x" % ((timestamp >> 20) - _EPOCH << 22 | node << 12 | sequence)


def messages(count: int, *, seed: int = 0, first: int = 0, attempts: Sequence[int] = (0,)) -> Iterator[Message]:
    """Return messages with ascending ids and times. Bodies have many sizes, and some are empty."""
    chosen = random.Random(seed)
    stock = chosen.randbytes(4096)
    for number in range(first, first + count):
        timestamp = START + number * 1_500_000
        size = chosen.choice((0, 1, 20, 100, 200, 200, 200, 900))
        at = chosen.randrange(4096 - size)
        yield Message(message_id(timestamp), timestamp, chosen.choice(attempts), stock[at : at + size])


class GoData:
    def __init__(self, folder: Path, *, max_bytes_per_file: int = 104_857_600) -> None:
        self.folder = folder
        self._max = max_bytes_per_file
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, queue: str, number: int) -> Path:
        return self.folder / f"{queue}.diskqueue.{number:06}.dat"

    def meta(self, queue: str) -> Path:
        return self.folder / f"{queue}.diskqueue.meta.dat"

    def queue(self, queue: str, written: Iterable[Message] = (), *, consumed: int = 0, first_file: int = 0) -> None:
        """Write the files of a queue that got all these messages, and from which the first ones have been read."""
        number, offset, count = first_file, 0, 0
        read_file, read_offset = first_file, 0
        pieces: list[bytes] = []
        for message in written:
            record = message.record
            if offset and offset + len(record) > self._max:
                self.file(queue, number).write_bytes(b"".join(pieces))
                pieces = []
                number, offset = number + 1, 0
            pieces.append(record)
            offset += len(record)
            count += 1
            if count == consumed:
                read_file, read_offset = number, offset
        if pieces:
            self.file(queue, number).write_bytes(b"".join(pieces))
        for finished in range(first_file, read_file):
            self.file(queue, finished).unlink()
        self.set_meta(queue, count - consumed, (read_file, read_offset), (number, offset))

    def set_meta(self, queue: str, depth: int, read: tuple[int, int], write: tuple[int, int]) -> None:
        self.meta(queue).write_bytes(b"%d\n%d,%d\n%d,%d\n" % (depth, *read, *write))

    def metadata(self, topics: Mapping[str, Mapping[str, bool]], *, paused: Iterable[str] = ()) -> None:
        """Write the metadata: topics, and for each of their channels whether it is paused."""
        described = [
            {
                "name": topic,
                "paused": topic in set(paused),
                "channels": [{"name": name, "paused": held} for name, held in channels.items()] or None,
            }
            for topic, channels in topics.items()
        ]
        text = json.dumps({"topics": described or None, "version": "1.3.0"}, separators=(",", ":"))
        (self.folder / "nsqd.dat").write_text(text)


# What a channel has to deliver: (id, timestamp, attempts before, body). Under "" what waits in the topic behind H.
Given = tuple[int, int, int, bytes]


class Outcome(NamedTuple):
    state: dict[str, TopicState]
    given: dict[str, dict[str, str]]  # topic -> channel -> count and hash


def expected(queues: Mapping[str, Mapping[str, Iterable[Message]]]) -> dict[str, dict[str, str]]:
    """Return what `deliverable` should return, by topic and channel ("": the topic's own queue).

    All ids have to be good.
    """
    found = {}
    for topic, by_channel in queues.items():
        own = list(by_channel.get("", ()))
        channels = [name for name in by_channel if name]
        found[topic] = {name: summary(_given([*by_channel[name], *own])) for name in channels}
        found[topic][""] = summary(_given(own) if not channels else ())
    return found


def _given(written: Iterable[Message]) -> Iterator[Given]:
    return ((int(it.id, 16), it.timestamp, it.attempts, it.body) for it in written)


def summary(given: Iterable[Given]) -> str:
    digest, count = sha256(), 0
    for number, timestamp, attempts, body in given:
        digest.update(b"%d %d %d %d " % (number, timestamp, attempts, len(body)) + body)
        count += 1
    return f"{count} {digest.hexdigest()}"


def deliverable(folder: Path) -> Outcome:
    """Read a data path that no nsqd has open, and return what each channel has to deliver."""
    store = DiskStore.open(folder, log_settings())
    try:
        recovered = store.recover()
        assert recovered.damage == []
        states = replay(recovered.changes)
        assert states.keys() == recovered.logs.keys(), (states.keys(), recovered.logs.keys())
        given = {}
        for topic, state in states.items():
            tail = recovered.logs[topic].tail
            end = tail if state.frozen_at is None else state.frozen_at
            given[topic] = {name: summary(_given_to(state, name, _read(store, topic), end)) for name in state.channels}
            behind = (message for sequence, message in _read(store, topic) if sequence >= end)
            given[topic][""] = summary(behind)
        return Outcome(states, given)
    finally:
        store.abandon()


def _given_to(state: TopicState, channel: str, log: Iterator[tuple[int, Given]], end: int) -> Iterator[Given]:
    found = state.channels[channel]
    skips = iter(sorted(found.skips))
    start, stop = next(skips, (end, end))
    for sequence, (number, timestamp, _, body) in log:
        while sequence >= stop and start < end:
            start, stop = next(skips, (end, end))
        if sequence in found.waiting:
            assert start <= sequence < stop
            yield number, timestamp, found.waiting[sequence][0], body
        elif found.cursor <= sequence < end and not start <= sequence < stop:
            yield number, timestamp, 0, body


def _read(store: DiskStore, topic: str) -> Iterator[tuple[int, Given]]:
    sequence = 0
    for path in sorted(store.data_path.topic_folder(topic).glob("*.log")):
        data = path.read_bytes()
        headers: list[tuple[int, Header]] = []
        found = scan(data, 0, sequence, verify=True, headers=headers)
        assert found.position == len(data), path
        for position, header in headers:
            batch = decode_batch(header, data, position)
            assert batch is not None
            assert batch.count == 1
            yield sequence, (batch.base_id, batch.timestamp, 0, batch.body(sequence))
            sequence += 1
