"""A small model of the lease, searched through whole: every order of events within its bounds, no luck.

    python -m tests.simulation.model [LEASE DEADLINE BUDGET]     (make model; in ticks, 5 2 1 unless given)

Two contenders, one record, time in ticks. What may happen at any moment: a request takes effect, is lost, is cut off
and takes effect later, its answer is lost or arrives late; a contender crashes and starts anew, stands still, runs on;
time passes, on a clock that may lose one tick in `DRIFT`. Bounds: `EPOCHS` grants, one late write for each contender,
no restored or deleted record, a store whose clock is right. What is searched is this model, not the code: it shows
that the rules are right, the simulator that the code follows them.

P1  two contenders never both pass `check()`
P2  an epoch is never granted twice
P3  work that was not standing still has ended when another is master
P5  nothing is released while the work runs
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

DRIFT = 3
EPOCHS = 3
NOBODY, GONE = -1, 2
"""Who holds the record, if it is not contender 0 or 1; GONE: one who started anew and knows nothing of it."""


class Request(NamedTuple):
    """`said`: None while it is under way, then what the store answered. `age`: own ticks since it was sent."""

    what: str
    epoch: int
    age: int = 0
    said: bool | None = None


class Contender(NamedTuple):
    """`since`: own ticks since the last confirmed request was sent. `late`: a write that nobody waits for any more."""

    mode: str = "standby"
    epoch: int = 0
    since: int = 0
    request: Request | None = None
    late: tuple[str, int, int] | None = None
    frozen: bool = False
    kept: int = DRIFT
    """Ticks kept since its clock last lost one."""


class State(NamedTuple):
    holder: int = NOBODY
    epoch: int = 0
    left: int = 0
    contenders: tuple[Contender, Contender] = (Contender(), Contender())
    granted: frozenset[int] = frozenset()
    wrong: str = ""


@dataclass(frozen=True)
class Model:
    """The timings, in ticks. Right if every clock's `deadline + budget` is over before the store's `lease` is."""

    lease: int = 5
    deadline: int = 2
    budget: int = 1

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._time(state)
        for who, it in enumerate(state.contenders):
            if it.request and it.request.said is None:
                yield f"{who}'s {it.request.what} takes effect", self._applied(state, who, it.request, who)
            if it.late:
                late, owner = Request(*it.late[:2]), it.late[2]
                yield f"{who}'s late {late.what} takes effect", self._applied(state, who, late, owner, late=True)
            yield f"{who} crashes", self._restarted(state, who)
            if it.frozen:
                yield f"{who} runs on", _with(state, who, it._replace(frozen=False))
            else:
                yield from self._acts(state, who, it)

    def _acts(self, state: State, who: int, it: Contender) -> Iterator[tuple[str, State]]:
        if it.request:
            yield from self._hears(state, who, it, it.request)
        elif it.mode == "standby" and state.holder == who:
            yield f"{who} finds its own take", _with(state, who, it._replace(request=Request("adopt", state.epoch)))
        elif it.mode == "standby" and (state.holder == NOBODY or not state.left) and state.epoch < EPOCHS:
            yield f"{who} sends a take", _with(state, who, it._replace(request=Request("take", state.epoch + 1)))
        elif it.mode == "master" and it.since < self.deadline:
            mine = (state.holder, state.epoch) == (who, it.epoch)
            renewal = it._replace(request=Request("renew", it.epoch)) if mine else it._replace(mode="done")
            yield f"{who} {'sends a renewal' if mine else 'is told that it has lost'}", _with(state, who, renewal)
        elif it.mode == "done" and (state.holder, state.epoch) == (who, it.epoch):
            yield f"{who} sends a release", _with(state, who, it._replace(request=Request("release", it.epoch)))
        if it.mode == "master":
            # Only work is ever forced to do something in time; all else may just as well not happen.
            yield f"{who} stands still", _with(state, who, it._replace(frozen=True))
            yield f"{who}'s work ends", _with(state, who, it._replace(mode="done"))
        if it.mode == "done":
            yield f"{who} starts anew", self._restarted(state, who)

    def _hears(self, state: State, who: int, it: Contender, request: Request) -> Iterator[tuple[str, State]]:
        nothing = it._replace(request=None)
        yield f"{who} gets no answer", _with(state, who, nothing)
        if request.said is None:
            late = (request.what, request.epoch, who)
            yield f"{who} cuts its {request.what} off", _with(state, who, nothing._replace(late=late))
        elif request.said and request.what in ("take", "adopt") and request.age < self.deadline:
            wrong = "P2" if request.what == "take" and request.epoch in state.granted else ""
            new = state._replace(granted=state.granted | {request.epoch}, wrong=wrong)
            master = nothing._replace(mode="master", epoch=request.epoch, since=request.age)
            yield f"{who} is granted epoch {request.epoch}", _with(new, who, master)
        elif request.said and request.what == "renew" and it.mode == "master" and it.since < self.deadline:
            yield f"{who} is told that it renewed", _with(state, who, nothing._replace(since=request.age))

    def _applied(self, state: State, who: int, write: Request, owner: int, *, late: bool = False) -> State:
        """The record is replaced: whatever else was to replace the same record finds another one and does nothing."""
        wrong = "P5" if write.what == "release" and state.contenders[who].mode == "master" and owner == who else ""
        left, holder = (0, NOBODY) if write.what == "release" else (self.lease, owner)
        contenders = []
        for number, it in enumerate(state.contenders):
            if it.request and it.request.said is None:
                it = it._replace(request=it.request._replace(said=number == who and not late))
            contenders.append(it._replace(late=None))
        return state._replace(holder=holder, epoch=write.epoch, left=left, contenders=tuple(contenders), wrong=wrong)

    def _restarted(self, state: State, who: int) -> State:
        """A new process, under a new name: nothing it was told before counts, and what it sent may still land."""
        it = state.contenders[who]
        late = it.late and (*it.late[:2], GONE)
        if it.request and it.request.said is None:
            late = (it.request.what, it.request.epoch, GONE)
        new = _with(state, who, Contender(late=late))
        return new._replace(holder=GONE if state.holder == who else state.holder)

    def _time(self, state: State) -> Iterator[tuple[str, State]]:
        # Work that is not standing still is killed in time: the tick that would be too late cannot come before that.
        end = self.deadline + self.budget
        if any(it.mode == "master" and not it.frozen and it.since >= end for it in state.contenders):
            return
        options = [[False, True] if it.kept >= DRIFT else [False] for it in state.contenders]
        for losing in ((one, two) for one in options[0] for two in options[1]):
            contenders = tuple(map(self._older, state.contenders, losing))
            words = "".join(f", {who}'s clock loses it" for who, lost in enumerate(losing) if lost)
            yield f"a tick{words}", state._replace(left=max(state.left - 1, 0), contenders=contenders)

    def _older(self, it: Contender, lost: bool) -> Contender:
        if it.mode != "master" and not it.request:
            return it._replace(kept=DRIFT)  # nothing that it measures
        if lost and it.since < self.deadline + self.budget:
            return it._replace(kept=0)
        request = it.request and it.request._replace(age=min(it.request.age + 1, self.deadline))
        since = min(it.since + 1, self.deadline + self.budget + 1) if it.mode == "master" else 0
        return it._replace(since=since, request=request, kept=min(it.kept + 1, DRIFT))

    def broken(self, state: State) -> str:
        """The promise that does not hold in this state, if any."""
        if all(it.mode == "master" for it in state.contenders):
            if all(it.since < self.deadline for it in state.contenders):
                return "P1"
            older = min(state.contenders, key=lambda it: it.epoch)
            if not older.frozen and older.since <= self.deadline + self.budget:
                return "P3"
        return state.wrong


def _with(state: State, who: int, it: Contender) -> State:
    one, two = state.contenders
    return state._replace(contenders=(it, two) if who == 0 else (one, it))


def search(model: Model) -> tuple[int, str, list[str]]:
    """Go through all states, breadth first: their number, the promise that one breaks, the shortest way there."""
    came: dict[State, tuple[State, str] | None] = {State(): None}
    queue = deque(came)
    while queue:
        state = queue.popleft()
        for words, new in model.successors(state):
            if new not in came:
                came[new] = (state, words)
                queue.append(new)
                if broken := model.broken(new):
                    way = []
                    while step := came[new]:
                        new = step[0]
                        way.append(step[1])
                    return len(came), broken, way[::-1]
    return len(came), "", []


if __name__ == "__main__":
    chosen = Model(*map(int, sys.argv[1:]))
    print(f"{chosen}: a clock may lose one tick in {DRIFT + 1}, {EPOCHS} grants, 2 contenders")
    states, broken, way = search(chosen)
    print("\n".join(f"{number:>3}. {words}" for number, words in enumerate(way, start=1)))
    print(f"{broken} is BROKEN, after" if broken else "P1, P2, P3 and P5 hold in all", states, "states")
    sys.exit(1 if broken else 0)
