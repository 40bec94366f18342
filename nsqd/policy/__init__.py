"""The policy file: what it demands of which topic and channel, and from which of its lines that comes.

`keys` is the table of what an entry may say, `parse` reads a file strictly, `policies` finds what holds for a name,
`policy_file` watches the file of a running nsqd, `rollout` hands it to the topics, and `cli` is the command `nsqd policy check`.
"""
