"""`nsqpipe lag` and `offsets`: compare a checkpoint with the logs, and show its position. Neither starts Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane, Offsets
from pyspark_nsq.options import source_options
from pyspark_nsq.source.checkpoints import last_offsets, make_checkpoint_at
from pyspark_nsq.stores.storage import names_in

if TYPE_CHECKING:
    from pyspark_nsq.source.queries import From
    from pyspark_nsq.stores.places import Place


@dataclass(frozen=True, slots=True)
class LaneLag:
    lane: str
    reached: int | None  # next sequence to read; None: the checkpoint doesn't have the lane yet
    first: int | None  # None: no nsqd has the lane any more, or its node is missing
    next: int | None
    is_known: bool = True  # false: its node is missing

    @property
    def behind(self) -> int | None:
        """Number of unread messages; None if unknown."""
        if not self.is_known:
            return None
        if self.next is None:
            return 0
        return max(0, self.next - max(self.reached or 0, self.first or 0))

    @property
    def lost(self) -> int:
        """Number of messages that retention removed before they were read."""
        return 0 if self.first is None or self.reached is None else max(0, self.first - self.reached)


@dataclass(frozen=True, slots=True)
class Lags:
    lanes: Sequence[LaneLag]
    missing: Mapping[str, str]  # nodes that don't answer, and why

    @property
    def behind(self) -> int:
        """Number of unread messages, without missing nodes."""
        return sum(it.behind or 0 for it in self.lanes)

    @property
    def lost(self) -> int:
        return sum(it.lost for it in self.lanes)


def lags(source: From, checkpoint: Place) -> Lags:
    """Compare a checkpoint with the logs of the source. Raises PipeFailed."""
    reached = _reached(checkpoint)
    try:
        heads, there = cluster_of(source).look(reached)
    except NsqError as error:
        raise PipeFailed(str(error)) from None
    nodes = {lane.node for lane in heads}
    found = []
    for lane in sorted({*reached.lanes, *heads}):
        head, at = heads.get(lane), reached.lanes.get(lane)
        is_known = head is not None or not there.missing or lane.node in nodes or reached.is_complete(lane)
        first, after = (None, None) if head is None else (head.first, head.next)
        found.append(LaneLag(str(lane), at, first, after, is_known))
    return Lags(found, there.missing)


def _reached(checkpoint: Place) -> Offsets:
    _, written = last_offsets(checkpoint)
    try:
        sources = [Offsets.from_json(it) for it in written if it is not None]
    except BadOption as error:
        raise PipeFailed(f"{checkpoint}: {error}") from None
    lanes = {lane: place for it in sources for lane, place in it.lanes.items()}
    closed = {lane: place for it in sources for lane, place in it.closed.items()}
    return Offsets(lanes, closed=closed)


def cluster_of(source: From) -> Cluster:
    options = source_options(source.as_options())
    return Cluster(options, Http(options.access))


def set_offsets(checkpoint: Place, lanes: Mapping[str, int]) -> None:
    """Create a checkpoint as if a batch had ended at these offsets. Raises PipeFailed.

    An existing checkpoint is never changed: its sink knows the numbers of its batches, and would take batches with
    these numbers for repeats.
    """
    if names_in(checkpoint):
        raise PipeFailed(f"{checkpoint} already exists: name a new folder, and a new table or query to go with it")
    for lane, place in lanes.items():
        try:
            Lane.parse(lane)
        except BadOption as error:
            raise PipeFailed(str(error)) from None
        if place < 0:
            raise PipeFailed(f"{lane}: a sequence is at least 0, not {place}")
    offset = Offsets({Lane.parse(lane): place for lane, place in lanes.items()}, initial=True)
    make_checkpoint_at(checkpoint, str(uuid.uuid4()), offset.to_json())
