"""The message that a user wants to edit, by an address that may be wrong."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from nsqadmin.access import ALL_RIGHTS, Identity
from nsqadmin.messages.deferred import DEFERRED
from nsqadmin.messages.model import Page
from nsqadmin.messages.service import Messages


@pytest.mark.parametrize("place", ["nonsense", "a,b,c", "a,1,"])
def test_a_place_that_is_none_names_no_message(place: str) -> None:
    async def one(channel: Any, identity: Identity, node: str, place: str) -> Page:
        DEFERRED.place_before(place)
        return Mock(lines=())

    messages, channel = Mock(), Mock(topic="t", buried_count=0, deferred_count=1)
    messages.read, messages.deferred.one = AsyncMock(return_value=Page(messages=())), one
    found = asyncio.run(Messages.message_to_edit(messages, channel, Identity(roles=(ALL_RIGHTS,)), "n1:4151", 3, place))
    assert found == (None, "its node no longer has it")
