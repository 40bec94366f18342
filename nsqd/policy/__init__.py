"""The policy file: the rules for topics and channels, and the line that each rule comes from.

`keys` is the table of keys, `parse` reads a file strictly, `policies` finds the rules for a name, `policy_file` watches
the file of a running nsqd, `rollout` applies it to the topics, and `cli` is the command `nsqd policy check`.
"""
