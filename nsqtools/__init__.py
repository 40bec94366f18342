"""The command line tools: a module for each command, named like it, and shared modules.

Where to look:

    the process around a tool    cli.py (entry points), command.py (signals, log, exit status), flags.py, client_flags.py
    over HTTP                    nodes.py (nsqlookupd, /stats), history.py (topics' logs), json_fields.py
    nsq_to_file                  rotation.py (which file), archive_file.py (the disk), topic_archive.py (when to sync)
    nsq_to_http, nsq_to_nsq      bridge.py (targets), status.py (times of requests), json_filter.py (nsq_to_nsq)
    nsq_tail --peek              peek.py
    nsq_dead, nsq_deferred       dead.py, deferred.py (nsqd's answers about them), whole_cluster.py, progress.py
    nsq_replay                   checkpoint.py, progress.py, throttle.py
    outbox_to_nsq                outbox.py (rows and verdicts), outbox_sql.py, outbox_tables.py, outbox_nodes.py
    nsq_stat, nsq_bench, to_nsq  rates.py; histogram.py; records.py
"""
