"""An archive of Spark's classes, which halves the work of starting a JVM.

A short job spends most of its processor time in a JVM that reads, checks and links classes. Since Java 13 a JVM can map
an archive of them instead (JEP 350); `nsqpipe.warm_up` creates it. A JVM ignores an archive that it hasn't created
itself from these jars. So an archive may be outdated, but never wrong. It is stored in the same environment as the
jars.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(sys.prefix) / "share" / "nsqpipe" / "spark.jsa"
VARIABLE: Final = "SPARK_SUBMIT_OPTS"  # options for the driver's JVM, in addition to the configured ones
USE: Final = "-XX:SharedArchiveFile="
MAKE: Final = "-XX:ArchiveClassesAtExit="
_QUIET: Final = "-Xlog:cds=off,cds+dynamic=off"  # no messages if the archive does not fit


def environment(archive: Path = ARCHIVE, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable that makes a JVM use the archive, unless there is none or the user has named another."""
    said = given.get(VARIABLE, "")
    return asking(USE, archive, given) if archive.exists() and not any(word in said for word in (USE, MAKE)) else {}


def asking(what: str, archive: Path, given: Mapping[str, str]) -> dict[str, str]:
    return {VARIABLE: f"{given.get(VARIABLE, '')} {what}{archive} {_QUIET}".strip()}
