"""kill -9 of nsq_to_file at random moments: every message is in a file or still in the channel.

`python -m tests.e2e.archive_kill9 --kills=200` takes as long as it takes; the ordinary tests do ten.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.command_line import option, read_options
from tests.support.client import Client
from tests.support.process import Nsqd, eventually
from tests.support.tools import LIMIT, Tool, address

SETTINGS: Sequence[Sequence[str]] = (
    (),
    ("--gzip",),
    ("--rotate-size=3000",),
    ("--gzip", "--rotate-size=3000", "--skip-empty-files"),
    ("--gzip", "--rotate-interval=300ms", "--work-dir={folder}/work"),
    ("--rotate-size=2000", "--work-dir={folder}/work"),
    ("--max-in-flight=1",),
    ("--datetime-format=%S", "--gzip", "--gzip-level=1"),
)


_MOST_WAITING = 150


def archived(folder: Path) -> Iterator[bytes]:
    """Return every line of every file, as far as it can be read; of gzip files every whole member."""
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            yield from (members(data) if path.suffix == ".gz" else data).split(b"\n")


def members(data: bytes) -> bytes:
    whole = []
    while data:
        reader = zlib.decompressobj(31)
        text = reader.decompress(data)
        if not reader.eof:  # cut by a kill
            break
        whole.append(text)
        data = reader.unused_data
    return b"".join(whole)


class Load:
    """Publishes numbers, and records which ones nsqd has."""

    def __init__(self, nsqd: Nsqd, topic: str, chance: random.Random) -> None:
        self.confirmed: set[bytes] = set()
        self._nsqd = nsqd
        self._topic = topic
        self._chance = chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT)

    def _run(self) -> None:
        number = 0
        with Client(self._nsqd.tcp) as client:
            while not self._stop.wait(self._chance.choice((0, 0.002, 0.01))):
                bodies = [b"%d %b" % (number + it, b"x" * self._chance.randrange(200)) for it in range(5)]
                number += 5
                client.publish(self._topic, *bodies)
                self.confirmed.update(bodies)
                while number % 100 == 0 and self._is_ahead() and not self._stop.wait(0.1):
                    pass

    def _is_ahead(self) -> bool:
        """Return whether the tool is so far behind that publishing has to wait.

        With one message in flight and a sync for each, the tool is slow, and everything has to come through.
        """
        return bool(self._nsqd.channel(self._topic)["depth"] > _MOST_WAITING)


def run(folder: Path, *, kills: int, seed: int) -> int:
    """Return how many messages came through. Raise AssertionError, with the seed, if one is missing."""
    chance = random.Random(seed)
    total = 0
    # nsqd delivers messages that were in flight at the kill again after the timeout.
    with Nsqd(folder / "nsqd", "msg-timeout=2s") as nsqd:
        for number, settings in enumerate(SETTINGS):
            share = kills // len(SETTINGS) + (number < kills % len(SETTINGS))
            if share:
                total += _run_with(nsqd, folder / str(number), f"t{number}", settings, share, chance, seed)
    return total


def _run_with(
    nsqd: Nsqd, folder: Path, topic: str, settings: Sequence[str], kills: int, chance: random.Random, seed: int
) -> int:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    arguments = [
        f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={address(nsqd.tcp)}", "--sync-interval=100ms",
        f"--output-dir={folder}", *(it.format(folder=folder) for it in settings),
    ]  # fmt: skip
    where = f"seed {seed}, {settings}"
    with Load(nsqd, topic, chance) as load:
        for _ in range(kills):
            with Tool("nsq_to_file", *arguments) as tool:
                tool.wait_for_log("syncing")
                time.sleep(chance.uniform(0, 0.4))
                tool.process.kill()
                tool.wait()
                assert "Traceback" not in tool.log, tool.log
    with Tool("nsq_to_file", *arguments) as tool:
        tool.wait_for_log("connected to nsqd")  # before, SIGTERM could find a process that knows no signals yet
        try:
            eventually(lambda: left(nsqd, topic) == (0, 0, 0), timeout=60)
        except AssertionError:
            log = "\n".join(tool.log.splitlines()[-30:])
            raise AssertionError(f"{where}: {left(nsqd, topic)} is left\n{log}") from None
        assert tool.stop(15) == 0, tool.log
    lost = load.confirmed - set(archived(folder))
    assert not lost, f"{where}: {len(lost)} of {len(load.confirmed)} messages lost: {sorted(lost)[:5]}"
    return len(load.confirmed)


def left(nsqd: Nsqd, topic: str) -> tuple[int, int, int]:
    found = nsqd.channel(topic)
    return found["depth"], found["in_flight_count"], found["deferred_count"]


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions:
    kills: int = option(200, "of nsq_to_file")
    seed: int = option(random.randrange(1 << 32), "where all chance comes from (default: a new one)")


def main() -> int:
    arguments = read_options(
        ArchiveOptions, name="python -m tests.e2e.archive_kill9", about=(__doc__ or "").split("\n")[0]
    )
    sys.stdout.write(f"seed {arguments.seed}\n")
    sys.stdout.flush()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        total = run(Path(folder), kills=arguments.kills, seed=arguments.seed)
    sys.stdout.write(f"{arguments.kills} kills in {time.monotonic() - began:.0f} s, {total} messages, none lost\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
