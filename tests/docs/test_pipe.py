"""A command that is served (pipe.py) ends as a process of its own would."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.docs.pipe import status_of


def fail() -> None:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (lambda: None, 0, ""),
        (lambda: sys.exit(0), 0, ""),
        (lambda: sys.exit(3), 3, ""),
        (lambda: sys.exit("it went wrong"), 1, "it went wrong\n"),
        (fail, 1, "KeyError: 'no such thing'\n"),
    ],
)
def test_its_status_and_words(
    command: Callable[[], object], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(command) == status
    assert capsys.readouterr().err.endswith(said)
