"""Syncing: when to sync, what a sync covers, and which clients are answered when it ends."""
