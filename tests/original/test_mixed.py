"""NSQ's daemons and ours in one cluster, in every mixture."""

from __future__ import annotations

import pytest

from tests.original.conftest import Daemons
from tests.original.programs import Whose, other
from tests.support.process import Daemon, Nsqd, Nsqlookupd, eventually

mixtures = pytest.mark.parametrize("whose", ["ours", "nsq"])  # the nsqd; nsqlookupd is the other's


def port(daemon: Daemon) -> int:
    return daemon.tcp[1]


@mixtures
def test_an_nsqd_tells_the_other_s_nsqlookupd_what_it_has(daemons: Daemons, whose: Whose) -> None:
    lookupd = daemons.nsqlookupd(other(whose))
    nsqd = daemons.nsqd(whose, lookupd=lookupd)
    consumer = nsqd.connect()
    consumer.subscribe("t", "c", ready=1)
    nsqd.connect().publish("t", b"x")
    assert consumer.bodies(1) == [b"x"]
    eventually(lambda: lookupd.producers("t") == {port(nsqd)})
    eventually(lambda: lookupd.get("/channels?topic=t") == {"channels": ["c"]})
    nsqd.post("/channel/delete?topic=t&channel=c")
    nsqd.post("/topic/delete?topic=t")
    eventually(lambda: lookupd.producers("t") == set())
    assert lookupd.get("/nodes")["producers"][0]["topics"] == []
    nsqd.stop()
    eventually(lambda: lookupd.get("/nodes") == {"producers": []})


@mixtures
def test_a_new_topic_gets_the_channels_that_it_has_elsewhere(daemons: Daemons, whose: Whose) -> None:
    lookupd = daemons.nsqlookupd(other(whose))
    first, second = daemons.nsqd(other(whose), lookupd=lookupd), daemons.nsqd(whose, lookupd=lookupd)
    first.post("/topic/create?topic=t")
    first.post("/channel/create?topic=t&channel=c")
    eventually(lambda: lookupd.get("/channels?topic=t") == {"channels": ["c"]})
    second.connect().publish("t", b"x")
    eventually(lambda: (found := second.channel("t")) and found["depth"] == 1)


@mixtures
def test_an_nsqd_comes_back_when_its_nsqlookupd_is_replaced_by_the_other_s(daemons: Daemons, whose: Whose) -> None:
    """Replacing nsqlookupds is the first step of moving a cluster."""
    before = daemons.nsqlookupd(whose)
    nsqd = daemons.nsqd(whose, lookupd=before)
    nsqd.post("/topic/create?topic=t")
    eventually(lambda: before.producers("t") == {port(nsqd)})
    before.stop()
    place = (f"tcp-address=127.0.0.1:{before.tcp[1]}", f"http-address=127.0.0.1:{before.http_address[1]}")
    after = daemons.nsqlookupd(other(whose), *place)
    nsqd.post("/topic/create?topic=u")  # NSQ's nsqd tries again only when it has something to say, or after 15 s
    nsqd.post("/topic/create?topic=v")
    eventually(lambda: after.producers("t") == after.producers("v") == {port(nsqd)})


@pytest.mark.parametrize("whose", ["ours", "nsq"])
def test_nsqadmin_sees_and_changes_both(daemons: Daemons, whose: Whose) -> None:
    lookupds = daemons.nsqlookupd("ours"), daemons.nsqlookupd("nsq")
    nsqds = registered_at_all(daemons, lookupds)
    for nsqd in nsqds:
        nsqd.connect().publish("t", b"one", b"two")
        nsqd.post("/channel/create?topic=t&channel=c")
        eventually(lambda nsqd=nsqd: nsqd.channel("t")["depth"] == 2)
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: lookupd.producers("t") == set(map(port, nsqds)))
        eventually(lambda lookupd=lookupd: lookupd.get("/channels?topic=t") == {"channels": ["c"]})
    admin = daemons.nsqadmin(whose, *lookupds)

    assert len(admin.http("GET", "/api/nodes").json["nodes"]) == 2
    assert admin.http("GET", "/api/topics").json["topics"] == ["t"]
    found = admin.http("GET", "/api/topics/t/c").json
    assert (found["depth"], found["message_count"], len(found["nodes"])) == (4, 4, 2)

    assert admin.json("POST", "/api/topics/t/c", {"action": "pause"}).status == 200
    assert [nsqd.channel("t")["paused"] for nsqd in nsqds] == [True, True]
    assert admin.json("POST", "/api/topics/t/c", {"action": "empty"}).status == 200
    assert [nsqd.channel("t")["depth"] for nsqd in nsqds] == [0, 0]
    assert admin.json("POST", "/api/topics", {"topic": "u", "channel": "d"}).status == 200
    for lookupd in lookupds:
        assert lookupd.get("/channels?topic=u") == {"channels": ["d"]}
    assert admin.http("DELETE", "/api/topics/t").status == 200
    assert [nsqd.topic("t") for nsqd in nsqds] == [None, None]
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: not lookupd.producers("t"))


def registered_at_all(daemons: Daemons, lookupds: tuple[Nsqlookupd, Nsqlookupd]) -> tuple[Nsqd, Nsqd]:
    places = [f"lookupd-tcp-address=127.0.0.1:{it.tcp[1]}" for it in lookupds]
    return daemons.nsqd("ours", *places), daemons.nsqd("nsq", *places)


def test_nsqadmins_say_the_same(daemons: Daemons) -> None:
    lookupds = daemons.nsqlookupd("ours"), daemons.nsqlookupd("nsq")
    nsqd = registered_at_all(daemons, lookupds)[1]
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: lookupd.get("/channels?topic=t") == {"channels": ["c"]})
    ours, theirs = daemons.nsqadmin("ours", *lookupds), daemons.nsqadmin("nsq", *lookupds)
    for path in ("/api/topics", "/api/topics/nobody", "/api/nodes/nobody:1", "/ping"):
        answers = [(it.status, it.body) for it in (admin.http("GET", path) for admin in (ours, theirs))]
        assert answers[0] == answers[1], path
