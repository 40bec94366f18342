"""`MODEL_SLICES=1` has the models do one thing in each slice of long work, where a slice usually has thousands."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests.support import hangs
from tests.support.slices import MODEL_SLICES, slices_of


@pytest.fixture(autouse=True)
def limited_processor_time(pytestconfig: pytest.Config) -> Iterator[None]:
    """End the run, and show where, when a test has computed for too long.

    Models only compute, and beside busy processes that may take fifty times as long as it does alone.
    """
    hangs.lift_limit()  # that limit counts the time that passes
    hangs.begin_limit(pytestconfig.stash[fault_handler_stderr_fd_key], signal.ITIMER_PROF)
    yield
    hangs.lift_limit(signal.ITIMER_PROF)


@pytest.fixture(autouse=True, scope="session")
def small_slices() -> Iterator[None]:
    if MODEL_SLICES:
        with slices_of(MODEL_SLICES):
            yield
    else:
        yield
