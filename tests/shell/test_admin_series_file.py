"""Charts survive a restart, and a broken file does no harm."""

from __future__ import annotations

import logging
from pathlib import Path

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
            nursery.start_soon(series_file.keep, path, before)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(stop_at_once)
    after = SeriesStore(most_coarse=10)
    series_file.load(path, after)
    assert after.series(CLUSTER_SERIES, Span.HOURS) == before.series(CLUSTER_SERIES, Span.HOURS)
    assert [it.name for it in tmp_path.iterdir()] == ["charts"]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x81\xa6format\x63"])
def test_a_file_that_is_none_is_said_to_be(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "charts"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        series_file.load(str(path), SeriesStore(most_coarse=10))
    assert "cannot be read" in caplog.text


def test_the_first_time_there_is_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    series_file.load(str(tmp_path / "none"), SeriesStore(most_coarse=10))
    assert not caplog.text
