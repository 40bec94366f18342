"""The words of the journal: every change of a topic or a channel, as a tuple of a word and its arguments.

The type checker knows each word with its arguments, and every match has to cover all of them. The cost of keeping state
on disk depends on what changes, never on how much is waiting. Times are wall-clock milliseconds, because they outlive
the process. A topic's H is the sequence up to which its messages were handed to the channels.

Names come first: the topic's, and then the channel's if the change is about one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeGuard, get_args

TopicChange = (
    tuple[Literal["topic"], str]  # a topic begins, frozen at sequence 0
    | tuple[Literal["keys"], str, int]  # no remembered key lies before it; ~sequence: there was none up to it
    | tuple[Literal["keyless"], str, Sequence[int]]  # the publishes that begin here have lost their keys
    | tuple[Literal["drop"], str]  # and ends
    | tuple[Literal["learned"], str]  # its channels elsewhere are known; before this, H stands still
    | tuple[Literal["snapshot"], str]  # what follows replaces everything known of this topic
    | tuple[Literal["pause"], str, bool]
    | tuple[Literal["freeze"], str, int]  # H stands still here from now on (paused, or no channel left)
    | tuple[Literal["flow"], str]  # H follows the tail again
    # start, count, delay_ms: deferred beyond H; the delay starts when H moves on
    | tuple[Literal["park"], str, int, int, int]
    | tuple[Literal["cancel"], str, int]  # this message, which lies beyond H, is never handed over
    # now_ms: all that was parked or cancelled is handed over to all channels, and delays begin now; 0.1.0 has no such word
    | tuple[Literal["start"], str, int]
    | tuple[
        Literal["unpark"], str
    ]  # all that was parked or cancelled was handed over (as `start`, `defer` or `skip`) or emptied away
    | tuple[Literal["cut"], str, int]  # nothing at or after this sequence was ever written
    | tuple[Literal["doubt"], str, int]  # changes were lost here: sequences from this one on may have been cut
    # start, count, due_ms: handed over to all channels; cursors pass over it
    | tuple[Literal["defer"], str, int, int, int]
    | tuple[Literal["channel"], str, str, int]  # a channel begins, with its cursor here
    | tuple[Literal["nochannel"], str, str]  # and ends
)
ChannelChange = (
    tuple[Literal["hold"], str, str, bool | str]  # whether it is paused; if it was not a person, then why
    | tuple[Literal["empty"], str, str, int]  # everything before this cursor is finished, exceptions too
    | tuple[Literal["seek"], str, str, int]  # exceptions are dropped; the cursor stands here, perhaps further back
    # cursor, end, [a, b), [c, d) ... to skip, then sequence, attempts, due_ms (0: at once) and the next three ...:
    # so much waits before `end`, and nothing else; what lies at or behind `end` stays as it is
    | tuple[Literal["restore"], str, str, int, int, Sequence[int], Sequence[int]]
    | tuple[Literal["skip"], str, str, int, int]  # [start, end) is never delivered here
    | tuple[Literal["progress"], str, str, int, Sequence[int]]  # the cursor is here; [a, b), [c, d) ... were finished
    # attempts, sequences: delivered again, for the attempts-th time
    | tuple[Literal["try"], str, str, int, Sequence[int]]
    | tuple[Literal["wait"], str, str, Sequence[int]]  # sequence, attempts, due_ms (0: at once), and the next three ...
    # reason, who or what buried it, and the next two ...; then sequence, id, attempts, time, number of reason and who
    # in this list, and the next five ...
    | tuple[Literal["bury"], str, str, Sequence[str], Sequence[int]]
    | tuple[Literal["job"], str, str, Sequence[object]]  # see `Job` in buried_queue.py; empty: there is none any more
)
Change = TopicChange | ChannelChange

_SHAPES = frozenset([(get_args(get_args(change)[0])[0], len(get_args(change))) for change in get_args(Change)])


def is_known(change: Sequence[object]) -> TypeGuard[Change]:
    """Return whether this is one of the words above with the right number of arguments.

    A journal that another version has written may have others.
    """
    return (change[0], len(change)) in _SHAPES
