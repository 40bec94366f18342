"""Pages of the site from docs/reference/openapi/*.yaml: plain text and tables, which the site's search finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

Json = Mapping[str, Any]

METHODS: Final = ("get", "post", "put", "delete")


def files(docs: Path) -> list[Path]:
    return sorted((docs / "reference" / "openapi").glob("*.yaml"))


def page(path: Path) -> str:
    document = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)  # the one in Python takes 0.3 s
    return "\n".join(_Page(document, path.name).lines())


class _Page:
    def __init__(self, document: Json, name: str) -> None:
        self._document = document
        self._name = name

    def lines(self) -> Iterator[str]:
        info = self._document["info"]
        yield f"# OpenAPI: {info['title']}\n\n{info['description']}\n[{self._name}]({self._name}) is the same for tools.\n"
        for tag in self._document["tags"]:
            yield f"## {tag['name']}\n\n{tag.get('description', '')}\n"
            for path, item in self._document["paths"].items():
                for method in METHODS:
                    if tag["name"] in item.get(method, {}).get("tags", ()):
                        yield from self._operation(f"{method.upper()} {path}", item[method])
        yield "## Schemas\n"
        for name, schema in self._document["components"]["schemas"].items():
            yield f"### {name}\n\n{schema.get('description', '')}\n"
            yield from self._schema(schema)

    def _operation(self, title: str, operation: Json) -> Iterator[str]:
        yield f"### {title}\n\n{operation['summary']}.\n"
        if said := operation.get("description"):
            yield f"{said}\n"
        if roles := sorted({role for way in operation.get("security", ()) for role in way.get("token", ())}):
            yield f"Role: {' or '.join(f'`{role}`' for role in roles)}.\n"
        if parameters := [self._resolved(it) for it in operation.get("parameters", ())]:
            yield from _table(("parameter", "type", ""), (self._parameter(it) for it in parameters))
        if body := operation.get("requestBody"):
            kinds = " or ".join(self._content(body["content"]))
            yield f"Body: {kinds}. {body.get('description', '')}\n"
        yield from _table(("status", "answer", ""), self._responses(operation["responses"]))

    def _parameter(self, parameter: Json) -> tuple[str, str, str]:
        schema = parameter["schema"]
        name = f"`{parameter['name']}`" + (", required" if parameter.get("required") else "")
        description = parameter.get("description") or self._resolved(schema).get("description", "")
        return name, self._type(schema), description

    def _responses(self, responses: Json) -> Iterator[tuple[str, str, str]]:
        for status, response in responses.items():
            found = self._resolved(response)
            kinds = "<br>".join(self._content(found.get("content", {})))
            yield status, kinds, found["description"]

    def _content(self, contents: Json) -> Iterator[str]:
        for media, content in contents.items():
            schema, item = content.get("schema", {}), content.get("x-itemSchema")
            kind = f"of {self._type(item)}" if item else self._type(schema) if media == "application/json" else ""
            yield f"`{media}` {kind}".strip()

    def _schema(self, schema: Json) -> Iterator[str]:
        if properties := schema.get("properties"):
            required = schema.get("required", ())
            rows = [
                (f"`{name}`" + ("" if name in required else ", optional"), self._type(it), it.get("description", ""))
                for name, it in properties.items()
            ]
            yield from _table(("field", "type", ""), rows)
        else:
            yield f"{self._type(schema)}\n"

    def _type(self, schema: Json) -> str:
        if "$ref" in schema:
            return self._link(schema["$ref"])
        for word, joint in (("oneOf", " or "), ("allOf", " with ")):
            if word in schema:
                return joint.join(map(self._type, schema[word]))
        if "enum" in schema:
            return "one of " + ", ".join(f"`{it}`" for it in schema["enum"])
        kinds = schema.get("type", "any JSON")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return " or ".join(self._kind(kind, schema) for kind in kinds)

    def _kind(self, kind: str, schema: Json) -> str:
        if kind == "array" and "prefixItems" in schema:
            return f"[{', '.join(map(self._type, schema['prefixItems']))}]"
        if kind == "array":
            return f"list of {self._type(schema['items'])}"
        if kind == "object" and isinstance(more := schema.get("additionalProperties"), Mapping):
            return f"object of {self._type(more)}"
        if kind == "object" and (properties := schema.get("properties")):
            return "; ".join(f"`{name}`: {self._type(it)}" for name, it in properties.items())
        return f"`{schema['pattern']}`" if "pattern" in schema else kind

    def _link(self, reference: str) -> str:
        name = reference.split("/")[3]
        return f"[{name}](#{name.lower()})"

    def _resolved(self, node: Json) -> Json:
        if "$ref" not in node:
            return node
        found: Any = self._document
        for word in node["$ref"].removeprefix("#/").split("/"):
            found = found[word]
        return {**found, **node}


def _table(head: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(' '.join(str(cell).replace('|', '&#124;').split()) for cell in row)} |"
    yield ""
