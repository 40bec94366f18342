"""Which call makes a file durable: Linux' own, macOS' own, or what every Unix has."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqcommon.disk_sync import data_sync, sync_all

FULL_SYNC = 51
Sync = Callable[[int], object]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the calls that are made."""
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _, name=name: calls.append(name))
    return calls


@pytest.fixture
def on_macos(monkeypatch: pytest.MonkeyPatch, synced: list[str]) -> None:
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda _, command: synced.append(f"fcntl {command}"))


def test_content_is_synced_without_the_times_of_the_file(synced: list[str]) -> None:
    data_sync()(7)
    sync_all(7)
    assert synced == ["fdatasync", "fsync"]


def test_without_fdatasync_everything_is_synced(synced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fdatasync")
    data_sync()(7)
    assert synced == ["fsync"]


@pytest.mark.usefixtures("on_macos")
def test_on_macos_data_leave_the_cache_of_the_drive(synced: list[str]) -> None:
    data_sync()(7)
    sync_all(7)
    assert synced == [f"fcntl {FULL_SYNC}"] * 2


@pytest.mark.usefixtures("on_macos")
@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_that_has_no_full_sync_is_synced_as_well_as_it_can(
    code: int, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", _failing(code))
    data_sync()(7)
    sync_all(7)
    assert synced == ["fsync", "fsync"]


@pytest.mark.usefixtures("on_macos")
@pytest.mark.parametrize("sync", [sync_all, lambda descriptor: data_sync()(descriptor)])
def test_a_full_sync_that_fails_is_no_sync(sync: Sync, synced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "fcntl", _failing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync(7)
    assert synced == []


@pytest.mark.parametrize("sync", [sync_all, data_sync()])
def test_real_files_are_synced(sync: Sync, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(b"data")
        file.flush()
        sync(file.fileno())
        number = file.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync(number)


def _failing(code: int) -> Callable[[int, int], None]:
    def call(descriptor: int, command: int) -> None:
        raise OSError(code, os.strerror(code))

    return call
