"""A real nsqd imports a big data path of Go's nsqd, is killed at random, and starts again: is the result equal by hash?

python -m tests.simulation.go_import --messages 1000000 --kills 5 --seed 1
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.command_line import option, read_options
from tests.support.go_data import GoData, Message, deliverable, expected, messages
from tests.support.process import Nsqd, launch

# The share of all messages in each queue, for five channels; "" is a topic's own queue.
SHARES: Final = {
    "orders": {"billing": 0.2, "audit": 0.2, "": 0.1},
    "clicks": {"count": 0.25, "archive": 0.05, "": 0.05},
    "events": {"all": 0.1, "": 0.05},
}
COMPLETE: Final = re.compile(r"import from nsqd.dat complete and verified .* seconds=([\d.]+)")


def write_go_data(folder: Path, count: int, seed: int, *, max_bytes_per_file: int) -> dict[str, dict[str, str]]:
    """Write three topics and five channels with this many messages, and return what each channel should get."""
    go = GoData(folder, max_bytes_per_file=max_bytes_per_file)
    should: dict[str, dict[str, str]] = {}
    first = 0
    for topic, shares in SHARES.items():
        queues: dict[str, list[Message]] = {}
        for channel, share in shares.items():
            attempts = (0,) * 30 + (1, 2, 65_535) if channel else (0,)
            consumed = int(count * share) // 7
            number = int(count * share) + consumed
            written = list(messages(number, seed=seed + first, first=first, attempts=attempts))
            go.queue(f"{topic}:{channel}" if channel else topic, written, consumed=consumed)
            queues[channel] = written[consumed:]
            first += number
        should |= expected({topic: queues})
    go.metadata({topic: {name: False for name in shares if name} for topic, shares in SHARES.items()})
    return should


def kill_while_it_imports(folder: Path, after: float) -> bool:
    """Kill an nsqd this many seconds after it began to import, and return whether it had finished before."""
    process = launch(
        f"--data-path={folder}",
        "--tcp-address=127.0.0.1:0",
        "--http-address=127.0.0.1:0",
        "--max-bytes-per-file=8000000",
    )
    assert process.stderr is not None
    try:
        deadline = time.monotonic() + 30
        while not _has_open(process.pid, folder) and time.monotonic() < deadline:  # then nsqd has the lock
            time.sleep(0.002)
        time.sleep(after)
    finally:
        process.kill()
        said = process.stderr.read()
        process.wait(30)
        process.stderr.close()
    assert "Traceback" not in said, said
    return not (folder / "nsqd.dat").exists()


def _has_open(pid: int, folder: Path) -> bool:
    opened = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the file was closed meanwhile
            opened.append(descriptor.readlink())
    return folder in opened


def run(folder: Path, *, count: int, kills: int, seed: int, longest: float, max_bytes_per_file: int = 8_000_000) -> str:
    """Run the import with kills, and return a report. Raise AssertionError if the result is not equal."""
    chosen = random.Random(seed)
    should = write_go_data(folder, count, seed, max_bytes_per_file=max_bytes_per_file)
    size = sum(it.stat().st_size for it in folder.iterdir())
    killed = 0
    while killed < kills and not kill_while_it_imports(folder, chosen.uniform(0, longest)):
        killed += 1
    with Nsqd(folder, "max-bytes-per-file=8000000") as nsqd:
        found = COMPLETE.search(nsqd.log)
        assert nsqd.stop() == 0
    assert deliverable(folder).given == should
    assert not [it for it in folder.iterdir() if it.name.endswith(".dat")]
    took = f"in {found[1]} s" if found else "before the last kill"
    return f"equal: {count} messages and {size} bytes of Go's files, imported {took}, {killed} times interrupted"


@dataclass(frozen=True, kw_only=True)
class GoImportOptions:
    messages: int = option(1_000_000, "to import")
    kills: int = option(5, "of the import")
    seed: int = option(1, "where all chance comes from")
    longest: float = option(5.0, "seconds until a kill, at most")


def main() -> int:
    arguments = read_options(GoImportOptions, name="python -m tests.simulation.go_import", about=__doc__)
    folder = Path(tempfile.mkdtemp(prefix="nsq-go-import-"))
    try:
        told = run(
            folder / "data",
            count=arguments.messages,
            kills=arguments.kills,
            seed=arguments.seed,
            longest=arguments.longest,
            max_bytes_per_file=50_000_000,
        )
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(f"{told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
