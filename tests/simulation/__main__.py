"""Fault tests at length: `python -m tests.simulation --help`."""

from __future__ import annotations

import itertools
import logging
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.command_line import Command, argument, option, read_command
from tests.simulation import (
    abandoned,
    disk_faults,
    going_back,
    long_runs,
    outbox_kills,
    power_cuts,
    released,
    steps,
    week,
)
from tests.simulation.bury_kills import BuryKills
from tests.simulation.edit_kills import EditKills
from tests.simulation.group_kills import GroupKills
from tests.simulation.jobs import command as jobs
from tests.simulation.killing import KillRun
from tests.simulation.plans import ANYTHING, GROUPS, HISTORY, POWER_LOSS, Plan, command_for
from tests.simulation.promise import Violation
from tests.simulation.remote import life as several_machines
from tests.simulation.remote.confirmed import live_confirmed
from tests.simulation.remote.lost_machine import live_with_losses
from tests.simulation.remote.prefixes import live_with_prefixes
from tests.simulation.simulation import Outcome, run
from tests.support import forked
from tests.support.small_disk import mounted

PLANS = {"simulate": ANYTHING, "history": HISTORY, "groups": GROUPS, "power-loss": POWER_LOSS}
Note = Callable[[str], None]
Lived = tuple[str, Counter[str]]  # what a life has found, and what has happened in it
CUTS = 12  # power cuts in each run
KILLS_IN_LINE = 10  # between two lines about the progress
LONGEST_LIFE = 60.0  # seconds; most take less than one


SIMULATED = {
    "simulate": (
        "random lives of broker and disk: crashes, power cuts, I/O errors, full disks, clocks that jump",
        10_000,
    ),
    "history": (
        "the same, and channels go back, retention keeps what is finished, a reserve of the disk is kept",
        10_000,
    ),
    "groups": (
        "the same, and messages have groups: with limits, orders and fair shares that come and go",
        10_000,
    ),
    "power-loss": (
        "the same with --ack=synced, power cuts only: nothing that was acknowledged may be lost",
        2_000,
    ),
}


@dataclass(frozen=True, kw_only=True)
class SeedsOptions:
    seeds: int | None = option(None, "how many (default: see above)")
    first: int = option(0, "the first one", flag="--from")
    verbose: bool = option(False, "print everything that happens")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SeedsOptions):
    verbose: bool = option(False, "print everything that happens, each call of the disk too")
    without_buries: bool = option(
        False, "no message fails for good: the lives that seeds had before nsqd could bury messages"
    )
    without_limits: bool = option(
        False, "nothing expires and nothing is bounded: the lives that seeds had before nsqd could do that"
    )
    without_cancels: bool = option(
        False, "nothing is taken back or moved: the lives that seeds had before nsqd could do that"
    )
    without_fdatasync: bool = option(False, "syncs do nothing: has to fail")


@dataclass(frozen=True, kw_only=True)
class StepsOptions:
    pass


@dataclass(frozen=True, kw_only=True)
class DeferredOptions:
    messages: int = option(100_000, "how many")
    seed: int = option(1, "where all chance comes from")


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    minutes: float = option(10.0, "how long, or for how long runs begin")
    seed: int = option(1, "of the first run, the next has the next")


@dataclass(frozen=True, kw_only=True)
class DiskOptions(LengthOptions):
    options: tuple[str, ...] = argument("options of nsqd without dashes, as ack=synced", default=())


@dataclass(frozen=True, kw_only=True)
class PowerOptions(LengthOptions):
    ack: str = option("synced", "of nsqd", choices=("synced", "written"))


@dataclass(frozen=True, kw_only=True)
class KillsOptions:
    kills: int = option(1000, "how many")
    seed: int = option(1, "where the choices come from")


@dataclass(frozen=True, kw_only=True)
class OutboxOptions:
    database: str = option("sqlite", "of the outbox", choices=("sqlite", "postgres"))
    kills: int = option(200, "how many")
    seed: int = option(1, "where the choices come from")


@dataclass(frozen=True, kw_only=True)
class AbandonedOptions:
    mebibytes: int = option(64, "size of the disk")
    channels: int = option(100, "of one topic")
    times: float = option(10.0, "how many times the disk's size is published to that topic")


