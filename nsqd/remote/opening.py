"""What a start with `--remote` does between locking its data path and recovering it: it claims the name, and settles.

Afterwards this process owns the name, and the data path has what the chain says, or more if it was the last owner's.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqcommon.boot import boot_id
from nsqcommon.entry import HELD_SIGNALS
from nsqcommon.remote.framing import BadObject, NewerFormat
from nsqcommon.remote.names import slot_name
from nsqcommon.remote.slot import Claimant
from nsqcommon.startup import StartupError, TakenOver
from nsqcommon.version import NSQ_VERSION
from nsqd.log.data_path import TOPICS, DataPathError, is_journal
from nsqd.log.files import error_text
from nsqd.remote.claim import Claim, Claimed
from nsqd.remote.claiming import Surroundings, claim_name
from nsqd.remote.fetching import Abandoned, Fetch
from nsqd.remote.kept_slots import KeptSlots
from nsqd.remote.local_files import LocalFiles
from nsqd.remote.object_store import ObjectStore, OnUnknown, StoreFault, ignore
from nsqd.remote.second_names import SecondNames
from nsqd.remote.settling import Settled, Settling, load_mark, save_mark

if TYPE_CHECKING:
    from pathlib import Path

    from nsqd.log.data_path import DataPath
    from nsqd.log.files import Files
    from nsqd.remote.local_mark import LocalMark
    from nsqd.remote.rate_limit import RateLimit
    from nsqd.remote.vigil import Vigil

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a start knows before it asks the store.

    `files` must not be recorded ones: what a settled data path differs in from the store is shipped after the recovery.
    """

    name: str
    open_store: Callable[[OnUnknown], ObjectStore]
    data_path: DataPath
    files: Files
    http_address: str = ""
    takes_over: bool = False
    vigil: Vigil | None = None  # of a standby
    check: Callable[[], object] = lambda: None  # of a store that gets a new node; raises StartupError
    surroundings: Surroundings | None = None
    place: str = ""  # the store's URL
    limit: RateLimit | None = None  # on fetching

    def run(self) -> tuple[Claimed, Settled]:
        """Own the name, and make the data path what its owner has to begin with. Raises StartupError."""
        local = LocalFiles(self.data_path.folder, self.files)
        try:
            SecondNames(local).take_away()
            found = load_mark(local)
            timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            is_new = not has_data(local)
            with closing(KeptSlots(local.folder, self.files, own=found.writers if found is not None else ())) as kept:
                is_stopped = self._surroundings.is_stopped
                fetch = Fetch(self.open_store(ignore), is_abandoned=is_stopped, limit=self.limit, kept=kept)
                settling = Settling(local, fetch, found, boot=boot_id(), timestamp=timestamp, is_new=is_new)
                claimed = self._claim(local, found, settling, kept)
                settled = self._settle(claimed, settling)
        except Abandoned as error:
            raise StartupError(f"stopped while fetching {self.name} from the store") from error
        except OSError as error:
            path = error.filename or self.data_path.folder
            raise DataPathError(f"failed to open data-path: {error_text('open', path, error)}") from error
        except NewerFormat as error:
            raise StartupError(f"{local.folder}/remote.json {error}: use a newer version of nsqd") from error
        self.data_path.read_again()
        _log_settled(self.name, settled)
        return claimed, settled

    @property
    def _surroundings(self) -> Surroundings:
        return self.surroundings or Surroundings(is_stopped=is_stop_pending)

    def _claim(self, local: LocalFiles, found: LocalMark | None, settling: Settling, kept: KeptSlots) -> Claimed:
        surroundings = self._surroundings
        claim = Claim(
            node=self.data_path.node or (found.node if found is not None else ""),
            writer=surroundings.new_writer(),
            first_writer=surroundings.new_writer(),
            claimant=claimant_of_this_process(self.http_address),
            time_ns=time.time_ns(),
            mark=found,
            may_leap=False,
            has_data=has_data(local),
        )
        return claim_name(
            self.name,
            self.open_store,
            claim,
            save=lambda mark: save_mark(local, mark),
            check=self.check,
            prepare=settling.prepare,
            keep=kept.keep,
            takes_over=self.takes_over,
            vigil=self.vigil,
            surroundings=surroundings,
            place=self.place,
        )

    def _settle(self, claimed: Claimed, settling: Settling) -> Settled:
        try:
            return settling.run(claimed)
        except BadObject as error:
            if is_taken_over(self.open_store(ignore), claimed):
                raise TakenOver(f"{self.name} was taken over by another process during this start") from error
            raise StartupError(f"{self.name} can't be restored from the store: {error}") from error


def is_taken_over(store: ObjectStore, claimed: Claimed) -> bool:
    """Return whether there is a next owner, who may have swept what this one has read. False if the store can't say."""
    try:
        return store.get(slot_name(claimed.run, 0), 0, 1) is not None
    except StoreFault:
        return False


def claimant_of_this_process(http_address: str) -> Claimant:
    return Claimant(platform.node(), os.getpid(), boot_id(), http_address, NSQ_VERSION)


def has_data(local: LocalFiles) -> bool:
    """Return whether a data path is more than a new one, so that it has to be of the node that the name has."""
    return any(is_journal(it) or it.startswith(f"{TOPICS}/") for it in local.every())


def is_stop_pending() -> bool:
    """Return whether this process was asked to stop during its start, when signals are held."""
    return bool(signal.sigpending() & HELD_SIGNALS)


def _log_settled(name: str, settled: Settled) -> None:
    aside: Path | None = settled.aside
    log.info(
        "owning %s in the store: %s its data path, fetched %d files%s",
        name,
        {"continue": "continuing with", "adopt": "adopted"}[settled.decision.value],
        settled.fetched,
        f", other files are in {aside}" if aside is not None else "",
    )
