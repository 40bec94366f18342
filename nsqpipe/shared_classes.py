"""An archive of Spark's classes, with which a JVM needs half the work to start.

A short job spends most of its processor time in a JVM that reads, checks and links classes. Since Java 13 a JVM can map
an archive of them instead (JEP 350); `nsqpipe.warm_up` makes the archive. A JVM checks whether it has made the archive
itself, from these jars, and ignores the archive if not. So an archive may be outdated, but never wrong. It lies in the
environment that the jars belong to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / "share" / "nsqpipe" / "spark.jsa"
VARIABLE: Final = "SPARK_SUBMIT_OPTS"  # options for the driver's JVM, beside the configured ones
USE: Final = "-XX:SharedArchiveFile="
MAKE: Final = "-XX:ArchiveClassesAtExit="
_QUIET: Final = "-Xlog:cds=off,cds+dynamic=off"  # no messages if the archive does not fit


def environment(archive: Path = ARCHIVE, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable by which a JVM uses the archive, if there is one and the user has named no other."""
    said = given.get(VARIABLE, "")
    return asking(USE, archive, given) if archive.exists() and not any(word in said for word in (USE, MAKE)) else {}


def asking(what: str, archive: Path, given: Mapping[str, str]) -> dict[str, str]:
    return {VARIABLE: f"{given.get(VARIABLE, '')} {what}{archive} {_QUIET}".strip()}
