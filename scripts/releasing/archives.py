"""Archives that come out the same byte for byte, and what differs in two that do not."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_EXECUTABLE: Final = 0o100


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def extract_all(files: tarfile.TarFile, folder: Path) -> None:
    """Extract the files, and refuse what would lie outside of the folder where Python can do that: from 3.11.4 on."""
    files.extraction_filter = getattr(tarfile, "data_filter", None)
    files.extractall(folder)


def write_plain_tar_gz(source: Path, target: Path, timestamp: int) -> None:
    """Write the archive again, without what depends on when, where and by whom it was made."""
    plain = io.BytesIO()
    with tarfile.open(source) as read, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as written:
        for member in sorted(read.getmembers(), key=lambda it: it.name):
            is_plain = not member.isdir() and not member.mode & _EXECUTABLE
            data = read.extractfile(member) if member.isfile() else None
            clean = tarfile.TarInfo(member.name)
            clean.size, clean.type, clean.mtime = member.size, member.type, timestamp
            clean.mode = 0o644 if is_plain else 0o755
            written.addfile(clean, data)
    with target.open("wb") as file, gzip.GzipFile("", "wb", mtime=timestamp, fileobj=file) as packed:
        packed.write(plain.getvalue())


def differences(one: Path, other: Path) -> list[str]:
    """Return the members that are not the same in two archives, or the archive's own name; nothing: they are equal."""
    if one.read_bytes() == other.read_bytes():
        return []
    ours, theirs = _members(one), _members(other)
    return sorted(it for it in ours.keys() | theirs.keys() if ours.get(it) != theirs.get(it)) or [one.name]


def _members(path: Path) -> Mapping[str, bytes]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    if path.suffix == ".gz":
        with tarfile.open(path) as sdist:
            files = [member for member in sdist.getmembers() if member.isfile()]
            return {it.name: file.read() for it in files if (file := sdist.extractfile(it)) is not None}
    return {}
