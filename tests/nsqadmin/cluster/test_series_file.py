"""Charts survive a restart, and a broken file does no harm."""

from __future__ import annotations

import logging
from array import array
from pathlib import Path

import msgpack
import pytest
import trio
import trio.testing

from nsqadmin.cluster import series_file
from nsqadmin.cluster.model import CLUSTER_SERIES, Span
from nsqadmin.cluster.series import SeriesStore, row_of


def filled() -> SeriesStore:
    store = SeriesStore(most_coarse=10)
    for number in range(100):
        store.put([(CLUSTER_SERIES, row_of(depth=number))], now=1_700_000_000.0 + 5 * number)
    return store


def test_what_was_kept_at_the_end_is_there_again(tmp_path: Path) -> None:
    path, before = str(tmp_path / "charts"), filled()

    async def stop_at_once() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(series_file.keep, path, {"charts": before})
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(stop_at_once)
    after = SeriesStore(most_coarse=10)
    series_file.load(path, charts=after)
    assert after.series(CLUSTER_SERIES, Span.HOURS) == before.series(CLUSTER_SERIES, Span.HOURS)
    assert [it.name for it in tmp_path.iterdir()] == ["charts"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x81\xa6format\x63"])
def test_a_file_that_is_none_is_said_to_be(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "charts"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        series_file.load(str(path), charts=SeriesStore(most_coarse=10))
    assert "cannot be read" in caplog.text


def test_the_first_time_there_is_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    series_file.load(str(tmp_path / "none"), charts=SeriesStore(most_coarse=10))
    assert not caplog.text


def test_a_file_of_the_release_before_has_charts_only(tmp_path: Path) -> None:
    ring = (360, 28_333_334, 28_333_335, array("f", [0.0] * 11 * 360))
    days = (1008, 2_833_333, 2_833_333, array("f", [0.0] * 11 * 1008))
    at = 28_333_335 % 360 * 11
    ring[3][at] = 7.0
    dumped = tuple((*it[:3], it[3].tobytes()) for it in (ring, days))
    path = tmp_path / "charts"
    path.write_bytes(msgpack.packb({"format": 1, "coarse": {CLUSTER_SERIES: dumped}}))
    store = SeriesStore(most_coarse=10)
    series_file.load(str(path), charts=store)
    series = store.series(CLUSTER_SERIES, Span.HOURS)
    assert series is not None
    assert series.values["depth"] == (0.0, 7.0)


class Broken:
    def dump(self) -> object:
        return []

    def load(self, dumped: object) -> None:
        raise ValueError("another format")


def test_a_part_that_cannot_be_read_does_not_cost_the_others_theirs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, before, after = str(tmp_path / "history"), filled(), SeriesStore(most_coarse=10)
    parts: dict[str, series_file.Part] = {"nodes": Broken(), "charts": before}
    trio.run(series_file.save, path, parts)
    with caplog.at_level(logging.WARNING):
        series_file.load(path, nodes=Broken(), charts=after)
    assert "nodes start empty" in caplog.text
    assert after.series(CLUSTER_SERIES, Span.HOURS) == before.series(CLUSTER_SERIES, Span.HOURS)
