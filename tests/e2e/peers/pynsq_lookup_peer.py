"""pynsq (tornado), unmodified: consumes from every nsqd that nsqlookupd names, to the end. See test_cluster.py."""

from __future__ import annotations

import json
import sys
from typing import Any

import nsq
from tornado.ioloop import IOLoop

plan = json.load(sys.stdin)
arrived: list[str] = []
left = {*plan["expected"]}


def handle(message: Any) -> bool:
    body = message.body.decode()
    arrived.append(body)
    left.discard(body)
    if not left:
        IOLoop.current().call_later(0.1, IOLoop.current().stop)  # until the last FIN is sent
    return True


nsq.Reader(
    topic=plan["topic"],
    channel="channel",
    lookupd_http_addresses=plan["lookupds"],
    lookupd_poll_interval=1,
    message_handler=handle,
    max_in_flight=20,
)
IOLoop.current().start()
json.dump(arrived, sys.stdout)
