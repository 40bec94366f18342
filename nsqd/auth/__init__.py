"""Authorization in nsqd: the grants of AUTH servers, and the rights file."""
