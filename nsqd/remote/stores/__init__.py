"""Object stores: a shared folder (`folder`), and S3, Google Cloud Storage and Azure by the library obstore (`obstore`).

`opening` finds the one that a URL names. `answers` puts the library's errors into words, and `time_limits` says how long its
requests may take.
"""
