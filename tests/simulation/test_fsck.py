"""`nsqd fsck`: clean paths are clean, damage is reported as recovery reports it, and safe repairs are made."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from nsqd import cli as nsqd_cli
from nsqd.broker import operator_actions
from nsqd.fsck import cli as fsck
from nsqd.fsck.cli import FsckProgress
from nsqd.fsck.examination import Examination
from nsqd.fsck.finding import FsckSeverity
from nsqd.go_import.marker import MARKER, ImportStep, read_marker, write_marker
from nsqd.log.data_path import as_json, read_log_id
from nsqd.log.files import Files
from nsqd.log.journal.packed_changes import PackedChanges
from nsqd.log.segment import INDEX_SUFFIX
from tests.nsqd.go_import.harness import Queues, import_, some, write
from tests.nsqd.log.harness import opened, texts
from tests.simulation.data_paths import (
    BODIES,
    FINISHED,
    IN_ORDER,
    ORDER,
    WAITING,
    FastFiles,
    make,
    make_buried,
    make_held,
    records_of,
    run_fsck,
    running,
    snapshot,
)
from tests.simulation.flips import T

JOURNAL = "journal.000001"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "path")
    return tmp_path / "path"


@pytest.mark.parametrize("kill", [False, True])
def test_nothing_is_found_after_a_stop_or_a_kill(tmp_path: Path, kill: bool) -> None:
    make(tmp_path / "path", kill=kill)
    before = snapshot(tmp_path / "path")
    assert run_fsck(tmp_path / "path")[:2] == (0, [])
    assert snapshot(tmp_path / "path") == before


def test_nothing_is_found_after_kills_anywhere(tmp_path: Path) -> None:
    """Kills come between any two steps of a life in which topics and channels are made and deleted."""
    for steps in range(12):
        folder = tmp_path / str(steps)
        folder.mkdir()
        with running(folder) as node:
            life = [
                lambda: node.broker.topic("t").channel("c"),
                lambda: node.publish("t", *BODIES[:20]),
                lambda: node.consume("t", "c").finish(*BODIES[:15]),
                node.settle,
                lambda: node.broker.delete_topic("t"),
                lambda: node.broker.topic("t").channel("d"),
                node.turn,
                lambda: node.publish("t", *BODIES[:8]),
                node.store.start_rotation,
                node.write_next_snapshot,
                node.settle,
            ]
            for step in life[:steps]:
                step()
        assert run_fsck(folder).serious == [], steps
        with running(folder) as node:
            assert node.damage == [], steps


def test_lines_tell_severity_topic_segment_offset_and_sequences(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{5:020}.log"
    segment = bytearray((path / T / name).read_bytes())
    start, end = records_of(bytes(segment))[2]
    segment[end - 1] ^= 1
    (path / T / name).write_bytes(segment)
    assert fsck.main([str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == f"damage: {end - start} bytes are damaged topic=t file={name} offset={start} sequences=7-7\n"
    assert said.err == "examined 2 topics, 5736 bytes; unreadable: 0, damage: 1, warning: 0, note: 0\n"


def test_fsck_and_recovery_agree(path: Path) -> None:
    """They agree about what recovery looks at: everything behind the last checkpoint, and missing files."""
    (path / T / f"{14:020}.log").unlink()
    journal = bytearray((path / JOURNAL).read_bytes())
    journal[60] ^= 1
    (path / JOURNAL).write_bytes(journal)
    (path / "topology.json").unlink()
    (path / T / "log.json").write_bytes(b"{")

    def places(found: list[tuple[str, str, int, int, int]]) -> list[tuple[str, str, int, int, int]]:
        return sorted(found)

    by_fsck = [(it["topic"], it["file"], it["offset"], it["first"], it["end"]) for it in run_fsck(path).serious]
    with running(path) as node:
        by_recovery = [(it.topic, it.file, it.offset, it.first, it.end) for it in node.damage]
        node.stop()
    assert places(by_fsck) == places(by_recovery)
    assert len(by_fsck) == 4
    left = run_fsck(path).serious
    assert [(it["file"], it["first"], it["end"]) for it in left] in (
        [(f"{10:020}.log", 14, 18)],
        [(JOURNAL, 0, 0), (f"{10:020}.log", 14, 18)],
    )


def test_segments_that_a_power_cut_has_torn_are_what_a_start_takes_them_for(tmp_path: Path) -> None:
    path, repaired = tmp_path / "path", tmp_path / "repaired"
    path.mkdir()
    with opened(path, FastFiles(), max_bytes_per_file=122) as store:
        store.publish(b"a")
        store.checkpoint()
        for body in (b"b", b"c", b"d"):
            store.publish(body)
        first, second = store.segments()
    first.write_bytes(first.read_bytes()[:61])
    second.write_bytes(bytes(122))
    shutil.copytree(path, repaired)
    found = [(it["severity"], it["text"], it["file"]) for it in run_fsck(path).serious]
    assert found == [("warning", "torn tail of 122 bytes", second.name)]
    run_fsck(repaired, "--repair")
    assert run_fsck(repaired).serious == []
    for folder, damage in ((path, ["torn tail of 122 bytes cut"]), (repaired, [])):
        with opened(folder, FastFiles()) as store:
            assert [it.text for it in store.store.damage] == damage
            assert (texts(store.read()), store.log().tail) == ("a", 1)
            assert [it.name for it in store.segments()] == [first.name]


def test_repair_mends_what_is_safe_and_says_so(path: Path) -> None:
    last = path / T / f"{40:020}.log"
    whole = last.read_bytes()
    last.write_bytes(whole + b"torn")
    with (path / JOURNAL).open("ab") as journal:
        journal.write(b"\xf2NJ")
    (path / "topology.json").unlink()
    (path / T / "log.json").write_bytes(b"{")
    (path / "node.json").write_bytes(b"{")
    (path / "node.json.tmp").write_bytes(b"{")
    (path / T / f"{999:020}{INDEX_SUFFIX}").write_bytes(b"")
    (path / "topics" / "x.1").mkdir()
    assert run_fsck(path).status == 1
    repaired = run_fsck(path, "--repair")
    assert repaired.status == 1
    assert {finding["file"]: finding["repaired"] for finding in repaired.findings} == {
        JOURNAL: f"cut, and kept as {JOURNAL}.torn.638",
        "node.json": "rewritten from the journal; the old file is node.json.damaged",
        "topology.json": "rewritten from the journal",
        "log.json": "rewritten; the old file is log.json.damaged",
        last.name: f"cut, and kept as {last.name}.torn.{len(whole)}",
        f"{999:020}{INDEX_SUFFIX}": "removed",
        "node.json.tmp": "removed",
        "topics/x.1": "removed",
    }
    assert (path / T / f"{last.name}.torn.{len(whole)}").read_bytes() == b"torn"
    again = run_fsck(path)
    assert again.status == 0
    assert {finding["text"] for finding in again.findings} == {"bytes kept aside"}
    with running(path) as node:
        assert node.damage == []
        assert node.consume("t", "c").bodies == [it for it in BODIES[len(FINISHED) :] if it != BODIES[20]]


def test_repair_leaves_what_cannot_be_read(path: Path) -> None:
    name = path / T / f"{5:020}.log"
    name.write_bytes(bytes(len(name.read_bytes())))
    before = snapshot(path)
    assert [finding["repaired"] for finding in run_fsck(path, "--repair").serious] == [None]
    assert snapshot(path) == before


def test_missing_index_is_built_anew(tmp_path: Path) -> None:
    with opened(tmp_path, FastFiles(), max_bytes_per_file=300_000) as store:
        for _ in range(6):
            store.publish(bytes(70_000))
        store.store.close()
    index = next(iter(sorted(tmp_path.glob("topics/t.t/*.index"))))
    before = index.read_bytes()
    index.unlink()
    found = run_fsck(tmp_path, "--repair")
    assert [(it["severity"], it["repaired"]) for it in found.findings] == [("note", "rebuilt")]
    assert index.read_bytes() == before


def test_record_larger_than_a_block_is_read_whole(tmp_path: Path) -> None:
    with opened(tmp_path, FastFiles()) as store:
        store.publish(bytes(3_000_000))
        store.publish(b"small")
        store.store.close()
    assert run_fsck(tmp_path)[:2] == (0, [])


class NoBigReads(FastFiles):
    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        assert size <= 1 << 20
        return super().read_at(descriptor, size, offset)


def test_no_file_is_held_in_memory_whole(tmp_path: Path) -> None:
    with opened(tmp_path, FastFiles()) as store:
        for _ in range(50):
            store.publish(bytes(100_000))
        for n in range(3000):
            store.store.record(("t" * 1000, n), urgent=True)
            store.store.write_journal()
        store.store.close()
    assert (tmp_path / JOURNAL).stat().st_size > 3_000_000
    out, err = io.StringIO(), io.StringIO()
    assert fsck.main([str(tmp_path)], files=NoBigReads(), out=out, err=err) == 0


def test_journal_is_not_held_in_memory_unpacked(tmp_path: Path) -> None:
    waiting = 60_000
    with opened(tmp_path, FastFiles()) as store:
        for first in range(0, waiting, 1000):
            for sequence in range(first, first + 1000):
                store.store.record(("wait", "t", "c", [sequence, 1, 0]), urgent=True)
            store.store.write_journal()
        store.store.close()
    tracemalloc.start()
    changes = PackedChanges()
    examination = Examination(FastFiles(), tmp_path, new_id=lambda: "")
    assert [
        finding for finding in examination._examine_journal(changes) if finding.severity is not FsckSeverity.NOTE
    ] == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(1 for change in changes if change[0] == "wait") == waiting
    assert peak < 60 * waiting  # an unpacked change takes 300 bytes


# Imports from Go's nsqd

QUEUES: Queues = {"t": {"a": some(attempts=(0, 3)), "b": [], "": some(70, first=500)}, "u": {"": some(30, first=900)}}


def test_nothing_is_found_after_an_import(tmp_path: Path) -> None:
    write(tmp_path, QUEUES)
    import_(tmp_path)
    assert run_fsck(tmp_path)[:2] == (0, [])
    with running(tmp_path) as node:
        assert node.damage == []
        assert len(node.consume("t", "a").bodies) == 100 + 70  # its own messages, and the topic's
        node.stop()
    assert run_fsck(tmp_path)[:2] == (0, [])


@pytest.mark.parametrize(
    ("step", "severity"), [(ImportStep.RUNNING, "note"), (ImportStep.VERIFIED, "note"), (ImportStep.DONE, None)]
)
def test_import_that_was_interrupted_is_told_of(tmp_path: Path, step: ImportStep, severity: str | None) -> None:
    write(tmp_path, QUEUES)
    import_(tmp_path)
    marker = read_marker(Files(), tmp_path)
    assert marker is not None
    write_marker(Files(), tmp_path, replace(marker, step=step))
    if step is ImportStep.RUNNING:  # up to the step at which it stopped
        for segment in (tmp_path / T).glob("*.log"):
            segment.write_bytes(segment.read_bytes()[:-7])
    found = run_fsck(tmp_path)
    assert found.status == 0
    assert [(it["file"], it["severity"]) for it in found.findings] == ([(MARKER, severity)] if severity else [])


def test_damaged_marker_of_an_import_is_told_of(tmp_path: Path) -> None:
    write(tmp_path, QUEUES)
    import_(tmp_path)
    marker = bytearray((tmp_path / MARKER).read_bytes())
    marker[len(marker) // 2] ^= 1
    (tmp_path / MARKER).write_bytes(marker)
    assert [(it["file"], it["severity"]) for it in run_fsck(tmp_path).findings] == [(MARKER, "damage")]


# Compacted files


def test_waiting_message_that_is_nowhere_is_told(path: Path) -> None:
    for base in (0, 5, 10, 14, 18):
        (path / T / f"{base:020}.log").unlink()
    texts = {(it["text"], it["first"], it["end"]) for it in run_fsck(path).serious}
    assert ("8 messages waiting in channel c are in no segment or compacted file", 14, 22) in texts
    assert ("channel d needs messages before the first segment", 0, 22) in texts


# Held messages


@pytest.mark.parametrize("compacted", [False, True])
def test_held_messages_are_kept_and_come_in_order(path: Path, compacted: bool) -> None:
    shutil.rmtree(path)
    make_held(path, compacted=compacted)
    assert bool([*(path / T).glob("carried.*")]) == compacted
    before = snapshot(path)
    assert run_fsck(path)[:2] == (0, [])
    assert snapshot(path) == before
    with running(path, ORDER) as node:
        consumer = node.consume("t", "c")
        for number, it in enumerate(IN_ORDER, 1):
            consumer.hear()
            assert consumer.bodies == IN_ORDER[:number]
            consumer.finish(it)
        assert [message.attempts for message in consumer.got] == [2, *[1] * len(WAITING)]
        assert node.broker.topics["t"].is_empty


def test_held_message_that_is_nowhere_is_told(path: Path) -> None:
    shutil.rmtree(path)
    make_held(path, compacted=False)
    for segment in sorted((path / T).glob("*.log"))[:2]:
        segment.unlink()
    texts = {it["text"] for it in run_fsck(path).serious}
    assert "2 messages held in channel c are in no segment or compacted file" in texts
    with running(path, ORDER) as node:
        assert node.broker.turn.lost == {"t": 3}
        assert list(node.broker.topics["t"].channels["c"].ledger.held.all()) == [13, 18, 23, 28]


# Buried messages


@pytest.mark.parametrize("compacted", [False, True])
def test_nothing_is_found_where_messages_are_buried(path: Path, compacted: bool) -> None:
    shutil.rmtree(path)
    make_buried(path, compacted=compacted)
    assert bool([*(path / T).glob("carried.*")]) == compacted
    before = snapshot(path)
    assert run_fsck(path)[:2] == (0, [])
    assert snapshot(path) == before


def test_buried_message_that_is_nowhere_is_told(path: Path) -> None:
    shutil.rmtree(path)
    make_buried(path, compacted=False)
    for base in (0, 5):
        (path / T / f"{base:020}.log").unlink()
    texts = {(it["text"], it["first"], it["end"]) for it in run_fsck(path).serious}
    assert texts == {("2 messages buried in channel c are in no segment or compacted file", 3, 9)}
    with running(path) as node:
        assert node.broker.turn.lost == {"t": 2}
        assert len(node.broker.topics["t"].channels["c"].buried_queue.buried) == len(WAITING) - 2


@pytest.mark.parametrize("again", [False, True])
def test_a_buried_message_outlives_its_segment_and_can_be_kicked(path: Path, again: bool) -> None:
    shutil.rmtree(path)
    make_buried(path, compacted=True)
    with running(path) as node:
        channel = node.broker.topics["t"].channels["c"]
        log = node.store.logs["t"]
        burials = [*channel.buried_queue.buried.from_place(0)]
        assert log.first > burials[-2].sequence, "its segment is gone"
        assert [(it.attempts, it.note.reason) for it in burials] == [(1, "bad")] * len(WAITING)
        if again:  # what was carried once is carried with what is buried since
            node.publish("t", *BODIES)
            more = node.consume("t", "c")
            more.finish(*BODIES[1:])
            more.bury(BODIES[0])
            more.client.say(b"RDY 0\n")
            node.settle()
            node.compaction()
            node.settle()
        taken = operator_actions.take_buried(channel, "kick", [burial.sequence for burial in burials])
        assert taken == len(WAITING)
        node.settle()
        node.stop()
    with running(path) as node:
        got = node.consume("t", "c").got
        assert [(it.body, it.attempts) for it in got] == [(it, 1) for it in WAITING]


# A new identity


def test_copies_that_go_their_own_ways_are_different_logs(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    assert run_copy(copy) == 0
    assert run_fsck(copy)[:2] == (0, [])
    for topic in ("t.t", "t.u"):
        assert read_log_id(Files(), path / "topics" / topic) != read_log_id(Files(), copy / "topics" / topic)
    ids = []
    for folder, bodies in ((path, [b"original"]), (copy, [b"copy"])):
        with running(folder) as node:
            assert node.damage == []
            ids.append((node.store.data_path.node, node.store.logs["t"].log_id))  # type: ignore[union-attr]
            assert node.broker.topic("u").paused
            node.publish("t", *bodies)
            expected = [it for it in BODIES[len(FINISHED) :] if it != BODIES[20]] + bodies
            assert sorted(node.consume("t", "c").bodies) == sorted(expected)
            node.stop()
    assert not set(ids[0]) & set(ids[1])


def test_new_identity_can_be_given_when_the_small_files_are_lost(path: Path) -> None:
    (path / "node.json").unlink()
    (path / T / "log.json").unlink()
    assert run_copy(path) == 0
    assert run_fsck(path)[:2] == (0, [])


def test_new_identity_that_was_interrupted_is_made_up_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(FastFiles):
        def replace(self, path: Path, data: bytes, *, suffix: str = ".tmp") -> None:
            raise OSError(28, "No space left on device", str(path))

    err = io.StringIO()
    assert fsck.main(["--new-identity", str(path)], files=Full(), out=io.StringIO(), err=err) == 2
    assert run_fsck(path).status == 1  # journal and files disagree
    assert run_copy(path) == 0
    assert run_fsck(path)[:2] == (0, [])


def test_new_identity_trusts_no_journal_of_another_log(path: Path, tmp_path: Path) -> None:
    """The journal comes from a backup; meanwhile the topic was deleted and created again."""
    backup = tmp_path / "backup"
    shutil.copytree(path, backup)
    with running(path) as node:
        node.broker.delete_topic("t")
        node.settle()
        node.broker.topic("t").channel("c")
        node.publish("t", *BODIES[:12])
        node.settle()
        node.stop()
    shutil.rmtree(backup / T)
    shutil.copytree(path / T, backup / T)
    assert run_copy(backup) == 0
    assert run_fsck(backup)[:2] == (0, [])
    with running(backup) as node:
        assert node.damage == []
        assert sorted(node.consume("t", "c").bodies) == sorted(BODIES[:12])


def run_copy(path: Path) -> int:
    return fsck.main(["--new-identity", str(path)], files=FastFiles(), out=io.StringIO(), err=io.StringIO())


# What cannot be examined


def test_running_broker_is_told_of(tmp_path: Path) -> None:
    with running(tmp_path):
        examined = run_fsck(tmp_path)
    assert examined[:2] == (2, [])
    assert examined.err == f"nsqd fsck: a broker is running on {tmp_path}: stop it first\n"


def test_folder_of_something_else_is_told_of(tmp_path: Path) -> None:
    assert run_fsck(tmp_path).err == f"nsqd fsck: {tmp_path} is not a data path of nsqd\n"
    assert run_fsck(tmp_path / "none").err == f"nsqd fsck: open {tmp_path}/none: no such file or directory\n"


def test_later_format_is_told_of(path: Path) -> None:
    (path / "node.json").write_bytes(as_json({"format": 2}))
    assert run_fsck(path).status == 2


def test_command_line(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*argv: str) -> int | str | None:
        monkeypatch.setattr("sys.argv", ["nsqd", "fsck", *argv])
        with pytest.raises(SystemExit) as ended:
            nsqd_cli.main()
        return ended.value.code

    assert run(str(path)) == 0
    assert run() == 2
    assert run("--help") == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("--json", "--repair", "--new-identity", "DATA_PATH", "exit status"))


def test_nsqd_without_fsck_is_the_broker() -> None:
    # In a process of its own: the broker's first line blocks signals that this process needs.
    called = subprocess.run(
        [sys.executable, "-m", "nsqd", "--data-path=fsck", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert called.stdout.startswith("nsqd v")


def test_progress_is_told_now_and_then() -> None:
    err = io.StringIO()
    times = iter([0.0, 1.0, 2.5, 2.5, 3.0])
    progress = FsckProgress(err, lambda: next(times))
    progress.total = 4 << 20
    for _ in range(3):
        progress.add(1 << 20)
    assert err.getvalue() == "2 of 4 MiB (50%)\n"
