"""Ownership of a data path across machines.

The lock of `data_path.py` works between processes of one machine. It doesn't help if a volume is attached to two
machines, or if a file server doesn't support locks. For those cases, owner.json names the owning process and its host,
and the owner updates the file's modification time every second (a beat).

    no owner.json                     unused, or the last owner stopped cleanly: create the file and take the data path
    names a process of this boot      we have the lock, so that process is dead: take the data path
    names another boot,               watch the file. If its time changes, a process on another machine is running, so
    or is unreadable                  refuse to start. Otherwise that machine has crashed (or is this one, before a
                                      reboot): take the data path.

Two machines may start at the same moment. Without an owner.json, only one of them can create it, and the other one then
watches it. So a normal start doesn't wait. If both have watched the same dead owner, both write their names. Two beats
later, each checks that its name is still there, and gives up if it isn't. A faster one that is already serving notices
the other name at its next beat and exits.

If an owner finds another name in owner.json, an operator has started another nsqd with `--take-over`. The old owner
exits immediately, like after `kill -9`, since any further write could damage the data of the new one, which waits for
that exit before it reads anything. An owner that is cut off from the volume can't notice; you need fencing in the
storage to keep its late writes out.

A name that was there when we started is not a takeover: it's the last owner's name, which stays while a full disk keeps
us from writing ours.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsqcommon.boot import boot_id
from nsqd.log.data_path import FORMAT, DataPathError, as_json, read_small_file

if TYPE_CHECKING:
    from nsqd.log.files import Files

OWNER_JSON: Final = "owner.json"
BEAT: Final = 1.0  # seconds
WATCH: Final = 5.0  # seconds without a beat after which an owner counts as gone
SECOND_LOOK: Final = 2 * BEAT  # seconds after which two processes that start together have seen each other's name

log = logging.getLogger(__name__)


class DataPathOwner(NamedTuple):
    """A process that owns, or owned, a data path."""

    host: str
    boot: str  # the kernel's boot id, which all containers of a machine share
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.started}"

    @classmethod
    def this_process(cls) -> DataPathOwner:
        return cls(
            platform.node(),
            boot_id() or platform.node(),
            os.getpid(),
            datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


class Ownership:
    """This process's claim on a data path that it has locked."""

    def __init__(self, folder: Path, files: Files, me: DataPathOwner, pause: Callable[[float], None]) -> None:
        self._path = folder / OWNER_JSON
        self._files = files
        self._me = me
        self._pause = pause
        self._is_written = False
        self._has_warned = False
        self._before: DataPathOwner | None = None

    def take(self, *, by_force: bool) -> bool:
        """Write our name. Raises DataPathError if a process on another machine is running, unless `by_force`.

        Returns whether the last owner was on another machine. If so, reload the data path, because that process may
        have written to it while we waited.
        """
        other = self._before = read_owner(self._files, self._path)
        is_elsewhere = _may_be_elsewhere(self._files, self._path, other, self._me)
        if other is None and not is_elsewhere:
            if self._create():
                return False
            # Another process has just created the file.
            return self.take(by_force=by_force)
        if is_elsewhere and not by_force and _is_beating(self._files, self._path, self._pause):
            raise self._in_use_by(read_owner(self._files, self._path) or other)
        self._write()
        if is_elsewhere and by_force:
            if not self._is_written:  # the other process would never notice us
                raise DataPathError(
                    f"failed to lock data-path: cannot take {self._path.parent} over from {_name_of(other)}"
                )
            self._pause(WATCH)  # until the other process has seen our name and exited
        elif is_elsewhere:
            self._look_again()
        if is_elsewhere:
            log.warning("data path taken over from %s", _name_of(other))
        return is_elsewhere

    def beat(self) -> DataPathOwner | None:
        """Write the heartbeat. Returns the new owner if a process on another machine has taken the data path over.

        The name of another process of this boot isn't a takeover. That process could only get the lock because this one
        has already closed the data path and is about to exit.
        """
        found = read_owner(self._files, self._path)
        if found is not None and found.boot != self._me.boot and found != self._before:
            return found
        if not self._is_written:
            if found is None and not _may_be_elsewhere(self._files, self._path, None, self._me):
                self._create()  # doesn't overwrite a name that was just written: the next beat will see it
            else:
                self._write()
            return None
        with suppress(OSError):  # the folder is gone or the disk fails: other parts of nsqd notice and report it
            self._files.touch(self._path)
        return None

    def release(self) -> None:
        if read_owner(self._files, self._path) == self._me:
            with suppress(OSError):
                self._files.unlink(self._path)

    def _look_again(self) -> None:
        """Raise DataPathError if another process has overwritten our name: it was waiting for the same dead owner."""
        self._pause(SECOND_LOOK)
        found = read_owner(self._files, self._path)
        if found not in (None, self._me, self._before):
            raise self._in_use_by(found)

    def _in_use_by(self, owner: DataPathOwner | None) -> DataPathError:
        return DataPathError(
            f"failed to lock data-path: {self._path.parent} is in use by {_name_of(owner)}; "
            "stop that process first, or use --take-over if you cannot stop it"
        )

    def _create(self) -> bool:
        """Write our name into a new file. Returns False if the file already exists."""
        try:
            self._files.create(self._path, self._content)
        except FileExistsError:
            return False
        except OSError as error:
            self._warn(error)
        else:
            self._is_written = True
        return True

    def _write(self) -> None:
        try:
            self._files.replace(self._path, self._content, suffix=f".{self._me.boot[:8]}-{self._me.pid}.tmp")
        except OSError as error:
            self._warn(error)
        else:
            self._is_written = True

    @property
    def _content(self) -> bytes:
        return as_json({"format": FORMAT, **self._me._asdict()})

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:  # each beat tries again
            log.warning("failed to write the owner file, so other machines cannot see us: %s: %s", self._path, error)
        self._has_warned = True


