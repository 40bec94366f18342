"""One TCP client of nsqd: its protocol, the protocol's parts, and the upgrades to TLS and compression."""
