"""docs/reference/openapi/*.yaml, and whether real answers are what these files say.

The files let objects have more members, as later versions may add some. Here they may not: a member that a file lacks is
a mistake in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.support.late_grammars import late_grammars
from tests.support.process import Answer

FILES: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "openapi"
METHODS: Final = ("get", "post", "put", "delete")
NDJSON: Final = "application/x-ndjson"
_OF_AN_ERROR: Final = {"message", "reason"}  # which may have more members: the place where a log ends, for example
_CODE: Final = re.compile(r"`([A-Z][A-Z0-9_]+)`")


class Operation(NamedTuple):
    method: str
    path: str
    described: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path


class Api:
    """The description of one daemon's HTTP."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document: Final = document
        self.operations: Final = [
            Operation(method.upper(), path, item[method])
            for path, item in self.document["paths"].items()
            for method in METHODS
            if method in item
        ]
        self.answered: Final[set[tuple[str, str]]] = set()  # the operations that have had an answer that is no refusal
        self._closed: Final = _closed(self.document, self.resolved)

    def find(self, method: str, url: str) -> Operation:
        """Return the operation of a request; one with an exact path comes before one with words."""
        path = urlsplit(url).path
        fitting = [it for it in self.operations if it.method == method and _pattern(it.path).fullmatch(path)]
        assert fitting, f"{method} {path} is not described"
        return min(fitting, key=lambda it: "{" in it.path)

    def resolved(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a reference leads to, with what stands beside the reference."""
        if "$ref" not in node:
            return node
        found: Any = self.document
        for word in node["$ref"].removeprefix("#/").split("/"):
            found = found[word]
        return {**self.resolved(found), **{name: it for name, it in node.items() if name != "$ref"}}

    def parameters(self, operation: Operation) -> list[Mapping[str, Any]]:
        return [self.resolved(it) for it in operation.described.get("parameters", ())]

    def response(self, operation: Operation, status: int | str) -> Mapping[str, Any]:
        return self.resolved(operation.described["responses"][str(status)])

    def errors(self, operation: Operation, status: str) -> list[str]:
        """Return the errors that the description of an answer names."""
        return _CODE.findall(self.response(operation, status).get("description", ""))

    # Answers

    def check(self, method: str, url: str, body: bytes | None, answer: Answer) -> Answer:
        """Fail unless the answer is as described, and so is a request that was not refused. Return the answer."""
        operation = self.find(method, url)
        if answer.status < 400:
            self._check_request(operation, url, body)
        responses = operation.described["responses"]
        status = str(answer.status) if str(answer.status) in responses else "default"
        response = self.response(operation, status)
        self._check_content(f"{method} {url} {answer.status}", response, answer)
        if status == "default" or (answer.status >= 400 and self.errors(operation, status)):
            self._check_error(operation, status, answer)
        else:
            self.answered.add(operation.key)
        return answer

    def _check_request(self, operation: Operation, url: str, body: bytes | None) -> None:
        named = {it["name"] for it in self.parameters(operation) if it["in"] == "query"}
        assert {name for name, _ in parse_qsl(urlsplit(url).query)} <= named, (operation.key, url)
        described = operation.described.get("requestBody")
        assert described is not None or not body, (operation.key, body)
        if described is not None and body and "application/json" in described["content"]:
            schema = described["content"]["application/json"]["schema"]
            self._check_value(f"{operation.key}: the body", json.loads(body), schema)

    def _check_content(self, what: str, response: Mapping[str, Any], answer: Answer) -> None:
        contents = response.get("content", {})
        media = answer.headers.get("content-type", "").partition(";")[0]
        if not contents:
            assert not answer.body, (what, answer)
            return
        if not answer.body and not media:
            assert any("x-itemSchema" in it or it.get("schema", {}).get("type") == "string" for it in contents.values())
            return
        assert media in contents, (what, media, answer.body[:200])
        content = contents[media]
        for value in _values(media, answer.body):
            schema = content.get("x-itemSchema", {}) if media != "application/json" else content.get("schema", {})
            self._check_value(what, value, schema)

    def _check_value(self, what: str, value: object, schema: Mapping[str, Any]) -> None:
        with late_grammars():
            from jsonschema import Draft202012Validator  # later, as not every process that collects tests needs it

        validator = Draft202012Validator({**self._closed, **_closed(schema, self.resolved)})
        wrong = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]
        assert not wrong, (what, wrong)

    def _check_error(self, operation: Operation, status: str, answer: Answer) -> None:
        if answer.headers["content-type"].startswith("application/json"):
            code = answer.json["message"].partition(":")[0]
            known = self.errors(operation, status) + self.errors(operation, "default")
            assert code in known, (operation.key, answer.status, code, known)


@cache
def description_of(program: str) -> Mapping[str, Any]:
    text = (FILES / f"{program}.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = yaml.load(text, yaml.CSafeLoader)  # the one in Python takes 0.3 s
    return found


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))


def _values(media: str, body: bytes) -> Iterator[object]:
    """Yield the JSON documents of a body; none if it is something else."""
    if media == "application/json":
        yield json.loads(body)
    elif media == NDJSON:
        yield from map(json.loads, body.splitlines())


def _closed(node: Any, resolved: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Return the node with schemas of objects that take no member besides the described ones."""
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [_closed(it, resolved) for it in node]
    if not isinstance(node, Mapping):
        return node
    if "allOf" in node:
        node = _joined([resolved(it) for it in node["allOf"]])
    closed = {name: _closed(it, resolved) for name, it in node.items()}
    properties = node.get("properties")
    is_object = node.get("type") == "object" and isinstance(properties, Mapping)
    if is_object and set(properties or ()) != _OF_AN_ERROR:
        closed["additionalProperties"] = False
    return closed


def _joined(objects: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "required": [name for it in objects for name in it["required"]],
        "properties": {name: schema for it in objects for name, schema in it["properties"].items()},
    }
