"""Python runs this at its start if PYTHONPATH has this folder: NSQ_PLANTED names a bug of the table, see planting.py."""

from __future__ import annotations

import os

from tests.planted.planting import NAME, bug_named, plant

plant(bug_named(os.environ[NAME]))
