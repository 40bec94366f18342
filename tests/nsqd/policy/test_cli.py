from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from nsqcommon.file_check import INVALID, NOT_READ, VALID
from nsqd.policy.cli import main

FILE = """\
[[policy]]
topic = "orders.*"
max_bytes = "20GB"

[[policy]]
channel = "billing"
max_attempts = 10
dry_run = true
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(FILE)
    return path


def check(path: Path, *arguments: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    return main(["check", str(path), *arguments], out=out, err=err), out.getvalue(), err.getvalue()


def test_a_valid_file(path: Path) -> None:
    assert check(path) == (VALID, f"{path} is valid; entries: 2\n", "")


def test_all_mistakes_are_printed_with_their_lines(path: Path) -> None:
    path.write_text(FILE.replace("20GB", "20GBs").replace("max_attempts", "max_tries"))
    status, out, err = check(path)
    assert (status, out) == (INVALID, "")
    assert [line.removeprefix(str(path)).split(": ")[:2] for line in err.splitlines()] == [
        [":1", "max_bytes"],
        [":5", "max_tries"],
    ]


@pytest.mark.parametrize("content", [b"[[policy\n", b"\xff", b"policy = 3\n"])
def test_a_file_that_is_no_policy_at_all(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    status, out, err = check(path)
    assert (status, out) == (INVALID, "")
    assert err.startswith(f"{path}: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert check(missing) == (NOT_READ, "", f"{missing}: no such file or directory\n")


def test_what_holds_for_a_name_is_printed_with_lines(path: Path) -> None:
    assert check(path, "--topic=orders.eu", "--channel=billing") == (
        VALID,
        'topic orders.eu\n  max_bytes = "20GB"                       line 1\n'
        "channel orders.eu/billing\n  max_attempts = 10                        line 5, dry run\n",
        "",
    )
    nothing = "  no rules: NSQ's behavior and the options apply\n"
    assert check(path, "--topic=clicks") == (VALID, f"topic clicks\n{nothing}", "")


def test_a_file_is_called_as_it_was_spelled(path: Path) -> None:
    spelled = f"{path.parent}/./policy.toml"
    out = StringIO()
    assert main(["check", spelled], out=out) == VALID
    assert out.getvalue() == f"{spelled} is valid; entries: 2\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--channel=c"],
        ["--topic=a/b"],
        ["--topic=a", "--channel=*"],
        ["--topic=a", "--nodes=2"],
        ["--topic=a", "--channel=c", "--nodes=-1"],
        ["--topic=a", "--channel=c", f"--nodes={10**18}"],
    ],
)
def test_wrong_arguments(path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("[[policy]]\nmax_in_flight = 3\n")
    assert check(path, *arguments)[0] == NOT_READ
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "3 on each node, more on several (see --nodes)"),
        (["--nodes=1"], "3 on one node"),
        (["--nodes=3"], "3 on each node, up to 9 on three nodes"),
    ],
)
@pytest.mark.parametrize("key", ["max_in_flight", "max_in_flight_per_group"])
def test_a_limit_of_each_node_says_what_it_is_on_several(
    path: Path, key: str, arguments: list[str], words: str
) -> None:
    path.write_text(f"[[policy]]\n{key} = 3\n")
    status, out, _ = check(path, "--topic=t", "--channel=c", *arguments)
    assert (status, out.splitlines()[-1]) == (VALID, f"  {key + ' = 3':<40} line 1; {words}")


def test_a_rule_that_one_may_regret_is_warned_of(path: Path) -> None:
    path.write_text("[[policy]]\norder = 'group'\n")
    status, out, err = check(path)
    assert (status, out) == (VALID, f"{path} is valid; entries: 1\n")
    assert err.startswith(f"{path}:1: warning: order: without max_attempts, ")
    assert err.count("\n") == 1
