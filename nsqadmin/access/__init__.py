"""Who may look and who may act."""
