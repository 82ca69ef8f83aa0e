"""A deadline that the kernel enforces: it ends this process, and with this process all that is tied to it."""

import math
from collections.abc import Callable

from ..config.settings import Config
from ..election.record import Protection
from ..system.kernel import KillPipe, KillTimer, why_not
from .deadline import SharedDeadline


class Enforced:
    """Moves the kernel's timer with every confirmed deadline, and publishes it in `shared`, if given. A `Deadline`.

    `kill_pipe` ties targets to this process. If the kernel cannot do its part, there is neither a kill pipe nor a
    timer; `why` says why.
    """

    def __init__(
        self,
        config: Config,
        *,
        contained: bool = False,
        shared: int | None = None,
        on_lose: Callable[[], None] = lambda: None,
    ) -> None:
        """`contained`: a namespace ends the guarded work with this process. `shared` is a mapping that `new_mapping`
        made; `on_lose` is called at once when the lease is found lost."""
        self._on_lose, self._contained = on_lose, contained
        self.why = why_not()
        self._timer = None if self.why else KillTimer()
        self.kill_pipe = None if self.why else KillPipe()
        self._shared = None if shared is None else SharedDeadline(shared, writable=True)
        # We kill the work at stop_by, the kernel a little later; after kill_budget it is gone: the lease may be taken.
        self._stop_budget, self._grace = config.stop_budget, config.kill_budget / 2
        self.instant, self.ahead = -math.inf, 0.0

    @property
    def protection(self) -> Protection:
        if self.why:
            return Protection.KEEPER
        return Protection.CONTAINED if self._contained else Protection.KERNEL

    def publish(self, instant: float, ahead: float) -> None:
        # The timer first: if we freeze in between, all ends at the later instant, which the store has confirmed.
        self.end_by(instant + self._stop_budget)
        if self._shared:
            self._shared.publish(instant, ahead)
        self.instant, self.ahead = instant, ahead

    def lose(self) -> None:
        if self._shared:
            self._shared.lose()
        self._on_lose()

    def end_by(self, stop_by: float) -> None:
        """The work must end by this instant: a little later the kernel kills it."""
        if self._timer and stop_by < math.inf:
            self._timer.move(stop_by + self._grace)

    def disarm(self) -> None:
        """No guarded work is left: disarm the timer."""
        if self._timer:
            self._timer.disarm()
