"""A data path on a volume that two machines can reach. The other machine is played by a file with its name."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from nsqd.log.data_path import FORMAT, as_json
from nsqd.log.files import Files
from nsqd.log.owner import OWNER_JSON, read_owner
from tests.support.process import PYTHON, START_TIMEOUT, Nsqd, eventually, launch, run_to_end

THERE = {"host": "machine-b", "boot": "another boot", "pid": 4711, "started": "2026-01-02T03:04:05.000+00:00"}
NAME = "process 4711 on machine-b, started 2026-01-02T03:04:05.000+00:00"


def name_the_other(folder: Path) -> None:
    Files().replace(folder / OWNER_JSON, as_json({"format": FORMAT, **THERE}))


@contextmanager
def at_work_elsewhere(folder: Path) -> Iterator[None]:
    """Keep another machine's process at work in the folder."""
    name_the_other(folder)
    stopping = threading.Event()

    def beat() -> None:
        while not stopping.wait(0.2):
            (folder / OWNER_JSON).touch()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def refused(*command: str) -> str:
    ended = run_to_end(*command)
    assert ended.returncode != 0
    return ended.stderr


def test_a_data_path_in_use_on_another_machine_is_refused_unless_taken_over(tmp_path: Path) -> None:
    data_path = tmp_path / "data"
    with Nsqd(data_path) as nsqd:
        nsqd.connect().publish("t", b"kept")
        nsqd.stop()
        with at_work_elsewhere(data_path):
            start = refused(f"--data-path={data_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
            assert f"{data_path} is in use by {NAME}; stop that process first, or use --take-over" in start
            assert f"is in use by {NAME}" in refused("fsck", str(data_path))
    with Nsqd(data_path, "take-over") as nsqd:
        assert f"data path taken over from {NAME}" in nsqd.log
        owner = read_owner(Files(), data_path / OWNER_JSON)
        assert owner is not None
        assert owner.pid == nsqd.pid
        assert nsqd.topic("t")["depth"] == 1
        nsqd.stop()
    assert not (data_path / OWNER_JSON).exists()


def test_an_nsqd_whose_data_path_was_taken_over_ends_at_once_and_writes_nothing_more(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.connect().publish("t", b"kept")
        name_the_other(nsqd.data_path)
        assert nsqd.wait() == 1
        assert f"was taken over by {NAME}, exiting" in nsqd.log
        assert json.loads((nsqd.data_path / OWNER_JSON).read_bytes())["host"] == "machine-b"
        nsqd.start()  # the other one is silent by now
        eventually(lambda: nsqd.topic("t")["depth"] == 1)


# An nsqd as on a machine of its own: with another boot, and without the locks of this machine.
ELSEWHERE = """
import os, sys
from nsqd.log import owner
from nsqd.log.files import Files
boot = sys.argv.pop(1)
owner.boot_id = lambda: boot
Files.lock_folder = lambda self, path: os.open(path, os.O_RDONLY | os.O_CLOEXEC)
from nsqd.cli import main
main()
"""


def test_of_two_that_start_at_the_same_moment_after_an_orderly_stop_one_serves(tmp_path: Path) -> None:
    data_path = tmp_path / "data"
    with Nsqd(data_path) as nsqd:
        nsqd.connect().publish("t", b"kept")
        nsqd.stop()
    ports = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    with ExitStack() as stack:
        starts = [
            stack.enter_context(
                launch(boot, f"--data-path={data_path}", *ports, command=(PYTHON, "-P", "-c", ELSEWHERE))
            )
            for boot in ("boot-1", "boot-2")
        ]
        for each in starts:
            stack.callback(each.kill)
        lines: queue.Queue[tuple[int, str]] = queue.Queue()
        for at, each in enumerate(starts):
            assert each.stderr is not None
            threading.Thread(target=read_into, args=(lines, at, each.stderr), daemon=True).start()
        serves, refused = None, None
        while serves is None or refused is None:
            at, line = lines.get(timeout=START_TIMEOUT)
            if "HTTP: listening on" in line:
                assert serves is None, "both serve"
                serves = at
            if " is in use by process " in line:
                refused = at
        assert serves != refused
        assert starts[refused].wait(START_TIMEOUT) == 1
        owner = read_owner(Files(), data_path / OWNER_JSON)
        assert owner is not None
        assert owner.pid == starts[serves].pid


def read_into(lines: queue.Queue[tuple[int, str]], at: int, file: IO[str]) -> None:
    for line in file:
        lines.put((at, line))
