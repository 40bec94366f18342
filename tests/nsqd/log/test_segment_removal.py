"""Which segments may be removed: by retention, by keys, and when everything is finished."""

from __future__ import annotations

from pathlib import Path

from nsqd.log.log_state import LogState
from nsqd.log.retention import Retention
from nsqd.log.segment import Segment
from nsqd.log.segment_list import SegmentList
from nsqd.log.segment_removal import Expiry
from nsqd.log.store import DiskStore
from nsqd.log.writing.unsynced import Unsynced
from tests.support.log_settings import log_settings


class Log:
    """Segments of ten messages and a thousand bytes each, in a store without other logs."""

    def __init__(self, folder: Path, bases: list[int], **settings: object) -> None:
        self.now = 1_000
        self.store = DiskStore.open(folder, log_settings(max_bytes_per_file=2000, **settings))  # type: ignore[arg-type]
        self.store.age_clock = lambda: self.now
        found = [Segment(folder / f"{base:020}.log", base, 1000) for base in bases]
        self.segments = SegmentList(found, bases[-1] + 10)
        self.removed: list[str] = []
        reader = self.store.create_log("other").reader  # type: ignore[union-attr]
        self.expiry = Expiry("t", self.store, self.segments, reader, Unsynced(folder, LogState("id")))

    def close(self) -> None:
        self.store.abandon()


def test_without_retention_a_large_active_segment_goes_when_all_is_finished(tmp_path: Path) -> None:
    log = Log(tmp_path, [0, 10])
    assert log.expiry.unwanted_before(0) == 10
    assert log.expiry.is_active_unwanted(0)
    log.close()


def test_a_topics_own_retention_lets_go_of_what_is_too_old(tmp_path: Path) -> None:
    log = Log(tmp_path, [0, 10], topic_retention={"t": Retention(time=100)})
    active = log.segments.active
    assert active is not None
    active.newest = 950
    assert log.expiry.outdated_before(is_all_written=True) == 10
    log.now = 1_050
    assert log.expiry.outdated_before(is_all_written=False) == 10
    assert log.expiry.outdated_before(is_all_written=True) == 20
    log.close()


def test_retention_of_all_topics_does_not_let_go_of_what_no_channel_got(tmp_path: Path) -> None:
    log = Log(tmp_path, [0, 10], retention=Retention(time=100))
    assert log.expiry.outdated_before(is_all_written=True) == 0
    log.close()


def test_segments_with_young_keys_stay(tmp_path: Path) -> None:
    log = Log(tmp_path, [0, 10, 20], idempotence_window=100)
    log.segments.holding(10).keyed = 980
    assert log.expiry.unwanted_before(log.expiry.age_now()) == 10
    assert log.expiry.unwanted_before(1_080) == 20
    log.close()
