"""The findings of `spark-lease doctor`, and how a check is run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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


def ok(message: str) -> Finding:
    return Finding("", Verdict.OK, message)


def warn(message: str, advice: str) -> Finding:
    return Finding("", Verdict.WARN, message, advice)


def fail(message: str, advice: str) -> Finding:
    return Finding("", Verdict.FAIL, message, advice)


def run(check: Check) -> Finding | None:
    """Run the check. An exception becomes its finding."""
    try:
        found = check.look()
    except ConfigError as error:  # its message says what to do
        found = fail(str(error), "")
    except SparkLeaseError as error:
        found = fail(str(error), NO_ANSWER)
    except Exception as error:  # a check that fails must not hide the others
        found = warn(f"not known: {type(error).__name__}: {error}", "")
    return found and replace(found, what=check.what)
