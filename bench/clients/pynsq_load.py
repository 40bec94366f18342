"""pynsq, on tornado."""

from __future__ import annotations

from typing import Any

import nsq
from tornado.ioloop import IOLoop

from bench.clients import AT_ONCE, BODY, CHANNEL, IN_FLIGHT, MAX_IN_FLIGHT, Meter, Task, task


def publish(what: Task, meter: Meter) -> None:
    loop = IOLoop.current()
    writer = nsq.Writer([what.address])
    bodies = [BODY] * AT_ONCE

    def next_one(connection: Any = None, answer: Any = b"OK") -> None:
        assert answer == b"OK", answer
        if what.mode == "mpub":
            if meter.is_over:
                loop.stop()
            else:
                meter.messages += AT_ONCE
                writer.mpub(what.topic, bodies, callback=next_one)
        elif meter.count():
            loop.stop()
        else:
            writer.pub(what.topic, BODY, callback=next_one)

    def begin() -> None:
        if not writer.conns:
            loop.call_later(0.02, begin)
            return
        meter.start()
        for _ in range(IN_FLIGHT[what.mode]):
            next_one()

    loop.call_later(0.02, begin)
    loop.start()
    meter.report()


def consume(what: Task, meter: Meter) -> None:
    loop = IOLoop.current()

    def handle(message: Any) -> bool:
        if meter.count():
            loop.stop()
        return True  # which finishes it

    nsq.Reader(
        topic=what.topic,
        channel=CHANNEL,
        nsqd_tcp_addresses=[what.address],
        message_handler=handle,
        max_in_flight=MAX_IN_FLIGHT,
    )
    loop.start()
    meter.report()


if __name__ == "__main__":
    what = task()
    (consume if what.mode == "sub" else publish)(what, Meter(what.seconds))
