"""The frames owed to one client, in the order in which they may be sent.

Responses go out in the order of their commands. The OK of a publish has to wait until the log has settled its receipt,
and all later responses wait with it. Message frames wait for the OK of SUB. If a client publishes to the topic that it
consumes, message frames also wait for the OK of each such publish, as in NSQ. They don't wait for other responses:

    PUB a, REQ that fails, PUB b    held: [OK a, error] [OK b], each until its receipt is settled
    a message                       sent immediately, or held after [OK a, error] if the client consumes a
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import OK_FRAME

if TYPE_CHECKING:
    from nsqcommon.wire.frames import Piece
    from nsqd.broker.batch import Receipt
    from nsqd.broker.feed import TopicFeed


class WaitingFrame:
    """The OKs that wait for one receipt, and the frames queued behind them."""

    __slots__ = ("command", "frames", "message_pieces", "receipt", "watched")

    def __init__(self, receipt: Receipt, command: bytes) -> None:
        self.receipt = receipt
        self.command = command
        self.frames = [OK_FRAME]
        self.message_pieces = 0  # pieces of messages in `frames`; they don't count as owed, because RDY limits them
        self.watched = False


class Outbox:
    """Frames for one client, either ready to send or held until the log has settled a receipt.

    It calls `wake` for messages and settled receipts; after `respond`, protocol.py does so. It can't close the
    connection, so if a publish fails, `release` returns the error, and protocol.py closes the client.
    """

    __slots__ = ("_consumed", "_frames", "_held_messages", "held", "owed", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake  # makes the poller call `bytes_to_send`, which calls `take`
        self.owed = 0  # held responses; if there are too many, we stop reading from the client
        self._consumed: TopicFeed | None = None  # the topic that the client has subscribed to
        self._frames: list[Piece] = []  # ready to send
        # Responses that wait for the log. A list, because an empty deque would be most of an idle client's memory.
        self.held: list[WaitingFrame] = []
        # Where messages wait, behind the last OK that they must not overtake. None if they don't have to wait.
        self._held_messages: WaitingFrame | None = None

    def respond(self, frame: bytes) -> None:
        """Add a response that needs no receipt. It goes out after all responses already owed."""
        if self.held:
            self.held[-1].frames.append(frame)
            self.owed += 1
        else:
            self._frames.append(frame)

    def owe(self, receipt: Receipt, command: bytes, topic: TopicFeed | None = None) -> None:
        """Add the OK of `command`, to be sent once the receipt is settled.

        For a publish, pass its `topic`. If the client consumes that topic, messages wait for this OK.
        """
        held = self.held
        if held and held[-1].receipt is receipt:
            held[-1].frames.append(OK_FRAME)
        else:
            held.append(WaitingFrame(receipt, command))
        self.owed += 1
        if topic is not None and topic is self._consumed:
            self._held_messages = held[-1]

    def owe_subscription(self, receipt: Receipt | None, topic: TopicFeed, release: Callable[[], None]) -> None:
        """Add the OK of SUB, which waits for the receipt if one is given. Messages from `topic` wait for this OK.

        `release` is called as soon as messages no longer have to wait. Otherwise they might be held for a long time,
        because the client only checks its outbox when something else happens.
        """
        if receipt is None:
            self.respond(OK_FRAME)
        else:
            self.owe(receipt, b"SUB")
        self._consumed = topic
        if self.held:
            self._held_messages = self.held[-1]
            self._held_messages.receipt.when_settled(release)

    def send_messages(self, pieces: list[bytes]) -> None:
        """Add message frames, given in pieces. Called by the client's channel."""
        held = self._held_messages
        if held is None:
            self._frames += pieces
        else:
            held.frames += pieces
            held.message_pieces += len(pieces)
        self.wake()

    def send_views(self, pieces: list[Piece]) -> None:
        """Add message frames like `send_messages`. Their pieces may be views of a batch.

        Frames that have to wait for the log are copied, because each view keeps the whole batch in memory.
        """
        if self._held_messages is None:
            self._frames += pieces
            self.wake()
        else:
            self.send_messages([bytes(piece) for piece in pieces])

    def release(self) -> ProtocolError | None:
        """Make the responses with settled receipts ready to send.

        If a publish or SUB has failed, drop everything held after it, and return the error, which closes the client.
        """
        held = self.held
        released = 0
        for first in held:
            if not first.receipt.settled:
                break
            released += 1
            if first is self._held_messages:
                self._held_messages = None
            self.owed += first.message_pieces - len(first.frames)
            if first.receipt.error is not None:
                held.clear()
                self.owed = 0
                cause = first.command + b" failed " + first.receipt.error.encode()
                return ProtocolError(Fault(f"E_{first.command.decode()}_FAILED"), cause)
            self._frames += first.frames
        del held[:released]
        if held and not held[0].watched:
            held[0].watched = True
            held[0].receipt.when_settled(self.wake)
        return None

    def take(self) -> list[Piece]:
        """Return the pieces that are ready to send, and forget them."""
        frames, self._frames = self._frames, []
        return frames

    def clear(self) -> None:
        """Drop all frames, because nothing more will be sent."""
        self.held.clear()
        self._frames.clear()
