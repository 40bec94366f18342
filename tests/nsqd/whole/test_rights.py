"""Rights between real processes: tokens and certificates, over HTTP, HTTPS and TCP."""

from __future__ import annotations

import hashlib
import json
import ssl
from pathlib import Path

import pytest

from nsqcommon.wire.commands import auth, pub, sub
from tests.support.auth_server import EVERYTHING, AuthServer, granting
from tests.support.brokers import StartNsqd
from tests.support.certificates import Certificates, make_certificates
from tests.support.client import Client, Refused
from tests.support.process import Answer, Nsqd, eventually, run_to_end
from tests.support.upgraded import UpgradedClient, trusting


def allow(name: str, *roles: str, topics: tuple[str, ...] = (), common_name: str = "") -> str:
    """Return an entry of the file. The name is also the token, unless it is the name of a certificate."""
    who = (
        f'common_name = "{common_name}"'
        if common_name
        else f'token_sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"'
    )
    limit = f"topics = {json.dumps(topics)}\n" if topics else ""
    return f'[[allow]]\nname = "{name}"\n{who}\nroles = {json.dumps(roles)}\n{limit}'


PEOPLE = "".join(
    [
        allow("publisher", "publish", topics=("t", "logs.*")),
        allow("reader", "read"),
        allow("operator", "operate"),
        allow("admin", "admin"),
    ]
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rights.toml"
    path.write_text(PEOPLE)
    return path


def ask(nsqd: Nsqd, who: str, method: str, path: str, body: bytes | None = None) -> Answer:
    return nsqd.http(method, path, body, headers={"Authorization": f"Bearer {who}"} if who else {})


ALLOWED = {
    ("POST", "/pub?topic=t"): {"publisher", "admin"},
    ("POST", "/mpub?topic=logs.a"): {"publisher", "admin"},
    ("POST", "/pub?topic=other"): {"admin"},
    ("GET", "/stats?format=json"): {"reader", "admin"},
    ("GET", "/metrics"): {"reader", "admin"},
    ("GET", "/info"): {"reader", "admin"},
    ("GET", "/config/log_level"): {"reader", "admin"},
    ("PUT", "/config/log_level"): {"operator", "admin"},
    ("GET", "/debug/pprof/cmdline"): {"operator", "admin"},
    ("POST", "/topic/pause?topic=t"): {"operator", "admin"},
    ("POST", "/topic/unpause?topic=t"): {"operator", "admin"},
    ("POST", "/topic/create?topic=new"): {"admin"},
    ("POST", "/channel/create?topic=t&channel=c"): {"admin"},
    ("POST", "/topic/empty?topic=t"): {"admin"},
    ("POST", "/channel/empty?topic=t&channel=c"): {"admin"},
    ("GET", "/ping"): {"publisher", "reader", "operator", "admin", "stranger", ""},
    ("GET", "/readyz"): {"publisher", "reader", "operator", "admin", "stranger", ""},
}


def test_each_role_may_do_its_own_and_nothing_else(start_nsqd: StartNsqd, file: Path) -> None:
    nsqd = start_nsqd(f"rights-file={file}")
    assert ask(nsqd, "admin", "POST", "/topic/create?topic=t").status == 200
    for (method, path), allowed in ALLOWED.items():
        for who in ("publisher", "reader", "operator", "admin", "stranger", ""):
            answer = ask(nsqd, who, method, path, b"info" if method != "GET" else None)
            expected = 200 if who in allowed else 401 if who in ("stranger", "") else 403
            assert answer.status == expected, (who, method, path)
            if expected == 401:
                assert (answer.body, answer.headers["www-authenticate"]) == (b'{"message":"UNAUTHORIZED"}', "Bearer")
            if expected == 403:
                assert answer.body == b'{"message":"FORBIDDEN"}'
    stats = ask(nsqd, "reader", "GET", "/stats?format=json").json
    counts = {topic["topic_name"]: topic["message_count"] for topic in stats["topics"]}
    assert counts == {"t": 2, "logs.a": 2, "other": 1, "new": 0}  # nothing that was refused was published


# A request about the whole node remains one, whatever topic it names.
OF_THE_NODE = [
    ("GET", "/info"),
    ("GET", "/metrics"),
    ("GET", "/config/auth_http_addresses"),
    ("PUT", "/config/log_level"),
    ("PUT", "/config/nsqlookupd_tcp_addresses"),
    ("GET", "/debug/pprof/cmdline"),
    ("GET", "/debug/pprof/goroutine"),
    ("GET", "/debug/pprof/heap"),
    ("POST", "/drain"),
]


@pytest.mark.parametrize("topic", ["", "topic=orders", "topic=other", "topic=orders&topic=other", "topic=a+b"])
def test_naming_a_topic_opens_nothing_of_the_node(start_nsqd: StartNsqd, file: Path, topic: str) -> None:
    file.write_text(allow("limited", "read", "operate", topics=("orders",)) + allow("admin", "admin"))
    nsqd = start_nsqd(f"rights-file={file}")
    for method, path in OF_THE_NODE:
        answer = ask(nsqd, "limited", method, f"{path}?{topic}", b"[]" if method == "PUT" else None)
        assert (answer.status, answer.body) == (403, b'{"message":"FORBIDDEN"}'), (method, path)
    assert ask(nsqd, "admin", "POST", "/pub?topic=t", b"x").status == 200, "nobody has drained it"


def test_stats_of_a_topic_tell_its_holder_nothing_of_another(start_nsqd: StartNsqd, file: Path) -> None:
    file.write_text(
        allow("limited", "read", topics=("orders",)) + allow("both", "publish", "read") + allow("admin", "admin")
    )
    nsqd = start_nsqd(f"rights-file={file}")
    with logged_in(nsqd, "both") as first, logged_in(nsqd, "both") as second:
        first.publish("secret", b"x")
        second.publish("secret", b"x")
        second.publish("orders", b"x")
        first.subscribe("orders", "c")
        shown = ask(nsqd, "limited", "GET", "/stats?format=json&topic=orders")
        as_text = ask(nsqd, "limited", "GET", "/stats?topic=orders")
        whole = ask(nsqd, "admin", "GET", "/stats?format=json&topic=orders")
    assert shown.status == as_text.status == 200
    assert b"secret" not in shown.body + as_text.body
    assert "memory" not in shown.json
    assert b"Memory" not in as_text.body
    assert [it["pub_counts"] for it in shown.json["producers"]] == [[{"topic": "orders", "count": 1}]]
    (channel,) = shown.json["topics"][0]["channels"]
    assert [it.get("pub_counts") for it in channel["clients"]] == [None]
    assert "memory" in whole.json, "who is not limited sees what NSQ shows"
    assert len(whole.json["producers"]) == 2


def test_without_the_file_nobody_is_asked(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/pub?topic={topic}", b"x")
    assert ask(nsqd, "stranger", "POST", f"/topic/delete?topic={topic}").status == 200


def test_the_same_rules_hold_for_auth(start_nsqd: StartNsqd, file: Path) -> None:
    nsqd = start_nsqd(f"rights-file={file}")
    publisher = logged_in(nsqd, "publisher")
    publisher.publish("t", b"x")
    assert refusal(publisher, pub("other", b"x")) == 'E_UNAUTHORIZED AUTH failed for PUB on "other" ""'
    publisher = logged_in(nsqd, "publisher")
    assert refusal(publisher, sub("t", "c")) == 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'
    reader = logged_in(nsqd, "reader")
    reader.subscribe("t", "c", ready=1)
    assert reader.message().body == b"x"
    (described,) = ask(nsqd, "reader", "GET", "/stats?format=json&topic=t").json["topics"][0]["channels"][0]["clients"]
    assert (described["authed"], described["auth_identity"]) == (True, "reader")
    assert refusal(nsqd.connect(), auth(b"stranger")) == "E_AUTH_FAILED AUTH failed"
    assert refusal(nsqd.connect(), auth(b"operator")) == "E_UNAUTHORIZED AUTH no authorizations found"
    assert refusal(nsqd.connect(), pub("t", b"x")) == "E_AUTH_FIRST AUTH required before PUB"


def test_servers_are_asked_only_about_others(start_nsqd: StartNsqd, file: Path) -> None:
    with AuthServer(lambda asked: granting(EVERYTHING, identity="from the server")) as server:
        nsqd = start_nsqd(f"rights-file={file}", f"auth-http-address={server.address}")
        logged_in(nsqd, "publisher")
        assert server.requests == []
        logged_in(nsqd, "stranger", identity="from the server")
        assert [asked.secret for asked in server.requests] == ["stranger"]
        assert ask(nsqd, "stranger", "POST", "/pub?topic=t", b"x").status == 401


def test_a_change_of_the_file_holds_at_once_and_a_mistake_in_it_changes_nothing(
    start_nsqd: StartNsqd, file: Path
) -> None:
    nsqd = start_nsqd(f"rights-file={file}")
    assert ask(nsqd, "late", "POST", "/pub?topic=t", b"x").status == 401
    file.write_text(PEOPLE + allow("late", "publish"))
    assert eventually(lambda: ask(nsqd, "late", "POST", "/pub?topic=t", b"x").status == 200)
    file.write_text("[[allow")
    assert eventually(lambda: "keeping the previous version" in nsqd.log)
    assert ask(nsqd, "late", "POST", "/pub?topic=t", b"x").status == 200
    file.unlink()
    assert eventually(lambda: "no such file or directory" in nsqd.log)
    assert ask(nsqd, "late", "POST", "/pub?topic=t", b"x").status == 200
    file.write_text(PEOPLE)
    assert eventually(lambda: ask(nsqd, "late", "POST", "/pub?topic=t", b"x").status == 401)
    assert ask(nsqd, "publisher", "POST", "/pub?topic=t", b"x").status == 200


def test_a_certificate_has_rights(start_nsqd: StartNsqd, file: Path, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    file.write_text(allow("service", "publish", "read", common_name="localhost"))
    nsqd = start_nsqd(
        f"rights-file={file}",
        "https-address=127.0.0.1:0",
        f"tls-cert={made.certificate}",
        f"tls-key={made.key}",
        f"tls-root-ca-file={made.authority}",
        "tls-client-auth-policy=require-verify",
    )
    tls = client_tls(made)
    assert nsqd.http("POST", "/pub?topic=t", b"x", tls=tls).status == 200
    assert nsqd.http("GET", "/stats", tls=tls).status == 200
    assert nsqd.http("POST", "/topic/delete?topic=t", tls=tls).status == 403
    wrong = {"Authorization": "Bearer wrong"}
    assert nsqd.http("POST", "/pub?topic=t", b"x", tls=tls, headers=wrong).status == 401


def test_a_certificate_has_the_same_rights_over_tcp(start_nsqd: StartNsqd, file: Path, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    file.write_text(allow("service", "publish", topics=("t",), common_name="localhost") + allow("reader", "read"))
    nsqd = start_nsqd(
        f"rights-file={file}",
        f"tls-cert={made.certificate}",
        f"tls-key={made.key}",
        f"tls-root-ca-file={made.authority}",
        "tls-client-auth-policy=require-verify",
        "tls-required=tcp-https",
        "https-address=",
    )
    with with_certificate(nsqd, made) as client:
        reply = json.loads(client.ask(auth(b"any secret will do")))
        assert (reply["identity"], reply["permission_count"]) == ("service", 1)
        client.publish("t", b"x")
        assert refusal(client, pub("other", b"x")) == 'E_UNAUTHORIZED AUTH failed for PUB on "other" ""'
    with with_certificate(nsqd, made) as client:
        client.ask(auth(b"any secret will do"))
        assert refusal(client, sub("t", "c")) == 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'
    with with_certificate(nsqd, made) as client:
        # A known token takes precedence over the certificate.
        assert json.loads(client.ask(auth(b"reader")))["identity"] == "reader"
        client.subscribe("t", ready=1)
        assert client.message().body == b"x"


def test_a_certificate_of_somebody_else_opens_nothing_over_tcp(
    start_nsqd: StartNsqd, file: Path, tmp_path: Path
) -> None:
    made = make_certificates(tmp_path)
    file.write_text(allow("service", "publish", common_name="somebody.else"))
    nsqd = start_nsqd(
        f"rights-file={file}",
        f"tls-cert={made.certificate}",
        f"tls-key={made.key}",
        f"tls-root-ca-file={made.authority}",
        "tls-client-auth-policy=require-verify",
        "tls-required=tcp-https",
        "https-address=",
    )
    with with_certificate(nsqd, made) as client:
        assert refusal(client, auth(b"any secret")) == "E_AUTH_FAILED AUTH failed"


def test_a_name_that_anybody_could_claim_is_refused(file: Path, tmp_path: Path) -> None:
    file.write_text(allow("service", "publish", common_name="localhost"))
    done = run_to_end(f"--data-path={tmp_path}", f"--rights-file={file}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"failed to read rights file {file} - a common_name needs --tls-client-auth-policy=require-verify, or anybody "
        "could claim it"
    )


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    done = run_to_end(f"--data-path={tmp_path}", "--rights-file=nowhere.toml")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("failed to read rights file nowhere.toml - no such file or directory")


def logged_in(nsqd: Nsqd, secret: str, identity: str = "") -> Client:
    client = nsqd.connect()
    assert client.identify(feature_negotiation=True)["auth_required"] is True
    assert json.loads(client.ask(auth(secret.encode())))["identity"] == (identity or secret)
    return client


def with_certificate(nsqd: Nsqd, made: Certificates) -> UpgradedClient:
    client = UpgradedClient(nsqd.tcp)
    client.upgrade(tls=trusting(made, shows=True))
    return client


def refusal(client: Client, *sent: bytes) -> str:
    with pytest.raises(Refused) as refused:
        client.ask(*sent)
    assert client.closes()
    return str(refused.value)


def client_tls(made: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.authority))
    context.load_cert_chain(made.certificate, made.key)
    return context


def test_changes_name_their_holder_and_show_nothing_of_other_topics(start_nsqd: StartNsqd, file: Path) -> None:
    file.write_text(
        allow("on call", "operate") + allow("admin", "admin") + allow("limited", "read", topics=("orders",))
    )
    nsqd = start_nsqd(f"rights-file={file}")
    for topic in ("orders", "secret"):
        ask(nsqd, "admin", "POST", f"/topic/create?topic={topic}")
        ask(nsqd, "on call", "POST", f"/topic/pause?topic={topic}")
    assert ask(nsqd, "limited", "POST", "/topic/unpause?topic=orders").status == 403
    all_of_them = ask(nsqd, "admin", "GET", "/changes").json["changes"]
    assert [(it["what"], it["topic"], it["who"]) for it in all_of_them] == [
        ("create_topic", "orders", "admin"),
        ("pause_topic", "orders", "on call"),
        ("create_topic", "secret", "admin"),
        ("pause_topic", "secret", "on call"),
    ]
    assert ask(nsqd, "limited", "GET", "/changes").status == 403
    assert ask(nsqd, "limited", "GET", "/changes?topic=secret").status == 403
    limited = ask(nsqd, "limited", "GET", "/changes?topic=orders")
    assert [it["who"] for it in limited.json["changes"]] == ["admin", "on call"]
    assert b"secret" not in limited.body
    eventually(lambda: 'CHANGE: pause_topic topic="orders" channel="" "" who="on call"' in nsqd.log)


def test_an_operator_passes_over_no_waiting_message(start_nsqd: StartNsqd, file: Path) -> None:
    nsqd = start_nsqd(f"rights-file={file}")
    ask(nsqd, "admin", "POST", "/topic/create?topic=t")
    ask(nsqd, "admin", "POST", "/channel/create?topic=t&channel=c")
    ask(nsqd, "admin", "POST", "/mpub?topic=t", b"1\n2\n3")
    forward = ask(nsqd, "operator", "POST", "/channel/seek?topic=t&channel=c&from=latest")
    assert (forward.status, forward.json["message"]) == (403, "FORBIDDEN")
    assert "admin" in forward.json["reason"]
    assert waiting(nsqd) == 3
    assert ask(nsqd, "operator", "POST", "/channel/seek?topic=t&channel=c&from=1").status == 403
    assert waiting(nsqd) == 3
    assert ask(nsqd, "operator", "POST", "/channel/seek?topic=t&channel=c&from=earliest").status == 200
    assert waiting(nsqd) == 3
    assert ask(nsqd, "admin", "POST", "/channel/seek?topic=t&channel=c&from=latest").status == 200
    assert waiting(nsqd) == 0
    assert ask(nsqd, "operator", "POST", "/channel/seek?topic=t&channel=c&from=latest").status == 200, "nothing waits"
    assert ask(nsqd, "operator", "POST", "/channel/seek?topic=t&channel=c&from=earliest").status == 200, "backwards"
    assert waiting(nsqd) == 3


def test_an_operator_does_not_lose_what_is_in_flight_or_deferred_by_moving_a_channel(
    start_nsqd: StartNsqd, file: Path
) -> None:
    nsqd = start_nsqd(f"rights-file={file}")
    ask(nsqd, "admin", "POST", "/topic/create?topic=t")
    ask(nsqd, "admin", "POST", "/channel/create?topic=t&channel=c")
    ask(nsqd, "admin", "POST", "/mpub?topic=t", b"1\n2")
    with logged_in(nsqd, "reader") as consumer:
        consumer.subscribe("t", "c", ready=2)
        first, second = consumer.messages(2)
        assert ask(nsqd, "operator", "POST", "/channel/seek?topic=t&channel=c&from=latest").status == 403
        consumer.finish(first)
        consumer.requeue(second, 3_000_000)
        consumer.in_step()
    assert ask(nsqd, "operator", "POST", "/channel/seek?topic=t&channel=c&from=latest").status == 403
    assert waiting(nsqd) == 1


def test_a_restore_needs_the_right_to_delete_as_it_can_drop_a_backlog(start_nsqd: StartNsqd, file: Path) -> None:
    nsqd = start_nsqd(f"rights-file={file}")
    ask(nsqd, "admin", "POST", "/topic/create?topic=t")
    ask(nsqd, "admin", "POST", "/channel/create?topic=t&channel=c")
    ask(nsqd, "admin", "POST", "/mpub?topic=t", b"1\n2\n3")
    state = ask(nsqd, "admin", "GET", "/channel/state?topic=t&channel=c").json
    drops_all = json.dumps({**state, "next": state["end"]}).encode()
    assert ask(nsqd, "operator", "POST", "/channel/restore?topic=t&channel=c", drops_all).status == 403
    assert waiting(nsqd) == 3
    assert ask(nsqd, "admin", "POST", "/channel/restore?topic=t&channel=c", drops_all).status == 200
    assert waiting(nsqd) == 0


def waiting(nsqd: Nsqd) -> int:
    (channel,) = ask(nsqd, "reader", "GET", "/stats?format=json&topic=t").json["topics"][0]["channels"]
    count: int = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    return count
