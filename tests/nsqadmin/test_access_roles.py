"""Rights and roles: who may do what, for which topics."""

from __future__ import annotations

import pytest

from nsqadmin.access import BadRoles, Policy, Right, is_within, networks, parse_roles

ROLES = """
[[role]]
name = "oncall"
users = ["ana"]
groups = ["sre"]
can = ["payload", "operator"]
topics = ["orders*", "fraud"]

[[role]]
name = "everybody"
users = ["*"]
can = ["viewer"]
"""


def test_without_any_rule_everybody_may_do_everything_but_publish_where_that_is_off() -> None:
    nobody = Policy().identity("")
    assert nobody.may(Right.ADMIN, "t")
    assert not nobody.may(Right.PUBLISH, "t")
    assert Policy(can_publish=True).identity("").may(Right.PUBLISH, "t")


def test_with_admin_users_the_others_only_read() -> None:
    policy = Policy(admin_users=("ana",))
    assert policy.identity("ana").may(Right.ADMIN)
    ben = policy.identity("ben")
    assert ben.may(Right.VIEW, "t")
    assert ben.may(Right.PAYLOAD, "t")
    assert not ben.may(Right.OPERATE, "t")


def test_roles_come_by_name_and_by_group_and_are_for_some_topics() -> None:
    policy = Policy(roles=parse_roles(ROLES))
    for who in (policy.identity("ana"), policy.identity("ben", ["sre"])):
        assert who.may(Right.OPERATE, "orders-new")
        assert who.may(Right.PAYLOAD, "fraud")
        assert not who.may(Right.OPERATE, "billing")
        assert not who.may(Right.ADMIN, "orders")
        assert who.sees("billing")
    assert not policy.identity("ben").may(Right.PAYLOAD, "fraud")


def test_a_right_for_some_topics_is_none_for_the_whole_cluster() -> None:
    policy = Policy(roles=parse_roles(ROLES), admin_users=("root",))
    assert policy.identity("ana").may(Right.OPERATE)
    assert policy.identity("ana").why_not_everywhere(Right.OPERATE) == (
        "ana does not have the right 'operator' for all topics"
    )
    assert policy.identity("eve").why_not_everywhere(Right.OPERATE) == "eve does not have the right 'operator'"
    assert not policy.identity("root").why_not_everywhere(Right.ADMIN)
    assert Policy(refusal="read-only").identity("root").why_not_everywhere(Right.ADMIN) == "read-only"


def test_who_has_no_role_sees_nothing() -> None:
    assert not Policy(roles=parse_roles(ROLES)[:1]).identity("eve").sees("orders")


def test_an_admin_user_stays_one_beside_roles() -> None:
    assert Policy(roles=parse_roles(ROLES), admin_users=("root",)).identity("root").may(Right.ADMIN, "t")


def test_who_may_only_read_is_told_why() -> None:
    identity = Policy(refusal="nsqadmin is read-only (--read-only)").identity("ana")
    assert identity.why_not(Right.OPERATE) == "nsqadmin is read-only (--read-only)"
    assert identity.may(Right.PAYLOAD)
    assert "'admin' for billing" in Policy(roles=parse_roles(ROLES.replace('"operator"', '"admin"'))).identity(
        "ana"
    ).why_not(Right.ADMIN, "billing")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[role]]\nname='x'",
        "[[role]]\nusers=['a']\ncan=['everything']",
        "[[role]]\nusers=['a']\ncan=['viewer']\ntopic=['t']",
        "[[role]]\nusers='a'\ncan=['viewer']",
        "[[role]]\ncan=['viewer']",
        "[[roles]]\nusers=['a']",
        "not toml",
    ],
)
def test_roles_that_are_not_understood_are_refused(text: str) -> None:
    with pytest.raises(BadRoles):
        parse_roles(text)


def test_networks() -> None:
    local = networks(["127.0.0.1/8"])
    assert is_within("127.3.2.1", local)
    assert is_within("::ffff:127.0.0.1", local)
    assert not is_within("::1", local)
    assert is_within("fe80::1%eth0", networks(["fe80::/10"]))
