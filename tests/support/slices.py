"""Makes the slices of long work as small as they can be: nothing may depend on how large they are."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

# How much of something is done in one turn. Constants that bound a look inside a turn, for example, are not here.
SLICES: Final[Mapping[str, Sequence[str]]] = {
    "nsqd.broker.channel": (
        "_BURIED_AT_ONCE",
        "_DEFERRED_AT_ONCE",
        "_DROPPED_IN_TURN",
        "_DUE_AT_ONCE",
        "_EXPIRED_AT_ONCE",
        "_PASSED_AT_ONCE",
        "_UNPACKED_AT_ONCE",
        "_UNPACKED_IN_TURN",
    ),
    "nsqd.broker.groups": ("_LISTED_AT_ONCE", "_PASSED_IN_TURN", "_SORTED_AT_LEAST", "_SORTED_IN_TURN"),
    "nsqd.broker.in_flight": ("_LOOKED_AT",),
    "nsqd.broker.reclaimer": ("MANY", "FREED_IN_TURN"),
    "nsqd.broker.ledger": ("_DEFERRED_ONE_BY_ONE",),
    "nsqd.broker.deferred_queue": (
        "_BLOCK",
        "_BLOCKS_AT_ONCE",
        "_UNPACKED_AT_ONCE",
        "_WALKED_AT_ONCE",
        "PASSED_OVER",
    ),
    "nsqd.broker.retry_queue": ("_LEFT_OVER_AT_ONCE", "PASSED_OVER"),
    "nsqd.broker.cancel_and_reschedule": ("SLICE",),
    "nsqd.broker.topic": ("_TOLD_ONE_BY_ONE",),
}

MODEL_SLICES: Final = int(os.environ.get("MODEL_SLICES", "0"))  # for tests/model; 0: as they are


@contextmanager
def slices_of(size: int) -> Iterator[None]:
    """Have this process do so much in each slice. This works only with the pure Python core."""
    with ExitStack() as patched:
        for module, names in SLICES.items():
            for name in names:
                patched.enter_context(patch.object(importlib.import_module(module), name, size))
        yield
