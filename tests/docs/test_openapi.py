"""docs/reference/openapi/ describes all that the daemons serve. test_openapi_answers.py compares it with real answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from nsqcommon.version import NSQ_VERSION
from nsqd.http import access
from tests.docs.openapi import Api, description_of
from tests.project.test_admin_api import routes as routes_of_nsqadmin
from tests.support.late_grammars import late_grammars

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = {
    "nsqd": [*sorted((ROOT / "nsqd" / "http").glob("*.py"))],
    "nsqlookupd": [ROOT / "nsqlookupd" / "http_api.py"],
    "nsqadmin": [it for it in sorted((ROOT / "nsqadmin").rglob("*.py")) if "pages" not in it.parts],
}
# Where the errors of a daemon stand besides its own sources.
SHARED: Final = [*sorted((ROOT / "common").rglob("*.py")), *sorted((ROOT / "nsqd" / "broker").glob("*.py"))]
ROUTE: Final = re.compile(r'(?:Route|Endpoint)\(\s*"(\w+)",\s*"([^"]+)"(?:.*?access=(\w+))?', re.DOTALL)
RAISED: Final = re.compile(r'HttpError\(\s*\d+,\s*"([A-Z][A-Z_]+)"')
ARGUMENT: Final = re.compile(
    r'(?:arguments|query|query_params|wanted)(?:\(\))?(?:\.get\(|\[)"(\w+)"'
    r'|(?:arguments|query(?:\(\))?), "(\w+)"'
    r'|query_values\(request\.query_string, "(\w+)"'
)


@pytest.fixture(params=SOURCES)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(program: str) -> Api:
    return Api(description_of(program))


def code_of(program: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in SOURCES[program])


def test_it_is_openapi(api: Api) -> None:
    with late_grammars():
        from openapi_spec_validator import validate  # here, as only this test needs it

    validate(api.document)
    assert api.document["info"]["version"] == NSQ_VERSION


def test_operations_have_names_of_their_own(api: Api) -> None:
    names = [it.described["operationId"] for it in api.operations]
    assert len({*names}) == len(names)
    assert {tag for it in api.operations for tag in it.described["tags"]} == {it["name"] for it in api.document["tags"]}


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        found = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return found.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_every_component_is_used_and_every_reference_leads_to_one(api: Api) -> None:
    used = references(dict(api.document))
    for reference in used:
        api.resolved({"$ref": reference})
    defined = {
        f"#/components/{kind}/{name}"
        for kind, named in api.document["components"].items()
        for name in named
        if kind != "securitySchemes"
    }
    assert defined - used == set()


def test_every_route_is_described_and_no_other(program: str, api: Api) -> None:
    served = {(method, path) for method, path, _ in ROUTE.findall(code_of(program))}
    if program == "nsqadmin":
        served = {(method, path) for method, path in routes_of_nsqadmin() if path.startswith("/api/")}
    assert {it.key for it in api.operations} == served


def test_roles_are_those_of_the_code() -> None:
    """Each alternative of `security` names a role that is enough, or two that are needed together. The empty one stands for a node without rights."""
    asked = {}
    for method, path, name in ROUTE.findall(code_of("nsqd")):
        needed = getattr(access, name)
        ways = [[needed.role, needed.and_role], [needed.or_role]]
        found = [[str(role) for role in way if role is not None] for way in ways]
        asked[method, path] = [way for way in found if way]
    described = {
        it.key: [way["token"] for way in it.described["security"] if way.get("token")]
        for it in Api(description_of("nsqd")).operations
    }
    assert described == asked


def test_named_errors_are_those_of_the_code(program: str, api: Api) -> None:
    code = code_of(program)
    everything = code + "".join(path.read_text(encoding="utf-8") for path in SHARED)
    named = {error for it in api.operations for status in it.described["responses"] for error in api.errors(it, status)}
    raised = set(RAISED.findall(code))
    if program == "nsqadmin":  # of paths that are no part of the JSON API
        raised -= {"INVALID_OPTION", "INVALID_REMOTE_ADDR", "NOT_FOUND", "METHOD_NOT_ALLOWED", "TOO_MANY_VIEWERS"}
    assert raised - named == set()
    assert {error for error in named if not any(f'"{text}"' in everything for text in in_code(error))} == set()


def in_code(error: str) -> list[str]:
    """Return what stands in the code for an error: one of them does."""
    short = re.sub(r"^(INVALID_ARG|MISSING_ARG|INVALID)_", "", error)
    return [error, f"E_{error}", short.lower()]  # most are made of the argument's name


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_parameters_are_those_of_the_code(program: str, api: Api) -> None:
    read = {name for names in ARGUMENT.findall(code_of(program)) for name in names if name}
    described = {it["name"] for operation in api.operations for it in api.parameters(operation) if it["in"] == "query"}
    assert read - described == set()
    assert {name for name in described if not re.search(rf'b?"{name}(?:"|=)', code_of(program))} == set()
