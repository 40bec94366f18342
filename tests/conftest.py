"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["pytester"]

# A slow machine is no failure. In CI the examples are the same each time, so that a red run is about the change;
# elsewhere they are new each time, which is where new failures are to be found.
settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("suite")
