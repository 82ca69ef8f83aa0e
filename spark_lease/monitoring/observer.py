"""Reads a lease without taking it: who holds it, and whether an attempt is worthwhile. Guards nothing."""

from contextlib import closing
from dataclasses import dataclass, replace

from ..clock import BootClock, iso_text
from ..config.settings import Config
from ..election.directive import directive_of
from ..election.journal_entries import GRANT, site_in
from ..election.record import SET_BACK, UnchangedSince, expires_in, new_holder, taken_by_force
from ..errors import AlreadyDone, LeaseHeldByOther
from ..journal.runs import done_under
from ..stores.registry import open_notes, open_store

FREE, HELD, EXPIRED, BLOCKED = "free", "held", "expired", "blocked"


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """The result of one look. `expires_in` None: the store has no clock, so one look cannot tell whether the lease has
    run out. `state` "blocked": it is free, but an operator keeps this site from taking it, see `why`. `why` also says
    why one look cannot tell whether a held lease has run out. `site`: the holder's, if requested."""

    lease: str
    state: str
    holder: str = ""
    epoch: int = 0
    since: str = ""
    expires_in: float | None = 0.0
    why: str = ""
    site: str = ""


class LeaseObserver:
    """Reads a lease repeatedly: without a store's clock, a record that stays unchanged shows that it has run out."""

    def __init__(self, config: Config, *, tells_site: bool = False) -> None:
        # It reads only now and then: no statement is prepared, and only a contender compares the clocks. If a lease
        # makes its own folder, a folder that is not there yet means a free lease.
        makes = config.create_table if config.url.startswith(("file:", "delta:")) else "false"
        self._config = replace(config, create_table=makes, notify=False, max_allowable_diff_from_db_time=0.0)
        self._clock, self._tells_site = BootClock(), tells_site
        self._standstill = UnchangedSince()
        self._holder = new_holder(self._config.holder)

    def look(self) -> LeaseStatus:
        """Read the lease. Raises StoreError if the store does not answer, ConfigError."""
        name = self._config.name
        with closing(open_store(self._config)) as store:
            seen = store.read(name)
        self._config = replace(self._config, if_denied="wait")  # this store let us in before
        record, still_for = seen.record, self._standstill.still_for(seen.record, self._clock.now())
        if record is None:
            return LeaseStatus(name, FREE)
        left, directive = expires_in(seen, still_for=still_for), directive_of(record.directive)
        if left <= 0 and directive and directive.blocks(self._holder, self._config.site, now=seen.wall):
            return LeaseStatus(name, BLOCKED, epoch=record.epoch, why=str(directive))
        if record.holder is None:
            return LeaseStatus(name, FREE, epoch=record.epoch)
        if left <= 0:
            return LeaseStatus(name, EXPIRED, record.holder, record.epoch, iso_text(record.epoch / 1000))
        known = None if seen.expires_in is None else round(left, 1)
        site = ""
        if self._tells_site:
            with closing(open_notes(self._config)) as notes:
                site = site_in(notes.get(self._config.shared_name, GRANT, str(record.epoch)), record.holder)
        since, why = iso_text(record.epoch / 1000), SET_BACK * seen.is_set_back
        return LeaseStatus(name, HELD, record.holder, record.epoch, since, known, why, site)

    def refuse_known(self, *, again: bool) -> None:
        """Raise LeaseHeldByOther or AlreadyDone if one look shows that there is nothing to do now.

        `again`: more looks follow, so a record that may have run out counts as held until that is certain. Raises
        StoreError and ConfigError as well: then nothing is known.
        """
        config = self._config
        if not config.enabled:
            return
        if epoch := self.done_under():
            raise AlreadyDone(config.name, config.run_key, epoch)
        seen = self.look()
        if seen.state == BLOCKED:
            raise LeaseHeldByOther(config.name, "", 0.0, seen.why)
        if seen.state == HELD and (again or (seen.expires_in is not None and not seen.why)):
            raise LeaseHeldByOther(config.name, seen.holder, seen.expires_in or 0.0, taken_by_force(seen.holder))

    def done_under(self) -> int:
        """The epoch under which the run key was done; 0 if it was not. Raises StoreError, ConfigError."""
        if not self._config.run_key:
            return 0
        with closing(open_notes(self._config)) as notes:
            return done_under(notes, self._config.name, self._config.run_key)
