"""Bounds of a request, as reading a larger one would keep others waiting."""

from __future__ import annotations

import pytest

from nsqcommon.http_api import HttpError, parse_query
from nsqcommon.wire.limits import SizeLimits
from tests.nsqd.http.conftest import Nsqd


def test_too_many_arguments_are_refused(nsqd: Nsqd) -> None:
    assert parse_query(b"&".join(b"%d=x" % number for number in range(1000)))["999"] == "x"
    with pytest.raises(HttpError, match="INVALID_REQUEST"):
        parse_query(b"topic=t" + b"&" * 1000)
    assert nsqd.post("/pub?topic=t" + "&a=b" * 1000, b"x").status == 400


@pytest.mark.parametrize("value", [b"[" * 90, b"[1]", b"x" * 100])
def test_a_value_that_makes_no_sense_is_refused(nsqd: Nsqd, value: bytes) -> None:
    assert nsqd.put("/config/nsqlookupd_tcp_addresses", value).status == 400


def test_a_value_that_is_too_long_is_refused() -> None:
    nsqd = Nsqd(limits=SizeLimits())
    answer = nsqd.put("/config/nsqlookupd_tcp_addresses", b"[" * (64 * 1024 + 1))
    assert (answer.status, answer.body) == (413, b'{"message":"INVALID_VALUE"}')
    assert nsqd.put("/config/nsqlookupd_tcp_addresses", b"[" * (64 * 1024)).status == 400  # nested too deeply
