"""How a guarded program ended: its exit code, and one JSON line for the program that started it."""

import contextlib
import errno
import json
import logging
import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from .clock import iso_text
from .config.parsers import absolute
from .config.settings import Config
from .config.urls import redacted
from .election.journal_entries import ALREADY_DONE, CRASHED, FAILED, FINISHED, INTERRUPTED
from .errors import (
    AlreadyDone,
    ConfigError,
    Fenced,
    LeaseHeldByOther,
    LeaseLost,
    NotesDenied,
    SparkLeaseError,
    StoreError,
)
from .holds import GuardedHold

log = logging.getLogger(__name__)

STANDBY, MISCONFIGURED = "standby", "misconfigured"
NOT_ANNOUNCED = -1
_LARGEST = 1 << 16
_ANOTHERS = "holds something else, which would be lost"
_WORDS = {
    AlreadyDone: ALREADY_DONE,
    LeaseHeldByOther: STANDBY,
    LeaseLost: "lost",
    Fenced: "lost",
    NotesDenied: MISCONFIGURED,
    StoreError: "unreachable",
    ConfigError: MISCONFIGURED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`outcome`: finished, failed, crashed, interrupted, already done, standby, lost, unreachable, misconfigured; for
    work on a cluster also submitted (this command does not wait for it) and unknown.

    `epoch` 0: never held. `acquired` (by the store's clock) and `released` are UTC; a lease that was not
    released is lost, or runs out. `store`: the URL of the lease store, without a password.
    """

    lease: str
    outcome: str
    exit_code: int
    epoch: int = 0
    holder: str = ""
    reason: str = ""
    run_key: str = ""
    acquired: str = ""
    released: str = ""
    store: str = ""

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def begin_outcome(file: str) -> None:
    """Remove the outcome file of an earlier run: a reader must not take it for this run's. Raises ConfigError."""
    if not file:
        return
    folder = absolute("outcome_file", file).parent
    if not folder.is_dir():
        raise ConfigError("outcome_file", f"the folder of {file} does not exist: create it")
    if problem := _why_not_replaced(file):
        raise ConfigError("outcome_file", f"{file} {problem}: name another")
    try:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "its folder is not writable for this user")
        Path(file).unlink(missing_ok=True)
    except OSError as error:
        if os.path.exists(file):
            with contextlib.suppress(OSError):
                os.truncate(file, 0)
        raise ConfigError("outcome_file", f"{file}: {error.strerror}") from error


def _why_not_replaced(file: str) -> str:
    """Why `file` must not be replaced: a device, pipe or link (/dev/stdout) would be gone for all; "" if it may be."""
    if os.path.lexists(file) and (os.path.islink(file) or not os.path.isfile(file)):
        return "is no ordinary file, and would be replaced"
    try:
        is_ours = announced_epoch(file) != NOT_ANNOUNCED or not _beginning_of(file).strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        return "cannot be read by this user" if isinstance(error, OSError) else _ANOTHERS
    return "" if is_ours else _ANOTHERS


def _beginning_of(file: str) -> str:
    with open(file, encoding="utf-8") as opened:
        return opened.read(_LARGEST)


def announced_epoch(file: str) -> int:
    """The epoch of the outcome in `file` (0: it never held the lease); `NOT_ANNOUNCED` if there is no outcome."""
    try:
        return int(json.loads(_beginning_of(file))["epoch"])
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
        return NOT_ANNOUNCED


def announce(outcome: Outcome, file: str, *, to: TextIO | None = None) -> None:
    """Print the outcome, and write it to the outcome file, if any. A failure to do so does not change the outcome."""
    stdout = to or sys.stdout
    if file and not _why_not_replaced(file):
        draft = f"{file}.{os.getpid()}"
        try:
            Path(draft).write_text(f"{outcome}\n", encoding="utf-8")
            os.replace(draft, file)  # a reader finds the whole file or none
        except OSError as error:
            log.warning("%s: %s cannot be written: %s", outcome.lease, file, error.strerror)
            with contextlib.suppress(OSError):
                os.unlink(draft)
    try:
        stdout.write(f"{outcome}\n")
        stdout.flush()
    except (OSError, ValueError, AttributeError):  # AttributeError: started without stdout
        with contextlib.suppress(OSError, AttributeError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def ending_of(error: BaseException | None) -> tuple[str, str]:
    """How work that raised `error` ended: a word of `journal_entries.GIVEN_BACK`, and details.

    The details never hold the error's message, which may contain a secret.
    """
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return (FAILED, f"exit {code}") if code else (FINISHED, "")
    if isinstance(error, AlreadyDone):
        return ALREADY_DONE, ""
    return (FAILED, type(error).__name__) if error is not None else (FINISHED, "")


def is_all_done(error: BaseException | None, config: Config) -> bool:
    """True if `error` says that all of the work was done before: under its run key, or the key that it named itself.

    A done key of one day among many, or of another lease, is not all of a script's work.
    """
    return isinstance(error, AlreadyDone) and error.name == config.name and config.run_key in ("", error.key)


def is_success(error: BaseException | None) -> bool:
    return ending_of(error)[0] == FINISHED


def ended(lease: GuardedHold, exit_code: int, *, interrupted: bool = False) -> Outcome:
    """The outcome of work that ran and ended, by itself or on a signal."""
    word = INTERRUPTED if interrupted else FAILED if exit_code else FINISHED
    return _of(lease, word, exit_code)


def crashed(lease: GuardedHold, exit_code: int = 128 + signal.SIGKILL, reason: str = "") -> Outcome:
    """The outcome of work that ended without reporting how. An unknown exit code counts as that of SIGKILL."""
    return replace(_of(lease, CRASHED, exit_code), reason=reason)


def refused(
    config: Config | None, error: SparkLeaseError, lease: GuardedHold | None = None, *, name: str = ""
) -> Outcome:
    """The outcome of work that `error` kept from starting, or ended. `name`: the lease, if there is no `config`."""
    word = next((word for kind, word in _WORDS.items() if isinstance(error, kind)), "failed")
    code = exit_code_of(error, config)
    if lease:
        return replace(_of(lease, word, code), reason=str(error))
    return outcome_of(config, word, code, str(error), name=name)


def outcome_of(config: Config | None, word: str, exit_code: int, reason: str = "", *, name: str = "") -> Outcome:
    """The outcome of work that never held the lease, or of which nothing else is known here. `name`: the lease, if
    there is no `config`."""
    if config is None:
        return Outcome(name, word, exit_code, reason=reason)
    store = redacted(config.url)
    return Outcome(config.name, word, exit_code, reason=reason, run_key=config.run_key, store=store)


def _of(lease: GuardedHold, word: str, exit_code: int) -> Outcome:
    fields = {"run_key": lease.run_key, "store": lease.store}
    return Outcome(lease.name, word, exit_code, lease.epoch, lease.holder, **fields, **times_of(lease))


def times_of(lease: GuardedHold | None) -> dict[str, str]:
    """The fields `acquired` and `released` of an Outcome."""
    if lease is None or not lease.epoch:
        return {}
    # An epoch is the time of the grant, in milliseconds.
    released = iso_text(lease.released_at) if lease.released_at else ""
    return {"acquired": iso_text(lease.epoch / 1000), "released": released}


def exit_code_of(error: SparkLeaseError, config: Config | None) -> int:
    """The exit code of a program that ends because of `error`: 75, 69, 78, or a standby's configured one."""
    if isinstance(error, LeaseHeldByOther) and config:
        return 1 if config.if_held == "fail" else config.standby_exit_code
    if isinstance(error, AlreadyDone) and config and config.if_done == "skip":
        return config.standby_exit_code
    return error.exit_code
