"""The command `nsqpipe` without Spark: one line for each way to fail, its exit status, its file, its help."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from nsqpipe import jobs
from nsqpipe.cli import app
from nsqpipe.command_line import root
from nsqpipe.metrics import serving
from pyspark_nsq.failures import PipeFailed
from tests.support.pipe import nsqpipe


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
