"""Parses numbers in a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nsqcommon.http_api import HttpError

_HIGHEST: Final = (1 << 63) - 1

_is_number: Final = re.compile(r"[0-9]{1,19}", re.ASCII).fullmatch


def number_argument(arguments: Mapping[str, str], name: str, default: int) -> int:
    """Return the argument, or `default` if it is absent. Raises a 400 unless it is a number from 0 to 2**63 - 1."""
    return parse_number(arguments[name], name) if name in arguments else default


def limit_argument(arguments: Mapping[str, str], default: int, *, most: int) -> int:
    """Return the argument `limit`, or `default` if it is absent. Raises a 400 unless it is a number up to `most`."""
    limit = number_argument(arguments, "limit", default)
    if limit > most:
        raise HttpError(400, "INVALID_ARG_LIMIT", details={"reason": f"at most {most}"})
    return limit


def parse_number(text: str, name: str) -> int:
    if _is_number(text) is None or int(text) > _HIGHEST:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return int(text)
