from __future__ import annotations

import pytest

from nsqd.remote.location import (
    StoreLocation,
    StoreScheme,
    endpoint_of,
    host_of,
    parse_location,
    parse_node_name,
    parse_remote_option,
)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://lake/nsq/production", StoreLocation(StoreScheme.S3, "lake", "nsq/production")),
        ("s3://lake", StoreLocation(StoreScheme.S3, "lake", "")),
        ("s3://lake/nsq/", StoreLocation(StoreScheme.S3, "lake", "nsq")),
        ("gs://lake.example/nsq", StoreLocation(StoreScheme.GS, "lake.example", "nsq")),
        ("az://lake/nsq", StoreLocation(StoreScheme.AZ, "lake", "nsq")),
        ("file:///mnt/shared/nsq", StoreLocation(StoreScheme.FILE, "", "/mnt/shared/nsq")),
        ("file://localhost/mnt/nsq/", StoreLocation(StoreScheme.FILE, "", "/mnt/nsq")),
        ("file:/mnt/with%20space", StoreLocation(StoreScheme.FILE, "", "/mnt/with space")),
    ],
)
def test_a_url_names_a_bucket_and_a_prefix_or_a_folder(url: str, location: StoreLocation) -> None:
    assert parse_location(url) == location


@pytest.mark.parametrize("url", ["s3://lake/nsq", "s3://lake", "gs://lake/a/b", "az://lake/nsq", "file:///mnt/nsq"])
def test_a_location_is_shown_as_its_url(url: str) -> None:
    assert str(parse_location(url)) == url


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "must be s3://BUCKET/PREFIX, gs://"),
        ("lake/nsq", "must be s3://"),
        ("gcs://lake", "write gs:// for gcs://"),
        ("https://s3.example.com/lake", "give the server's address by --remote-option=endpoint=URL"),
        ("s3://", "'' can't be the name of a bucket"),
        ("s3:///nsq", "'' can't be the name of a bucket"),
        ("s3://la ke/nsq", "can't be the name of a bucket"),
        ("s3://lake/a//b", "must have a prefix of letters"),
        ("s3://lake/../b", "must have a prefix of letters"),
        ("s3://lake/nsq?region=x", "without \\? and #"),
        ("file://shared/nsq", "write file:///shared/nsq for file://shared/nsq"),
        ("file:///", "must name a folder"),
        ("file:///mnt/../etc", "must name a folder without .."),
    ],
)
def test_a_url_that_cannot_be_meant_so(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_location(url)


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="put them into the environment") as caught:
        parse_location("s3://key:secret@lake/nsq")
    assert "secret" not in str(caught.value)


def test_the_name_of_a_node_is_one_word_of_a_path() -> None:
    assert parse_node_name("nsqd-1.example") == "nsqd-1.example"
    for name in ("", "..", ".a", "a/b", "a b", "ä"):
        with pytest.raises(ValueError, match="must be a name of letters"):
            parse_node_name(name)


def test_an_option_has_a_name_and_a_value() -> None:
    assert parse_remote_option("endpoint=http://127.0.0.1:9000?a=b") == ("endpoint", "http://127.0.0.1:9000?a=b")
    for text in ("endpoint", "=x", "End Point=x"):
        with pytest.raises(ValueError, match="must be NAME=VALUE"):
            parse_remote_option(text)


def test_the_endpoint_is_that_of_an_option_or_of_the_environment() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://b:1"}
    assert endpoint_of(StoreScheme.S3, {"aws_endpoint": "http://a:1"}, environ) == "http://a:1"
    assert endpoint_of(StoreScheme.S3, {}, environ) == "http://b:1"
    assert endpoint_of(StoreScheme.GS, {}, environ) == ""


@pytest.mark.parametrize(
    ("url", "options", "environ", "host"),
    [
        ("s3://lake", {"endpoint": "http://10.0.0.7:9000"}, {}, "10.0.0.7"),
        ("s3://lake", {}, {"AWS_REGION": "eu-west-1"}, "s3.eu-west-1.amazonaws.com"),
        ("gs://lake", {}, {}, "storage.googleapis.com"),
        ("az://lake", {"account_name": "acme"}, {}, "acme.blob.core.windows.net"),
        ("file:///mnt/nsq", {}, {}, ""),
    ],
)
def test_requests_go_to_a_host(url: str, options: dict[str, str], environ: dict[str, str], host: str) -> None:
    assert host_of(parse_location(url), options, environ) == host
