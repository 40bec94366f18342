"""What a client decides: no loop, no socket, no clock of its own. It is the same for trio, asyncio and plain calls."""
