"""Places in use: checks whether they can be reached and written to, and reads and writes small files there.

Everything here runs on the driver, without Spark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import uuid4

from pyarrow import ArrowException
from pyarrow.fs import FileSelector, FileSystem, FileType

from nsqcommon.blocking_http import BlockingHttp
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.stores.folders import check_folder
from pyspark_nsq.stores.places import BadPlace, Place, Scheme, parse_place

_METADATA: Final = "169.254.169.254"  # where an instance of EC2 gets its role's keys
_METADATA_PATIENCE: Final = 0.5  # seconds; the service is a few hops away, or doesn't exist
_LONGEST: Final = 300  # characters of a cause; some libraries append everything they know
_KEYS_ELSEWHERE: Final = (  # variables for keys that the libraries find and we don't read ourselves
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_JARS: Final[Mapping[Scheme, str]] = {
    Scheme.S3: "hadoop-aws",
    Scheme.GOOGLE: "gcs-connector",
    Scheme.AZURE: "hadoop-azure",
}
_CAUSES: Final = (  # words in a store's answer, and their meaning for the person who runs the job
    ("NETWORK_CONNECTION", "the store cannot be reached"),
    ("NO_SUCH_BUCKET", "there is no such bucket"),
    ("ACCESS_DENIED", "access is denied"),
    ("INVALID_ACCESS_KEY_ID", "the store does not know this access key"),
    ("SIGNATURE_DOES_NOT_MATCH", "the secret key does not fit the access key"),
    ("EXPIRED_TOKEN", "the session token has expired"),
    ("PermanentRedirect", "the bucket lies in another region: set storage.region"),
)


def place_of(name: str, storage: Mapping[str, str] | None = None) -> Place:
    """Return the place of this name, with these options `storage.*`. Raises PipeFailed."""
    try:
        return parse_place(name, storage)
    except BadPlace as error:
        raise PipeFailed(str(error)) from None


def check_place(place: Place, *, to_write: bool) -> None:
    """Raise PipeFailed, with one line that says why, if a place can't be read or written to.

    Nothing is left behind.
    """
    if place.is_local:
        check_folder(Path(place.path), to_write=to_write)
        return
    if place.scheme is Scheme.S3:
        _need_keys(place, os.environ)
    with _store_errors(place):
        filesystem, root = place.filesystem(patient=False)
        filesystem.get_file_info(root)
        if to_write:
            probe = f"{root}/_nsqpipe_probe_{uuid4().hex}"
            with filesystem.open_output_stream(probe) as stream:
                stream.write(b"")
            filesystem.delete_file(probe)


def check_checkpoint(place: Place, conf: Mapping[str, str]) -> None:
    """Raise PipeFailed if Spark can't write a checkpoint there: its wheel only supports disks and HDFS."""
    jar = _JARS.get(place.scheme)
    if jar is None:
        return
    spark = find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), os.path.dirname(spark.origin) if spark and spark.origin else None]
    folders = [Path(home) / "jars" for home in homes if home]
    said = f"{conf.get('spark.jars', '')} {conf.get('spark.jars.packages', '')}"
    if jar not in said and not any(found for folder in folders for found in folder.glob(f"{jar}*.jar")):
        raise PipeFailed(
            f"Spark cannot keep a checkpoint at {place}: it needs the jar {jar}, which pip does not bring. "
            "Name a --checkpoint on a disk; the table can lie where it does"
        )


def _need_keys(place: Place, environ: Mapping[str, str]) -> None:
    if place.access.has_keys or place.access.anonymous:
        return
    if any(environ.get(name) for name in _KEYS_ELSEWHERE):
        return
    home = Path(environ.get("HOME", "/"))
    files = (environ.get("AWS_SHARED_CREDENTIALS_FILE"), home / ".aws/credentials", home / ".aws/config")
    if any(file and Path(file).is_file() for file in files):
        return
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" or not _has_instance_role():
        raise PipeFailed(
            f"{place}: there are no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or --storage accessKey=... and secretKey=..."
        )


def _has_instance_role() -> bool:
    headers = [("X-aws-ec2-metadata-token-ttl-seconds", "60")]
    try:
        with BlockingHttp(_METADATA, timeout=_METADATA_PATIENCE) as http:
            status, _ = http.request("PUT", "/latest/api/token", headers=headers, most=1024)
    except OSError:
        return False
    return status == 200


@contextmanager
def _store_errors(place: Place) -> Iterator[None]:
    """Turn the long errors of a store's library into one line."""
    try:
        yield
    except (OSError, ValueError, ArrowException) as error:
        raise PipeFailed(f"{place}: {cause_of(error, place)}") from None


def cause_of(error: BaseException, place: Place) -> str:
    """Return in one line why a store's library failed."""
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip()
    for word, meaning in _CAUSES:
        if word in text:
            where = f" at {place.access.endpoint}" if word == "NETWORK_CONNECTION" and place.access.endpoint else ""
            return meaning + where
    line = (text.splitlines() or [type(error).__name__])[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


# Small files


def read_text(place: Place) -> str | None:
    """Return the file's text, or None if the file does not exist."""
    with _store_errors(place):
        filesystem, path = place.filesystem()
        if not _is_file(filesystem, path):
            return None
        try:
            with filesystem.open_input_stream(path) as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:  # removed in the meantime
            return None


def replace_text(place: Place, text: str) -> None:
    """Replace the file's text atomically: a reader sees the old text or the new one."""
    with _store_errors(place):
        if place.is_local:
            with _written_beside(Path(place.filesystem()[1]), text) as (temporary, file):
                temporary.replace(file)
        else:
            _put(place, text)


def create_text(place: Place, text: str) -> bool:
    """Write the file atomically, unless it exists. Return True if it was written.

    On a disk, only one of several writers succeeds. In a store, the check comes before the write, so two writers at the
    same time may both succeed.
    """
    with _store_errors(place):
        filesystem, path = place.filesystem()
        if not place.is_local:
            if _is_file(filesystem, path):
                return False
            _put(place, text)
            return True
        with _written_beside(Path(path), text) as (temporary, file):
            try:
                os.link(temporary, file)
            except FileExistsError:
                return False
        return True


def _put(place: Place, text: str) -> None:
    """Write to a store, where an object only appears when it is complete."""
    filesystem, path = place.filesystem()
    with filesystem.open_output_stream(path) as stream:
        stream.write(text.encode())


@contextmanager
def _written_beside(file: Path, text: str) -> Iterator[tuple[Path, Path]]:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        temporary.write_text(text)
        yield temporary, file
    finally:
        temporary.unlink(missing_ok=True)


def remove_file(place: Place) -> None:
    with _store_errors(place):
        filesystem, path = place.filesystem()
        filesystem.delete_file(path)


def names_in(place: Place) -> list[str]:
    """Return the names directly in a folder; none if the folder does not exist."""
    with _store_errors(place):
        filesystem, path = place.filesystem()
        return [it.base_name for it in filesystem.get_file_info(FileSelector(path, allow_not_found=True))]


def _is_file(filesystem: FileSystem, path: str) -> bool:
    return bool(filesystem.get_file_info(path).type is FileType.File)
