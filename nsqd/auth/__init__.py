"""Authorization: grants from AUTH servers, and the rights file."""
