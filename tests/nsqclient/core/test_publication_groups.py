"""The group of a publish, as one of its headers."""

from __future__ import annotations

import pytest

from nsqclient.core.publication import Headers, group_in, only_group_in, with_group, with_group_in_all


def test_a_group_is_a_header() -> None:
    assert with_group(None, None) is None
    assert with_group({"n": "1"}, None) == {"n": "1"}
    assert with_group({"n": "1"}, "ana") == {"n": "1", "nsq-group": b"ana"}
    assert with_group(None, b"ana") == {"nsq-group": b"ana"}
    assert with_group({"nsq-group": "ana"}, None) == {"nsq-group": "ana"}


@pytest.mark.parametrize("headers", [{"nsq-group": ""}, {"nsq-group": b"\xff"}, {"n": "1", "nsq-group": "x" * 129}])
def test_a_bad_group_among_the_headers_is_refused_too(headers: Headers) -> None:
    with pytest.raises(ValueError, match="invalid group"):
        with_group(headers, None)
    with pytest.raises(ValueError, match="invalid group"):
        with_group_in_all([{}, headers], None, 2)


def test_it_is_given_once() -> None:
    with pytest.raises(ValueError, match="given twice: as group= and as the header nsq-group"):
        with_group({"nsq-group": "ana"}, "ana")


def test_messages_that_are_published_together_share_it_or_have_their_own() -> None:
    assert with_group_in_all(None, None, 2) is None
    assert with_group_in_all(None, "ana", 2) == [{"nsq-group": b"ana"}] * 2
    assert with_group_in_all([{"n": "1"}, {}], "ana", 2) == [{"n": "1", "nsq-group": b"ana"}, {"nsq-group": b"ana"}]
    assert with_group_in_all(iter([{"nsq-group": "ana"}, {}]), None, 2) == [{"nsq-group": "ana"}, {}]


def test_which_group_decides() -> None:
    assert group_in(None) is None
    assert group_in({"n": "1"}) is None
    assert group_in({"nsq-group": "Zürich"}) == "Zürich".encode()
    assert only_group_in(None) is None
    assert only_group_in([]) is None
    assert only_group_in([{}, {"n": "1"}]) is None
    assert only_group_in([{"nsq-group": "ana"}, {"nsq-group": b"ana"}]) == b"ana"
    for headers in ([{"nsq-group": "ana"}, {}], [{"nsq-group": "ana"}, {"nsq-group": "ben"}]):
        with pytest.raises(ValueError, match="publish each group by itself"):
            only_group_in(headers)
