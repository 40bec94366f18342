"""The palette over HTTP: what a user gets, as JSON for the script and as a page without one."""

from __future__ import annotations

import asyncio
import json
from html import unescape
from typing import Any, cast
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from nsqadmin.access import ALL_RIGHTS, READERS, Identity, Policy, Role
from nsqadmin.actions.audit import ActivityLog
from nsqadmin.actions.execution import Executor
from nsqadmin.cluster.model import Recording, Snapshot
from nsqadmin.cluster.view import SavedView
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.http.app import application
from nsqadmin.http.config import Settings
from nsqadmin.options import Options
from nsqadmin.pages import find
from nsqadmin.palette.service import Palette
from nsqadmin.parts.painter import Painter
from nsqadmin.services import Services
from nsqcommon.origin import OwnHosts
from tests.nsqadmin.palette.contexts import shop
from tests.support.asgi import ask
from tests.support.picture import channel, snapshot, topic

EVIL = "<script>alert(1)</script>"
ROLES = {
    "admin": ALL_RIGHTS,
    "viewer": READERS,
    "some": Role(name="some", can=READERS.can, topics=("orders",)),
}


class Doors:
    """Knows users by the header `user`, which is the name of a role."""

    async def identify(self, request: Request) -> Identity:
        request.state.basic_user = ""
        name = request.headers["user"]
        return Identity(user=name, roles=(ROLES[name],), can_publish=True)


def site(picture: Snapshot | None = None, *, is_live: bool = True) -> Starlette:
    """Return an nsqadmin with just this page. Nothing that it shows acts, so no node is needed."""
    options, activity = Options(nsqd_http_address=("127.0.0.1:1",)), ActivityLog("")
    view, book = SavedView(Recording(snapshot=picture or shop())), Book()
    book.observe(view.snapshot)
    none = cast("Any", None)
    services = Services(
        settings=Settings(options),
        view=view,
        policy=Policy(),
        access=none,
        hub=none,
        incidents=book,
        activity=activity,
        executor=Executor(none, activity, none, lost_by=lambda _: 0) if is_live else None,
    )
    painter = Painter(services)

    async def missing(request: Request) -> Any:
        raise AssertionError(request.url)

    return application(find.routes(services, painter), Doors(), OwnHosts(["nsqadmin"], ()), missing=missing)


@pytest.fixture(scope="module")
def app() -> Starlette:
    return site()


def get(app: Starlette, path: str, user: str) -> bytes:
    answer = ask(app, "GET", path, headers={"host": "nsqadmin", "user": user, "accept": "text/html"})
    assert answer.status == 200, answer
    return answer.body


def jump(app: Starlette, text: str, user: str = "admin", scope: str = "") -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(get(app, f"/jump?q={quote(text)}&scope={quote(scope)}", user)))


def page(app: Starlette, text: str, user: str = "admin") -> str:
    return unescape(get(app, f"/find?q={quote(text)}", user).decode()).replace("<wbr>", "")


def test_the_script_gets_all_that_it_shows(app: Starlette) -> None:
    answer = jump(app, "pause billing")
    assert answer["said"] == "1 match"
    assert answer["notes"] == []
    assert answer["found"] == [
        {
            "name": "Pause channel orders/billing",
            "kind": "command",
            "href": "/actions/pause_channel?topic=orders&channel=billing",
            "detail": "",
            "mark": "",
            "dialog": True,
        }
    ]


def test_the_page_has_the_same_as_links(app: Starlette) -> None:
    html = page(app, "pause billing")
    assert '<a href="/actions/pause_channel?topic=orders&channel=billing" data-dialog>' in html
    assert 'value="pause billing"' in html
    assert "data-dialog" not in page(app, "pause billing", "viewer")
    assert "No match for “nosuch”." in page(app, "nosuch")
    assert '<a href="/topics/orders/fraud">orders/fraud</a>' in page(app, "fraud")


@pytest.mark.parametrize(
    "text", ["pause billing", "delete billing", "publish orders", "create x", "drain n1", "mute stuck"]
)
def test_a_viewer_is_not_offered_what_only_others_may_do(app: Starlette, text: str) -> None:
    assert [it["kind"] for it in jump(app, text, "admin")["found"]].count("command") == 1
    answer = jump(app, text, "viewer")
    assert "command" not in [it["kind"] for it in answer["found"]]
    assert "viewer does not have the right" in answer["notes"][0]


def test_the_page_below_is_the_object(app: Starlette) -> None:
    for scope, name in (
        ("channel:orders/billing", "Empty channel orders/billing"),
        ("topic:payments", "Empty topic payments"),
    ):
        assert jump(app, "empty", scope=scope)["found"][0]["name"] == name
    for scope in ("channel:nosuch/x", "overview", "", "channel:", ":"):
        assert jump(app, "empty", scope=scope)["found"][0]["name"] == "Empty topic orders"


def test_a_snapshot_file_has_names_and_no_commands() -> None:
    app = site(is_live=False)
    assert jump(app, "billing")["found"][0]["href"] == "/topics/orders/billing"
    assert jump(app, "pause billing")["notes"] == ["This is a snapshot: nothing can be changed."]
    assert jump(app, "0d4c5e9b1f2a3b4c")["notes"] == ["This is a snapshot: it has no messages."]
    assert jump(app, "job order-17")["notes"] == ["This is a snapshot: it has no jobs."]


def test_names_and_texts_stay_text() -> None:
    app = site(snapshot(topic(channel(topic=EVIL, name=EVIL), name=EVIL)))
    for text in (EVIL, "script", "pause script", f"nosuch {EVIL}", f"a = 1 in {EVIL}", f'note = "{EVIL}"'):
        html = get(app, f"/find?q={quote(text)}&scope={quote(EVIL)}", "admin").replace(b"<wbr>", b"")
        assert EVIL.encode() not in html, text
    assert any(it["name"] == EVIL for it in jump(app, "script")["found"])


def test_a_user_sees_only_the_topics_of_their_roles(app: Starlette) -> None:
    assert jump(app, "ledger", "some")["found"] == []
    assert {it["name"] for it in jump(app, "a = 1", "some")["found"]} == {"Search a = 1 in orders"}
    assert "payments" not in page(app, "p", "some")


def test_the_rights_of_only_so_many_users_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Palette] = []

    def palette(*given: Any) -> Palette:
        made.append(Palette(*given))
        return made[0]

    async def ask_all() -> None:
        for number in range(20):
            await made[0].answer(Identity(user=f"user {number}", roles=(READERS,)), "")

    monkeypatch.setattr("nsqadmin.pages.find.Palette", palette)
    monkeypatch.setattr("nsqadmin.palette.service._MOST_USERS", 5)
    site()
    asyncio.run(ask_all())
    assert len(made[0]._rights) < 8
