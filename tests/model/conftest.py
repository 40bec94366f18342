"""`MODEL_SLICES=1` has the models do one thing in each slice of long work, where a slice usually has thousands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.slices import MODEL_SLICES, slices_of


@pytest.fixture(autouse=True, scope="session")
def small_slices() -> Iterator[None]:
    if MODEL_SLICES:
        with slices_of(MODEL_SLICES):
            yield
    else:
        yield
