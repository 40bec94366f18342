"""Forwards messages with their headers, their origin, and a key against duplicates."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from nsqclient import Unsupported
from nsqcommon.wire.groups import without_bad_group
from nsqcommon.wire.headers import BadHeaders, encode_headers

if TYPE_CHECKING:
    from nsqclient import Message, Producer

log = logging.getLogger(__name__)

ORIGIN: Final = "nsq-origin"
_DIGEST: Final = 12  # bytes


def with_origin(headers: Mapping[str, bytes], origin: str) -> Mapping[str, bytes]:
    """Return a forwarded message's headers, with its first origin, unless there is no room for it."""
    headers = without_bad_group(headers)
    if ORIGIN in headers:
        return headers
    more = {**headers, ORIGIN: origin.encode()}
    try:
        encode_headers(more)
    except BadHeaders:
        return headers
    return more


class NsqdDestination:
    """One nsqd that gets forwarded messages."""

    def __init__(self, address: str, producer: Producer) -> None:
        self._address = address
        self._producer = producer
        self._takes_keys = True
        self._takes_headers = True

    async def pass_on(self, message: Message, topic: str, body: bytes) -> None:
        """Publish the message's body, perhaps a part of it. Raise NSQError.

        If a crash before its FIN makes us forward the same message again, it isn't published twice while this nsqd
        remembers its key. Key and headers are left out for an nsqd without them.
        """
        while True:
            headers = None
            if self._takes_headers:
                headers = with_origin(message.headers, f"{message.nsqd}/{message.topic}/{message.id}")
            key = key_of(message) if self._takes_keys else None
            try:
                await self._producer.publish(topic, body, key=key, headers=headers)
            except Unsupported as error:
                # Many messages are in flight, and each of them fails. The first failure changes the next publishes.
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
            log.warning("%s doesn't support headers: forwarding messages without them", self._address)

    def _leave_keys_out(self) -> None:
        if self._takes_keys:
            self._takes_keys = False
            log.warning("%s doesn't support keys: a crash of this tool may duplicate messages", self._address)


def place_of(message: Message) -> str:
    """Return what decides the destination: the message's group, or without one its key.

    A group stays together, and a redelivered message goes where it went before.
    """
    return message.group or key_of(message)


def key_of(message: Message) -> str:
    """Return a key that is the same for every delivery of the same message in this channel."""
    source = f"{message.nsqd}\n{message.topic}\n{message.channel}\n{message.id}"
    return b64encode(blake2b(source.encode(), digest_size=_DIGEST).digest()).decode()
