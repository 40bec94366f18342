"""Every command in the documents is run, page by page, in the order in which a reader would run it.

A page gets a machine of its own (world.py). The README and the tutorials share one, as a newcomer reads them in one
sitting: what one of them leaves behind must not get in the way of the next. `prepare/PAGE.sh` makes what a page takes
for granted, such as certificates. If a block cannot be run, the page says so, with the reason: blocks.py.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.docs.blocks import Block, Manner, Unclear, blocks_of, shown_in
from tests.support import forked, hangs
from tests.support.needs import need

pytestmark = [
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="the documents tell of the ordinary installation"),
]

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).parent
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT: Final = 280.0  # less than hangs.LIMIT
# Which not every machine has, and the name of that in tests/support/needs.py.
PROGRAMS: Final = {"cc": "C compiler", **{it: it for it in ("curl", "jq", "openssl", "pgrep", "pkill", "promtool")}}
MODULE: Final = re.compile(r"python -m (?P<name>[\w.]+)(?P<words>.*)")
# In the order in which a newcomer reads them.
FIRST_HOUR: Final = [ROOT / "README.md", ROOT / "docs" / "tutorials" / "first-message.md"]
SPARK_TUTORIAL: Final = ROOT / "docs" / "tutorials" / "spark-pipeline.md"  # read after them, where there is Java
SPARK_TIMEOUT: Final = 900.0  # half a minute on a quiet machine


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def pages_to_run() -> list[Path]:
    return [page for page in PAGES if page not in (*FIRST_HOUR, SPARK_TUTORIAL) and has_commands(page)]


def has_commands(page: Path) -> bool:
    try:
        return any(it.manner is not Manner.SKIP for it in blocks_of(page))
    except Unclear:
        return False  # the next test fails, and says why


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_a_command_or_something_shown(page: Path) -> None:
    blocks_of(page)


@pytest.mark.parametrize("page", [page for page in PAGES if shown_in(page, "python")], ids=name_of)
def test_shown_python_compiles(page: Path) -> None:
    for code in shown_in(page, "python"):
        compile(code, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("page", pages_to_run(), ids=name_of)
def test_commands_of(page: Path, tmp_path: Path) -> None:
    run_on_a_machine([*lines_of(page)], tmp_path, TIMEOUT)


@pytest.mark.usefixtures("machine")
def test_a_newcomer_s_first_hour(tmp_path: Path) -> None:
    lines = [it for page in FIRST_HOUR for it in (*lines_of(page), *lines_of_readme_program(page))]
    timeout = TIMEOUT
    if (which("java") and find_spec("pyspark")) or os.environ.get("CI"):
        lines += [it for it in lines_of(SPARK_TUTORIAL) if it != DEMO]  # that of the first tutorial still runs
        timeout += SPARK_TIMEOUT
        hangs.lift_limit()  # `timeout` is longer than that
    run_on_a_machine(lines, tmp_path, timeout)


def run_on_a_machine(lines: list[str], folder: Path, timeout: float) -> None:
    need(*programs_in(lines))
    script = folder / "page.sh"
    script.write_text("\n".join(lines), encoding="utf-8")
    # Not below /tmp, as the overlay of /tmp is kept here. Files that remain belong to processes that have ended.
    with TemporaryDirectory(prefix="nsq-docs-", dir="/var/tmp", ignore_cleanup_errors=True) as space:
        python_path = os.environ.get("PYTHONPATH", "")
        done = forked.run(
            [sys.executable, "-P", "-m", "tests.docs.world", str(script), space, python_path],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), python_path)))},
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
    assert done.returncode == 0, done.stdout


def programs_in(lines: list[str]) -> list[str]:
    found = (it for it in PROGRAMS if any(re.search(rf"(?<![\w./-]){it}(?= )", line) for line in lines))
    return [PROGRAMS[it] for it in found]


def lines_of_readme_program(page: Path) -> Iterator[str]:
    """Run the program that the README shows: it prints the message of `curl`, at its second attempt, and its own."""
    if page.name != "README.md":
        return
    (program,) = shown_in(page, "python")
    yield f"cat > hello.py <<'END'\n{program}END"
    yield ".venv/bin/python hello.py > heard"
    yield "sort heard | diff - <(printf '%s\\n' \"1 b'from Python'\" \"2 b'hello'\") >&2"


def lines_of(page: Path) -> Iterator[str]:
    yield "set -euo pipefail"
    prepare = HERE / "prepare" / f"{page.stem}.sh"
    if prepare.exists():
        yield prepare.read_text(encoding="utf-8")
    helps = []
    for block in blocks_of(page):
        if block.manner is Manner.HELP:
            helps += [command for line in block.commands.splitlines() if (command := line.partition("#")[0].strip())]
        elif block.manner is not Manner.SKIP:
            yield f"echo {shlex.quote(f'--- {page.relative_to(ROOT)}:{block.line}')}"
            yield from commands_of(block)
    yield f"echo {shlex.quote(f'--- {page.relative_to(ROOT)}: --help of its other commands')}"
    yield from helps_of(helps)


def helps_of(commands: Sequence[str]) -> Iterator[str]:
    """Ask commands for their --help: of each module the first one as a reader does, and the others by helps.py."""
    words_of: dict[str, list[str]] = {}
    for command in commands:
        found = MODULE.fullmatch(command)
        if found is None or found["name"] not in words_of:
            yield f"{command} --help >/dev/null"
        if found is not None:
            words_of.setdefault(found["name"], []).append(found["words"])
    for module, (_, *others) in words_of.items():
        if others:
            yield f"{shlex.join(['python', '-m', 'tests.docs.helps', module, *others])} >/dev/null"


def commands_of(block: Block) -> Iterator[str]:
    match block.manner:
        case Manner.BACKGROUND:
            # A block that ends within a second has failed, or should not be marked as background.
            yield f"(\n{block.commands}) &\nsleep 1; kill -0 $!"
        case _:
            yield block.commands


DEMO: Final = "".join(commands_of(Block(1, "scripts/demo\n", Manner.BACKGROUND)))


def test_a_command_that_fails_fails_the_page() -> None:
    assert status_of(commands_of(Block(1, "false\ntrue\n"))) == 1


@pytest.mark.parametrize("wrong", ["calendar -w wide", "calendar 2026 nonsense", "no_such_module"])
def test_a_command_without_help_fails_the_page(wrong: str) -> None:
    right = ["python -m calendar 2026", "python -m calendar 2026 1"]
    assert status_of(helps_of(right)) == 0
    for commands in ([f"python -m {wrong}", *right], [*right, f"python -m {wrong}"]):
        assert status_of(helps_of(commands)) != 0


def status_of(lines: Iterable[str]) -> int:
    """Run the lines of a page on this machine, and return the exit status."""
    script = "\n".join(["set -euo pipefail", f'python() {{ {shlex.quote(sys.executable)} "$@"; }}', *lines])
    return subprocess.run(["bash", "-c", script], cwd=ROOT, check=False).returncode


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```\ncurl x\n```\n", "no language"),
        ("```bash\ncurl x\n```\n", "a block of bash"),
        ("<!-- test: skip -->\n```sh\ncurl x\n```\n", "skip needs a reason"),
        ("<!-- test: later: no time -->\n```sh\ncurl x\n```\n", "is none of"),
    ],
)
def test_an_unclear_block_is_reported(text: str, complaint: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(Unclear, match=complaint):
        blocks_of(page)


def test_what_is_found_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Ask `curl 'http://a/b'`.\n\n1. Item:\n\n   ```sh\n   one\n     two\n   ```\n\n"
        "<!-- test: skip: it needs a crane -->\n```sh\nlift\n```\n```text\n`curl x`\n```\n",
        encoding="utf-8",
    )
    assert blocks_of(page) == [
        Block(1, "curl 'http://a/b'\n"),
        Block(5, "one\n  two\n"),
        Block(11, "lift\n", Manner.SKIP, "it needs a crane"),
    ]
