"""The login by a provider as a browser sees it, and what an attacker tries."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
import trio
import trio.testing

from nsqadmin.accounts import Secret
from nsqadmin.oidc.session import Session
from nsqcommon.startup import StartupError
from tests.nsqadmin.oidc.world import NOW, Answer, Browser, World, by_hmac, captured, in_world, unsigned


@in_world
async def test_a_user_logs_in_and_comes_back_to_the_page(world: World) -> None:
    browser = world.browser()
    answer = await browser.open("/topics?show=all")
    assert (answer.status, answer.header("location")) == (303, "/login?next=%2Ftopics%3Fshow%3Dall")
    answer = await browser.log_in(answer.header("location"))
    assert answer.header("location") == "/topics?show=all"
    me = await browser.me()
    assert (me["user"], me["groups"], me["rights"]["viewer"]) == ("ana@example.com", ["sre"], True)
    page = await browser.open("/topics")
    assert page.status == 200
    assert "Log out" in page.text
    assert "ana@example.com" in page.text


# Cookies


@in_world
async def test_cookies_are_out_of_reach_of_scripts_other_hosts_and_plain_http(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    attempt, _ended, session = browser.set
    for line in (attempt, session):
        assert line.startswith("__Host-nsqadmin-")
        assert line.split("; ")[1:5] == ["Path=/", "HttpOnly", "SameSite=Lax", "Secure"]
    assert "Max-Age=600" in attempt
    assert "Max-Age" not in session
    assert list(browser.cookies) == [browser.site.flow.cookies.session], "that of the login has ended"


@in_world
async def test_a_cookie_shows_neither_the_user_nor_the_refresh_token(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    again = urlsafe_b64decode(browser.session + "==")
    assert b"ana" not in again
    assert b"sre" not in again


@in_world
async def test_a_cookie_that_was_changed_or_is_of_another_key_or_purpose_is_no_session(world: World) -> None:
    site = world.site()
    browser, name = world.browser(site), site.flow.cookies.session
    callback = await browser.begin()
    attempt = next(iter(browser.cookies.values()))
    await browser.finish(callback)
    value = browser.session
    changed = value[:-8] + ("A" if value[-8] != "A" else "B") + value[-7:]
    stranger = world.browser(world.site())  # without a key file each nsqadmin has a key of its own
    await stranger.log_in()
    for forged in (changed, attempt, stranger.session, value[:20], "AQ", "", "=", "\xff", "x" * 9000):
        assert await browser.me(cookies={name: forged}) == 401
    assert (await browser.me(cookies={name: value}))["user"] == "ana@example.com"


@in_world
async def test_two_nsqadmins_with_a_key_file_share_sessions_and_logins(world: World) -> None:
    keys = world.file("keys", b64encode(bytes(range(32))).decode())
    first, second = (world.site(session_key_file=str(keys)) for _ in range(2))
    browser = world.browser(first)
    callback = await browser.begin()
    assert (await browser.finish(callback, site=second)).status == 303
    assert (await browser.me(site=first))["user"] == (await browser.me(site=second))["user"] == "ana@example.com"


@in_world
async def test_a_key_is_rotated_without_ending_sessions(world: World) -> None:
    old, new = (b64encode(bytes([number]) * 32).decode() for number in (1, 2))
    browser = world.browser(world.site(session_key_file=str(world.file("old", old))))
    await browser.log_in()
    both = world.site(session_key_file=str(world.file("both", f"{new}\n{old}\n")))
    assert (await browser.me(site=both))["user"] == "ana@example.com"
    gone = world.site(session_key_file=str(world.file("new", new)))
    assert await browser.me(site=gone) == 401


@in_world
async def test_a_session_is_for_one_url_even_if_clusters_share_the_key_file(world: World) -> None:
    keys = str(world.file("keys", b64encode(bytes(32)).decode()))
    browser = world.browser(world.site(session_key_file=keys))
    await browser.log_in()
    other = world.site(session_key_file=keys, external_url="https://test.example")
    cookies = {other.flow.cookies.session: browser.session}
    assert await browser.me(site=other, cookies=cookies, host="test.example") == 401


# The callback


@in_world
async def test_a_callback_is_refused_in_a_browser_that_has_not_begun_the_login(world: World) -> None:
    site = world.site()
    attacker, victim = world.browser(site), world.browser(site)
    callback = await attacker.begin()
    answer = await victim.finish(callback)
    assert answer.status == 403
    assert "begun in this browser" in answer.text
    assert victim.cookies == {}
    assert world.provider.asked["/token"] == 0


@in_world
async def test_a_callback_works_once_even_with_its_cookie(world: World) -> None:
    browser = world.browser()
    callback = await browser.begin()
    kept = dict(browser.cookies)
    assert (await browser.finish(callback)).status == 303
    assert (await browser.finish(callback)).status == 403, "the cookie has ended"
    answer = await browser.finish(callback, cookies=kept)
    assert answer.status == 403
    assert "finished already" in answer.text
    assert world.provider.asked["/token"] == 1


@in_world
async def test_a_replayed_code_is_refused_by_the_provider_and_gives_no_session(world: World) -> None:
    keys = str(world.file("keys", b64encode(bytes(32)).decode()))
    sites = [world.site(session_key_file=keys) for _ in range(2)]
    browser = world.browser(sites[0])
    callback = await browser.begin()
    kept = dict(browser.cookies)
    await browser.finish(callback)
    answer = await browser.finish(callback, site=sites[1], cookies=kept)  # which doesn't know that it was used
    assert (answer.status, answer.all("set-cookie")) == (403, [])
    assert "invalid_grant" in answer.text


@in_world
async def test_a_code_of_another_login_does_not_fit_the_verifier(world: World) -> None:
    site = world.site()
    attacker, victim = world.browser(site), world.browser(site)
    theirs, ours = await attacker.begin(), await victim.begin()
    code, state = dict(parse_qsl(urlsplit(theirs).query))["code"], dict(parse_qsl(urlsplit(ours).query))["state"]
    answer = await victim.open(f"/login/callback?code={code}&state={state}&iss=https://idp.example")
    assert (answer.status, "invalid_grant" in answer.text) == (403, True)


@in_world
async def test_a_login_ends_after_ten_minutes(world: World) -> None:
    browser = world.browser()
    callback = await browser.begin()
    world.pass_time(600)
    answer = await browser.finish(callback)
    assert (answer.status, "took too long" in answer.text) == (403, True)


@in_world
async def test_an_answer_that_names_another_issuer_is_refused(world: World) -> None:
    browser = world.browser()
    callback = await browser.begin()
    answer = await browser.finish(callback.replace("iss=https%3A%2F%2Fidp", "iss=https%3A%2F%2Fevil"))
    assert (answer.status, "another provider" in answer.text) == (403, True)
    assert world.provider.asked["/token"] == 0


@in_world
async def test_an_answer_without_an_issuer_is_refused_if_the_provider_always_names_it(world: World) -> None:
    world.provider.metadata["authorization_response_iss_parameter_supported"] = True
    browser = world.browser()
    callback = await browser.begin()
    answer = await browser.finish(callback.partition("&iss=")[0])
    assert (answer.status, world.provider.asked["/token"]) == (403, 0)


@in_world
async def test_the_words_of_the_provider_are_shown_as_text(world: World) -> None:
    browser = world.browser()
    state = dict(parse_qsl(urlsplit(await browser.begin()).query))["state"]
    answer = await browser.open(f"/login/callback?state={state}&error=access_denied&error_description=<script>%0A")
    assert answer.status == 403
    assert "access_denied (&lt;script&gt; )" in answer.text


@in_world
async def test_code_and_state_are_not_logged(world: World) -> None:
    browser = world.browser()
    with captured() as lines:
        callback = await browser.begin()
        await browser.finish(callback)
    asked = dict(parse_qsl(urlsplit(callback).query))
    assert any("/login/callback?***" in line for line in lines)
    assert not any(asked["code"] in line or asked["state"] in line for line in lines)


@in_world
async def test_several_tabs_log_in_at_once_but_not_without_end(world: World) -> None:
    browser = world.browser()
    first, second = await browser.begin("/login?next=/topics"), await browser.begin("/login?next=/nodes")
    assert (await browser.finish(second)).header("location") == "/nodes"
    assert (await browser.finish(first)).header("location") == "/topics"
    for _ in range(20):
        await browser.begin()
    assert len(browser.cookies) <= 6


# ID tokens: the rules one by one are in test_id_token.py


@pytest.mark.parametrize(
    ("claims", "header", "text"),
    [
        ({"aud": "other"}, {}, "it is for"),
        ({"iss": "https://evil.example"}, {}, "its issuer is"),
        ({"nonce": "replayed"}, {}, "its nonce"),
        ({"exp": 1}, {}, "it expired"),
        ({"at_hash": "x"}, {}, "at_hash"),
        ({}, {"alg": "none"}, "its algorithm is"),
        ({}, {"kid": "unknown"}, "by a key of the provider"),
    ],
)
def test_an_id_token_that_is_not_for_this_login_is_refused(
    claims: dict[str, object], header: dict[str, object], text: str
) -> None:
    @in_world
    async def refused(world: World) -> None:
        world.provider.extra_claims = claims
        world.provider.header = header
        if header.get("alg") == "none":
            world.provider.sign = unsigned
        browser = world.browser()
        answer = await browser.finish(await browser.begin())
        assert answer.status == 403
        assert text in answer.text
        assert all("login" in name for name in browser.cookies), "there is no session"

    refused()


@in_world
async def test_a_token_signed_with_the_public_key_as_a_password_is_refused(world: World) -> None:
    pem = world.provider.key.as_pem(private=False)
    world.provider.sign = lambda header, claims: by_hmac(header, claims, pem)
    world.provider.keys.append({"kty": "oct", "kid": "k1", "k": urlsafe_b64encode(pem).decode()})
    browser = world.browser()
    answer = await browser.finish(await browser.begin())
    assert (answer.status, "its algorithm is" in answer.text) == (403, True)


# Names and groups


@in_world
async def test_claims_that_the_id_token_lacks_come_from_userinfo(world: World) -> None:
    world.provider.keeps = frozenset(("groups", "email"))
    browser = world.browser()
    await browser.log_in()
    me = await browser.me()
    assert (me["user"], me["groups"]) == ("ana@example.com", ["sre"])


@in_world
async def test_a_userinfo_about_someone_else_is_refused(world: World) -> None:
    world.provider.keeps = frozenset(("groups",))
    world.provider.extra_claims = {"sub": "u-2"}
    browser = world.browser()
    answer = await browser.finish(await browser.begin())
    assert (answer.status, "another account" in answer.text) == (403, True)


@in_world
async def test_a_user_without_a_role_sees_nothing(world: World) -> None:
    world.provider.user |= {"groups": ["interns"]}
    browser = world.browser()
    await browser.log_in()
    answer = await browser.ask("/api/v2/topics")
    assert (answer.status, "does not have the right" in answer.text) == (403, True)


@in_world
async def test_groups_without_a_role_take_no_room_in_the_cookie(world: World) -> None:
    world.provider.user |= {"groups": [f"00000000-0000-0000-0000-{number:012}" for number in range(1000)] + ["sre"]}
    browser = world.browser()
    await browser.log_in()
    assert len(browser.session) < 500
    assert (await browser.me())["groups"] == ["sre"]


@in_world
async def test_more_groups_with_roles_than_fit_are_refused_with_a_reason(world: World) -> None:
    world.provider.user |= {"groups": [f"{number:0100}-support" for number in range(50)]}
    browser = world.browser()
    answer = await browser.finish(await browser.begin())
    assert (answer.status, "more groups" in answer.text) == (403, True)


@in_world
async def test_a_name_of_the_provider_is_not_taken_for_a_local_account(world: World) -> None:
    accounts = {"ana@example.com": Secret.of("s3cret")}
    browser = world.browser(world.site(accounts=accounts, auth_file="users"))
    answer = await browser.finish(await browser.begin("/login?by=provider"))
    assert (answer.status, "--oidc-prefix" in answer.text) == (403, True)
    browser = world.browser(world.site("--admin-user=ana@example.com", oidc_prefix="oidc:"))
    await browser.log_in()
    assert await browser.me() == 403, "nor its group, because the roles file says sre, not oidc:sre"
    browser = world.browser(world.site("--admin-user=oidc:ana@example.com", oidc_prefix="oidc:"))
    await browser.log_in()
    assert (await browser.me())["user"] == "oidc:ana@example.com"


@in_world
async def test_local_accounts_work_beside(world: World) -> None:
    accounts = {"eve@example.com": Secret.of("s3cret")}
    browser = world.browser(world.site(accounts=accounts, auth_file="users"))
    basic = "Basic " + b64encode(b"eve@example.com:s3cret").decode()
    assert (await browser.me(authorization=basic))["user"] == "eve@example.com"
    assert await browser.me(authorization="Basic " + b64encode(b"eve@example.com:wrong").decode()) == 401
    choice = await browser.open("/login?next=/topics")
    assert choice.status == 200
    assert "/password?next=%2Ftopics" in choice.text
    asked = await browser.open("/password?next=/topics")
    assert (asked.status, asked.header("www-authenticate")[:5]) == (401, "Basic")
    assert (await browser.open("/password?next=/topics", authorization=basic)).header("location") == "/topics"
    script = await browser.ask("/topics", sec_fetch_site="same-origin", sec_fetch_mode="cors", accept="text/html")
    assert (script.status, script.header("www-authenticate")) == (401, ""), "no dialog of the browser"
    program = await browser.ask("/api/v2/topics")
    assert (program.status, program.header("www-authenticate")[:5]) == (401, "Basic")


@in_world
async def test_headers_of_a_proxy_name_no_one(world: World) -> None:
    browser = world.browser()
    assert await browser.me(x_forwarded_user="ana@example.com", x_forwarded_groups="sre") == 401


# Redirects


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/%2e%2e/x", "/\tx", "javascript:alert(1)", "/login"],
)
def test_after_the_login_only_our_own_pages_are_shown(path: str) -> None:
    @in_world
    async def comes_home(world: World) -> None:
        browser = world.browser()
        answer = await browser.log_in(f"/login?next={quote(path)}")
        assert answer.header("location") == "/"

    comes_home()


@in_world
async def test_a_base_path_is_part_of_every_address(world: World) -> None:
    world.provider.redirect_uris = {"https://nsq.example/nsqadmin/login/callback"}
    browser = world.browser(world.site(base_path="/nsqadmin"))
    answer = await browser.open("/nsqadmin/topics")
    assert answer.header("location") == "/nsqadmin/login?next=%2Fnsqadmin%2Ftopics"
    assert (await browser.log_in(answer.header("location"))).header("location") == "/nsqadmin/topics"
    assert (await browser.log_in("/nsqadmin/login?next=/topics")).header("location") == "/nsqadmin"


@in_world
async def test_a_login_by_another_name_moves_to_the_external_url_first(world: World) -> None:
    browser = world.browser()
    answer = await browser.open("/login?next=/topics", host="127.0.0.1:4171")
    target = "https://nsq.example/login?here=1&next=%2Ftopics"
    assert (answer.status, answer.header("location")) == (303, target)
    answer = await browser.open("/login?here=1&next=%2Ftopics", host="127.0.0.1:4171")
    assert answer.header("location").startswith("https://idp.example/authorize?"), "a proxy may hide the name"


@in_world
async def test_the_challenge_of_a_login_is_a_digest_and_differs_each_time(world: World) -> None:
    browser = world.browser(world.site("--oidc-authorization-parameter=access_type=offline"))
    asked = [dict(parse_qsl(urlsplit((await browser.open("/login")).header("location")).query)) for _ in range(2)]
    assert asked[0]["access_type"] == "offline"
    assert asked[0]["scope"] == "openid profile email"
    for name in ("state", "nonce", "code_challenge"):
        assert len(asked[0][name]) >= 32
        assert asked[0][name] != asked[1][name]


# Confirming a session


@in_world
async def test_groups_are_read_again_after_five_minutes(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    old = browser.session
    world.provider.user |= {"groups": ["eu-support"]}
    world.pass_time(299)
    assert (await browser.me())["groups"] == ["sre"]
    world.pass_time(1)
    assert (await browser.me())["groups"] == ["eu-support"]
    assert browser.session != old
    name = browser.site.flow.cookies.session
    assert (await browser.me(cookies={name: old}))["groups"] == ["eu-support"], "an old cookie has no old rights"
    assert world.provider.asked["/token"] == 2


@in_world
async def test_a_user_who_has_lost_all_groups_loses_every_right(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    del world.provider.user["groups"]
    world.pass_time(300)
    assert (await browser.ask("/api/v2/topics")).status == 403


@in_world
async def test_a_session_that_the_provider_ends_is_over_at_the_next_question(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    world.provider.end_sessions()
    world.pass_time(300)
    assert (await browser.open("/topics")).header("location") == "/login?next=%2Ftopics"
    assert await browser.me() == 401
    assert world.provider.asked["/token"] == 2, "it isn't asked again about a session that is over"


@pytest.mark.parametrize("claims", [{"aud": "other"}, {"sub": "u-2"}, {"nonce": "x"}, {"exp": 1}])
def test_a_refresh_with_a_token_that_is_not_for_us_ends_the_session(claims: dict[str, object]) -> None:
    @in_world
    async def ends(world: World) -> None:
        browser = world.browser()
        await browser.log_in()
        world.provider.extra_claims = claims
        world.pass_time(300)
        assert await browser.me() == 401

    ends()


@in_world
async def test_a_refresh_without_an_id_token_asks_userinfo(world: World) -> None:
    world.provider.sends_id_token = False
    browser = world.browser()
    await browser.log_in()
    world.provider.user |= {"groups": ["support"]}
    world.pass_time(300)
    assert (await browser.me())["groups"] == ["support"]


@in_world
async def test_many_requests_at_once_ask_the_provider_once(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    world.pass_time(300)
    answers: list[Any] = []

    async def ask(cookies: dict[str, str]) -> None:
        answers.append(await browser.me(cookies=cookies))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask, dict(browser.cookies))
    assert [it["user"] for it in answers] == ["ana@example.com"] * 10
    assert world.provider.asked["/token"] == 2


@in_world
async def test_a_lost_answer_does_not_lose_the_new_refresh_token(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    for _ in range(3):  # the browser never gets the new cookie
        world.pass_time(300)
        assert (await browser.me(cookies=dict(browser.cookies)))["user"] == "ana@example.com"


@in_world
async def test_a_new_refresh_token_is_kept_though_the_next_step_fails(world: World) -> None:
    world.provider.sends_id_token = False
    browser = world.browser()
    await browser.log_in()

    async def is_half_away(path: str) -> None:
        if path == "/userinfo":
            raise OSError("connection refused")

    world.provider.before = is_half_away
    world.pass_time(300)
    assert (await browser.me())["user"] == "ana@example.com"
    world.provider.before = None
    for _ in range(2):
        world.pass_time(1800)  # the provider knows only the newest token
        assert (await browser.me())["user"] == "ana@example.com"


@in_world
async def test_two_nsqadmins_take_turns_with_one_refresh_token(world: World) -> None:
    keys = str(world.file("keys", b64encode(bytes(32)).decode()))
    sites = [world.site(session_key_file=keys) for _ in range(2)]
    browser = world.browser(sites[0])
    await browser.log_in()
    for turn in range(6):
        world.pass_time(300)
        assert (await browser.me(site=sites[turn % 2]))["user"] == "ana@example.com"


@in_world
async def test_two_nsqadmins_that_refresh_at_once_cost_the_user_a_login_at_most(world: World) -> None:
    keys = str(world.file("keys", b64encode(bytes(32)).decode()))
    sites = [world.site(session_key_file=keys) for _ in range(2)]
    browser = world.browser(sites[0])
    await browser.log_in()
    world.pass_time(300)
    before = dict(browser.cookies)
    assert (await browser.me(site=sites[0]))["user"] == "ana@example.com"
    answer = await browser.ask("/api/v2/me", site=sites[1], cookies=before)  # sent before the first was answered
    assert (answer.status, answer.all("set-cookie")) == (401, []), "it must not end the cookie of the other"
    world.pass_time(300)  # the provider has ended all tokens of this login
    assert (await browser.open("/topics")).header("location") == "/login?next=%2Ftopics"
    await browser.log_in()
    assert (await browser.me(site=sites[1]))["user"] == "ana@example.com"


@in_world
async def test_a_provider_that_is_away_leaves_sessions_until_their_hour_and_then_it_is_said(world: World) -> None:
    browser = world.browser()
    await browser.log_in()

    async def is_away(path: str) -> None:
        raise OSError("connection refused")

    world.provider.before = is_away
    world.pass_time(3599)
    assert (await browser.me())["user"] == "ana@example.com"
    asked = world.provider.asked["/token"]
    assert (await browser.me())["user"] == "ana@example.com"
    assert world.provider.asked["/token"] == asked, "it gets a pause"
    world.pass_time(1)
    script = await browser.ask("/api/v2/me")
    assert script.status == 401
    assert "your session has ended, because the provider has not answered for an hour" in script.text
    answer = await browser.open("/topics")
    assert answer.header("location") == "/login?ended=away&next=%2Ftopics"
    assert "has not answered nsqadmin for an hour" in (await browser.open(answer.header("location"))).text
    world.provider.before = None
    assert (await browser.log_in("/login?by=provider&next=%2Ftopics")).header("location") == "/topics"


@in_world
async def test_a_provider_that_comes_back_confirms_the_session(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    world.provider.refuses = "invalid_client"  # the operator has changed the secret at the provider first
    world.pass_time(3000)
    assert (await browser.me())["user"] == "ana@example.com"
    world.provider.refuses = ""
    world.pass_time(15)
    assert (await browser.me())["user"] == "ana@example.com"
    world.pass_time(3000)
    assert (await browser.me())["user"] == "ana@example.com"


@in_world
async def test_one_user_whom_the_provider_serves_badly_does_not_keep_others_from_being_confirmed(world: World) -> None:
    site = world.site()
    ana, eve = world.browser(site), world.browser(site)
    await ana.log_in()
    world.provider.user = {"sub": "u-2", "email": "eve@example.com", "groups": ["sre"]}
    await eve.log_in()
    world.pass_time(300)
    world.provider.refuses = "slow_down"
    await ana.me()
    world.provider.refuses = ""
    world.provider.user |= {"groups": []}
    assert (await eve.me())["groups"] == []


@in_world
async def test_one_user_of_whom_the_provider_tells_nothing_does_not_keep_others_from_being_confirmed(
    world: World,
) -> None:
    site = world.site()
    ana, eve = world.browser(site), world.browser(site)
    await ana.log_in()
    world.provider.user = {"sub": "u-2", "email": "eve@example.com", "groups": ["sre"]}
    await eve.log_in()
    world.pass_time(300)
    world.provider.user |= {"groups": ["sre"], "name": "x" * 300_000}  # more than we read
    assert (await ana.me())["user"] == "ana@example.com"
    world.provider.user = {"sub": "u-2", "email": "eve@example.com", "groups": []}
    assert (await eve.me())["groups"] == []


@in_world
async def test_without_a_refresh_token_a_session_ends_after_an_hour(world: World) -> None:
    world.provider.sends_refresh_token = False
    browser = world.browser()
    await browser.log_in()
    world.pass_time(3599)
    assert (await browser.me())["user"] == "ana@example.com"
    world.pass_time(1)
    assert await browser.me() == 401


@in_world
async def test_a_session_that_is_not_used_ends_after_an_hour(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    world.pass_time(3600)
    assert await browser.me() == 401


@in_world
async def test_a_session_ends_a_day_after_the_login_however_often_it_is_confirmed(world: World) -> None:
    browser = world.browser(world.site(oidc_max_session="20m"))
    await browser.log_in()
    for _ in range(3):
        world.pass_time(399)
        assert (await browser.me())["user"] == "ana@example.com"
    world.pass_time(3)
    assert await browser.me() == 401


@in_world
async def test_a_refresh_token_that_is_too_long_for_a_cookie_is_left_out(world: World) -> None:
    site = world.site()
    session = Session(
        id="x", subject="u", user="ana@example.com", groups=("sre",), began=NOW, confirmed=NOW, refresh_token="r" * 5000
    )
    browser = world.browser(site)
    line = await site.flow._cookie(session)
    browser.cookies[site.flow.cookies.session] = line.partition("=")[2].partition(";")[0]
    assert len(line) < 4096
    assert (await browser.me())["user"] == "ana@example.com"
    world.pass_time(3600)
    assert await browser.me() == 401


@in_world
async def test_a_clock_that_is_set_back_does_not_keep_rights_from_being_read(world: World) -> None:
    world.ahead = 200.0
    browser = world.browser()
    await browser.log_in()

    async def is_away(path: str) -> None:
        raise OSError("refused")

    world.provider.before = is_away
    world.pass_time(3000)
    assert (await browser.me())["groups"] == ["sre"]
    world.provider.before = None
    world.provider.user |= {"groups": ["support"]}
    world.ahead = 0.0
    assert (await browser.me())["groups"] == ["support"]


# The end


@in_world
async def test_logging_out_ends_the_session_its_cookie_and_the_refresh_token(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    kept = dict(browser.cookies)
    answer = await browser.ask("/logout", "POST", sec_fetch_site="same-origin")
    assert (answer.status, answer.header("location")) == (303, "/logged-out")
    assert browser.cookies == {}
    assert await browser.me(cookies=kept) == 401, "a copy of the cookie is of no use, either"
    assert len(world.provider.revoked) == 1
    page = await browser.open("/logged-out")
    assert "https://idp.example/logout?client_id=nsqadmin&amp;post_logout_redirect_uri=" in page.text


@in_world
async def test_another_site_can_not_log_a_user_out(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    assert (await browser.ask("/logout", "POST", sec_fetch_site="cross-site")).status == 403
    assert (await browser.open("/logout")).status == 405
    assert (await browser.me())["user"] == "ana@example.com"


@in_world
async def test_another_site_can_not_act_with_the_session(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    foreign: list[dict[str, Any]] = [{"sec_fetch_site": "cross-site"}, {"origin": "https://evil.example"}]
    for headers in foreign:
        assert (await browser.ask("/api/v2/actions", "POST", **headers)).status == 403


# Streams


async def open_stream(browser: Browser, nursery: trio.Nursery) -> Answer:
    answer = Answer()
    nursery.start_soon(partial(browser.ask, "/events?scope=overview", answer=answer))
    with trio.fail_after(1):
        while len(answer.messages) < 2:
            await trio.testing.wait_all_tasks_blocked(0.001)
    return answer


@in_world
async def test_the_live_stream_ends_when_the_session_does(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    async with trio.open_nursery() as nursery:
        stream = await open_stream(browser, nursery)
        await browser.ask("/logout", "POST", sec_fetch_site="same-origin")
        await stream.has_ended.wait()
        assert stream.messages[-1]["more_body"] is False


@in_world
async def test_the_live_stream_ends_when_groups_change(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    world.pass_time(290)
    async with trio.open_nursery() as nursery:
        stream = await open_stream(browser, nursery)
        world.provider.user |= {"groups": ["support"]}
        browser.site.flow._clock = lambda: NOW + 300  # the loop's own timers don't notice
        assert (await browser.me())["groups"] == ["support"]
        await stream.has_ended.wait()


@in_world
async def test_the_live_stream_ends_when_the_provider_has_to_be_asked_and_is_opened_again(world: World) -> None:
    browser = world.browser()
    await browser.log_in()
    async with trio.open_nursery() as nursery:
        stream = await open_stream(browser, nursery)
        world.pass_time(301)
        await stream.has_ended.wait()
        world.provider.end_sessions()
        assert (await browser.ask("/events?scope=overview")).status == 401


# The start


@in_world
async def test_a_missing_package_is_named_with_its_extra(world: World) -> None:
    expected = r"--oidc-issuer needs joserfc, which comes with: .*\[admin-oidc\]"
    with (
        patch("nsqadmin.oidc.login_flow.find_spec", lambda name: None if name == "joserfc" else find_spec(name)),
        pytest.raises(StartupError, match=expected),
    ):
        world.site()


@in_world
async def test_a_file_that_can_not_be_used_keeps_nsqadmin_from_starting(world: World) -> None:
    for option in ("oidc_client_secret_file", "session_key_file", "oidc_ca_file"):
        broken: dict[str, Any] = {option: str(world.file("broken", "\n"))}
        with pytest.raises(StartupError, match=f"failed to read --{option.replace('_', '-')}"):
            world.site(**broken)
