from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from nsqcommon.logs import OUR_PACKAGES


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)
