"""What a check of `spark-lease doctor` finds, and how one is run."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ..errors import ConfigError, SparkLeaseError

NO_ANSWER = "see what it says"
"""The advice where a check was not answered."""


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, and will not always; or that is not known."""
    FAIL = "fail"
    SKIP = "skip"
    """Not looked at, because of another finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` is what to do, where something is to be done."""

    what: str
    verdict: Verdict
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """`look` gives None where there is nothing to be looked at. `needs` names the check before it that has to be ok:
    "store", "table"; empty for none."""

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
    """Make the check. If it raises, that is what it found."""
    try:
        return check.look()
    except ConfigError as error:  # its words say what to do
        return fail(check.what, str(error), "")
    except SparkLeaseError as error:
        return fail(check.what, str(error), NO_ANSWER)
    except Exception as error:  # a check that fails must not hide the others
        return warn(check.what, f"not known: {type(error).__name__}: {error}", "")
