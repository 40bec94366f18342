"""The folder on a disk that fails, fills up and loses its power: tests/simulation/disk.py."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from nsqd.log.files import Files
from nsqd.remote.object_store import Created, StoreFault, StoreFaultKind
from nsqd.remote.stores.folder import FolderStore
from tests.simulation.disk import DATA_PATH, Crash, SimulatedDisk, Stopped
from tests.support.lengths import sized

LIVES = sized(short=60, long=3000)
NAMES = [f"{folder}/{number}" for folder in ("wal/7", "wal/8", "root") for number in range(3)]


def open_folder(disk: Files, faults: list[StoreFault] | None = None) -> FolderStore:
    numbers = count()
    seen = faults if faults is not None else []
    return FolderStore(DATA_PATH, files=disk, on_unknown=seen.append, random_name=lambda: f"aside-{next(numbers)}")


class NoFolderSync(SimulatedDisk):
    def sync_folder(self, path: Path) -> None:
        """Forget it."""


class NoSyncOfNewFolders(SimulatedDisk):
    def sync_folder(self, path: Path) -> None:
        if path.parent not in (DATA_PATH, DATA_PATH.parent):
            super().sync_folder(path)


class NoSyncOfFound(SimulatedDisk):
    """Syncs a folder of objects once after a link in it, and never for a reader."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.linked: set[Path] = set()

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self.linked.add(target.parent)

    def sync_folder(self, path: Path) -> None:
        has_objects = any(file.parent == path for file in self.paths())
        was_linked = path in self.linked
        self.linked.discard(path)
        if was_linked or not has_objects:
            super().sync_folder(path)


class WritesInPlace(SimulatedDisk):
    """Makes the name first and the content after it."""

    def link(self, source: Path, target: Path) -> None:
        descriptor = self.open_new(target)
        self.write_fully(descriptor, [self.peek(source)], 0)
        self.sync(descriptor)
        self.close(descriptor)


def live(disk: SimulatedDisk, random: Random) -> list[str]:
    """Let two writers create, with calls that fail, until the machine stops. Return the faults of what remains."""
    acknowledged: dict[str, bytes] = {}
    disk.stop_at, disk.torn = random.randint(1, 300), random.random()
    with suppress(Stopped):
        write(disk, random, acknowledged)
    disk.crash(random.choice(list(Crash)), random)
    left = open_folder(disk)
    found = {name: left.get(name) for name in NAMES}
    lost = [f"{name} is lost" for name, data in acknowledged.items() if found[name] != data]
    return lost + [f"{name} is torn" for name, data in found.items() if data is not None and not is_whole(data)]


def write(disk: SimulatedDisk, random: Random, acknowledged: dict[str, bytes]) -> None:
    stores = [open_folder(disk), open_folder(disk)]
    for number in range(random.randint(1, 12)):
        if random.random() < 0.3:
            disk.fail(errno.EIO, random.choice(("sync", "sync folder", "write", "link")))
        store, name, data = random.choice(stores), random.choice(NAMES), b"%d " % number * random.randint(1, 2000)
        for _ in range(random.randint(1, 2)):  # a writer sends the same bytes again until the answer is sure
            answer = store.create(name, data)
            disk.heal()
            if answer is Created.CREATED or (answer is Created.EXISTS and store.get(name) == data):
                assert acknowledged.setdefault(name, data) == data, "a name was created twice"


def is_whole(data: bytes) -> bool:
    words = data.split()
    return bool(words) and len(set(words)) == 1 and data.endswith(b" ")


def first_wrong(kind: Callable[..., SimulatedDisk], lives: int, **settings: bool) -> str | None:
    for seed in range(lives):
        random = Random(seed)
        if wrong := live(kind(random, **settings), random):
            return f"seed {seed}: {wrong[0]}"
    return None


def test_a_created_object_outlives_a_power_cut_and_is_never_torn() -> None:
    assert first_wrong(SimulatedDisk, LIVES) is None


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (NoFolderSync, {}),
        (NoSyncOfNewFolders, {}),
        (NoSyncOfFound, {}),
        (WritesInPlace, {}),
        (SimulatedDisk, {"syncs_files": False}),
    ],
)
def test_each_step_of_a_create_is_needed(kind: Callable[..., SimulatedDisk], settings: dict[str, bool]) -> None:
    assert first_wrong(kind, 300, **settings) is not None


