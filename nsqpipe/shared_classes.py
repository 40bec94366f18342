"""Spark's classes in the form in which a JVM wants them: it starts with half the work.

Most of what a short job computes is a JVM that reads, checks and links classes. Since Java 13 a JVM can keep them in an
archive and map that instead (JEP 350); `nsqpipe.warm_up` makes it. The JVM looks whether an archive was made by itself from
these jars, and starts without it if not. So an archive can be old, but never wrong, and it lies in the environment to which
the jars belong.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / "share" / "nsqpipe" / "spark.jsa"
VARIABLE: Final = "SPARK_SUBMIT_OPTS"  # what Spark's scripts give to the JVM of a driver, beside all that is configured
USE: Final = "-XX:SharedArchiveFile="
MAKE: Final = "-XX:ArchiveClassesAtExit="
_QUIET: Final = "-Xlog:cds=off,cds+dynamic=off"  # that an archive does not fit is no news


def environment(archive: Path = ARCHIVE, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what lets a JVM use the archive, if there is one and nothing else was asked for."""
    said = given.get(VARIABLE, "")
    return asking(USE, archive, given) if archive.exists() and not any(word in said for word in (USE, MAKE)) else {}


def asking(what: str, archive: Path, given: Mapping[str, str]) -> dict[str, str]:
    return {VARIABLE: f"{given.get(VARIABLE, '')} {what}{archive} {_QUIET}".strip()}
