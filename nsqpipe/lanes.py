"""Offsets in a checkpoint: the next sequence of each lane, as the source writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from nsqpipe.failures import PipeFailed
from pyspark_nsq.reports import lanes_of

_HEADER: Final = "v1"  # the first line of each file in Spark's offset log


def checkpointed(checkpoint: str) -> tuple[int, list[dict[str, int]]]:
    """The last planned batch of a local checkpoint, and where each of its sources stands then."""
    folder = Path(checkpoint) / "offsets"
    batches = sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []
    if not batches:
        raise PipeFailed(f"there is no checkpoint with offsets at {checkpoint}")
    lines = (folder / str(batches[-1])).read_text().splitlines()
    if not lines or lines[0] != _HEADER:
        raise PipeFailed(f"{folder / str(batches[-1])} is not an offset file that we know")
    return batches[-1], [lanes_of(json.loads(line)) for line in lines[2:]]
