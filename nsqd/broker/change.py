"""The entries of the journal: every change of a topic or channel, as a tuple of a word and its arguments.

For example, `("progress", "t", "c", 6, [1, 3])` moves the cursor of channel c of topic t to 6, and finishes 1 and 2.
The type checker checks the arguments of each word, and that each `match` covers all words.

We journal changes instead of state, so the cost doesn't grow with the number of waiting messages. Times are wall-clock
milliseconds, because they must outlive the process. H is a topic's high watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeGuard, get_args

TopicChange = (
    tuple[Literal["topic"], str]  # a topic is created, with H frozen at 0
    # all remembered keys are from this sequence on; ~sequence (negative): there is none yet
    | tuple[Literal["keys"], str, int]
    | tuple[Literal["keyless"], str, Sequence[int]]  # the publishes that start at these sequences have lost their keys
    | tuple[Literal["drop"], str]  # a topic is deleted
    | tuple[Literal["learned"], str]  # its channels on other nodes are known; until then H is frozen
    | tuple[Literal["snapshot"], str]  # forget all earlier changes of this topic
    | tuple[Literal["pause"], str, bool]
    | tuple[Literal["freeze"], str, int]  # H stays here, because the topic is paused or has no channel
    | tuple[Literal["flow"], str]  # H follows the tail again
    # start, count, delay_ms: an early deferral beyond H; its delay starts when H passes it
    | tuple[Literal["park"], str, int, int, int]
    | tuple[Literal["cancel"], str, int]  # this message beyond H is never released to the channels
    # now_ms: all parked messages are released to the channels, and their delays start now; 0.1.0 doesn't know this word
    | tuple[Literal["start"], str, int]
    # all parked and cancelled messages were released (as `start`, `defer` or `skip`) or discarded
    | tuple[Literal["unpark"], str]
    | tuple[Literal["cut"], str, int]  # nothing from this sequence on was ever written
    | tuple[Literal["doubt"], str, int]  # changes were lost here: messages from this sequence on may have been cut
    # start, count, due_ms: released to all channels as deferred; their cursors skip it
    | tuple[Literal["defer"], str, int, int, int]
    # channel, copy, replaced (-1: none), due_ms: the log gets an edited copy next, which waits in this channel instead of
    # the replaced message; the other channels skip it. A `cut` before the copy undoes this. An older version ignores this
    # word, and reads the `skip`, `progress` and `wait` that follow it.
    | tuple[Literal["edit"], str, str, int, int, int]
    | tuple[Literal["channel"], str, str, int]  # a channel is created, with its cursor here
    | tuple[Literal["nochannel"], str, str]  # a channel is deleted
)
ChannelChange = (
    tuple[Literal["hold"], str, str, bool | str]  # paused or not; a text is the reason of an automatic pause
    | tuple[Literal["empty"], str, str, int]  # everything before this cursor is finished
    | tuple[Literal["seek"], str, str, int]  # the channel is emptied and its cursor moved here, possibly backwards
    # cursor, end, [a, b, c, d ...] (skip [a, b), [c, d) ...), [sequence, attempts, due_ms ...] (due_ms 0: now):
    # before `end`, these messages wait and all from the cursor on that aren't skipped; later ones are left alone
    | tuple[Literal["restore"], str, str, int, int, Sequence[int], Sequence[int]]
    | tuple[Literal["skip"], str, str, int, int]  # [start, end) is never delivered to this channel
    # [a, b, c, d ...]: the cursor is about to pass [a, b), [c, d) ... without delivering them, because of their groups;
    # a `progress` follows in the same frame. An older version ignores this, so it takes them for delivered once.
    | tuple[Literal["held"], str, str, Sequence[int]]
    # cursor, [a, b, c, d ...]: the cursor is here, and [a, b), [c, d) ... were finished
    | tuple[Literal["progress"], str, str, int, Sequence[int]]
    # attempts, sequences: these were delivered again; it was attempt number `attempts`
    | tuple[Literal["try"], str, str, int, Sequence[int]]
    # [sequence, attempts, due_ms ...]; due_ms 0: now; 65536 attempts: see ledger.py
    | tuple[Literal["wait"], str, str, Sequence[int]]
    # [reason, who ...], [sequence, id, attempts, time, note ...]; `note` is the index of a (reason, who) in the first
    | tuple[Literal["bury"], str, str, Sequence[str], Sequence[int]]
    # [a, b, c, d ...], [a, b ...]: these are edited copies for this channel, and they replaced the others
    | tuple[Literal["edited"], str, str, Sequence[int], Sequence[int]]
    | tuple[Literal["job"], str, str, Sequence[object]]  # see `BuriedJob` in buried_queue.py; empty: the job is over
)
Change = TopicChange | ChannelChange

_SHAPES = frozenset([(get_args(get_args(change)[0])[0], len(get_args(change))) for change in get_args(Change)])


def is_known(change: Sequence[object]) -> TypeGuard[Change]:
    """Return whether this is one of the words above, with the right number of arguments.

    The journal of another version may have other words.
    """
    return (change[0], len(change)) in _SHAPES
