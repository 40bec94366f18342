"""Finds where the messages of a batch start, without walking from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from nsqcommon.wire.log_record import message_offsets

_FEW: Final = 32  # messages, for which walking is as fast


def find_offsets(payload: bytes, count: int) -> Sequence[int] | None:
    """Return what `message_offsets` returns, at a fifth of its cost where bodies are texts of different sizes.

    A payload is `(size:4, body) * count`. A size below 65,536 begins with two zero bytes, and a text has no zero bytes,
    so two of them should mark the start of a message. This is a guess until it is checked that each message ends where
    the next one starts; then it is as certain as the result of a walk. Where the guess fails, `message_offsets` does
    the walk.
    """
    if count < _FEW:
        return message_offsets(payload, count)
    data = np.frombuffer(payload, np.uint8)
    is_zero = data == 0
    pairs = np.flatnonzero(is_zero[:-1] & is_zero[1:])
    starts = pairs[np.flatnonzero(np.diff(pairs, prepend=-2) > 1)]  # sizes below 256 begin with three zero bytes
    if len(starts) != count or starts[-1] + 4 > len(payload):
        return message_offsets(payload, count)
    sizes = data[starts + 2].astype(np.int64) << 8 | data[starts + 3]
    offsets = np.append(starts, len(payload))
    if offsets[0] or not np.array_equal(starts + 4 + sizes, offsets[1:]):
        return message_offsets(payload, count)
    return cast(Sequence[int], offsets)  # an array, which `RowBuilder` adds up as such
