"""The examples in examples/ do what their pages say: Airflow and Dagster without their schedulers, and the notebook.

The commands that their tasks run use the session of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

from tests.spark.served import Served
from tests.support import hangs
from tests.support.process import ROOT, Nsqd
from tests.support.spark import KEPT, PATIENCE, address, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES: Final = ROOT / "examples"
NOTEBOOK: Final = EXAMPLES / "notebook" / "orders.ipynb"
ORDERS: Final = 600
# If asked for, the first landing does its work and is killed before the scheduler learns of it.
WRAPPED: Final = """{nsqpipe} "$@" || exit $?
if [ "$1" = land ] && rmdir {asked} 2>/dev/null; then kill -9 $$; fi
"""
# What a command inherits from its scheduler.
INHERITS: Final = """env -0 > {told}
exec {served} "$@"
"""
# The command, and then the program: each imports Airflow, which takes longer than what it does.
MIGRATED: Final = """import gc, runpy, sys
gc.disable()  # it collects nothing of what is imported, which takes it a quarter of the time
from airflow.__main__ import main
_, program = sys.argv
sys.argv = ["airflow", "db", "migrate"]
main()
runpy.run_path(program, run_name="__main__")
"""
# With this, jsonschema would look at identifiers of resources, which nothing here has, and read a grammar for 1.6 s
# each time that it is imported, by Airflow or by Jupyter.
GRAMMAR: Final = "rfc3987_syntax"
pytestmark = pytest.mark.needs("airflow", "dagster", "nbclient", "ipykernel", "matplotlib")  # scripts/setup examples


@pytest.fixture(autouse=True)
def _patience() -> None:
    hangs.lift_limit()  # JVMs start; every wait here has a limit of its own


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("nsqd"), KEPT) as nsqd:
        bodies = [{"number": number, "item": f"item {number % 3}", "price": number} for number in range(ORDERS)]
        publish(nsqd, "orders", [*(json.dumps(body).encode() for body in bodies), b"not an order"])
        yield nsqd


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return the folder of the programs of the environment in which the examples find nsqpipe."""
    programs = tmp_path / "environment" / "bin"
    programs.mkdir(parents=True)
    for name, program in (("python", sys.executable), ("nsqpipe", str(Path(sys.executable).with_name("nsqpipe")))):
        write_script(programs / name, f'exec {quote(program)} "$@"\n')
    return programs


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


@pytest.fixture
def environ(orders: Nsqd, programs: Path, tmp_path: Path) -> dict[str, str]:
    """Return the environment of the examples."""
    left_out = tmp_path / "left out"
    left_out.mkdir()
    (left_out / f"{GRAMMAR}.py").write_text("raise ImportError(__name__)\n")
    return {
        **os.environ,
        "PYTHONPATH": str(left_out),
        "NSQPIPE_ENVIRONMENT": str(programs.parent),
        "ORDERS_SOURCE": f"--nsqd {address(orders)}",
        "ORDERS_TABLE": str(tmp_path / "orders"),
        "ORDERS_RETRY_SECONDS": "0.5",
        "HOME": str(tmp_path),
    }


def run(environ: Mapping[str, str], *words: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=environ["HOME"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def run_served(served: Served, environ: Mapping[str, str], log: Path, *words: object) -> None:
    status = served.run([sys.executable, *map(str, words)], env=environ, log=log, timeout=4 * PATIENCE)
    assert status == 0, log.read_text()[-8000:]


def of_java_and_python(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those that say how Spark and its workers start."""
    begins = ("HOME", "JAVA", "JDK", "LD_", "PATH", "PYSPARK", "PYTHON", "SPARK", "TMP", "VIRTUAL")
    return {name: value for name, value in variables.items() if name.startswith(begins)}


def check_landed(environ: Mapping[str, str]) -> None:
    table = environ["ORDERS_TABLE"]
    values = DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist()
    assert sorted(value["number"] for value in values) == list(range(ORDERS))
    assert DeltaTable(f"{table}.quarantine").to_pyarrow_table()["body"].to_pylist() == [b"not an order"]


@pytest.mark.slow
def test_airflow_lands_counts_and_looks_again_after_a_kill(
    spark: SparkSession, environ: dict[str, str], programs: Path, tmp_path: Path
) -> None:
    environ |= {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    environ |= {"AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES / "airflow")}
    asked, log = tmp_path / "kill", tmp_path / "log"
    asked.mkdir()
    with closing(Served()) as served:
        served.write_command(programs / "served")
        wrapped = WRAPPED.format(nsqpipe=quote(str(programs / "served")), asked=quote(str(asked)))
        write_script(programs / "nsqpipe", wrapped)
        run_served(served, environ, log, "-c", MIGRATED, EXAMPLES / "airflow" / "orders.py")
    assert not asked.exists(), "it was killed, and tried again"
    assert "1 of 601 messages are in quarantine" in log.read_text()
    check_landed(environ)
    counted = json.loads(Path(f"{environ['ORDERS_TABLE']}.minutes.json").read_text())
    assert sum(window["messages"] for window in counted["topics"]["orders"]) == ORDERS + 1


@pytest.mark.slow
def test_dagster_lands_and_the_notebook_shows_what_has_come(
    spark: SparkSession, environ: dict[str, str], programs: Path, tmp_path: Path
) -> None:
    inherited = tmp_path / "inherited"
    with closing(Served()) as served:
        served.write_command(programs / "served")
        write_script(programs / "nsqpipe", INHERITS.format(served=quote(str(programs / "served")), told=inherited))
        run_served(served, environ, tmp_path / "log", EXAMPLES / "dagster" / "orders.py")
    variables = dict(it.split("=", 1) for it in inherited.read_text().split("\0") if it)
    assert of_java_and_python(variables) == of_java_and_python(environ), "a command starts Spark as outside of Dagster"
    check_landed(environ)
    output = tmp_path / "output.ipynb"
    run(environ, Path(sys.executable).parent / "jupyter-execute", NOTEBOOK, f"--output={output}")
    outputs = [it for cell in json.loads(output.read_text())["cells"] for it in cell.get("outputs", [])]
    assert sum("image/png" in it.get("data", {}) for it in outputs) == 3
    text = "".join("".join(it.get("text", "")) for it in outputs)
    assert f"{ORDERS} orders of 1 nodes" in text
    assert "not JSON" in text


def test_the_notebook_is_kept_without_what_it_has_shown() -> None:
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)
