"""What each fault does to a data centre, and how it is ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaign.machine import Disk, Group
from tests.faults.campaign.network import Host
from tests.faults.campaign.schedule import FREEZES, OF_NETWORK, OF_STORE, WITH_KEEPER, Fault, Kind
from tests.faults.campaign.site import Site
from tests.faults.campaign.stores import Store, crash
from tests.faults.campaign.witness import now
from tests.services.pair import Pair

_JUMPS = (-86_400, -7, 7, 86_400)
Heal = Callable[[], None]


@dataclass
class Centre:
    """What rounds are played on."""

    name: str
    database: Host
    sites: Sequence[Host]
    disk: Disk
    """Of the lease store."""


class Striker:
    """Strikes in one round, whose witnesses write into `folder`. `lacking`: seconds that a replica has not received."""

    def __init__(self, centre: Centre, store: Store, folder: Path, lacking: float = 0.0) -> None:
        self._centre, self._store, self._folder, self._lacking = centre, store, folder, lacking
        self.stood = list[tuple[str, float, float]]()
        """Who stood still, from when to when."""

    def strike(self, fault: Fault, site: Site) -> Heal | None:
        """How it is ended; None if there was nothing to strike."""
        kind = fault.kind
        if kind in OF_NETWORK:
            return self._on_network(kind, site.host)
        if kind in OF_STORE:
            return self._on_store(kind)
        match kind:
            case Kind.CLOCK:
                site.clock.set(_JUMPS[int(fault.at * 1000) % len(_JUMPS)])
                return lambda: site.clock.set(0)
            case Kind.DISK_FULL:
                site.disk.fill()
                return site.disk.free
            case Kind.MEMORY:
                return self._hog(site)
            case Kind.STARVED:
                return self._in_group("cpu", site, Group.starve, Group.feed)
            case Kind.FREEZE_GROUP:
                return self._stands(site, self._in_group("freezer", site, Group.freeze, Group.thaw))
            case _ if kind in FREEZES:
                pids = site.freeze(kind)
                heal = self._stands(site, _thaw(pids)) if kind in WITH_KEEPER else _thaw(pids)
                return heal if pids else None
        is_there = bool(site.victims(kind))
        site.kill(kind)
        return site.start if is_there else None

    def _on_network(self, kind: Kind, host: Host) -> Heal:
        {Kind.CUT: host.cut, Kind.DEAF: host.be_deaf, Kind.MUTE: host.be_mute, Kind.SLOW: host.slow_down}[kind]()
        return host.heal

    def _on_store(self, kind: Kind) -> Heal | None:
        server, pids = self._store.server, [each.pid for each in self._centre.database.processes()]
        match kind:
            case Kind.SERVER_CUT:
                self._centre.database.cut()
                return self._centre.database.heal
            case Kind.SERVER_RESET:
                self._centre.database.reset()
                return self._centre.database.reset
            case Kind.SERVER_FROZEN:
                return _signalled(pids, signal.SIGSTOP, signal.SIGCONT)
            case Kind.SERVER_LIES:
                return _signalled(pids, signal.SIGUSR1, signal.SIGUSR2)
            case Kind.STORE_FULL:
                self._centre.disk.fill()
                return self._free_disk
        assert server
        _thaw(pids)()
        if isinstance(server, Pair) and kind is Kind.SERVER_PROMOTED:
            if server.replica.process.poll() is not None:
                return None
            with self._centre.database.inside():
                server.fail_over(lacking=self._lacking)
            return self._rejoin
        crash(server) if kind is Kind.SERVER_CRASHED else server.stop()
        return self._start_server

    def _stands(self, site: Site, thaw: Heal) -> Heal:
        """`thaw`, and write down how long it stood."""
        since, whose = now(), [each.name for each in self._folder.glob(f"{site.host.name}-*")]

        def end() -> None:
            self.stood += [(who, since, now()) for who in whose]
            thaw()

        return end

    def _hog(self, site: Site) -> Heal:
        memory = site.memory
        assert memory
        memory.confine()
        hog = site.hog()

        def heal() -> None:
            with suppress(ProcessLookupError):
                os.killpg(hog.pid, signal.SIGKILL)
            memory.release()
            hog.wait(10)

        return heal

    def _in_group(
        self, controller: str, site: Site, begin: Callable[[Group], None], end: Callable[[Group], None]
    ) -> Heal:
        group = Group(controller, f"{self._centre.name}-{site.host.name}")
        site.put_into(group)
        begin(group)

        def heal() -> None:
            end(group)
            group.remove()

        return heal

    def _free_disk(self) -> None:
        self._centre.disk.free()
        if self._store.server:
            self._start_server()

    def _rejoin(self) -> None:
        assert isinstance(self._store.server, Pair)
        with self._centre.database.inside():
            self._store.server.rejoin()

    def _start_server(self) -> None:
        if self._centre.disk.is_full:  # it would not start, and does once there is room
            return
        with self._centre.database.inside():
            assert self._store.server
            if self._store.server.process.poll() is not None:
                self._store.server.start()


def _signalled(pids: Sequence[int], begin: signal.Signals, end: signal.Signals) -> Heal:
    _signal(pids, begin)
    return lambda: _signal(pids, end)


def _thaw(pids: Sequence[int]) -> Heal:
    return lambda: _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
