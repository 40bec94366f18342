"""The sdists: the packages of a distribution and what builds them, as they are in the commit."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

from scripts.releasing.archives import extract_all, write_plain_tar_gz
from scripts.releasing.building import build
from scripts.releasing.project import Project, Release


def build_sdist(staged: Path, release: Release, scratch: Path, out: Path) -> Path:
    raw = build("sdist", staged, scratch / "raw", python=Path(sys.executable), timestamp=release.timestamp)
    sdist = out / raw.name
    write_plain_tar_gz(raw, sdist, release.timestamp)
    return sdist


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist, and return the folder of its project."""
    with tarfile.open(sdist) as files:
        extract_all(files, folder)
    (project,) = folder.iterdir()
    return project


def export(project: Project, commit: str, scratch: Path) -> Path:
    """Write the commit's files, so that nothing that only lies beside them gets into a release."""
    packed, tree = scratch / "tree.tar", scratch / "tree"
    project.git("archive", "--format=tar", f"--output={packed}", commit)
    with tarfile.open(packed) as files:
        extract_all(files, tree)
    return tree
