"""`common/nsqcommon/web.py` uses parts of uvicorn that are not promised to stay: these tests notice a release that changes them.

The parts are read from the source of `_Connection`, so there is no second list of them.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any, Final

import pytest
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from nsqcommon import web

PRIVATE_HOOK: Final = "_start_asgi_task"
HOOKS: Final = {
    name: it
    for name, it in vars(web._Connection).items()
    if inspect.isfunction(it) and (name[0] != "_" or name == PRIVATE_HOOK)
}
# Attributes of a request under way, which `eof_received` and `connection_lost` read.
OF_A_CYCLE: Final = ("scope", "body", "more_body", "response_complete", "disconnected", "message_event")


def attributes_used() -> set[str]:
    """Return each `x` of `self.x` in `_Connection` that is not its own."""
    tree = ast.parse(inspect.getsource(web._Connection))
    of_self = [
        it for it in ast.walk(tree) if isinstance(it, ast.Attribute) and ast.unparse(it.value) in ("self", "super()")
    ]
    own = {it.attr for it in of_self if isinstance(it.ctx, ast.Store) and it.attr.startswith("_")}
    ours = {name for name in vars(web._Connection) if name.startswith("_") and name not in HOOKS}
    return {it.attr for it in of_self} - own - ours


def connection_of_uvicorn() -> HttpToolsProtocol:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    config = Config(app, lifespan="off", ws="none", log_config=None)
    loop = asyncio.new_event_loop()
    try:
        connection = HttpToolsProtocol(config, ServerState(), {}, loop)
        connection.on_message_begin()  # some attributes exist only with a request
    finally:
        loop.close()
    return connection


def test_uvicorn_has_all_that_our_connection_uses() -> None:
    used = attributes_used()
    assert {"pipeline", "flow", "cycle", PRIVATE_HOOK} <= used, "the source was read in vain"
    theirs = connection_of_uvicorn()
    assert {name for name in used if not hasattr(theirs, name)} == set()


@pytest.mark.parametrize("name", HOOKS)
def test_what_our_connection_overrides_is_still_called_like_that(name: str) -> None:
    theirs = getattr(HttpToolsProtocol, name)
    assert list(inspect.signature(HOOKS[name]).parameters) == list(inspect.signature(theirs).parameters)


def test_a_request_under_way_has_what_we_look_at() -> None:
    source = inspect.getsource(RequestResponseCycle.__init__)
    assert [name for name in OF_A_CYCLE if f"self.{name} " not in source and f"self.{name}:" not in source] == []


def test_reading_is_resumed_as_we_override_it() -> None:
    assert list(inspect.signature(FlowControl.__init__).parameters) == ["self", "transport"]
    for method in (RequestResponseCycle.receive, HttpToolsProtocol.on_response_complete):
        assert "self.flow.resume_reading()" in inspect.getsource(method)


def test_the_next_request_of_a_pipeline_is_taken_as_uvicorn_takes_it() -> None:
    """`_Connection.on_response_complete` repeats uvicorn's method without its timer, so the lines must stay alike."""
    theirs = inspect.getsource(HttpToolsProtocol.on_response_complete)
    for line in (
        "self.server_state.total_requests += 1",
        "self.flow.resume_reading()",
        "self.pipeline.pop()",
        "self._start_asgi_task(cycle, app)",
    ):
        assert line in theirs
        assert line in inspect.getsource(web._Connection.on_response_complete)
