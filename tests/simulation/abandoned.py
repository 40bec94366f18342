"""A channel that nobody consumes, on a small disk: does it take the disk from all others?

Topic `orders` has many channels, of which `abandoned` has no consumer. Other topics have one channel each. All are
published to in turn, until several times the size of the disk was published to `orders`. All consumers keep up: the next
messages are published when they have finished the last ones. No more than the disk's size is published in a second.

A file of the log is removed when all of its messages are finished and the journal on disk says so. With a bound that
drops, the log's files of `orders` may take as much as the bound and one file more, of which some messages are left. Beside
them lie their indexes, which take a 4,000th of that, and the log's identity.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nsqcommon.wire.commands import fin
from nsqcommon.wire.frames import FrameReader, FrameType
from tests.support.client import Client, Refused
from tests.support.process import Nsqd
from tests.support.small_disk import SmallDisk

TOPIC: Final = "orders"
ABANDONED: Final = "abandoned"
OTHERS: Final = ("audit", "billing", "mail", "search")
BODY: Final = 16_000
BATCH: Final = 8  # messages of one publish to `orders`; other topics get one message at the same time
_PAUSE: Final = 0.002  # seconds between two looks at the disk
_WAIT: Final = 60.0
_LINE: Final = 10.0  # seconds between two lines about the progress
_ID: Final = slice(10, 26)  # of a message's frame: behind timestamp and attempts
_MEBIBYTE: Final = 1 << 20

# A bound of messages is exact, so the oldest ones go only when others are written. That may be a batch more for a moment.
#
# What the policy says of `orders`. None of them buries: what is buried is kept, so it is no bound of the disk.
POLICIES: Final[Mapping[str, str]] = {
    "channel": 'channel = "abandoned"\nmax_bytes = {size}\noverflow = "drop-oldest"',
    "messages": 'channel = "abandoned"\nmax_messages = {messages}\noverflow = "drop-oldest"',
    "topic": 'max_bytes = {size}\noverflow = "drop-oldest"',
    "reject": 'channel = "abandoned"\nmax_bytes = {size}',
    "none": "",
}


@dataclass
class Outcome:
    bound: int  # bytes, as the four others
    segment: int
    offered: int = 0  # to `orders`
    most: int = 0  # that the files of the log of `orders` took
    refused: Counter[str] = field(default_factory=Counter)  # publishes, by topic
    delivered: int = 0
    seconds: float = 0.0

    @property
    def refused_elsewhere(self) -> int:
        return self.refused.total() - self.refused[TOPIC]

    @property
    def is_bounded(self) -> bool:
        return not self.refused_elsewhere and self.most <= self.bound + self.segment

    def __str__(self) -> str:
        return (
            f"{self.offered / _MEBIBYTE:.0f} MiB offered to {TOPIC}, {self.delivered:,} deliveries, "
            f"{self.refused[TOPIC]} publishes refused to {TOPIC} and {self.refused_elsewhere} to others, at most "
            f"{self.most / _MEBIBYTE:.2f} MiB in its files (bound {self.bound / _MEBIBYTE:.2f}, a file of the log "
            f"{self.segment / _MEBIBYTE:.2f}); {self.seconds:.0f} s"
        )


def run(
    disk: SmallDisk, folder: Path, policy: str, *, size: int, channels: int, times: float, say: Callable[[str], object]
) -> Outcome:
    """Offer `orders` several times the size of the disk, or stop when another topic is refused.

    `folder`: for the policy file.
    """
    outcome = Outcome(bound=size // 4, segment=size // 16)
    path = folder / "policy.toml"
    rules = POLICIES[policy].format(size=outcome.bound, messages=outcome.bound // BODY - BATCH)
    path.write_text(f'[[policy]]\ntopic = "{TOPIC}"\n{rules}\n' if rules else "")
    nsqd = Nsqd(disk.folder, f"policy-file={path}", f"max-bytes-per-file={outcome.segment}")
    nsqd.under = disk.under
    with nsqd:
        nsqd.post(f"/topic/create?topic={TOPIC}")
        nsqd.post(f"/channel/create?topic={TOPIC}&channel={ABANDONED}")
        with closing(_Load(nsqd, channels - 1)) as load, _watched(disk.seen / "topics" / f"t.{TOPIC}", outcome):
            began = said = time.monotonic()
            while outcome.offered < times * size and not outcome.refused_elsewhere:
                outcome.refused.update(load.publish())
                outcome.offered += BATCH * BODY
                outcome.delivered += load.catch_up()
                outcome.seconds = time.monotonic() - began
                time.sleep(max(0.0, began + outcome.offered / size - time.monotonic()))
                if time.monotonic() - said > _LINE:
                    said = time.monotonic()
                    say(f"{policy}: {outcome}")
    return outcome


class _Load:
    """A publisher for each topic, and a consumer for each channel but the abandoned one."""

    def __init__(self, nsqd: Nsqd, channels: int) -> None:
        self._nsqd = nsqd
        self._publishers: dict[str, Client] = {}
        self._consumers: list[_Consumer] = []
        self._selector = selectors.DefaultSelector()
        self._body = os.urandom(BODY)
        for topic, channel in [(TOPIC, f"live-{number}") for number in range(channels)] + [(it, "c") for it in OTHERS]:
            consumer = _Consumer(nsqd, topic, channel)
            self._consumers.append(consumer)
            self._selector.register(consumer.client.sock, selectors.EVENT_READ, consumer)

    def close(self) -> None:
        self._selector.close()
        for client in (*self._publishers.values(), *(consumer.client for consumer in self._consumers)):
            client.close()

    def publish(self) -> list[str]:
        """Publish to each topic. Return the topics that refuse it."""
        refused = []
        for topic, count in [(TOPIC, BATCH), *((topic, 1) for topic in OTHERS)]:
            publisher = self._publishers.pop(topic, None) or self._nsqd.connect()
            try:
                publisher.publish(topic, *[self._body] * count)
            except Refused:
                publisher.close()  # nsqd has closed it, too
                refused.append(topic)
                continue
            self._publishers[topic] = publisher
            for consumer in self._consumers:
                consumer.owed += count if consumer.topic == topic else 0
        return refused

    def catch_up(self) -> int:
        """Finish everything that was published. Return how many deliveries that were."""
        count = 0
        waiting = {consumer for consumer in self._consumers if consumer.owed}
        while waiting:
            ready = self._selector.select(_WAIT)
            assert ready, f"nothing comes to {[(it.topic, it.owed) for it in waiting]}"
            for key, _ in ready:
                count += key.data.finish_what_came()
                if not key.data.owed:
                    waiting.discard(key.data)
        return count


class _Consumer:
    def __init__(self, nsqd: Nsqd, topic: str, channel: str) -> None:
        self.topic = topic
        self.owed = 0  # messages that were published, and did not come yet
        self.client = nsqd.connect()
        self.client.subscribe(topic, channel, ready=2 * BATCH)
        self._frames = FrameReader(1 << 20)

    def finish_what_came(self) -> int:
        data = self.client.sock.recv(1 << 18)
        assert data, f"nsqd has closed the connection of a consumer of {self.topic}"
        self._frames.receive(data)
        ids = []
        while (frame := self._frames.next_frame()) is not None:
            assert frame.type is not FrameType.ERROR, frame.data
            if frame.type is FrameType.MESSAGE:
                ids.append(frame.data[_ID])
        if ids:
            self.client.send(*map(fin, ids))
        self.owed -= len(ids)
        return len(ids)


@contextmanager
def _watched(folder: Path, outcome: Outcome) -> Iterator[None]:
    """Look all the time how much space the files of a folder take."""
    ends = threading.Event()

    def look() -> None:
        outcome.most = max(outcome.most, _space(folder))

    def watch() -> None:
        while not ends.wait(_PAUSE):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        look()  # on a busy machine, the thread may not have got to run for a while


def _space(folder: Path) -> int:
    """Return the space of the log's files; 0 if some came or went meanwhile, as the sizes are of different moments then."""
    before, space = _log_files(folder), 0
    for name in before:
        with suppress(FileNotFoundError):
            space += (folder / name).stat().st_blocks * 512
    return space if _log_files(folder) == before else 0


def _log_files(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name.endswith(".log")}
