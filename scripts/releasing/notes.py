"""CHANGELOG.md: its next entry, made by towncrier of the files in changes.d, and the text of one that is there."""

from __future__ import annotations

import re
import sys
from typing import Final

from scripts.releasing.building import run
from scripts.releasing.project import Project, Refused, Release

_ENTRY: Final = r"^## {} \(.*?\)\n(.*?)(?=^## |\Z)"


def write_entry(project: Project, version: str, date: str) -> None:
    """Join the files in changes.d into an entry of CHANGELOG.md, and remove them."""
    _towncrier(project, "--yes", version, date)


def notes_of(project: Project, release: Release) -> str:
    """Return what is new in this release. Raise `Refused` if it is a release and CHANGELOG.md has no entry for it."""
    if release.is_in_development:
        return _towncrier(project, "--draft", release.version, release.date.isoformat())
    changelog = (project.root / "CHANGELOG.md").read_text(encoding="utf-8")
    entry = re.search(_ENTRY.format(re.escape(release.version)), changelog, re.MULTILINE | re.DOTALL)
    if entry is None:
        raise Refused(
            f"CHANGELOG.md has no entry for {release.version}: "
            f"run `scripts/release --prepare {release.version}` and commit what it writes"
        )
    return f"# nsq-suite {release.version}\n{entry[1]}".rstrip() + "\n"


def _towncrier(project: Project, how: str, version: str, date: str) -> str:
    command = [sys.executable, "-m", "towncrier", "build", how, f"--version={version}", f"--date={date}"]
    return run(command, cwd=project.root)
