"""nsqd's connections with nsqlookupd."""
