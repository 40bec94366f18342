"""Asking nodes and nsqlookupd, and reading what they answer, which may be hostile."""
