"""The commands of `nsqd remote` that look at one node in a store, and at its data path."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TextIO, TypeVar

from nsqcommon.options import SECOND, format_duration, option
from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import NODE
from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, Commands, argument, parsed_by, required
from nsqcommon.wire.log_record import UnknownFlags
from nsqd.fsck import cli as fsck
from nsqd.fsck.identity import give_new_identity
from nsqd.log.data_path import TOPOLOGY_JSON, Topology, take_lock
from nsqd.log.files import Files, error_text
from nsqd.log_options import SIZE
from nsqd.remote.aside import AsidePublisher, messages_aside
from nsqd.remote.claiming import DamagedChain, InUse, Surroundings, claim_name, read_chain, save_nothing
from nsqd.remote.cli_options import URLS, NodeOptions
from nsqd.remote.fetching import Fetch
from nsqd.remote.forgetting import AnotherForget, claim_to_forget, delete_node
from nsqd.remote.fsck import DAY_NS, DamagedObject, Leftovers, StoreExamination, parts_by_object
from nsqd.remote.kept_slots import KeptSlots, keep_nothing
from nsqd.remote.local_files import REMOTE_JSON, LocalFiles
from nsqd.remote.local_mark import Decision
from nsqd.remote.object_store import ObjectStore, OnUnknown, StoreFault, ignore
from nsqd.remote.opening import claimant_of_this_process
from nsqd.remote.rate_limit import RateLimit
from nsqd.remote.settling import Settling
from nsqd.remote_options import RATE

if TYPE_CHECKING:
    from nsqd.remote.claim import ChainRead

DONE: Final = 0
REFUSED: Final = 1
FAILED: Final = 2
_TRIES: Final = 5  # to read everything while the owner sweeps

_EXIT: Final = f"""\
{URLS}
exit status:
  0          it is done
  1          it was refused, and nothing was changed
  2          the store or the data path can't be read, or the arguments are wrong
"""

_STATUS: Final = "Says who owns a node's log in a store, and what the store has of it. Changes nothing."
_RESTORE: Final = """\
Fetches a node's files from a store into a new folder, which becomes a data path. The node in the store stays as it is,
and its owner goes on.
"""
_SEED: Final = """\
Has the next start of a stopped nsqd store all of its data path anew. Use it if the bucket was emptied, or if you take
another one: without it, such a start is refused, because the data path was in a store that doesn't have it any more.
"""
_FSCK: Final = """\
Checks whether another machine could take a node over from what the store has: reads and proves every object that the
node's files need. Names objects that nothing needs. Changes nothing unless you ask for it; the owner may go on.
"""
_FSCK_EXIT: Final = f"""\
{URLS}
exit status:
  0          nothing is damaged
  1          an object is missing or damaged, or it was refused to delete orphans
  2          the store can't be reached, or the arguments are wrong
"""
_FORGET: Final = """\
Deletes everything that a store has of a node. Local data paths stay as they are. It asks for the name twice.

