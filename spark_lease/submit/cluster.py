"""`spark-lease submit -- --deploy-mode cluster …`: the guard travels with the job, and its outcome comes back.

The driver runs on a machine of the cluster. The package goes there as a zip, the settings as spark.lease.* keys, the
script as a file beside the launcher; no secret is sent. The driver notes its outcome beside the lease: cluster managers
do not return its exit code. A standby waits here, and takes no resources of the cluster.
"""

import contextlib
import logging
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ..clock import BootClock
from ..config.settings import ENV, SECRETS, SPARK, URLS, Config, as_text
from ..config.sources import Resolved, camel
from ..config.urls import redacted, without_password
from ..election.contender import Waits
from ..election.record import new_holder
from ..errors import ConfigError, LeaseHeldByOther, SparkLeaseError, StoreError
from ..journal.standbys import Presence
from ..monitoring.observer import LeaseObserver
from ..outcome import STANDBY, Outcome, announce, outcome_of
from ..system.signals import Interrupted, handled
from .bundle import write_bundle
from .command_line import (
    LAUNCHER,
    SUBMISSION,
    bare_url,
    conf_of,
    find_spark_submit,
    local_file,
    name_of,
    refuse_what_java_misreads,
    value_of,
    without_scheme,
)
from .outcomes import noted_outcome

log = logging.getLogger(__name__)

_NOT_WAITED = ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion")
_AM_WAITS = "spark.yarn.am.waitTime"
"""For how long YARN lets a driver run without a SparkContext; a standby has none."""
_DRIVER_WAITS, _UNWATCHED, _MARGIN = 60.0, 480.0, 100.0
"""Seconds for which a driver may wait that finds the lease taken after all, before this command waits again; or, if
this command does not wait for the driver, before YARN ends it, after ten minutes without a SparkContext."""
_TO_DRIVER = ("spark.yarn.appMasterEnv.", "spark.kubernetes.driver.secretKeyRef.", "spark.kubernetes.driverEnv.")
_PATIENCE = 10.0
"""Seconds that spark-submit gets to end after a signal."""
_LISTEN = 0.5
"""Seconds until a signal is handled that came just before the wait for spark-submit's end."""
_never = threading.Event()


def submit_to_cluster(
    found: Resolved, spark_submit: str, options: Sequence[str], script: str, rest: Sequence[str]
) -> int:
    """Submit; returns the driver's exit code once it has ended. Raises ConfigError, and errors that prevent it."""
    config, clock = found.config, BootClock()
    end = clock.now() + config.acquire_timeout
    with tempfile.TemporaryDirectory(prefix="spark-lease-") as folder, handled(_on_signal):
        try:
            job = _Job(found, spark_submit, options, script, rest, Path(folder))
            while True:
                _stand_by(config, end)
                outcome = job.run(max(end - clock.now(), 0.0))
                if outcome.outcome != STANDBY or config.if_held != "wait" or clock.now() >= end:
                    break
        except Interrupted as interrupted:
            reason = "if the application was submitted, it still runs in the cluster: stop it there"
            log.warning("%s: %s", config.name, reason)
            outcome = outcome_of(config, "interrupted", 128 + interrupted.args[0], reason=reason)
    announce(outcome, config.outcome_file)
    return outcome.exit_code


def _on_signal(number: int, _: object) -> None:
    raise Interrupted(number)


def _stand_by(config: Config, end: float) -> None:
    """Wait here, where that takes no resources of the cluster. Guards nothing: the driver takes the lease.

    Raises LeaseHeldByOther and AlreadyDone; StoreError if a store that answered once does not answer again until `end`.
    """
    clock, observer, why, waits = BootClock(), LeaseObserver(config), "", config.if_held == "wait"
    waiting = Waits()
    with closing(Presence(config, clock, holder=new_holder(_label(config)))) as presence:
        while True:
            left = max(end - clock.now(), 0.0)
            try:
                observer.refuse_known(again=waits)
                return
            except LeaseHeldByOther as held:
                if not waits or not left:
                    raise
                why = held.why or f"{held.holder} is master"
                waiting.say(clock.now(), why, "%s: standby, %s", config.name, why)
            except (StoreError, ConfigError):  # "don't know" is not "no": the driver may reach a store that we do not
                if not why:
                    return
                if not left:
                    raise
            presence.say()
            clock.wait(_never, min(config.poll_period, left))


