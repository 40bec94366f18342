"""Writing: the path of published messages from the buffer to a synced file."""
