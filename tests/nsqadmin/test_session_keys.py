"""The file of session keys, and that of the client's secret."""

from __future__ import annotations

import sys
from base64 import b64encode
from pathlib import Path

import pytest

from nsqadmin.session_keys import BadKeys, main, parse_keys, read_client_secret, read_keys
from nsqcommon.startup import StartupError

A, B = bytes([1]) * 32, bytes([2]) * 32


def line(key: bytes) -> str:
    return b64encode(key).decode()


def test_the_keys_are_in_the_order_of_the_file() -> None:
    assert parse_keys(f"# of 2026\n{line(B)}\n\n  {line(A)}  \n") == (B, A)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no key in it"),
        ("# none\n", "no key in it"),
        (line(A[:31]), "line 1: expected 32 bytes in base64"),
        (f"{line(A)}\nsecret", "line 2: expected"),
        (f"{line(A)}é", "line 1: expected"),
        (f"{line(A)}\n{line(A)}", "twice"),
    ],
)
def test_other_files_are_refused_without_quoting_a_key(text: str, reason: str) -> None:
    with pytest.raises(BadKeys, match=reason) as refused:
        parse_keys(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("read", [read_keys, read_client_secret])
@pytest.mark.parametrize(
    ("mode", "is_fine"), [(0o600, True), (0o440, True), (0o640, True), (0o644, False), (0o660, False)]
)
def test_a_file_that_others_can_read_or_change_is_refused(
    tmp_path: Path, read: object, mode: int, is_fine: bool
) -> None:
    path = tmp_path / "secret"
    path.write_text(line(A))
    path.chmod(mode)
    assert callable(read)
    if is_fine:
        assert read(str(path)) in ((A,), line(A))
    else:
        with pytest.raises(StartupError, match=f"its mode is {mode:04o}, so others could .*chmod 0600"):
            read(str(path))


def test_a_secret_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("\n")
    path.chmod(0o600)
    with pytest.raises(StartupError, match="expected one line"):
        read_client_secret(str(path))
    with pytest.raises(StartupError, match="No such file"):
        read_client_secret(str(tmp_path / "none"))
    assert read_client_secret("") == ""


def test_the_command_writes_a_new_line_each_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["session_keys"])
    assert [main(), main()] == [0, 0]
    assert len(parse_keys(capsys.readouterr().out)) == 2


def test_without_a_file_each_start_has_a_key_of_its_own() -> None:
    assert read_keys("") != read_keys("")
