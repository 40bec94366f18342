"""Asks nsqd and nsqlookupd over HTTP, and reads their answers, which may be hostile."""
