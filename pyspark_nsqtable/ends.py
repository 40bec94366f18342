"""How far a table goes in each lane, and what of a batch it still lacks: all decisions of landing, without a table or a file.

A lane is one log of one topic on one node, `<node>/<topic>/<log>`, and a table's *end* of it is the sequence before which the
table has everything, from where the lane began there. A batch brings a *span* of a lane, messages [begin, end). What follows
from the two:

| the table's end `t`           | what happens                                                           |
| ----------------------------- | ---------------------------------------------------------------------- |
| unknown, and the span opens   | taken: the lane begins here                                            |
| unknown, and it does not open | refused: who brings it has landed [0, begin) elsewhere, or the table   |
|                               | that has it was removed                                                |
| t == begin                    | taken                                                                  |
| end <= t                      | it is there                                                            |
| begin < t < end               | what begins at t is taken, the rest is there                           |
| t < begin                     | refused: [t, begin) would be missing for ever                          |

A span *opens* a lane if nothing of the lane was read before it by whoever brings it. So a checkpoint that is lost, old or
another's, and a second writer, can neither double a row nor leave one out unseen.

A table keeps its ends as numbers under names, beside the rows and in the same commit: Delta as transactions of applications,
Iceberg as properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MARK: Final = "nsq/ends"  # an application that every table has whose rows are all accounted for by ends


Numbers = Callable[[str], int | None]  # what a table keeps under a name


class Refused(Exception):
    """Rows would be missing, or nobody can prove that none would be."""


@dataclass(frozen=True, slots=True)
class Span:
    """Messages [begin, end) of a lane."""

    lane: str
    begin: int
    end: int
    opens: bool = False


def application(lane: str, of: str = "") -> str:
    """Return the name under which a table keeps its end of a lane.

    A quarantine may serve several tables, and keeps its ends apart by the id of the table that they are `of`.
    """
    return f"nsq/{of}/{lane}" if of else f"nsq/{lane}"


def judgement(lane: str, of: str) -> str:
    """Return the name under which a quarantine keeps who has judged the messages before its end of a lane."""
    return f"{application(lane, of)}/judge"


def known_ends(
    lanes: Iterable[str], table: Numbers | None, *, of: str = "", beside: Numbers | None = None
) -> dict[str, int | None]:
    """Return how far a table goes, and None for a lane of which it has nothing.

    A quarantine, for which `of` and `beside` are its table's id and numbers, goes as far as that table at least.
    """
    found: dict[str, int | None] = {}
    for lane in lanes:
        ends = [it(application(lane, id)) for it, id in ((table, of), (beside, "")) if it is not None]
        found[lane] = max((end for end in ends if end is not None), default=None)
    return found


def ahead_and_judged_otherwise(
    table: Numbers, quarantine: Numbers, lanes: Iterable[str], of: str, judge: int
) -> tuple[str, int] | None:
    """Return a lane in which a quarantine is ahead of its table, with its end, where another `judge` has filled it.

    A crash between the two commits leaves it ahead. Whoever goes on with the same decoder and rules finds the same rows in it. By
    others, some of its rows would be landed as well, and some that fail now would be in neither table.
    """
    for lane in sorted(set(lanes)):
        end, ahead = table(application(lane)), quarantine(application(lane, of))
        if ahead is None or (end is not None and ahead <= end):
            continue
        if quarantine(judgement(lane, of)) != judge:
            return lane, ahead
    return None


def joined(spans: Iterable[Span]) -> dict[str, Span]:
    """What the tasks of a batch have covered together, for each lane. Raises where a piece in the middle is missing."""
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
    """The sequence from which on a table with this end lacks the span; `span.end` where it lacks nothing.

    This is for a task, which may have a later part of what a batch brings: whether the batch joins the table at all, only
    `new_end` can say.
    """
    return span.begin if end is None else min(max(span.begin, end), span.end)


def new_end(span: Span, end: int | None) -> int:
    """The table's end of the lane once it has taken what it lacks of a batch's span. Raises Refused."""
    if end is None and not span.opens:
        raise Refused(
            f"lane {span.lane}: the batch goes on at {span.begin}, and the table has nothing of this lane: "
            "what came before was landed somewhere else, or the table was removed"
        )
    if end is not None and end < span.begin:
        raise Refused(
            f"lane {span.lane}: the batch begins at {span.begin}, and the table ends at {end}: "
            f"messages [{end}, {span.begin}) would be missing"
        )
    return span.end if end is None else max(end, span.end)


def advanced(spans: Mapping[str, Span], ends: Mapping[str, int | None]) -> dict[str, int]:
    """The ends that change when a table takes these spans; an empty one only makes its lane known. Raises Refused."""
    after = {lane: new_end(span, ends.get(lane)) for lane, span in spans.items()}
    return {lane: end for lane, end in after.items() if end != ends.get(lane)}
