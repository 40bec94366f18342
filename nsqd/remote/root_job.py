"""Makes roots in a thread while the owner goes on, and sweeps what their commits have made unnecessary.

    end the run ──> folds and root are stored ──> local files are synced, the mark says so ──> commit ──> confirmed ──> sweep

The mark comes before the commit, so that a data path with an older mark is known to be a copy from before.

A root in the making is given up if the disk refuses to read or sync, and a later one is tried. Until then the slots stay.
The folds that it has stored go with the sweep of the later one.

If the store was away for so long that the owner has dropped changes, they are on the disk only. Then the chain goes on
from a root that has them, and nothing is sent before it is stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from math import inf
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import HINT, NODE
from nsqd.log.data_path import READERS_JSON, TOPOLOGY_JSON
from nsqd.log.files import error_text
from nsqd.remote.catalog import mostly_dead, plan_fold, unsent_files
from nsqd.remote.daemon_threads import DaemonThreads
from nsqd.remote.difference import find_difference, plan_root
from nsqd.remote.fetching import Abandoned, Fetch
from nsqd.remote.local_mark import Decision
from nsqd.remote.object_store import Created, ObjectStore, StoreFault
from nsqd.remote.root_making import FOLDS_AT_ONCE, RootMaking, Storing
from nsqd.remote.second_names import SecondNames
from nsqd.remote.settling import save_mark
from nsqd.remote.sweep import CheckMark, Delete, Roots, SetHint, SetMark, Step

if TYPE_CHECKING:
    from nsqcommon.remote.names import Run
    from nsqcommon.remote.root import Root
    from nsqd.remote.catalog import FileToFold, Snapshot
    from nsqd.remote.claim import Claimed
    from nsqd.remote.local_files import LocalFiles
    from nsqd.remote.owner import Jump, Owner
    from nsqd.remote.rate_limit import RateLimit

log = logging.getLogger(__name__)

NAME: Final = "nsqd roots"
UNSHIPPED: Final = (TOPOLOGY_JSON, READERS_JSON)  # a start makes them again, but reports that they were missing
INTERVAL: Final = 1.0  # seconds between two looks whether something is due
PAUSE: Final = 10.0  # seconds after something has failed
_LOOK_INTERVAL: Final = 0.002  # seconds
_SAVING_TIMEOUT: Final = 1.0  # seconds
_LAST_REQUEST: Final = 1.0  # seconds for a request that is under way when the time of a stop is up
_EMPTIED: Final = (
    "the store has no such node any more: has somebody emptied it? All is on this disk; stop this nsqd, and run nsqd remote "
    "seed before its next start"
)
_MOST_TRIES: Final = 100  # to begin a jump while files vanish
MOST_SLOTS_READ: Final = 500  # by our claim; the next one should have fewer


def begin_chain(
    owner: Owner, claimed: Claimed, job: RootJob, *, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Begin the chain with what the recovered data path has and the store hasn't, and the other way round.

    Nothing may be served before the owner has it confirmed. If it is too large for a slot, this blocks until the store
    has all of it. Raises OSError, BadObject, and Abandoned if `is_stopped`.
    """
    local = job.local
    difference = find_difference(claimed.catalog, local)
    if difference.fits_into_a_slot:
        owner.begin(difference.changes(local))
    else:
        job.begin_with_root(plan_root(claimed.catalog, local, difference), is_stopped)


def least_sizes(root: Root) -> dict[str, int]:
    """Return the sizes of a root's folds, as far as it uses them: only their owner knows how much comes after."""
    sizes: dict[str, int] = {}
    for part in (part for entry in root.files.values() for part in entry.parts):
        if part.object.startswith("fold/"):
            sizes[part.object] = max(sizes.get(part.object, 0), part.offset + part.length)
    return sizes


