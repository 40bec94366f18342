"""What each worker has of its own: folder, ports, part of the message ids. Pure: texts and numbers in and out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

# A step of 2 would give worker 1 the port of HTTPS, a step of 10 those of nsqlookupd and nsqadmin.
STEP: Final = 100
_LAST_PORT: Final = 65_535
_PREFIX: Final = "worker-"


def name_of(number: int) -> str:
    """Return the name of a worker, which is that of its folder, too."""
    return f"{_PREFIX}{number}"


def number_in(name: str) -> int | None:
    """Return the number of the worker whose folder has this name; None: it is nobody's."""
    digits = name.removeprefix(_PREFIX)
    is_ours = digits.isascii() and digits.isdigit() and name == name_of(int(digits))
    return int(digits) if is_ours else None


def shifted_port(port: int, number: int) -> int:
    """Return a worker's port. 0 stays: any free one, or not given."""
    return port + STEP * number if port else 0


def shifted_address(address: str, number: int) -> str:
    """Return the address that a worker listens on, from that of worker 0.

    An address that names no port stays as it is: listening will say what is wrong with it.
    """
    port = port_in(address)
    return f"{address.rpartition(':')[0]}:{shifted_port(port, number)}" if port else address


def port_in(address: str) -> int:
    """Return the port in `host:port`; 0: there is none."""
    digits = address.rpartition(":")[2]
    return int(digits) if digits != address and digits.isascii() and digits.isdigit() else 0


def node_id_of(first: int, number: int, *, below: int) -> int:
    """Return the part of a worker's message ids that no other worker of this machine has."""
    return (first + number) % below


def port_problem(ports: Mapping[str, int], workers: int) -> str | None:
    """Say why the workers cannot have their ports. None: they can, as far as the numbers tell.

    `ports` are those of worker 0 by the flag that gives them.
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
    """Return those of the folders `names` that belong to workers beyond the number, in order."""
    numbers = (number_in(name) for name in names)
    return [name_of(number) for number in sorted(it for it in numbers if it is not None and it >= workers)]
