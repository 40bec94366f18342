"""A store that is a dict, and shells that do at once what the cores ask for."""

from __future__ import annotations

from nsqcommon.remote.names import Run, root_name, slot_name
from nsqcommon.remote.operations import Commit, Operation
from nsqcommon.remote.root import Root, encode_root
from nsqcommon.remote.slot import Claimant, Slot, decode_slot
from nsqd.remote.chain import Chain, RequestVerb
from nsqd.remote.claim import Ask, Claim, Claimed, ClaimRequest, RunRead
from nsqd.remote.local_mark import LocalMark
from nsqd.remote.object_store import Created
from nsqd.remote.sweep import CheckMark, Delete, Roots, SetHint, SetMark


def writer(letter: str) -> str:
    return letter * 16


def first_writer(letter: str) -> str:
    return "0" + letter * 15


FIRST = Run(0, first_writer("a"))


class Shelf:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.saved: list[LocalMark] = []

    def create(self, name: str, data: bytes) -> Created:
        if name in self.objects:
            return Created.EXISTS
        self.objects[name] = data
        return Created.CREATED

    def slot(self, run: Run, number: int) -> Slot:
        return decode_slot(self.objects[slot_name(run, number)])[0]

    # Claiming

    def new_claim(self, letter: str, *, mark: LocalMark | None = None, may_leap: bool = True) -> Claim:
        claimant = Claimant(f"machine-{letter}", 1, "boot")
        return Claim(
            node="node",
            writer=writer(letter),
            first_writer=first_writer(letter),
            claimant=claimant,
            time_ns=1,
            mark=mark,
            may_leap=may_leap,
            slots_ahead=3,
        )

    def answer(self, claim: Claim, request: ClaimRequest) -> None:
        self.asked.append(f"{request.ask.value} {request.name}".strip())
        match request.ask:
            case Ask.GET:
                claim.answered(request, self.objects.get(request.name))
            case Ask.CREATE:
                claim.answered(request, self.create(request.name, request.data))
            case Ask.SAVE:
                assert request.mark is not None
                self.saved.append(request.mark)
                claim.answered(request, None)

    def go_on(self, claim: Claim, *, until: str = "") -> ClaimRequest | None:
        """Answer requests until the claim has ended, or return the first one that begins with `until`, unanswered."""
        while requests := claim.next_requests():
            for request in requests:
                if until and f"{request.ask.value} {request.name}".startswith(until):
                    return request
                self.answer(claim, request)
        return None

    def claimed(self, letter: str, *, mark: LocalMark | None = None) -> Claimed:
        claim = self.new_claim(letter, mark=mark)
        self.go_on(claim)
        assert claim.claimed is not None, claim.fault
        return claim.claimed


class Owner:
    """An owner whose every request is answered at once."""

    def __init__(self, shelf: Shelf, claimed: Claimed) -> None:
        self.shelf = shelf
        self.claimed = claimed
        self.chain = Chain(claimed.node, claimed.run, chance=lambda: 0.0)
        self.roots = Roots(claimed.path, 0.0)
        self.number = 0

    def append(self, *operations: Operation, body: bytes = b"") -> None:
        self.chain.append(operations, [body], 0, 1)
        self.number += 1
        self.send()

    def send(self) -> None:
        while (request := self.chain.next_request(1e9)) is not None:
            if request.verb is RequestVerb.CREATE:
                assert request.slot is not None
                self.chain.created(request, self.shelf.create(request.name, b"".join(request.slot.data)), 0.0)
            else:
                self.chain.got(request, self.shelf.objects.get(request.name), 0.0)

    def end_run(self, root: Root | None = None) -> Run:
        """End the run, store the root of the next one, and commit it."""
        ended = self.chain.run
        number, self.number = self.number, 0
        following = self.chain.end_run(0, 1)
        self.send()
        root = root or Root(self.claimed.node, following, {})
        self.shelf.objects[root_name(following)] = encode_root(root)
        self.roots.begin(RunRead(ended, number, is_fenced=False), following, self.claimed.catalog.objects)
        self.roots.stored(root)
        commit = self.roots.take_commit()
        assert commit is not None
        self.append(commit)
        for slot in self.chain.take_confirmed():
            for operation in slot.slot.operations:
                if isinstance(operation, Commit):
                    self.roots.confirmed(operation, 0.0)
        return following

    def sweep(self, now: float = 0.0, most: int = 1_000_000) -> None:
        for _ in range(most):
            step = self.roots.next_step(now)
            if step is None:
                return
            match step:
                case SetMark(name, data):
                    self.roots.marked(step, self.shelf.create(name, data))
                case CheckMark(name):
                    self.roots.checked(step, self.shelf.objects.get(name))
                case SetHint(data):
                    self.shelf.objects["hint"] = data
                    self.roots.done(step)
                case Delete(names):
                    for name in names:
                        self.shelf.objects.pop(name, None)
                    self.roots.done(step)