First it puts a fence, as a start on another machine does: an nsqd that sleeps, and still believes that it owns the name,
stops at this fence when it wakes up. The fence and some marks of a hundred bytes each stay in the store for that. An nsqd
that answers has to be stopped by you.
"""

_ASIDE: Final = """\
Prints the messages that went aside when a node was adopted, one JSON object a line: those that were acknowledged without
waiting for the store, and that the store never got. With --publish-to it publishes them again instead, each with the key
that it had or one of its own, so that you can repeat it. A message that isn't certain may have been delivered, because the
node's own log doesn't reach back to it.
"""


FOLDER: Final = parsed_by(Path, "FOLDER")
OptionsT = TypeVar("OptionsT", bound=NodeOptions)
OptionsT_co = TypeVar("OptionsT_co", bound=NodeOptions, covariant=True)


class CommandRefused(Exception):
    """A command was not run. The text says why."""


# The commands and their options


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions(NodeOptions):
    to: Path = required("a folder that is new or empty", kind=FOLDER)
    new_identity: bool = option(False, "give the node and each log a new id, because the node in the store goes on")
    remote_rate: int = option(
        RATE,
        "bytes a second to fetch at most, because its owner goes on at the same store; 0: no limit",
        kind=SIZE,
        at_least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions(NodeOptions):
    data_path: Path = required("of a stopped nsqd", kind=FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsideOptions:
    data_path: Path = argument("the --data-path of nsqd, which may be running", kind=FOLDER)
    publish_to: str | None = option(None, "HTTP address of an nsqd", kind=parsed_by(str, "HOST:PORT"))
    with_uncertain: bool = option(False, "publish also what may have been delivered already")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFsckOptions(NodeOptions):
    quick: bool = option(False, "only look whether all objects are there, in their length")
    sweep: bool = option(
        False, "delete objects of earlier runs that nothing needs, if the newest root is older than a day"
    )
    to: Path | None = option(
        None, "also fetch the node's files into this new or empty folder, and run nsqd fsck on it", kind=FOLDER
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOptions(NodeOptions):
    yes: str | None = option(None, "the name once more, instead of asking for it", kind=parsed_by(str, "NAME"))
    take_over: bool = option(False, "even from an nsqd that is alive, which is fenced")
    damaged: bool = option(
        False, "even if its chain can't be read, so that an nsqd which still owns it can't be fenced"
    )


def commands(open_store: Callable[..., ObjectStore], out: TextIO, err: TextIO) -> Commands:
    """Return the commands by name. `open_store` opens a store; tests hand in their own."""

    def on_node(
        table: type[OptionsT], act: Callable[[NodeCommand[OptionsT]], None], summary: str, about: str, end: str = _EXIT
    ) -> Command[OptionsT]:
        def run(asked: OptionsT) -> int:
            return _status_of(lambda: act(NodeCommand(asked, open_store, out, err)), err)

        return Command(table=table, run=run, summary=summary, about=about, closing=end)

    def run_aside(asked: AsideOptions) -> int:
        return _status_of(lambda: _show_aside(asked, out), err)

    return {
        "status": on_node(NodeOptions, _show_status, "who owns a node's log, and what the store has of it", _STATUS),
        "restore": on_node(RestoreOptions, _restore, "fetch a node's files into a new folder", _RESTORE),
        "seed": on_node(SeedOptions, _seed, "have the next start store a data path anew", _SEED),
        "aside": Command(table=AsideOptions, run=run_aside, summary="messages that the store never got", about=_ASIDE),
        "fsck": on_node(StoreFsckOptions, _fsck, "prove what a store has of a node", _FSCK, _FSCK_EXIT),
        "forget": on_node(ForgetOptions, _forget, "delete a node from a store", _FORGET),
    }


class NodeCommand(Generic[OptionsT_co]):
    """A command about one node, with its options and all that it may use."""

    def __init__(self, asked: OptionsT_co, open_store: Callable[..., ObjectStore], out: TextIO, err: TextIO) -> None:
        self.asked = asked
        self.name = asked.name
        self.out = out
        self.err = err
        self.files = Files()
        self._open_store = open_store

    def open_store(self, on_unknown: OnUnknown = ignore) -> ObjectStore:
        asked = self.asked
        return self._open_store(asked.url, dict(asked.remote_option), node=asked.name, on_unknown=on_unknown)

    def read_chain(self, keep: Callable[[str, bytes], object] = keep_nothing) -> ChainRead:
        return read_chain(self.name, self.open_store, keep=keep, surroundings=Surroundings())

    def say(self, text: str) -> None:
        self.out.write(f"{text}\n")


def _status_of(act: Callable[[], None], err: TextIO) -> int:
    try:
        act()
    except CommandRefused as refusal:
        err.write(f"nsqd remote: {refusal}\n")
        return REFUSED
    except (StoreFault, StartupError, BadObject, UnknownFlags) as error:
        err.write(f"nsqd remote: {error}\n")
        return FAILED
    except OSError as error:
        err.write(f"nsqd remote: {error_text('use', error.filename or '', error)}\n")
        return FAILED
    except KeyboardInterrupt:
        err.write("nsqd remote: interrupted\n")
        return FAILED
    return DONE


# status


def _show_status(command: NodeCommand[NodeOptions]) -> None:
    read = command.read_chain()
    for subject, text in status_of(read, time.time_ns()):
        command.say(f"{subject:<10} {text}")


def status_of(read: ChainRead, now_ns: int) -> Iterator[tuple[str, str]]:
    """Yield what an operator wants to know, each with its subject."""
    yield "node", read.node
    owner = read.owner
    if owner is not None:
        address = f", HTTP at {owner.http_address}" if owner.http_address else ""
        yield "owner", f"{owner}, version {owner.version}{address}"
    yield "state", _state_of(read, now_ns)
    files = read.catalog.files.values()
    yield "files", f"{len(files)} with {sum(it.size for it in files):,} bytes, in {len(read.catalog.objects)} objects"
    runs = f"{len(read.path)} runs" if len(read.path) > 1 else "1 run"
    yield "chain", f"{sum(it.end for it in read.path)} slots since the last root, in {runs}; now in {read.path[-1].run}"


def _state_of(read: ChainRead, now_ns: int) -> str:
    if not read.latest_ns:
        return "nothing was stored yet"
    age = max(0, now_ns - read.latest_ns) // SECOND * SECOND
    last = f"the last slot is {format_duration(age)} old, by the clocks of its writer and of this machine"
    if read.is_ended:
        return f"its owner has stopped, or makes a root; {last}"
    return last


# restore


def _restore(command: NodeCommand[RestoreOptions]) -> None:
    folder, rate = command.asked.to, command.asked.remote_rate
    read, count = _fetch_all(command, folder, limit=RateLimit(rate) if rate else None)
    command.say(f"restored {count} files of node {read.node} to {folder}")
    if command.asked.new_identity:
        node, _ = give_new_identity(command.files, folder, new_id=lambda: os.urandom(16).hex())
        command.say(f"it is node {node} now")


def _fetch_all(
    command: NodeCommand[NodeOptions], folder: Path, *, limit: RateLimit | None = None
) -> tuple[ChainRead, int]:
    """Fetch the node's files into an empty folder. Return what they were read from, and how many there are."""
    _make_empty_folder(command.files, folder)
    local = LocalFiles(folder, command.files)
    with closing(KeptSlots(folder, command.files)) as kept:
        settling = Settling(local, Fetch(command.open_store(), limit=limit, kept=kept))
        for tries_left in reversed(range(_TRIES)):
            read = command.read_chain(kept.keep)
            try:
                count = settling.make_whole(read.node, Decision.ADOPT, read.catalog).fetched
            except BadObject:
                if not tries_left:
                    raise
                continue  # its owner may have swept what we have read
            break
    if not command.files.exists(folder / TOPOLOGY_JSON):
        # Only roots have it, and there may be none yet. The journal has all names, and takes precedence. But a data path
        # without this file counts as damaged, so a new one gets an empty file, as at the first start.
        command.files.replace(folder / TOPOLOGY_JSON, Topology().json())
    return read, count


