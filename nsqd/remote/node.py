"""A node whose log is in an object store, from its start to its end.

data path is locked ── claim ──> recovery ── begin ──> serving ── close ──> unlocked
                        │                     │                     │
                        │                     │                     └── the rest, a root and an end are in the store
                        │                     └── the store has what the recovered data path has
                        └── this process owns the name; the data path is what the store says, or more
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.startup import StartupError, TakenOver
from nsqd.broker.store import RemoteSnapshot, RemoteState
from nsqd.log.data_path import DataPathError
from nsqd.log.files import Files, error_text
from nsqd.remote.check import CheckVerdict, StoreCheck
from nsqd.remote.counted_store import CountedStore, RequestCounts
from nsqd.remote.fetching import Abandoned
from nsqd.remote.local_files import LocalFiles, folders_aside
from nsqd.remote.object_store import ObjectStore, OnUnknown, ignore
from nsqd.remote.opening import Opening, is_stop_pending
from nsqd.remote.owner import Owner
from nsqd.remote.pacing import DEPTH, FULL_SLOT, Pacing
from nsqd.remote.rate_limit import RateLimit
from nsqd.remote.root_job import RootJob, begin_chain
from nsqd.remote.sender import Sender
from nsqd.remote.stores.opening import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from nsqd.log.data_path import DataPath
    from nsqd.remote.claim import Claimed
    from nsqd.remote.claiming import Surroundings
    from nsqd.remote.location import StoreLocation
    from nsqd.remote.recorder import RecordedFiles
    from nsqd.remote.settling import Settled
    from nsqd.remote.vigil import Vigil

log = logging.getLogger(__name__)

_CHECK_ROUNDS: Final = 5  # of races at the first use of a prefix; `nsqd remote check` runs 200
_REPORT_INTERVAL: Final = 10.0  # seconds
_LOOK_INTERVAL: Final = 0.5  # seconds, at a signal that wants the start to end


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """What the options say. Times are in seconds."""

    location: StoreLocation
    options: Mapping[str, str]
    name: str
    interval: float
    delay: float
    timeout: float
    buffer: int = 64 << 20  # bytes
    rate: int = 0  # bytes per second of what no OK waits for; 0: no limit
    is_strict: bool = False  # refuse all publishes while the store is away
    http_address: str = ""  # of this process, for those who want to know whether it is alive
    takes_over: bool = False


class RemoteNode:
    """Call `claim`, recover the store, call `begin` and, when everything is written, `close`. All of them block."""

    owner: Owner
    sender: Sender
    job: RootJob
    claimed: Claimed
    settled: Settled

    def __init__(
        self,
        settings: RemoteSettings,
        *,
        open_store: Callable[..., ObjectStore] = open_store,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.requests = RequestCounts()
        self._open_any_store = open_store
        self._clock = clock
        self._asides: tuple[Path, ...] = ()  # all that the start has found or made
        self._has_begun = False

    def open_store(self, on_unknown: OnUnknown = ignore) -> ObjectStore:
        settings = self.settings
        store = self._open_any_store(settings.location, settings.options, node=settings.name, on_unknown=on_unknown)
        return CountedStore(store, self.requests)

    def claim(
        self,
        data_path: DataPath,
        files: Files,
        recorded: RecordedFiles,
        *,
        vigil: Vigil | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """Own the name, make the data path what its owner begins with, and record its changes from now on.

        `files` are those that `recorded` passes its calls to. With a `vigil`, wait until another owner is gone. Raises
        StartupError.
        """
        settings = self.settings
        limit = RateLimit(settings.rate) if settings.rate else None
        opening = Opening(
            name=settings.name,
            open_store=self.open_store,
            data_path=data_path,
            files=files,
            http_address=settings.http_address,
            takes_over=settings.takes_over,
            vigil=vigil,
            check=self._check,
            surroundings=surroundings,
            place=str(settings.location),
            limit=limit,
        )
        self.claimed, self.settled = opening.run()
        pacing = Pacing(interval=settings.interval, delay=settings.delay)
        self.owner = Owner(self.claimed, pacing, buffer=max(settings.buffer, 2 * FULL_SLOT))  # more than any difference
        self.sender = Sender(self.owner, self.open_store, depth=DEPTH)
        self.job = RootJob(
            self.owner,
            self.claimed,
            self.open_store(),
            LocalFiles(data_path.folder, files),
            clock=self._clock,
            last_fault=lambda: self.sender.fault,
            limit=limit,
        )
        recorded.record_to(self.owner.record)

    def begin(self) -> None:
        """Have the store confirm what the recovered data path has. Nothing may be served before. Raises StartupError."""
        local = self.job.local
        try:
            self._asides = folders_aside(local.folder, local.files)
            begin_chain(self.owner, self.claimed, self.job, is_stopped=is_stop_pending)
        except OSError as error:
            path = error.filename or local.folder
            raise DataPathError(f"failed to open data-path: {error_text('read', path, error)}") from error
        except BadObject as error:
            raise StartupError(f"{self.settings.name} can't be stored: {error}") from error
        except Abandoned as error:
            raise self._stopped() from error
        self.sender.start()
        self._wait_until_confirmed()
        self.job.start()
        self._has_begun = True

    def leave(self) -> None:
        """Change the data path no more, because another process owns the name and may soon lock the data path."""
        self.job.leave()

    def close(self, within: float) -> None:
        """Leave the name to the next owner, in about this many seconds.

        If `begin` was stopped, nothing was served, and what the store lacks is what it lacked before.
        """
        if self._has_begun:
            self.job.close(within)
        self.sender.close()

    def snapshot(self, *, refusal: str | None, waiting_publishes: int) -> RemoteSnapshot:
        owner, claimed, settled = self.owner.snapshot(self._clock()), self.claimed, self.settled
        is_lost = self.owner.fenced is not None
        requests, create_seconds = self.requests.snapshot()
        return RemoteSnapshot(
            state=RemoteState.FENCED if is_lost else RemoteState.DOWN if refusal is not None else RemoteState.OWNER,
            store=str(self.settings.location),
            name=self.settings.name,
            owner=str(claimed.claimant),
            pid=claimed.claimant.pid,
            boot=claimed.claimant.boot,
            run=owner.run,
            refusal=refusal or "",
            fault=self.sender.fault.text if self.sender.fault is not None else self.job.fault,
            recorded=owner.recorded,
            confirmed=owner.confirmed,
            behind_seconds=owner.behind_seconds,
            behind_bytes=owner.behind_bytes,
            silent_seconds=owner.silent_seconds,
            waiting_publishes=waiting_publishes,
            requests=requests,
            create_seconds=create_seconds,
            confirm_seconds=owner.confirm_seconds,
            slots=owner.slots,
            slot_bytes=owner.slot_bytes,
            roots=self.job.stored,
            files=owner.files,
            decision=settled.decision.value,
            fetched=settled.fetched,
            rate=self.settings.rate,
            is_strict=self.settings.is_strict,
            aside=str(settled.aside or ""),
            asides=tuple(str(it) for it in self._asides if self.job.local.files.exists(it)),
        )

    def raise_bug(self) -> None:
        """Raise the exception with which a thread has ended, if one has."""
        bug = self.sender.bug or self.job.bug
        if bug is not None:
            raise bug

    def raise_if_lost(self) -> None:
        """Raise TakenOver if another process owns the name now."""
        if self.owner.fenced is not None:
            raise self._taken_over()

    def _taken_over(self) -> TakenOver:
        return TakenOver(f"{self.settings.name}: {self.owner.fenced or 'the name was taken over by another process'}")

    def _stopped(self) -> StartupError:
        return StartupError(f"stopped before the store had the data path of {self.settings.name}")

    def _wait_until_confirmed(self) -> None:
        owner, sender = self.owner, self.sender
        reported = self._clock()
        owner.expect_confirmation()
        owner.hurry()
        bell = select.poll()  # `select.select` knows only descriptors up to 1,023
        bell.register(sender.doorbell.descriptor, select.POLLIN)
        while owner.confirmed < owner.position:
            if bell.poll(_LOOK_INTERVAL * 1000):
                sender.doorbell.answer()
            self.raise_if_lost()
            self.raise_bug()
            if is_stop_pending():
                raise self._stopped()
            if (now := self._clock()) >= reported + _REPORT_INTERVAL:
                reported = now
                log.warning("waiting for the store to have this data path: %s", sender.fault or "no answer yet")

    def _check(self) -> None:
        """Refuse a store that doesn't keep its word, before it gets a new node. Raises StartupError and StoreFault."""
        settings = self.settings

        def opened(on_unknown: OnUnknown) -> ObjectStore:
            return self._open_any_store(settings.location, settings.options, on_unknown=on_unknown)

        check = StoreCheck(opened, random=SystemRandom(), clock=self._clock, pause=time.sleep, rounds=_CHECK_ROUNDS)
        for finding in check.run(is_short=True):
            if finding.verdict is CheckVerdict.REFUSED:
                raise StartupError(
                    f"--remote={settings.location} can't be used: {finding.text}; nsqd remote check says more"
                )
