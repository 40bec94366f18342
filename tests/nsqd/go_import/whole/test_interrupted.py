"""The import is stopped at each of its steps, or a step fails, and nsqd starts again: everything is there, once."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from nsqcommon.startup import StartupError
from nsqd.go_import.marker import MARKER
from nsqd.log.files import Files
from tests.nsqd.go_import.harness import Queues, import_, some, write
from tests.support.go_data import deliverable, expected
from tests.support.lengths import sized
from tests.support.quick import unless_quick

QUEUES: Final[Queues] = {
    "t": {"a": some(sized(short=60, long=200), attempts=(0, 0, 1)), "b": some(30), "": some(20, first=700)},
    "u": {"": some(10, first=900)},
}
# Each step ends or fails in one of three ways; in the long form in all of them. scripts/test-quick tries every fifth.
EVERY: Final = sized(short=unless_quick(3, quick=15), long=1)


class Killed(BaseException):
    """The process ends at this call."""


class CountedFiles(Files):
    """Counts calls that change the disk. At the call of this number the process ends, or the call fails."""

    def __init__(self, stop_at: int = -1, error: Callable[[], BaseException] = Killed) -> None:
        self.calls = 0
        self._stop_at = stop_at
        self._error = error
        self._lock = -1

    def lock_folder(self, path: Path) -> int:
        self._lock = super().lock_folder(path)
        return self._lock

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        if descriptor == self._lock:
            self._lock = -1

    def end(self) -> None:
        """Do what the end of a process does: close and unlock."""
        if self._lock >= 0:
            self.close(self._lock)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._stop_at:
            raise self._error()

    def open_to_write(self, path: Path) -> int:
        self._count()
        return super().open_to_write(path)

    def write_at(self, descriptor: int, buffers: Any, offset: int) -> int:
        if self.calls + 1 == self._stop_at:
            super().write_at(descriptor, [b"".join(buffers)[:100]], offset)
        self._count()
        return super().write_at(descriptor, buffers, offset)

    def sync(self, descriptor: int) -> None:
        self._count()
        super().sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        self._count()
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def remove_folder(self, path: Path) -> None:
        if self.calls + 1 == self._stop_at:
            super().unlink(next(it for it in path.iterdir()))
        self._count()
        super().remove_folder(path)

    def sync_folder(self, path: Path) -> None:
        self._count()
        super().sync_folder(path)


@pytest.fixture(scope="module")
def go_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go")
    write(folder, QUEUES, paused=("t:a",))
    return folder


def fresh(go_path: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(go_path, folder)
    return folder


def calls_of(folder: Path) -> int:
    files = CountedFiles()
    import_(folder, files=files)
    assert files.calls > 60  # otherwise the tests that stop at each call would try next to nothing
    return files.calls


def kill_at(step: int, folder: Path) -> None:
    files = CountedFiles(step)
    try:
        with pytest.raises(Killed):
            import_(folder, files=files)
    finally:
        files.end()


def assert_complete(folder: Path, go_path: Path) -> None:
    outcome = deliverable(folder)
    assert outcome.given == expected(QUEUES)
    assert outcome.state["t"].channels["a"].paused
    originals = {it.name: it.read_bytes() for it in go_path.iterdir()}
    left = {it.name.removesuffix(".imported"): it.read_bytes() for it in folder.iterdir() if ".imported" in it.name}
    assert left == originals
    assert json.loads((folder / MARKER).read_bytes())["step"] == "done"
    assert not list(folder.glob("journal.*.tmp"))


def test_killed_at_each_step_and_started_again(go_path: Path, tmp_path: Path) -> None:
    total = calls_of(fresh(go_path, tmp_path / "data"))
    for step in range(1, total + 1, EVERY):
        folder = fresh(go_path, tmp_path / "data")
        kill_at(step, folder)
        import_(folder)
        assert_complete(folder, go_path)


def test_killed_at_each_step_and_started_without_the_option(go_path: Path, tmp_path: Path) -> None:
    """Either nothing is imported and Go's files are there, or everything is: never a part."""
    total = calls_of(fresh(go_path, tmp_path / "data"))
    for step in range(2, total + 1, EVERY):
        folder = fresh(go_path, tmp_path / "data")
        kill_at(step, folder)
        import_(folder, begin=False)
        if (folder / "nsqd.dat").exists():
            assert deliverable(folder).given == {}
            assert {it.name for it in go_path.iterdir()} <= {it.name for it in folder.iterdir()}
        else:
            assert_complete(folder, go_path)


@pytest.mark.parametrize("seed", range(sized(short=8, long=30)))
def test_killed_again_and_again(go_path: Path, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    folder = fresh(go_path, tmp_path / "data")
    for _ in range(5):
        files = CountedFiles(chosen.randrange(1, 120))
        with suppress(Killed):
            import_(folder, files=files)
        files.end()
    import_(folder)
    assert_complete(folder, go_path)


def test_each_step_fails_once_with_one_clear_line(go_path: Path, tmp_path: Path) -> None:
    total = calls_of(fresh(go_path, tmp_path / "data"))
    for step in range(3, total + 1, EVERY):
        folder = fresh(go_path, tmp_path / "data")
        files = CountedFiles(step, lambda: OSError(28, "No space left on device"))
        with pytest.raises(StartupError, match=r"^failed to (import from nsqd.dat|open data-path): .* no space left"):
            import_(folder, files=files)
        import_(folder)
        assert_complete(folder, go_path)


def test_what_failed_gives_its_space_back_at_once(go_path: Path, tmp_path: Path) -> None:
    folder = fresh(go_path, tmp_path / "data")
    with pytest.raises(StartupError):
        import_(folder, files=CountedFiles(45, lambda: OSError(28, "No space left on device")))
    assert list((folder / "topics").iterdir()) == []


def test_what_is_read_back_differently_is_not_served(go_path: Path, tmp_path: Path) -> None:
    """The disk writes something other than it was given."""

    class LyingFiles(Files):
        def write_at(self, descriptor: int, buffers: Any, offset: int) -> int:
            data = bytearray(b"".join(buffers))
            if len(data) > 3_000:
                data[2_000] ^= 1
            return super().write_at(descriptor, [bytes(data)], offset)

    folder = fresh(go_path, tmp_path / "data")
    with pytest.raises(StartupError, match="Go's files are unchanged"):
        import_(folder, files=LyingFiles(), max_bytes_per_file=1 << 20)
    assert {it.name for it in go_path.iterdir()} <= {it.name for it in folder.iterdir()}
    import_(folder)
    assert_complete(folder, go_path)
