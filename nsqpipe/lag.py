"""`nsqpipe lag` and `offsets`: how far a checkpoint is behind the logs, and where it stands. No Spark is started."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqpipe.checkpoints import add_first_batch, checkpointed, make_checkpoint
from nsqpipe.failures import PipeFailed
from nsqpipe.storage import names_in
from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Head, Lane, Offsets
from pyspark_nsq.options import source_options

if TYPE_CHECKING:
    from nsqpipe.sources import From
    from pyspark_nsqtable.places import Place


@dataclass(frozen=True, slots=True)
class LaneLag:
    lane: str
    reached: int | None  # None: the checkpoint does not know it yet
    first: int | None  # None: no nsqd has it any more
    next: int | None

    @property
    def behind(self) -> int:
        """Messages that are still to be read."""
        if self.next is None:
            return 0
        return max(0, self.next - max(self.reached or 0, self.first or 0))

    @property
    def lost(self) -> int:
        """Messages that retention has removed before they were read."""
        return 0 if self.first is None or self.reached is None else max(0, self.first - self.reached)


def lags(source: From, checkpoint: Place) -> list[LaneLag]:
    _, offsets = checkpointed(checkpoint)
    reached = {lane: place for found in offsets for lane, place in found.items()}
    heads = {str(lane): head for lane, head in heads_of(source).items()}
    return [_lag(lane, reached.get(lane), heads.get(lane)) for lane in sorted({*reached, *heads})]


def _lag(lane: str, reached: int | None, head: Head | None) -> LaneLag:
    return LaneLag(lane, reached, None if head is None else head.first, None if head is None else head.next)


def cluster_of(source: From) -> Cluster:
    options = source_options(source.as_options())
    return Cluster(options, Http(options.access))


def heads_of(source: From) -> dict[Lane, Head]:
    try:
        return cluster_of(source).heads()
    except NsqError as error:
        raise PipeFailed(str(error)) from None


def set_offsets(checkpoint: Place, lanes: Mapping[str, int]) -> None:
    """Makes a new checkpoint whose first batch begins there: as if a batch had ended at these offsets.

    An existing checkpoint is left alone: its sink has counted its batches, and would take the next ones for known.
    """
    if names_in(checkpoint):
        raise PipeFailed(f"{checkpoint} is there already: name a new folder, and a new table or query to go with it")
    for lane, place in lanes.items():
        try:
            Lane.parse(lane)
        except BadOption as error:
            raise PipeFailed(str(error)) from None
        if place < 0:
            raise PipeFailed(f"{lane}: a sequence is at least 0, not {place}")
    offset = Offsets({Lane.parse(lane): place for lane, place in lanes.items()}, initial=True)
    make_checkpoint(checkpoint, str(uuid.uuid4()))
    add_first_batch(checkpoint, offset.to_json())
