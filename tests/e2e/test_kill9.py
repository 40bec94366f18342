"""Nothing that was promised is lost by kill -9. The long version: `python -m tests.e2e.kill9 --cycles 1000`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.kill9 import run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    "options",
    [(), ("max-bytes-per-file=65536", "mem-queue-size=10"), ("ack=synced",)],
    ids=["defaults", "small-files", "synced"],
)
def test_kill_9_breaks_no_promise(tmp_path: Path, options: tuple[str, ...]) -> None:
    ledger = run(tmp_path, cycles=17, seed=random.randrange(1 << 32), options=options)
    assert ledger.acknowledged > 1000


def test_the_ledger_notices_a_broker_that_promises_too_much(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="messages lost|is missing|came again|are \\d after"):
        run(tmp_path, cycles=10, seed=1, options=("ack=memory", "sync-timeout=1h", "sync-every=1000000"))
