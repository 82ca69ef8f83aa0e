"""Every error that spark_lease raises, with the reader's next action.

SparkLeaseError
├── ConfigError            a setting is wrong: correct the key that it names
├── LeaseHeldByOther       another contender is master: wait, skip or fail, as you were told
├── LeaseLost              I was the master and must stop now: write nothing more
├── AlreadyDone            the run key was finished by another run: there is nothing to do
├── Fenced                 the guarded store refused a write of mine, because it knows a newer epoch: the same
├── NotMaster              a warm standby tried to write: do that in the guarded code, and only read in its warm-up
└── StoreError             the lease store gave no answer: it is not known who is master; try again
    ├── NotesDenied        this user may not read or write what is noted beside the leases: have the rights granted
    ├── FenceUnreachable   a guarded store did not let its fence be claimed or looked at: see what it says, try again
    ├── StagingLost        rows that were staged for a write are not all there: nothing was written, try again
    ├── LockGone           the lock beside the record is gone for certain: stop
    └── RecordUnreadable   it answered something that is no lease: a person must look at the row

"No" is never an exception below this line: a store that says "held by another" returns that.
An exception from a store always means "don't know".
"""

from enum import StrEnum
from typing import ClassVar


class SparkLeaseError(Exception):
    """The root. `exit_code` is what a program should end with because of it (sysexits.h where one fits)."""

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
    """`holder` has the lease `name`, for at least `expires_in` more seconds unless it releases; or it has no holder
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
    """What started this driver is gone, so no process would ever end it."""
    SPARK_GONE = "spark-gone"
    """The driver's JVM ended."""
    KEEPER_GONE = "keeper-gone"
    """The process that kept it ended, and the kernel did not end us with it."""
    FENCED = "fenced"
    """The guarded store knows a newer epoch than mine."""
    PREEMPTED = "preempted"
    """An operator has paused it now, or given it to another."""
    RELEASED = "released"
    """I gave it back."""


class LeaseLost(SparkLeaseError):
    """The lease `name` is not mine any more, for `reason`; `epoch` is the one I held (0: none yet)."""

    exit_code = 75

    def __init__(self, name: str, epoch: int, reason: Loss, detail: str = "") -> None:
        super().__init__(name, epoch, reason, detail)
        self.name, self.epoch, self.reason, self.detail = name, epoch, reason, detail

    def __str__(self) -> str:
        return f"{self.name}: lease lost ({self.reason}), epoch {self.epoch}" + (
            f": {self.detail}" if self.detail else ""
        )


class Fenced(SparkLeaseError):
    """`where` has been claimed under epoch `newest` of lease `name`, and mine is `epoch`: nothing was written.

    Most often another is master, and this process only thought that it still was. `newest` 0: not known. `advice` says
    what to do where it may be otherwise.
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
    """`where` was to be written to by a standby of the lease `name`, or by its warm-up: nothing was written."""

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
    """The lease store at `where` (no credentials) gave no usable answer; what was asked may have taken effect."""

    exit_code = 69

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"lease store {self.where}: {self.problem}"


class NotesDenied(StoreError):
    """The lease store at `where` does not let this user read or write what is noted beside the leases."""

    exit_code = 78


class FenceUnreachable(StoreError):
    """The guarded store at `where` (no credentials) gave no usable answer about its fence; nothing was begun."""

    may_pass = False
    """Another try may be answered: no connection was to be had, or a lock was in the way."""

    def __str__(self) -> str:
        return f"fence in {self.where}: {self.problem}"


class StagingLost(StoreError):
    """What was staged for a write to the database at `where` (no credentials) is not whole; nothing was written."""

    def __str__(self) -> str:
        return f"staged rows in {self.where}: {self.problem}: nothing was written, try again"


class LockGone(StoreError):
    """What a holder keeps besides its record, for as long as it lives, is its own no more."""

    loss = Loss.LOCK_GONE


class RecordUnreadable(StoreError):
    """The store answered, but `where` holds no lease that can be trusted. It is left as it is."""

    loss = Loss.UNREADABLE
