"""The change journal: its files, their frames, what a start finds in them, and their rotation."""
