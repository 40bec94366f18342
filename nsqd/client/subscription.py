"""Handles the consumer commands (RDY, FIN, REQ, TOUCH and BURY): parses their parameters and reports their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from nsqcommon.log_rate_limit import LogRateLimit
from nsqcommon.wire.commands import MOST_FINISHES, CommandReader, parse_decimal, to_signed64
from nsqcommon.wire.extensions import BURY, FREE, HEADERS, decode_reason
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import error_frame_from_data
from nsqcommon.wire.names import decode_name
from nsqcommon.wire.quoting import quote
from nsqd.broker.consumer import MOST_UNSENT_BYTES, Consumer, Locality
from nsqd.client.work_budget import COST_OF_DEFERRAL, COST_OF_FAILURE, COST_OF_TOUCH, WorkBudget

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.broker.channel import Channel
    from nsqd.broker.stats_records import ClientSnapshot
    from nsqd.client.note import Note, NoteKind
    from nsqd.client.outbox import Outbox
    from nsqd.client.profile import ClientProfile

MOST_DOUBTFUL: Final = 32  # FINs in one run, at first and after a failure, because all of them may fail
_NANOSECONDS_PER_MS: Final = 1_000_000
_UINT64: Final = (1 << 64) - 1


class ClientSubscription:
    """Passes a consumer's commands on to its channel, and puts errors into the outbox.

    After a FIN fails, it limits the reader to shorter runs of FINs. It also limits the log lines about failures, so
    that they don't flood the log. It exists from SUB until the client is closed, which calls `leave`.
    """

    __slots__ = (
        "_broker",
        "_channel",
        "_log_limit",
        "_note",
        "_outbox",
        "_profile",
        "_reader",
        "_work_budget",
        "consumer",
    )

    def __init__(
        self,
        channel: Channel,
        profile: ClientProfile,
        *,
        broker: Broker,
        reader: CommandReader,
        outbox: Outbox,
        stretch: WorkBudget,
        note: Note,
        close: Callable[[], None],  # ends the connection without an error frame, when the channel is deleted
        describe: Callable[[], ClientSnapshot],
    ) -> None:
        """Join the channel."""
        self._channel = channel
        self._profile = profile
        self._broker = broker  # for its clock
        self._reader = reader
        self._outbox = outbox
        self._work_budget = stretch
        self._note = note
        self._log_limit = LogRateLimit()
        self.consumer = Consumer(
            send=outbox.send_messages,
            close=close,
            describe=describe,
            msg_timeout=profile.delivery.msg_timeout_ms / 1000,
            sample_rate=profile.delivery.sample_rate,
            locality=profile.locality() if broker.turn.prefers_near_consumers else Locality.ELSEWHERE,
            takes_headers=HEADERS in profile.extensions,
            send_views=outbox.send_views,
        )
        channel.join(self.consumer)

    def set_ready(self, params: list[bytes]) -> None:
        """Carry out RDY."""
        raw = params[1] if len(params) > 1 else b"1"
        parsed = parse_decimal(raw)
        if parsed is None:
            raise ProtocolError(Fault.INVALID, b"RDY could not parse count " + raw)
        count, most = to_signed64(parsed), self._profile.rules.features.max_rdy_count
        if not 0 <= count <= most:
            raise ProtocolError(Fault.INVALID, f"RDY count {count} out of range 0-{most}")
        self.consumer.ready_count = count
        self._channel.schedule_delivery()

    def finish_one(self, params: list[bytes]) -> None:
        """Carry out a FIN that the reader left as a plain line, because it is malformed or unusual."""
        self.finish([_message_id(params, needed=2)])

    def finish(self, ids: Sequence[bytes]) -> None:
        """Carry out a run of FINs."""
        failures = self._channel.finish(self.consumer, ids)
        for message_id, reason in failures:
            self._fail_softly(b"FIN", message_id, reason)
        self._reader.most_finishes = MOST_DOUBTFUL if failures else MOST_FINISHES

    def requeue(self, params: list[bytes], now: float) -> None:
        """Carry out REQ."""
        self._work_budget.spend(COST_OF_DEFERRAL)
        message_id = _message_id(params, needed=3)
        delay_ms = parse_decimal(params[2])
        if delay_ms is None:
            raise ProtocolError(Fault.INVALID, b"REQ could not parse timeout " + params[2])
        duration = to_signed64(delay_ms * _NANOSECONDS_PER_MS & _UINT64)  # wraps around, like Go's time.Duration
        most = self._profile.rules.max_req_timeout_ms * _NANOSECONDS_PER_MS
        clamped = min(max(duration, 0), most)
        if clamped != duration:
            self.note_some("info", b"REQ timeout %d out of range 0-%d. Setting to %d" % (duration, most, clamped))
        delay_ms = clamped // _NANOSECONDS_PER_MS
        counts = len(params) == 3 or params[3] != FREE or BURY not in self._profile.extensions
        if reason := self._channel.requeue(self.consumer, message_id, delay_ms, now, counts=counts):
            self._fail_softly(b"REQ", message_id, reason)

    def bury(self, params: list[bytes], now: float) -> None:
        """Carry out BURY."""
        self._work_budget.spend(COST_OF_DEFERRAL)
        message_id = _message_id(params, needed=2)
        if reason := self._channel.bury(self.consumer, message_id, decode_reason(params[2:]), now):
            self._fail_softly(b"BURY", message_id, reason)

    def touch(self, params: list[bytes], now: float) -> None:
        """Carry out TOUCH."""
        self._work_budget.spend(COST_OF_TOUCH)
        message_id = _message_id(params, needed=2)
        timeout = self._profile.settings.msg_timeout_ms / 1000  # that of the latest IDENTIFY, as in NSQ
        if reason := self._channel.touch(self.consumer, message_id, msg_timeout=timeout, now=now):
            self._fail_softly(b"TOUCH", message_id, reason)

    def sent(self, unsent: int) -> None:
        """Record how many bytes are still queued for the socket.

        While too many are queued, the consumer gets no more messages.
        """
        consumer = self.consumer
        was_full = consumer.unsent_bytes > MOST_UNSENT_BYTES
        consumer.unsent_bytes = unsent
        if was_full and consumer.room > 0:
            self._channel.schedule_delivery()

    def leave(self) -> None:
        """Leave the channel, unless the channel itself is gone."""
        self._log_left_out()
        if self.consumer.has_joined:
            self._channel.leave(self.consumer)

    def note_some(self, kind: NoteKind, text: bytes) -> None:
        """Log a line that any message could cause. If there are many such lines, log only the first few."""
        if self._log_limit.allows(self._broker.turn.now):
            self._log_left_out()
            self._note(kind, text)

    def _log_left_out(self) -> None:
        if self._log_limit.left_out:
            self._note("info", b"%d more lines about its messages were left out" % self._log_limit.take_suppressed())

    def _fail_softly(self, word: bytes, message_id: bytes, reason: bytes) -> None:
        """Respond with an error such as E_FIN_FAILED, without raising it, because every message may cause one."""
        data = b"E_%b_FAILED %b %b failed %b" % (word, word, message_id, reason)
        self.note_some("error", data)
        self._outbox.respond(error_frame_from_data(data))
        self._work_budget.spend(COST_OF_FAILURE)


def names_of(params: list[bytes]) -> tuple[str, str]:
    """Return the names of the topic and the channel in SUB's parameters."""
    if len(params) < 3:
        raise ProtocolError(Fault.INVALID, "SUB insufficient number of parameters")
    topic, channel = decode_name(params[1]), decode_name(params[2])
    if topic is None:
        raise ProtocolError(Fault.BAD_TOPIC, b"SUB topic name " + quote(params[1]) + b" is not valid")
    if channel is None:
        raise ProtocolError(Fault.BAD_CHANNEL, b"SUB channel name " + quote(params[2]) + b" is not valid")
    return topic, channel


def _message_id(params: list[bytes], *, needed: int) -> bytes:
    if len(params) < needed:
        raise ProtocolError(Fault.INVALID, params[0] + b" insufficient number of params")
    if len(params[1]) != 16:
        raise ProtocolError(Fault.INVALID, "invalid message ID")
    return params[1]
