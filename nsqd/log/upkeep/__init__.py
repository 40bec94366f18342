"""Background work of the store: retrying after faults, and saving the names of topics and channels."""
