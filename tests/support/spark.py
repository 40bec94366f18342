"""What tests of the Spark package share: filling topics, and the options that tell Spark where they are."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

from tests.support.process import Nsqd, eventually

KEPT: Final = "retention-bytes=10GB"
# Spark writes, compiles and loads classes for each query, which takes longer than the queries of tests have to run.
NO_CODEGEN: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
PATIENCE: Final = 250  # seconds; a busy machine needs many where a quiet one needs two, and pytest ends a run after 300
_pack: Final = Struct(">I").pack
_MOST: Final = 5000  # messages in one MPUB


def patiently(condition: Any) -> Any:
    """Wait like `eventually`, but with the patience that Spark needs."""
    return eventually(condition, timeout=PATIENCE)


def address(nsqd: Nsqd) -> str:
    return f"{nsqd.http_address[0]}:{nsqd.http_address[1]}"


def numbered(count: int, *, start: int = 0, size: int = 0) -> list[bytes]:
    """Return bodies that contain their number."""
    return [b"%d" % number + b" " * max(0, size - len(b"%d" % number)) for number in range(start, start + count)]


def publish(nsqd: Nsqd, topic: str, bodies: Iterable[bytes]) -> None:
    """Publish, and return when readers of history can see the messages."""
    todo = list(bodies)
    before = next_of(nsqd, topic)
    for at in range(0, len(todo), _MOST):
        part = todo[at : at + _MOST]
        packed = b"".join(_pack(len(body)) + body for body in part)
        nsqd.post(f"/mpub?topic={topic}&binary=true", _pack(len(part)) + packed)
    patiently(lambda: next_of(nsqd, topic) == before + len(todo))


def log_of(nsqd: Nsqd, topic: str) -> dict[str, object]:
    answer = nsqd.http("GET", f"/topic/log?topic={topic}")
    return dict(answer.json) if answer.status == 200 else {}


def next_of(nsqd: Nsqd, topic: str) -> int:
    return int(str(log_of(nsqd, topic).get("next", 0)))


def wait_until_synced(nsqd: Nsqd, topic: str) -> None:
    """Return when history has all that this nsqd has accepted since its start: a publish is there once it is synced."""
    (found,) = nsqd.http("GET", f"/stats?format=json&topic={topic}").json["topics"]
    patiently(lambda: next_of(nsqd, topic) >= found["message_count"])


def lane_of(nsqd: Nsqd, topic: str) -> str:
    found = log_of(nsqd, topic)
    return f"{found['node']}/{topic}/{found['log']}"


def drain(nsqd: Nsqd, topic: str, how: str = "stay=1h") -> None:
    """Drain an nsqd that stays, and return when its log is closed: a second after it has told its nsqlookupds."""
    nsqd.post(f"/drain?{how}")
    patiently(lambda: log_of(nsqd, topic).get("closed"))


def flip_a_byte_of(nsqd: Nsqd, body: bytes) -> None:
    (segment,) = (path for path in nsqd.data_path.rglob("*.log") if body in path.read_bytes())
    data = bytearray(segment.read_bytes())
    at = data.index(body)
    data[at] ^= 1
    segment.write_bytes(data)
