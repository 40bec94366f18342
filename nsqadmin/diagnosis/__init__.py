"""Diagnoses problems, in words and with numbers as evidence: findings, and the incidents that they belong to.

Findings come from rules on a snapshot and on its history.

Each rule is a function that yields findings. Some rules form groups: once a rule of a group finds something, the
group's later rules are skipped. Every finding has its evidence, and is marked if it is an inference.

    delivery   one group: D20 paused itself, D1 paused, D2 partly paused, D3 no consumers, D4 none where messages wait, D5 none ready,
               D7 stuck consumers, D6 saturated
    handling   one group: D8 requeues, D18 a consumer that gives back much, D9 a slow or stuck consumer
    no group   D10 deferred, D12 sampling, D15 spilling to disk, D41 busy consumers, D42 stuck or busy ones; D17 unknown in part, if nothing else is found and a
               node of the channel is silent
    policy     no group: D21 publishes refused (topics), D22 messages dropped, D23 messages expire (channels),
               D24 deleted soon because unused; D25 a node refuses its policy file, D26 nodes have different ones
    burials    no group: D39 messages are being buried, D40 buried ones lie there
    groups     no group: D36 max_held is reached, D37 messages with a wrong nsq-group, D38 one group holds most
    topic      one group: D1 and D2 paused, D13 no channel, D14 not handed over; D11 burst
    node       no group: D16 down, slow, not well, without token, not registered everywhere, old, twice, wrong clock;
               some of these for nsqlookupd, too; D27 clients cannot connect to the address that it announces
    copies     no group: D28 the store does not answer, D29 the copy is late, D30 taken over lately, D31 files aside,
               D32 one name in use by two nodes, D33 no standby

`clients.py` judges each consumer of a channel; the rules and the pages show its verdicts.
`upkeep.py` follows findings over time: they get worse at once and better slowly, and not at all while a node is silent.

To add a rule, write a function in `channels.py`, `topics.py`, `nodes.py`, `policy.py`, `burials.py`, `groups.py` or
`remote.py`, and list it in one of the first three, in its group or among the rules without one. Add it to the table in
`rules.py`, too: its family says what it is an incident with, and its effect where it stands among all others (`impact.py`).

An incident collects findings with one cause, so that you see one card and not a hundred:

    rules ─► upkeep ─► Snapshot.findings ─► grouping ─► Incident ─► incident_book ─► Open    for pages, API, /metrics
                                               │                        │   └──────► IncidentChange    for listeners
                                            suspects            changes, coverage

`incident.py` has the records. `grouping.py` decides which findings have one cause, and `suspects.py` finds causes in
consumers' programs; `wording.py` puts an incident into words. `incident_book.py` follows incidents over time: when each
began, the numbers then, and whether it grows. `changes.py` looks up earlier changes, and `coverage.py` decides for which
incidents people's marks hold. All of these are cores: docs/decisions/0013-nsqadmin-that-does-not-guess.md and
docs/decisions/0041-incidents.md.
"""
