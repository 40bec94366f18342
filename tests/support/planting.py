"""Starts a broker with a bug that a checker has to find: see `planted/sitecustomize.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.process import PYTHONPATH

_FOLDER: Final = Path(__file__).with_name("planted")


def with_bug(name: str) -> Mapping[str, str]:
    """Return the environment for a broker that has this bug."""
    return {"PYTHONPATH": os.pathsep.join((str(_FOLDER), PYTHONPATH)), "NSQ_PLANTED": name}
