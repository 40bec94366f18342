"""What nsqadmin reads from a provider, and how often."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from nsqadmin.oidc.id_token import BadToken, Expected
from nsqadmin.oidc.provider import TIMEOUT, Provider, ProviderAway, Refused, Tokens
from tests.nsqadmin.oidc.world import ISSUER, World, in_world
from tests.support.oidc_provider import new_key

EXPECTED = Expected(issuer=ISSUER, client_id="nsqadmin", nonce="n")


def provider_of(world: World, **more: Any) -> Provider:
    return world.site(**more).flow.provider


async def verify(world: World, provider: Provider, kid: str = "k1") -> Any:
    now = world.provider.clock()
    claims = {"iss": ISSUER, "aud": "nsqadmin", "iat": now, "exp": now + 9, "nonce": "n", "sub": "u"}
    token = world.provider.sign({"alg": "ES256", "kid": kid}, claims)
    return await provider.claims_of(Tokens("", token, ""), EXPECTED)


@in_world
async def test_the_documents_are_read_at_first_use_and_again_after_an_hour(world: World) -> None:
    provider, asked = provider_of(world), world.provider.asked
    assert not asked
    for _ in range(3):
        await verify(world, provider)
    assert (asked["/.well-known/openid-configuration"], asked["/jwks"]) == (1, 1)
    world.pass_time(3600)
    await verify(world, provider)
    assert (asked["/.well-known/openid-configuration"], asked["/jwks"]) == (2, 2)


@in_world
async def test_a_new_key_is_found_at_once_but_unknown_ids_do_not_flood_the_provider(world: World) -> None:
    provider = provider_of(world)
    await verify(world, provider)
    world.pass_time(60)
    world.provider.key = new_key("k2")
    world.provider.keys = [dict(world.provider.key.as_dict(private=False))]
    assert (await verify(world, provider, "k2"))["sub"] == "u"
    assert world.provider.asked["/jwks"] == 2
    for number in range(20):
        with pytest.raises(BadToken):
            await verify(world, provider, f"unknown{number}")
    assert world.provider.asked["/jwks"] == 2
    world.pass_time(60)
    with pytest.raises(BadToken):
        await verify(world, provider, "unknown")
    assert world.provider.asked["/jwks"] == 3


@in_world
async def test_a_key_that_was_withdrawn_counts_for_an_hour_at_most(world: World) -> None:
    provider, old = provider_of(world), world.provider.key
    await verify(world, provider)
    world.provider.keys = [dict(new_key("k2").as_dict(private=False))]
    world.pass_time(3600)
    world.provider.key = old
    with pytest.raises(BadToken):
        await verify(world, provider)


@in_world
async def test_old_documents_are_used_while_the_provider_is_away(world: World) -> None:
    provider = provider_of(world)
    await verify(world, provider)

    async def is_away(path: str) -> None:
        raise OSError("refused")

    world.provider.before = is_away
    world.pass_time(4000)
    assert (await verify(world, provider))["sub"] == "u"
    asked = world.provider.asked.total()
    await verify(world, provider)
    assert world.provider.asked.total() == asked


@in_world
async def test_a_clock_that_is_set_back_does_not_stop_the_reading(world: World) -> None:
    world.ahead, provider = 30.0, provider_of(world)

    async def is_away(path: str) -> None:
        raise OSError("refused")

    world.provider.before = is_away
    with pytest.raises(ProviderAway):
        await provider.metadata()
    world.provider.before = None
    world.ahead = -20.0
    world.pass_time(5)
    await verify(world, provider)
    world.ahead = -50.0
    world.pass_time(60)
    world.provider.key = new_key("k2")
    world.provider.keys = [dict(world.provider.key.as_dict(private=False))]
    assert (await verify(world, provider, "k2"))["sub"] == "u"


async def answers_with(provider: Provider, answer: bytes, *headers: tuple[bytes, bytes]) -> str:
    """Return the error when the provider sends this."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        for start in range(0, len(answer), 1 << 16):
            await send({"type": "http.response.body", "body": answer[start : start + (1 << 16)], "more_body": True})
        await send({"type": "http.response.body"})

    provider._transport.app = app  # type: ignore[union-attr]
    with pytest.raises(ProviderAway) as away:
        await provider.metadata()
    return str(away.value)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"x" * 300_000, "has more than 262144 bytes"),
        (b"[1]", "not answered with a JSON object"),
        (b"[" * 100_000, "not answered with a JSON object"),
        (b"{}", "names the issuer None"),
        (b'{"issuer": "https://idp.example/"}', "also in a slash at the end"),
        (b'{"issuer": "https://idp.example"}', "no usable"),
    ],
)
def test_useless_documents_are_refused(answer: bytes, text: str) -> None:
    @in_world
    async def refused(world: World) -> None:
        assert text in await answers_with(provider_of(world), answer)

    refused()


@in_world
async def test_a_compressed_answer_is_refused_before_it_is_unpacked(world: World) -> None:
    provider = provider_of(world)
    assert "compressed" in await answers_with(provider, b"x", (b"content-encoding", b"gzip"))


@pytest.mark.parametrize("name", ["token_endpoint", "jwks_uri", "userinfo_endpoint", "end_session_endpoint"])
@pytest.mark.parametrize("url", ["http://idp.example/x", "http://127.0.0.1/x", "javascript:alert(1)", "/x", 7])
def test_endpoints_without_tls_are_refused(name: str, url: object) -> None:
    @in_world
    async def refused(world: World) -> None:
        world.provider.metadata[name] = url
        with pytest.raises(ProviderAway, match=f"no usable {name}"):
            await provider_of(world).metadata()

    refused()


@in_world
async def test_a_silent_provider_is_given_up_after_a_while(world: World) -> None:
    provider, began = provider_of(world), trio.Event()

    async def hangs(path: str) -> None:
        began.set()
        await trio.sleep_forever()

    world.provider.before = hangs
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ProviderAway, match="no answer within 10 s") as away:
                await provider.metadata()
            assert away.value.is_silent

        nursery.start_soon(ask)
        await began.wait()
        world.pass_time(TIMEOUT)
    with pytest.raises(ProviderAway):
        await provider.metadata()
    assert world.provider.asked.total() == 1, "the next one needn't wait as long"


@pytest.mark.parametrize("methods", [None, ["client_secret_post"], ["client_secret_post", "client_secret_basic"]])
def test_the_client_proves_who_it_is_as_the_provider_wants_it(methods: list[str] | None) -> None:
    @in_world
    async def proves(world: World) -> None:
        if methods:
            world.provider.metadata["token_endpoint_auth_methods_supported"] = methods
        with pytest.raises(Refused, match="invalid_grant"):  # and not invalid_client
            await provider_of(world).refresh("unknown")

    proves()


@in_world
async def test_a_wrong_secret_is_no_fault_of_the_user(world: World) -> None:
    provider = provider_of(world, oidc_client_secret_file=str(world.file("wrong", "wrong")))
    with pytest.raises(Refused, match="invalid_client"):
        await provider.refresh("unknown")


@in_world
async def test_a_public_client_has_no_secret(world: World) -> None:
    world.provider.client_secret = ""
    with pytest.raises(Refused, match="invalid_grant"):
        await provider_of(world, oidc_client_secret_file="").refresh("unknown")


@in_world
async def test_a_provider_that_wants_a_signed_proof_is_not_supported(world: World) -> None:
    world.provider.metadata["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
    with pytest.raises(ProviderAway, match="takes a client secret neither"):
        await provider_of(world).metadata()
