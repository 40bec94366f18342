"""Syncing: when to sync, what a sync covers, and who is answered when it ends."""
