"""Every error that spark_lease raises, with the next action of the reader.

SparkLeaseError
├── ConfigError            a setting is wrong: correct the key that it names
├── LeaseHeldByOther       another contender is master: wait, skip or fail, as the settings say
├── LeaseLost              this process is no longer master: stop now and write nothing more
├── AlreadyDone            another run has finished the run key: nothing is left to do
├── Fenced                 the guarded store knows a newer epoch and refused a write: stop, as after LeaseLost
├── NotMaster              a warm standby tried to write: write in the guarded code, only read in the warm-up
└── StoreError             the lease store did not answer, so the master is not known: try again
    ├── NotesDenied        this user may not read or write the notes beside the leases: grant the rights
    ├── FenceUnreachable   the fence of a guarded store could not be claimed or read: read its message, try again
    ├── StagingLost        some of the rows staged for a write are missing: nothing was written, try again
    ├── LockGone           the lock beside the record is certainly gone: stop
    └── RecordUnreadable   the answer is not a lease record: a person must look at the row

A store returns "no" ("held by another") as a value. An exception of a store always means "don't know".
"""

from enum import StrEnum
from typing import ClassVar


class SparkLeaseError(Exception):
    """The root. `exit_code`: the exit code for a program that ends because of it (from sysexits.h where one fits)."""

    exit_code: ClassVar[int] = 1


class ConfigError(SparkLeaseError):
    """The setting `key` cannot be used; `problem` says why and what to do."""

    exit_code = 78

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}"


class LeaseHeldByOther(SparkLeaseError):
    """`holder` has the lease `name` for at least `expires_in` more seconds unless it releases it; or the lease is free,
    and `why` names the pause or transfer that keeps it free."""

    exit_code = 99

    def __init__(self, name: str, holder: str, expires_in: float, why: str = "") -> None:
        super().__init__(name, holder, expires_in, why)
        self.name, self.holder, self.expires_in, self.why = name, holder, expires_in, why

    def __str__(self) -> str:
        if self.why:
            return f"{self.name}: {self.why}"
        return f"{self.name}: {self.holder} is master (its lease has {max(self.expires_in, 0.0):.1f} s left)"


class Loss(StrEnum):
    """Why a lease was lost."""

    EXPIRED = "expired"
    """It could not be renewed in time."""
    TAKEN = "taken"
    """The store says that another contender has it, or that it is free."""
    UNREADABLE = "unreadable"
    """The row, its table or its columns are gone or hold garbage."""
    LOCK_GONE = "lock-gone"
    """The session or the file that held the lock beside the record has ended."""
    ORPHANED = "orphaned"
    """The process that started this driver is gone, so none would ever end it."""
    SPARK_GONE = "spark-gone"
    """The driver's JVM ended."""
    KEEPER_GONE = "keeper-gone"
    """The keeper process ended, and the kernel did not end this process with it."""
    FENCED = "fenced"
    """The guarded store knows a newer epoch."""
    PREEMPTED = "preempted"
    """An operator paused it, or transferred it to another contender."""
    RELEASED = "released"
    """Its holder released it."""


class LeaseLost(SparkLeaseError):
    """The lease `name` was lost for `reason`; `epoch` is that of the lost hold (0: it never had one)."""

    exit_code = 75

    def __init__(self, name: str, epoch: int, reason: Loss, detail: str = "") -> None:
        super().__init__(name, epoch, reason, detail)
        self.name, self.epoch, self.reason, self.detail = name, epoch, reason, detail

    def __str__(self) -> str:
        return f"{self.name}: lease lost ({self.reason}), epoch {self.epoch}" + (
            f": {self.detail}" if self.detail else ""
        )


class Fenced(SparkLeaseError):
    """`where` is claimed under epoch `newest` of lease `name`, and this process has `epoch`: nothing was written.

    Most often another contender has become master meanwhile. `newest` 0: not known. `advice` says what to do if the
    cause may be another one.
    """

    exit_code = 75

    def __init__(self, name: str, where: str, epoch: int, newest: int, advice: str = "") -> None:
        super().__init__(name, where, epoch, newest, advice)
        self.name, self.where, self.epoch, self.newest, self.advice = name, where, epoch, newest, advice

    def __str__(self) -> str:
        claimed = f"claimed under epoch {self.newest}" if self.newest else "claimed under another epoch"
        message = f"{self.name}: fenced, {self.where} was {claimed} and mine is {self.epoch}: nothing was written"
        return f"{message}. {self.advice}" if self.advice else message


class NotMaster(SparkLeaseError):
    """A standby of the lease `name`, or its warm-up, tried to write to `where`: nothing was written."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(name, where)
        self.name, self.where = name, where

    def __str__(self) -> str:
        return f"{self.name}: {self.where} was not written: a standby and its warm_up may only read"


class AlreadyDone(SparkLeaseError):
    """The run key `key` of lease `name` was finished under `epoch`: nothing was started."""

    exit_code = 0

    def __init__(self, name: str, key: str, epoch: int) -> None:
        super().__init__(name, key, epoch)
        self.name, self.key, self.epoch = name, key, epoch

    def __str__(self) -> str:
        return f"{self.name}: run key {self.key!r} was done under epoch {self.epoch}"


class StoreError(SparkLeaseError):
    """The lease store at `where` (no credentials) gave no usable answer; the request may have taken effect."""

    exit_code = 69

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"lease store {self.where}: {self.problem}"


class NotesDenied(StoreError):
    """The lease store at `where` does not let this user read or write the notes beside the leases."""

    exit_code = 78


class FenceUnreachable(StoreError):
    """The guarded store at `where` (no credentials) gave no usable answer about its fence; nothing was begun."""

    may_pass = False
    """True if retrying may help: no connection could be opened, or a lock was in the way."""

    def __str__(self) -> str:
        return f"fence in {self.where}: {self.problem}"


class StagingLost(StoreError):
    """Rows staged for a write to the database at `where` (no credentials) are missing; nothing was written."""

    def __str__(self) -> str:
        return f"staged rows in {self.where}: {self.problem}: nothing was written, try again"


class LockGone(StoreError):
    """The lock that a holder keeps beside its record is certainly gone."""

    loss = Loss.LOCK_GONE


class RecordUnreadable(StoreError):
    """The store answered, but the record at `where` cannot be trusted. It is left as it is."""

    loss = Loss.UNREADABLE
