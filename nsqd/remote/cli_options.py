"""Options that several commands of `nsqd remote` have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nsqcommon.options import option
from nsqcommon.subcommands import argument, parsed_by, repeated, required
from nsqd.remote.location import StoreLocation, parse_location, parse_node_name, parse_remote_option

URLS: Final = """\
URL:
  s3://BUCKET/PREFIX     Amazon S3, Ceph, and others that speak its protocol
  gs://BUCKET/PREFIX     Google Cloud Storage
  az://CONTAINER/PREFIX  Azure Blob Storage
  file:///FOLDER         a folder that all machines see

Credentials come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; GOOGLE_APPLICATION_CREDENTIALS;
AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY), or from the cloud that this machine runs in.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    url: StoreLocation = argument("as for --remote of nsqd; see below", kind=parsed_by(parse_location, "URL"))
    remote_option: tuple[tuple[str, str], ...] = option(
        (),
        "as for nsqd: endpoint=URL of a server that isn't the cloud's, region=REGION, and all that obstore knows",
        kind=repeated(parse_remote_option, "NAME=VALUE", may_be_secret=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(StoreOptions):
    name: str = required("as for --remote-name of nsqd", kind=parsed_by(parse_node_name, "NAME"))
