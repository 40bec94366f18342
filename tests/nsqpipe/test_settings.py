"""The table of options of each job: command line, file and reference follow it; and the settings for Spark."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nsqcommon.bodies.registry import Registry
from nsqpipe import jobs
from nsqpipe.cli import COMMANDS, app
from nsqpipe.command_line import root
from nsqpipe.decoders import make_decoder
from nsqpipe.job_tables import table_for, tables_of
from nsqpipe.session import defaults_for
from nsqpipe.settings import Job, interval, moment, pair, place, settings_of
from nsqpipe.submit import command_for, environment
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import DeployMode, Format, Kind
from pyspark_nsq.options import source_options
from tests.support.nsqpipe_page import flags_of, rows_of
from tests.support.process import ROOT

ARCHIVE = Path("/tmp/nsqpipe.zip")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_setting_of_a_job_is_in_its_help_and_in_the_reference(name: str) -> None:
    job, _ = COMMANDS[name]
    said = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=400).stdout
    assert job.__doc__
    assert " ".join(job.__doc__.split()) in " ".join(said.split())
    assert len(settings_of(job)) == len(fields(job))
    for it in settings_of(job):
        assert it.help
        if it.flag:
            assert f"{it.flag} " in said
            assert it.flag in flags_of(name)
            assert f" | {it.help.replace('|', '&#124;')} |\n" in rows_of(name)


def parsed(name: str, words: list[str]) -> Job:
    """Return what a command's runner would get."""
    job, made = COMMANDS[name][0], list[Job]()
    done = CliRunner().invoke(root("", "", {}, {name: (job, made.append)}), [name, *words])
    assert done.exit_code == 0, done.stderr
    return made[0]


def test_what_the_words_of_a_command_line_become() -> None:
    words = ["--topic=a", "--topic=b.*", "--nsqd=x:1", "--table=t/", "--conf=a=b=c", "--until-now", "--log=spark.log"]
    job = parsed("land", words)
    assert isinstance(job, jobs.Land)
    assert job == jobs.Land(
        topic=("a", "b.*"), nsqd=("x:1",), table="t/", conf=(("a", "b=c"),), until_now=True, log=Path("spark.log")
    )
    assert job.quarantine_path == "t.quarantine"
    assert not job.can_fail
    assert job.source.as_options() == {"topic": "a,b.*", "nsqd": "x:1"}


@pytest.mark.parametrize("command", ["land", "aggregate", "backfill", "bench"])
def test_who_has_to_be_there_is_an_option_of_the_source(command: str) -> None:
    words = ["--topic=a", "--lookupd=x:1", "--require-all", "--nodes=3", "--source-option=requireNodes=2"]
    words += {"land": ["--table=t"], "aggregate": ["--table=t"]}.get(command, [])
    words += ["--table=t", "--since=0", "--until=9"] if command == "backfill" else []
    job = parsed(command, words)
    assert isinstance(job, jobs.Reading)
    options = job.source.as_options()
    assert (options["requireAllNodes"], options["requireNodes"]) == ("true", "3")


@pytest.mark.parametrize(
    "text", ["", "10 seconds", "1 minute 30 seconds", "interval 2 hours", "500 milliseconds", "1.5 seconds", "1 Day"]
)
def test_intervals_that_spark_knows(text: str) -> None:
    assert interval(text) == text


@pytest.mark.parametrize("text", ["abc", "10", "seconds", "10 parsecs", "10 seconds and more", "-1 second"])
def test_intervals_that_nobody_knows(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        interval(text)


def test_words_that_are_no_values() -> None:
    for parse, text in (
        (pair, "x"),
        (pair, "=x"),
        (place, "n/t/l"),
        (place, "n/t=1"),
        (place, "n/t/l=x"),
        (moment, "noon"),
    ):
        with pytest.raises(ValueError, match=r"expected|no lane"):
            parse(text)
    assert place("n/t/l=7") == ("n/t/l", 7)
    assert moment("2026-03-01T12:00:00Z")


# Settings for Spark


def test_the_display_and_the_number_of_tasks_are_ours_on_one_machine_only() -> None:
    here, there = defaults_for({"spark.master": "local[*]"}), defaults_for({"spark.master": "spark://host:7077"})
    assert (here["spark.ui.enabled"], there["spark.ui.enabled"]) == ("false", "true")
    assert "spark.sql.shuffle.partitions" in here
    assert "spark.sql.shuffle.partitions" not in there
    assert "spark.eventLog.enabled" not in there, "Spark would not start without a folder"
    assert defaults_for({"spark.master": "yarn", "spark.eventLog.dir": "x"})["spark.eventLog.enabled"] == "true"


def test_a_password_is_in_no_repr_and_hidden_in_what_spark_shows() -> None:
    url = "http://me:hidden@registry:8081"
    words = [
        "--topic=a",
        "--nsqd=x:1",
        "--table=t",
        f"--registry={url}",
        "--storage=secretKey=hidden",
        "--storage=accessKey=me",
    ]
    words += ["--source-option=token=hidden", "--conf=spark.hadoop.fs.s3a.secret.key=hidden"]
    job = parsed("land", [*words, "--decoder=avro", "--schema=a int"])
    assert isinstance(job, jobs.Land)
    assert (job.registry, job.storage) == (url, (("secretKey", "hidden"), ("accessKey", "me")))
    assert job.source.options["token"] == "hidden"
    table = table_for(job, "s3://lake/orders", Format.DELTA)
    for kept in (job, job.source, source_options(job.source.as_options()), table, table.place):
        assert "hidden" not in repr(kept)
    assert "hidden" not in repr(Registry(url))
    for master in ("local[*]", "spark://host:7077"):
        shown = re.compile(defaults_for({"spark.master": master})["spark.sql.redaction.options.regex"])
        for name in ("decoder", "storage.secretKey", "quarantine.storage.token", "storage.accessKey"):
            assert shown.search(name)


def test_what_a_catalog_asks_for_is_in_no_repr_and_hidden_in_what_spark_shows() -> None:
    words = ["--topic=a", "--nsqd=x:1", "--table=raw.t", "--format=iceberg", "--checkpoint=c"]
    words += ["--catalog-uri=postgresql://me:hidden@host/c", "--catalog-option=credential=hidden"]
    job = parsed("land", words)
    assert isinstance(job, jobs.Land)
    for kept in (job, *tables_of(job)):
        assert "hidden" not in repr(kept)
    shown = re.compile(defaults_for({"spark.master": "local[*]"})["spark.sql.redaction.options.regex"])
    for name in ("catalog.uri", "quarantine.catalog.credential", "catalog.s3.access-key-id"):
        assert shown.search(name)


@pytest.mark.parametrize("url", ["http://me:hid/den@host:8081", "http://me:1/hidden@host", "http://me:hid#den@host"])
def test_an_address_of_a_registry_that_cannot_be_is_not_repeated(url: str) -> None:
    with pytest.raises(PipeFailed, match="expected an address") as failed:
        make_decoder(Kind.AVRO, "a int", registry=url)
    assert "den" not in str(failed.value)


def test_a_job_is_submitted_with_our_interpreter_unless_somebody_says_otherwise() -> None:
    job = jobs.Submit(master="yarn", conf=(("spark.pyspark.python", "./environment/bin/python"),), job=("--", "doctor"))
    words = command_for(job, ARCHIVE)
    settings = {words[at + 1] for at, word in enumerate(words) if word == "--conf"}
    assert settings == {
        "spark.pyspark.python=./environment/bin/python",
        f"spark.pyspark.driver.python={sys.executable}",
    }
    assert words[-2:] == [str(ROOT / "nsqpipe" / "__main__.py"), "doctor"]
    assert environment(job, ARCHIVE, {})["PYSPARK_PYTHON"] == sys.executable
    assert environment(job, ARCHIVE, {"PYSPARK_PYTHON": "python9"})["PYSPARK_PYTHON"] == "python9"
    assert environment(job, ARCHIVE, {"SPARK_HOME": "/opt/spark"})["SPARK_HOME"] == "/opt/spark"
    assert environment(job, ARCHIVE, {"PYTHONPATH": "/lib"})["PYTHONPATH"] == f"{ARCHIVE}:/lib", (
        "for plans on the driver"
    )
    away = jobs.Submit(master="yarn", deploy_mode=DeployMode.CLUSTER, job=("doctor",))
    assert "PYSPARK_PYTHON" not in environment(away, ARCHIVE, {}), "the driver runs elsewhere, with what is there"
    assert "spark.pyspark.driver.python" not in " ".join(command_for(away, ARCHIVE))
