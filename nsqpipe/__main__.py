"""`python -m nsqpipe`, and what spark-submit runs."""

from nsqpipe.entry import main

if __name__ == "__main__":
    main()
