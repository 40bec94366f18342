"""Why messages are not shown, in words."""

from __future__ import annotations

import pytest

from nsqadmin.messages.model import Gap
from nsqcommon.wire.history import NEWER, REFUSED


@pytest.mark.parametrize("reason", [REFUSED, NEWER])
def test_messages_that_are_there_are_not_called_lost(reason: str) -> None:
    assert "any more" not in Gap(node="a:1", first=1, end=3, reason=reason).why


def test_a_reason_of_a_later_version_is_shown_as_it_came() -> None:
    assert Gap(node="a:1", first=1, end=3, reason="eaten").why == "cannot be read: eaten"
