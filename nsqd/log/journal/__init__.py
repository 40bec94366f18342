"""The change journal: its files, their frames, their recovery at startup, and their rotation."""
