"""The Delta tables that a lease guards: those that its holders wrote to, noted beside it before the first commit.

So the user keeps no list. A new holder claims all of them before its work begins, and so knows each table to which a
write of an older holder can still be on its way.
"""

import contextlib
import importlib
import importlib.util
import json
import logging
import shlex
from contextlib import closing

from ...clock import Clock
from ...config.settings import Config
from ...config.urls import redacted
from ...election.ports import HeldLease
from ...election.record import LeaseRecord
from ...errors import ConfigError, Fenced, FenceUnreachable, Loss, StoreError
from ...journal.patience import patiently
from ...stores.folders.error_text import error_text, secrets_of
from ...stores.registry import note_beside, open_notes
from ...system.call_timeout import CallTimeout
from ..refusal import fenced
from .claims import Answer, claim_side_by_side
from .fence import Claim, as_hadoop, newer_than, newest_of, property_of

log = logging.getLogger(__name__)

KIND = "table"
"""The kind of the notes that name a table."""


class DeltaFence:
    """Checks each Delta transaction of this process for one lease. Several threads use it at once."""

    def __init__(self, lease: HeldLease, config: Config, clock: Clock) -> None:
        self._lease, self._config, self._clock = lease, config, clock
        self._name = config.shared_name
        self._known, self._claimed = set[str](), set[str]()
        self._warned = False
        self.property = property_of(self._name)

    @property
    def is_wanted(self) -> bool:
        return self._config.fence_delta != "off" and self._config.enabled

    def claim_all(self) -> str:
        """Claim the tables of earlier holders, and those of `fence_tables`. Call it before the work begins.

        Raises Fenced, LeaseLost; if `fence_delta` is "required", also the error that kept a table from being claimed,
        else a warning. Returns why no note, and so no fence, is possible beside the lease; most often "".
        """
        if not self.is_wanted:
            return ""
        problem, noted = "", list[str]()
        try:
            noted = list(self._lease.noted(KIND))
        except ConfigError as error:
            if self._config.fence_delta == "required":
                raise
            problem = str(error)
        self._known = set(noted)
        wanted = Claim(self._name, self._lease.check(), self._lease.holder, self._config.storage_options)
        limit, tables = self._config.lease_duration, {*noted, *map(as_hadoop, self._config.fence_tables)}
        answers = claim_side_by_side(wanted, tables, clock=self._clock, timeout=limit, still_mine=self._lease.check)
        self._claimed = {table for table, answer in answers.items() if answer is True}
        for table, answer in sorted(answers.items()):
            if answer is not True:
                self._not_claimed(table, answer)
        return problem

    def begin(self, table: str, newest: str | None) -> None:
        """Check a transaction that begins on `table`, with the property `newest` in its snapshot. To refuse it, raises
        Fenced, LeaseLost or ConfigError. Not every one writes: some only register a table in a catalog."""
        if self.is_wanted:
            self._refuse_newer(table, newest)
            self._lease.wait_certain()

    def commit(self, table: str) -> None:
        """Check a transaction before its commit ("": a scratch table). To refuse it, raises LeaseLost or StoreError."""
        if not self.is_wanted:
            return
        if table and table not in self._known:
            # Before it goes on: a master after me claims what is noted, and nothing else.
            self._record(table)
            self._known.add(table)
        self._lease.check()

    def has_known(self, table: str) -> bool:
        """True if the lease guards `table`, as far as this process knows."""
        return table in self._known | self._claimed

    def begin_after_the_end(self, table: str, newest: str | None, *, is_idle: bool) -> None:
        """Check a transaction that begins on `table` after the lease has ended, if no other is known to guard it.
        `is_idle`: this process has no other. Raises Fenced if the next master has claimed the table, ConfigError."""
        if newer := newer_than(self._name, self._lease.epoch, table, newest):
            raise Fenced(
                self._lease.name, table, self._lease.epoch, newer, "The lease has ended: write inside its block"
            )
        if is_idle and not self._warned:
            self._warned = True
            message = "%s: %s is written to after the end of the block, without a lease: write inside the block"
            log.warning(message, self._lease.name, redacted(table))

    def get_ready(self) -> None:
        """Import what `aborted` needs: by then the lease may be lost, and every moment counts."""
        with contextlib.suppress(ImportError):
            importlib.import_module("pyarrow.parquet")  # to read checkpoints

    def aborted(self, table: str) -> None:
        """Raise Fenced if a newer claim may be why a transaction on `table` was aborted. Any other reason stays Delta's
        own; so does one that is not found within `attempt_timeout`."""
        if not self.is_wanted:
            return
        # Not through Spark, which may be stopping.
        limit = self._config.attempt_timeout
        looking = CallTimeout(redacted(table), timeout=limit)
        try:
            newest = looking.call(lambda: newest_of(self._name, table, self._config.storage_options, timeout=limit))
        except Exception as error:  # an object store raises anything; the transaction is aborted anyway
            reason = error_text(error, secrets_of(self._config.storage_options))
            log.debug(
                "%s: cannot find out why a transaction on %s was aborted: %s", self._name, redacted(table), reason
            )
            return
        finally:
            looking.close()
        self._refuse_newer(table, newest)

    def _refuse_newer(self, table: str, newest: str | None) -> None:
        if newer := newer_than(self._name, self._lease.epoch, table, newest):
            raise fenced(self._lease, table, newer)

    def _record(self, table: str) -> None:
        """Patient with the store, as a renewal is: what is to be committed may be the work of hours."""

        def note() -> str | None:
            text = json.dumps({"epoch": self._lease.check(), "holder": self._lease.holder})
            return self._lease.note(KIND, table, text)

        every = self._config.retry_period / 5
        if patiently(note, self._clock, timeout=self._config.renew_deadline, every=every) is None:
            self._lease.lose(Loss.TAKEN, f"{table} was not written: the lease is no longer held here")
            self._lease.check()
        log.info("%s: guards %s", self._lease.name, redacted(table))

    def _not_claimed(self, table: str, answer: Answer) -> None:
        """Raise the error, or only log it if `fence_delta` allows that."""
        where = redacted(table)
        if not answer and table not in self._known:  # this lease has not written to it
            log.info("%s: %s does not exist yet: its first write will register it", self._lease.name, where)
            return
        if not answer:
            # Its share may not be mounted. No table is forgotten automatically: it would not be claimed again.
            forget = f"spark-lease fence forget --lease {shlex.quote(self._name)} --on {shlex.quote(where)}"
            problem = f"there is no such table; if it is gone for good: {forget}"
            answer = FenceUnreachable(where, problem)
        if not isinstance(answer, StoreError) or self._config.fence_delta == "required":
            raise answer  # type: ignore[misc]
        log.warning("%s: NOT FENCED: %s: %s", self._lease.name, where, answer.problem)


def level_of(fence: DeltaFence, problem: str) -> str:
    """The value of `Fences.delta` without a hook, after `claim_all` returned `problem`."""
    if not fence.is_wanted:
        return "off"
    return "none" if problem or not importlib.util.find_spec("deltalake") else "claims"


def noted_tables(config: Config) -> dict[str, str]:
    """The tables that lease `config.name` guards, each with the JSON of its note. Raises StoreError, ConfigError."""
    with closing(open_notes(config)) as notes:
        return notes.all(config.shared_name, KIND)


def note_table(config: Config, table: str) -> bool:
    """Have `table` guarded from the next master on, or by this one's claims; False if it is already.

    Raises StoreError; ConfigError if the lease was never taken, so that there is nothing to note it beside.
    """

    def text(record: LeaseRecord) -> str:
        return json.dumps({"epoch": record.epoch, "holder": ""})

    return note_beside(config, KIND, table, text, advice="give fence_tables for its first run")


def forget_table(config: Config, table: str) -> bool:
    """Stop guarding `table`; False if it was not guarded. Call it while no job writes to the table under the lease: a
    holder that has noted it does not note it again. Raises StoreError, ConfigError."""
    with closing(open_notes(config)) as notes:
        return notes.remove(config.shared_name, KIND, table)