class RootJob:
    def __init__(
        self,
        owner: Owner,
        claimed: Claimed,
        store: ObjectStore,
        local: LocalFiles,
        *,
        clock: Callable[[], float] = time.monotonic,
        last_fault: Callable[[], StoreFault | None] = lambda: None,
        limit: RateLimit | None = None,
    ) -> None:
        """`last_fault`: why the sender of slots gets no answer. `limit`: for roots for which no publisher waits."""
        self.bug: BaseException | None = None  # the thread has ended with it; the event loop has to raise it
        self.fault = ""  # why the last root could not be made
        self.roots = Roots(claimed.path, clock())
        self.stored = 0  # roots, by this owner
        self._owner = owner
        self._claimed = claimed
        self._mark = claimed.mark
        self._store = store
        self.local = local
        self._clock = clock
        self._last_fault = last_fault
        self._limit = limit
        self._made: tuple[Snapshot, Root] | None = None  # whose commit isn't confirmed yet
        self._fold_sizes = least_sizes(claimed.catalog.root)
        self._is_wanted = claimed.decision is Decision.ADOPT or sum(it.end for it in claimed.path) >= MOST_SLOTS_READ
        self._resumes = -inf
        self._closing = Event()
        self._saving = Lock()
        self._is_left = False  # while the thread was still running
        self._ends_at = inf  # when to abandon the root under way
        self._thread = Thread(target=self._run, name=NAME, daemon=True)  # the interpreter may exit if the store hangs

    # The thread

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and self._owner.fenced is None:
                if not self.step():
                    self._closing.wait(INTERVAL)
        except Abandoned:
            pass
        except BaseException as error:  # a bug of ours, which must not look like a store that hangs
            log.exception("roots are no longer made")
            self.bug = error

    def step(self) -> bool:
        """Do the next thing that is due. Return whether there was one. Raises Abandoned."""
        self._take_commits()
        now = self._clock()
        if now < self._resumes:
            return False
        if self._owner.may_jump:
            return self._try_to_make(self._jump)
        if self._is_due(now):
            return self._try_to_make(self._make_root)
        step = self.roots.next_step(now)
        return step is not None and self._try_to_sweep(step)

    def _take_commits(self) -> None:
        for commit in self._owner.take_commits():
            self.roots.confirmed(commit, self._clock())
            if self._made is not None and self._made[1].run == commit.run:
                snapshot, root = self._made
                self._made = None
                self._owner.rebase(snapshot, root)
                log.info("the store has a root of %d files", len(root.files))

    # Roots

    def _is_due(self, now: float) -> bool:
        owner = self._owner
        if owner.is_stopped:
            return False
        if self._is_wanted:
            return not self.roots.is_busy
        return self.roots.is_due(now, slots=owner.slots_since_root, size=owner.bytes_since_root)

    def _try_to_make(self, make: Callable[[], None]) -> bool:
        try:
            make()
        except (OSError, BadObject, StoreFault) as error:
            text = error_text("use", error.filename, error) if isinstance(error, OSError) else str(error)
            self.fault = f"a root could not be made, trying again later: {text}"
            log.warning("%s", self.fault)
            self._put_off()
            self.roots.give_up()
            return False
        self.fault = ""
        return True

    def _put_off(self) -> None:
        self._resumes = self._clock() + PAUSE

    def _make_root(self) -> None:
        """Make a root of the slots so far, and have it committed. Raises Abandoned, OSError, BadObject, StoreFault.

        It is given up if changes are dropped meanwhile, because its commit would have to wait for a root that has these.
        """
        if self._store.get(NODE) is None:  # slots tell us nothing, because each has a new name
            raise BadObject(_EMPTIED)
        self._is_wanted = False
        ended = self._owner.end_run()
        if ended is None:
            return  # changes were dropped since we looked, so there will be another root
        self.roots.begin(ended.run, ended.following, ended.objects)
        plan = plan_fold(ended.snapshot, dead=mostly_dead(ended.snapshot, self._fold_sizes))
        is_awaited = self._closing.is_set()  # by the next owner
        limit = self._limit if not is_awaited else None
        making = self._making(ended.following, lambda: self._owner.is_stopped, limit=limit)
        try:
            root = self._store_root(making, plan)
        except Abandoned:
            if not self._owner.is_stopped:
                raise
            self.roots.give_up()
            return
        self._commit(root, ended.snapshot, making.fold_sizes)

    def _jump(self) -> None:
        """Have the chain go on from a root of the files on disk. Raises Abandoned, OSError, BadObject."""
        self.roots.give_up()
        self._made = None
        log.info("storing from the disk what the store has not been given: more was waiting than --remote-buffer")
        second_names = SecondNames(self.local)
        try:
            jump = self._begin_jump(second_names)
            making = self._making(
                jump.run,
                read=second_names.read,
                folds_at_once=FOLDS_AT_ONCE,
                took=lambda: self._owner.took(self._clock()),
            )
            root = self._store_root(making, plan_fold(jump.snapshot), second_names)
        except (OSError, BadObject, Abandoned):  # after an Abandoned, `close` makes the next one
            self._owner.give_up_jump()
            raise
        finally:
            with suppress(OSError):  # then they go with the next jump, or the next start
                second_names.take_away()
        ended = self._owner.jump(root)
        self.roots.begin(ended.run, ended.following, ended.objects)
        self._commit(root, {}, making.fold_sizes)

    def _begin_jump(self, second_names: SecondNames) -> Jump:
        """Begin a jump whose files can be read to its end. Raises OSError, BadObject.

        A file may vanish before it has a second name. Then the next jump doesn't need it.
        """
        second_names.take_away()
        for _ in range(_MOST_TRIES):
            jump = self._owner.begin_jump()
            if second_names.give(unsent_files(jump.snapshot)):
                return jump
            self._owner.give_up_jump()
        raise BadObject("files vanish before they can be read")

    def _store_root(
        self, making: RootMaking, plan: Sequence[FileToFold], second_names: SecondNames | None = None
    ) -> Root:
        """Store a root, and note that this disk has all of it. If that fails, its objects go with the next sweep."""
        try:
            root = making.make(plan, UNSHIPPED)
            self.local.sync(it.path for it in plan if it.start < it.size)
            if second_names is not None:
                second_names.sync()
            self._prove(root)
        except BaseException:
            self.roots.leave(making.names)
            raise
        return root

    def begin_with_root(self, plan: Sequence[FileToFold], is_stopped: Callable[[], bool]) -> None:
        """Have the chain begin with a root of the data path. Raises Abandoned, OSError, BadObject."""
        run = self._claimed.run.following(self._claimed.run.writer)
        log.info("storing %d MB before anything is served", sum(it.size - it.start for it in plan) >> 20)
        self.local.sync(it.path for it in plan)
        making = self._making(run, is_stopped, folds_at_once=FOLDS_AT_ONCE, limit=self._limit)
        root = self._store_root(making, plan)
        objects = frozenset(self._claimed.catalog.objects)
        ended = self._owner.begin((), root)
        assert ended is not None
        assert ended.following == run
        self.roots.begin(ended.run, run, objects)
        self._commit(root, {}, making.fold_sizes)

    def _making(
        self,
        run: Run,
        is_stopped: Callable[[], bool] = lambda: False,
        *,
        read: Callable[[str, int, int], bytes] | None = None,
        folds_at_once: int = 1,
        took: Callable[[], object] = lambda: None,
        limit: RateLimit | None = None,
    ) -> RootMaking:
        def is_abandoned() -> bool:
            return self._is_abandoned() or is_stopped()

        return RootMaking(
            Storing(self._store, is_abandoned=is_abandoned, clock=self._clock, took=took, limit=limit),
            Fetch(self._store, is_abandoned=is_abandoned, limit=limit),
            self.local,
            node=self._claimed.node,
            run=run,
            read=read,
            folds_at_once=folds_at_once,
        )

    def _prove(self, root: Root) -> None:
        """Note durably that all bytes of a stored root are synced here. From then on the chain may refer to it."""
        with self._saving:
            if self._is_left or self._owner.fenced is not None:
                raise Abandoned  # another process may have locked the data path, or will do so soon
            self._mark = self._mark.proved(root.run)
            save_mark(self.local, self._mark)

    def _commit(self, root: Root, snapshot: Snapshot, fold_sizes: dict[str, int]) -> None:
        """Have the chain say that a stored root counts, which the mark of this data path knows."""
        self._fold_sizes = {it: size for it, size in self._fold_sizes.items() if it in root.objects()} | fold_sizes
        self.roots.stored(root)
        self.stored += 1
        self._made = snapshot, root
        if (commit := self.roots.take_commit()) is not None:
            self._owner.commit(commit)

    def _is_abandoned(self) -> bool:
        return self._owner.fenced is not None or self._clock() >= self._ends_at

    # Sweeping

    def _try_to_sweep(self, step: Step) -> bool:
        try:
            is_done = self._sweep(step)
        except StoreFault as fault:
            log.warning("deleting from the store is put off: %s", fault)
            is_done = False
        if not is_done:
            self._put_off()
        return is_done

    def _sweep(self, step: Step) -> bool:
        """Do a step of a sweep. Return False if the store hasn't answered. Raises StoreFault."""
        match step:
            case SetMark(name, data):
                answer = self._store.create(name, data)
                self.roots.marked(step, answer)
                return answer is not Created.UNKNOWN
            case CheckMark(name):
                self.roots.checked(step, self._store.get(name))
            case SetHint(data):
                self._store.overwrite(HINT, data)
                self.roots.done(step)
            case Delete(names):
                self._store.delete(names)
                self.roots.done(step)
        return True

    # The end

    def leave(self) -> None:
        """Save no mark from now on, because the data path is about to be unlocked. The thread may go on for a while.

        A mark that is being saved comes first, unless the disk hangs: then this process is about to end anyway.
        """
        self._closing.set()
        self._is_left = True
        if self._saving.acquire(timeout=_SAVING_TIMEOUT):
            self._saving.release()

    def close(self, timeout: float) -> bool:
        """End the thread, and leave the chain with a root and an end, so that the next owner needs to read no slots.

        Call this when the data path is closed and nothing more is recorded; the sender still runs. Blocks for at most
        `timeout` seconds, and a second longer if the store hangs. Return whether all of it was done. If it wasn't, the
        next owner reads slots, and what was never sent is on this disk.
        """
        ends_at = self._clock() + timeout
        self._ends_at = -inf
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            self.leave()
            return False
        if self._owner.fenced is not None:
            return False
        self._ends_at = ends_at
        with DaemonThreads[bool](1, name=NAME) as threads:  # because a request may hang
            leaving = threads.submit(self._leave)
            if wait([leaving], max(0.0, ends_at - self._clock()) + _LAST_REQUEST).not_done:
                log.warning("stopped without a last root: the store doesn't answer")
                self.leave()
                return False
        return leaving.result()

    def _leave(self) -> bool:
        """Have everything stored, and leave the chain. Return whether all of it was done."""
        steps = (
            (self._wait_until_settled, "stopped before everything was in the store, so the rest is on this disk only"),
            (self._end_chain, "stopped without a last root, so the next owner reads more slots"),
        )
        for step, otherwise in steps:
            try:
                step()
            except Abandoned:
                fault = self._last_fault()
                log.warning("%s: it took too long%s", otherwise, f" ({fault})" if fault is not None else "")
                return False
            except (OSError, BadObject, StoreFault) as error:
                log.warning("%s: %s", otherwise, error)
                return False
        return True

    def _end_chain(self) -> None:
        """Make the last root and the last end. Raises Abandoned if the time is up, and what making a root raises."""
        if self.roots.is_busy:
            self.roots.give_up()  # it was abandoned
        if self._owner.slots_since_root:
            self._make_root()
            self._wait_until_settled()
        self._owner.end_run()
        self._wait_until_settled()
        while (step := self.roots.next_step(self._clock())) is not None and not self._is_abandoned():
            if not self._sweep(step):
                return

    def _wait_until_settled(self) -> None:
        owner = self._owner
        owner.expect_confirmation()
        owner.hurry()
        owner.wake()
        while not owner.is_settled:
            if self._is_abandoned():
                raise Abandoned
            if owner.may_jump:
                self._jump()
            time.sleep(_LOOK_INTERVAL)
        self._take_commits()
