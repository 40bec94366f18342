"""One name of a place, in the forms of pyarrow, deltalake and Spark; and its credentials."""

from __future__ import annotations

import pickle

import pytest

from pyspark_nsq.stores.places import BadPlace, Place, Scheme, options_of_conf, parse_place

KEYS = {"storage.accessKey": "AKIA", "storage.secretKey": "hush-hush", "storage.token": "whispered"}
AZURE = "abfss://lake@acme.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("name", "spelled", "for_spark", "root"),
    [
        ("/data/orders/", "/data/orders", "/data/orders", "/data/orders"),
        ("orders", "orders", "orders", "orders"),
        ("/", "/", "/", "/"),
        ("file:///data/orders", "/data/orders", "/data/orders", "/data/orders"),
        ("s3://lake/a/orders/", "s3://lake/a/orders", "s3a://lake/a/orders", "lake/a/orders"),
        ("s3a://lake/orders", "s3://lake/orders", "s3a://lake/orders", "lake/orders"),
        ("gs://lake/orders", "gs://lake/orders", "gs://lake/orders", "lake/orders"),
        (f"{AZURE}/orders", f"{AZURE}/orders", f"{AZURE}/orders", "lake/orders"),
    ],
)
def test_a_place_has_one_name_for_each_library(name: str, spelled: str, for_spark: str, root: str) -> None:
    place = parse_place(name, {"storage.secretKey": "c2VjcmV0"} if "abfss" in name else {}, environ={})
    assert str(place) == place.for_delta()["table_uri"] == spelled
    assert place.for_spark() == for_spark
    assert place.filesystem()[1] == root
    assert parse_place(str(place), environ={}).path == place.path


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("ftp://x/y", {}, "expected a local path or one of file://, s3://"),
        ("file://data/x", {}, "three slashes"),
        ("s3:///orders", {}, "expected s3://BUCKET/PATH"),
        ("abfss://lake/orders", {}, "CONTAINER@ACCOUNT"),
        ("s3://lake/x", {"storage.accessKey": "AKIA"}, "needs both"),
        ("s3://lake/x", {"storage.endpoint": "minio:9000"}, "expected https://HOST:PORT"),
        ("s3://lake/x", {"storage.regoin": "eu"}, "there is no option storage.regoin"),
    ],
)
def test_what_cannot_be_a_place_is_refused(name: str, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadPlace, match=complaint):
        parse_place(name, options, environ={})


def s3(options: dict[str, str], **environ: str) -> Place:
    return parse_place("s3a://lake/orders", options, environ)


def test_options_reach_deltalake_and_say_what_keeps_two_writers_apart() -> None:
    place = s3({**KEYS, "storage.endpoint": "http://minio:9000/", "storage.region": "eu-west-1"})
    assert place.storage_options() == {
        "aws_conditional_put": "etag",
        "aws_endpoint_url": "http://minio:9000",
        "aws_region": "eu-west-1",
        "aws_access_key_id": "AKIA",
        "aws_secret_access_key": "hush-hush",
        "aws_session_token": "whispered",
        "allow_http": "true",
    }
    in_the_host = s3({"storage.endpoint": "https://minio", "storage.pathStyle": "false"}).storage_options()
    assert in_the_host["aws_endpoint_url"] == "https://lake.minio"
    assert in_the_host["aws_virtual_hosted_style_request"] == "true"
    azure = parse_place(f"{AZURE}/orders", {"storage.token": "sig"}, environ={})
    assert azure.storage_options() == {"azure_storage_sas_key": "sig"}


def test_the_environment_counts_where_options_say_nothing() -> None:
    variables = {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "S", "AWS_SESSION_TOKEN": "T", "AWS_REGION": "eu"}
    assert s3({}, **variables).access.token == "T"
    own = s3({"storage.accessKey": "A", "storage.secretKey": "B"}, **variables).access
    assert (own.access_key, own.secret_key, own.region) == ("A", "B", "eu")
    assert own.token == "", "a token of other keys would make ours worthless"


def test_sparks_conf_is_understood_the_bucket_s_own_before_the_general_one() -> None:
    conf = {
        "spark.hadoop.fs.s3a.access.key": "A",
        "spark.hadoop.fs.s3a.secret.key": "B",
        "spark.hadoop.fs.s3a.endpoint": "minio:9000",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.endpoint.region": "eu",
        "spark.hadoop.fs.s3a.bucket.lake.endpoint.region": "us",
        "spark.hadoop.fs.azure.account.key.acme.dfs.core.windows.net": "K",
    }
    assert options_of_conf(conf, "s3://lake/orders") == {
        "storage.endpoint": "http://minio:9000",
        "storage.region": "us",
        "storage.accessKey": "A",
        "storage.secretKey": "B",
    }
    assert options_of_conf(conf, f"{AZURE}/orders") == {"storage.secretKey": "K"}
    assert options_of_conf(conf, "/data/orders") == {}


def test_what_the_driver_found_can_be_said_as_options_to_a_process_of_another_environment() -> None:
    place = s3(
        {"storage.pathStyle": "false", "storage.endpoint": "https://minio"},
        AWS_REGION="eu",
        AWS_ACCESS_KEY_ID="E",
        AWS_SECRET_ACCESS_KEY="S",
        AWS_SESSION_TOKEN="T",
    )
    assert s3(place.access.as_options()) == place
    assert s3({}).access.as_options() == {}


def test_keys_travel_to_executors_and_are_never_shown() -> None:
    place = s3({**KEYS, "storage.endpoint": "http://minio:9000"})
    again = pickle.loads(pickle.dumps(place))
    assert again == place
    assert again.storage_options()["aws_secret_access_key"] == "hush-hush"
    shown = f"{place} {place!r} {place.access} {[place]}"
    assert not any(secret in shown for secret in KEYS.values())
    assert "s3://lake/orders" in shown


def test_a_neighbour_and_a_child_keep_the_keys() -> None:
    place = s3(KEYS)
    assert str(place.beside(".quarantine")) == "s3://lake/orders.quarantine"
    assert str(place.child("offsets").child("0")) == "s3://lake/orders/offsets/0"
    assert place.child("offsets").access == place.access
    assert place.scheme is Scheme.S3
