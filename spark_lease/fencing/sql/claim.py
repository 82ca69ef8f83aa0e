"""Claims a guarded database: it stores this hold's epoch, if that is newer than the stored one.

A claim is one statement in a session of its own, which ends with it. It is idempotent, so that a lost answer does no
harm. On PostgreSQL it is a transaction, and the server ends the session of a process that is frozen in it. If a
transaction of an older epoch blocks the claim, PostgreSQL is told to end that session. Every wait ends.
"""

import contextlib
import logging
import math
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Connection, Engine, Executable, bindparam, delete, event, literal_column, select
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from ...clock import BootClock
from ...database.connections import SocketWatchdog, name_of, refuses_options
from ...database.dialects import CONFLICTS, backend_of, code_of, matches, transaction_bounds
from ...election.ports import HeldLease
from ...errors import ConfigError, Fenced, FenceUnreachable, SparkLeaseError
from .connected import cannot_be_made, connected, refuse_no_hold, unreachable
from .search_path import has_fence
from .stale_sessions import end_holders, end_older_sessions
from .tables import (
    DONE,
    FENCE,
    NO_EPOCH,
    RUN,
    forget_runs,
    insert_run,
    raise_epoch,
    read_epoch,
    refuse_unknown,
    tables_sql,
    where_is,
)
from .triggers import restore

log = logging.getLogger(__name__)
_T = TypeVar("_T")

TIMEOUT = 10.0
_GRACE = 0.05
"""Seconds for a transaction of an older epoch to end by itself, before the claim ends its session."""
_RETRY_PAUSE = 0.05
_TO_REPORT = 0.5
_REMEMBERED = 24 * 3600 * 1000
"""Milliseconds, as epochs are, for which a run with an unknown end is kept: its master may be frozen so long."""
_SQLITE_LOCKED = "database is locked"
TRANSIENT = (*CONFLICTS, _SQLITE_LOCKED)
"""Codes or words of errors that retrying may help, besides locks and lost connections."""
_NO_CONNECTION = ("1040", "1203", "1226", "2002", "2003", "2006", "2013", "57P03")
_HELD = "a transaction holds its row: see information_schema.innodb_trx, and KILL its session once its job has ended"
_NO_OPTIONS = (
    "its pooler refuses PGOPTIONS, which spark-lease run and submit set: set "
    'ignore_startup_parameters = options in pgbouncer.ini, or let the script begin with os.environ.pop("PGOPTIONS")'
)
_ADVICE_IF_LOWER = (
    "If no other master is at work, the lease's own row was lost or restored from a backup and its epochs began anew "
    "below it: `spark-lease fence forget --lease {name}`, with the --fence-url of this database, clears what the fence "
    "remembers, once you are sure"
)


def claim(lease: HeldLease, engine: Engine, *, timeout: float = TIMEOUT) -> None:
    """Raise the fence of `lease` in the database of `engine` to its epoch; returns at once if the fence has it already.

    Makes missing tables of the fence, and fences again a fenced table of PostgreSQL that was dropped and made again.
    Takes `timeout` seconds at most, and two to connect. Raises LeaseLost; Fenced if a newer epoch was claimed, which
    does not lose the lease; FenceUnreachable; ConfigError.
    """
    epoch, end = lease.check(), BootClock().now() + timeout
    table = FenceTable(engine, timeout=timeout)
    newest = table.raise_to(lease.name, epoch)
    if newest > epoch:
        raise Fenced(lease.name, where_is(engine), epoch, newest, _ADVICE_IF_LOWER.format(name=shlex.quote(lease.name)))
    if table.was_raised:  # once for a master, not in each of its workers
        table.fence_again(lease.name, end)


