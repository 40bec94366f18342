"""Python runs this at its start if PYTHONPATH has this folder: NSQ_PLANTED names bugs of the table, see planting.py."""

from __future__ import annotations

import os

from tests.planted.planting import NAME, bug_named, plant

for name in os.environ[NAME].split(";"):
    plant(bug_named(name))
