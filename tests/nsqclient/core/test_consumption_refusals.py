"""When a consumer has to give up because no nsqd will ever accept it."""

from __future__ import annotations

import pytest

from nsqclient import AuthError
from nsqclient.core.consumption import Refusals

ERROR = AuthError("no")


@pytest.fixture
def refusals() -> Refusals:
    refusals = Refusals()
    refusals.expected = {"a", "b"}
    return refusals


def test_one_of_two_is_not_enough(refusals: Refusals) -> None:
    refusals.add("a", ERROR)
    assert refusals.verdict() is None


def test_all_of_them_are_fatal(refusals: Refusals) -> None:
    refusals.add("a", ERROR)
    refusals.add("b", AuthError("neither"))
    assert refusals.verdict() is ERROR


def test_after_a_subscription_nothing_is_fatal(refusals: Refusals) -> None:
    refusals.accepted("a")
    refusals.add("a", ERROR)
    refusals.add("b", ERROR)
    assert refusals.verdict() is None


def test_without_any_nsqd_there_is_nothing_to_refuse() -> None:
    assert Refusals().verdict() is None


def test_an_nsqd_that_is_no_longer_expected_does_not_count(refusals: Refusals) -> None:
    refusals.add("a", ERROR)
    refusals.expected = {"a"}
    assert refusals.verdict() is ERROR
