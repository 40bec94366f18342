"""The error of a handler as the reason for burying its message."""

from __future__ import annotations

import pytest

from nsqclient.core.delivery import reason_of


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise OSError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("boom"), "RuntimeError: boom"),
        (KeyError(), "KeyError"),
        (ExceptionGroup("", [ExceptionGroup("", [ValueError("inner")])]), "ValueError: inner"),
        (ExceptionGroup("both", [ValueError(), KeyError()]), "ExceptionGroup: both (2 sub-exceptions)"),
        (Unspeakable(), "Unspeakable"),
    ],
)
def test_a_reason_names_the_error_and_what_it_says(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
