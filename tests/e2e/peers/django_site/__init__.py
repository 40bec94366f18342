"""A site whose tasks note in a file what they do."""
