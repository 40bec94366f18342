"""The command `nsqd remote`: its arguments, its output, and its exit status."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import Final, TextIO

from nsqcommon.options import DURATION, MILLISECOND, SECOND, Nanoseconds, option
from nsqcommon.startup import StartupError
from nsqcommon.subcommands import Command, parsed_by, run_one_of
from nsqd.remote import operating
from nsqd.remote.check import ROUNDS, WRITERS, CheckVerdict, StoreCheck
from nsqd.remote.cli_options import URLS, StoreOptions
from nsqd.remote.cost import monthly_costs
from nsqd.remote.location import StoreLocation, StoreScheme, host_of
from nsqd.remote.object_store import ObjectStore, OnUnknown, StoreFault
from nsqd.remote.stores.opening import open_store

USABLE: Final = 0
REFUSED: Final = 1
NOT_CHECKED: Final = 2

PROGRESS_INTERVAL: Final = 2.0

_ABOUT: Final = """\
Checks whether a store may be used with --remote: whether of several writers that create one object exactly one
succeeds, and whether what it acknowledges stays and can be read at once. Some stores that speak S3's protocol don't
keep this, and with them acknowledged messages would be lost. Run it before the first use, and after each upgrade of the
store. It writes about 20 MB below the prefix, in a folder of its own, and deletes it at the end.
"""

_STATUS: Final = f"""\
{URLS}
exit status:
  0          the store can be used
  1          the store doesn't keep its word: don't use it
  2          it could not be checked: it can't be reached, it refuses the credentials, or the arguments are wrong
"""

_FOR_COSTS: Final = "as for nsqd, to estimate what the store would cost"


def _rounds(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ValueError("must be a number, 1 or more")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions(StoreOptions):
    rounds: int = option(ROUNDS, f"how many races of {WRITERS} writers to run", kind=parsed_by(_rounds, "N"))
    remote_interval: Nanoseconds = option(50 * MILLISECOND, _FOR_COSTS, kind=DURATION, at_least=1)
    remote_delay: Nanoseconds = option(SECOND, _FOR_COSTS, kind=DURATION, at_least=1)


def main(
    argv: Sequence[str],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    open_store: Callable[..., ObjectStore] = open_store,
) -> int:
    out, err = out or sys.stdout, err or sys.stderr
    commands = {
        "check": Command(
            table=CheckOptions,
            run=partial(_check, out=out, err=err, environ=environ, open_store=open_store),
            summary="find out whether a store keeps its word",
            about=_ABOUT,
            closing=_STATUS,
        ),
        **operating.commands(open_store, out, err),
    }
    return run_one_of(commands, argv, "nsqd remote", about="Looks at stores for --remote, and at nodes in them.")


def _check(
    asked: CheckOptions,
    *,
    out: TextIO,
    err: TextIO,
    environ: Mapping[str, str],
    open_store: Callable[..., ObjectStore],
) -> int:
    options = dict(asked.remote_option)
    progress = _Progress(err, asked.rounds)
    try:
        out.write(f"checking {_described(asked.url, options, environ)}\n")
        check = StoreCheck(
            partial(_open, open_store, asked.url, options),
            random=SystemRandom(),
            clock=time.monotonic,
            pause=time.sleep,
            rounds=asked.rounds,
            on_round=progress.show,
        )
        return _run(check, asked, out)
    except (StoreFault, StartupError) as error:
        err.write(f"nsqd remote check: {error}\n")
    except KeyboardInterrupt:
        err.write("nsqd remote check: interrupted\n")
    return NOT_CHECKED


def _run(check: StoreCheck, asked: CheckOptions, out: TextIO) -> int:
    lies = 0
    for finding in check.run():
        lies += finding.verdict is CheckVerdict.REFUSED
        out.write(f"{finding}\n")
        out.flush()
    if asked.url.scheme is not StoreScheme.FILE:
        out.writelines(f"{'cost':<17} {line}\n" for line in monthly_costs(asked.remote_interval, asked.remote_delay))
    if lies:
        out.write(f"{asked.url} must not be used with --remote: acknowledged messages would be lost\n")
        return REFUSED
    out.write(f"{asked.url} can be used with --remote\n")
    return USABLE


def _open(
    open_store: Callable[..., ObjectStore], location: StoreLocation, options: Mapping[str, str], on_unknown: OnUnknown
) -> ObjectStore:
    return open_store(location, options, on_unknown=on_unknown)


def _described(location: StoreLocation, options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    if not (host := host_of(location, options, environ)):
        return f"{location}, with {WRITERS} writers on this machine"
    try:
        found = {it[4][0] for it in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except OSError:  # the first request will say so
        return f"{location} at {host}"
    return f"{location} at {host} (addresses: {len(found)}), with {WRITERS} writers that choose one at random"


class _Progress:
    """Says every few seconds which race is run."""

    def __init__(self, err: TextIO, rounds: int) -> None:
        self._err = err
        self._rounds = rounds
        self._next = time.monotonic() + PROGRESS_INTERVAL

    def show(self, number: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_INTERVAL
            self._err.write(f"race {number} of {self._rounds}\n")
            self._err.flush()
