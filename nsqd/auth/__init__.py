"""Who may do what: grants of AUTH servers, and the rights file."""
