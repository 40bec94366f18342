"""The waiting parts of a client: tasks, connections and pauses, written once for trio and asyncio."""
