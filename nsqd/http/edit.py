"""The endpoint that edits a message and runs it in one channel (nsqd/broker/edit.py)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from nsqcommon.http_api import HttpError, Request, Response, json, query_values
from nsqcommon.wire.edited_copy import NAMES, CopyMark
from nsqcommon.wire.extensions import is_valid_key
from nsqcommon.wire.headers import BadHeaders, decode_headers, encode_headers
from nsqcommon.wire.log_record import COPY
from nsqd.broker.batch import Batch
from nsqd.broker.edit import Edit, MessagePlace, place_of
from nsqd.broker.topic import PublishRefused
from nsqd.http.message_headers import headers_of
from nsqd.http.message_search import parse_id
from nsqd.http.mpub_body import MSG_TOO_BIG
from nsqd.http.names import channel_argument, check_lasting, find_channel, find_topic
from nsqd.http.numbers import parse_number
from nsqd.http.publishing import EXITING, INVALID_DEFER, INVALID_HEADERS, MSG_EMPTY

if TYPE_CHECKING:
    from nsqd.broker.batch import Receipt
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic
    from nsqd.http.bodies import BodyReader
    from nsqd.http.calls import Calls
    from nsqd.http.message_search import MessageSearch
    from nsqd.http.publishing import Publishing

_KEY: Final = b"edit:"  # of a copy whose request has a token; a publisher's key that is the same would be chance
_DIGITS: Final = 56  # of a hash


class EditEndpoints:
    def __init__(
        self,
        calls: Calls,
        publishing: Publishing,
        bodies: BodyReader,
        search: MessageSearch,
        find_log: Callable[[str, Mapping[str, str]], object],
    ) -> None:
        """`find_log` raises HttpError if the argument `log` has another log's id."""
        self._calls = calls
        self._broker = calls.broker
        self._publishing = publishing
        self._bodies = bodies
        self._search = search
        self._find_log = find_log

    async def edit(self, request: Request) -> Response:
        """Replace a message of a channel by an edited copy, and answer once both are on disk."""
        most = self._publishing.limits.max_message
        if (request.content_length or 0) > most:
            raise MSG_TOO_BIG
        topic_name, name = channel_argument(request)
        check_lasting(topic_name, name)
        arguments = request.query()
        delay_ms = self._publishing.delay_ms(arguments)
        if delay_ms is None:
            raise INVALID_DEFER
        own_headers = _own_headers(request)
        body = await request.read(most)
        if not body:
            raise MSG_EMPTY
        channel, topic = find_channel(self._broker, topic_name, name), find_topic(self._broker, topic_name)
        if "log" in arguments:
            self._find_log(topic_name, arguments)
        key = self._key(arguments, name)
        if key:
            with self._calls.turn():
                earlier = topic.receipt_of(key)
            if earlier is not None:
                return await self._answer_repeat(channel, topic, key, earlier)
        sequence = await self._sequence(arguments, channel)
        old = await self._read(channel, sequence)
        old_id = old.base_id + sequence - old.base_sequence
        _check_owner(old, name)
        with self._calls.turn():
            if (
                find_topic(self._broker, topic_name) is not topic
            ):  # it was made again, and its sequences name other messages
                raise HttpError(404, "MESSAGE_NOT_FOUND")
            channel = find_channel(self._broker, topic_name, name)
            edit = Edit(channel, sequence, again=arguments.get("again") == "true", delay_ms=delay_ms)
            if edit.refusal is not None:
                raise _refused(channel, sequence, old_id, edit.refusal)
            if arguments.get("force") != "true":
                _check_room(channel, edit)
            mark = CopyMark(name, old_id, sequence, edit.replaces, _editor(request))
            headers = _headers(old, sequence, own_headers, query_values(request.query_string, "without"), mark)
            try:
                receipt = topic.publish_copy(edit, len(body).to_bytes(4, "big") + body, key, headers)
            except PublishRefused as refused:
                raise (_full(refused.cause) if refused.is_full else EXITING) from None
        if edit.receipt is None:  # the same request has come meanwhile
            return await self._answer_repeat(channel, topic, key, receipt)
        await self._calls.settled(receipt)
        if edit.refusal is not None:  # it had to wait, and the message went elsewhere
            raise _refused(channel, sequence, old_id, edit.refusal)
        if receipt.error is not None:
            raise EXITING
        return await self._answer(channel, edit.copy, is_repeat=False)

    async def _answer_repeat(self, channel: Channel, topic: Topic, key: bytes, earlier: Receipt) -> Response:
        """Answer a request that was carried out before, or is being carried out, as the first one."""
        await self._calls.settled(earlier)
        if earlier.error is not None:
            raise EXITING
        return await self._answer(channel, await self._copy_with(topic, key), is_repeat=True)

    async def _answer(self, channel: Channel, copy: int, *, is_repeat: bool) -> Response:
        """Wait for the disk, and return the receipt."""
        await self._calls.durable(channel.feed.name)
        batch = await self._read(channel, copy)
        mark = batch.copy_mark()
        return json(
            {
                "sequence": copy,
                "id": f"{batch.base_id + copy - batch.base_sequence:016x}",
                "copy_of": {"sequence": mark.sequence, "id": f"{mark.copy_of:016x}"},
                "replaced": mark.is_instead,
                "repeated": is_repeat,
            }
        )

    # Finding messages

    async def _sequence(self, arguments: Mapping[str, str], channel: Channel) -> int:
        """Return the sequence of the message that the request names. Raises a 400, 404 or 503."""
        if ("sequence" in arguments) == ("id" in arguments):
            raise HttpError(400, "INVALID_REQUEST", details={"reason": "either sequence or id"})
        if "sequence" in arguments:
            sequence = parse_number(arguments["sequence"], "sequence")
            if sequence >= channel.feed.log.tail:
                raise HttpError(400, "BEYOND_END", details={"end": channel.feed.log.tail})
            return sequence
        message_id = parse_id(arguments["id"])
        for found in channel.buried_queue.buried.find((message_id,)):
            if found:
                return found[0]
            await asyncio.sleep(0)
        place = await self._search.sequence_of(find_topic(self._broker, channel.feed.name), message_id)
        if place is None:
            raise HttpError(404, "MESSAGE_NOT_FOUND")
        return place

    async def _read(self, channel: Channel, sequence: int) -> Batch:
        """Return the batch with a message. Raises a 404 if the log no longer has it, or a 503."""
        found = await self._bodies.batch(channel, sequence, lambda: True)
        if isinstance(found, Batch):
            return found
        is_gone = channel.feed.log.next_readable(sequence) != sequence
        raise (
            HttpError(404, "MESSAGE_NOT_FOUND") if is_gone else HttpError(503, "CANNOT_READ", details={"reason": found})
        )

    async def _copy_with(self, topic: Topic, key: bytes) -> int:
        """Return the sequence of the copy that has this key. Raises a 409 if only the key is still known."""
        place = topic.deferred_place(key) or await self._search.newest_with(topic, key)
        if place is None:
            raise HttpError(409, "ALREADY_DONE", details={"reason": "the log no longer has the edited copy"})
        return place[0]

    def _key(self, arguments: Mapping[str, str], channel: str) -> bytes:
        """Return the key under which nsqd remembers the request. Empty: it has no token."""
        token = arguments.get("token")
        if token is None:
            return b""
        if not (self._broker.turn.keys.window and is_valid_key(token.encode())):
            raise HttpError(400, "INVALID_TOKEN")
        named = f"sequence {arguments['sequence']}" if "sequence" in arguments else f"id {arguments.get('id', '')}"
        return _KEY + hashlib.sha256(f"{channel} {named} {token}".encode()).hexdigest()[:_DIGITS].encode()


