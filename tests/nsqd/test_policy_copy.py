"""A broken policy file at the start: the last valid copy in the data path, and when there is none that may be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqcommon.startup import StartupError
from nsqd.log.files import Files
from nsqd.policy.policy_file import KeptCopy, PolicyFile
from nsqd.policy_copy import POLICY_JSON, read_copy, write_copy

GOOD = '[[policy]]\nack = "synced"\n'
BAD = '[[policy]]\nack = "never"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(GOOD)
    return path


def started(file: Path) -> PolicyFile:
    """Start as nsqd does, with the folder of the file as the data path."""
    policy = PolicyFile(str(file), copy=read_copy(Files(), file.parent), clock=lambda: 7)
    policy.save_copies_with(lambda copy: write_copy(Files(), file.parent, copy))
    return policy


@pytest.mark.parametrize("content", [BAD.encode(), b"\xff", None])
def test_a_file_that_cannot_be_used_is_replaced_by_its_copy(file: Path, content: bytes | None) -> None:
    before = started(file).content
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    policy = started(file)
    assert policy.error
    assert (policy.content.is_copy, policy.content.digest, policy.content.read_at) == (True, before.digest, 7)


def test_without_a_copy_a_broken_file_is_refused(file: Path) -> None:
    file.write_text(BAD)
    with pytest.raises(StartupError, match="must be one of"):
        started(file)


def test_a_copy_of_another_file_is_no_copy_of_this_one(file: Path) -> None:
    started(file)
    with pytest.raises(StartupError, match="no such file"):
        started(file.with_name("polcy.toml"))


@pytest.mark.parametrize("spoil", [b"", b"{", b"\x00" * 100])
def test_a_damaged_copy_is_none(file: Path, spoil: bytes) -> None:
    started(file)
    (file.parent / POLICY_JSON).write_bytes(spoil)
    file.write_text(BAD)
    with pytest.raises(StartupError, match="must be one of"):
        started(file)


def test_a_copy_that_this_version_does_not_understand_is_none(file: Path) -> None:
    write_copy(Files(), file.parent, KeptCopy(str(file), BAD, 1))
    file.write_text("odd")
    with pytest.raises(StartupError):
        started(file)


def test_a_start_that_changes_nothing_writes_nothing(file: Path) -> None:
    started(file)
    written: list[KeptCopy] = []

    def keep(copy: KeptCopy) -> bool:
        written.append(copy)
        return True

    PolicyFile(str(file), copy=read_copy(Files(), file.parent)).save_copies_with(keep)
    assert written == []


def test_a_broken_file_does_not_replace_the_copy(file: Path) -> None:
    started(file)
    file.write_text(BAD)
    started(file)
    copy = read_copy(Files(), file.parent)
    assert copy is not None
    assert copy.text == GOOD


def test_a_disk_that_refuses_the_copy_does_not_keep_nsqd_from_starting(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = PolicyFile(str(file))
    policy.save_copies_with(lambda copy: write_copy(Files(), file.parent / "gone", copy))
    assert "failed to save a copy of the policy file" in caplog.text


def test_a_copy_that_the_disk_refused_is_written_when_it_takes_it(file: Path) -> None:
    policy = PolicyFile(str(file))
    policy.save_copies_with(lambda copy: write_copy(Files(), file.parent / "gone", copy))
    policy.save_copies_with(lambda copy: write_copy(Files(), file.parent, copy))
    assert read_copy(Files(), file.parent) is not None
