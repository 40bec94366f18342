"""The part of Iceberg's REST catalog that landing needs, in front of a catalog in a SQLite file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from pyspark_nsq.tables.iceberg_catalogs import open_catalog
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.iceberg import catalog_at

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Answer = tuple[int, Any]


class RestCatalog(HttpServer):
    protocol = "HTTP/1.0"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._lake = f"file://{folder}/lake"
        self.catalog: Catalog = open_catalog(catalog_at(folder))

    def reply(self, request: Request) -> Reply:
        path = [unquote(part) for part in request.path.split("/")[2:]]
        status, answer = self._answer(request.method, path, request.body)
        return Reply(status, json.dumps(answer).encode())

    def _answer(self, method: str, path: list[str], body: bytes) -> Answer:
        match method, path:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self.catalog.create_namespace_if_not_exists(".".join(json.loads(body)["namespace"]))
                return 200, json.loads(body)
            case "POST", ["namespaces", namespace, "tables"]:
                return 200, self._staged(namespace, json.loads(body))
            case "GET", ["namespaces", namespace, "tables", name]:
                return self._table(f"{namespace}.{name}")
            case "POST", ["namespaces", namespace, "tables", name]:
                return self._commit(f"{namespace}.{name}", body)
        return 404, {"error": {"message": "no such path", "type": "NoSuchNamespaceException", "code": 404}}

    def _staged(self, namespace: str, asked: dict[str, Any]) -> dict[str, Any]:
        metadata = new_table_metadata(
            Schema.model_validate(asked["schema"]),
            PartitionSpec(),
            UNSORTED_SORT_ORDER,
            f"{self._lake}/{namespace}/{asked['name']}",
            dict(asked.get("properties") or {}),
        )
        return {"metadata": json.loads(metadata.model_dump_json()), "config": {}}

    def _table(self, name: str) -> Answer:
        try:
            table = self.catalog.load_table(name)
        except NoSuchTableError as error:
            return 404, {"error": {"message": str(error), "type": "NoSuchTableException", "code": 404}}
        metadata = json.loads(table.metadata.model_dump_json())
        return 200, {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

    def _commit(self, name: str, body: bytes) -> Answer:
        asked = CommitTableRequest.model_validate_json(body)
        named: Any = SimpleNamespace(name=lambda: tuple(name.split(".")))  # it may be there only once this is done
        try:
            self.catalog.commit_table(named, asked.requirements, asked.updates)
        except CommitFailedException as error:
            return 409, {"error": {"message": str(error), "type": "CommitFailedException", "code": 409}}
        return self._table(name)
