"""Decides which part of a batch a table still lacks: all decisions of landing, without a table or a file.

A lane is one log of one topic on one node, `<node>/<topic>/<log>`. A table's *end* of a lane is a sequence: the table
has all messages before it, from where the lane began in this table. A batch brings a *span* of a lane: messages
[begin, end). What happens follows from the two:

| the table's end `t`                  | what happens                                                            |
| ------------------------------------ | ----------------------------------------------------------------------- |
| unknown, and the span opens the lane | the span is added: the lane begins here                                 |
| unknown, and it does not             | refused: the query landed earlier messages in another table, or in one  |
|                                      | that was removed                                                        |
| t == begin                           | the span is added                                                       |
| end <= t                             | nothing is added: the table has the span                                |
| begin < t < end                      | [t, end) is added: the table has the rest                               |
| t < begin                            | refused: [t, begin) would be missing for ever                           |

A span *opens* a lane if the query has read nothing of the lane before. So neither a second writer, nor a checkpoint
that is lost, old, or of another query, can duplicate a row or leave one out unnoticed.

For example, a table has landed [0, 100) of a lane, and its checkpoint is lost. The new query reads from the beginning
and brings the span [0, 250), which opens the lane: the table adds [100, 250). Had the new query begun at `latest`, at
200, it would be refused, because [100, 200) would be missing.

A table keeps its ends as numbers under names, in the same commit as the rows: Delta as application transactions,
Iceberg as table properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

ACCOUNTED: Final = "nsq/ends"  # name in every table whose ends account for all of its rows


Numbers = Callable[[str], int | None]  # returns the number that a table keeps under a name


class Refused(Exception):
    """Rows would be missing, or we can't rule it out."""


@dataclass(frozen=True, slots=True)
class Span:
    """Messages [begin, end) of a lane."""

    lane: str
    begin: int
    end: int
    opens: bool = False


def application(lane: str, of: str = "") -> str:
    """Return the name under which a table keeps its end of a lane.

    A quarantine may serve several tables, so the names of its ends contain the id of their table, `of`.
    """
    return f"nsq/{of}/{lane}" if of else f"nsq/{lane}"


def judgement(lane: str, of: str) -> str:
    """Return the name of the fingerprint that judged the messages before a quarantine's end of a lane."""
    return f"{application(lane, of)}/judge"


def known_ends(
    lanes: Iterable[str], table: Numbers | None, *, of: str = "", beside: Numbers | None = None
) -> dict[str, int | None]:
    """Return a table's end of each lane; None for a lane that it doesn't have.

    For a quarantine, `of` and `beside` are the id and the numbers of its table. A quarantine goes at least as far as
    its table, because its own ends only change with batches that have bad rows.
    """
    found: dict[str, int | None] = {}
    for lane in lanes:
        ends = [it(application(lane, id)) for it, id in ((table, of), (beside, "")) if it is not None]
        found[lane] = max((end for end in ends if end is not None), default=None)
    return found


def ahead_and_judged_otherwise(
    table: Numbers, quarantine: Numbers, lanes: Iterable[str], of: str, judge: int
) -> tuple[str, int] | None:
    """Return a lane in which a quarantine is ahead of its table and was filled by another `judge`, with its end there.

    A crash between the two commits leaves the quarantine ahead. If the next run has the same decoder and rules, it
    would put the same rows there, so nothing is missing. With others, some rows in the quarantine would also be landed,
    and some newly failing rows would be in neither of the two.
    """
    for lane in sorted(set(lanes)):
        end, ahead = table(application(lane)), quarantine(application(lane, of))
        if ahead is None or (end is not None and ahead <= end):
            continue
        if quarantine(judgement(lane, of)) != judge:
            return lane, ahead
    return None


def joined(spans: Iterable[Span]) -> dict[str, Span]:
    """Join the spans covered by a batch's tasks, for each lane.

    Raises Refused if a piece in the middle is missing.
    """
    found: dict[str, Span] = {}
    for span in sorted(spans, key=lambda it: (it.lane, it.begin, it.end)):
        before = found.get(span.lane)
        if before is None:
            found[span.lane] = span
        elif before.end == span.begin:
            found[span.lane] = Span(span.lane, before.begin, span.end, before.opens)
        else:
            raise Refused(
                f"lane {span.lane}: the tasks brought [.., {before.end}) and [{span.begin}, ..), which do not join"
            )
    return found


def first_lacking(span: Span, end: int | None) -> int:
    """Return the first sequence of the span that a table with this end lacks; `span.end` if it lacks nothing.

    This is for a task, which may have a later part of the batch's span. Only `new_end` can say if the whole batch joins
    the table.
    """
    return span.begin if end is None else min(max(span.begin, end), span.end)


def new_end(span: Span, end: int | None) -> int:
    """Return the table's end of the lane after adding the missing part of a batch's span. Raises Refused."""
    if end is None and not span.opens:
        raise Refused(
            f"lane {span.lane}: the batch goes on at {span.begin}, but the table has nothing of this lane: "
            "earlier messages were landed somewhere else, or the table was removed"
        )
    if end is not None and end < span.begin:
        raise Refused(
            f"lane {span.lane}: the batch begins at {span.begin}, but the table ends at {end}: "
            f"messages [{end}, {span.begin}) would be missing"
        )
    return span.end if end is None else max(end, span.end)


def advanced(spans: Mapping[str, Span], ends: Mapping[str, int | None]) -> dict[str, int]:
    """Return the ends that change when a table adds these spans.

    An empty span only makes its lane known. Raises Refused.
    """
    after = {lane: new_end(span, ends.get(lane)) for lane, span in spans.items()}
    return {lane: end for lane, end in after.items() if end != ends.get(lane)}
