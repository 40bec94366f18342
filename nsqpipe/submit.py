"""`nsqpipe submit`: the same jobs on a cluster, by spark-submit. Nothing in them assumes a disk shared with nsqd."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

from nsqpipe.failures import PipeFailed

_PACKAGES: Final = ("common", "pyspark_nsq", "pyspark_nsqtable", "nsqpipe")
_HERE: Final = Path(__file__).resolve().parent


def command_for(master: str, deploy_mode: str, conf: Sequence[str], job: Sequence[str], archive: Path) -> list[str]:
    """Workers get our packages as an archive; what these import must be installed there."""
    words = [word for word in job if word != "--"]
    if not words:
        raise PipeFailed("which job? As in: nsqpipe submit --master spark://host:7077 -- land --topic clicks ...")
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = [text for pair in conf for text in ("--conf", pair)]
    return [
        str(program),
        *("--master", master, "--deploy-mode", deploy_mode, "--py-files", str(archive)),
        *settings,
        str(_HERE / "__main__.py"),
        *words,
    ]


def pack(archive: Path) -> None:
    """Our packages' sources in one file that Spark hands to each worker."""
    root = _HERE.parent
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                file.write(path, path.relative_to(root))