class _Job:
    """One submission, repeated if need be. Raises ConfigError, before anything is sent, for what cannot work."""

    def __init__(
        self,
        found: Resolved,
        spark_submit: str,
        options: Sequence[str],
        script: str,
        rest: Sequence[str],
        folder: Path,
    ) -> None:
        self._config, self._options, self._rest = found.config, options, rest
        _refuse_cluster(options, found.config)
        self._command, self._environ = find_spark_submit(spark_submit)
        if "PYSPARK_PYTHON" not in os.environ:  # the Python of this machine is not the cluster's
            del self._environ["PYSPARK_PYTHON"]
        self._settings = _settings(found)
        # All files of an application are in one folder: no script may have the launcher's name.
        self._launcher = str(shutil.copy(LAUNCHER, folder / "spark_lease_launcher.py"))
        self._arguments = [*name_of(script, options), *options]
        self._arguments += _with(
            options, "--py-files", "spark.submit.pyFiles", str(write_bundle(folder / "spark_lease.zip"))
        )
        self._script = without_scheme(script, "local")
        if self._script == script:
            source = script if "://" in script else str(local_file(script))
            self._arguments += _with(options, "--files", "spark.files", source)
            self._script = Path(source).name

    def run(self, left: float) -> Outcome:
        """Submit, and wait for the end if spark-submit does; `left`: remaining seconds of `acquire_timeout`."""
        submission = f"{self._config.name}-{secrets.token_hex(8)}"
        is_waited_for = all(conf_of(self._options).get(key, "true").lower() != "false" for key in _NOT_WAITED)
        waits = min(left, _DRIVER_WAITS if is_waited_for else _UNWATCHED)
        settings = self._settings | {SPARK + camel("acquire_timeout"): str(waits)}
        if _AM_WAITS not in conf_of(self._options):  # only YARN knows this setting
            settings[_AM_WAITS] = f"{waits + self._config.lease_duration + _MARGIN:.0f}s"
        flags = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        launched = [self._launcher, SUBMISSION, submission, self._script, *self._rest]
        refuse_what_java_misreads([*self._arguments, *flags])
        code = _call([self._command, *self._arguments, *flags, *launched], self._environ)
        if not is_waited_for and not code:
            return outcome_of(self._config, "submitted", 0)
        if not self._config.enabled:
            word = "failed" if code else "finished"
            return outcome_of(self._config, word, code)
        return self._noted(submission, code)

    def _noted(self, submission: str, code: int) -> Outcome:
        config = self._config
        try:
            if noted := noted_outcome(replace(config, create_table="false"), BootClock(), submission):
                return noted
            exit_code, why = code or 1, f"spark-submit ended with {code}, and the driver noted no outcome"
        except SparkLeaseError as error:
            exit_code, why = error.exit_code, f"spark-submit ended with {code}; {error}"
        reason = f"{why}: spark-lease history {shlex.quote(config.name)} says who held the lease"
        log.error("%s: %s", config.name, reason)
        return outcome_of(config, "unknown", exit_code, reason=reason)


def _with(options: Sequence[str], flag: str, key: str, file: str) -> list[str]:
    """`flag` with `file` and the user's files, given by `flag` or by `key`: of two flags only the last counts."""
    return [flag, ",".join([file, *filter(None, [value_of(options, flag, key)])])]


_HERE_ALONE = SECRETS | {"outcome_file"}


def _settings(found: Resolved) -> dict[str, str]:
    """The settings that the driver does not find on its machine and does not get in another way."""
    here = [key for key, origin in found.origins.items() if origin not in ("default", "spark conf")]
    given = {key: getattr(found.config, key) for key in here if key not in _HERE_ALONE}
    given |= {key: bare_url(key, url)[0] for key, url in given.items() if key in URLS}
    settings = {SPARK + camel(key): as_text(value) for key, value in given.items()}
    return settings | {SPARK + "holder": _label(found.config)}


def _label(config: Config) -> str:
    """The holder's label: the contender is this scheduler, on whatever machine its driver runs."""
    return config.holder or socket.gethostname()


def _refuse_cluster(options: Sequence[str], config: Config) -> None:
    """Raise ConfigError for what cannot work in a cluster."""
    if value_of(options, "--master", "spark.master").startswith("spark:"):
        raise ConfigError("submit", "a standalone cluster runs no Python driver: use --deploy-mode client")
    if not config.enabled:
        return
    if config.url.startswith("sqlite"):
        raise ConfigError("url", f"{redacted(config.url)} is a file of this machine, and the driver runs on another")
    given = [key.removeprefix(prefix) for key in conf_of(options) for prefix in _TO_DRIVER if key.startswith(prefix)]
    here = {key for key in SECRETS if getattr(config, key)}
    here |= {secret for url, secret in URLS.items() if without_password(getattr(config, url))[1]}
    for key in sorted(here):
        name = ENV + key.upper()
        if name not in given:
            raise ConfigError(
                key,
                "is known here and does not travel with the job. Kubernetes: --conf "
                f"spark.kubernetes.driver.secretKeyRef.{name}=SECRET:KEY. YARN: spark.yarn.appMasterEnv.{name} in a "
                "--properties-file, or ~/.pgpass on the cluster's machines and none here",
            )


def _call(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run spark-submit and return its exit code; ends it after a signal."""
    process = subprocess.Popen(command, env=environ)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_LISTEN)
    except Interrupted:
        process.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
        finally:  # after a second signal, or if it has not ended
            process.kill()
        raise
