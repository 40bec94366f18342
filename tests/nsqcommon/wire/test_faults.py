from __future__ import annotations

import pytest

from nsqcommon.wire.faults import Fault, ProtocolError


def test_error_data_are_code_and_detail() -> None:
    assert ProtocolError(Fault.INVALID, "invalid command FOO").data == b"E_INVALID invalid command FOO"


def test_detail_keeps_bytes_as_they_were_received() -> None:
    assert ProtocolError(Fault.INVALID, b"invalid command \xff\x00").data == b"E_INVALID invalid command \xff\x00"


def test_unknown_empty_command_keeps_its_trailing_space() -> None:
    assert ProtocolError(Fault.INVALID, "invalid command ").data == b"E_INVALID invalid command "


def test_bad_protocol_is_never_explained() -> None:
    assert ProtocolError(Fault.BAD_PROTOCOL).data == b"E_BAD_PROTOCOL"
    assert ProtocolError(Fault.BAD_PROTOCOL, "why").data == b"E_BAD_PROTOCOL"


def test_error_without_detail_is_only_the_code() -> None:
    assert ProtocolError(Fault.SUB_FAILED).data == b"E_SUB_FAILED"


def test_errors_are_fatal_unless_said_otherwise() -> None:
    assert ProtocolError(Fault.INVALID).fatal
    assert not ProtocolError(Fault.FIN_FAILED, fatal=False).fatal


@pytest.mark.parametrize("detail", ["caf\udce9", "\ud800", "a\x00b"])
def test_detail_that_is_no_proper_text_can_still_be_reported(detail: str) -> None:
    error = ProtocolError(Fault.PUB_FAILED, detail)
    assert error.data.startswith(b"E_PUB_FAILED ")
    assert str(error)


def test_str_shows_what_the_peer_gets() -> None:
    assert str(ProtocolError(Fault.INVALID, b"\xff!")) == "E_INVALID \\xff!"


def test_every_code_begins_with_e() -> None:
    assert {fault.value for fault in Fault} == {f"E_{fault.name}" for fault in Fault}
