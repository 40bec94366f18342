"""An entry point whose extra is not installed says in one line which extra it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("program", "hidden", "extra"),
    [
        ("nsqadmin.cli", "jinja2", "admin"),
        ("nsqadmin.cli", "httpx", "admin"),
        ("nsqadmin.cli", "starlette", "admin"),
        ("nsqpipe.entry", "typer", "spark"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(program: str, hidden: str, extra: str) -> None:
    code = f"import sys; sys.modules[{hidden!r}] = None; import {program} as it; it.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    name = program.partition(".")[0]
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == f"{name}: {hidden} is not installed; it comes with: pip install '.[{extra}]', in a checkout of nsq-suite\n"
    )


def test_a_module_of_ours_that_is_missing_is_a_bug() -> None:
    code = "import sys; sys.modules['nsqadmin.http.app'] = None; from nsqadmin.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert "ModuleNotFoundError" in done.stderr
