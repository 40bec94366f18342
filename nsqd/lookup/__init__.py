"""Registers this node with every nsqlookupd, and asks them for the channels of new topics."""
