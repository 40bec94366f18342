"""Every port of the tests and benchmarks is the kernel's choice, or from the one allocator, `bench/ports.py`."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import ports
from bench.ports import HOST, hold, take_port, usable_ports

ROOT = Path(__file__).parents[2]
ALLOCATOR = ROOT / "bench" / "ports.py"


FINDERS = {"free_port", "unused_port", "closed_port"}
RANDOM = {"randrange", "randint"}
# Without any of these words there is no such choice, and no need to parse a file.
SIGNS = ("ip_local_port_range", *FINDERS, *RANDOM, "getsockname")


def choices(text: str) -> Iterator[tuple[int, str]]:
    """Yield where a program chooses ports in another way."""
    if not any(sign in text for sign in SIGNS):
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(str(value)) if "ip_local_port_range" in value:
                yield node.lineno, "reads the kernel's range"
            case ast.FunctionDef(name=name) if name.strip("_") in FINDERS:
                yield node.lineno, f"{name}: use take_port"
            case ast.Assign(targets=[target], value=value) if "port" in ast.unparse(target) and is_random(value):
                yield node.lineno, "draws a port"
            case ast.With(items=[ast.withitem(ast.Call() as opened, ast.Name(id=name))]) if is_socket(opened):
                yield from ((line, "closes a port before it is used") for line in closed_early(node, name))


def is_random(value: ast.expr) -> bool:
    return any(isinstance(it, ast.Attribute) and it.attr in RANDOM for it in ast.walk(value))


def is_socket(call: ast.Call) -> bool:
    if any("AF_UNIX" in ast.unparse(it) for it in call.args):  # it has no port
        return False
    return ast.unparse(call.func) in {"socket", "socket.socket", "socket.create_server"}


def closed_early(block: ast.With, name: str) -> Iterator[int]:
    """Yield the lines that hand on the port of a socket which is closed at the end of its block."""
    for node in ast.walk(block):
        match node:
            case ast.Return() | ast.Assign(targets=[ast.Attribute()]) if f"{name}.getsockname" in ast.unparse(node):
                yield node.lineno


def test_nobody_else_chooses_ports() -> None:
    files = [
        it for folder in ("bench", "tests") for it in (ROOT / folder).rglob("*.py") if "node_modules" not in it.parts
    ]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {why}"
        for path in files
        if path not in {ALLOCATOR, Path(__file__)}
        for line, why in choices(path.read_text(encoding="utf-8"))
    ]
    assert len(files) > 500
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "Path('/proc/sys/net/ipv4/ip_local_port_range').read_text()",
        "def _free_port(): ...",
        "port = random.randrange(12_000, 30_000)",
        "def f():\n    with socket.socket() as it:\n        it.bind((HOST, 0))\n        return it.getsockname()[1]",
        "def f(self):\n    with socket.socket() as it:\n        it.bind((HOST, 0))\n        self.port = it.getsockname()[1]",
    ],
)
def test_another_way_to_choose_is_found(text: str) -> None:
    assert list(choices(text))


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    with socket.socket() as it:\n        it.bind((HOST, 0))\n        at = it.getsockname()\n        run(at)",
        "def f():\n    with socket.socket(socket.AF_UNIX) as it:\n        it.bind('')\n        return it.getsockname()",
    ],
    ids=["held while it is used", "no port"],
)
def test_other_addresses_are_no_choice(text: str) -> None:
    assert list(choices(text)) == []


def test_a_port_is_nobody_else_s_until_the_end_and_nobody_answers_there() -> None:
    with ExitStack() as until:
        port = take_port(until)
        assert port in usable_ports()
        with socket.socket() as client:
            assert client.connect_ex((HOST, port)) != 0
        other = f"from bench.ports import hold; print(hold([{port}]))"
        done = subprocess.run([sys.executable, "-c", other], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"
        assert not hold([port], until)
    with ExitStack() as until:
        assert hold([port], until)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody may listen beside a socket that is bound")
def test_a_server_starts_at_its_port_again_and_again() -> None:
    with ExitStack() as until:
        port = take_port(until)
        for _ in range(3):
            with socket.create_server((HOST, port)) as server, socket.create_connection((HOST, port)):
                server.accept()[0].close()


def test_if_one_of_some_ports_is_taken_none_is_held() -> None:
    with ExitStack() as first, ExitStack() as second:
        taken, free = take_port(first), take_port(second)
        second.close()
        assert not hold([free, taken], second)
        assert hold([free], second)


@pytest.mark.parametrize(
    ("kernel", "usable"),
    [("32768\t60999", range(10_000, 32_768)), ("1024\t49151", range(49_152, 65_536)), ("", range(10_000, 32_768))],
)
def test_the_kernel_s_own_ports_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str, usable: range
) -> None:
    if kernel:
        (tmp_path / "range").write_text(f"{kernel}\n")
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    assert usable_ports() == usable
