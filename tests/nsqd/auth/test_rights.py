from __future__ import annotations

import hashlib
from time import process_time

import pytest

from nsqd.auth.rights import Rights, RightsError, Role, parse_rights


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


FILE = f"""
[[allow]]
name = "billing"
token_sha256 = "{digest("secret")}"
common_name = "billing.example"
roles = ["publish", "read"]
topics = ["orders", "invoices.*", "*.in#ephemeral"]

[[allow]]
name = "boss"
token_sha256 = "{digest("root").upper()}"
roles = ["admin"]

[[allow]]
name = "nobody"
token_sha256 = "{digest("poor")}"
"""


def refusal_of(rights: Rights, role: Role, topic: str | None, *, token: bytes, common_name: str) -> int | None:
    """Return the status over HTTP: 401 if the file does not know the caller, 403 if the caller may not."""
    holder = rights.holder(token, common_name)
    if holder is None:
        return 401
    return None if holder.may(role, topic) else 403


@pytest.fixture(scope="module")
def rights() -> Rights:
    return parse_rights(FILE)


@pytest.mark.parametrize(
    ("token", "role", "topic", "refusal"),
    [
        (b"secret", Role.PUBLISH, "orders", None),
        (b"secret", Role.READ, "invoices.2024", None),
        (b"secret", Role.PUBLISH, "x.in#ephemeral", None),
        (b"secret", Role.PUBLISH, "orders2", 403),
        (b"secret", Role.PUBLISH, "my-orders", 403),
        (b"secret", Role.PUBLISH, "invoices-2024", 403),
        (b"secret", Role.PUBLISH, "orders\n", 403),
        (b"secret", Role.READ, None, 403),  # what is about no topic shows all of them
        (b"secret", Role.OPERATE, "orders", 403),
        (b"secret", Role.ADMIN, "orders", 403),
        (b"root", Role.PUBLISH, "anything", None),
        (b"root", Role.OPERATE, None, None),
        (b"poor", Role.READ, None, 403),
        (b"wrong", Role.READ, None, 401),
        (b"", Role.READ, None, 401),
    ],
)
def test_roles_and_topics_decide_about_a_request(
    rights: Rights, token: bytes, role: Role, topic: str | None, refusal: int | None
) -> None:
    assert refusal_of(rights, role, topic, token=token, common_name="") == refusal


def test_a_certificate_is_as_good_as_a_token_but_a_token_counts_first(rights: Rights) -> None:
    def refusal(token: bytes, name: str) -> int | None:
        return refusal_of(rights, Role.PUBLISH, "orders", token=token, common_name=name)

    assert refusal(b"", "billing.example") is None
    assert refusal(b"", "other.example") == 401
    assert refusal(b"wrong", "billing.example") == 401
    assert refusal(b"poor", "billing.example") == 403


def test_no_entry_without_a_token_is_found_by_an_empty_one() -> None:
    rights = parse_rights('[[allow]]\nname = "a"\ncommon_name = "a"\nroles = ["admin"]')
    assert rights.holder(b"", "") is None
    assert rights.holder(b"x", "") is None


def test_an_empty_file_allows_nothing() -> None:
    assert refusal_of(parse_rights(""), Role.READ, None, token=b"x", common_name="y") == 401


def test_the_grant_of_auth_says_the_same(rights: Rights) -> None:
    billing, boss, nobody = (holder.grant for holder in rights.holders)
    assert (billing.identity, billing.ttl > 0) == ("billing", True)
    assert billing.allows("orders")
    assert billing.allows("invoices.1", "any-channel")
    assert not billing.allows("orders2")
    assert not billing.allows("my-orders", "c")
    assert boss.allows("anything")
    assert boss.allows("anything", "c")
    assert nobody.entries == []


def test_who_may_only_publish_may_not_consume() -> None:
    text = f'[[allow]]\nname = "a"\ntoken_sha256 = "{digest("a")}"\nroles = ["publish"]'
    (holder,) = parse_rights(text).holders
    assert holder.grant.allows("t")
    assert not holder.grant.allows("t", "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allow = 1", r"expected only \[\[allow\]\] tables"),
        ("[deny]", r"expected only \[\[allow\]\] tables"),
        ("[[allow]]", "entry 1: name is missing"),
        ('[[allow]]\nname = "a"', "entry 1: expected token_sha256, common_name, or both"),
        ('[[allow]]\nname = "a"\ntoken = "clear"', "entry 1: unknown key token"),
        ('[[allow]]\nname = "a"\ntoken_sha256 = "clear"', "entry 1: token_sha256 must be 64 hexadecimal digits"),
        ('[[allow]]\nname = "a"\ncommon_name = "a"\nroles = ["root"]', "entry 1: unknown role root"),
        ('[[allow]]\nname = "a"\ncommon_name = "a"\nroles = "read"', "entry 1: roles must be a list of strings"),
        ('[[allow]]\nname = "a"\ncommon_name = "a"\ntopics = ["a b"]', "entry 1: 'a b' is neither a topic"),
        ('[[allow]]\nname = "a"\ncommon_name = "a"\ntopics = []', "entry 1: topics is empty"),
        ('[[allow]]\nname = 1\ncommon_name = "a"', "entry 1: name must be a string"),
        (FILE + FILE, "two entries have the same name"),
        ("[[allow", "Expected"),
    ],
)
def test_what_is_not_clear_is_refused(text: str, message: str) -> None:
    with pytest.raises(RightsError, match=message):
        parse_rights(text)


def test_a_limit_of_many_stars_takes_no_time() -> None:
    topics = f'roles = ["publish"]\ntopics = ["{"*a" * 25}*b"]'
    holder = parse_rights(f'[[allow]]\nname = "x"\ncommon_name = "x"\n{topics}').holder(b"", "x")
    assert holder is not None
    began = process_time()
    assert not holder.may(Role.PUBLISH, "a" * 64)
    assert not holder.grant.allows("a" * 64)
    assert holder.grant.allows("a" * 63 + "b")
    assert process_time() - began < 5  # hours, if all combinations were tried
