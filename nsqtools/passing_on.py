"""Passes messages on with all that belongs to them: headers, where they came from, and a key against doubles."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from nsqclient import Unsupported
from nsqcommon.wire.headers import BadHeaders, encode_headers

if TYPE_CHECKING:
    from nsqclient import Message, Producer

log = logging.getLogger(__name__)

ORIGIN: Final = "nsq-origin"
_DIGEST: Final = 12  # bytes


def with_origin(headers: Mapping[str, bytes], origin: str) -> Mapping[str, bytes]:
    """Return the headers of a message that is passed on; where it came from first stays, and is left out if full."""
    if ORIGIN in headers:
        return headers
    more = {**headers, ORIGIN: origin.encode()}
    try:
        encode_headers(more)
    except BadHeaders:
        return headers
    return more


class NsqdDestination:
    """One nsqd to which messages are passed on."""

    def __init__(self, address: str, producer: Producer) -> None:
        self._address = address
        self._producer = producer
        self._takes_keys = True
        self._takes_headers = True

    async def pass_on(self, message: Message, topic: str, body: bytes) -> None:
        """Publish the message's body, perhaps a part of it. Raise NSQError.

        If the same message is passed on again, because a crash came before its FIN, it is not published twice, within
        the time for which this nsqd remembers keys. What the nsqd does not know is left out.
        """
        while True:
            headers = None
            if self._takes_headers:
                headers = with_origin(message.headers, f"{message.nsqd}/{message.topic}/{message.id}")
            key = key_of(message) if self._takes_keys else None
            try:
                await self._producer.publish(topic, body, key=key, headers=headers)
            except Unsupported as error:
                # Many messages are under way, and each of them fails. The first one changes what the next ones have.
                if headers is not None and "headers" in str(error):
                    self._leave_headers_out()
                elif key is not None:
                    self._leave_keys_out()
                else:
                    raise
            else:
                return

    def _leave_headers_out(self) -> None:
        if self._takes_headers:
            self._takes_headers = False
            log.warning("%s knows no headers: those of messages are left out", self._address)

    def _leave_keys_out(self) -> None:
        if self._takes_keys:
            self._takes_keys = False
            log.warning("%s knows no keys: after a crash of this tool, messages may come twice", self._address)


def key_of(message: Message) -> str:
    """Return a key that this delivery of the channel has in common with every other delivery of the same message."""
    source = f"{message.nsqd}\n{message.topic}\n{message.channel}\n{message.id}"
    return b64encode(blake2b(source.encode(), digest_size=_DIGEST).digest()).decode()
