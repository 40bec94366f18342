"""Asks the owner of a node, at the HTTP address that the chain has of it, whether it is alive and how it is.

Another process may have that address by now. Containers of one host have the same boot, and each of their processes may be
number 1. So an owner is known by its writer, which is in the names of its runs.
"""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from nsqcommon.blocking_http import BlockingHttp
from nsqd.remote.standby import OwnerSays

if TYPE_CHECKING:
    from nsqcommon.remote.slot import Claimant

CALL_TIMEOUT: Final = 2.0
_GUARDED: Final = (401, 403)
_LONGEST_ANSWER: Final = 1 << 16
_STANDBY: Final = "standby"  # what /readyz says of one
_CUT_OFF: Final = "NOK - remote:"  # what it begins with if the store doesn't answer


class OwnerAnswer(Enum):
    """Which process answers at the address of an owner."""

    YES = auto()  # the owner
    NO = auto()  # nothing, or another process
    GUARDED = auto()  # something that won't say more, because it asks for a password


def owner_answers(owner: Claimant, writer: str, *, timeout: float = CALL_TIMEOUT) -> OwnerAnswer:
    """Return whether the owner's process serves HTTP at its address."""
    try:
        status, body = _get(owner, "/remote", timeout)
    except OSError:
        return OwnerAnswer.NO
    if status in _GUARDED:
        return OwnerAnswer.GUARDED
    return OwnerAnswer.YES if _is_of(writer, _members(body)) else OwnerAnswer.NO


def owner_says(owner: Claimant, writer: str, *, after: float, timeout: float, standby: str = "") -> OwnerSays:
    """Return how the owner is. If the store hasn't answered it for `after` seconds, it is cut off.

    `standby` is our own HTTP address, by which it knows that somebody watches it.
    """
    query = f"?standby={quote(standby)}" if standby else ""
    try:
        status, body = _get(owner, f"/remote{query}", timeout)
        if status in _GUARDED:
            _, body = _get(owner, f"/readyz{query}", timeout)  # which is open to all
            return _says_to_all(body.decode(errors="replace"))
    except ConnectionRefusedError:
        return OwnerSays.GONE
    except OSError:
        return OwnerSays.NOTHING
    found = _members(body)
    if not _is_of(writer, found):
        return OwnerSays.GONE if "state" in found else OwnerSays.NOTHING
    silent = found.get("silent_seconds")
    return OwnerSays.CUT_OFF if isinstance(silent, int | float) and silent >= after else OwnerSays.WELL


def _says_to_all(text: str) -> OwnerSays:
    """Return how an owner is that asks for a password. It doesn't say for how long the store hasn't answered it."""
    if text == _STANDBY:
        return OwnerSays.GONE
    return OwnerSays.NOTHING if text.startswith(_CUT_OFF) else OwnerSays.WELL


def _is_of(writer: str, found: dict[str, Any]) -> bool:
    run = found.get("run")
    return isinstance(run, str) and run.endswith(f"-{writer}")


def _get(owner: Claimant, path: str, timeout: float) -> tuple[int, bytes]:
    if not owner.http_address:
        raise OSError("the owner has not said where it serves HTTP")
    with BlockingHttp(owner.http_address, timeout=timeout) as http:
        return http.request("GET", path, most=_LONGEST_ANSWER)


def _members(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
