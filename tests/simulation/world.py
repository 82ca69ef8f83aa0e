"""Virtual time, machines with clocks of their own, and threads that take turns: no real thread, no sleep, no luck.

A thread is a greenlet. It runs until it waits, for time or for an answer, and then the next event happens. A machine
may stand still (`freeze`), run fast or slow (`rate`), or die; one of its threads may be starved while the others run.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any

import greenlet

FOREVER = float("inf")


class World:
    """The true time, and what happens next. Everything else sees it only through a machine's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.machines: list[Machine] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, instant: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(instant, self.now), next(self._numbers), action))

    def run(self, until: float) -> None:
        self._hub = greenlet.getcurrent()
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
            for machine in self.machines:
                machine.wake_waiting()
        self.now = until
        for machine in self.machines:
            machine.die()

    def pause(self) -> None:
        """Give the turn back; the current thread goes on when its `resume` is called."""
        self._hub.switch()


class Machine:
    """One machine, or one process on it: its clock, its threads, and whether it runs. Implements `Clock`."""

    def __init__(self, world: World, name: str, *, rate: float = 1.0, wall: float = 0.0) -> None:
        self.world, self.name, self.rate, self.wall = world, name, rate, wall
        self.life = 1
        """Which process this is: the threads of those before it are dead."""
        self.frozen_until = 0.0
        self.planned: dict[int, Callable[[Thread], None]] = {}
        """What happens at this machine's n-th step; called in the thread that takes it."""
        self._steps = 0
        self._waiting: list[tuple[threading.Event, Thread]] = []
        self._boot = world.now
        world.machines.append(self)

    def now(self) -> float:
        current_thread().refuse_if_dead()
        return 1000.0 + (self.world.now - self._boot) * self.rate

    def wall_time(self) -> float:
        return 1.8e9 + self.world.now + self.wall

    def ahead(self) -> float:
        return self.wall_time() - self.now()

    def wait(self, event: threading.Event, timeout: float) -> bool:
        if not event.is_set() and timeout > 0:
            self.sleep(timeout, event)
        return event.is_set()

    def sleep(self, duration: float, event: threading.Event | None = None) -> None:
        """Let the current thread wait for `duration` seconds of this machine's clock, or until `event` is set."""
        thread = current_thread()
        if event is not None:
            self._waiting.append((event, thread))
        thread.wait_until(self.world.now + duration / self.rate)
        self._waiting = [each for each in self._waiting if each[1] is not thread]

    def step(self) -> None:
        """Between any two statements of the policy."""
        thread = current_thread()
        thread.refuse_if_dead()
        self._steps += 1
        self.world.steps += 1
        if self._steps in self.planned:
            self.planned[self._steps](thread)
            thread.stand_still()

    def freeze(self, duration: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + duration)

    def die(self) -> None:
        """End the process; its threads never run again. Another may start on this machine."""
        self.life += 1
        self.frozen_until = 0.0
        self._waiting = []

    def wake_waiting(self) -> None:
        due = [each for each in self._waiting if each[0].is_set()]
        for each in due:
            self._waiting.remove(each)
            each[1].wake()


class Thread:
    """What the policy needs of `threading.Thread`, on a machine. `starved_until` keeps it from running."""

    def __init__(
        self, *, machine: Machine, target: Callable[..., Any], name: str = "", args: Any = (), daemon: bool = True
    ) -> None:
        self.machine, self.name = machine, name
        self._life = machine.life
        self.starved_until = 0.0
        self._ended = threading.Event()
        self._begun = False
        self._due = FOREVER
        self._greenlet = greenlet.greenlet(lambda: self._run(target, args))
        self._greenlet.thread = self

    def start(self) -> None:
        self._begun = True
        self._sleep_until(self.machine.world.now)

    def is_alive(self) -> bool:
        return self._begun and not self._ended.is_set()

    def join(self, timeout: float) -> None:
        self.machine.wait(self._ended, timeout)

    def wake(self) -> None:
        if self._due > self.machine.world.now:
            self._sleep_until(self.machine.world.now)

    def wait_until(self, instant: float) -> None:
        """Called by the thread itself: the others run until the true time `instant`, or until `wake`."""
        self._sleep_until(instant)
        self.machine.world.pause()
        self.refuse_if_dead()

    def refuse_if_dead(self) -> None:
        if self._life != self.machine.life:
            raise greenlet.GreenletExit

    def stand_still(self) -> None:
        """Called by the thread itself, after it was starved or its machine was frozen."""
        self.wait_until(self.machine.world.now)

    def _sleep_until(self, instant: float) -> None:
        self._due = instant
        if instant < FOREVER:
            self.machine.world.at(instant, lambda: self._resume(instant))

    def _resume(self, due: float) -> None:
        if due != self._due or self._life != self.machine.life or self._ended.is_set():
            return  # it was woken for something else meanwhile
        later = max(self.machine.frozen_until, self.starved_until)
        if later > self.machine.world.now:
            self._sleep_until(later)
            return
        self._due = FOREVER
        self._greenlet.parent = greenlet.getcurrent()
        self._greenlet.switch()

    def _run(self, target: Callable[..., Any], args: Any) -> None:
        try:
            target(*args)
        finally:
            self._ended.set()


def current_thread() -> Thread:
    return greenlet.getcurrent().thread  # type: ignore[no-any-return]
