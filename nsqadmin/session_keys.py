"""The file of keys that seal session cookies: one key a line, as `python -m nsqadmin.session_keys` writes it.

The first key seals new cookies, and every key opens them. So you rotate a key in three steps, each on all nsqadmins that
share sessions: append the new key, move it to the first line, and delete the old one an hour later.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from base64 import b64encode
from binascii import Error as NotBase64
from binascii import a2b_base64
from dataclasses import dataclass
from typing import Final

from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, run_command

_SIZE: Final = 32  # bytes of a key
_FORBIDDEN: Final = 0o037  # what the group and others may not do; the group may read, as Kubernetes' fsGroup needs
_MOST_OF_A_SECRET: Final = 64 * 1024  # bytes


class BadKeys(ValueError):
    """The file is invalid. The message says why, without quoting a key."""


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Parse the keys, the one that seals first. Raise BadKeys."""
    keys: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            key = a2b_base64(line.strip().encode("ascii"), strict_mode=True)
        except (NotBase64, UnicodeError):
            key = b""
        if len(key) != _SIZE:
            raise BadKeys(
                f"line {number}: expected {_SIZE} bytes in base64, as `python -m nsqadmin.session_keys` writes"
            )
        keys.append(key)
    if not keys:
        raise BadKeys("no key in it; `python -m nsqadmin.session_keys` writes one")
    if len(set(keys)) != len(keys):
        raise BadKeys("the same key is in it twice")
    return tuple(keys)


def read_keys(path: str) -> tuple[bytes, ...]:
    """Read the keys of --session-key-file. Without a file, return a key that nsqadmin forgets when it ends."""
    if not path:
        return (secrets.token_bytes(_SIZE),)
    try:
        return parse_keys(_private_text(path))
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to read --session-key-file ({path}) - {error}") from error


def read_client_secret(path: str) -> str:
    """Read --oidc-client-secret-file; "" without a file. Raise StartupError."""
    if not path:
        return ""
    try:
        secret = _private_text(path).strip()
        if not secret or not secret.isprintable():
            raise ValueError("expected one line with the secret")
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to read --oidc-client-secret-file ({path}) - {error}") from error
    return secret


def _private_text(path: str) -> str:
    """Read a file that only its owner and group may read. Raise OSError or ValueError."""
    with open(path, encoding="utf-8") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)  # of the file that we read, not of another one by its name
        if mode & _FORBIDDEN:
            raise ValueError(f"its mode is {mode:04o}, so others could read or change it: chmod 0600 {path}")
        return file.read(_MOST_OF_A_SECRET)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """The command has no arguments."""


def main() -> int:
    key = Command(table=KeyOptions, run=_write_key, about="Prints a new line for --session-key-file.")
    return run_command(key, sys.argv[1:], "python -m nsqadmin.session_keys")


def _write_key(_asked: KeyOptions) -> int:
    sys.stdout.write(b64encode(secrets.token_bytes(_SIZE)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
