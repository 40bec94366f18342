"""What is published, on its way from the buffer to a synced file."""