def _make_empty_folder(files: Files, folder: Path) -> None:
    if not files.exists(folder):
        files.make_folder(folder)
    if files.names_in(folder):
        raise CommandRefused(f"{folder} is not empty")


# fsck


def _fsck(command: NodeCommand[StoreFsckOptions]) -> None:
    examination = StoreExamination(command.open_store(), quick=command.asked.quick)
    try:
        read, damage = _examine(command, examination)
    except DamagedChain as error:
        raise CommandRefused(str(error)) from error
    for found in damage:
        command.say(f"damage: {found}")
    leftovers = examination.leftovers(read)
    for name in leftovers.unknown:
        command.say(f"note: {name} is not from this version of nsqd, or can't be read")
    for subject, text in _summary_of(examination, read, leftovers):
        command.say(f"{subject:<10} {text}")
    if command.asked.to is not None and not damage:
        _fetch_all(command, command.asked.to)
        command.say(f"nsqd fsck {command.asked.to}:")
        status = fsck.main([str(command.asked.to)], out=command.out, err=command.err)
        if status != fsck.CLEAN:
            raise CommandRefused(f"the files of {command.name} are damaged as they were stored")
    if damage:
        raise CommandRefused(f"{command.name} can't be taken over as it is")
    if command.asked.sweep:
        _sweep(command, examination, read, leftovers)


def _examine(command: NodeCommand[NodeOptions], examination: StoreExamination) -> tuple[ChainRead, list[DamagedObject]]:
    """Return what the chain says, and what is damaged. An owner that sweeps meanwhile does no damage, so look again."""
    for _ in range(_TRIES):
        read = command.read_chain()
        damage = list(examination.damage(read))
        if not damage or command.read_chain().path[0].run == read.path[0].run:
            break
    return read, damage


