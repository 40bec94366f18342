"""One TCP client of nsqd: its protocol, its parts and its upgrades to TLS and compression."""
