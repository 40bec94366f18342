"""Computes each worker's folder name, ports and node id. Pure functions of strings and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

# With a step of 2, worker 1 would get worker 0's HTTPS port; with a step of 10, nsqlookupd's ports.
STEP: Final = 100
_LAST_PORT: Final = 65_535
_PREFIX: Final = "worker-"


def name_of(number: int) -> str:
    """Return a worker's name, which is also its folder's name."""
    return f"{_PREFIX}{number}"


def number_in(name: str) -> int | None:
    """Return the number of the worker with this name, or None if it isn't a worker's name."""
    digits = name.removeprefix(_PREFIX)
    is_ours = digits.isascii() and digits.isdigit() and name == name_of(int(digits))
    return int(digits) if is_ours else None


def shifted_port(port: int, number: int) -> int:
    """Return a worker's port, given worker 0's. 0 stays 0, which means any free port, or no port."""
    return port + STEP * number if port else 0


def shifted_address(address: str, number: int) -> str:
    """Return a worker's address, given worker 0's. Without a port, it's unchanged; listening reports the error."""
    port = port_in(address)
    return f"{address.rpartition(':')[0]}:{shifted_port(port, number)}" if port else address


def port_in(address: str) -> int:
    """Return the port of `host:port`, or 0 if it has none."""
    digits = address.rpartition(":")[2]
    return int(digits) if digits != address and digits.isascii() and digits.isdigit() else 0


def node_id_of(first: int, number: int, *, below: int) -> int:
    """Return a worker's node id, which is the part of its message ids that differs between workers."""
    return (first + number) % below


def port_problem(ports: Mapping[str, int], workers: int) -> str | None:
    """Return the reason why the workers' ports would clash or be too high, or None if they are fine.

    `ports` maps each flag to worker 0's port. For example, ports 4150 and 4250 would clash with 4 workers, because
    worker 1 would use 4250 for the first flag.
    """
    given = {flag: port for flag, port in ports.items() if port}
    for flag, port in given.items():
        if (last := shifted_port(port, workers - 1)) > _LAST_PORT:
            return f"{name_of(workers - 1)} would need port {last} for --{flag}: choose a lower one"
    for (flag, port), (other, other_port) in product(given.items(), repeat=2):
        apart, rest = divmod(port - other_port, STEP)
        if rest == 0 and 0 < apart < workers:
            return (
                f"--{flag} of {name_of(0)} and --{other} of {name_of(apart)} would both be port {port}: "
                f"workers are {STEP} ports apart"
            )
    return None


def left_behind(names: Iterable[str], workers: int) -> list[str]:
    """Return the names that belong to workers from number `workers` on, in order."""
    numbers = (number_in(name) for name in names)
    return [name_of(number) for number in sorted(it for it in numbers if it is not None and it >= workers)]
