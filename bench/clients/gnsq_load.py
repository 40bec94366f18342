"""gnsq, on gevent."""

from __future__ import annotations

from gevent import monkey  # type: ignore[import-untyped]  # has no stubs

monkey.patch_all()

from typing import Any  # noqa: E402  # gevent wants to be first

import gevent  # noqa: E402
import gnsq  # noqa: E402

from bench.clients import AT_ONCE, BODY, CHANNEL, IN_FLIGHT, LIMIT, MAX_IN_FLIGHT, Meter, Task, task  # noqa: E402


def publish(what: Task, meter: Meter) -> None:
    producer = gnsq.Producer(what.address)
    producer.start()
    meter.start()
    bodies = [BODY] * AT_ONCE

    def publish_one() -> None:
        while not meter.count():
            producer.publish(what.topic, BODY)

    def publish_many() -> None:
        while not meter.is_over:
            producer.multipublish(what.topic, bodies)
            meter.messages += AT_ONCE

    work = publish_many if what.mode == "mpub" else publish_one
    gevent.joinall([gevent.spawn(work) for _ in range(IN_FLIGHT[what.mode])], raise_error=True)
    meter.report()


def consume(what: Task, meter: Meter) -> None:
    done = gevent.event.Event()
    consumer = gnsq.Consumer(what.topic, CHANNEL, what.address, max_in_flight=MAX_IN_FLIGHT)

    def handle(consumer: Any, message: Any) -> None:  # it finishes the message when this returns
        if meter.count() and not done.is_set():
            meter.report()
            done.set()

    consumer.on_message.connect(handle)
    consumer.start(block=False)
    done.wait(what.seconds + LIMIT)


if __name__ == "__main__":
    what = task()
    (consume if what.mode == "sub" else publish)(what, Meter(what.seconds))
