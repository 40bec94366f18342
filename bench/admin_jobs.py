"""Workers that report jobs to an nsqd: `python -m bench.admin_jobs PORT JOBS_A_SECOND` runs until it is killed.

Four reporters, as in four processes, so that nsqadmin gets reports of a real size. A tenth of the jobs fail, with a
traceback of a kilobyte, and one in a hundred runs for ten seconds. It fills the queue `jobs-1` with jobs that wait and
jobs that have failed, and prints its own share of a core every five seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Final

from nsqclient.blocking import BlockingProducer
from nsqjobs.addresses import parse_url
from nsqjobs.headers import Job
from nsqjobs.reporting import Reporter, Run

_WORKERS: Final = 4
_TASKS: Final = 50
_WAITING: Final = 5_000
_TURN: Final = 0.02  # seconds
_LONG: Final = 10.0
TRACEBACK: Final = 'Traceback (most recent call last):\n  File "shop.py", line 7, in charge\n' * 12 + "ValueError: no\n"


def main(port: int, rate: int) -> None:
    url = f"nsq://127.0.0.1:{port}"
    _fill(url)
    reporters = [Reporter(parse_url(url)) for _ in range(_WORKERS)]
    running: deque[tuple[float, Reporter, Run]] = deque()
    number, began, said_at = 0, time.monotonic(), time.monotonic() + 5
    while True:
        now = time.monotonic()
        while number < (now - began) * rate:
            number += 1
            reporter = reporters[number % _WORKERS]
            run = Run(
                library="celery",
                name=f"shop.task_{number % _TASKS}",
                id=f"{number:032x}",
                topic="jobs-1",
                started_at=time.time(),
            )
            reporter.start(run)
            if number % 100 == 0:
                running.append((now + _LONG, reporter, run))
            elif number % 10 == 0:
                reporter.failed(run, "ValueError: no such order", outcome="buried", traceback=TRACEBACK)
            else:
                reporter.succeeded(run)
        while running and running[0][0] <= now:
            _, reporter, run = running.popleft()
            reporter.succeeded(run)
        if now >= said_at:
            said_at += 5
            print(f"{time.process_time() / (now - began):.3f}", flush=True)
        time.sleep(_TURN)


def _fill(url: str) -> None:
    endpoint = parse_url(url)
    producer = BlockingProducer(endpoint.nodes(), config=endpoint.config)
    for number in range(_WAITING):
        job = Job(library="taskiq", name=f"shop.task_{number % _TASKS}", id=f"waits-{number}")
        body = json.dumps({"args": [number], "kwargs": {"note": "x" * 200}}).encode()
        producer.publish("jobs-1", body, headers=job.headers())
    producer.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
