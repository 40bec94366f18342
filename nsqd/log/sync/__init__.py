"""Making durable what was written: when, what, and who hears of it."""
