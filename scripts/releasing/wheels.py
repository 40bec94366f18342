"""The wheels: one that is pure Python, and one with the compiled core for each Python here that can compile it.

pip prefers a wheel for its own Python and platform, so the compiled one needs no name and no option.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from scripts.releasing.building import build, run
from scripts.releasing.project import Release
from scripts.releasing.pythons import Python

_PORTABLE: Final = re.compile(r'platform\s+tag:\s+"(manylinux\w+)"')


def build_pure(source: Path, release: Release, scratch: Path, out: Path) -> Path:
    built = build("wheel", source, scratch / "pure", python=Path(sys.executable), timestamp=release.timestamp)
    return built.rename(out / built.name)


def build_compiled(source: Path, release: Release, python: Python, scratch: Path, out: Path) -> Path:
    folder = scratch / f"compiled-{python.version}"
    built = build("wheel", source, folder, python=python.path, timestamp=release.timestamp, compiles=True)
    if portable := portable_tag(built):
        built = _with_platform(built, portable, release)
    return built.rename(out / built.name)


def portable_tag(wheel: Path) -> str:
    """Return the manylinux tag that the wheel deserves by the symbols that it asks of glibc, or ''."""
    found = _PORTABLE.search(run([sys.executable, "-m", "auditwheel", "show", str(wheel)]))
    return found[1] if found else ""


def _with_platform(wheel: Path, platform: str, release: Release) -> Path:
    """Give the wheel this tag instead of linux_x86_64, which only says where it was built."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(release.timestamp)}
    run([sys.executable, "-m", "wheel", "tags", "--remove", f"--platform-tag={platform}", str(wheel)], environ=environ)
    (tagged,) = wheel.parent.glob("*.whl")
    return tagged
