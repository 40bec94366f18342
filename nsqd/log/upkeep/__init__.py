"""What the store does beside the turns: rounds of syncing, removing, repairing, saving names."""
