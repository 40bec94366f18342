"""What a start finds after the process has died, or the disk has lost or changed something."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from nsqd.log.damage import Damage
from tests.nsqd.log.harness import OpenStore, TroubledFiles, flip, opened, texts

FIRST = f"{0:020}.log"


def written(path: Path, *words: bytes, checkpoint: bool = False, **settings: Any) -> Path:
    """Make a store that was killed after publishing one batch for each word, and return its first segment."""
    with opened(path, **settings) as store:
        for word in words:
            store.publish(*(word[n : n + 1] for n in range(len(word))))
        if checkpoint:
            store.checkpoint()
        return store.segments()[0]


def only_damage(store: OpenStore) -> Damage:
    assert len(store.store.damage) == 1, store.store.damage
    return store.store.damage[0]


def test_everything_written_is_there_after_a_kill(tmp_path: Path) -> None:
    written(tmp_path, b"abc", b"d", b"ef")
    with opened(tmp_path) as store:
        assert (store.log().first, store.log().tail) == (0, 6)
        assert texts(store.read()) == "abcdef"
        assert store.store.damage == []


def test_publishing_goes_on_where_it_ended(tmp_path: Path) -> None:
    written(tmp_path, b"abc")
    with opened(tmp_path) as store:
        log_id = store.log().log_id
        store.publish(b"d")
    with opened(tmp_path) as store:
        assert texts(store.read()) == "abcd"
        assert store.log().log_id == log_id


def test_last_record_truncated_at_every_byte_is_cut(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    whole = written(tmp_path / "x", b"abc", b"de").read_bytes()
    first = 56 + 3 * 5
    for size in range(first, len(whole)):
        folder = tmp_path / str(size)
        shutil.copytree(tmp_path / "x", folder)
        (folder / "topics/t.t" / FIRST).write_bytes(whole[:size])
        with opened(folder) as store:
            assert texts(store.read()) == "abc"
            assert (folder / "topics/t.t" / FIRST).stat().st_size == first
            store.publish(b"!")
            assert texts(store.read()) == "abc!"
            assert len(store.store.damage) == (size > first)
        if size > first:
            assert (folder / "topics/t.t" / f"{FIRST}.torn.{first}").read_bytes() == whole[first:size]


def test_bad_end_is_a_torn_tail_and_kept_aside(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc", b"de")
    flip(segment, -1)
    with opened(tmp_path) as store:
        assert texts(store.read()) == "abc"
        damage = only_damage(store)
    assert damage.text == "torn tail of 66 bytes cut"
    assert (damage.topic, damage.file, damage.offset, damage.first, damage.end) == ("t", FIRST, 71, 3, 3)
    assert Path(damage.kept).stat().st_size == 66
    assert store.recovered.damage == [damage]


def test_bad_record_before_a_sound_one_is_damage_and_read_around(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc", b"de", b"f")
    before = segment.read_bytes()
    flip(segment, 71 + 60)
    with opened(tmp_path) as store:
        assert store.log().tail == 6
        assert texts(store.read()) == "abcf"
        assert store.log().next_readable(3) == 5
        damage = only_damage(store)
        store.publish(b"g")
        assert texts(store.read()) == "abcfg"
    assert (damage.offset, damage.first, damage.end, damage.text) == (71, 3, 5, "damage is skipped")
    assert len(Path(damage.kept).read_bytes()) == 66
    assert len(segment.read_bytes()) > len(before)


def test_start_and_end_of_damage_are_found_wherever_one_asks(tmp_path: Path) -> None:
    flip(written(tmp_path, b"abc", b"de", b"f", b"ghi", b"j"), 71 + 10)
    with opened(tmp_path) as store:
        assert [store.log().next_readable(n) for n in range(10)] == [0, 1, 2, 5, 5, 5, 6, 7, 8, 9]


def test_damage_before_the_checkpoint_is_found_by_readers(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc", b"de", b"f", checkpoint=True)
    flip(segment, 71 + 60)
    with opened(tmp_path) as store:
        loaded: list[str] = []
        store.on_loaded = loaded.append
        assert store.store.damage == []
        assert store.log().next_readable(3) == 3
        assert store.log().batch_at(3) is None
        store.load()
        assert loaded == ["t"]
        assert store.log().next_readable(3) == 5
        assert texts(store.read()) == "abcf"
        damage = only_damage(store)
    assert (damage.first, damage.end) == (3, 5)
    assert len(Path(damage.kept).read_bytes()) == 66


def test_sectors_that_the_disk_refuses_are_gone_round_and_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for n in range(100):
            store.publish(b"%d" % n, bytes(2000))
        store.checkpoint()

    class BadSector(TroubledFiles):
        def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
            if offset < 50_000 < offset + size and self._paths[descriptor].name.endswith(".log"):
                raise OSError(5, "Input/output error")
            return super().read_at(descriptor, size, offset)

    files = BadSector()
    files.fail("read cached", 5)
    with opened(tmp_path, files) as store:
        missing = set(range(200)) - set(store.read())
        assert store.store.damage == []
        first = min(missing)
        assert missing == set(range(first, store.log().end_of_refused(first)))
        assert 2 <= len(missing) <= 6
        assert [path.name for path in store.log().folder.iterdir() if "damaged" in path.name] == []


def test_segment_that_vanished_is_damage_for_its_readers(tmp_path: Path) -> None:
    with opened(tmp_path, mem_queue_size=0, max_bytes_per_file=61) as store:
        for word in (b"a", b"b", b"c"):
            store.publish(word)
        store.segments()[1].unlink()
        assert texts(store.read()) == "ac"
        assert only_damage(store).file == f"{1:020}.log"


def test_segment_that_is_missing_at_start_is_a_gap(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=61) as store:
        for word in (b"a", b"b", b"c", b"d"):
            store.publish(word)
        store.checkpoint()
        store.segments()[1].unlink()
    with opened(tmp_path) as store:
        assert texts(store.read()) == "acd"
        damage = only_damage(store)
        assert (damage.first, damage.end, damage.kept) == (1, 2, "")


def test_sealed_segment_that_lost_its_end_is_a_gap(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=2 * 61) as store:
        for word in (b"a", b"b", b"c", b"d", b"e"):
            store.publish(word)
        first = store.segments()[0]
    data = first.read_bytes()
    first.write_bytes(data[:-10])
    with opened(tmp_path) as store:
        assert store.log().tail == 5
        assert texts(store.read()) == "acde"
        damage = only_damage(store)
    assert (damage.first, damage.end, damage.offset) == (1, 2, 61)
    assert first.read_bytes() == data[:-10]  # only the last segment may be cut


def test_only_what_the_checkpoint_does_not_cover_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(100):
            store.publish(bytes(10_000))
        store.checkpoint()
        store.publish(b"after")
    sizes: list[int] = []

    class Counting(TroubledFiles):
        def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
            data = super().read_at(descriptor, size, offset)
            if self._paths[descriptor].name.endswith(".log"):
                sizes.append(len(data))
            return data

    with opened(tmp_path, Counting()) as store:
        assert store.log().tail == 101
    assert sum(sizes) == 56 + 4 + 5


def test_clean_stop_leaves_nothing_to_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.store.close()
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        assert store.log().tail == 1
        assert store.log().synced_tail == 1
    assert ("read", FIRST) not in files.calls


def test_checkpoint_is_good_for_later_segments_too(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=61) as store:
        store.publish(b"a")
        store.checkpoint()
        store.publish(b"b")
        store.publish(b"c")
    flip(tmp_path / "topics/t.t" / f"{1:020}.log", 60)
    with opened(tmp_path) as store:
        assert texts(store.read()) == "ac"


def test_log_shorter_than_what_was_synced_is_another_log(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc", b"de", checkpoint=True)
    with opened(tmp_path) as store:
        log_id = store.log().log_id
    segment.write_bytes(segment.read_bytes()[:-1])
    with opened(tmp_path) as store:
        assert store.log().tail == 3
        new_id = store.log().log_id
        assert new_id != log_id
        assert "the log ends at 3, but was synced up to 5" in [damage.text for damage in store.store.damage]
        store.publish(b"x")
        store.checkpoint()
    with opened(tmp_path) as store:
        assert texts(store.read()) == "abcx"
        assert store.log().log_id == new_id


def test_log_whose_last_segment_is_gone_is_another_log(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=61) as store:
        store.publish(b"a")
        store.publish(b"b")
        store.checkpoint()
        log_id = store.log().log_id
        store.segments()[1].unlink()
    with opened(tmp_path) as store:
        assert store.log().tail == 1
        assert store.log().log_id != log_id
        store.publish(b"c")
        assert texts(store.read()) == "ac"


def test_torn_tail_that_was_never_synced_is_the_same_log(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc", b"de")
    with opened(tmp_path) as store:
        log_id = store.log().log_id
    segment.write_bytes(segment.read_bytes()[:-1])
    with opened(tmp_path) as store:
        assert store.log().log_id == log_id


def lose_pages(segment: Path, start: int = 0) -> None:
    """Have only zeros in a file from here on, as when a power cut has left its size."""
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes()[:start].ljust(size, b"\0"))


@pytest.mark.parametrize("left", [61, 70, 122])
def test_segment_of_which_a_power_cut_has_left_the_name_is_a_torn_tail(tmp_path: Path, left: int) -> None:
    with opened(tmp_path, max_bytes_per_file=122) as store:
        store.publish(b"a")
        store.checkpoint()
        log_id = store.log().log_id
        for body in (b"b", b"c", b"d", b"e"):
            store.publish(body)
        first, second, third = store.segments()
        lose_pages(second)
        lose_pages(third)
        if left < 122:
            lose_pages(first, left)
    with opened(tmp_path, max_bytes_per_file=122) as store:
        assert store.log().log_id == log_id
        if left == 122:
            assert (texts(store.read()), store.log().tail) == ("ab", 2), "the segment before them is whole"
            return
        assert (texts(store.read()), store.log().tail) == ("a", 1), "not a hole up to the last of them"
        assert {it.text for it in store.store.damage} == {"torn tail of 61 bytes cut", "torn tail of 122 bytes cut"}
        assert (first.parent / f"{second.name}.torn.0").read_bytes() == bytes(122)
        assert store.segments() == [first]
        for body in (b"B", b"C", b"D"):
            store.publish(body)
        assert texts(store.read()) == "aBCD"
    with opened(tmp_path) as store:
        assert (texts(store.read()), store.store.damage) == ("aBCD", [])


def test_segment_that_lost_everything_says_where_its_log_ended_if_synced_messages_are_lost_too(tmp_path: Path) -> None:
    """Then this is damage, and readers of history have seen what was before it."""
    with opened(tmp_path, max_bytes_per_file=122) as store:
        for body in (b"a", b"b"):
            store.publish(body)
        store.checkpoint()
        store.publish(b"c")
        first, second = store.segments()
        log_id = store.log().log_id
        first.write_bytes(first.read_bytes()[:61])
        lose_pages(second)
    with opened(tmp_path) as store:
        assert (texts(store.read()), store.log().tail) == ("a", 2)
        assert store.log().log_id == log_id
        assert "damage is skipped" in [it.text for it in store.store.damage]


def test_lost_journal_costs_a_scan_and_no_message(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=200) as store:
        for n in range(10):
            store.publish(b"%d" % n)
        store.store.record(("topic", "t"), urgent=True)
        store.checkpoint()
    (tmp_path / "journal.000001").unlink()
    with opened(tmp_path) as store:
        assert list(store.recovered.changes) == []
        assert texts(store.read()) == "0123456789"


def test_lost_log_json_is_made_again(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc", checkpoint=True)
    with opened(tmp_path) as store:
        log_id = store.log().log_id
    (segment.parent / "log.json").write_text("")
    with opened(tmp_path) as store:
        assert store.log().log_id == log_id  # the checkpoint has named it
        assert texts(store.read()) == "abc"


def test_index_goes_with_the_cut(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for n in range(100):
            store.publish(b"%d" % n, bytes(10_000))
        store.sync()  # saves the index, but the journal does not know of the sync
        segment = store.segments()[0]
    segment.write_bytes(segment.read_bytes()[:300_000])
    with opened(tmp_path) as store:
        tail = store.log().tail
        index = store.log()._segments.active.index  # type: ignore[union-attr]
        assert index is not None
        assert list(index.sequences) == sorted(set(index.sequences))
        for n in range(100):
            store.publish(b"new %d" % n, bytes(9_000))
        store.checkpoint()
        assert store.log().tail == tail + 200
    with opened(tmp_path) as store:
        for sequence in range(0, tail + 200, 2):
            batch = store.batch_at(store.log(), sequence)
            assert batch is not None
            number = sequence // 2 if sequence < tail else (sequence - tail) // 2
            assert batch.body(sequence) == (b"%d" if sequence < tail else b"new %d") % number
        assert [damage.text[:4] for damage in store.store.damage] == []


@pytest.mark.parametrize("name", [f"{9:020}.index", "log.json.tmp"])
def test_leftovers_are_removed(tmp_path: Path, name: str) -> None:
    segment = written(tmp_path, b"a")
    (segment.parent / name).touch()
    with opened(tmp_path):
        assert not (segment.parent / name).exists()


def test_recovered_but_unsynced_messages_are_synced(tmp_path: Path) -> None:
    written(tmp_path, b"abc")
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        assert store.log().synced_tail == 0
        store.sync()
        assert store.log().synced_tail == 3
    assert ("sync", FIRST) in files.calls


# A disk that is full at the start


def test_full_disk_is_read_and_takes_nothing_until_the_log_is_named(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc")
    (segment.parent / "log.json").write_bytes(b"")  # as if a kill came when the disk became full
    files = TroubledFiles()
    files.fail("write")
    with opened(tmp_path, files) as store:
        assert texts(store.read()) == "abc"
        assert store.store.health.startswith("NOK - write ")
        assert "no space left on device" in (store.publish(b"d").error or "")
        files.recover()
        store.clock.now += 1.0
        store.store.repair()
        assert store.store.health == "OK"
        assert store.publish(b"e").error is None
        log_id = store.log().log_id
    with opened(tmp_path) as store:
        assert texts(store.read()) == "abce"
        assert store.log().log_id == log_id


def test_new_log_id_that_cannot_be_saved_keeps_publishers_out(tmp_path: Path) -> None:
    """The log has lost its end. Under its old id it must not give sequences again that readers may have seen."""
    segment = written(tmp_path, b"abc", b"def", checkpoint=True)
    with opened(tmp_path) as store:
        old = store.log().log_id
    segment.write_bytes(segment.read_bytes()[:71])
    files = TroubledFiles()
    files.fail("write")
    with opened(tmp_path, files) as store:
        assert texts(store.read()) == "abc"
        assert store.log().log_id != old
        assert store.publish(b"x").error is not None
        files.recover()
        store.clock.now += 1.0
        assert store.store.write_journal(force=True)  # until this is written, publishing is refused
        assert store.publish(b"y").error is None
        new = store.log().log_id
    with opened(tmp_path) as store:
        assert store.log().log_id == new
        assert texts(store.read()) == "abcy"


def test_indexes_that_cannot_be_saved_are_made_again(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes_per_file=200_000) as store:
        for _ in range(60):
            store.publish(bytes(10_000))
    for index in tmp_path.glob("topics/t.t/*.index"):
        index.unlink()
    files = TroubledFiles()
    files.fail("write")
    files.fails_for = lambda name: name.endswith(".index")
    with opened(tmp_path, files, mem_queue_size=0) as store:
        assert len(store.read()) == 60


def test_half_a_copy_of_what_was_cut_is_none(tmp_path: Path) -> None:
    segment = written(tmp_path, b"abc", b"def")
    segment.write_bytes(segment.read_bytes()[:-1])
    files = TroubledFiles()
    files.fail("write")
    files.writes_before_failing = 10
    with opened(tmp_path, files) as store:
        assert texts(store.read()) == "abc"
        assert only_damage(store).kept == ""
        assert not list(segment.parent.glob("*.torn.*"))
