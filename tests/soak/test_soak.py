"""A short soak. The long one: `python -m tests.soak --hours 1`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import trio

from tests.soak.operations import Rhythm
from tests.soak.soak import Plan, run
from tests.support.lengths import sized
from tests.support.process import ROOT, needs_module

pytestmark = pytest.mark.slow

needs_module("jinja2")  # nsqadmin

QUICK = Rhythm(passing=2, ephemeral=4, empty=2, pause=2, paused=3, history=2, replay=3, death=4, look=2, kill=3)
LIMIT = 160  # beyond the 130 s that it waits for the last message at most


def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    seconds = sized(short=5, long=14)
    operations = {"kill", "replay", "read_history", "pause", "empty", "pass_by", "look"}
    # A busy machine may need longer for them.
    least = {"published": 35 * seconds + 1, **dict.fromkeys(operations, 1)}
    plan = Plan(seconds=seconds, rate=150, seed=5, longest_delay=2, rhythm=QUICK, least=least)
    status = trio.run(run, plan, tmp_path, said.append)
    assert status == 0, "\n".join(said)
    done = dict(re.findall(r"([a-z_]+) ([\d,]+)", said[-2]))
    assert int(done["published"].replace(",", "")) > 35 * plan.seconds
    assert operations <= done.keys(), said[-2]
    # Missing are `ephemeral` and `death`, which a short soak may leave out, and the length of a pause.
    assert len(fields(Rhythm)) == len(operations) + 3


def test_a_signal_ends_it_with_a_verdict_and_no_process_left(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak", "--hours=1", "--rate=50", f"--folder={tmp_path}"]
    soak = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert soak.stdout is not None
        assert soak.stdout.readline().startswith("seed ")
        assert soak.stdout.readline() == "ready\n"
        soak.send_signal(signal.SIGTERM)
        said, _ = soak.communicate(timeout=LIMIT)
    finally:
        soak.kill()
    assert soak.returncode == 0, said
    assert said.endswith("good\n")
    assert not [it for it in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(it)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has just ended
        return b""
