"""Object stores: a shared folder (`folder`)."""
