"""The file of users: lines of `name:scrypt$<N>$<r>$<p>$<salt>$<hash>`, as `python -m nsqadmin.accounts NAME` writes."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from getpass import getpass
from typing import Final, Self

from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, argument, parsed_by, run_command

_N: Final = 1 << 14
_R: Final = 8
_P: Final = 1
_MOST_MEMORY: Final = 64 << 20
_KEPT: Final = 1000  # correct passwords to remember, so that we needn't hash them again


class BadAccounts(ValueError):
    """The file is invalid. The message says why, without quoting a hash."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The scrypt hash of a password, with its parameters."""

    n: int
    r: int
    p: int
    salt: bytes
    key: bytes

    @classmethod
    def of(cls, password: str) -> Self:
        salt = secrets.token_bytes(16)
        return cls(_N, _R, _P, salt, _derived(password, salt, _N, _R, _P))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the output of `str(secret)`. Raise ValueError."""
        word, n, r, p, salt, key = text.split("$")
        if word != "scrypt":
            raise ValueError("not scrypt")
        return cls(int(n), int(r), int(p), b64decode(salt, validate=True), b64decode(key, validate=True))

    def __str__(self) -> str:
        return f"scrypt${self.n}${self.r}${self.p}${b64encode(self.salt).decode()}${b64encode(self.key).decode()}"

    def is_of(self, password: str) -> bool:
        """Return True if this is the password. This takes about 50 ms, so don't call it on the event loop."""
        return hmac.compare_digest(self.key, _derived(password, self.salt, self.n, self.r, self.p))


def _derived(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=32)


def parse_accounts(text: str) -> Mapping[str, Secret]:
    """Parse the users and their secrets. Raise BadAccounts."""
    accounts: dict[str, Secret] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, secret = line.strip().partition(":")
        try:
            if not colon or not name:
                raise ValueError("no name")
            accounts[name] = Secret.parse(secret)
        except ValueError:
            raise BadAccounts(
                f"line {number}: expected name:scrypt$..., as `python -m nsqadmin.accounts NAME` writes it"
            ) from None
    if not accounts:
        raise BadAccounts("no users in it")
    return accounts


def read_accounts(path: str) -> Mapping[str, Secret]:
    try:
        with open(path, encoding="utf-8") as file:
            return parse_accounts(file.read())
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to read --auth-file ({path}) - {error}") from error


class Accounts:
    """Checks passwords. A correct one is remembered, as a digest under a key of this process."""

    def __init__(self, accounts: Mapping[str, Secret]) -> None:
        self._accounts = accounts
        self._key = secrets.token_bytes(32)
        self._nobody = Secret.of(secrets.token_hex(16))
        self._right: dict[bytes, str] = {}

    def known(self, user: str, password: str) -> bool:
        """Return True if this pair was correct before. Takes hardly any time."""
        return self._right.get(self._digest(user, password)) == user

    def check(self, user: str, password: str) -> bool:
        """Return True if the password is correct. Call it in a thread, because it hashes.

        It takes just as long for an unknown user, so that its time doesn't reveal which users exist.
        """
        right = self._accounts.get(user, self._nobody).is_of(password) and user in self._accounts
        if right:
            if len(self._right) >= _KEPT:
                self._right.clear()
            self._right[self._digest(user, password)] = user
        return right

    def _digest(self, user: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{user}:{password}".encode("utf-8", "surrogateescape"), "sha256")


def _name(text: str) -> str:
    if ":" in text:
        raise ValueError("must not have a colon")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOptions:
    name: str = argument("of the user", kind=parsed_by(_name, "NAME"))


def main() -> int:
    account = Command(
        table=AccountOptions,
        run=_write_line,
        about="Prints the line of a user. Reads the password from the terminal or from stdin.",
    )
    return run_command(account, sys.argv[1:], "python -m nsqadmin.accounts")


def _write_line(asked: AccountOptions) -> int:
    password = getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        sys.stderr.write("the password is empty\n")
        return 2
    sys.stdout.write(f"{asked.name}:{Secret.of(password)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
