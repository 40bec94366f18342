"""What a version before headers, keys and buried messages puts into its data path, and what it can read there.

`fill` and `check` speak only NSQ's protocol, so they do their work with an nsqd of either version. The rest is what such
a version knows of records and of the journal, written down once more, so that a test needs none of its code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from google_crc32c import value as crc32c

from nsqcommon.wire.message import Message
from nsqd.log.journal import format as journal_format
from tests.support.process import Nsqd, eventually

CENTURY_MS: Final = 100 * 365 * 24 * 3_600_000
OPTIONS: Final = ("max-bytes-per-file=1000", "max-req-timeout=876600h")

# The journal's words and how many arguments each has, the word included. Such a version passes over all others.
WORDS: Final = {
    *(("topic", 2), ("drop", 2), ("learned", 2), ("snapshot", 2), ("pause", 3), ("freeze", 3), ("flow", 2)),
    *(("park", 5), ("unpark", 2), ("cut", 3), ("doubt", 3), ("defer", 5), ("channel", 4), ("nochannel", 3)),
    *(("hold", 4), ("empty", 4), ("seek", 4), ("restore", 7), ("skip", 5), ("progress", 5), ("try", 5), ("wait", 4)),
    *(("checkpoint", 6), ("gone", 3), ("node", 3), ("rotation", 2), ("lost", 2), ("part", 3), ("end", 3)),
}

_record: Final = Struct(">4sIIIQQqQIHH")
_size: Final = Struct(">I")


def fill(nsqd: Nsqd) -> None:
    """Leave something of everything that a channel can have. The caller ends nsqd, in whichever way."""
    for topic, channels in {
        "orders": ("work", "audit", "held"),
        "long": ("c",),
        "unread": (),
        "paused": ("c",),
    }.items():
        nsqd.post(f"/topic/create?topic={topic}")
        for channel in channels:
            nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    nsqd.post("/channel/pause?topic=orders&channel=held")
    nsqd.post("/topic/pause?topic=paused")
    client = nsqd.connect()
    client.publish("orders", *(b"%d" % number for number in range(40)))
    for number in range(40, 60):
        client.publish("orders", b"%d" % number)
    client.defer("orders", CENTURY_MS, b"much later")
    _take_some(nsqd)
    for topic in ("unread", "paused"):
        client.publish(topic, b"one", b"two")
        client.defer(topic, CENTURY_MS, b"much later")
    _have_one_compacted(nsqd)


def _take_some(nsqd: Nsqd) -> None:
    """Of 60 messages finish 20, requeue 2 at once and 3 for a century, and leave 5 in flight."""
    consumer = nsqd.connect()
    consumer.subscribe("orders", "work", ready=30)
    taken = consumer.messages(30)
    consumer.send(b"RDY 0\n")
    consumer.in_step()
    consumer.finish(*taken[:20])
    for message in taken[20:22]:
        consumer.requeue(message)
    for message in taken[22:25]:
        consumer.requeue(message, CENTURY_MS)
    consumer.in_step()
    eventually(lambda: nsqd.channel("orders", "work")["deferred_count"] == 4)


def _have_one_compacted(nsqd: Nsqd) -> None:
    nsqd.connect().defer("long", CENTURY_MS, b"much later")
    publish_and_finish(nsqd, "long", 100)
    folder = nsqd.data_path / "topics" / "t.long"
    eventually(lambda: (folder / "carried.000001").exists() and len(list(folder.glob("*.log"))) < 3, 60)


def publish_and_finish(nsqd: Nsqd, topic: str, count: int) -> None:
    """Fill segments with messages that are finished."""
    client, consumer = nsqd.connect(), nsqd.connect()
    consumer.subscribe(topic, ready=100)
    for number in range(count):
        client.publish(topic, b"%d" % number + bytes(50))
        consumer.finish(consumer.message())
    consumer.in_step()


def check(nsqd: Nsqd) -> None:
    """Take all that `fill` has left, and raise AssertionError unless all of it is there."""
    numbers = {b"%d" % number for number in range(60)}
    work = drained(nsqd, "orders", "work")
    assert work.keys() <= numbers
    assert Counter(it.attempts for it in work.values()) == {1: 30, 2: 2 + 5}
    assert nsqd.channel("orders", "work")["deferred_count"] == 4
    assert drained(nsqd, "orders", "audit").keys() == numbers
    assert nsqd.channel("orders", "audit")["deferred_count"] == 1
    assert nsqd.channel("orders", "held")["paused"]
    nsqd.post("/channel/unpause?topic=orders&channel=held")
    assert drained(nsqd, "orders", "held").keys() == numbers
    assert nsqd.topic("paused")["paused"]
    nsqd.post("/topic/unpause?topic=paused")
    nsqd.post("/channel/create?topic=unread&channel=c")
    for topic in ("unread", "paused"):
        assert drained(nsqd, topic).keys() == {b"one", b"two"}
        assert nsqd.channel(topic)["deferred_count"] == 1
    assert not drained(nsqd, "long")
    assert nsqd.channel("long")["deferred_count"] == 1
    assert nsqd.http("GET", "/ping").body == b"OK"


def drained(
    nsqd: Nsqd, topic: str, channel: str = "c", *, left: int = 0, extensions: Sequence[str] = ()
) -> dict[bytes, Message]:
    """Finish everything that comes, until no more than `left` messages wait. Return it by its body."""
    arrived: list[Message] = []
    with nsqd.connect() as consumer:
        if extensions:
            consumer.identify(feature_negotiation=True, extensions=extensions)
        consumer.subscribe(topic, channel, ready=100)

        def is_done() -> bool:
            with suppress(TimeoutError):
                while True:
                    arrived.append(consumer.message(0.05))
                    consumer.finish(arrived[-1])
            counted = nsqd.channel(topic, channel)
            # What is in flight may still be on its way to us.
            return bool(counted["depth"] <= left and not counted["in_flight_count"])

        eventually(is_done, 30)
        consumer.in_step()
    found = {it.body: it for it in arrived}
    assert len(found) == len(arrived), arrived
    return found


# What it can read


def records(folder: Path) -> Iterator[bytes]:
    """Yield each record of a topic's segments, which are found by their lengths alone."""
    for segment in sorted(folder.glob("*.log")):
        data, position = segment.read_bytes(), 0
        while position < len(data):
            length = _record.unpack_from(data, position)[2]
            yield data[position : position + _record.size + length]
            position += _record.size + length


def bodies(record: bytes) -> list[bytes] | None:
    """Return the messages that such a version finds in a record; None: it takes the record for damage."""
    magic, header_crc, length, crc, _, _, _, _, count, _, key_length = _record.unpack_from(record)
    checked = record[_record.size :]
    assert magic == b"\xf1NS\x01"
    assert header_crc == crc32c(record[8 : _record.size])
    assert (length, crc) == (len(checked), crc32c(checked))
    payload, found = checked[key_length:], []
    for _ in range(count):
        if len(payload) < _size.size:
            return None
        end = _size.size + _size.unpack_from(payload)[0]
        found.append(payload[_size.size : end])
        payload = payload[end:]
    return None if payload else found


def journal_words(data_path: Path) -> set[tuple[str, int]]:
    """Return the words in the journal, each with the number of its arguments, the word included."""
    found = set()
    for file in sorted(data_path.glob("journal.*")):
        data, position = file.read_bytes(), 0
        while (frame := journal_format.decode(data, position)) is not None:
            for change in frame.changes:
                found.add((str(change[0]), len(change)))
                if change[0] == "part" and isinstance(change[2], tuple):
                    found |= {(str(told[0]), len(told)) for told in change[2]}
            position = frame.end
    return found
