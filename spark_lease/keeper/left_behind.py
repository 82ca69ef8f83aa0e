"""What a block that failed has left running: these processes and what they start from now on, and no others.

Python is not one of them: it may go on with something else, under another lease maybe.
"""

from collections.abc import Iterable

from ..system.processes import Process, kill, processes


class LeftBehind:
    def __init__(self, left: Iterable[tuple[int, int]]) -> None:
        """`left`: pid, and when it was started."""
        self._members = set(left)

    def alive(self) -> list[Process]:
        """Those that still run. A grandchild whose parent has ended is known if it was seen before."""
        everything = [each for each in processes().values() if each.alive]
        pids = {each.pid for each in everything if (each.pid, each.started) in self._members}
        while fresh := [each for each in everything if each.parent in pids and each.pid not in pids]:
            pids |= {each.pid for each in fresh}
            self._members |= {(each.pid, each.started) for each in fresh}
        return [each for each in everything if each.pid in pids]

    def kill(self) -> None:
        kill(self.alive())
