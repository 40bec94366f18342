"""Which version and which commit a release would be, and whether it may be made of them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from packaging.version import InvalidVersion, Version

_VERSION: Final = re.compile(r'(?<=^version = ")[^"]+', re.MULTILINE)
_CHART_VERSION: Final = re.compile(r"(?<=^version: )\S+", re.MULTILINE)
_APP_VERSION: Final = re.compile(r"(?<=^appVersion: )\S+", re.MULTILINE)
_SHOWN: Final = 5  # names of changed files in an error


class Refused(Exception):
    """Why no release is made, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Release:
    version: str
    commit: str
    timestamp: int  # when it was committed, in seconds

    @property
    def date(self) -> date:
        return datetime.fromtimestamp(self.timestamp, UTC).date()

    @property
    def is_in_development(self) -> bool:
        return ".dev" in self.version


def check_version(version: str) -> None:
    try:
        parsed = Version(version)
    except InvalidVersion:
        parsed = None
    if parsed is None or str(parsed) != version:
        raise Refused(f"{version!r} is no version as Python writes them, such as 0.2.0 or 0.3.0.dev0")


def as_semantic(version: str) -> str:
    """Return the version as Helm wants it: 0.2.0-dev0 for 0.2.0.dev0."""
    number = Version(version).base_version
    rest = version.removeprefix(number).lstrip(".")
    return f"{number}-{rest}" if rest else number


class Project:
    """The repository."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def _settings(self) -> Path:
        return self.root / "pyproject.toml"

    @property
    def _chart(self) -> Path:
        return self.root / "deploy" / "helm" / "nsq" / "Chart.yaml"

    def settings(self) -> Any:
        return tomllib.loads(self._settings.read_text(encoding="utf-8"))["project"]

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.root), *arguments]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()
        except FileNotFoundError:
            raise Refused("there is no git here, and a release is built from a commit") from None
        except subprocess.CalledProcessError as error:
            raise Refused(f"git {arguments[0]} failed: {error.stderr.strip()}") from None

    def release(self) -> Release:
        """Return what would be released. Raise `Refused` if it is not committed, or is another commit's version."""
        self.check_clean()
        version: str = self.settings()["version"]
        commit, timestamp = self.git("log", "-1", "--format=%H %ct").split()
        tagged = self._tagged(version)
        if tagged not in ("", commit):
            raise Refused(
                f"version {version} is released already: tag v{version} is commit {tagged[:8]}, and this is {commit[:8]}. "
                f"Check out v{version} to build it again, or begin the next version with `scripts/release --next`"
            )
        return Release(version, commit, int(timestamp))

    def release_date(self) -> str:
        """Return today's date as CHANGELOG.md has it."""
        return datetime.now(UTC).date().isoformat()

    def check_clean(self) -> None:
        changed = [line[3:] for line in self.git("status", "--porcelain").splitlines()]
        if changed:
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            raise Refused(
                f"not committed: {', '.join(changed[:_SHOWN])}{more}. "
                "A release is built from a commit: commit or remove them first"
            )

    def check_unreleased(self, version: str) -> None:
        if tagged := self._tagged(version):
            raise Refused(f"version {version} is released already: tag v{version} is commit {tagged[:8]}")

    def _tagged(self, version: str) -> str:
        """Return the commit that has this version's tag, or ''."""
        return self.git("for-each-ref", "--format=%(*objectname)%(objectname)", f"refs/tags/v{version}")[:40]

    def set_version(self, version: str) -> None:
        check_version(version)
        text = self._settings.read_text(encoding="utf-8")
        self._settings.write_text(_VERSION.sub(version, text, count=1), encoding="utf-8")
        chart = self._chart.read_text(encoding="utf-8")
        chart = _APP_VERSION.sub(version, _CHART_VERSION.sub(as_semantic(version), chart))
        self._chart.write_text(chart, encoding="utf-8")
