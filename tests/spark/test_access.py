"""TLS and tokens, both ways."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import NsqError
from pyspark_nsq.http import Http
from pyspark_nsq.options import source_options
from pyspark_nsq.rows import COLUMNS
from pyspark_nsq.stream_source import NsqStreamReader
from tests.support.certificates import make_certificates
from tests.support.process import Nsqd
from tests.support.spark import KEPT, address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RIGHTS = """
[[allow]]
name = "pipeline"
token_sha256 = "{digest}"
roles = ["publish", "read"]
"""


def guarded(folder: Path) -> tuple[Nsqd, dict[str, str]]:
    """An nsqd that insists on TLS and a token, and the options that satisfy it."""
    made = make_certificates(folder)
    rights = folder / "rights.toml"
    rights.write_text(RIGHTS.format(digest=sha256(b"secret").hexdigest()))
    nsqd = Nsqd(
        folder / "data",
        KEPT,
        f"tls-cert={made.certificate}",
        f"tls-key={made.key}",
        "tls-required=true",
        "https-address=127.0.0.1:0",
        f"rights-file={rights}",
    )
    return nsqd, {"caFile": str(made.authority), "token": "secret"}


def test_topics_behind_tls_and_tokens_are_written_and_read(spark: SparkSession, tmp_path: Path) -> None:
    nsqd, access = guarded(tmp_path)
    with nsqd:
        where = {"nsqd": address(nsqd), "topic": "orders", **access}  # the plain port, which names the other one
        rows = spark.range(100).selectExpr("cast(id as string) as body")
        rows.write.format("nsq").mode("append").options(**where).save()
        assert spark.read.format("nsq").options(**where).load().count() == 100
        where["nsqd"] = f"https://127.0.0.1:{nsqd.https_address[1]}"
        assert spark.read.format("nsq").options(**where).load().count() == 100


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token": "wrong"}, "answers 401 UNAUTHORIZED"),
        ({"caFile": ""}, "CERTIFICATE_VERIFY_FAILED"),
        ({"caFile": "/nowhere/ca.pem"}, "caFile"),
    ],
)
def test_who_may_not_is_told(tmp_path: Path, change: dict[str, str], says: str) -> None:
    nsqd, access = guarded(tmp_path)
    with nsqd:
        options = source_options({"nsqd": address(nsqd), "topic": "orders", **access, **change})
        with pytest.raises(NsqError, match=says):
            Cluster(options, Http(options.access)).heads()


def test_allowing_loss_does_not_hide_that_one_may_not(tmp_path: Path) -> None:
    nsqd, access = guarded(tmp_path)
    with nsqd:
        options = {"nsqd": address(nsqd), "topic": "orders", "failOnDataLoss": "false", **access, "token": "wrong"}
        reader = NsqStreamReader(source_options(options), pa.schema([("body", COLUMNS["body"])]))
        with pytest.raises(NsqError, match="answers 401 UNAUTHORIZED"):
            reader.initialOffset()
