from __future__ import annotations

import time

from nsqjobs.celery.transport import Bell
from tests.support.open_files import only_high_descriptors

LIMIT = 100.0


def test_a_bell_is_heard_in_a_process_with_very_many_open_files() -> None:
    with only_high_descriptors():
        bell = Bell()
        began = time.monotonic()
        bell.wait(0.01)
        bell.ring()
        bell.wait(LIMIT)
        assert time.monotonic() - began < LIMIT
        bell.close()