@pytest.mark.parametrize("seed", range(20))
def test_an_object_that_a_reader_has_found_outlives_a_power_cut(seed: int) -> None:
    """A writer is stopped after it has linked `end`, a reader goes on from there, and the file server loses its power."""
    disk, random = SimulatedDisk(), Random(seed)
    store = open_folder(disk)
    store.create("wal/7/0", b"slot")
    disk.on_call = lambda call: disk.fail(errno.EIO, "sync folder") if call.kind == "link" else None
    assert store.create("wal/7/1", b"end") is Created.UNKNOWN
    disk.on_call = lambda call: None
    disk.heal()
    assert store.get("wal/7/1") == b"end"
    assert store.create("wal/8/0", b"fence") is Created.CREATED
    disk.crash(random.choice([it for it in Crash if it.is_power_cut]), random)
    assert open_folder(disk).get("wal/7/1") == b"end"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StoreFaultKind.FULL),
        (errno.EDQUOT, StoreFaultKind.FULL),
        (errno.EACCES, StoreFaultKind.DENIED),
        (errno.EROFS, StoreFaultKind.DENIED),
        (errno.ESTALE, StoreFaultKind.UNREACHABLE),
        (errno.EIO, StoreFaultKind.OTHER),
    ],
)
def test_a_folder_that_fails_answers_unknown_with_the_reason(code: int, kind: StoreFaultKind) -> None:
    disk, faults = SimulatedDisk(), list[StoreFault]()
    store = open_folder(disk, faults)
    assert store.create("wal/7/1", b"slot") is Created.CREATED
    disk.fail(code, "create", "write")
    assert store.create("wal/7/2", b"slot") is Created.UNKNOWN
    assert [it.kind for it in faults] == [kind]
    assert str(faults[0]).startswith("file:///data: write /data/wal/7/2: ")
    disk.heal()
    assert store.create("wal/7/2", b"slot") is Created.CREATED


def test_a_full_folder_takes_objects_again_when_there_is_room() -> None:
    disk, faults = SimulatedDisk(capacity=1000), list[StoreFault]()
    store = open_folder(disk, faults)
    assert store.create("a", b"x" * 2000) is Created.UNKNOWN
    assert str(faults[0]) == "file:///data: write /data/a: no space left on device; make room there"
    assert store.create("b", b"x" * 900) is Created.CREATED  # what the failure has left aside is gone


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links(code: int) -> None:
    disk, faults = SimulatedDisk(), list[StoreFault]()
    disk.fail(code, "link")
    assert open_folder(disk, faults).create("a", b"") is Created.UNKNOWN
    assert "this file system has no hard links" in str(faults[0])


def test_failures_of_reading_and_deleting_are_faults_and_no_answers() -> None:
    disk = SimulatedDisk()
    store = open_folder(disk)
    store.create("a", b"")
    disk.fail(errno.EIO, "open to read", "unlink")
    with pytest.raises(StoreFault, match="read /data/a: input/output error"):
        store.get("a")
    with pytest.raises(StoreFault, match="delete /data/a: input/output error"):
        store.delete(["a"])
    disk.heal()
    disk.fail(errno.EIO, "rename")
    with pytest.raises(StoreFault, match="write /data/hint: input/output error"):
        store.overwrite("hint", b"")


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    """It would be made on the local disk if the shared one isn't mounted, and two nodes would own one log."""
    faults: list[StoreFault] = []
    store = FolderStore(tmp_path / "shared", on_unknown=faults.append)
    text = f"file://{tmp_path}/shared: there is no such folder: mount it, or make it"
    assert store.create("a", b"") is Created.UNKNOWN
    assert [(str(it), it.kind) for it in faults] == [(text, StoreFaultKind.MISSING)]
    for request in (lambda: store.get("wal/7/1"), lambda: store.list("")):
        with pytest.raises(StoreFault, match="there is no such folder"):
            request()
    assert [*tmp_path.iterdir()] == []


def test_a_name_that_appears_while_one_looks_is_found(tmp_path: Path) -> None:
    """As with NFS, which remembers for a while that there was none."""

    class Remembers(Files):
        asked = 0

        def open_to_read(self, path: Path) -> int:
            self.asked += 1
            if self.asked == 1:
                raise FileNotFoundError(errno.ENOENT, "")
            return super().open_to_read(path)

    FolderStore(tmp_path).create("wal/7/1", b"slot")
    assert FolderStore(tmp_path, files=Remembers()).get("wal/7/1") == b"slot"


def test_folders_go_with_their_last_object(store: FolderStore, tmp_path: Path) -> None:
    for name in ("wal/7/1", "wal/7/2", "wal/8/1"):
        store.create(name, b"")
    store.delete(["wal/7/1", "wal/7/2"])
    assert sorted(it.name for it in (tmp_path / "wal").iterdir()) == ["8"]
    assert store.create("wal/7/3", b"") is Created.CREATED


def test_a_folder_that_another_process_has_removed_is_made_again_at_the_next_try(tmp_path: Path) -> None:
    one, other = FolderStore(tmp_path), FolderStore(tmp_path)
    one.create("wal/7/1", b"")
    other.delete(["wal/7/1"])
    assert [one.create("wal/7/2", b"") for _ in range(2)] == [Created.UNKNOWN, Created.CREATED]


def test_files_that_a_killed_process_has_left_aside_are_removed_after_a_day(tmp_path: Path) -> None:
    class Old(Files):
        def modified_at(self, path: Path) -> int:
            return super().modified_at(path) - (86_500 * 10**9 if path.name == "old" else 0)

    (tmp_path / ".new").mkdir()
    for name in ("old", "young"):
        (tmp_path / ".new" / name).touch()
    store = FolderStore(tmp_path, files=Old())
    store.create("a", b"")
    assert [it.name for it in (tmp_path / ".new").iterdir()] == ["young"]
    assert store.list("") == ["a"]
