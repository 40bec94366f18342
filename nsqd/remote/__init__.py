"""A node's copy in an object store, from which another machine can go on: docs/decisions/0032.

    decides, without I/O    chain (what to send, what an answer means), claim (whose name it is), pacing (when a slot
                            starts), catalog (where each byte of each file is), sweep (what may be deleted, and when),
                            local_mark and reconciliation (what becomes of the data path that a start finds), standby
                            (when it takes over)
    makes slots of changes  recorder, slot_builder
    runs for a node         copy, node (from its start to its end); opening, claiming, settling (own the name, and make
                            the data path what its owner begins with); vigil, owner_call (wait until the owner is gone);
                            owner, sender (what is sent, and the threads that do); root_job, root_making, second_names,
                            rate_limit; confirmations (publishers and readers that wait)
    stores                  object_store says what a store has to do, `stores/` has a shared folder and the clouds,
                            `location` reads their URLs
    `nsqd remote`           cli, operating, forgetting, fsck; `nsqd remote check`: check, cost

Words:

    slot          an object with the next changes of a node's files; it is created once and never changes
    run           the numbered slots of one owner, up to a root or to the next owner; others say epoch or term
    chain         the slots of all runs, as far as each is ended by the one that follows
    fence         the slot by which the next owner ends a run that isn't its own
    owner         the process that may add to the chain; its `writer` is the name that it has drawn for one ownership
    claim         what a process does to become the owner
    confirmed     stored, and so is everything before it in the chain; from then on an OK holds
    root          an object that says where each byte of a node's files is, as of the beginning of a run; a snapshot
    commit        the entry of the chain that makes a root count
    fold          an object with bytes of many files, made for a root
    sweep         delete what a committed root has made unnecessary; gone/RUN marks a swept run
"""
