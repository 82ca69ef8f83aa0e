"""A SQL transaction that commits only while its lease's epoch is the newest, on any SQLAlchemy engine that can fence.

```
with lease.fenced_sql(engine) as connection:     waits until the lease is certain; claims, the first time; begins
    connection.execute(…)                        the caller's statements
                                                 at the end: is this epoch still the newest? COMMIT, in the same step
```
The transaction may complete a run key as well (`Completion`): the key's row is committed with the data, or neither
is. The key is looked up before the transaction, so that no work is done in vain. Its row is the last statement: two
masters cannot both commit it. Afterwards the key is noted beside the lease, where `is_done` looks. If a crash prevents
that, the next contender that finds the row notes it.

It does not stop a writer that does not use it. On PostgreSQL a fenced table does (`triggers.py`).
"""

import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Pool, insert, literal_column
from sqlalchemy.exc import DBAPIError, IntegrityError, ResourceClosedError

from ...config.settings import refuse_run_key
from ...database.dialects import backend_of, code_of, is_mariadb
from ...election.ports import HeldLease
from ...errors import AlreadyDone, Fenced, FenceUnreachable, Loss, SparkLeaseError
from ..refusal import fenced
from .claim import FenceTable, claim
from .commit import NO_SAVEPOINT, REFUSED_BY_THE_BLOCK, NotNewest, ends_of, values_of
from .refusals import LOST, OVER, refuse
from .tables import DONE, RUN, refuse_unknown, where_is

log = logging.getLogger(__name__)

_claimed: WeakKeyDictionary[Pool, set[tuple[str, int]]] = WeakKeyDictionary()
"""The claims of this process, or of its parent. A claim is idempotent, so threads need no lock here. The key is the
pool, which an engine shares with the engines that `execution_options` makes of it."""
_runs: WeakKeyDictionary[Pool, dict[str, list[str]]] = WeakKeyDictionary()
_random = random.Random()
"""Not the kernel's: asking the kernel would release the interpreter lock in every transaction."""
os.register_at_fork(after_in_child=_random.seed)
_NULL = "23502"
_INTERRUPTED = (
    "%s: COMMIT was interrupted: the transaction is committed if spark_lease_fence_run has %s under %d; while its "
    "session lives, that row may still come"
)
_AT_SOME = 1000
"""Number of runs with a known end after which their rows are deleted."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The run key that a transaction completes. It is remembered for `retention` seconds. Raises ConfigError."""

    key: str
    note: Callable[[str, int], None]
    """Notes beside the lease that a run key is done under an epoch."""
    retention: float

    def __post_init__(self) -> None:
        refuse_run_key("completes", self.key)


def transaction(lease: HeldLease, engine: Engine, completes: Completion | None) -> AbstractContextManager[Connection]:
    """A `fenced_sql`, or a `completing_sql` if there is a run key to complete."""
    return completing_sql(lease, engine, completes) if completes else fenced_sql(lease, engine)


@contextmanager
def fenced_sql(lease: HeldLease, engine: Engine) -> Iterator[Connection]:
    """One transaction under `lease`: committed at the end of the block, rolled back if an exception leaves it.

    Raises Fenced if a newer epoch was claimed and LeaseLost if the lease is lost: then nothing was written, unless the
    loss interrupted COMMIT, which is logged. Raises FenceUnreachable if it is not known whether anything was written,
    ConfigError, and the database's own error unless the fence is its reason. If the answer to COMMIT is lost, it looks
    up whether the transaction was committed.
    """
    epoch = lease.wait_certain()
    if epoch == 0:  # enabled = false: nothing is guarded
        with engine.begin() as connection:
            yield connection
        return
    claim_once(lease, engine, epoch)
    run, committing, ends = new_run(), False, ends_of(engine)
    try:
        try:
            yield ends.enter(engine, values_of(lease.name, epoch))
            ends.leave()
            lease.check()
            committing = True
            ends.commit(run)
        except ResourceClosedError:
            if ends.is_lost:
                refuse(LOST)
            raise
        finally:
            ends.close()
        _forget(engine, lease.name, run)
    except (DBAPIError, NotNewest) as error:
        _judge(lease, engine, run if committing else "", error)
    except (KeyboardInterrupt, SystemExit):  # the guard ends the block, or a Ctrl-C: there is no time to ask
        if committing:
            log.warning(_INTERRUPTED, lease.name, run, epoch)
        raise


