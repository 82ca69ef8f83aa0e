"""What is done to a data centre in one round: faults at random moments, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

SPAN = 5.0
"""Seconds in which faults begin."""
LONGEST = 6.0
"""Seconds that one lasts; the lease has a half of it."""


class Kind(StrEnum):
    CUT = "host cut off"
    DEAF = "host sends, hears nothing"
    MUTE = "host hears, sends nothing"
    SLOW = "network slow and lossy"
    SERVER_CUT = "its server cut off"
    SERVER_RESET = "its connections reset"
    SERVER_FROZEN = "its server frozen"
    SERVER_RESTARTED = "its server restarted"
    SERVER_CRASHED = "its server crashed"
    SERVER_PROMOTED = "its server crashed, the replica promoted"
    SERVER_LIES = "its server did it, and says that it failed"
    STORE_FULL = "disk of the lease store full"
    KILL_KEEPER = "keeper killed"
    KILL_DRIVER = "driver killed, nothing else"
    KILL_WORK = "work killed"
    KILL_ALL = "job killed, all of it"
    KILL_SITE = "site killed, its scheduler too"
    FREEZE_KEEPER = "keeper frozen"
    FREEZE_DRIVER = "driver frozen, nothing else"
    FREEZE_WORK = "work frozen"
    FREEZE_GUARD = "driver, keeper and sweeper frozen, nothing else"
    FREEZE_ALL = "job frozen, all of it"
    FREEZE_SITE = "site frozen, its scheduler too"
    FREEZE_GROUP = "site frozen by its control group"
    STARVED = "site has 3 % of a processor"
    MEMORY = "memory of the site full"
    CLOCK = "wall clock set"
    DISK_FULL = "disk of the site full"


OF_NETWORK = (Kind.CUT, Kind.DEAF, Kind.MUTE, Kind.SLOW)
OF_SERVER = (Kind.SERVER_CUT, Kind.SERVER_FROZEN, Kind.SERVER_RESTARTED, Kind.SERVER_CRASHED)
OF_STORE = (*OF_SERVER, Kind.SERVER_RESET, Kind.SERVER_LIES, Kind.SERVER_PROMOTED, Kind.STORE_FULL)
OF_SITE = tuple(each for each in Kind if each not in OF_NETWORK + OF_STORE)
WITH_KEEPER = (Kind.FREEZE_ALL, Kind.FREEZE_SITE)
FREEZES = (Kind.FREEZE_KEEPER, Kind.FREEZE_DRIVER, Kind.FREEZE_WORK, Kind.FREEZE_GUARD, *WITH_KEEPER)
"""Of these, what leaves no process that could end the work before it is thawed."""


@dataclass(frozen=True)
class Fault:
    """`at` and `seconds` count from the round's first write; `on_master`: of two sites, that which is master then."""

    kind: Kind
    at: float
    seconds: float
    on_master: bool


def schedule(seed: int, kinds: tuple[Kind, ...]) -> list[Fault]:
    """One to three faults in the order in which they begin. Every seed has its own first kind, in turn."""
    chance = random.Random(seed)
    chosen = [kinds[seed % len(kinds)], *chance.sample(kinds, chance.choice((0, 0, 1, 2)))]
    faults = [
        Fault(kind, chance.uniform(0, SPAN), chance.uniform(0.3, LONGEST), chance.random() < 0.7) for kind in chosen
    ]
    return sorted(faults, key=lambda each: each.at)
