"""An operator who runs `nsqd remote fsck --sweep` now and then, and takes a rest between any two steps of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.names import NODE, gone_name, writer_name
from nsqcommon.remote.slot import Claimant
from nsqd.remote.claim import ChainRead, Claim
from nsqd.remote.fsck import Leftovers, StoreExamination
from nsqd.remote.object_store import Created, Names
from tests.simulation.promise import Violation
from tests.simulation.remote.store import Call, FaultyStore

if TYPE_CHECKING:
    from tests.simulation.remote.life import RemoteLife

UNUSED: Final = writer_name(0)
MOST_STEPS: Final = 10_000


class OperatorsStore:
    """The store of a life as the operator's machine sees it: it answers at once, and what is deleted goes sometime."""

    def __init__(self, store: FaultyStore) -> None:
        self._store = store

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        call = Call(None, "create", name, data if isinstance(data, bytes) else b"".join(data))
        self._store.happen(call)
        assert isinstance(call.result, Created)
        return call.result

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        found = self._store.objects.get(name)
        return None if found is None else found[start:end]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._store.send(Call(None, "delete", name))

    def list(self, prefix: str, after: str = "") -> Names:
        return sorted(it for it in self._store.objects if it.startswith(prefix) and it > after)

    def overwrite(self, name: str, data: bytes) -> None:
        raise AssertionError("fsck knows nothing that a hint could say")


class Operator:
    def __init__(self, life: RemoteLife) -> None:
        self._life = life
        self._store = OperatorsStore(life.store)
        self._examination = StoreExamination(self._store, at_once=1)
        self._begin()

    def _begin(self) -> None:
        self._claim = Claim(
            node="", writer=UNUSED, first_writer=UNUSED, claimant=Claimant(), time_ns=0, may_leap=False, slots_ahead=2
        )
        self._read: ChainRead | None = None
        self._leftovers: Leftovers | None = None

    def step(self) -> None:
        if self._read is None:
            self._go_on_reading()
        elif self._leftovers is None:
            self._leftovers = self._examination.leftovers(self._read)
            if self._leftovers.unknown:
                raise Violation(f"nobody knows these objects: {self._leftovers.unknown}")
        else:
            self._life.counts["orphans"] += sum(1 for _ in self._examination.sweep(self._read, self._leftovers))
            self._begin()

    def _go_on_reading(self) -> None:
        if self._store.get(NODE) is None:
            return
        for request in self._claim.next_requests():
            self._claim.answered(request, self._store.get(request.name))
        if self._claim.fault is not None:
            raise Violation(f"the chain can't be read: {self._claim.fault}")
        if self._claim.is_looking:
            read = self._claim.read()
            if any(self._store.get(gone_name(it.run)) is not None for it in read.path):
                self._begin()
            else:
                self._read = read

    def examine(self) -> None:
        """Look whether everything is there that the node needs, when no process does anything."""
        for _ in range(MOST_STEPS):
            if self._read is not None:
                break
            self._go_on_reading()
        else:
            raise Violation("the chain can't be read to its end")
        if damage := list(self._examination.damage(self._read)):
            raise Violation(f"fsck finds {damage[0]}")
