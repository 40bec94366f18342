"""What tests of the documents share."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.docs import world


@pytest.fixture(scope="session")
def machine() -> None:
    """Skip the test where a page can have no machine of its own."""
    tried = subprocess.run([*world.unshare(), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        if os.environ.get("CI") and os.getuid() == 0:
            pytest.fail(f"CI has to allow namespaces: {tried.stderr}")
        pytest.skip(f"a page needs a machine of its own, and this one has no namespaces for us: {tried.stderr.strip()}")
