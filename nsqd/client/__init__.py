"""One TCP client: its bytes, its commands, its upgrades."""
