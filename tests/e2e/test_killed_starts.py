"""A start of nsqd that is killed itself, after a kill, changes nothing for the next one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from tests.support import killed_starts
from tests.support.process import PYTHON, PYTHONPATH, Nsqd

AT: Final = "topic=t&channel=c"
PUBLISHED: Final = [b"%d" % number for number in range(30)]
LIMIT: Final = 120.0
HOUR: Final = 3_600_000  # in milliseconds


def kill_starts(data_path: Path) -> set[str]:
    """Kill one start at each moment, one after the other. Return the moments."""
    done = subprocess.run(
        [PYTHON, "-P", killed_starts.__file__, str(data_path)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {line.strip() for line in done.stdout.splitlines()}


def test_starts_that_are_killed_while_they_replay_the_journal_lose_and_double_nothing(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        for channel in ("c", "untouched"):
            nsqd.post(f"/sub?topic=t&channel={channel}")
        producer = nsqd.connect()
        for body in PUBLISHED:
            producer.publish("t", body)
        producer.defer("t", HOUR, b"later")
        taken = [json.loads(line) for line in nsqd.http("POST", f"/sub?{AT}&max=20").body.splitlines()]
        nsqd.post(f"/fin?{AT}", "\n".join(it["id"] for it in taken[:10]).encode())
        nsqd.kill()

        moments = kill_starts(tmp_path)
        assert {killed_starts.REPLAYING, "open /journal.000001", "os.rename /node.json.tmp"} <= moments

        nsqd.start()
        attempts = dict.fromkeys(PUBLISHED, 1)
        attempts |= {it["body"].encode(): 2 for it in taken}
        for it in taken[:10]:
            del attempts[it["body"].encode()]
        for channel, owed in (("c", attempts), ("untouched", dict.fromkeys(PUBLISHED, 1))):
            consumer = nsqd.connect()
            consumer.subscribe("t", channel, ready=100)
            came = [(it.body, it.attempts) for it in consumer.messages(len(owed))]
            assert sorted(came) == sorted(owed.items())
            held = nsqd.channel("t", channel)
            assert (held["depth"], held["in_flight_count"], held["deferred_count"]) == (0, len(owed), 1)
