"""What is wrong, in words, with the numbers that say so: rules on a picture and on how its numbers went.

Each rule is a function that yields what it finds. The rules about one channel, and those about one topic, are in groups:
the first that speaks in a group silences the rest of it, and several groups may speak. Every finding has its evidence,
and says so when it is an inference.

    delivery   D1 paused, D2 partly paused, D3 nobody there, D4 nobody where it waits, D5 nobody ready, D7, D6
    handling   D8 requeues, D9 one that is slow
    besides    D10 deferred, D12 samples, D15 spills to disk
    topic      D1 D2 paused, D13 no channel, D14 not handed over, D11 burst
    node       D16 down, slow, left, sick, not everywhere, old, twice, clock; and nsqlookupd likewise
"""
