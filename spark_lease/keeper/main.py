"""The keeper: a small process beside a driver, which takes, renews and gives back its lease.

It runs the same policy as threads inside the driver would, where no C call holds it up and nothing of the user's runs.
It tells the driver of a loss, and kills after `stop_budget` what did not end. And it arms the kernel: a timer ends this
process at the instant that only a renewal moves, and with it, by the kill pipe, all of the driver, even if all of them
are frozen by then. The other way round it watches the driver: once that is dead and nothing is left of it, it hands
over.

```
driver ── order ─────────────→ keeper     acquires
       ←── granted, deadline ──           renews, watches
       ── JVM, master ───────→            watches that as well
       ←── lost ──────────────            waits until stop_by, then kills
       ── stop, release ─────→            gives back
```
"""

import contextlib
import faulthandler
import logging
import os
import signal
import sys

from ..errors import SparkLeaseError
from ..system.descriptors import allow_many
from .channel import Channel, Closed
from .keeper import Keeper
from .messages import ToDriver, refusal

_FIRST_ORDER = 60.0


def main(fd: int) -> None:
    """Serve the driver at the other end of the socket `fd`, until its lease is given back or it has ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A SIGTERM to all processes of a service must not end the driver by force, as our own end would.
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a driver that ignores its children leaves us that, and no waitpid
    allow_many()  # two for each child of the driver
    if sys.stderr:  # the driver's
        faulthandler.enable()
    channel = Channel.inherited(fd)
    logging.basicConfig(level=logging.DEBUG, handlers=[ToDriver(channel)])
    with contextlib.suppress(Closed, ProcessLookupError):  # the driver ended before it had a lease
        received = channel.receive(_FIRST_ORDER)
        if received:
            try:
                keeper = Keeper(channel, received[0], pid=received[0]["driver"])
                keeper.run()
                keeper.close()
            except SparkLeaseError as error:
                channel.send(refusal(error))
            os._exit(0)  # nothing is left to be tidied, and our end may be waited for
