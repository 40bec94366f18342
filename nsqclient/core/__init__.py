"""The decisions of a client: no loop, no socket, no clock. The same for trio, asyncio and plain calls."""
