"""S3 servers in a thread that lie, over HTTP: what a library makes of them is part of the test."""

from __future__ import annotations

import re
from threading import Lock
from urllib.parse import unquote

from tests.support.http_server import HttpServer, Reply, Request


class CarelessS3(HttpServer):
    """Stores whatever comes: it doesn't know the header If-None-Match."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.lock = Lock()

    def reply(self, request: Request) -> Reply:
        name = unquote(request.path)
        with self.lock:
            if request.method == "PUT":
                return self.put(name, request)
            if request.method == "POST":  # deletes several at once
                keys = re.findall(r"<Key>([^<]*)</Key>", request.body.decode())
                for key in keys:
                    self.objects.pop(f"{name.rstrip('/')}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return Reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
            return self.list(name, request) if "list-type" in request.arguments else self.get(name, request)

    def put(self, name: str, request: Request) -> Reply:
        self.objects[name] = request.body
        return Reply(200, headers={"ETag": '"1"'})

    def get(self, name: str, request: Request) -> Reply:
        if name not in self.objects:
            return Reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data = self.objects[name]
        modified = {"ETag": '"1"', "Last-Modified": "Sat, 28 Nov 2026 00:00:00 GMT"}
        if (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))) is None:
            return Reply(200, data, modified)
        start, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        return Reply(206, data[start:end], {**modified, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def list(self, bucket: str, request: Request) -> Reply:
        prefix, after = (request.arguments.get(it, "") for it in ("prefix", "start-after"))
        keys = sorted(name.removeprefix(f"{bucket.rstrip('/')}/") for name in self.objects)
        shown = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-28T00:00:00Z</LastModified><Size>1</Size></Contents>"
            for key in keys
            if key.startswith(prefix) and key > after
        )
        return Reply(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{shown}</ListBucketResult>".encode())


class ForgetfulS3(CarelessS3):
    """Acknowledges each object, and stores none."""

    def put(self, name: str, request: Request) -> Reply:
        return Reply(200, headers={"ETag": '"1"'})


class ContraryS3(CarelessS3):
    """Takes the condition the wrong way round: a new name is refused because it doesn't exist."""

    def put(self, name: str, request: Request) -> Reply:
        if name not in self.objects and "if-none-match" in request.headers:
            return Reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        return super().put(name, request)


class HonestS3(CarelessS3):
    """The same server with the condition: so it is the lies that are refused."""

    def put(self, name: str, request: Request) -> Reply:
        if name in self.objects and "if-none-match" in request.headers:
            return Reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        return super().put(name, request)
