"""What the store does beside the turns: repairing, and saving names."""
