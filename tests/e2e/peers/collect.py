"""Consumes a channel through nsqlookupd, and prints each body when it is finished. Ends on SIGTERM.

    collect.py TOPIC CHANNEL LOOKUPD...

It runs in a container as well, so it imports what an image has.
"""

import signal
import sys

import trio

import nsqclient


async def main(*arguments: str) -> None:
    topic, channel, *lookupds = arguments
    config = nsqclient.Config(max_in_flight=50, lookupd_poll_interval=1)
    async with trio.open_nursery() as nursery:
        async with nsqclient.open_consumer(topic, channel, lookupd=lookupds, config=config) as consumer:

            async def stop() -> None:
                with trio.open_signal_receiver(signal.SIGTERM) as arrivals:
                    async for _ in arrivals:
                        consumer.stop()

            nursery.start_soon(stop)
            async for message in consumer:
                message.finish()
                print(message.body.decode(), flush=True)
        nursery.cancel_scope.cancel()


trio.run(main, *sys.argv[1:])
