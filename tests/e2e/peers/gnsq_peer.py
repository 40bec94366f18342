"""gnsq (gevent), unmodified: publishes what stdin tells it, consumes, and reports on stdout. See test_clients.py."""

from __future__ import annotations

from gevent import monkey  # type: ignore[import-untyped]  # has no stubs

monkey.patch_all()

import json  # noqa: E402  # gevent wants to be first
import sys  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import gnsq  # noqa: E402

plan = json.load(sys.stdin)
address = f"{plan['host']}:{plan['port']}"
topic = plan["topic"]
arrived: list[tuple[str, int, float]] = []
left = {*plan["expected"]}
done = gevent.event.Event()
began = time.monotonic()

how: dict[str, Any] = {
    "auth_secret": plan.get("secret", "").encode(),
    **dict.fromkeys(plan.get("compression", ()), True),
}
if "authority" in plan:
    how |= {"tls_v1": True, "tls_options": {"ca_certs": plan["authority"]}}
# gnsq's Producer mistakes the answers to upgrades and to AUTH for answers to a publish, and fails. The parts that it
# is made of do not.
is_special = len(how) > 1 or how["auth_secret"]
producer = gnsq.Producer(address) if not is_special else gnsq.NsqdTCPClient(plan["host"], plan["port"], **how)
consumer = gnsq.Consumer(topic, "channel", address, max_in_flight=200, **how)


def handle(consumer: Any, message: Any) -> None:
    body = message.body.decode()
    arrived.append((body, message.attempts, time.monotonic() - began))
    message.enable_async()
    if body.startswith("requeue") and message.attempts == 1:
        message.requeue(100, backoff=False)
    elif body.startswith("fails"):
        message.requeue(0, backoff=False)
        if message.attempts == plan["most_attempts"]:
            is_done_with(body)
    elif body.startswith("touch"):
        gevent.spawn_later(plan["touch_after"], message.touch)
        gevent.spawn_later(plan["finish_after"], finish, message)
    else:
        finish(message)


def finish(message: Any) -> None:
    message.finish()
    is_done_with(message.body.decode())


def is_done_with(body: str) -> None:
    left.discard(body)
    if not left:
        done.set()


def answered() -> None:
    if is_special:
        producer.check_ok()


consumer.on_message.connect(handle)
if is_special:
    producer.connect()
    producer.identify()
else:
    producer.start()
consumer.start(block=False)
for body in plan["pub"]:
    producer.publish(topic, body.encode())
    answered()
for bodies in plan["mpub"]:
    producer.multipublish(topic, [body.encode() for body in bodies])
    answered()
for body in plan["dpub"]:
    producer.publish(topic, body.encode(), defer=plan["delay_ms"])
    answered()
done.wait(plan["limit"])
gevent.sleep(0.1)  # until the last answer is sent
consumer.close()
producer.close_stream() if is_special else producer.close()
json.dump(arrived, sys.stdout)
