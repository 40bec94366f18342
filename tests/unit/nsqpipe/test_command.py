"""The command `nsqpipe`: what it prints, its exit status, one line for each way to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from nsqpipe import jobs
from nsqpipe.cli import app
from nsqpipe.command_line import root
from nsqpipe.failures import PipeFailed
from nsqpipe.metrics import serving
from tests.support.process import ROOT, Nsqd
from tests.support.spark import KEPT, address, lane_of, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def nsqpipe(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def orders(nsqd: Nsqd) -> Nsqd:
    publish(nsqd, "orders", numbered(120))
    return nsqd


def test_land_show_lag_and_replay(spark: SparkSession, orders: Nsqd, tmp_path: Path) -> None:
    table, where = tmp_path / "table", ("--nsqd", address(orders))
    landed = nsqpipe("land", *where, "--topic=orders", "--table", table, "--until-now", "--show")
    assert landed.exit_code == 0, landed.output
    assert "120 messages" in landed.stdout
    assert "█" in landed.stdout
    assert "land: batch 0, 120 rows" in landed.stderr
    behind = nsqpipe("lag", *where, "--topic=orders", "--checkpoint", f"{table}.checkpoint", "--json")
    assert json.loads(behind.stdout)["behind"] == 0
    again = ("replay", *where, "--table", table, "--destination-topic=again", "--where=sequence < 50", "--json")
    assert json.loads(nsqpipe(*again, "--dry-run").stdout) == {"messages": 50, "sent": 0, "slices": 1}
    assert json.loads(nsqpipe(*again, "--quiet").stdout) == {"messages": 50, "sent": 50, "slices": 1}
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "early"\ncheck = "sequence < 100"\n')
    judged = nsqpipe("quality", "--table", table, "--rules", rules, "--json")
    assert judged.exit_code == 3
    assert json.loads(judged.stdout) == {"rows": 120, "early": 20}


def test_bench_names_its_jobs(spark: SparkSession, orders: Nsqd) -> None:
    result = nsqpipe("bench", "--nsqd", address(orders), "--topic=orders", "--json")
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [it["name"] for it in found] == ["read", "to Parquet", "Parquet read again, by Spark", "to windows"]
    assert all(it["rows"] == 120 and it["seconds"] > 0 for it in found)


def test_lag_above_the_bound_is_an_exit_status(orders: Nsqd, tmp_path: Path) -> None:
    lane = lane_of(orders, "orders")
    made = nsqpipe("offsets", "set", "--checkpoint", tmp_path / "new", "--lane", f"{lane}=20")
    assert made.exit_code == 0, made.output
    shown = nsqpipe("offsets", "show", "--checkpoint", tmp_path / "new", "--json")
    assert json.loads(shown.stdout) == {"batch": 0, "sources": [{"lanes": {lane: 20}}]}
    lag = ("lag", "--nsqd", address(orders), "--topic=orders", "--checkpoint", tmp_path / "new")
    assert nsqpipe(*lag, "--at-most=100").exit_code == 0
    above = nsqpipe(*lag, "--at-most=99")
    assert above.exit_code == 3
    assert "100 behind, 0 lost" in above.stdout
    assert nsqpipe("offsets", "set", "--checkpoint", tmp_path / "new", "--lane", f"{lane}=20").exit_code == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["land", "--topic=a", "--table=t"], "either --lookupd or --nsqd is needed"),
        (["land", "--topic=a", "--nsqd=x:1"], "Missing option '--table'"),
        (["land", "--topic=a", "--table=t", "--nsqd=x:1", "--format=csv"], "'--format': expected delta, parquet"),
        (["land", "--topic=a", "--table=t", "--nsqd=x:1", "--decoder=jsn"], "'--decoder': expected raw, json"),
        (
            ["land", "--topic=a", "--table=t", "--nsqd=x:1", "--every=abc"],
            "'--every': expected a duration, as in '10 seconds'",
        ),
        (["aggregate", "--topic=a", "--nsqd=x:1", "--results=r", "--window=0"], "'--window'"),
        (["replay", "--table=t", "--destination-topic=a", "--nsqd=x:1", "--since=noon"], "'--since': expected a time"),
        (["replay", "--table=t", "--destination-topic=a", "--lookupd=x:1", "--exactly-once"], "needs --nsqd"),
        (["fly"], "No such command 'fly'"),
        (["land", "--topic=a", "--table=t", "--nsqd=x:1", "--decoder=json"], "--decoder json needs a --schema"),
        (["land", "--topic=a", "--table=t", "--nsqd=x:1", "--drop-body"], "--drop-body would leave nothing"),
        (["land", "--topic=a", "--table=t", "--nsqd=x:1", "--source-option=x"], "expected NAME=VALUE, not 'x'"),
        (["aggregate", "--topic=a", "--nsqd=x:1"], "nothing to do: --results, --table or both are needed"),
        (["offsets", "set", "--checkpoint=c", "--lane=a/b=1"], "is not a lane"),
        (["submit", "--master=yarn"], "which job?"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_one_line(words: list[str], complaint: str) -> None:
    result = nsqpipe(*words)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["lag", "--topic=a", "--nsqd=x:1", "--checkpoint=/nowhere"], "there is no checkpoint"),
        (["compact", "--table=/nowhere"], "this needs a Delta table"),
    ],
)
def test_what_cannot_work_is_one_line(words: list[str], complaint: str) -> None:
    result = nsqpipe(*words)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_table_that_lacks_a_column_gets_no_row_twice(spark: SparkSession, orders: Nsqd, tmp_path: Path) -> None:
    land = ("land", "--nsqd", address(orders), "--topic=orders", "--table", tmp_path / "table", "--until-now")
    assert nsqpipe(*land).exit_code == 0
    result = nsqpipe(*land, "--checkpoint", tmp_path / "other", "--decoder=json", "--schema=price double")
    assert result.exit_code == 0, result.output
    assert spark.read.parquet(*DeltaTable(str(tmp_path / "table")).file_uris()).count() == 120


def test_an_avro_schema_that_is_none_is_one_line(tmp_path: Path) -> None:
    schema = tmp_path / "schema.avsc"
    schema.write_text('{"type": "recrod"}')
    avro = ("--decoder=avro", "--schema=user string", "--avro-schema", schema)
    result = nsqpipe("land", "--nsqd=x:1", "--topic=a", "--table=t", *avro)
    assert result.exit_code == 1
    assert f"--avro-schema {schema} is not an Avro schema" in result.stderr


def test_options_come_from_a_file_and_the_command_line_stands_above_it(tmp_path: Path) -> None:
    config = tmp_path / "pipe.toml"
    config.write_text('[submit]\nmaster = "yarn"\ndeploy-mode = "cluster"\n[offsets.show]\ncheckpoint = "/nowhere"\n')
    words = nsqpipe("--config", config, "submit", "--dry-run", "--deploy-mode=client", "--", "land").stdout.split()
    assert words[words.index("--master") + 1] == "yarn"
    assert words[words.index("--deploy-mode") + 1] == "client"
    assert "/nowhere" in nsqpipe("--config", config, "offsets", "show").stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[land]\ntopics = ['a']\n", "land has no option topics"),
        ("[land]\ntable = ['a']\n", "table is given once"),
        ("[land.table]\nx = 1\n", "table is a table"),
        ("[fly]\n", "fly is not a command"),
        ("table = 1\n", "table is not a command"),
        ("[", "pipe.toml"),
    ],
)
def test_what_the_file_has_wrong_is_one_line(text: str, complaint: str, tmp_path: Path) -> None:
    config = tmp_path / "pipe.toml"
    config.write_text(text)
    result = nsqpipe("--config", config, "doctor")
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_single_value_in_the_file_will_do_where_an_option_may_be_repeated(tmp_path: Path) -> None:
    config = tmp_path / "pipe.toml"
    config.write_text('[lag]\ntopic = "orders"\nnsqd = "127.0.0.1:1"\ncheckpoint = "/nowhere"\njson = true\n')
    assert "there is no checkpoint" in nsqpipe("--config", config, "lag").stderr


def test_help_shows_nothing_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "pipe.toml"
    config.write_text('[storage]\nsecret_access_key = "hidden"\n[land]\nregistry = "http://me:hidden@registry:8081"\n')
    said = nsqpipe("--config", config, "land", "--help").stdout
    assert "--registry" in said
    assert "hidden" not in said


def test_shells_complete_commands_and_options() -> None:
    def completed(words: str, at: int) -> list[str]:
        environ = {"_NSQPIPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return CliRunner().invoke(app, env=environ, prog_name="nsqpipe").stdout.split()

    assert completed("nsqpipe la", 1) == ["land", "lag"]
    assert completed("nsqpipe land --late", 2) == []
    assert completed("nsqpipe land --format ", 3) == ["delta", "parquet", "iceberg"]


def test_an_interrupt_before_there_is_anything_to_stop_is_no_failure() -> None:
    def interrupted(job: jobs.Doctor) -> None:
        raise KeyboardInterrupt

    result = CliRunner().invoke(root("", "", {}, {"doctor": (jobs.Doctor, interrupted)}), ["doctor"])
    assert (result.exit_code, result.stderr) == (0, "nsqpipe: stopped\n")


@pytest.mark.parametrize("words", [(), ("offsets",)])
def test_no_command_is_an_error_that_shows_which_there_are(words: tuple[str, ...]) -> None:
    result = nsqpipe(*words)
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


def test_an_address_for_metrics_that_cannot_be_is_one_line() -> None:
    with pytest.raises(PipeFailed, match=r"--metrics-address 127\.0\.0\.1:none: "), serving(Mock(), "127.0.0.1:none"):
        pytest.fail("nobody can listen there")


# doctor


def doctor(*words: str, path: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the doctor in a process of its own, because it examines its process."""
    paths = os.pathsep.join(str(it) for it in (path, ROOT) if it)
    return subprocess.run(
        [sys.executable, "-m", "nsqpipe", "doctor", *words],
        env={**os.environ, "PYTHONPATH": paths, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def hidden(folder: Path, package: str, version: str = "") -> Path:
    """Return a path on which a package has another version, or is missing."""
    code = (
        "import importlib.metadata as m\n_version = m.version\n"
        f"def version(name):\n    if name == {package!r}:\n"
        + (f"        return {version!r}\n" if version else "        raise m.PackageNotFoundError(name)\n")
        + "    return _version(name)\nm.version = version\n"
    )
    (folder / "sitecustomize.py").write_text(code)
    return folder


def bad_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("BAD")]


def test_a_healthy_machine_and_cluster(orders: Nsqd) -> None:
    done = doctor("--topic=orders", "--nsqd", address(orders))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok   {lane_of(orders, 'orders')}: sequences 0 to 120" in done.stdout


def test_doctor_names_a_broken_module(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("import nothing_of_the_kind\n")
    done = doctor(path=tmp_path)
    assert done.returncode == 3
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
def test_doctor_names_a_package(package: str, version: str, complaint: str, tmp_path: Path) -> None:
    done = doctor(path=hidden(tmp_path, package, version))
    assert done.returncode == 3
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
