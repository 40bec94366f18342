"""pynsq (tornado), unmodified: publishes what stdin tells it, consumes, and reports on stdout. See test_clients.py."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import nsq
from tornado.ioloop import IOLoop

plan = json.load(sys.stdin)
address = f"{plan['host']}:{plan['port']}"
topic = plan["topic"]
arrived: list[tuple[str, int, float]] = []
left = {*plan["expected"]}
began = time.monotonic()


def handle(message: Any) -> bool:
    body = message.body.decode()
    message.enable_async()
    arrived.append((body, message.attempts, time.monotonic() - began))
    if body.startswith("requeue") and message.attempts == 1:
        message.requeue(time_ms=100, backoff=False)
    elif body.startswith("fails"):
        message.requeue(time_ms=0, backoff=False)
        if message.attempts == plan["most_attempts"]:
            is_done_with(body)
    elif body.startswith("touch"):
        IOLoop.current().call_later(plan["touch_after"], message.touch)
        IOLoop.current().call_later(plan["finish_after"], finish, message)
    else:
        finish(message)
    return True


def finish(message: Any) -> None:
    message.finish()
    is_done_with(message.body.decode())


def is_done_with(body: str) -> None:
    left.discard(body)
    if not left:
        IOLoop.current().call_later(0.1, IOLoop.current().stop)  # until the last answer is sent


def check(connection: Any, answer: Any) -> None:
    if answer != b"OK":
        raise RuntimeError(answer)


def publish() -> None:
    if not writer.conns:
        IOLoop.current().call_later(0.02, publish)
        return
    for body in plan["pub"]:
        writer.pub(topic, body.encode(), callback=check)
    for bodies in plan["mpub"]:
        writer.mpub(topic, [body.encode() for body in bodies], callback=check)
    for body in plan["dpub"]:
        writer.dpub(topic, plan["delay_ms"], body.encode(), callback=check)


how: dict[str, Any] = {"auth_secret": plan.get("secret"), **dict.fromkeys(plan.get("compression", ()), True)}
if "authority" in plan:
    how |= {"tls_v1": True, "tls_options": {"ca_certs": plan["authority"]}}
reader = nsq.Reader(
    topic=topic,
    channel="channel",
    nsqd_tcp_addresses=[address],
    message_handler=handle,
    max_in_flight=200,
    user_agent="peer",
    **how,
)
writer = nsq.Writer([address], **how)
IOLoop.current().add_callback(publish)
IOLoop.current().start()
json.dump(arrived, sys.stdout)
