"""Runs of pytest inside a test."""

from __future__ import annotations

import pytest


def with_plugins(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have pytests that are started load only these plugins: all that are installed take two seconds of the processor."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", ",".join(names))
