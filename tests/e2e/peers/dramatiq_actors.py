"""Actors for workers of their own: they note in a file what they do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dramatiq

from nsqjobs.dramatiq import NsqBroker

dramatiq.set_broker(NsqBroker(os.environ["NSQ_URL"]))
QUEUE = os.environ["NSQ_QUEUE"]


def note(line: str) -> None:
    with open(os.environ["NOTES"], "a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")


@dramatiq.actor(queue_name=QUEUE)
def linger(name: str, seconds: float) -> None:
    note(f"begin {name}")
    time.sleep(seconds)
    note(f"end {name}")


@dramatiq.actor(queue_name=QUEUE)
def wait_for_file(name: str, path: str) -> None:
    note(f"begin {name}")
    while not Path(path).exists():
        time.sleep(0.01)
    note(f"end {name}")
