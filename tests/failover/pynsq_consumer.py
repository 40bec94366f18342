"""pynsq (tornado), unmodified: consumes from every nsqd that nsqlookupd names, and writes when each message came.

Run it with the topic and the HTTP address of an nsqlookupd, and kill it when you have seen enough.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import nsq
from tornado.ioloop import IOLoop

topic, lookupd = sys.argv[1:]


def handle(message: Any) -> bool:
    sys.stdout.write(f"{time.monotonic()} {message.body.decode()}\n")
    sys.stdout.flush()
    return True


nsq.Reader(
    topic=topic,
    channel="pynsq",
    lookupd_http_addresses=[lookupd],
    lookupd_poll_interval=1,
    message_handler=handle,
    max_in_flight=20,
)
IOLoop.current().start()