class FenceTable:
    """Reads and claims a fence, in short sessions on the user's engine in which every wait ends."""

    def __init__(self, engine: Engine, *, timeout: float = TIMEOUT) -> None:
        refuse_unknown(engine)
        # The search path finds the fence, as it does for the check at COMMIT, wherever the user's tables are.
        self._engine = engine.execution_options(schema_translate_map=None)
        self._timeout, self._clock = timeout, BootClock()
        self._backend = backend_of(engine)
        self._is_postgres = engine.dialect.name == "postgresql"
        self.was_raised = False
        """True once `raise_to` has found an older epoch, or none."""

    def raise_to(self, name: str, epoch: int) -> int:
        """Raise the epoch of `name` to `epoch`; returns the newest. Raises FenceUnreachable, ConfigError."""

        def ask(session: Connection) -> int:
            refuse_no_hold(session, name)
            before = self._read(session, name)
            if before < epoch:
                self.was_raised = True  # even if the answer is lost
                session.execute(raise_epoch(self._engine, name, epoch))
                session.commit()
            newest = self._read(session, name)
            if newest == epoch:
                self._tidy(session, name, epoch, before)
            return newest

        return self._ask(ask, lambda session, end: self._make_way(session, end, name, epoch))

    def fence_again(self, name: str, end: float) -> None:
        """Restore the trigger of each fenced table of `name` that has lost it. Logs what succeeded and what failed."""
        if not self._is_postgres:
            return
        try:
            with self._session(end + _TO_REPORT) as session:
                restore(session, name, lambda: end - self._clock.now())
        except Exception as error:  # any error: the fence itself is claimed
            problem: object = type(error).__name__
            if isinstance(error, SQLAlchemyError | SparkLeaseError):
                problem = unreachable(self._engine, error) if isinstance(error, SQLAlchemyError) else error
            log.warning("%s: a table that was made again may be without its fence: %s", name, problem)

    def newest(self, name: str) -> int:
        """The newest claimed epoch; 0 if there is none. Makes no tables. Raises FenceUnreachable, ConfigError."""

        def ask(session: Connection) -> int:
            try:
                return self._read(session, name)
            except DBAPIError as error:
                if matches(error, self._backend.shape):  # the first claim makes its tables
                    return 0
                raise

        return self._ask(ask, reads=True)

    def has_fence(self, name: str) -> bool:
        """True if the PostgreSQL database has a fence for this role, or fenced tables of lease `name`.
        Raises FenceUnreachable."""
        return self._ask(lambda session: has_fence(session, name), reads=True)

    def was_committed(self, name: str, epoch: int, run: str) -> bool:
        """True if the transaction that writes the row of `run` was committed; if False, it can no longer commit.

        Inserts a row with the same key. The insert waits for a transaction that is still open, and the row refuses one
        that has not yet arrived. The row has no epoch: a look-up that is repeated, because its answer was lost, does
        not take it for the transaction's. Raises FenceUnreachable while the result is not known, and always if the run
        may have been pruned: an epoch is the time of the grant, and a master may have written long after it.
        """

        written = select(RUN.c.epoch).where(RUN.c.name == name, RUN.c.run == run)

        def ask(session: Connection) -> bool:
            session.execute(insert_run(self._engine, {"name": name, "run": run, "epoch": NO_EPOCH}))
            session.commit()
            committed = bool(session.execute(written).scalar() == epoch)
            if not committed and epoch < self._read(session, name) - _REMEMBERED:
                raise FenceUnreachable(where_is(self._engine), "its epoch is so old that the run may be forgotten")
            return committed

        return self._ask(ask)

    def forget(self, name: str) -> int:
        """Clear the fence of `name`; returns its last epoch, 0 if none. Raises FenceUnreachable, ConfigError."""

        def ask(session: Connection) -> int:
            before = session.execute(read_epoch(name)).scalar()
            session.execute(delete(FENCE).where(FENCE.c.name == name))
            session.commit()
            return before or 0

        return self._ask(ask)

    def forget_runs(self, name: str, runs: Sequence[str]) -> None:
        """Delete the rows of `runs`, which will not be looked up again. Raises FenceUnreachable."""
        self._write(forget_runs(self._engine, name, runs))

    def done_under(self, name: str, key: str) -> int | None:
        """The epoch under which the run key was completed; None if it was not. Raises FenceUnreachable, ConfigError."""
        done = select(DONE.c.epoch).where(DONE.c.name == name, DONE.c.run_key == key)
        return self._ask(lambda session: session.execute(done).scalar(), reads=True)

    def forget_done(self, name: str, age: float) -> None:
        """Delete run keys that were completed more than `age` seconds ago. Raises FenceUnreachable."""
        before = literal_column(self._backend.now_ms, BigInteger) - bindparam("age", round(age * 1000), BigInteger)
        self._write(delete(DONE).where(DONE.c.name == name, DONE.c.finished < before))

    def _write(self, statement: Executable) -> None:
        def ask(session: Connection) -> None:
            session.execute(statement)
            session.commit()

        self._ask(ask)

    def _ask(
        self,
        ask: Callable[[Connection], _T],
        make_way: Callable[[Connection, float], str] = lambda session, end: "",
        *,
        reads: bool = False,
    ) -> _T:
        """Call `ask` until it answers or the time is over; returns the answer. `make_way` ends what holds a lock, and
        names what still does. `reads`: `ask` writes nothing, and may run on a replica."""
        end, never, blocked_by = self._clock.now() + self._timeout, threading.Event(), ""
        while True:
            try:
                with self._session(end, reads=reads) as session:
                    try:
                        return ask(session)
                    except DBAPIError as error:
                        if not matches(error, self._backend.locked) or error.connection_invalidated:
                            raise
                        session.rollback()
                        blocked_by = make_way(session, end)
                        problem: SQLAlchemyError = error
            except SQLAlchemyError as error:
                problem = error
                if refuses_options(error):
                    raise ConfigError("fence", f"{where_is(self._engine)}: {_NO_OPTIONS}") from error
                if matches(error, self._backend.shape):
                    problem = self._make_tables(end) or error
                elif not self._is_transient(error):
                    raise unreachable(self._engine, error) from error
            except SparkLeaseError:
                raise
            except Exception as error:  # the user's own function that connects may raise anything
                raise FenceUnreachable(where_is(self._engine), f"cannot be asked: {name_of(error)}") from error
            if self._clock.now() >= end:
                too_late = unreachable(self._engine, problem, blocked_by)
                too_late.may_pass = True
                raise too_late from problem
            if not matches(problem, (*self._backend.locked, _SQLITE_LOCKED)):  # those have waited already
                self._clock.wait(never, _RETRY_PAUSE)

    def _is_transient(self, error: SQLAlchemyError) -> bool:
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        # No connection: the server restarts, or another one takes its place.
        code = code_of(error)
        no_way = isinstance(error, OperationalError) and (code is None or code in _NO_CONNECTION)
        if no_way and self._engine.dialect.name != "sqlite" and not matches(error, self._backend.denied):
            return True
        return lost or matches(error, self._backend.locked + TRANSIENT)

    @contextlib.contextmanager
    def _session(self, end: float, *, reads: bool = False) -> Iterator[Connection]:
        """A session that ends after its use. On PostgreSQL the caller commits, elsewhere each statement commits itself.
        On PostgreSQL the settings are local to each transaction: no other client of a pooler may get them."""
        cut_off = SocketWatchdog(max(end - self._clock.now(), _RETRY_PAUSE))
        try:
            with connected(self._engine, end - self._clock.now()) as pooled:
                connection = pooled.execution_options(**self._isolation(reads))
                cut_off.watch(connection.connection.driver_connection)
                connection.detach()
                bounds = self._bounds(end)

                def bind(begun: Connection) -> None:
                    for each in bounds:
                        begun.exec_driver_sql(each).close()

                if self._is_postgres:
                    event.listen(connection, "begin", bind)
                else:
                    bind(connection)
                yield connection
        finally:
            cut_off.disarm()
            cut_off.close()

    def _isolation(self, reads: bool) -> dict[str, Any]:
        if self._is_postgres:
            return {"isolation_level": "READ COMMITTED", "postgresql_readonly": reads}
        # MariaDB, MySQL: `_bounds` sets it, in a statement of SQLAlchemy's, which sees if a pooled session has ended.
        return {"isolation_level": "AUTOCOMMIT"} if self._engine.dialect.name == "sqlite" else {}

    def _bounds(self, end: float) -> tuple[str, ...]:
        left = max(end - self._clock.now(), _RETRY_PAUSE)
        if self._is_postgres:
            grace, bound = (math.ceil(seconds * 1000) for seconds in (_GRACE, left + 2 * _GRACE))
            # The last one: this host may freeze between the claim and its commit, and the next master waits for it.
            limits = {"lock_timeout": grace, "statement_timeout": bound, "idle_in_transaction_session_timeout": bound}
            return (transaction_bounds(limits),)
        if self._engine.dialect.name == "sqlite":
            # Shorter than SQLite's own pauses become: against a busy writer the claim must ask often.
            return (f"PRAGMA busy_timeout = {math.ceil(_GRACE * 1000)}",)
        return (
            "SET SESSION autocommit = 1, completion_type = NO_CHAIN, innodb_lock_wait_timeout = 1, "
            "lock_wait_timeout = 1",  # whole seconds
            # The user's engine, or the server, may read uncommitted rows: those of a frozen transaction must not count.
            # Not READ COMMITTED: it refuses every write if the binary log is statement-based.
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        )

    def _read(self, session: Connection, name: str) -> int:
        epoch = session.execute(read_epoch(name)).scalar()
        if epoch is None:
            return 0
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            problem = f"{FENCE.name} has EPOCH={epoch!r} for {name}, which no lease has: correct it by hand"
            raise FenceUnreachable(where_is(self._engine), problem)
        return epoch

    def _make_way(self, session: Connection, end: float, name: str, epoch: int) -> str:
        if not self._is_postgres:
            return "" if self._engine.dialect.name == "sqlite" else _HELD
        denied = end_older_sessions(session, name, epoch)
        if not denied:
            with self._session(end) as waiting:
                denied = end_holders(session, waiting, name, epoch)
        return denied or (
            "a transaction that cannot be seen from here holds it, or a server process that stands still: see "
            "pg_blocking_pids"
        )

    def _tidy(self, session: Connection, name: str, epoch: int, before: int) -> None:
        """Tidy up after a claim, of which this is no part. Runs of the epoch before may still be looked up."""
        try:
            if self._is_postgres and (denied := end_older_sessions(session, name, epoch)):
                log.warning("%s: %s. It can write nothing more, but may hold locks on rows", name, denied)
            if 0 < before < epoch:
                forgotten = RUN.c.epoch < min(before, epoch - _REMEMBERED)
                session.execute(delete(RUN).where(RUN.c.name == name, forgotten))
                session.commit()
        except DBAPIError as error:
            session.rollback()
            log.debug("%s: not tidied up after the claim: %s", name, error)

    def _make_tables(self, end: float) -> SQLAlchemyError | None:
        """Make the tables; returns the problem, if it may pass. Raises ConfigError if they cannot be made here."""
        try:
            with self._session(end) as session:
                for statement in tables_sql(self._engine.dialect):
                    session.exec_driver_sql(statement)
                    session.commit()
        except SQLAlchemyError as error:
            # IF NOT EXISTS does not exclude another process: the slower one fails on the catalogue's own keys.
            if self._is_transient(error) or matches(error, (*self._backend.duplicate, "1050", "already exists")):
                return error
            raise cannot_be_made(self._engine, error) from error
        return None
