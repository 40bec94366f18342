"""Readers of a topic's logs: nodes' reports, merged, and whether retention overtakes the readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsqadmin.cluster.model import ReaderNode, Untold
from nsqadmin.cluster.readers import (
    NodeReaders,
    Outlook,
    ReaderDanger,
    ReaderReport,
    TellsNoReaders,
    is_silent,
    joined,
    outlook,
    read_readers,
    worst,
)
from nsqadmin.cluster.sane import NotUnderstood

NOW = 1_700_000_000.0
SECOND = 1_000_000_000
HOUR = 3600.0


def nanoseconds(at: float) -> int:
    return int(at) * SECOND


def raw(**fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": "land",
        "into": "/t",
        "format": "delta",
        "host": "etl-1",
        "log": "a",
        "sequence": 4,
        "heard": nanoseconds(NOW - 10),
        "committed": nanoseconds(NOW - 60),
        "rate": 5.5,
        "behind": 6,
        "behind_bytes": 600,
        "behind_since": nanoseconds(NOW - 30),
        "missed": 0,
    }
    return {**known, **fields}


def answer(*readers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    log = {"log": "a", "retention_time": 3600 * SECOND, "retention_bytes": 0, "readers": list(readers)}
    return {**log, **fields}


def said(
    *readers: dict[str, Any], node: str = "n1:4151", skew: float | None = None, **fields: Any
) -> tuple[ReaderReport, ...]:
    return read_readers(node, answer(*readers, **fields), as_of=NOW, skew=skew)


def row(**fields: Any) -> ReaderNode:
    known = {"as_of": NOW, "heard": NOW - 1, "committed": NOW - 1, "behind": 1000, "behind_time": 10.0}
    return ReaderNode(node="n1:4151", **{**known, "retention_time": HOUR, **fields})


# One node's report


def test_an_answer_as_it_comes() -> None:
    (found,) = said(raw())
    assert (found.key, found.format, found.host) == (("land", "/t"), "delta", "etl-1")
    assert found.row == ReaderNode(
        node="n1:4151",
        as_of=NOW,
        heard=NOW - 10,
        committed=NOW - 60,
        behind=6,
        behind_bytes=600,
        behind_time=30.0,
        rate=5.5,
        retention_time=HOUR,
    )


def test_ages_are_by_the_clock_of_the_node() -> None:
    (found,) = said(raw(heard=nanoseconds(NOW + 90)), skew=100.0)
    assert found.row.heard == NOW - 10
    (found,) = said(raw(heard=nanoseconds(NOW + 90)), skew=None)
    assert found.row.heard == NOW, "nothing was heard in the future"


def test_what_a_reader_reported_may_be_of_a_log_that_is_gone() -> None:
    assert said(raw(log="b"))[0].row.is_new_log


def test_what_a_node_cannot_tell_is_unknown() -> None:
    found = said(raw(rate=None, behind_bytes=None, behind_since=None))[0].row
    assert (found.rate, found.behind_bytes, found.behind_time) == (None, None, None)


def test_an_older_node_is_told_from_one_that_has_no_readers() -> None:
    assert said() == ()
    with pytest.raises(TellsNoReaders):
        read_readers("n1:4151", {"log": "a"}, as_of=NOW, skew=None)


@pytest.mark.parametrize(
    "document",
    [
        [],
        answer(raw(behind=-1)),
        answer(raw(behind=True)),
        answer(raw(behind=1 << 70)),
        answer(raw(behind=float("nan"))),
        answer(raw(heard=None)),
        answer(raw(name=5)),
        answer({}),
        {**answer(raw()), "readers": 5},
        {**answer(raw()), "retention_time": "1h"},
    ],
)
def test_nonsense_is_refused(document: object) -> None:
    with pytest.raises(NotUnderstood):
        read_readers("n1:4151", document, as_of=NOW, skew=None)


# Merged


def test_nodes_are_joined_by_name_and_place() -> None:
    readers, untold = joined(
        {
            "n2:4151": NodeReaders(
                said(raw(behind=3, behind_since=nanoseconds(NOW - 90), host="etl-2"), node="n2:4151")
            ),
            "n1:4151": NodeReaders(said(raw(), raw(into="/other"))),
        }
    )
    assert [(it.name, it.into) for it in readers] == [("land", "/other"), ("land", "/t")]
    assert readers[1].hosts == ("etl-1", "etl-2")
    assert (readers[1].behind, readers[1].behind_time, readers[1].unheard) == (9, 90.0, ())
    assert readers[0].unheard == ("n2:4151",), "a node to which it has reported nothing is named"
    assert untold == ()


def test_a_node_that_cannot_be_asked_keeps_what_it_said_and_is_named() -> None:
    readers, untold = joined(
        {"n1:4151": NodeReaders(said(raw())), "n2:4151": NodeReaders(said(raw(), node="n2:4151"), "it is down")}
    )
    assert readers[0].behind == 12, "no sum that shrinks"
    assert [it.reason for it in readers[0].nodes] == ["", "it is down"]
    assert untold == (Untold(node="n2:4151", reason="it is down"),)


def test_a_node_of_which_nothing_is_known_is_named_and_not_left_out() -> None:
    readers, untold = joined({"n1:4151": NodeReaders(said(raw())), "n2:4151": NodeReaders(reason="it is a Go nsqd")})
    assert readers[0].unheard == ()
    assert [it.node for it in untold] == ["n2:4151"]


def test_a_lag_that_one_node_cannot_tell_is_unknown_as_a_whole() -> None:
    nodes = {
        name: NodeReaders(said(raw(behind_since=since), node=name))
        for name, since in (("n1:4151", None), ("n2:4151", nanoseconds(NOW - 5)))
    }
    assert joined(nodes)[0][0].behind_time is None


# Retention


def danger(*, has_channels: bool = True, **fields: Any) -> ReaderDanger:
    return outlook(row(**fields), has_channels=has_channels).danger


def test_who_has_everything_is_in_no_danger() -> None:
    assert danger(behind=0, behind_time=None, retention_time=0.0) is ReaderDanger.NONE


def test_what_is_removed_already_is_lost() -> None:
    assert danger(missed=1, behind=0) is ReaderDanger.LOST


def test_without_retention_only_a_topic_without_channels_keeps_anything() -> None:
    assert danger(retention_time=0.0) is ReaderDanger.UNKEPT
    assert danger(retention_time=0.0, has_channels=False) is ReaderDanger.NONE


def test_who_is_as_fast_as_what_comes_is_in_no_danger() -> None:
    assert danger(rate=100.0) is ReaderDanger.NONE
    assert danger(rate=99.0) is ReaderDanger.NONE, "so little may be chance"


def test_who_stands_is_overtaken_when_the_time_is_over() -> None:
    assert outlook(row(rate=0.0), has_channels=True) == Outlook(ReaderDanger.AHEAD, HOUR - 10)
    assert outlook(row(rate=None, behind_time=0.6 * HOUR), has_channels=True).danger is ReaderDanger.NEAR


def test_who_is_half_as_fast_has_twice_the_time() -> None:
    found = outlook(row(rate=1000 / (0.6 * HOUR) / 2, behind_time=0.6 * HOUR), has_channels=True)
    assert found.danger is ReaderDanger.NEAR
    assert found.seconds == pytest.approx(0.8 * HOUR)


def test_a_rate_of_who_is_silent_counts_no_more() -> None:
    assert is_silent(row(heard=NOW - 181))
    assert danger(rate=100.0, heard=NOW - 181) is ReaderDanger.AHEAD


def test_bytes_count_as_the_time_in_which_they_came() -> None:
    kept: dict[str, Any] = {"retention_time": 0.0, "retention_bytes": 10_000, "rate": 0.0}
    assert outlook(row(behind_bytes=1000, **kept), has_channels=True) == Outlook(ReaderDanger.AHEAD, 90.0)
    assert outlook(row(behind_bytes=10_000, **kept), has_channels=True) == Outlook(ReaderDanger.NEAR, 0.0)
    assert danger(behind_bytes=None, **kept) is ReaderDanger.UNKNOWN


@pytest.mark.parametrize("fields", [{"behind_time": 0.0, "behind_bytes": 1000}, {"behind_bytes": 0}])
def test_limit_in_bytes_does_not_endanger_a_reader_that_is_hardly_behind(fields: dict[str, Any]) -> None:
    assert danger(retention_time=0.0, retention_bytes=10_000, **fields) is ReaderDanger.NONE


def test_of_two_limits_the_nearer_one_counts() -> None:
    found = outlook(row(behind_bytes=9000, retention_bytes=10_000, rate=0.0), has_channels=True)
    assert found.danger is ReaderDanger.NEAR
    assert found.seconds == pytest.approx(10 / 9)


def test_what_cannot_be_told_is_no_good_news() -> None:
    assert danger(behind_time=None) is ReaderDanger.UNKNOWN


def test_the_worst_of_several_nodes_is_shown() -> None:
    far, near = Outlook(ReaderDanger.AHEAD, 900.0), Outlook(ReaderDanger.AHEAD, 100.0)
    assert worst([far, near, Outlook(ReaderDanger.NONE)]) == near
    assert worst([near, Outlook(ReaderDanger.LOST)]).danger is ReaderDanger.LOST
    assert replace(near, danger=ReaderDanger.UNKNOWN) == worst(
        [Outlook(ReaderDanger.NONE), replace(near, danger=ReaderDanger.UNKNOWN)]
    )
