"""The file of `nsqpipe run`: the meaning of its sections, and a line for each mistake in it. Without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from nsqpipe.jobs import Aggregate, Land, Run
from nsqpipe.pipeline import Pipeline, StreamJob, for_each, read_pipeline
from pyspark_nsq.failures import PipeFailed, WrongUsage
from pyspark_nsq.kinds import Format, Kind, OnFailure

WHOLE: Final = """
[run]
master = "local[2]"
conf = { "spark.driver.memory" = "2g", "spark.speculation" = true }
on-failure = "go-on"

[defaults]
nsqd = "127.0.0.1:4151"
every = "10 seconds"
decoder = "json"
watermark = 5

[storage]
endpoint = "https://minio:9000"

[land.orders]
topic = ["orders", "returns"]
table = "/data/orders"
schema = "amount double"
closed_after = 60

[land.clicks]
topic = "clicks"
table = "/data/clicks"
decoder = "raw"
format = "parquet"
every = ""

[land.clicks.source_option]
maxRowsPerTrigger = 1000

[aggregate.per-minute]
topic = "*"
results = "/data/results.json"
"""


def pipeline_of(text: str, folder: Path, **said: Any) -> Pipeline:
    file = folder / "pipeline.toml"
    file.write_text(text)
    return read_pipeline(Run(file=file, **said))


def complaints(text: str, folder: Path) -> list[str]:
    with pytest.raises(PipeFailed) as failure:
        pipeline_of(text, folder)
    assert failure.value.exit_status == WrongUsage.exit_status
    before = f"{folder}/pipeline.toml: "
    lines = str(failure.value).splitlines()
    assert all(line.startswith(before) for line in lines)
    return [line.removeprefix(before) for line in lines]


def test_a_section_is_the_command_line_of_its_job(tmp_path: Path) -> None:
    found = pipeline_of(WHOLE, tmp_path, until_now=True)
    session: dict[str, Any] = {
        "master": "local[2]",
        "conf": (("spark.driver.memory", "2g"), ("spark.speculation", "true")),
    }
    shared: dict[str, Any] = {
        "nsqd": ("127.0.0.1:4151",),
        "storage": (("endpoint", "https://minio:9000"),),
        "until_now": True,
    }
    assert found.run == Run(file=tmp_path / "pipeline.toml", on_failure=OnFailure.GO_ON, until_now=True, **session)
    assert found.jobs == {
        "orders": Land(
            topic=("orders", "returns"),
            table="/data/orders",
            decoder=Kind.JSON,
            schema="amount double",
            closed_after=60,
            every="10 seconds",
            **session,
            **shared,
        ),
        "clicks": Land(
            topic=("clicks",),
            table="/data/clicks",
            format=Format.PARQUET,
            source_option=(("maxRowsPerTrigger", "1000"),),
            **session,
            **shared,
        ),
        "per-minute": Aggregate(
            topic=("*",), results="/data/results.json", every="10 seconds", watermark=5, **session, **shared
        ),
    }
    assert found.section("per-minute") == "[aggregate.per-minute]"


def test_the_command_line_stands_above_the_file(tmp_path: Path) -> None:
    memory = (("spark.driver.memory", "4g"),)
    found = pipeline_of(WHOLE, tmp_path, master="yarn", on_failure=OnFailure.STOP, conf=memory)
    assert (found.run.master, found.run.on_failure) == ("yarn", OnFailure.STOP)
    assert dict(found.run.conf) == {"spark.driver.memory": "4g", "spark.speculation": "true"}
    assert {job.master for job in found.jobs.values()} == {"yarn"}


def test_without_a_word_about_it_spark_runs_here(tmp_path: Path) -> None:
    assert pipeline_of(LAND, tmp_path).run.master == "local[*]"


LAND: Final = '[land.a]\nnsqd = "x:1"\ntopic = "a"\ntable = "t"\n'


def iceberg(name: str, catalog: str) -> str:
    return (
        LAND.replace("land.a", f"land.{name}").replace('"t"', '"raw.t"')
        + f'format = "iceberg"\ncatalog = "{catalog}"\ncheckpoint = "{name}"\n'
    )


WRONG: Final[dict[str, tuple[str, list[str]]]] = {
    "nothing": ("", ["there is no job: name one in [land.NAME] or [aggregate.NAME]"]),
    "no TOML": ("[land", ["Expected ']' at the end of a table declaration (at end of document)"]),
    "a section that nobody knows": (
        LAND + "[lnad.b]\n",
        ["[lnad] is unknown: there are [run], [defaults], [storage], [land], [aggregate]"],
    ),
    "a value instead of a section": ("land = 1\n", ["land is a value, but should be a table"]),
    "a job without a name": (
        '[land]\ntopic = "a"\n',
        ["[land] topic is a value: a job is a table with a name of its own, [land.NAME]"],
    ),
    "a name that is none": (
        LAND.replace("land.a", 'land."a b"'),
        ["[land.a b] is not a name: use letters, digits, _ and -"],
    ),
    "two of a name": (
        LAND + '[aggregate.a]\nnsqd = "x:1"\ntopic = "a"\nresults = "r"\n',
        ["[aggregate.a] has the name of [land.a]"],
    ),
    "a misspelt key": (LAND + 'tabel = "t"\n', ["[land.a] has no setting tabel; did you mean table?"]),
    "a key of nobody": (LAND + "[defaults]\nxyz = 1\n", ["[defaults] has no setting xyz"]),
    "a key of the session": (LAND + 'master = "yarn"\n', ["[land.a] master is for all jobs: it belongs in [run]"]),
    "something that only a command can do": (LAND + "show = true\n", ["[land.a] has no setting show"]),
    "no such word": (LAND + 'format = "csv"\n', ["[land.a] format: expected delta, parquet, iceberg, not 'csv'"]),
    "no interval": (
        LAND + '[defaults]\nevery = "abc"\n',
        ["[defaults] every: expected a duration, as in '10 seconds', not 'abc'"],
    ),
    "a text for a number": (
        LAND + 'closed_after = "60"\n',
        ["[land.a] closed_after: expected a whole number, not '60'"],
    ),
    "a number that is too small": (
        LAND + "target_mb = 0\n",
        ["[land.a] target_mb: expected a whole number, at least 1, not 0"],
    ),
    "a number for a text": (LAND + "schema = 1\n", ["[land.a] schema: expected a text, not 1"]),
    "a list for one value": (LAND + 'checkpoint = ["c"]\n', ["[land.a] checkpoint: expected a text, not ['c']"]),
    "a text for a switch": (LAND + 'drop_body = "yes"\n', ["[land.a] drop_body: expected true or false, not 'yes'"]),
    "a store's option that is a list": (
        LAND + "[storage]\nregion = [1]\n",
        ["storage: expected a text or a number, not [1]"],
    ),
    "what is missing": ('[land.a]\nnsqd = "x:1"\n', ["[land.a] needs topic, table"]),
    "what goes not together": (
        LAND + 'decoder = "json"\n',
        ["[land.a] --decoder json needs a --schema, as in --schema 'user string, amount double'"],
    ),
    "several things at once": (
        '[land.a]\ntopic = 7\n[run]\nquiet = 1\n[land.b]\nnsqd = "x:1"\ntopic = "b"\n',
        [
            "[run] quiet: expected true or false, not 1",
            "[land.a] topic: expected a text, not 7",
            "[land.b] needs table",
        ],
    ),
    "a table that two jobs fill": (
        LAND.replace('"t"', '"s3a://lake/t"') + LAND.replace("land.a", "land.b").replace('"t"', '"s3://lake/t/"'),
        [
            "[land.b] writes to s3://lake/t.checkpoint, and so does [land.a]: name a place of its own",
            "[land.b] writes to s3://lake/t, and so does [land.a]: name a place of its own",
        ],
    ),
    "Iceberg tables that two jobs fill": (
        iceberg("a", "lake") + iceberg("b", "lake") + iceberg("c", "another"),
        ["[land.b] writes to raw.t in lake, and so does [land.a]: name a place of its own"],
    ),
    "an Iceberg table without a checkpoint": (
        LAND.replace('"t"', '"raw.t"') + 'format = "iceberg"\n',
        ["[land.a] --format iceberg needs a --checkpoint: there is no table folder to put a default checkpoint beside"],
    ),
    "a checkpoint that two jobs have": (
        "".join(f'[aggregate.{name}]\nnsqd = "x:1"\ntopic = "a"\nresults = "{name}"\n' for name in "ab"),
        [
            f"[aggregate.b] writes to {Path.cwd()}/aggregate.checkpoint, and so does [aggregate.a]: name a place of its own"
        ],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_file_is_said_with_its_section(name: str, tmp_path: Path) -> None:
    text, lines = WRONG[name]
    assert complaints(text, tmp_path) == lines


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=r"none\.toml: No such file or directory$"):
        read_pipeline(Run(file=tmp_path / "none.toml"))


def test_what_fails_for_some_jobs_is_a_line_for_each(tmp_path: Path) -> None:
    def look(name: str, job: StreamJob) -> str:
        if name == "orders":
            raise WrongUsage("is wrong")
        if name == "clicks":
            raise OSError(2, "No such file", "x")
        return name

    found = pipeline_of(WHOLE, tmp_path)
    with pytest.raises(PipeFailed) as failure:
        for_each(found, look)
    assert str(failure.value).splitlines() == ["[land.orders] is wrong", "[land.clicks] x: No such file"]
    assert failure.value.exit_status == 2
    assert for_each(found, lambda name, _: name.upper())["orders"] == "ORDERS"