@dataclass(frozen=True, kw_only=True)
class GoingBackOptions:
    commit: str = option(going_back.BEFORE, "of that earlier version")
    store: Path | None = option(
        None, "only make the data path of that version that tests/e2e has, in this new folder", word="FOLDER"
    )


@dataclass(frozen=True, kw_only=True)
class ReleasedOptions:
    commit: str = option(released.RELEASED, "of that release")
    store: Path | None = option(
        None, "only make the data path of that release that tests/e2e has, in this new folder", word="FOLDER"
    )


def main() -> int:
    command, arguments = read_command(_commands(), name="python -m tests.simulation", about=__doc__)
    logging.disable(logging.CRITICAL)  # nsqd's messages about a failing disk
    if command == "steps":
        return cut_everywhere()
    if command == "deferred":
        return defer_for_a_week(arguments.messages, arguments.seed)
    if command in long_runs.SCENARIOS:
        scenario, _ = long_runs.SCENARIOS[command]
        return long_runs.run(scenario, 60 * arguments.minutes, arguments.seed, say)
    if command == "disk-faults":
        return fail_disks(arguments.minutes, arguments.seed, tuple(arguments.options))
    if command == "bury":
        return kill_again_and_again(BuryKills(), arguments)
    if command == "group-kills":
        return kill_again_and_again(GroupKills(), arguments)
    if command == "edit-kills":
        return kill_again_and_again(EditKills(), arguments)
    if command == "outbox":
        return kill_an_outbox(arguments.database, arguments.kills, arguments.seed)
    if command == "jobs":
        return jobs.main(arguments, shlex.join(["python", "-m", "tests.simulation", *sys.argv[1:]]), say)
    if command == "abandoned":
        return abandon(arguments.mebibytes << 20, arguments.channels, arguments.times)
    if command == "going-back":
        return go_back(arguments.commit, arguments.store)
    if command == "released":
        return upgrade_and_go_back(arguments.commit, arguments.store)
    if command == "power-cuts":
        return cut_power(arguments.minutes, arguments.seed, arguments.ack)
    if command in ON_A_STORE:
        live, _, count = ON_A_STORE[command]
        seeds = _seeds(arguments, count)
        return live_on_a_store(command, live, seeds, arguments.verbose)
    plan = PLANS[command]
    if arguments.without_fdatasync:
        plan = replace(plan, fails=False, syncs_files=False)
    if arguments.without_buries:
        plan = replace(plan, buries=False)
    if arguments.without_limits:
        plan = replace(plan, limits=False)
    if arguments.without_cancels:
        plan = replace(plan, cancels=False)
    return simulate(command, plan, _seeds(arguments, SIMULATED[command][1]), arguments.verbose)


def _seeds(arguments: SeedsOptions, usual: int) -> range:
    return range(arguments.first, arguments.first + (usual if arguments.seeds is None else arguments.seeds))


def _commands() -> dict[str, Command]:
    found: dict[str, Command] = {}
    for name, (text, seeds) in SIMULATED.items():
        found[name] = Command(PlanOptions, f"{text} ({seeds:,} seeds)")
    for name, (_, text, seeds) in ON_A_STORE.items():
        found[name] = Command(SeedsOptions, f"{text} ({seeds:,} seeds)")
    found |= {
        "steps": Command(StepsOptions, "a fixed script, cut at each call of the disk, as a kill and as power cuts"),
        "deferred": Command(
            DeferredOptions,
            "messages due over a week of simulated time, and a broker that dies at random: none early, none lost",
        ),
        "disk-faults": Command(
            DiskOptions,
            "a real nsqd on a disk that refuses, tears, cuts short and hangs, killed again and again: nothing lost",
        ),
        "bury": Command(
            KillsOptions,
            "a real nsqd is killed while messages are buried, kicked, discarded and redelivered: none lost or misplaced",
        ),
        "group-kills": Command(
            KillsOptions,
            "a real nsqd is killed while consumers handle groups: none out of order, too many at a time, or lost",
        ),
        "edit-kills": Command(
            KillsOptions,
            "a real nsqd is killed while messages are edited and run: one of the two runs, and nothing in other channels",
        ),
        "outbox": Command(
            OutboxOptions, "relays of an outbox, nsqds and Postgres are killed: every row is published once"
        ),
        "abandoned": Command(
            AbandonedOptions,
            "a small disk, and many channels, one of which nobody consumes: with a bound, no other topic is refused",
        ),
        "going-back": Command(
            GoingBackOptions,
            "an upgrade from a commit before headers, keys and buried messages, and going back to it, on real data paths",
        ),
        "released": Command(
            ReleasedOptions, "an upgrade from the last release, and going back to it, on real data paths"
        ),
        "power-cuts": Command(
            PowerOptions,
            "the disk of a real nsqd as power cuts leave it; with --ack=written losses have to be found",
        ),
        "jobs": Command(jobs.JobsOptions, jobs.ABOUT),
    }
    for name, (_, text) in long_runs.SCENARIOS.items():
        found[name] = Command(LengthOptions, text)
    return found