@contextmanager
def completing_sql(lease: HeldLease, engine: Engine, completes: Completion) -> Iterator[Connection]:
    """A `fenced_sql` that also completes a run key of the lease.

    Raises AlreadyDone if the key is done, under any epoch: then nothing was written. Raises what `fenced_sql` raises.
    """
    if lease.wait_certain() == 0:  # enabled = false: nothing is guarded, and nothing noted
        with fenced_sql(lease, engine) as connection:
            yield connection
        return
    refuse_done(lease, engine, completes)
    completing = False
    try:
        with fenced_sql(lease, engine) as connection:
            yield connection
            completing = True
            now: Any = literal_column(backend_of(engine).now_ms)
            row = insert(DONE).values(name=lease.name, run_key=completes.key, epoch=lease.epoch, finished=now)
            connection.execute(row, execution_options={"schema_translate_map": None})
    except IntegrityError:
        if completing:
            refuse_done(lease, engine, completes)
        raise
    _note(lease, completes, lease.epoch)
    with suppress(Exception):  # any error: the transaction is committed
        FenceTable(engine).forget_done(lease.name, completes.retention)


def new_run() -> str:
    """A unique name for a transaction: 32 hexadecimal digits."""
    return f"{_random.getrandbits(128):032x}"


def claim_once(lease: HeldLease, engine: Engine, epoch: int) -> None:
    """Claim, unless this process has claimed already. Raises what `claim` raises."""
    refuse_unknown(engine)
    known = _claimed.setdefault(engine.pool, set())
    if (lease.name, epoch) not in known:
        try:
            claim(lease, engine)
        except Fenced as error:  # `claim` itself does not lose the lease, but here work has begun
            lease.lose(Loss.FENCED, str(error))
            raise
        known.add((lease.name, epoch))


def _judge(lease: HeldLease, engine: Engine, run: str, error: DBAPIError | NotNewest) -> None:
    """Return if the transaction was committed after all; else raise the reason why it was not."""
    fence_table, where = FenceTable(engine), where_is(engine)
    if run and isinstance(error, DBAPIError) and _may_be_committed(engine, error):
        try:
            if fence_table.was_committed(lease.name, lease.epoch, run):
                return
        except SparkLeaseError as unknown:
            problem = f"the answer to COMMIT was lost; it was committed if spark_lease_fence_run has {run} under "
            problem += f"{lease.epoch} ({unknown})"
            raise FenceUnreachable(where, problem) from error
    try:
        newest = fence_table.newest(lease.name)
    except SparkLeaseError as unknown:
        log.warning("%s: cannot check whether the fence refused it: %s", lease.name, unknown)
        newest = lease.epoch
    if newest > lease.epoch:
        raise fenced(lease, where, newest) from error
    if newest == lease.epoch and isinstance(error, DBAPIError):
        ended_inside = code_of(error) == _NULL and RUN.name in str(error.orig)
        if run and (ended_inside or code_of(error) == NO_SAVEPOINT):
            refuse(OVER)  # the check found another transaction than the block's
        raise error
    _claimed.pop(engine.pool, None)  # the next attempt claims again
    raise FenceUnreachable(where, f"the fence of {lease.name} was cleared meanwhile: nothing was written") from error


def _may_be_committed(engine: Engine, error: DBAPIError) -> bool:
    """True if COMMIT may have taken effect: MariaDB may be interrupted between it and the end of the SQL block."""
    return error.connection_invalidated or (is_mariadb(engine) and code_of(error) != REFUSED_BY_THE_BLOCK)


def _forget(engine: Engine, name: str, run: str) -> None:
    """Forget a run whose end is known: it will not be looked up again."""
    known = _runs.setdefault(engine.pool, {}).setdefault(name, [])
    known.append(run)
    if len(known) >= _AT_SOME:
        done, known[:] = list(known), []
        with suppress(Exception):  # any error: the transaction is committed
            FenceTable(engine).forget_runs(name, done)


def refuse_done(lease: HeldLease, engine: Engine, completes: Completion) -> None:
    """Raise AlreadyDone if the key is done, under any epoch; then it is noted beside the lease too."""
    epoch = FenceTable(engine).done_under(lease.name, completes.key)
    if epoch is not None:
        _note(lease, completes, epoch)
        raise AlreadyDone(lease.name, completes.key, epoch)


def _note(lease: HeldLease, completes: Completion, epoch: int) -> None:
    """Note that the key is done. The row decides: if this fails, the next contender that finds the row notes it."""
    try:
        completes.note(completes.key, epoch)
    except SparkLeaseError as error:
        log.warning("%s: run key %r is done, and not noted beside the lease: %s", lease.name, completes.key, error)
