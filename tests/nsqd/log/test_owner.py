"""Two machines and one data path: owner.json tells them of each other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqd.log.data_path import NODE_JSON, DataPathError, as_json
from nsqd.log.files import Files
from nsqd.log.owner import BEAT, OWNER_JSON, SECOND_LOOK, WATCH, DataPathOwner, Ownership, read_owner
from nsqd.options import Options
from nsqd.start import opened_store

HERE = DataPathOwner("here", "boot-1", 7, "2026-01-01T00:00:00.000+00:00")
THERE = DataPathOwner("there", "boot-2", 8, "2026-01-02T00:00:00.000+00:00")


def ownership(folder: Path, me: DataPathOwner, pause: Callable[[float], None] = lambda seconds: None) -> Ownership:
    return Ownership(folder, Files(), me, pause)


class Beating:
    """Waits as long as it is told, and meanwhile has another process beat."""

    def __init__(self, other: Ownership, path: Path) -> None:
        self.waited = 0.0
        self._other = other
        self._path = path

    def __call__(self, seconds: float) -> None:
        self.waited += seconds
        os.utime(self._path, ns=(0, 0))  # a beat can be as quick as the clock of the file system is coarse
        self._other.beat()


def test_a_data_path_that_is_used_on_another_machine_is_refused_with_the_name_of_its_owner(tmp_path: Path) -> None:
    there = ownership(tmp_path, THERE)
    there.take(by_force=False)
    here = ownership(tmp_path, HERE, Beating(there, tmp_path / OWNER_JSON))
    with pytest.raises(DataPathError, match="in use by process 8 on there, started 2026-01-02"):
        here.take(by_force=False)
    assert there.beat() is None


def test_one_whose_owner_is_silent_is_taken_after_a_while(tmp_path: Path) -> None:
    ownership(tmp_path, THERE).take(by_force=False)
    waited: list[float] = []
    here = ownership(tmp_path, HERE, waited.append)
    here.take(by_force=False)
    assert sum(waited) == WATCH + SECOND_LOOK
    assert here.beat() is None


def test_by_force_it_is_taken_at_once_and_the_owner_has_time_to_see_it(tmp_path: Path) -> None:
    there = ownership(tmp_path, THERE)
    there.take(by_force=False)
    waited: list[float] = []
    ownership(tmp_path, HERE, waited.append).take(by_force=True)
    assert waited == [WATCH]
    assert there.beat() == HERE


@pytest.mark.parametrize("by_force", [False, True])
def test_a_crash_on_this_machine_costs_no_time(tmp_path: Path, by_force: bool) -> None:
    ownership(tmp_path, HERE).take(by_force=False)
    waited: list[float] = []
    ownership(tmp_path, HERE._replace(pid=9), waited.append).take(by_force=by_force)
    assert waited == []


def test_the_next_process_of_this_machine_is_no_thief(tmp_path: Path) -> None:
    first, second = ownership(tmp_path, HERE), ownership(tmp_path, HERE._replace(pid=9))
    first.take(by_force=False)
    second.take(by_force=False)
    assert first.beat() is None
    first.release()
    assert (tmp_path / OWNER_JSON).exists()


def test_an_orderly_end_leaves_no_owner(tmp_path: Path) -> None:
    here = ownership(tmp_path, HERE)
    here.take(by_force=False)
    here.release()
    assert not (tmp_path / OWNER_JSON).exists()


def test_a_name_that_cannot_be_read_may_be_that_of_a_process_at_work(tmp_path: Path) -> None:
    path = tmp_path / OWNER_JSON
    path.write_bytes(b'{"host":')
    times = iter(range(1, 100))
    here = ownership(tmp_path, HERE, lambda seconds: os.utime(path, ns=(0, next(times))))
    with pytest.raises(DataPathError, match=r"in use by an unknown process \(owner\.json is unreadable\)"):
        here.take(by_force=False)
    assert path.read_bytes() == b'{"host":'


def test_a_damaged_file_names_nobody(tmp_path: Path) -> None:
    (tmp_path / OWNER_JSON).write_bytes(b'{"host":')
    here = ownership(tmp_path, HERE)
    here.take(by_force=False)
    assert here.beat() is None


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(files: Files, path: Path, data: bytes, **_: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Files, "replace", full)
        patched.setattr(Files, "create", full)
        yield


def test_a_disk_that_is_full_at_the_start_is_written_to_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = ownership(tmp_path, HERE)
    with full_disk(monkeypatch):
        here.take(by_force=False)
        assert here.beat() is None
        assert here.beat() is None
    assert caplog.text.count("No space left on device") == 1
    assert here.beat() is None
    assert ownership(tmp_path, THERE).beat() == HERE


def test_the_name_from_before_a_reboot_is_no_thief_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ownership(tmp_path, HERE._replace(boot="the boot before")).take(by_force=False)
    here = ownership(tmp_path, HERE)
    with full_disk(monkeypatch):
        here.take(by_force=False)
        assert here.beat() is None
    assert here.beat() is None
    assert ownership(tmp_path, THERE).beat() == HERE


def test_nothing_is_taken_over_from_a_process_that_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ownership(tmp_path, THERE)
    there.take(by_force=False)
    with full_disk(monkeypatch), pytest.raises(DataPathError, match=r"cannot take .* over from process 8 on there"):
        ownership(tmp_path, HERE).take(by_force=True)
    assert there.beat() is None


def test_a_process_that_comes_while_another_one_watches_is_seen(tmp_path: Path) -> None:
    def start_elsewhere(seconds: float) -> None:
        ownership(tmp_path, THERE._replace(boot="boot-3")).take(by_force=False)
        os.utime(tmp_path / OWNER_JSON, ns=(0, 0))

    ownership(tmp_path, THERE).take(by_force=False)
    os.utime(tmp_path / OWNER_JSON, ns=(0, 0))
    with pytest.raises(DataPathError, match="in use by"):
        ownership(tmp_path, HERE, start_elsewhere).take(by_force=False)


def test_what_another_machine_wrote_before_its_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def late_writes(*args: object, **options: object) -> Iterator[bool]:
        node = json.loads((tmp_path / NODE_JSON).read_bytes())
        del node["crc"]
        (tmp_path / NODE_JSON).write_bytes(as_json({**node, "ids_reserved": 4711}))
        yield True

    monkeypatch.setattr("nsqd.start.owned", late_writes)
    with opened_store(Options(data_path=str(tmp_path)), None) as store:
        assert store.data_path.ids_reserved == 4711


# Two that start at the same moment


class Overtaken(Files):
    """Lets something happen on another machine between our look at a file that is not there, and our next step."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__()
        self._happen: list[Callable[[], object]] = [happen]

    def exists(self, path: Path) -> bool:
        found = super().exists(path)
        if not found and self._happen:
            self._happen.pop()()
        return found


