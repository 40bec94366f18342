"""Offsets as the source writes them: the next sequence of each lane, in a checkpoint or a progress report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from nsqpipe.failures import PipeFailed
from nsqpipe.storage import names_in, read_text

if TYPE_CHECKING:
    from pyspark_nsqtable.places import Place

_HEADER: Final = "v1"  # the first line of each file in Spark's offset log


def lanes_of(offsets: object, which: str = "lanes") -> dict[str, int]:
    """Of an offset, as JSON or as its text; of none, none."""
    if isinstance(offsets, str):
        offsets = json.loads(offsets)
    lanes = offsets.get(which, {}) if isinstance(offsets, dict) else {}
    return {str(lane): int(place) for lane, place in lanes.items()}


def rows_of(report: Mapping[str, Any]) -> int:
    """How many messages a batch took, by its offsets: what Spark counts may be ranges of them instead.

    Where a lane begins that the start does not know, the end says.
    """
    ranges = [it for source in report.get("sources", ()) for it in _ranges(source)]
    return sum(end - begin for begin, end in ranges) if ranges else int(report.get("numInputRows", 0))


def _ranges(source: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    begins = lanes_of(source.get("startOffset")) | lanes_of(source.get("endOffset"), "begins")
    for lane, end in lanes_of(source.get("endOffset")).items():
        if lane in begins:
            yield min(begins[lane], end), end


def missing_of(report: Mapping[str, Any]) -> dict[str, str]:
    """Nodes that are known and do not answer, and why: what they have is in no count of what is behind."""
    found: dict[str, str] = {}
    for source in report.get("sources", ()):
        latest = source.get("latestOffset")
        latest = json.loads(latest) if isinstance(latest, str) else latest
        if isinstance(latest, dict):
            found |= latest.get("missing", {})
    return found


def lag_of(report: Mapping[str, Any]) -> Iterator[int]:
    """How many messages each lane has beyond what the batch took."""
    for source in report.get("sources", ()):
        end, latest = lanes_of(source.get("endOffset")), lanes_of(source.get("latestOffset"))
        for lane, place in latest.items():
            yield max(0, place - end.get(lane, 0))


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
    return batches[-1], [lanes_of(line) for line in lines[2:]]
