"""Offsets in a checkpoint: the next sequence of each lane, as the source writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from nsqpipe.failures import PipeFailed
from nsqpipe.storage import names_in, read_text
from pyspark_nsq.reports import lanes_of

if TYPE_CHECKING:
    from pyspark_nsqtable.places import Place

_HEADER: Final = "v1"  # the first line of each file in Spark's offset log


def checkpointed(checkpoint: Place) -> tuple[int, list[dict[str, int]]]:
    """The last planned batch of a checkpoint, and where each of its sources stands then."""
    folder = checkpoint.child("offsets")
    batches = sorted(int(name) for name in names_in(folder) if name.isdigit())
    if not batches:
        raise PipeFailed(f"there is no checkpoint with offsets at {checkpoint}")
    file = folder.child(str(batches[-1]))
    lines = (read_text(file) or "").splitlines()
    if not lines or lines[0] != _HEADER:
        raise PipeFailed(f"{file} is not an offset file that we know")
    return batches[-1], [lanes_of(json.loads(line)) for line in lines[2:]]
