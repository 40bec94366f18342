"""What waits for a client: its tasks, connections and pauses, written once for trio and asyncio."""
