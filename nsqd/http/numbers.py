"""Numbers in a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nsqcommon.http_api import HttpError

_HIGHEST: Final = (1 << 63) - 1

_is_number: Final = re.compile(r"[0-9]{1,19}", re.ASCII).fullmatch


def number_argument(arguments: Mapping[str, str], name: str, default: int) -> int:
    """Return a number from 0 on. Raises a 400 if it is none."""
    return parse_number(arguments[name], name) if name in arguments else default


def parse_number(text: str, name: str) -> int:
    if _is_number(text) is None or int(text) > _HIGHEST:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return int(text)
