"""The brokers under job queues, each a process of ours on free ports that can be killed and started again.

Each is as durable as its documentation recommends for jobs that must not be lost:

    nsqd       its defaults: a publish is answered when it has been written (--ack written)
    Redis      appendonly yes, appendfsync everysec (https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/)
    RabbitMQ   durable queues, persistent messages and publisher confirms; these are the library's part

A kill -9 leaves the page cache alone, so all three keep what they have written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench import servers
from bench.servers import START_LIMIT, Server
from bench.work import HOST, Failed

_HOUR: Final = 3600.0
_PYTHON: Final = (sys.executable,)


class Nsqd(servers.Nsqd):
    def __init__(self, folder: Path, *, speed: float = 1.0, python: Sequence[str] = _PYTHON) -> None:
        # An hour, as the default is: longer delays pass through a worker, so the run has some of these.
        super().__init__(folder, python, (f"--max-req-timeout={_HOUR / speed:.3f}s",))

    @property
    def url(self) -> str:
        return f"nsq://{HOST}:{self.port}"

    def left(self) -> int:
        found = json.loads(self._get("/stats?format=json&include_clients=false"))["topics"]
        topics = [it for it in found if not it["topic_name"].endswith("#ephemeral")]  # Celery's events to monitors
        channels = [channel for topic in topics for channel in topic["channels"]]
        counts = ("depth", "in_flight_count", "deferred_count")
        return sum(int(it[count]) for it in channels for count in counts) + sum(int(it["depth"]) for it in topics)


class Redis(servers.Redis):
    def __init__(self, folder: Path, *, speed: float = 1.0, python: Sequence[str] = _PYTHON) -> None:
        super().__init__(folder, "--appendonly", "yes", "--appendfsync", "everysec", "--save", "")

    @classmethod
    def lacks(cls) -> str:
        return super().lacks() or ("" if find_spec("redis") else "redis for Python: scripts/setup dev,bench-jobs")

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def left(self) -> int:
        import redis  # of the extra `bench-jobs`

        client = redis.Redis(HOST, self.port, decode_responses=True)
        keys: Iterable[Any] = client.scan_iter(count=1000)
        return sum(_jobs_of(client, key) for key in keys)


def _jobs_of(client: Any, key: str) -> int:
    """Return how many jobs a key holds that are not in another key as well."""
    kind = client.type(key)
    if key.startswith("schedule:"):  # taskiq's: ids by minute, and the schedules themselves
        return int(key.startswith("schedule:data:"))
    if key.startswith("dramatiq:"):  # ids, and the messages themselves
        return int(client.hlen(key)) if kind == "hash" else 0
    if kind == "stream":  # taskiq's
        return sum(int(group["pending"]) + int(group["lag"] or 0) for group in client.xinfo_groups(key))
    if kind == "list":  # Celery's queues
        return int(client.llen(key))
    return int(client.hlen(key)) if key == "unacked" else 0


class RabbitMq(servers.RabbitMq):
    def __init__(self, folder: Path, *, speed: float = 1.0, python: Sequence[str] = _PYTHON) -> None:
        super().__init__(folder, speed=speed)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/%2F"

    def left(self) -> int:
        asked = subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", "--quiet", "--no-table-headers", "list_queues", "messages"],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=START_LIMIT,
        )
        if asked.returncode:
            raise Failed(f"rabbitmqctl: {asked.stderr or asked.stdout}")
        return sum(int(line) for line in asked.stdout.split() if line.isdigit())


# How a broker is used is the app's part: celery_app.py and its like tell the last two of each kind apart.
SERVERS: Final[Mapping[str, type[Server]]] = {
    "nsq": Nsqd,
    "redis": Redis,
    "redis-long": Redis,  # a visibility timeout as long as the longest ETA
    "rabbitmq": RabbitMq,  # quorum queues
    "rabbitmq-classic": RabbitMq,
}
