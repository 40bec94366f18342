"""Short forms of `python -m tests.spark.kill9` and `python -m tests.spark.sink_kill9`."""

from __future__ import annotations

import faulthandler
import random
from pathlib import Path

import pyarrow as pa
import pytest

from nsqpipe.tables import Format
from tests.spark import kill9, sink_kill9
from tests.spark.kill9 import Seen
from tests.support.lengths import sized
from tests.support.pipe import IN_FOLDERS

# Delta's commits are ours, and its batches are planned again by the same source as those of Spark's Parquet.
FORMATS = sized(short=(Format.DELTA,), long=IN_FOLDERS)
RATE = 5_000  # messages a second


def bodies(*numbers: int) -> Seen:
    return Seen([pa.array([b"%d" % number for number in numbers])])


def test_the_counts_of_kills_tell_what_is_missing_and_what_is_there_twice() -> None:
    result = kill9.Result(seed=1, acknowledged=4, landed=bodies(0, 2, 2, 5))
    assert (result.missing, result.duplicates) == (2, 1)


@pytest.mark.parametrize(("found", "says"), [((0, 1, 1), "seen twice"), ((0,), "seen and gone")])
def test_a_read_between_kills_fails_on_what_is_there_twice_or_has_gone(found: tuple[int, ...], says: str) -> None:
    result = kill9.Result(seed=1)
    result.add_read(bodies(0, 1))
    with pytest.raises(AssertionError, match=says):
        result.add_read(bodies(*found))


@pytest.mark.own_jvm("it is killed by kill -9")
@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_is_missing_or_twice_when_spark_and_nsqd_are_killed(kind: Format, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # every wait in there has a limit of its own
    result = kill9.run(tmp_path, kind=kind, spark_kills=1, nsqd_kills=3, rate=RATE, seed=random.randrange(1 << 32))
    assert (result.missing, result.duplicates, result.spark_kills, result.nsqd_kills) == (0, 0, 1, 3), str(result)
    assert result.acknowledged > 10_000


@pytest.mark.own_jvm("it is killed by kill -9")
@pytest.mark.slow
def test_nothing_is_missing_or_twice_in_a_topic_that_a_killed_spark_has_filled(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()
    result = sink_kill9.run(tmp_path, exactly_once=True, kills=1, rate=RATE, seed=random.randrange(1 << 32))
    assert (result.missing, result.duplicates) == (0, 0), str(result)
    assert result.acknowledged > 10_000
