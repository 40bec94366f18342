from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from nsqadmin.parts.filters import BadTopicFilter, parse


@dataclass
class Row:
    path: str = "orders/fraud"
    is_ephemeral: bool = False
    states: frozenset[str] = frozenset(("ok",))
    numbers: dict[str, float | None] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        return self.numbers.get(name)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("", Row()),
        ("ORD fraud", Row()),
        ("orders/fr", Row()),
        ("depth>1000", Row(numbers={"depth": 1001})),
        ("depth>=1k", Row(numbers={"depth": 1000})),
        ("consumers=0", Row(numbers={"consumers": 0})),
        ("lag!=2.5", Row(numbers={"lag": 2})),
        ("state:paused", Row(states=frozenset(("warning", "paused")))),
        ("ephemeral:no", Row()),
        ("-billing", Row()),
        ("-state:paused", Row()),
        ("orders depth<5 -ephemeral:yes", Row(numbers={"depth": 4})),
    ],
)
def test_a_row_that_fulfils_all_is_shown(text: str, row: Row) -> None:
    assert parse(text).matches(row)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("orders billing", Row()),
        ("depth>1000", Row(numbers={"depth": 1000})),
        ("depth>0", Row()),  # an unknown number is neither greater nor less
        ("state:problem", Row()),
        ("ephemeral:yes", Row()),
        ("-orders", Row()),
    ],
)
def test_a_row_that_fails_one_is_not(text: str, row: Row) -> None:
    assert not parse(text).matches(row)


@pytest.mark.parametrize("text", ["dpeth>1", "state:broken", "ephemeral:maybe", "depth>", "depth>x", "a:b"])
def test_what_is_not_understood_is_said(text: str) -> None:
    with pytest.raises(BadTopicFilter, match=r"There (is|are)|isn't a condition|yes or no"):
        parse(text)
