"""Which JVM uses the archive of Spark's classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqpipe.shared_classes import VARIABLE, environment


def test_an_archive_is_named_beside_what_was_said(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    assert environment(archive, {}) == {}
    archive.touch()
    assert environment(archive, {})[VARIABLE].startswith(f"-XX:SharedArchiveFile={archive} ")
    assert environment(archive, {VARIABLE: "-Da=b"})[VARIABLE].startswith(f"-Da=b -XX:SharedArchiveFile={archive} ")


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=mine", "-XX:ArchiveClassesAtExit=mine"])
def test_an_archive_that_was_asked_for_stays(option: str, tmp_path: Path) -> None:
    (tmp_path / "spark.jsa").touch()
    assert environment(tmp_path / "spark.jsa", {VARIABLE: option}) == {}
