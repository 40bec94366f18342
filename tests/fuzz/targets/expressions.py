"""Expressions of an authorization server, its answers, and rights."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqd.auth.expressions import Expression, ExpressionError
from nsqd.auth.grants import GrantError, decode_grant
from nsqd.auth.rights import RightsError, parse_rights

NAMES = ("", "orders", "a" * 64, "x.y-z_1#ephemeral")


def run(data: bytes, random: Random) -> None:
    with suppress(ExpressionError):
        expression = Expression(data.decode("latin-1"))
        for name in NAMES:
            expression.found_in(name)
    with suppress(GrantError):
        grant = decode_grant(data)
        for name in NAMES:
            grant.allows(name, name)
        assert grant.reply
    with suppress(RightsError):
        parse_rights(data.decode("utf-8", "replace"))
