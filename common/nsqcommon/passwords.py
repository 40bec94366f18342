"""Masks passwords in URLs, such as `--auth-http-address=http://user:secret@host/auth`, in all text that we show.

We mask them where text leaves the process (log lines, `/config`, `/debug`, error responses), so it's safe to quote a
URL in an error.
"""

from __future__ import annotations

import re
from typing import Final

# A user name and a password. The password ends at the last @ before the path.
_USER_AND_PASSWORD: Final = re.compile(r"(://[^\s/?#:@]*):[^\s/?#]*@")
# The same in an address without `http://`, alone or after a flag.
_BARE_USER_AND_PASSWORD: Final = re.compile(r"\A((?:--?[A-Za-z0-9-]+=)?[^\s/?#:@]*):[^\s/?#]*@")
_CREDENTIALS: Final = re.compile(r"(\A|://)[^\s/?#]*@")


def mask_passwords(text: str) -> str:
    """Return `text` with `xxxxx` in place of the passwords of all URLs in it, as Go's `URL.Redacted` does."""
    return _USER_AND_PASSWORD.sub(r"\1:xxxxx@", text) if "://" in text else text


def mask_option(text: str) -> str:
    """Return an option's value, or an argument of the command line, with its passwords masked.

    Such text may begin with an address without `http://`, because `--auth-http-address` accepts that.
    """
    return _BARE_USER_AND_PASSWORD.sub(r"\1:xxxxx@", mask_passwords(text))


def mask_url(url: str) -> str:
    """Return only the scheme and the host of a URL whose path or query may be a secret, such as that of a webhook."""
    scheme, slashes, rest = without_credentials(url).partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}{slashes}{host}{'/xxxxx' if len(rest) > len(host) else ''}" if slashes else "xxxxx"


def without_credentials(url: str) -> str:
    """Return a URL, or an address without `http://`, without its user name and password."""
    return _CREDENTIALS.sub(r"\1", url)