@contextmanager
def owned(folder: Path, files: Files, *, take_over: bool, pause: Callable[[float], None]) -> Iterator[bool]:
    """Own a data path while the block runs. This process must already hold its lock. Raises DataPathError.

    Yields whether the last owner was on another machine. If so, reload everything you have read from the data path.
    """
    ownership = Ownership(folder, files, DataPathOwner.this_process(), pause)
    was_elsewhere = ownership.take(by_force=take_over)
    stopping = threading.Event()

    def beat_until_stopped() -> None:
        while not stopping.wait(BEAT):
            if (other := ownership.beat()) is not None:
                log.critical("data path %s was taken over by %s, exiting", folder, other)
                os._exit(1)  # a clean shutdown would write to files that aren't ours any more

    # In a thread, because the event loop may be busy for over a second, and doesn't exist during a long startup.
    thread = threading.Thread(target=beat_until_stopped, name="owner", daemon=True)
    thread.start()
    try:
        yield was_elsewhere
    finally:
        stopping.set()
        thread.join()
        ownership.release()


def read_owner(files: Files, path: Path) -> DataPathOwner | None:
    """Return the owner named in the file, or None if the file is missing or unreadable."""
    try:
        content: dict[str, Any] = read_small_file(files, path).content
        return DataPathOwner(str(content["host"]), str(content["boot"]), int(content["pid"]), str(content["started"]))
    except (OSError, DataPathError, KeyError, TypeError, ValueError):
        return None


def owner_elsewhere(files: Files, folder: Path, pause: Callable[[float], None] = time.sleep) -> str | None:
    """Return the name of a process on another machine that is using the folder, or None. May take 5 seconds."""
    path = folder / OWNER_JSON
    owner = read_owner(files, path)
    is_elsewhere = _may_be_elsewhere(files, path, owner, DataPathOwner.this_process())
    return _name_of(owner) if is_elsewhere and _is_beating(files, path, pause) else None


def _may_be_elsewhere(files: Files, path: Path, owner: DataPathOwner | None, me: DataPathOwner) -> bool:
    """Return whether the owner may be a process on another machine. An unreadable owner.json counts as one."""
    if owner is not None:
        return owner.boot != me.boot
    try:
        return files.exists(path)
    except OSError:
        return True


def _name_of(owner: DataPathOwner | None) -> str:
    return str(owner) if owner is not None else f"an unknown process ({OWNER_JSON} is unreadable)"


def _is_beating(files: Files, path: Path, pause: Callable[[float], None]) -> bool:
    """Watch an owner's file for some seconds, and return whether it changes."""
    first = _sign_of_life(files, path)
    for _ in range(round(WATCH / BEAT)):
        pause(BEAT)
        if _sign_of_life(files, path) != first:
            return True
    return False


def _sign_of_life(files: Files, path: Path) -> tuple[DataPathOwner | None, int]:
    # Read the file first: an NFS client may cache its time for a minute, but asks the server when you open the file.
    owner = read_owner(files, path)
    try:
        return owner, files.modified_at(path)
    except OSError:
        return owner, 0
