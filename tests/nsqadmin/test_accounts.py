"""The file of users."""

from __future__ import annotations

from io import StringIO

import pytest

from nsqadmin import accounts
from nsqadmin.accounts import Accounts, BadAccounts, Secret, parse_accounts


def test_who_shows_the_password_is_known_from_then_on() -> None:
    known = Accounts(parse_accounts(f"# people\nana:{Secret.of('correct')}\n"))
    assert not known.known("ana", "correct")
    assert known.check("ana", "correct")
    assert known.known("ana", "correct")
    assert not known.check("ana", "wrong")
    assert not known.known("ana", "wrong")
    assert not known.check("ben", "correct")


@pytest.mark.parametrize("text", ["", "ana", "ana:{SHA}abc", "ana:scrypt$1$2$3$4", ":scrypt$1$8$1$YQ==$YQ=="])
def test_what_is_no_account_is_refused(text: str) -> None:
    with pytest.raises(BadAccounts):
        parse_accounts(text)


# --- the command


def ask_for_line(monkeypatch: pytest.MonkeyPatch, *arguments: str, password: str = "s3cret\n") -> int:
    monkeypatch.setattr("sys.argv", ["accounts", *arguments])
    monkeypatch.setattr("sys.stdin", StringIO(password))
    return accounts.main()


def test_the_command_prints_a_line_of_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask_for_line(monkeypatch, "ana") == 0
    name, _, secret = capsys.readouterr().out.strip().partition(":")
    assert name == "ana"
    assert secret.startswith("scrypt$16384$8$1$")


@pytest.mark.parametrize("arguments", [[], ["a:b"], ["ana", "bob"], ["-x"]])
def test_the_command_refuses_what_is_no_name(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask_for_line(monkeypatch, *arguments) == 2
    assert capsys.readouterr().err.startswith("usage: python -m nsqadmin.accounts [flags] NAME\n")


def test_the_command_wants_a_password(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask_for_line(monkeypatch, "ana", password="\n") == 2
    assert capsys.readouterr().err == "the password is empty\n"
