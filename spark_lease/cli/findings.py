"""The findings of `spark-lease doctor`, and how a check is run."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ..errors import ConfigError, SparkLeaseError

NO_ANSWER = "see what it says"
"""The advice if the store did not answer a check."""


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works now, but will not always; or that is not known."""
    FAIL = "fail"
    SKIP = "skip"
    """Not checked, because of another finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `advice`: what to do; empty if nothing."""

    what: str
    verdict: Verdict
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """`look` returns None if there is nothing to check. `needs` names the earlier check that must be ok: "store",
    "table"; empty for none."""

    what: str
    look: Callable[[], Finding | None]
    needs: str = ""


def ok(what: str, message: str) -> Finding:
    return Finding(what, Verdict.OK, message)


def warn(what: str, message: str, advice: str) -> Finding:
    return Finding(what, Verdict.WARN, message, advice)


def fail(what: str, message: str, advice: str) -> Finding:
    return Finding(what, Verdict.FAIL, message, advice)


def run(check: Check) -> Finding | None:
    """Run the check. An exception becomes its finding."""
    try:
        return check.look()
    except ConfigError as error:  # its message says what to do
        return fail(check.what, str(error), "")
    except SparkLeaseError as error:
        return fail(check.what, str(error), NO_ANSWER)
    except Exception as error:  # a check that fails must not hide the others
        return warn(check.what, f"not known: {type(error).__name__}: {error}", "")
