"""All pages, by cluster. Add a row for each new page of nsqadmin."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from scripts.compare_pictures.photographer import Page, confirm, follow, press, write

_TOPIC: Final = ("overview", "channels", "nodes", "producers", "messages", "policy")
_CHANNEL: Final = ("overview", "consumers", "nodes", "messages", "inflight", "deferred", "buried", "policy")
_FIRST: Final = "#messages a[data-detail]"
_INCIDENT: Final = "main a[href*='/incidents/']"
_PICK: Final = "input[name=pick]"

# tests/browser/demo.py: rates, charts, findings, a node that is down. Nothing can be asked or done.
DEMO: Final = (
    Page("overview", "/"),
    Page("overview-hours", "/?span=hours"),
    Page("topics", "/topics"),
    Page("topics-filtered", "/topics?filter=depth%3E900&sort=-depth"),
    Page("topics-wrong-filter", "/topics?filter=depth%3E"),
    *(Page(f"topic-{tab}", f"/topics/orders?tab={tab}") for tab in _TOPIC),
    *(Page(f"channel-{tab}", f"/topics/orders/billing?tab={tab}") for tab in _CHANNEL),
    Page("channel-unattended", "/topics/orders/fraud"),
    Page("channel-paused", "/topics/payments/ledger"),
    Page("channel-deferring", "/topics/signups/mailer"),
    Page("channel-ephemeral", f"/topics/orders/{quote('sampled#ephemeral')}"),
    Page("topic-without-channel", "/topics/archive"),
    Page("topic-inactive", "/topics/old-import"),
    *(Page(f"consumers-{group}", f"/consumers?group={group}") for group in ("host", "client_id", "user_agent", "none")),
    Page("nodes", "/nodes"),
    Page("node", "/nodes/nsqd-1.example:4151"),
    Page("node-down", "/nodes/10.0.3.17:4151"),
    Page("lookup", "/lookup"),
    Page("activity", "/activity"),
    Page("activity-actions", "/activity?kind=actions&filter=ana"),
    Page("counter", "/counter"),
    Page("help", "/help"),
    Page("incidents", "/incidents"),
    Page("incident", "/incidents", (follow(_INCIDENT),)),
    Page("glossary", "/topics", (press("a.ask"),)),
    Page("palette", "/", (press("#jump"),)),
    Page("no-topic", "/topics/nope"),
    Page("no-channel", "/topics/orders/nope"),
    Page("no-node", "/nodes/nope:1"),
    Page("no-page", "/nope"),
    Page("no-incident", "/incidents/nope"),
    Page("not-in-a-recording", "/actions/delete_topic?topic=orders"),
)
# tests/browser/demo.py as users see it who may not do everything, and who have not logged in.
FORBIDDEN: Final = (
    Page("topic-of-a-viewer", "/topics/orders", headers={"X-Forwarded-User": "ben"}),
    Page("messages-of-a-viewer", "/topics/orders?tab=messages", headers={"X-Forwarded-User": "ben"}),
    Page("channel-of-an-operator", "/topics/orders/billing", headers={"X-Forwarded-User": "ana"}),
    Page("forbidden", "/actions/delete_topic?topic=orders", headers={"X-Forwarded-User": "ben"}),
    Page("help-of-a-viewer", "/help", headers={"X-Forwarded-User": "ben"}),
)
LOGIN: Final = (Page("login", "/"),)
EMPTY: Final = (
    Page("first-steps", "/"),
    Page("no-topics", "/topics"),
    Page("no-nodes", "/nodes"),
    Page("no-consumers", "/consumers"),
    Page("no-incidents", "/incidents"),
)


def of_cluster(nodes: tuple[str, ...]) -> tuple[Page, ...]:
    """Return the pages of the real cluster. Those that only look come first, as the others change it."""

    def action(kind: str, **values: str) -> str:
        return f"/actions/{kind}?{urlencode(values)}"

    node, _ = nodes
    letters = {"topic": "letters", "channel": "mail"}
    search = urlencode({"tab": "messages", "from": "earliest", "filter": "number > 4", "columns": "number item"})
    part = {"topic": "orders", "node": node, "first": "2", "end": "5", "target": "copies"}
    return (
        Page("overview", "/"),
        Page("topics", "/topics"),
        *(Page(f"topic-{tab}", f"/topics/letters?tab={tab}") for tab in _TOPIC),
        Page("topic-pipeline", "/topics/orders"),
        *(Page(f"channel-{tab}", f"/topics/letters/mail?tab={tab}") for tab in _CHANNEL),
        Page("channel-with-consumers", "/topics/reminders/desk?tab=consumers"),
        Page("channel-deferred-full", "/topics/reminders/desk?tab=deferred"),
        Page("deferred-searched", "/topics/reminders/desk?tab=deferred&filter=reminder"),
        Page("buried-by-reason", "/topics/letters/mail?tab=buried&reason=mailbox+full&limit=50"),
        Page("nodes", "/nodes"),
        Page("node", f"/nodes/{node}"),
        Page("lookup", "/lookup"),
        Page("consumers", "/consumers?group=none"),
        Page("activity", "/activity"),
        Page("incidents", "/incidents"),
        Page("messages-searched", f"/topics/orders?{search}"),
        Page("messages-wrong-search", "/topics/orders?tab=messages&filter=number+%3E"),
        Page("messages-of-jobs", "/topics/mails?tab=messages&from=earliest"),
        Page("message", "/topics/orders?tab=messages", (follow(_FIRST),)),
        Page("message-beside", "/topics/orders?tab=messages", (press(_FIRST),)),
        Page("message-as-bytes", "/topics/orders?tab=messages", (follow(_FIRST), follow("nav.filters a[href*='as=hex']"))),
        Page("message-job", "/topics/mails?tab=messages&from=earliest", (follow(_FIRST),)),
        Page("deferred-message", "/topics/reminders/desk?tab=deferred", (follow(_FIRST),)),
        Page("deferred-message-beside", "/topics/reminders/desk?tab=deferred", (press(_FIRST),)),
        Page("deferred-jobs", "/topics/mails/jobs?tab=deferred"),
        Page("buried-message", "/topics/letters/mail?tab=buried", (follow(_FIRST),)),
        Page("buried-message-beside", "/topics/letters/mail?tab=buried", (press(_FIRST),)),
        Page("buried-jobs", "/topics/mails/jobs?tab=buried"),
        Page("no-message", f"/message?{urlencode({'topic': 'orders', 'node': node, 'sequence': '999'})}"),
        Page("no-buried-message", f"/buried?{urlencode({**letters, 'node': node, 'sequence': '999'})}"),
        Page("kick-plan", action("kick_buried", **letters)),
        Page("kick-dialog", "/topics/letters/mail?tab=buried", (press("a[href*=kick_buried]"),)),
        Page("kick-selected", "/topics/letters/mail?tab=buried", (press(_PICK), press("form[action*=kick_buried] button"))),
        Page("kick-nothing-selected", "/topics/letters/mail?tab=buried", (press("form[action*=kick_buried] button"),)),
        Page("discard-plan", action("discard_buried", **letters)),
        Page("cancel-plan", "/topics/reminders/desk?tab=deferred", (press(_PICK), press("form[action*=cancel_deferred] button"))),
        Page("cancel-all-plan", "/topics/reminders/desk?tab=deferred", (press("button[name=all]"),)),
        Page("move-plan", "/topics/reminders/desk?tab=deferred", (press(_PICK), press("button[formaction*=move]:not([name])"))),
        Page("replay-range", action("replay", topic="orders")),
        Page("replay-plan", action("replay", **part)),
        Page("replay-selected", "/topics/orders?tab=messages&from=earliest", (press(_PICK), press("#replay-selected"))),
        Page("publish", action("publish", topic="orders")),
        Page("create", action("create")),
        Page("create-channel", action("create_channel", topic="orders")),
        Page("drain", f"/nodes/drain?{urlencode({'node': node})}"),
        Page("forget", f"/nodes/forget?{urlencode({'node': node})}"),
        *(Page(f"{kind.replace('_', '-')}", action(kind, **letters)) for kind in _OF_A_CHANNEL),
        *(Page(f"{kind.replace('_', '-')}", action(kind, topic="letters")) for kind in _OF_A_TOPIC),
        Page("remove-from-node", action("tombstone_topic_producer", topic="letters", node=node)),
        Page("incident", "/incidents", (follow(_INCIDENT),)),
        Page("incident-mark", "/incidents", (follow(_INCIDENT), follow("a[href*='/mark']"))),
        Page("no-action", action("explode", topic="letters")),
        # From here on pages change the cluster.
        Page("incident-marked", "/incidents", (follow(_INCIDENT), follow("a[href*='/mark']"), confirm)),
        Page("paused", action("pause_channel", **letters), (confirm,)),
        Page("activity-after-pause", "/activity?kind=actions"),
        Page("kicked", action("kick_buried", **letters), (write("#most", "2"), confirm)),
        Page("kick-undone", "/topics/letters/mail?tab=buried", (press(_PICK), press("form[action*=kick_buried] button"), confirm, press("form[action*=undo_kick] button"))),
        Page("discarded", "/topics/letters/mail?tab=buried", (press(_PICK), press("form button[formaction*=discard]"), confirm)),
        Page("cancelled", "/topics/reminders/desk?tab=deferred", (press(_PICK), press("form[action*=cancel_deferred] button"), confirm)),
        Page("moved", "/topics/reminders/desk?tab=deferred", (press(_PICK), press("button[formaction*=move][name=when]"), confirm)),
        Page("replayed", action("replay", **part), (confirm,)),
        Page("published", action("publish", topic="orders"), (write("textarea", "hello"), confirm)),
        Page("emptied", action("empty_channel", topic="mails", channel="jobs"), (confirm,)),
        Page("emptying-undone", "/activity?kind=actions", (press("form[action*=undo] button"),)),
        Page("created", action("create_topic", topic="new", node=node), (confirm,)),
        Page("drained", f"/nodes/drain?{urlencode({'node': node})}", (confirm,)),
        Page("node-draining", f"/nodes/{node}"),
        Page("activity-at-last", "/activity"),
    )  # fmt: skip


_OF_A_CHANNEL: Final = ("pause_channel", "unpause_channel", "empty_channel", "delete_channel", "seek_channel")
_OF_A_TOPIC: Final = ("pause_topic", "empty_topic", "delete_topic", "tombstone_topic_producer")
