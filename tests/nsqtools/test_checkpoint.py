"""The file that records how far a replay has come."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from nsqcommon.startup import StartupError
from nsqtools.checkpoint import RemainingRange, ReplayCheckpoint
from nsqtools.command import ToolFailed
from nsqtools.history import parse_position

CHECKPOINT = ReplayCheckpoint("t", "u", 7, {"node": RemainingRange("log", 3, 9)})


def test_what_is_saved_is_read_again_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert ReplayCheckpoint.load(path) is None
    ReplayCheckpoint("t", "u", 1, {}).save(path)
    CHECKPOINT.save(path)
    assert ReplayCheckpoint.load(path) == CHECKPOINT
    assert [it.name for it in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"places": {"n": {}}}', '{"places": 3}', '{"places": {}}'])
def test_an_invalid_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(ToolFailed, match=r"checkpoint is not a checkpoint of nsq_replay"):
        ReplayCheckpoint.load(path)


def test_a_checkpoint_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"cannot read checkpoint .*: Is a directory"):
        ReplayCheckpoint.load(tmp_path)


NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("17", "17"),
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00.25+01:00", "2026-03-01T12:00:00.25+01:00"),
        ("1h", "2026-03-01T11:00:00Z"),
        ("-1h", "2026-03-01T11:00:00Z"),
        ("250ms", "2026-03-01T11:59:59.750000Z"),
    ],
)
def test_places(text: str, place: str) -> None:
    assert parse_position("from", text, NOW) == place


@pytest.mark.parametrize("text", ["", "noon", "2026-03-01", "2026-03-01T12:00:00", "1.5", "٣", "-3", "9" * 5000])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(StartupError, match=r"^--to should be earliest, latest, a sequence, "):
        parse_position("to", text, NOW)
