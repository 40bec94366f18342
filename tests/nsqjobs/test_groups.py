from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from nsqjobs.groups import GroupBy, group_of, group_text


def charge(account: str, amount: int = 1, *, currency: str = "EUR", **more: object) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("by", "args", "kwargs", "group"),
    [
        ("account", ("ana", 5), {}, "ana"),
        ("account", (), {"account": "ana"}, "ana"),
        ("amount", ("ana",), {}, "1"),
        ("currency", ("ana",), {}, "EUR"),
        ("tenant", ("ana",), {"tenant": 7}, "7"),
        ("account", (UUID(int=1),), {}, "00000000-0000-0000-0000-000000000001"),
        ("account", (None,), {}, None),
        ("account", ("",), {}, None),
        (lambda account, amount, **more: f"{account}/{amount}", ("ana", 5), {"currency": "USD"}, "ana/5"),
        (lambda *args, **kwargs: None, ("ana",), {}, None),
        (lambda *args, **kwargs: b"ana", ("ana",), {}, "ana"),
    ],
)
def test_the_group_of_a_call(by: GroupBy, args: tuple[Any, ...], kwargs: dict[str, Any], group: str | None) -> None:
    assert group_of(by, charge, args, kwargs) == group


def test_an_argument_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="nsq_group_by='customer': charge has no such argument"):
        group_of("customer", charge, ("ana",), {})
    with pytest.raises(ValueError, match="nsq_group_by='account': too many positional arguments"):
        group_of("account", charge, (1, 2, 3), {})


@pytest.mark.parametrize("group", ["x" * 129, b"\xff"])
def test_a_group_that_nsqd_would_not_count_is_refused(group: object) -> None:
    with pytest.raises(ValueError, match="invalid group"):
        group_text(group)
