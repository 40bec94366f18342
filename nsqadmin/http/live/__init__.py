"""Pages that change while they are looked at."""
