"""Posts incidents to URLs when they open, get worse or close: `--incident-webhook`."""
