"""The protocol of nsqlookupd, on both sides of it."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqcommon.wire.lookup import BadReply, PeerAddress, ReplyReader, decode_identify_reply
from nsqlookupd.protocol import LookupProtocol
from nsqlookupd.registry import Registry
from tests.fuzz.fuzzing import pieces

ADDRESS = PeerAddress(broadcast_address="here", hostname="host", http_port=4161, tcp_port=4160, version="1.3.0")


def run(data: bytes, random: Random) -> None:
    registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
    protocol = LookupProtocol(registry, id="10.0.0.5:51234", address=ADDRESS, note=lambda *said: None)
    replies = ReplyReader(64 * 1024)
    with suppress(BadReply):
        for piece in pieces(data, random):
            protocol.receive(piece)
            while protocol.step():
                pass
            protocol.bytes_to_send()
            replies.receive(piece)
            while (reply := replies.next_reply()) is not None:
                decode_identify_reply(reply)
    protocol.end()
    protocol.close("EOF")
