"""Arguments that several commands of `nsqd remote` have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, TypeVar

from nsqd.remote.location import parse_location, parse_node_name, parse_remote_option

URLS: Final = """\
URL:
  s3://BUCKET/PREFIX     Amazon S3, Ceph, and others that speak its protocol
  gs://BUCKET/PREFIX     Google Cloud Storage
  az://CONTAINER/PREFIX  Azure Blob Storage
  file:///FOLDER         a folder that all machines see

Credentials come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; GOOGLE_APPLICATION_CREDENTIALS;
AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY), or from the cloud that this machine runs in.
"""

T = TypeVar("T")


def add_store(command: argparse.ArgumentParser) -> None:
    command.add_argument("url", metavar="URL", type=argument(parse_location), help="as for --remote of nsqd; see below")
    command.add_argument(
        "--remote-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=argument(parse_remote_option),
        help="as for nsqd: endpoint=URL of a server that isn't the cloud's, region=REGION, and all that obstore knows",
    )


def add_name(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--name", required=True, metavar="NAME", type=argument(parse_node_name), help="as for --remote-name of nsqd"
    )


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a type for argparse that shows why a value is refused."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed
