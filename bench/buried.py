"""A million buried messages: how long until nsqd is ready again, with how much memory, how long a list, and who waits?

Each is buried by a command of its own. Consumers may give each message a reason of its own: `--reasons`.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.deferred import Waiting
from bench.memory import resident
from bench.report import Benchmark, Row, at_most
from bench.work import Failed, Work, say
from nsqcommon.wire import commands, extensions

SIZE: Final = 200
TOPIC: Final = "bench_buried"
CHANNEL: Final = "ch"
WINDOW: Final = 2500
LISTS: Final = 20
REASONS: Final = 20
_AT: Final = f"topic={TOPIC}&channel={CHANNEL}"
_ID: Final = slice(18, 34)  # of a message's frame: behind size, type, timestamp and attempts
_MESSAGE: Final = b"\0\0\0\2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=1_000_000, help="buried messages (default: %(default)s)")
    parser.add_argument("--reasons", type=int, default=REASONS, help="different ones (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="starts of each kind (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    count = settings.messages
    rows: list[Row] = []
    ready: dict[str, list[float]] = {"clean stop": [], "kill -9": []}
    used: list[float] = []
    with work.new_folder("buried") as folder:
        with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
            broker.make_channel(TOPIC, CHANNEL)
            work.load("pub", broker.tcp_port, TOPIC, 2, 200, SIZE, 300, f"count={count}", at_most=300)
            began = time.monotonic()
            with Waiting(broker) as waiting:
                bury(broker, TOPIC, CHANNEL, count, settings.reasons)
            _check(broker, count)
            rows.append(Row("buried, one by one", "msg/s", (count / (time.monotonic() - began),)))
            rows.append(Row("longest wait for /ping while they are buried", "s", (waiting.longest,)))
            say(f"buried in {time.monotonic() - began:.0f} s, longest wait for /ping {waiting.longest:.3f} s")
            rows += resident(broker, f"{count:,} buried messages", limit=400)
            rows += _lists(broker, count)
            stop_cleanly(process)
        for how in ("clean stop", "kill -9") * settings.runs:
            with running_nsqd(folder, settings.build, settings.flag) as (broker, process):
                ready[how].append(broker.ready_after)
                used.append(broker.processor_seconds())
                _check(broker, count)
                say(f"after {how:>10}: {broker.ready_after:6.2f} s")
                last = resident(broker, f"{count:,} buried messages, after a start", limit=400)
                if how == "clean stop":
                    process.kill()
                    process.wait()
                else:
                    stop_cleanly(process)
        rows += last
        with running_nsqd(folder, settings.build, settings.flag) as (broker, _):
            began = time.monotonic()
            with Waiting(broker) as waiting:
                broker.post(f"/channel/kick?{_AT}", b"")
                while _is_kicking(broker):
                    time.sleep(0.05)
            rows.append(Row("all of them kicked", "s", (time.monotonic() - began,)))
            rows.append(Row("longest wait for /ping meanwhile", "s", (waiting.longest,)))
    rows.append(Row("processor time until ready", "s", tuple(used), at_most(5)))
    rows += [Row(f"ready after {how}", "s", tuple(seconds), at_most(5)) for how, seconds in ready.items()]
    return rows


def bury(broker: Broker, topic: str, channel: str, count: int, reasons: int = REASONS) -> None:
    """Bury this many messages of a channel, each by a command of its own."""
    with socket.create_connection(("127.0.0.1", broker.tcp_port)) as client:
        asked = {"feature_negotiation": True, "extensions": ["bury"], "heartbeat_interval": 60_000}
        client.sendall(b"  V2" + commands.identify(json.dumps(asked).encode()))
        client.sendall(commands.sub(topic, channel) + commands.rdy(WINDOW))
        data, buried = bytearray(), 0
        while buried < count:
            more = client.recv(1 << 18)
            if not more:
                raise Failed(f"nsqd has closed the connection after {buried} messages")
            data += more
            answers: list[bytes] = []
            place = 0
            while len(data) - place >= 4:
                end = place + 4 + int.from_bytes(data[place : place + 4], "big")
                if end > len(data):
                    break
                if data[place + 4 : place + 8] == _MESSAGE:
                    frame = bytes(data[place : place + 34])
                    answers.append(extensions.bury(frame[_ID], f"reason {buried % reasons}"))
                    buried += 1
                place = end
            del data[:place]
            client.sendall(b"".join(answers))
        while broker.channel(topic, channel)["in_flight_count"]:
            time.sleep(0.05)


def _lists(broker: Broker, count: int) -> list[Row]:
    """Return how long lists of 100 take, over HTTP: with and without bodies."""
    rows = []
    for name, bodies in (("without bodies", "false"), ("with bodies", "true")):
        seconds = []
        for place in range(LISTS):
            began = time.monotonic()
            path = f"/channel/buried?{_AT}&limit=100&after={count * place // LISTS}&bodies={bodies}"
            listed = broker.get(path).count(b"\n")
            seconds.append(1000 * (time.monotonic() - began))
            if listed != 100:
                raise Failed(f"{listed} messages were listed, not 100")
        demand = at_most(50) if bodies == "false" else None
        rows.append(Row(f"a list of 100, {name}", "ms", tuple(seconds), demand))
    return rows


def _check(broker: Broker, count: int) -> None:
    buried = broker.channel(TOPIC, CHANNEL)["buried_count"]
    if buried != count:
        raise Failed(f"{buried} messages are buried, {count} is right")


def _is_kicking(broker: Broker) -> bool:
    jobs = json.loads(broker.get(f"/channel/jobs?{_AT}"))["jobs"]
    return any(job["ended_at"] is None for job in jobs)


BENCHMARK: Final = Benchmark(
    "buried", "A million buried messages: start, memory, lists, and who waits?", add_arguments, run, at_most=15
)
