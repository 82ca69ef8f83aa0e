"""The keeper: a small process beside a driver, which takes, renews and releases the driver's lease.

It runs the same policy as threads inside the driver would, but no C call blocks it and no code of the user runs in it.
It tells the driver of a loss, and after `stop_budget` kills what has not ended. It also arms the kernel: a timer kills
the keeper at an instant that only a renewal moves, and with it, by the kill pipe, all processes of the driver, even if
all of them are frozen by then. In turn the keeper watches the driver: once the driver is dead and nothing of it is
left, the keeper hands the lease over.

```
driver ── order ─────────────→ keeper     acquires
       ←── granted, deadline ──           renews, watches
       ── JVM, master ───────→            watches the JVM too
       ←── lost ──────────────            waits until stop_by, then kills
       ── stop, release ─────→            releases
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
    """Serve the driver at the other end of the socket `fd`, until its lease is released or the driver has ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A SIGTERM to all processes of a service must not end the driver by force, as our own end would.
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the driver ignores SIGCHLD, we inherit that and waitpid fails
    allow_many()  # two descriptors for each child of the driver
    if sys.stderr:  # inherited from the driver
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
            os._exit(0)  # nothing is left to tidy up, and the driver may wait for our end
