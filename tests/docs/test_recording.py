"""The recorded quick start still goes as the picture shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from scripts.recording import CAST, record, shown_by

pytestmark = [
    pytest.mark.needs("curl"),
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="the documents tell of the ordinary installation"),
]

ROOT: Final = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("machine")
def test_the_quick_start_shows_what_the_recording_shows() -> None:
    now = record(pause=0.0)
    assert shown_by(now) == shown_by(CAST.read_text(encoding="utf-8")), "run scripts/make-recording"
