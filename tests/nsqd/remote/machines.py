"""Machines with a disk that share a store. Everything that an owner has recorded is confirmed when `send` returns."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final

from nsqcommon.remote.names import writer_name
from nsqd.log.data_path import DataPath, write_log_json
from nsqd.log.files import Files
from nsqd.remote.chain import ChainRequest, RequestVerb
from nsqd.remote.claim import Claimed
from nsqd.remote.claiming import Surroundings
from nsqd.remote.local_files import LocalFiles
from nsqd.remote.object_store import OnUnknown, ignore
from nsqd.remote.opening import Opening
from nsqd.remote.owner import Owner
from nsqd.remote.owner_call import OwnerAnswer
from nsqd.remote.pacing import Pacing
from nsqd.remote.rate_limit import RateLimit
from nsqd.remote.recorder import RecordedFiles
from nsqd.remote.root_job import RootJob, begin_chain
from nsqd.remote.sweep import ROOT_SECONDS
from tests.support.object_stores import MemoryStore, Objects

JOURNAL: Final = "journal.000001"
LOG: Final = "topics/t.orders/00000000.log"


@dataclass
class Machine:
    """A data path on a disk of its own. `start` owns the name, and `write` changes a file as nsqd would."""

    folder: Path
    objects: Objects = field(default_factory=Objects)
    pauses: int = 0
    is_stopped: Callable[[], bool] = lambda: False
    limit: RateLimit | None = None
    disk: Files = field(default_factory=Files)  # that starts use
    writers: list[str] = field(default_factory=list)  # the names that the next claims draw, last first

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)

    def open_store(self, on_unknown: OnUnknown = ignore) -> MemoryStore:
        return MemoryStore(self.objects, on_unknown=on_unknown)

    def start(self, *, takes_over: bool = True) -> Claimed:
        self.data_path = DataPath(self.folder, Files(), new_id=lambda: f"node-of-{self.folder.name}")
        self.data_path.open()
        try:
            self.claimed, self.settled = self.opening(takes_over=takes_over).run()
        except BaseException:
            self.data_path.close()
            raise
        self.clock = Steps()
        self.owner = Owner(self.claimed, Pacing(interval=0.01, delay=1.0), chance=lambda: 0.5)
        self.messenger = Messenger(self.owner, self.open_store(), self.clock)
        self.files = RecordedFiles(Files(), self.folder, self.owner.record)
        return self.claimed

    def send_difference(self) -> None:
        """Do what a start does after the recovery."""
        self.job = RootJob(
            self.owner,
            self.claimed,
            self.open_store(),
            LocalFiles(self.folder, Files()),
            clock=self.clock,
            limit=self.limit,
        )
        begin_chain(self.owner, self.claimed, self.job)
        self.send()

    def send(self) -> None:
        """Have the store confirm everything that was recorded."""
        self.messenger.send()

    def make_root(self) -> None:
        """Have a root that is due committed."""
        self.clock.now += ROOT_SECONDS
        self.job.step()
        self.send()
        self.job.step()

    def opening(self, *, takes_over: bool = True) -> Opening:
        return Opening(
            name="orders",
            open_store=self.open_store,
            data_path=self.data_path,
            files=self.disk,
            takes_over=takes_over,
            http_address="127.0.0.1:1",
            surroundings=Surroundings(
                pause=self._pause,
                answers=lambda owner, writer: OwnerAnswer.NO,
                new_writer=self._new_writer,
                is_stopped=lambda: self.is_stopped(),
            ),
        )

    def _pause(self, seconds: float) -> None:
        self.pauses += 1

    def _new_writer(self) -> str:
        return self.writers.pop() if self.writers else writer_name(secrets.randbits(64))

    def pump(self) -> None:
        """Have every change confirmed as soon as somebody waits for it, as the sender's threads would."""
        self.owner.wake = self.owner.hurry = self.send  # type: ignore[method-assign]

    def die(self) -> None:
        """End as if by kill -9: what was not sent is not in the store."""
        self.data_path.close()

    # What nsqd does to its disk

    def append(self, path: str, data: bytes) -> None:
        target = self.folder / path
        self._make_folders(target.parent)
        descriptor = self.files.open_to_write(target)
        self.files.write_fully(descriptor, [data], self.files.size(descriptor))
        self.files.close(descriptor)

    def cut(self, path: str, size: int) -> None:
        descriptor = self.files.open_to_write(self.folder / path)
        self.files.truncate(descriptor, size)
        self.files.close(descriptor)

    def _make_folders(self, path: Path) -> None:
        if not self.files.exists(path):
            self._make_folders(path.parent)
            self.files.make_folder(path)

    def create_topic(self, topic: str, log: str) -> None:
        self._make_folders(self.folder / f"topics/t.{topic}")
        write_log_json(self.files, self.folder / f"topics/t.{topic}", topic, log, durable=False)

    def delete_topic(self, topic: str) -> None:
        dropped = self.folder / "topics/x.dropped"
        self.files.rename(self.folder / f"topics/t.{topic}", dropped)
        self.files.remove_folder(dropped)

    def unlink(self, path: str) -> None:
        self.files.unlink(self.folder / path)

    def content(self) -> dict[str, bytes]:
        """Return the files of logs and the journal."""
        paths = [*self.folder.glob("journal.*"), *self.folder.glob("topics/**/*")]
        return {str(it.relative_to(self.folder)): it.read_bytes() for it in paths if it.is_file()}

    def node_json(self) -> tuple[str, int]:
        path = DataPath(self.folder, Files(), new_id=lambda: "")
        path.read_again()
        return path.node, path.ids_reserved


class Steps:
    """A clock that moves when there is nothing to do now."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Messenger:
    """Stands in the place of the sender: asks the store one request at a time, until nothing is left."""

    def __init__(self, owner: Owner, store: MemoryStore, clock: Steps) -> None:
        self.owner = owner
        self.store = store
        self.clock = clock

    def send(self) -> None:
        self.owner.expect_confirmation()
        while self.owner.fenced is None and not self.owner.is_settled and not self.owner.may_jump:
            found = self.owner.next_request(self.clock.now)
            if isinstance(found, ChainRequest):
                self._perform(found)
            else:
                self.clock.now = found

    def send_some(self, requests: int) -> None:
        """Perform this number of steps of `send`, and leave the rest."""
        self.owner.expect_confirmation()
        for _ in range(requests):
            found = self.owner.next_request(self.clock.now)
            if isinstance(found, ChainRequest):
                self._perform(found)
            elif found < inf:
                self.clock.now = found

    def _perform(self, request: ChainRequest) -> None:
        if request.verb is RequestVerb.CREATE:
            self.owner.created(request, self.store.create(request.name, request.data), self.clock.now)
        else:
            self.owner.got(request, self.store.get(request.name), self.clock.now)