def _summary_of(examination: StoreExamination, read: ChainRead, leftovers: Leftovers) -> Iterator[tuple[str, str]]:
    yield "node", read.node
    slots, objects = sum(it.end for it in read.path), len(parts_by_object(read))
    yield "needed", f"{slots} slots, {objects} other objects; proved {examination.bytes:,} bytes of these"
    yield "orphans", f"{len(leftovers.orphans)} objects of earlier runs, which --sweep deletes"
    yield "others", f"{len(leftovers.recent)} objects of later runs, perhaps of a root in the making"


def _sweep(
    command: NodeCommand[NodeOptions], examination: StoreExamination, read: ChainRead, leftovers: Leftovers
) -> None:
    if leftovers.orphans and examination.age_ns(read, time.time_ns()) < DAY_NS:
        raise CommandRefused(
            "the newest root is less than a day old, so readers may still need older objects: try again later"
        )
    count = sum(1 for _ in examination.sweep(read, leftovers))
    command.say(f"{'deleted':<10} {count} objects")


# seed


def _seed(command: NodeCommand[SeedOptions]) -> None:
    folder = command.asked.data_path
    lock = take_lock(command.files, folder, time.sleep)
    try:
        if command.open_store().get(NODE) is not None:
            raise CommandRefused(
                f"the store has {command.name}, so a start goes on with it; "
                f"if it is of no use any more, delete it by nsqd remote forget"
            )
        mark = folder / REMOTE_JSON
        if command.files.exists(mark):
            command.files.unlink(mark)
            command.files.sync_folder(folder)
    finally:
        command.files.close(lock)
    command.say(f"the next start with --remote-name={command.name} stores all of {folder}")


# aside


def _show_aside(asked: AsideOptions, out: TextIO) -> None:
    found = messages_aside(asked.data_path, Files())
    if asked.publish_to is None:
        out.writelines(f"{json.dumps(message.as_object())}\n" for message in found)
        return
    publisher = AsidePublisher(asked.publish_to)
    counts = {True: 0, False: 0}
    for message in found:
        counts[message.is_certain] += 1
        if message.is_certain or asked.with_uncertain:
            publisher.publish(message, time.time_ns())
    published = counts[True] + (counts[False] if asked.with_uncertain else 0)
    out.write(f"published {published} messages; {counts[False]} are uncertain\n")


# forget


def _forget(command: NodeCommand[ForgetOptions]) -> None:
    store = command.open_store()
    if store.get(NODE) is None:
        raise StartupError(f"the store has no {command.name}")
    _ask_for_name(command)
    _end_chain(command)
    try:
        found = delete_node(store)
    except AnotherForget as error:
        raise CommandRefused(f"{command.name} was forgotten by another process meanwhile") from error
    command.say(f"deleted {command.name} and its {found.deleted} objects")
    command.say(f"{found.fences} fences and the marks of its runs stay, to stop an nsqd that may wake up later")


def _end_chain(command: NodeCommand[ForgetOptions]) -> None:
    """Put the last fence, unless an earlier call has. Raises StartupError and CommandRefused."""
    claim = claim_to_forget(claimant_of_this_process(""), time.time_ns())
    takes_over = command.asked.take_over
    try:
        claim_name(command.name, command.open_store, claim, save=save_nothing, takes_over=takes_over)
    except InUse as error:
        raise CommandRefused(str(error)) from error
    except StartupError as error:
        if claim.fault is None:
            raise
        if not claim.is_forgotten and not command.asked.damaged:
            raise CommandRefused(f"{error}; if no nsqd owns it any more, add --damaged") from error


def _ask_for_name(command: NodeCommand[ForgetOptions]) -> None:
    wanted = partial(_is_confirmed, command)
    answer = command.asked.yes
    confirmed = answer == command.name if answer is not None else wanted("delete everything of") and wanted("really")
    if not confirmed:
        raise CommandRefused("the name was not repeated, so nothing was deleted")


def _is_confirmed(command: NodeCommand[NodeOptions], question: str) -> bool:
    command.err.write(f"{question} {command.name}? Write the name: ")
    command.err.flush()
    return sys.stdin.readline().strip() == command.name
