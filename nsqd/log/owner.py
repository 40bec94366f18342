"""Which process owns a data path, as processes on other machines see it.

The lock of `data_path.py` holds among the processes of one machine. It says nothing where a volume is attached to two
machines, or where a file server does not pass locks on. There, owner.json names the host and the start of the process,
and its time of modification moves every second for as long as that process lives.

    there is no owner.json            nobody, or a process that stopped cleanly: create it, and take the data path
    it names a process of this boot   the lock has shown that the process is gone: take the data path
    it names another boot, or         watch it. If its time moves, a process on another machine is at work: refuse.
    cannot be read or understood      Otherwise that machine has crashed, or was this one before a reboot: take it.

Two machines may start at the same moment. Where there is no owner.json, only one of them can create it, and the other
one watches what it then finds. So the usual start waits for nothing. Where both have watched a silent owner, both write
their names, and each looks again after more than a beat: the one whose name is gone has lost. A process that was
quicker, and serves by then, has seen the other name at its beat and has ended.

A process that finds somebody else's name in owner.json has lost the data path: an operator has started another one with
`--take-over`. It ends at once, as by `kill -9`: whatever it wrote from then on could damage what the new one writes. The
new one waits for that before it reads anything. A process that is cut off from the volume cannot see that it was
replaced; keeping its late writes away is up to the storage (fencing).

The name that a process has found at its start is no takeover: if the disk is full, it stays until ours can be written.
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
SECOND_LOOK: Final = 2 * BEAT  # seconds after which whoever else has written a name has seen ours, and we see theirs

log = logging.getLogger(__name__)


class Owner(NamedTuple):
    """A process that has, or had, a data path."""

    host: str
    boot: str  # of the kernel it runs on; containers of one machine share it
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.started}"

    @classmethod
    def this_process(cls) -> Owner:
        return cls(
            platform.node(),
            boot_id() or platform.node(),
            os.getpid(),
            datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


class Ownership:
    """The name of this process in a data path that it has locked."""

    def __init__(self, folder: Path, files: Files, me: Owner, pause: Callable[[float], None]) -> None:
        self._path = folder / OWNER_JSON
        self._files = files
        self._me = me
        self._pause = pause
        self._is_written = False
        self._has_warned = False
        self._before: Owner | None = None

    def take(self, *, by_force: bool) -> bool:
        """Write our name. Raise DataPathError if a process on another machine is at work, unless `by_force`.

        Return whether the data path was another machine's, whose last writes may have come while this waited.
        """
        other = self._before = found_owner(self._files, self._path)
        is_elsewhere = _may_be_elsewhere(self._files, self._path, other, self._me)
        if other is None and not is_elsewhere:
            if self._create():
                return False
            # Another process has created the file since we looked.
            return self.take(by_force=by_force)
        if is_elsewhere and not by_force and _is_beating(self._files, self._path, self._pause):
            raise self._in_use_by(found_owner(self._files, self._path) or other)
        self._write()
        if is_elsewhere and by_force:
            if not self._is_written:  # so the other one would never see it
                raise DataPathError(
                    f"failed to lock data-path: cannot take {self._path.parent} over from {_name_of(other)}"
                )
            self._pause(WATCH)  # until the other one has seen our name and ended
        elif is_elsewhere:
            self._look_again()
        if is_elsewhere:
            log.warning("data path taken over from %s", _name_of(other))
        return is_elsewhere

    def beat(self) -> Owner | None:
        """Show that this process lives. Return who has taken the data path over; None: nobody.

        Another process of this boot has not: it got the lock, so this one has closed the data path and is about to end.
        """
        found = found_owner(self._files, self._path)
        if found is not None and found.boot != self._me.boot and found != self._before:
            return found
        if not self._is_written:
            if found is None and not _may_be_elsewhere(self._files, self._path, None, self._me):
                self._create()  # not over a name that has come meanwhile: the next beat sees that one
            else:
                self._write()
            return None
        with suppress(OSError):  # the folder is gone, or the disk refuses: others find that out and say so
            self._files.touch(self._path)
        return None

    def release(self) -> None:
        if found_owner(self._files, self._path) == self._me:
            with suppress(OSError):
                self._files.unlink(self._path)

    def _look_again(self) -> None:
        """Raise DataPathError if somebody else has waited for the same silent owner, and has written a name after us."""
        self._pause(SECOND_LOOK)
        found = found_owner(self._files, self._path)
        if found not in (None, self._me, self._before):
            raise self._in_use_by(found)

    def _in_use_by(self, owner: Owner | None) -> DataPathError:
        return DataPathError(
            f"failed to lock data-path: {self._path.parent} is in use by {_name_of(owner)}; "
            "stop that one first, or start with --take-over if it cannot be stopped"
        )

    def _create(self) -> bool:
        """Write our name into a new file. Return False if there is a file by now."""
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
            log.warning("other machines cannot see that the data path is in use: %s: %s", self._path, error)
        self._has_warned = True


@contextmanager
def owned(folder: Path, files: Files, *, take_over: bool, pause: Callable[[float], None]) -> Iterator[bool]:
    """Own a data path, which this process has locked, for as long as the block runs. Raises DataPathError.

    Yields whether it was another machine's: then what was read of it before may be out of date.
    """
    ownership = Ownership(folder, files, Owner.this_process(), pause)
    was_elsewhere = ownership.take(by_force=take_over)
    stopping = threading.Event()

    def keep() -> None:
        while not stopping.wait(BEAT):
            if (other := ownership.beat()) is not None:
                log.critical("data path %s was taken over by %s: this process ends", folder, other)
                os._exit(1)  # an end in good order would write to files that are no longer ours

    # A thread of its own, because the loop may have work for more than a second, and a long start does not have one yet.
    thread = threading.Thread(target=keep, name="owner", daemon=True)
    thread.start()
    try:
        yield was_elsewhere
    finally:
        stopping.set()
        thread.join()
        ownership.release()


def found_owner(files: Files, path: Path) -> Owner | None:
    """Return the owner that a file names. None if there is no file, or none that can be read or understood."""
    try:
        content: dict[str, Any] = read_small_file(files, path).content
        return Owner(str(content["host"]), str(content["boot"]), int(content["pid"]), str(content["started"]))
    except (OSError, DataPathError, KeyError, TypeError, ValueError):
        return None


def owner_elsewhere(files: Files, folder: Path, pause: Callable[[float], None] = time.sleep) -> str | None:
    """Name the process on another machine that is at work in a folder; None: none is. Watches for some seconds."""
    path = folder / OWNER_JSON
    owner = found_owner(files, path)
    is_elsewhere = _may_be_elsewhere(files, path, owner, Owner.this_process())
    return _name_of(owner) if is_elsewhere and _is_beating(files, path, pause) else None


def _may_be_elsewhere(files: Files, path: Path, owner: Owner | None, me: Owner) -> bool:
    """Return whether a process on another machine may have the data path, as far as its file tells."""
    if owner is not None:
        return owner.boot != me.boot
    try:
        return files.exists(path)  # somebody's name, but nobody can read it
    except OSError:
        return True


def _name_of(owner: Owner | None) -> str:
    return str(owner) if owner is not None else f"a process whose name in {OWNER_JSON} cannot be read"


def _is_beating(files: Files, path: Path, pause: Callable[[float], None]) -> bool:
    """Watch for a while whether an owner's process lives."""
    first = _sign_of_life(files, path)
    for _ in range(round(WATCH / BEAT)):
        pause(BEAT)
        if _sign_of_life(files, path) != first:
            return True
    return False


def _sign_of_life(files: Files, path: Path) -> tuple[Owner | None, int]:
    # An NFS client may remember times for a minute; it asks the server when a file is opened.
    owner = found_owner(files, path)
    try:
        return owner, files.modified_at(path)
    except OSError:
        return owner, 0
