"""Access: who may see what, and who may change what."""
