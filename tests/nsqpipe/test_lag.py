"""`nsqpipe lag` and `nsqpipe offsets` on an nsqd: what they print, and their exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.pipe import nsqpipe
from tests.support.process import Nsqd
from tests.support.spark import address, lane_of, numbered, publish


@pytest.fixture
def orders(nsqd: Nsqd) -> Nsqd:
    publish(nsqd, "orders", numbered(120))
    return nsqd


def test_lag_above_the_bound_is_an_exit_status(orders: Nsqd, tmp_path: Path) -> None:
    lane = lane_of(orders, "orders")
    made = nsqpipe("offsets", "set", "--checkpoint", tmp_path / "new", "--lane", f"{lane}=20")
    assert made.exit_code == 0, made.output
    shown = nsqpipe("offsets", "show", "--checkpoint", tmp_path / "new", "--json")
    assert json.loads(shown.stdout) == {"batch": 0, "sources": [{"lanes": {lane: 20}}]}
    lag = ("lag", "--nsqd", address(orders), "--topic=orders", "--checkpoint", tmp_path / "new")
    assert nsqpipe(*lag, "--at-most=100").exit_code == 0
    above = nsqpipe(*lag, "--at-most=99")
    assert above.exit_code == 3
    assert "100 behind, 0 lost" in above.stdout
    assert nsqpipe("offsets", "set", "--checkpoint", tmp_path / "new", "--lane", f"{lane}=20").exit_code == 1