def simulate(name: str, plan: Plan, seeds: range, verbose: bool) -> int:
    counts: Counter[str] = Counter()
    failed = 0
    began = time.monotonic()
    for done, seed in enumerate(seeds, 1):
        outcome = _live(seed, plan, say if verbose else None)
        counts += outcome.counts
        if outcome.error:
            failed += 1
            say(f"seed {seed}: {outcome.error}\n    {command_for(name, seed, plan)}")
        if done % 500 == 0 and done < len(seeds):
            took = time.monotonic() - began
            left = took / done * (len(seeds) - done)
            say(f"{done:,} of {len(seeds):,} seeds, {failed} failed, {took:.0f} s, about {left / 60:.0f} minutes left")
    say(", ".join(f"{what}: {count:,}" for what, count in sorted(counts.items())))
    say(f"{len(seeds):,} seeds, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def live_on_a_store(name: str, live: Callable[[int, Note], Lived], seeds: range, verbose: bool) -> int:
    counts: Counter[str] = Counter()
    failed = 0
    began = time.monotonic()
    for done, seed in enumerate(seeds, 1):
        error, found = live(seed, say if verbose else lambda text: None)
        counts += found
        if error:
            failed += 1
            say(f"seed {seed}: {error}\n    python -m tests.simulation {name} --from {seed} --seeds 1 --verbose")
        if done % 500 == 0 and done < len(seeds):
            say(f"{done:,} of {len(seeds):,} seeds, {failed} failed, {time.monotonic() - began:.0f} s")
    say(", ".join(f"{what}: {count:,}" for what, count in sorted(counts.items())))
    say(f"{len(seeds):,} seeds, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _lose_machines(seed: int, note: Note) -> Lived:
    outcome = live_with_losses(seed, note)
    return outcome.error, outcome.counts


def _wait_for_store(seed: int, note: Note) -> Lived:
    outcome = live_confirmed(seed, note)
    return outcome.error, outcome.counts


def _start_from_prefixes(seed: int, note: Note) -> Lived:
    outcome = live_with_prefixes(seed, note)
    return outcome.error, outcome.counts


def _live(seed: int, plan: Plan, note: Callable[[str], None] | None) -> Outcome:
    """Run a life, which fails if it hangs."""

    def give_up(signal_number: int, frame: object) -> None:
        raise Violation(f"still under way after {LONGEST_LIFE:g} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_LIFE)
    try:
        return run(seed, plan, note)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def cut_everywhere() -> int:
    done = 0
    for ack in steps.ACKS:
        for call, crash, torn in steps.cuts(ack):
            steps.cut(ack, call, crash, torn)
            done += 1
    say(f"cut {done} times, and went on each time")
    return 0


def defer_for_a_week(messages: int, seed: int) -> int:
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        life, expected = week.play(Path(folder), messages=messages, seed=seed)
    wrong = {"early": len(expected.early), "lost": len(expected.due), "with fewer attempts": len(expected.fewer)}
    say(
        f"seed {seed}: {messages:,} messages due over 7 days, {expected.delivered:,} deliveries, {life.deaths} deaths: "
        + ", ".join(f"{count} {what}" for what, count in wrong.items())
        + f"; {time.monotonic() - began:.0f} s"
    )
    return 1 if any(wrong.values()) else 0


def fail_disks(minutes: float, first_seed: int, options: tuple[str, ...]) -> int:
    outcome = disk_faults.Outcome()
    failed = _run_for(
        minutes, first_seed, lambda folder, seed: disk_faults.run(folder, outcome, seed=seed, options=options)
    )
    say(str(outcome))
    return 1 if failed else 0


def kill_again_and_again(run: KillRun, options: KillsOptions) -> int:
    began = time.monotonic()

    def say_progress() -> None:
        if run.kills % KILLS_IN_LINE == 0:
            seconds = time.monotonic() - began
            say(f"{run}; {seconds:.0f} s, {run.kills / seconds:.2f} kills/s")

    with TemporaryDirectory() as folder:
        try:
            run.run(Path(folder), kills=options.kills, seed=options.seed, after_kill=say_progress)
        except AssertionError as error:
            say(str(error))
            return 1
    say(f"seed {options.seed}, {run}; {time.monotonic() - began:.0f} s")
    return 0


def kill_an_outbox(database: str, kills: int, seed: int) -> int:
    began = time.monotonic()
    outcome = outbox_kills.Outcome()

    def say_progress() -> None:
        if outcome.kills.total() % KILLS_IN_LINE == 0:
            say(f"{outcome.kills.total()} kills; {time.monotonic() - began:.0f} s")

    with TemporaryDirectory() as folder:
        try:
            outbox_kills.run(Path(folder), outcome, database=database, kills=kills, seed=seed, after_kill=say_progress)
        except AssertionError as error:
            say(str(error))
            return 1
    say(f"seed {seed}, {database}, {outcome}; {time.monotonic() - began:.0f} s")
    return 0


def abandon(size: int, channels: int, times: float) -> int:
    status = 0
    for policy in abandoned.POLICIES:
        with TemporaryDirectory() as folder, mounted(Path(folder) / "disk", size) as disk:
            outcome = abandoned.run(disk, Path(folder), policy, size=size, channels=channels, times=times, say=say)
        is_right = outcome.is_bounded is (policy != "none")
        say(f"{policy}: {outcome}: {'as it should be' if is_right else 'WRONG'}")
        status |= not is_right
    return status


def go_back(commit: str, store: Path | None) -> int:
    forked.is_off = True  # the earlier version has other modules than those that a zygote imports
    with TemporaryDirectory() as folder:
        if store is not None:
            going_back.store(Path(folder), commit, store)
        else:
            going_back.run(Path(folder), commit, say)
    return 0


def upgrade_and_go_back(commit: str, store: Path | None) -> int:
    forked.is_off = True  # see go_back
    with TemporaryDirectory() as folder:
        if store is not None:
            released.store(Path(folder), commit, store)
        else:
            released.run(Path(folder), commit, say)
    return 0


def cut_power(minutes: float, first_seed: int, ack: str) -> int:
    outcome = power_cuts.Outcome()
    failed = _run_for(
        minutes, first_seed, lambda folder, seed: power_cuts.run(folder, outcome, seed=seed, ack=ack, cuts=CUTS)
    )
    say(str(outcome))
    if ack == "written" and not outcome.lost:
        say("no power cut has lost anything: this check finds nothing")
        return 1
    return 1 if failed else 0


def _run_for(minutes: float, first_seed: int, run: Callable[[Path, int], None]) -> int:
    """Return how many runs have failed. Each run has a data path of its own."""
    began = time.monotonic()
    failed = 0
    for seed in itertools.count(first_seed):
        if time.monotonic() - began >= minutes * 60:
            say(f"{seed - first_seed} runs, {failed} failed, {time.monotonic() - began:.0f} s")
            break
        with TemporaryDirectory() as folder:
            try:
                run(Path(folder), seed)
            except AssertionError as error:
                failed += 1
                say(str(error))
    return failed


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


ON_A_STORE: dict[str, tuple[Callable[[int, Note], Lived], str, int]] = {
    "several-machines": (
        several_machines.live,
        "several machines that want one name in a faulty store: kills, freezes, power cuts, copies of disks",
        20_000,
    ),
    "standbys": (
        several_machines.live_with_standbys,
        "the same, with processes that wait until the owner is gone, as far as they can tell",
        5_000,
    ),
    "lost-machines": (
        _lose_machines,
        "whole nodes whose machines are lost, and go on elsewhere with a prefix of what was recorded of their disks",
        2_000,
    ),
    "confirmed-lives": (
        _wait_for_store,
        "the same, and publishers wait for the store: what was answered has to be on the next machine",
        2_000,
    ),
    "prefixes": (
        _start_from_prefixes,
        "the same, and beside each life nodes start from many prefixes of what was recorded",
        300,
    ),
}

if __name__ == "__main__":
    sys.exit(main())
