"""`python -m nsqpipe`, and the script for spark-submit."""

from nsqpipe.entry import main

if __name__ == "__main__":
    main()
