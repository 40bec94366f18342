"""A process that puts many Celery jobs with an ETA into a broker: `python -m bench.jobs.fill COUNT SECONDS`.

Celery itself publishes the first one, due in so many seconds. The others are the bytes that it sent, with another id and
delivery tag each, as a thousand a second would take a quarter of an hour: pipelined to Redis, 64 at a time to nsqd.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import urlsplit

from bench.jobs import celery_app
from bench.jobs.fill_copies import copies_of, id_of
from nsqclient import aio
from nsqclient.blocking import BlockingProducer

QUEUE: Final = "celery"
_TOGETHER: Final = 1000  # in a pipeline of Redis
_IN_FLIGHT: Final = 64


def main(count: int, seconds: float) -> None:
    due = time.time() + seconds
    if celery_app.setup.broker == "nsq":
        asyncio.run(fill_nsqd(count, due))
    else:
        fill_redis(count, due)


def fill_redis(count: int, due: float) -> None:
    import redis

    celery_app.publish(0, due)
    client = redis.Redis.from_url(celery_app.setup.url)
    found = client.lindex(QUEUE, 0)
    assert isinstance(found, bytes)
    copy = copies_of(found)
    for first in range(1, count, _TOGETHER):
        pipe = client.pipeline(transaction=False)
        pipe.lpush(QUEUE, *map(copy, range(first, min(first + _TOGETHER, count))))
        pipe.execute()


async def fill_nsqd(count: int, due: float) -> None:
    sent: list[tuple[str, bytes, dict[str, Any]]] = []
    publish = BlockingProducer.publish

    def remember(self: BlockingProducer, topic: str, body: bytes, **more: Any) -> None:
        sent.append((topic, body, more))
        publish(self, topic, body, **more)

    with ExitStack() as stack:
        stack.enter_context(patch.object(BlockingProducer, "publish", remember))
        celery_app.publish(0, due)
    (topic, body, more) = sent[-1]
    copy, id = copies_of(body), more["headers"]["job-id"].decode()
    numbers = iter(range(1, count))

    async def publish_some() -> None:
        for number in numbers:
            headers = {**more["headers"], "job-id": id_of(number).encode()}
            key = more["key"].replace(id, id_of(number))
            await producer.publish(topic, copy(number), delay=due - time.time(), key=key, headers=headers)

    async with aio.open_producer([urlsplit(celery_app.setup.url).netloc]) as producer, asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(publish_some())


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
