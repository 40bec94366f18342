"""Registers this node with all nsqlookupds, and asks them for the channels of new topics."""
