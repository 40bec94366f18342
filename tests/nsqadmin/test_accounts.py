"""The file of users."""

from __future__ import annotations

import pytest

from nsqadmin.accounts import Accounts, BadAccounts, Secret, parse_accounts


def test_who_shows_the_password_is_known_from_then_on() -> None:
    accounts = Accounts(parse_accounts(f"# people\nana:{Secret.of('correct')}\n"))
    assert not accounts.known("ana", "correct")
    assert accounts.check("ana", "correct")
    assert accounts.known("ana", "correct")
    assert not accounts.check("ana", "wrong")
    assert not accounts.known("ana", "wrong")
    assert not accounts.check("ben", "correct")


@pytest.mark.parametrize("text", ["", "ana", "ana:{SHA}abc", "ana:scrypt$1$2$3$4", ":scrypt$1$8$1$YQ==$YQ=="])
def test_what_is_no_account_is_refused(text: str) -> None:
    with pytest.raises(BadAccounts):
        parse_accounts(text)
