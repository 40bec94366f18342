"""Passwords in URLs, such as `--auth-http-address=http://user:secret@host/auth`: where text is shown, they are not.

They are masked where text leaves (lines of the log, `/config`, `/debug`, error answers), not where it is made: so an
error that quotes a URL needs no care of its own.
"""

from __future__ import annotations

import re
from typing import Final

# A user's name and a password up to the last @ before the path.
_USER_AND_PASSWORD: Final = re.compile(r"(://[^\s/?#:@]*):[^\s/?#]*@")
# The same in an address without `http://`, alone or behind its flag.
_BARE_USER_AND_PASSWORD: Final = re.compile(r"\A((?:--?[A-Za-z0-9-]+=)?[^\s/?#:@]*):[^\s/?#]*@")
_CREDENTIALS: Final = re.compile(r"(\A|://)[^\s/?#]*@")


def mask_passwords(text: str) -> str:
    """Return `text` with `xxxxx` for the passwords of all URLs in it, as Go's `URL.Redacted` has it."""
    return _USER_AND_PASSWORD.sub(r"\1:xxxxx@", text) if "://" in text else text


def mask_option(text: str) -> str:
    """Return `text`, the value of an option or a word of the command line, with its passwords masked.

    Unlike other text it may begin with an address without `http://`, as `--auth-http-address` takes it.
    """
    return _BARE_USER_AND_PASSWORD.sub(r"\1:xxxxx@", mask_passwords(text))


def without_credentials(url: str) -> str:
    """Return `url`, or an address without `http://`, without user and password."""
    return _CREDENTIALS.sub(r"\1", url)
