"""Reads and writes the files of a query's checkpoint: its id, and the planned and committed batches.

Spark doesn't wait for the disk, so a power cut may leave a torn file. We report it as an error with its name, and never
guess from its content.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.lanes import Lane
from pyspark_nsq.reports import lanes_of
from pyspark_nsq.stores.storage import create_text, names_in, read_text, replace_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark_nsq.options import SourceOptions
    from pyspark_nsq.stores.places import Place

_HEADER: Final = "v1"  # first line of each file in Spark's logs of batches
_NO_OFFSET: Final = "-"  # stands for a source without an offset


def checkpointed(checkpoint: Place) -> tuple[int, list[dict[str, int]]]:
    """Return the last planned batch of a checkpoint, and each source's position at its end. Raises PipeFailed."""
    batch, offsets = last_offsets(checkpoint)
    return batch, [lanes_of(offset) for offset in offsets]


def last_offsets(checkpoint: Place) -> tuple[int, list[Any]]:
    """Return the last planned batch, and each source's offset as the source wrote it. Raises PipeFailed."""
    batches = planned_in(checkpoint)
    if not batches:
        raise PipeFailed(f"there is no checkpoint with offsets at {checkpoint}")
    return batches[-1], offsets_of(checkpoint, batches[-1])


def check_topics(lanes: Iterable[str], options: SourceOptions, checkpoint: str) -> None:
    """Raise PipeFailed for a checkpoint of another topic.

    Without this check, the source would report its lanes as lost, and suggest going on without them.
    """
    topics = {Lane.parse(lane).topic for lane in lanes}
    strange = topics - options.topics.among(topics)
    if strange:
        raise PipeFailed(
            f"the checkpoint {checkpoint} is for topic {', '.join(sorted(strange))}, and this job reads "
            f"{', '.join(options.topics.words)}: name the checkpoint that is this job's, or a new one with a new table"
        )


def query_in(checkpoint: Place) -> str:
    """Return the id of the checkpoint's query; empty if there is no checkpoint yet. Raises PipeFailed."""
    file = checkpoint.child("metadata")
    text = read_text(file)
    if text is None:
        return ""
    found = from_json(text, file)
    if not isinstance(found, dict) or not isinstance(found.get("id"), str):
        raise _torn(file)
    return str(found["id"])


def planned_in(checkpoint: Place) -> list[int]:
    """Return the numbers of the planned batches. Raises PipeFailed if batches are committed but none is planned."""
    planned = batches_in(checkpoint.child("offsets"))
    if not planned and committed_in(checkpoint):
        raise _torn(checkpoint.child("offsets"))
    return planned


def committed_in(checkpoint: Place) -> list[int]:
    return batches_in(checkpoint.child("commits"))


def offsets_of(checkpoint: Place, batch: int) -> list[Any]:
    """Return each source's position at the end of a planned batch. Raises PipeFailed."""
    file = checkpoint.child("offsets").child(str(batch))
    header, *rest = (read_text(file) or "").splitlines() or [""]
    if header != _HEADER or len(rest) < 2:  # a line about the batch, and one for each source
        raise _torn(file)
    return [None if line == _NO_OFFSET else from_json(line, file) for line in rest[1:]]


def make_checkpoint(checkpoint: Place, query: str) -> None:
    """Create a checkpoint for a query that hasn't planned a batch yet, unless there is one already."""
    create_text(checkpoint.child("metadata"), json.dumps({"id": query}))


def make_checkpoint_at(checkpoint: Place, query: str, offset: object) -> None:
    """Create a checkpoint for a query with one source, whose first batch ended at this offset.

    We write the commit before the plan, because Spark would run a batch that is planned but not committed. If this is
    interrupted between the two, `planned_in` refuses the checkpoint. If the id is missing, Spark chooses one.
    """
    about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    replace_text(checkpoint.child("commits").child("0"), f'{_HEADER}\n{{"nextBatchWatermarkMs":0}}')
    replace_text(checkpoint.child("offsets").child("0"), f"{_HEADER}\n{about}\n{json.dumps(offset)}")
    make_checkpoint(checkpoint, query)


def batches_in(folder: Place) -> list[int]:
    """Return the numbers of the batches in one of Spark's logs.

    Spark may have joined earlier ones in `<number>.compact`.
    """
    names = [name.removesuffix(".compact") for name in names_in(folder)]
    return sorted(int(it) for it in names if it.isdecimal())


def from_json(text: str, file: Place) -> Any:
    """Parse the text of a file. Raises PipeFailed, which names the file."""
    try:
        return json.loads(text)
    except ValueError:
        raise _torn(file) from None


def _torn(file: Place) -> PipeFailed:
    return PipeFailed(
        f"{file} is torn, or not what Spark writes: restore the checkpoint, or name a new one "
        "(landing into Delta then goes on where the table ends)"
    )
