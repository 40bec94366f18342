"""`nsqpipe doctor`: one line for each thing that is wrong with a machine or a cluster. None of them starts Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nsqpipe.cli import app
from tests.support.process import SOURCES, Nsqd
from tests.support.spark import KEPT, address, lane_of, numbered, publish

pytestmark = [pytest.mark.own_jvm("the doctor asks Java for its version"), pytest.mark.needs("Java")]


@pytest.fixture
def orders(nsqd: Nsqd) -> Nsqd:
    publish(nsqd, "orders", numbered(120))
    return nsqd


def doctor(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words], env=environ)


def bad_lines(done: Result) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("BAD")]


def test_a_healthy_machine_and_cluster(orders: Nsqd) -> None:
    """It is a process of its own, because the doctor examines that: what is on its path, and what it can import."""
    done = subprocess.run(
        [sys.executable, "-m", "nsqpipe", "doctor", "--topic=orders", "--nsqd", address(orders)],
        env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok   {lane_of(orders, 'orders')}: sequences 0 to 120" in done.stdout


LAZY = """
def __getattr__(name):
    import nothing_of_the_kind
"""


@pytest.mark.parametrize("source", ["import nothing_of_the_kind", LAZY])
def test_doctor_names_a_broken_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "pyspark_broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyspark_broken", raising=False)
    done = doctor()
    assert done.exit_code == 3
    (line,) = bad_lines(done)
    assert "module pyspark_broken" in line
    assert "nothing_of_the_kind" in line


@pytest.mark.parametrize(
    ("package", "version", "complaint"),
    [
        ("protobuf", "", "no protobuf"),
        ("pandas", "3.0.1", "pandas 3.0.1: Spark needs 2.2 or newer, and less than 3"),
        ("pyiceberg", "0.13.0", "pyiceberg 0.13.0: landing was only tested with 0.12"),
    ],
)
def test_doctor_names_a_package(package: str, version: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version_of(name: str) -> str:
        if name != package:
            return metadata.version(name)
        if not version:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr("nsqpipe.doctor.version", version_of)
    done = doctor()
    assert done.exit_code == 3
    (line,) = bad_lines(done)
    assert complaint in line


def test_doctor_names_a_missing_java(tmp_path: Path) -> None:
    (line,) = bad_lines(doctor(JAVA_HOME=str(tmp_path)))
    assert "no Java" in line


def test_doctor_names_another_spark_and_a_python_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    spark, python = bad_lines(doctor(SPARK_HOME=str(tmp_path), PYSPARK_PYTHON=str(tmp_path / "python")))
    assert f"SPARK_HOME is {tmp_path}, with Spark 3.5.1" in spark
    assert f"PYSPARK_PYTHON is {tmp_path}/python, which is not a program here" in python


def test_doctor_names_a_node_that_is_down(nsqd: Nsqd) -> None:
    where = address(nsqd)
    nsqd.stop()
    (line,) = bad_lines(doctor("--topic=orders", "--nsqd", where))
    assert where in line


def test_doctor_names_all_that_is_wrong_with_a_cluster(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "one") as one, Nsqd(tmp_path / "two", KEPT) as two:
        one.post("/topic/create?topic=orders")
        two.post("/topic/create?topic=orders")
        where = (f"--nsqd={address(one)}", "--nsqd=127.0.0.1:1", f"--nsqd={address(two)}")
        done = doctor("--topic=orders", *where)
        kept, down = sorted(bad_lines(done), key=lambda line: "cannot be reached" in line)
        assert "retention is off for topic orders" in kept
        assert "127.0.0.1:1 cannot be reached" in down
        assert f"{lane_of(two, 'orders')}: sequences 0 to 0" in done.stdout
        (nowhere,) = bad_lines(doctor("--topic=nothing", f"--nsqd={address(two)}"))
        assert "there is no topic nothing" in nowhere


def test_doctor_names_a_topic_whose_history_is_not_kept(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        nsqd.post("/pub?topic=orders", b"1")
        (line,) = bad_lines(doctor("--topic=orders", "--nsqd", address(nsqd)))
    assert "retention is off for topic orders" in line
