"""The shares of a batch's tasks for a table, and the check whether they join the table, in any format.

The driver asks the table for its ends, checks the batch against them here, and makes a commit that fails if the ends
have moved before it arrives. Formats only differ in that commit, and in where they keep the ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark_nsq.tables.ends import (
    Numbers,
    Refused,
    Span,
    advanced,
    ahead_and_judged_otherwise,
    first_lacking,
    joined,
)
from pyspark_nsq.tables.files import DataFile

SELECTS: Final = "nsq/select"  # marks a table filled with --select; only --select may append to it


class AnotherJob(Exception):
    """Another job lands in the table at the same time."""


class NotJoined(Exception):
    """The batch doesn't join the table's content, or we can't know the content."""


@dataclass
class Share:
    """One task's files for one table, the spans they cover, and the ends that the task saw."""

    spans: list[Span] = field(default_factory=list)
    ends: dict[str, int | None] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The micro-batch of a commit, and metadata to record with it."""

    query: str
    number: int
    told: Mapping[str, str]  # the metadata
    marks: Sequence[str] = ()  # names to set in the table permanently, like `SELECTS`


def lanes_of(shares: Sequence[Share]) -> list[str]:
    return sorted({span.lane for share in shares for span in share.spans})


def files_of(shares: Sequence[Share]) -> list[DataFile]:
    return [file for share in shares for file in share.files]


def new_ends(shares: Sequence[Share], ends: Mapping[str, int | None], name: str) -> dict[str, int]:
    """Return the ends that change when a table with these ends adds the tasks' files.

    Raises NotJoined if rows would be missing, and AnotherJob if the tasks haven't written exactly the part that the
    table lacks now. `name` is the table's, for the errors.
    """
    for share in shares:
        for span in share.spans:
            if span.lane not in share.ends:  # the task had no rows of this lane
                continue
            if first_lacking(span, share.ends[span.lane]) != first_lacking(span, ends[span.lane]):
                raise another_job(name, span.lane)
    try:
        return advanced(_joined(shares), ends)
    except Refused as refused:
        raise NotJoined(f"{name}: {refused}") from None


def are_there(shares: Sequence[Share], ends: Mapping[str, int | None]) -> bool:
    """Return True if a table with these ends has everything that the tasks have covered."""
    found = ((span, ends.get(lane)) for lane, span in _joined(shares).items())
    return all(end is not None and end >= span.end for span, end in found)


def _joined(shares: Sequence[Share]) -> dict[str, Span]:
    return joined(span for share in shares for span in share.spans)


def check_ahead(
    said: tuple[Numbers, Numbers], shares: Sequence[Share], *, of: str, judge: int, names: tuple[str, str]
) -> None:
    """Raise NotJoined if a quarantine is ahead of its table and was filled with another decoder or other rules.

    `said` has the numbers kept by the table and its quarantine, and `names` their names, for the error.
    """
    found = ahead_and_judged_otherwise(*said, lanes_of(shares), of, judge)
    if found is not None:
        lane, end = found
        raise NotJoined(
            f"{names[1]} is ahead of {names[0]}, as after a crash: messages before {end} of lane {lane} were judged by "
            "another decoder or other rules; run once more with those, or name another quarantine"
        )


def rows_without_ends(name: str) -> str:
    return (
        f"{name} has rows, but does not say which messages of which log they are, "
        "so it cannot be known whether a message is already there; name another table"
    )


def another_job(name: str, lane: str) -> AnotherJob:
    return AnotherJob(f"another job lands into {name}: it has added messages of lane {lane} meanwhile")