# Checks


def _check_owner(old: Batch, channel: str) -> None:
    if old.flags & COPY and (owner := old.copy_mark().channel) != channel:
        raise HttpError(409, "OTHER_CHANNEL", details={"reason": f"an edited copy for channel {owner} only"})


def _refused(channel: Channel, sequence: int, message_id: int, place: MessagePlace) -> HttpError:
    """Return the 409 for a message that can't be edited where it is now."""
    details: dict[str, object] = {"place": place, "reason": _REASONS[place]}
    if place is MessagePlace.IN_FLIGHT and (holder := channel.in_flight.owner(b"%016x" % message_id)) is not None:
        client = holder.describe()
        details |= {"client_id": client.client_id, "hostname": client.hostname, "remote_address": client.remote_address}
    return HttpError(409, "CANNOT_EDIT", details=details)


_REASONS: Final = {
    MessagePlace.IN_FLIGHT: "a consumer has it: wait for its answer or its timeout",
    MessagePlace.FINISHED: "it is finished: again=true runs the edited copy all the same",
    MessagePlace.REPLACED: "an edited copy has replaced it: again=true runs another one",
    MessagePlace.NOT_RELEASED: "no channel has it yet, because the topic is paused",
    # These can only be reasons if the message was elsewhere when the request came.
    MessagePlace.WAITING: "it was given back meanwhile: try again",
    MessagePlace.DEFERRED: "it was deferred meanwhile: try again",
    MessagePlace.BURIED: "it was buried meanwhile: try again",
}


def _check_room(channel: Channel, edit: Edit) -> None:
    """Raise a 409 if the copy would be one more than the channel may hold."""
    if place_of(channel, edit.sequence) in (MessagePlace.WAITING, MessagePlace.DEFERRED):
        return
    room = channel.room()
    if room is not None and room < 1:
        reason = f"channel {channel.feed.name}:{channel.name} has no room for another message"
        raise HttpError(409, "FULL", details={"reason": reason, "fits": 0})


def _editor(request: Request) -> str:
    """Return who edits: the user that nsqadmin reports, or else the holder of the token, or the address."""
    user = unquote_to_bytes(request.headers.get(b"nsqadmin-user", b"")).decode("utf-8", "replace")
    return user or request.holder or request.remote


def _full(cause: str) -> HttpError:
    return HttpError(429, "FULL", details={"reason": cause})


# Headers


def _own_headers(request: Request) -> dict[str, bytes]:
    """Return the headers that the request gives the copy. Raises a 400."""
    try:
        encoded = headers_of(request.fields, of_batch=True)
        headers = decode_headers(encoded) if encoded else {}
        if ours := sorted(NAMES.intersection(headers)):
            raise BadHeaders(f"{ours[0]} is for nsqd to set")
    except BadHeaders as error:
        raise HttpError(400, INVALID_HEADERS, details={"reason": str(error)}) from error
    return headers


def _headers(old: Batch, sequence: int, own: dict[str, bytes], without: list[str], mark: CopyMark) -> bytes:
    """Return the copy's encoded headers: those of the message, except `without`, then the request's and the mark's."""
    encoded = old.headers_between(sequence, sequence + 1)
    kept = decode_headers(encoded) if encoded else {}
    for name in (*NAMES, *without):
        kept.pop(name, None)
    try:
        return encode_headers(kept | own | mark.headers())
    except BadHeaders as error:
        raise HttpError(400, INVALID_HEADERS, details={"reason": str(error)}) from error
