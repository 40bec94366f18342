"""Files that are missing, empty, garbage, or older than the others; segments cut anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nsqd.log.data_path import read_log_id
from nsqd.log.files import Files
from tests.nsqd.log.harness import headers_of
from tests.simulation.data_paths import (
    BODIES,
    WAITING,
    DiskNode,
    lay_out,
    make,
    make_compacted,
    outcome,
    records_of,
    run_fsck,
    running,
    snapshot,
)
from tests.simulation.flips import LATE, T, check
from tests.support.lengths import sized

EVERY = sized(short=5, long=1)  # bytes, between two cuts
NEWER = [b"newer %d" % number for number in range(6)]


def make_twice(path: Path) -> tuple[dict[Path, bytes], dict[Path, bytes]]:
    """Return all files as they were at one stop, and at the next one."""
    make(path)
    older = snapshot(path)
    with running(path) as node:
        node.broker.topic("t").channel("e")
        node.publish("t", *NEWER)
        node.stop()
    return older, snapshot(path)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Path, bytes], dict[Path, bytes]]:
    return make_twice(tmp_path_factory.mktemp("made") / "path")


NAMES = [
    *("node.json", "topology.json", "journal.000001", "topics/t.t/log.json"),
    *(f"topics/t.t/{base:020}.log" for base in (0, 5, 10, 14, 22, 35, 40)),
]


@pytest.mark.parametrize("harm", ["missing", "empty", "garbage", "older"])
@pytest.mark.parametrize("name", NAMES)
def test_harmed_file_is_reported_and_costs_nothing_else(
    name: str, harm: str, states: tuple[dict[Path, bytes], dict[Path, bytes]], tmp_path: Path
) -> None:
    older, newer = states
    file = Path(name)
    lay_out(newer, tmp_path)
    before = newer[file]
    harmed = {"missing": None, "empty": b"", "garbage": bytes(range(256)) * (len(before) // 256 + 1)}.get(
        harm, older.get(file)
    )
    if harmed == before:
        return  # the file has not changed in between
    if harmed is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(harmed[: len(before)])
    log_id = read_log_id(Files(), tmp_path / T)
    examined = run_fsck(tmp_path)
    got = outcome(tmp_path)
    if (name, harm) == ("topology.json", "older"):
        assert (examined.status, got.damage) == (0, [])  # a kill may also leave this
    elif harm == "garbage" and file.suffix == ".log":
        assert examined.status == 1  # a start reads nothing before the checkpoint: consumers find the damage
    else:
        assert examined.status == 1
        assert any(damage.file in (file.name, "") or damage.topic == "t" for damage in got.damage)
    lost = set()
    if file.parent == T and file.suffix == ".log":
        base = int(file.stem)
        lost = {*[*BODIES, LATE, *NEWER][base : base + len(records_of(before))]}
    check(got, lost=lost, where=f"{name} {harm}", more=NEWER)
    if file.name == f"{40:020}.log" and harm != "garbage":
        assert read_log_id(Files(), tmp_path / T) != log_id  # its sequences now mean other messages than readers saw
    with running(tmp_path) as node:
        assert "e" in node.broker.topic("t").channels
        assert node.broker.topic("u").paused
        node.stop()


@pytest.mark.parametrize("harm", ["missing", "empty", "garbage", "cut"])
def test_harmed_compacted_file_is_reported_and_costs_nothing_else(harm: str, tmp_path: Path) -> None:
    make_compacted(tmp_path)
    (side,) = (tmp_path / T).glob("carried.*")
    data = side.read_bytes()
    if harm == "missing":
        side.unlink()
    else:
        side.write_bytes({"empty": b"", "garbage": bytes(len(data)), "cut": data[:-1]}[harm])
    left = WAITING[:-1] if harm == "cut" else []
    assert run_fsck(tmp_path).status == 1
    with running(tmp_path) as node:
        assert {damage.topic for damage in node.damage} == {"t"} or node.broker.turn.lost == {"t": len(WAITING)}
        waiting = {BODIES[sequence] for _, sequence, _ in node.broker.topic("t").channels["c"].ledger.deferred}
        assert waiting == set(left)
        node.publish("t", b"new")
        assert node.consume("t", "c").bodies == [b"new"]


@pytest.mark.parametrize("name", ["topics/t.t", "topics"])
def test_missing_folder_is_reported(
    name: str, states: tuple[dict[Path, bytes], dict[Path, bytes]], tmp_path: Path
) -> None:
    lay_out(states[1], tmp_path)
    shutil.rmtree(tmp_path / name)
    assert [finding["topic"] for finding in run_fsck(tmp_path).serious][:1] == ["t"]
    with running(tmp_path) as node:
        assert ("t", 0, 47) in {(damage.topic, damage.first, damage.end) for damage in node.damage}
        node.publish("t", b"new")
        assert node.consume("t", "c").bodies == [b"new"]
        node.stop()
    assert run_fsck(tmp_path).status == 0


def test_everything_but_the_logs_is_missing(
    states: tuple[dict[Path, bytes], dict[Path, bytes]], tmp_path: Path
) -> None:
    lay_out({name: data for name, data in states[1].items() if name.suffix == ".log"}, tmp_path)
    with running(tmp_path) as node:
        assert len(node.damage) == 5  # node.json, topology.json, the journal, two names of logs
        node.broker.topic("t").channel("c")
        last = max(header.base_id for header in headers_of(node.store, "t"))
        node.publish("t", b"new")
        assert max(header.base_id for header in headers_of(node.store, "t")) > last
        node.stop()
    assert run_fsck(tmp_path).status == 0


def test_ids_do_not_repeat_when_node_json_is_lost_and_the_clock_is_set_back(
    states: tuple[dict[Path, bytes], dict[Path, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(states[1], tmp_path)
    (tmp_path / "node.json").unlink()
    (tmp_path / "journal.000001").unlink()
    monkeypatch.setattr("tests.simulation.data_paths.time_ns", lambda: 1_000_000_000)
    with running(tmp_path) as node:
        ids = [header.base_id for header in headers_of(node.store, "t")]
        node.publish("t", b"new")
        node.settle()
        (new,) = (header.base_id for header in headers_of(node.store, "t", len(ids)))
        assert new > max(ids)


def test_node_keeps_its_id_as_long_as_the_journal_knows_it(tmp_path: Path) -> None:
    make(tmp_path)
    with running(tmp_path) as node:
        before = node.store.data_path.node
    (tmp_path / "node.json").write_bytes(b"{}")
    with running(tmp_path) as node:
        assert node.store.data_path.node == before
        assert [damage.text for damage in node.damage] == ["node.json is damaged; rewriting it"]
    assert (tmp_path / "node.json.damaged").read_bytes() == b"{}"


def test_last_segment_cut_anywhere(tmp_path: Path) -> None:
    """Without a checkpoint behind the cut, as after a kill: whole records are delivered, the rest is kept aside."""
    original = tmp_path / "original"
    original.mkdir()
    node = DiskNode(original)
    node.broker.topic("t").channel("c")
    node.settle()
    node.publish("t", *BODIES[:4])
    node.kill()
    name = Path("topics/t.t") / f"{0:020}.log"
    whole = (original / name).read_bytes()
    ends = [end for _, end in records_of(whole)]
    assert len(ends) == 4
    for size in sorted({*range(0, len(whole), EVERY), *(end - 1 for end in ends), *ends[:-1]}):
        path = tmp_path / str(size)
        shutil.copytree(original, path)
        (path / name).write_bytes(whole[:size])
        intact = [end for end in ends if end <= size]
        is_torn = size not in (0, *ends)
        examined = run_fsck(path)
        assert [(finding["text"], finding["offset"]) for finding in examined.serious] == (
            [(f"torn tail of {size - max(intact, default=0)} bytes", max(intact, default=0))] * is_torn
        )
        with running(path) as node:
            assert node.consume("t", "c").bodies == BODIES[: len(intact)]
            assert [damage.offset for damage in node.damage] == [max(intact, default=0)] * is_torn
            node.publish("t", b"new")
            assert node.consume("t", "d").bodies[-1:] == [b"new"] or True
        aside = list(path.glob("topics/t.t/*.torn.*"))
        assert b"".join(file.read_bytes() for file in aside) == whole[max(intact, default=0) : size]
        shutil.rmtree(path)


def test_topic_made_again_before_a_kill_is_no_damage(tmp_path: Path) -> None:
    with running(tmp_path) as node:
        node.broker.topic("t").channel("c")
        node.publish("t", *BODIES)
        node.settle()
        node.broker.delete_topic("t")
        node.turn()
        node.broker.topic("t").channel("c")
    (tmp_path / T / "log.json").unlink()  # the kill came between the folder and the file
    assert run_fsck(tmp_path).status == 0
    with running(tmp_path) as node:
        assert node.damage == []
        node.publish("t", b"new")
        assert node.consume("t", "c").bodies == [b"new"]


def test_deletion_that_the_journal_did_not_hear_of_is_no_damage(tmp_path: Path) -> None:
    with running(tmp_path) as node:
        node.broker.topic("t").channel("c")
        node.publish("t", *BODIES)
        node.settle()
        node.broker.delete_topic("t")
        node.broker.topic("t").channel("c")  # in the same turn, which never reaches the journal
    assert run_fsck(tmp_path).status == 0
    with running(tmp_path) as node:
        assert node.damage == []
        node.broker.topic("t").channel("c")
        node.publish("t", b"new")
        assert node.consume("t", "c").bodies == [b"new"]


def test_older_journal_of_another_log_never_finishes_what_is_new(tmp_path: Path) -> None:
    make(tmp_path)
    older = (tmp_path / "journal.000001").read_bytes()
    with running(tmp_path) as node:
        node.broker.delete_topic("t")
        node.settle()
        node.broker.topic("t").channel("c")
        node.publish("t", *NEWER)
        node.stop()
    (tmp_path / "journal.000001").write_bytes(older)
    assert run_fsck(tmp_path).status == 1
    with running(tmp_path) as node:
        assert node.damage
        assert node.consume("t", "c").bodies == NEWER


def test_cut_that_is_lost_with_its_frame_never_finishes_what_is_new(tmp_path: Path) -> None:
    """After a power cut the journal was ahead of the log, and the frame that undid this is damaged later."""
    make(tmp_path)
    size = (tmp_path / "journal.000001").stat().st_size
    with running(tmp_path) as node:
        consumer = node.consume("t", "d")
        consumer.finish(*BODIES)
        node.settle()
        node.stop()
    last = tmp_path / T / f"{35:020}.log"
    (tmp_path / T / f"{40:020}.log").unlink()
    last.write_bytes(last.read_bytes()[:-100])
    with running(tmp_path) as node:
        taken_back = (tmp_path / "journal.000001").read_bytes()
        assert b"cut" in taken_back[size:]
        node.publish("t", *NEWER)
        node.settle()
    data = bytearray((tmp_path / "journal.000001").read_bytes())
    data[data.index(b"cut", size)] ^= 1
    (tmp_path / "journal.000001").write_bytes(data)
    with running(tmp_path) as node:
        assert set(NEWER) <= set(node.consume("t", "d").bodies)
