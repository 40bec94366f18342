"""The programs in docs/how-to/python-client.md and nsqclient/README.md run unchanged, except for addresses."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.brokers import StartNsqd
from tests.support.process import ROOT, run_to_end

PAGE = ROOT / "docs" / "how-to" / "python-client.md"
README = ROOT / "nsqclient" / "README.md"  # what an index shows of the distribution


def programs(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_all_programs_run_one_after_the_other(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    nsqd = start_nsqd()
    assert len(programs(PAGE)) >= 7
    for number, program in enumerate([*programs(PAGE), *programs(README)]):
        is_test = "def test_" in program
        file = tmp_path / (f"test_{number}.py" if is_test else f"program_{number}.py")
        file.write_text(program.replace("127.0.0.1:4150", f"127.0.0.1:{nsqd.tcp[1]}"), encoding="utf-8")
        command = ["pytest", "-q", "--rootdir", str(tmp_path), str(file)] if is_test else [str(file)]
        done = run_to_end(*command, program="tests.support.script", folder=tmp_path)
        assert done.returncode == 0, f"{program}\n{done.stdout}\n{done.stderr}"
