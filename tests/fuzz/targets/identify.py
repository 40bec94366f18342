"""The JSON documents of IDENTIFY and of its answer, and the negotiation between them."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqclient import HandshakeError
from nsqclient.core.connection import read_terms
from nsqcommon.nsq_json import JsonError, loads
from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.identify import apply_identify, decode_identify, negotiate
from tests.support.node import RULES


def run(data: bytes, random: Random) -> None:
    with suppress(ProtocolError):
        request = decode_identify(data)
        settings = apply_identify(RULES.defaults, request, RULES.features)
        negotiate(request, settings, RULES.features)
    with suppress(JsonError):
        loads(data)
    with suppress(HandshakeError):
        read_terms(data)
