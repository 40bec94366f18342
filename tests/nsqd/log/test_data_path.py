from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nsqd.log.data_path import DataPathError, as_json
from nsqd.log.files import Files
from nsqd.log.store import DiskStore
from tests.nsqd.log.harness import TroubledFiles, contents, opened
from tests.support.log_settings import log_settings


def test_missing_folder_is_reported_in_nsqs_words(tmp_path: Path) -> None:
    with pytest.raises(DataPathError) as raised:
        DiskStore.open(tmp_path / "none", log_settings())
    assert str(raised.value) == f"failed to lock data-path: open {tmp_path}/none: no such file or directory"


def test_folder_in_use_is_reported_in_nsqs_words(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(DataPathError) as raised:
        DiskStore.open(tmp_path, log_settings())
    assert str(raised.value) == (
        f"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily unavailable "
        "(possibly in use by another instance of nsqd)"
    )


def test_lock_goes_with_the_store(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    with opened(tmp_path):
        pass


def test_lock_is_given_back_if_recovery_is_never_reached(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_bytes(as_json({"format": 2}))
    for _ in range(2):
        with pytest.raises(DataPathError, match="has format 2"):
            DiskStore.open(tmp_path, log_settings())


def test_file_instead_of_a_folder_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataPathError, match=f"open {file}: not a directory"):
        DiskStore.open(file, log_settings())


class ReadOnlyFiles(Files):
    def is_writable(self, path: Path) -> bool:
        return False


def test_read_only_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataPathError, match=f"^failed to open data-path: {tmp_path} is not writable$"):
        DiskStore.open(tmp_path, log_settings(), files=ReadOnlyFiles())


def test_full_disk_at_first_start_is_one_clear_line(tmp_path: Path) -> None:
    files = TroubledFiles()
    files.fail("write")
    with pytest.raises(DataPathError, match=r"topology\.json\.tmp: no space left on device"):
        DiskStore.open(tmp_path, log_settings(), files=files)


def test_node_keeps_its_identity(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        node = first.recovered.node
    with opened(tmp_path) as second:
        assert second.recovered.node == node
    assert len(bytes.fromhex(node)) == 16


def test_other_nodes_are_others(tmp_path: Path) -> None:
    nodes = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with opened(tmp_path / name) as store:
            nodes.add(store.recovered.node)
    assert len(nodes) == 2


def test_reserved_ids_are_known_after_a_crash(tmp_path: Path) -> None:
    with opened(tmp_path) as first:
        first.store.reserve_ids(5000)
        first.store.reserve_ids(4000)  # never goes back
    with opened(tmp_path) as second:
        assert second.recovered.ids_reserved == 5000


def test_reservation_is_synced_before_it_takes_the_place_of_the_last(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        files.calls.clear()
        store.store.reserve_ids(5000)
    changes = [call for call in files.calls if call[0] in ("sync", "rename", "sync folder")]
    assert changes == [("sync", "node.json.tmp"), ("rename", "node.json"), ("sync folder", tmp_path.name)]


def test_reservation_that_fails_is_made_up_for(tmp_path: Path) -> None:
    files = TroubledFiles()
    with opened(tmp_path, files) as store:
        files.fail("write")
        store.store.reserve_ids(5000)
        assert "no space left on device" in store.store.health
        files.recover()
        store.store.repair()
        assert store.store.health == "OK"
    assert json.loads((tmp_path / "node.json").read_text())["ids_reserved"] == 5000


def test_data_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_bytes(as_json({"format": 2, "node": "x", "ids_reserved": 0}))
    with pytest.raises(DataPathError, match="has format 2, not 1"):
        DiskStore.open(tmp_path, log_settings())


def test_files_are_for_the_owner_only(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.store.record(("topic", "t"), urgent=True)
        store.store.write_journal()
        modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
        folders = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()}
    assert modes == {0o600}
    assert folders == {0o700}


def test_files_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    others = ["nsqd.dat", "t.diskqueue.000000.dat", "t.diskqueue.meta.dat", "journal.txt", "lost+found"]
    for name in others:
        (tmp_path / name).write_text(name)
    with opened(tmp_path) as store:
        store.publish(b"a")
        store.store.close()
    assert all((tmp_path / name).read_text() == name for name in others)


@pytest.mark.parametrize("topic", [".", "..", "a" * 64, "x.1"])
def test_any_legal_name_of_a_topic_can_be_a_folder(tmp_path: Path, topic: str) -> None:
    with opened(tmp_path) as store:
        store.publish(b"a", topic=topic)
    with opened(tmp_path) as store:
        assert list(store.recovered.logs) == [topic]
        assert store.read(topic) == {0: b"a"}


def test_topology_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.store.topology.set_names({"t": ["c"]})
        store.store.close()
    with opened(tmp_path) as store:
        assert store.recovered.topology == {"t": ["c"]}


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_damaged_topology_is_no_reason_not_to_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "topology.json").write_text(text)
    with opened(tmp_path) as store:
        assert store.recovered.topology is None


def test_folder_that_has_taken_the_data_paths_place_is_left_as_it_is(tmp_path: Path) -> None:
    ours, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    ours.mkdir()
    with opened(ours) as store:
        store.publish(b"x", topic="kept")
        store.publish(b"x", topic="dropped")
        store.checkpoint()
        ours.rename(elsewhere)
        shutil.copytree(elsewhere, ours)
        before = contents(ours)
        store.store.place_looked_at(store.store.data_path.lost_place())
        store.log("new")
        store.store.drop_log("dropped")
        store.store.reserve_ids(1 << 40)
        store.store.topology.set_names({"new": {}})
        store.store.repair()
        store.sync()
        store.store.close()
        assert contents(ours) == before


def test_what_waited_for_the_data_path_is_done_when_it_is_back(tmp_path: Path) -> None:
    ours, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    ours.mkdir()
    with opened(ours) as store:
        store.publish(b"x", topic="dropped")
        store.checkpoint()
        ours.rename(elsewhere)
        store.store.place_looked_at(store.store.data_path.lost_place())
        store.store.drop_log("dropped")
        store.store.reserve_ids(1 << 40)
        elsewhere.rename(ours)
        store.store.place_looked_at(store.store.data_path.lost_place())
        store.store.repair()
        store.sync()
        assert store.store.health == "OK"
        assert store.publish(b"x", topic="new").error is None
        store.store.close()
    with opened(ours) as store:
        assert (list(store.store.logs), store.store.data_path.ids_reserved) == (["new"], 1 << 40)