def test_of_two_that_find_nobody_at_the_same_moment_one_is_refused_at_once(tmp_path: Path) -> None:
    there = ownership(tmp_path, THERE)
    files = Overtaken(lambda: there.take(by_force=False))
    here = Ownership(tmp_path, files, HERE, Beating(there, tmp_path / OWNER_JSON))
    with pytest.raises(DataPathError, match="in use by process 8 on there, started 2026-01-02"):
        here.take(by_force=False)
    assert there.beat() is None
    assert read_owner(Files(), tmp_path / OWNER_JSON) == THERE


def test_a_start_after_an_orderly_stop_waits_for_nothing(tmp_path: Path) -> None:
    waited: list[float] = []
    ownership(tmp_path, HERE, waited.append).take(by_force=False)
    assert waited == []


def test_one_that_was_overtaken_and_is_silent_again_is_followed(tmp_path: Path) -> None:
    waited: list[float] = []
    files = Overtaken(lambda: ownership(tmp_path, THERE).take(by_force=False))  # and that one crashes
    here = Ownership(tmp_path, files, HERE, waited.append)
    assert here.take(by_force=False), "what was read before may be out of date"
    assert sum(waited) == WATCH + SECOND_LOOK
    assert here.beat() is None


def test_of_two_that_wait_for_the_same_silent_owner_the_later_one_stays(tmp_path: Path) -> None:
    ownership(tmp_path, DataPathOwner("gone", "boot-0", 1, "")).take(by_force=False)
    there = ownership(tmp_path, THERE)

    def pause(seconds: float) -> None:
        if seconds == SECOND_LOOK:  # our name is written, and the other one has not seen it yet
            there.take(by_force=False)

    here = ownership(tmp_path, HERE, pause)
    with pytest.raises(DataPathError, match="in use by process 8 on there"):
        here.take(by_force=False)
    assert there.beat() is None


def test_the_second_look_comes_after_a_beat_of_the_other_so_that_it_has_ended() -> None:
    assert SECOND_LOOK > BEAT
