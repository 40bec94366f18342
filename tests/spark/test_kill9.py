"""Short forms of `python -m tests.spark.kill9` and `python -m tests.spark.sink_kill9`."""

from __future__ import annotations

import faulthandler
import random
from pathlib import Path

import pytest

from nsqpipe.tables import Format
from tests.spark import kill9, sink_kill9
from tests.support.pipe import IN_FOLDERS


@pytest.mark.own_jvm("it is killed by kill -9")
@pytest.mark.slow
@pytest.mark.parametrize("kind", IN_FOLDERS)
def test_nothing_is_missing_or_twice_when_spark_and_nsqd_are_killed(kind: Format, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # every wait in there has a limit of its own
    result = kill9.run(tmp_path, kind=kind, spark_kills=1, nsqd_kills=3, rate=5_000, seed=random.randrange(1 << 32))
    assert (result.missing, result.duplicates, result.spark_kills, result.nsqd_kills) == (0, 0, 1, 3), str(result)
    assert result.acknowledged > 10_000


@pytest.mark.own_jvm("it is killed by kill -9")
@pytest.mark.slow
def test_nothing_is_missing_or_twice_in_a_topic_that_a_killed_spark_has_filled(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()
    result = sink_kill9.run(tmp_path, exactly_once=True, kills=1, rate=5_000, seed=random.randrange(1 << 32))
    assert (result.missing, result.duplicates) == (0, 0), str(result)
    assert result.acknowledged > 10_000
