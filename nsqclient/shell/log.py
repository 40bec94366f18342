"""The log lines of consumers and producers: one for each event, in NSQ's words where NSQ has the line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from nsqclient.core import events
from nsqcommon.log_rate_limit import LogRateLimit

LOGGER: Final = logging.getLogger("nsqclient")

_SAME_FAILURE: Final = 60.0  # seconds between lines about an nsqlookupd that fails for the same reason
_MOST_SHOWN: Final = 5  # at most this many addresses in one line

# Events that may occur for each message, or at any rate that a faulty nsqd chooses.
_OF_A_MESSAGE: Final = (events.LateResponse, events.GaveUp, events.LatePublish, events.Refused)


def logging_events(logger: logging.Logger, prefix: str) -> Callable[[events.Event], None]:
    """Return a function that logs each event as one line. The line's `extra` has `nsqd`, the address, and `event`."""

    rations: dict[str, LogRateLimit] = {}  # limits lines about messages, for each nsqd until it disconnects
    failures: dict[events.LookupFailed, float] = {}  # when we last logged each; a client asks every second or so

    def log(event: events.Event) -> None:
        level, text = _line(event)
        if isinstance(event, events.LookupFailed):
            if monotonic() - failures.get(event, -_SAME_FAILURE) < _SAME_FAILURE:
                level = logging.DEBUG
            else:
                failures[event] = monotonic()
        elif isinstance(event, events.DiscoveryRound) and not event.failed:
            failures.clear()
        if not logger.isEnabledFor(level):
            return
        address = getattr(event, "address", "")
        where = f"({address}) " if address else ""
        about = {"nsqd": address, "event": type(event).__name__}
        if isinstance(event, _OF_A_MESSAGE) and not rations.setdefault(address, LogRateLimit()).allows(monotonic()):
            return
        if address in rations and (left_out := rations[address].take_suppressed()):
            logger.log(
                logging.WARNING, "%s%s%d more lines about messages suppressed", prefix, where, left_out, extra=about
            )
        if isinstance(event, events.Disconnected):
            rations.pop(address, None)
        logger.log(level, "%s%s%s", prefix, where, text, extra=about)

    return log


def _line(event: events.Event) -> tuple[int, str]:
    match event:
        case events.Connected(server_version=version):
            return logging.INFO, f"connected to nsqd {version}".rstrip()
        case events.ConnectFailed(reason=reason):
            return logging.ERROR, f"error connecting to nsqd - {reason}"
        case events.Disconnected(reason=""):
            return logging.INFO, "clean close complete"
        case events.Disconnected(reason=reason, left=left):
            return logging.WARNING, f"{reason}; there are {left} connections left alive"
        case events.Refused(text=text):
            return logging.ERROR, f"protocol error - {text}"
        case events.Limited(text=text):
            return logging.WARNING, text
        case events.LateResponse(text=text):
            return logging.WARNING, f"answered too late - {text}"
        case events.BackoffStarted(level=level, seconds=seconds):
            return logging.WARNING, f"backing off for {seconds:g}s (backoff level {level}), setting all to RDY 0"
        case events.BackoffEnded():
            return logging.WARNING, "exiting backoff"
        case events.GaveUp(message=message, reason=reason, buried=buried):
            return logging.WARNING, f"msg {message.id} {reason}, giving up{' and burying it' if buried else ''}"
        case events.DiscoveryRound(found=found, failed=failed):
            return logging.DEBUG, f"discovery: {found} nsqd found, {failed} nsqlookupd did not answer"
        case events.LookupFailed(lookupd=lookupd, reason=reason):
            return logging.WARNING, f"error querying nsqlookupd ({lookupd}) - {reason}"
        case events.Unreachable(hostname=hostname, remote_address=remote, failures=failures):
            return logging.ERROR, (
                f"cannot be reached after {failures} tries, but nsqlookupd lists it (hostname {hostname}, "
                f"registered from {remote}): is its broadcast address right?"
            )
        case events.NodeIgnored(lookupd=lookupd, reason=reason):
            return logging.WARNING, f"is listed by nsqlookupd ({lookupd}) and not used: {reason}"
        case events.NodesChanged(addresses=addresses, members=members):
            shown = ", ".join(addresses[:_MOST_SHOWN]) + (", ..." if len(addresses) > _MOST_SHOWN else "")
            return logging.INFO, f"publishing to {len(addresses)} of {members} nsqds: {shown}"
        case events.LatePublish(topic=topic, error=error):
            outcome = "done" if error is None else f"failed - {error}"
            return logging.INFO, f"cancelled publish to {topic}: {outcome}"
