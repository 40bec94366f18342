"""What the log costs a turn: append and write of one PUB and of one MPUB, reading back, recovery.

    python bench/micro_log.py [--recovery-gigabytes 5] [--folder DIR]

Figures are microseconds for each batch unless a line says otherwise. "write call" is what the bare system call costs,
so that the difference is ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nsqd.broker.batch import Batch, Receipt
from nsqd.log.settings import LogSettings
from nsqd.log.store import DiskStore
from nsqd.log.topic_log import DiskLog
from nsqd.options import Options
from nsqd.start import log_settings


def payload_of(count: int, size: int) -> tuple[bytes, list[int]]:
    one = size.to_bytes(4, "big") + os.urandom(size)
    return one * count, list(range(0, (size + 4) * count + 1, size + 4))


def measure(what: str, repeat: int, step: Callable[[int], object]) -> float:
    best = min(_time(repeat // 5, step) for _ in range(5))
    print(f"{what:54} {best * 1e6:10.2f}")
    return best


def _time(repeat: int, step: Callable[[int], object]) -> float:
    started = time.perf_counter()
    for number in range(repeat):
        step(number)
    return (time.perf_counter() - started) / repeat


def bare_write(folder: Path, size: int, repeat: int) -> float:
    descriptor = os.open(folder / "bare", os.O_RDWR | os.O_CREAT)
    buffers = [bytes(56), bytes(size)]
    offset = 0

    def step(_: int) -> None:
        nonlocal offset
        offset += os.pwritev(descriptor, buffers, offset)

    try:
        return measure(f"write call, {size} bytes", repeat, step)
    finally:
        os.close(descriptor)
        (folder / "bare").unlink()


def publishing(folder: Path, count: int, size: int, repeat: int) -> None:
    bare = bare_write(folder, count * (size + 4), repeat)
    store, log = fresh(folder)
    payload, offsets = payload_of(count, size)

    def step(_: int) -> None:
        receipt = Receipt()
        log.append(Batch(log.tail, log.tail, 1, payload, offsets), receipt)
        store.write_logs()
        assert receipt.settled

    making = _time(repeat, lambda _: (Receipt(), Batch(1, 1, 1, payload, offsets)))
    ours = measure(f"append + write, {count} x {size} bytes", repeat, step)
    print(f"{'    ours, without the call and making the batch':54} {(ours - bare - making) * 1e6:10.2f}")
    store.abandon()


def reading(folder: Path, count: int, size: int, batches: int) -> None:
    store, log = fresh(folder, mem_queue_size=0)
    payload, offsets = payload_of(count, size)
    for _ in range(batches):
        log.append(Batch(log.tail, log.tail, 1, payload, offsets), Receipt())
        store.write_logs()
    started = time.perf_counter()
    sequence = 0
    while sequence < log.tail:
        batch = log.batch_at(sequence)
        assert batch is not None
        sequence = batch.end_sequence
    print(
        f"{f'read back from the page cache, {count} x {size}':54} {(time.perf_counter() - started) / batches * 1e6:10.2f}"
    )
    store.abandon()


def recovery(folder: Path, gigabytes: float, topics: int = 20, size: int = 250) -> None:
    settings = log_settings(Options(disk_reserve=0), None)
    store = DiskStore.open(folder, settings)
    store.recover()
    payload, offsets = payload_of(1, size)
    each = int(gigabytes * 1e9 / topics / (size + 60))
    for number in range(topics):
        log = store.create_log(f"topic{number}")
        for _ in range(each // 500):
            for _ in range(500):
                log.append(Batch(log.tail, log.tail, 1, payload, offsets), Receipt())
            store.write_logs()
        store.syncer.sync_now()
        store.flush()
    store.abandon()
    seconds = _recover(folder, settings)
    print(f"{f'start after kill -9, {gigabytes} GB in {topics} topics, seconds':54} {seconds:10.2f}")
    for journal in folder.glob("journal.*"):
        journal.unlink()
    seconds = _recover(folder, settings)
    print(f"{'the same, journal lost: all last segments are read':54} {seconds:10.2f}")
    store = DiskStore.open(folder, settings)
    store.recover()
    store.close()
    seconds = _recover(folder, settings)
    print(f"{'the same after a clean stop, seconds':54} {seconds:10.2f}")


def _recover(folder: Path, settings: LogSettings) -> float:
    started = time.perf_counter()
    store = DiskStore.open(folder, settings)
    store.recover()
    seconds = time.perf_counter() - started
    store.abandon()
    return seconds


def fresh(folder: Path, mem_queue_size: int = 10_000) -> tuple[DiskStore, DiskLog]:
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "data").mkdir()
    store = DiskStore.open(folder / "data", log_settings(Options(disk_reserve=0, mem_queue_size=mem_queue_size), None))
    store.recover()
    log = store.create_log("bench")
    assert isinstance(log, DiskLog)
    return store, log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recovery-gigabytes", type=float, default=0.0)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder, prefix="micro_log."))
    try:
        publishing(folder, 1, 200, 100_000)
        publishing(folder, 200, 200, 5_000)
        reading(folder, 1, 200, 100_000)
        reading(folder, 200, 200, 2_000)
        if arguments.recovery_gigabytes:
            shutil.rmtree(folder / "data", ignore_errors=True)
            (folder / "data").mkdir()
            recovery(folder / "data", arguments.recovery_gigabytes)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
