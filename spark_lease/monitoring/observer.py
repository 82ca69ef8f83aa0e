"""Looking at a lease without taking it: who has it, and whether it is worth trying. Guards nothing, asks the store."""

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
    """One look. `expires_in` None: the store has no clock, so that one look cannot tell whether it has run out.
    `state` is "blocked" where it is free and yet an operator keeps this site from taking it: `why`; which also says why
    one look cannot tell whether a lease that is held has run out. `site`: the holder's, if it was to be told."""

    lease: str
    state: str
    holder: str = ""
    epoch: int = 0
    since: str = ""
    expires_in: float | None = 0.0
    why: str = ""
    site: str = ""


class LeaseObserver:
    """Looks again and again: what a store without a clock never says is seen from a record that stands still."""

    def __init__(self, config: Config, *, tells_site: bool = False) -> None:
        # It asks now and then: nothing is prepared, and only a contender compares the clocks. Where a lease
        # would make its folder, one that is not there yet is free.
        makes = config.create_table if config.url.startswith(("file:", "delta:")) else "false"
        self._config = replace(config, create_table=makes, notify=False, max_allowable_diff_from_db_time=0.0)
        self._clock, self._tells_site = BootClock(), tells_site
        self._standstill = UnchangedSince()
        self._holder = new_holder(self._config.holder)

    def look(self) -> LeaseStatus:
        """Raises StoreError if the store gives no answer, ConfigError."""
        name = self._config.name
        with closing(open_store(self._config)) as store:
            seen = store.read(name)
        self._config = replace(self._config, if_denied="wait")  # it let us in before
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
        """Raise LeaseHeldByOther or AlreadyDone if a look is enough to know that there is nothing to do now.

        `again`: there will be more looks, so that a record which may have run out is held until that is certain.
        Raises StoreError and ConfigError as well, which know nothing.
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
