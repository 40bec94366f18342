"""The journal at a start: what is handed to the broker, and damage, which is skipped, reported and kept aside."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from nsqd.log.journal import format as journal_format
from tests.nsqd.log.harness import numbers, opened


def test_checkpoints_are_not_handed_to_the_broker(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.checkpoint()
    assert b"checkpoint" in (tmp_path / "journal.000001").read_bytes()
    with opened(tmp_path) as store:
        assert list(store.recovered.changes) == []
        assert store.log().synced_tail == 1


def test_a_start_never_has_all_changes_unpacked(tmp_path: Path) -> None:
    count = 20_000
    with opened(tmp_path) as store:
        for sequence in range(count):
            store.store.record(("defer", "t", sequence, 1, 1_700_000_000_000 + sequence), urgent=False)
            if sequence % 100 == 99:
                store.store.flush()
    tracemalloc.start()
    try:
        with opened(tmp_path) as store:
            assert [change[2] for change in store.recovered.changes] == list(range(count))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150 * count  # unpacked each takes 300 bytes, packed 20; the numbers above take 80


def test_torn_tail_is_cut_at_every_byte_and_kept_aside(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.record(("n", 1))
        first = (tmp_path / "journal.000001").stat().st_size
        store.record(("n", 2))
    whole = (tmp_path / "journal.000001").read_bytes()
    for size in range(first + 1, len(whole)):
        (tmp_path / "journal.000001").write_bytes(whole[:size])
        with opened(tmp_path) as store:
            assert numbers(store.recovered.changes) == [1]
            assert len(store.recovered.damage) == 1
            aside = Path(store.recovered.damage[0].kept)
            assert aside.read_bytes() == whole[first:size]
            aside.unlink()
            store.record(("n", 3))
        with opened(tmp_path) as store:
            assert numbers(store.recovered.changes) == [1, 3]


def test_damage_in_the_middle_is_skipped_and_reported(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.record(("n", 1))
        place = (tmp_path / "journal.000001").stat().st_size
        store.record(("n", 2), ("n", 3))
    data = bytearray((tmp_path / "journal.000001").read_bytes())
    data[place + 14] ^= 1
    (tmp_path / "journal.000001").write_bytes(data)
    with opened(tmp_path) as store:
        assert numbers(store.recovered.changes) == [1, 3]
        (damage,) = store.recovered.damage
        assert (damage.topic, damage.file, damage.offset) == ("", "journal.000001", place)
        assert Path(damage.kept).exists()


def test_frame_of_another_program_version_is_kept_and_skipped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.record(("n", 1))
    later = bytearray(journal_format.encode([("n", 2)]))
    later[3] += 1
    with (tmp_path / "journal.000001").open("ab") as file:
        file.write(later + journal_format.encode([("n", 3)]))
    with opened(tmp_path) as store:
        assert numbers(store.recovered.changes) == [1, 3]
