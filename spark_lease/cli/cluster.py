"""`spark-lease submit -- --deploy-mode cluster …`: the guard travels with the job, and its outcome comes back.

The driver runs on a machine of the cluster. The package goes there as a zip, the settings as spark.lease.* keys, the
script as a file beside the launcher; no secret does. How the driver ended is read from beside the lease: cluster
managers do not hand its exit code back.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..clock import BootClock
from ..config import ENV, SECRETS, SPARK, URLS, Config, Resolved, camel, has_password, redacted
from ..errors import AlreadyDone, ConfigError, LeaseHeldByOther, SparkLeaseError
from ..lookout import Lookout
from ..outcome import Outcome, announce
from ..spark.launcher import SUBMISSION
from ..submissions import noted_outcome
from .bundle import write_bundle
from .spark_submit import LAUNCHER, conf_of, find_spark_submit, local_file, name_of, value_of

log = logging.getLogger(__name__)

_NOT_WAITED = ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion")
_AM_WAITS = "spark.yarn.am.waitTime"
"""For how long YARN lets a driver be without a SparkContext, which a standby is."""
_LONG, _SOON = 365 * 86400, 100
_TO_DRIVER = ("spark.yarn.appMasterEnv.", "spark.kubernetes.driver.secretKeyRef.", "spark.kubernetes.driverEnv.")


def submit_to_cluster(
    found: Resolved, spark_submit: str, options: Sequence[str], script: str, rest: Sequence[str]
) -> int:
    """The driver's exit code, once it has ended. Raises ConfigError if the submission cannot be made."""
    config = found.config
    _refuse_cluster(options, config)
    left = _stand_by(config)
    command, environ = find_spark_submit(spark_submit)
    if "PYSPARK_PYTHON" not in os.environ:  # that of this machine is none of the cluster's
        del environ["PYSPARK_PYTHON"]
    submission = f"{config.name}-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="spark-lease-") as folder:
        words = with_added(
            options, "--py-files", "spark.submit.pyFiles", str(write_bundle(Path(folder, "spark_lease.zip")))
        )
        there = script.removeprefix("local://")
        if there == script:
            words, there = with_added(words, "--files", "spark.files", _source(script)), Path(script).name
        told = _settings(found, options, left)
        settings = [word for key, value in told.items() for word in ("--conf", f"{key}={value}")]
        # All files of an application lie in one folder: no script may be called as this one is.
        launcher = shutil.copy(LAUNCHER, Path(folder, "spark_lease_launcher.py"))
        launched = [str(launcher), SUBMISSION, submission, there, *rest]
        code, signalled = _run([command, *name_of(script, options), *words, *settings, *launched], environ)
    outcome = _outcome(config, submission, code, signalled=signalled, waited=_is_waited_for(options))
    announce(outcome)
    return outcome.exit_code


def with_added(options: Sequence[str], flag: str, key: str, file: str) -> list[str]:
    """The options with `file` first in the list of files that `flag`, or else the setting `key`, is."""
    files = [file, *filter(None, [value_of(options, flag, key)])]
    return [*options, flag, ",".join(files)]  # spark-submit takes the last


def _source(script: str) -> str:
    return script if "://" in script else str(local_file(script))


def _stand_by(config: Config) -> float:
    """Wait where that costs nothing, which is here; seconds that are left of `acquire_timeout`.

    Guards nothing: the driver takes the lease. Raises LeaseHeldByOther and AlreadyDone.
    """
    clock, lookout, said, never = BootClock(), Lookout(config), "", threading.Event()
    start, waits = clock.now(), config.if_held == "wait"
    while True:
        left = max(start + config.acquire_timeout - clock.now(), 0.0)
        try:
            lookout.refuse_known(again=waits)
            return left
        except LeaseHeldByOther as held:
            if not waits or not left:
                raise
            if said != (said := held.why or f"{held.holder} is master"):
                log.info("%s: standby, %s", config.name, said)
        except AlreadyDone:
            raise
        except SparkLeaseError:  # don't know is not no: the driver finds out
            return left
        clock.wait(never, min(config.poll_period, left))


def _settings(found: Resolved, options: Sequence[str], left: float) -> dict[str, str]:
    """What the driver has to be told that it does not find on its machine, or is told already."""
    here = [key for key, origin in found.origins.items() if origin not in ("default", "spark conf")]
    told = {SPARK + camel(key): _as_text(key, getattr(found.config, key)) for key in here if key not in SECRETS}
    told[SPARK + camel("acquire_timeout")] = str(left)
    if value_of(options, "--master", "spark.master") == "yarn" and _AM_WAITS not in conf_of(options):
        told[_AM_WAITS] = f"{min(left, _LONG) + _SOON:.0f}s"
    return told


def _as_text(key: str, value: Any) -> str:
    if key in URLS:
        bare = str(value).replace(f":{urlsplit(value).password}@", "@")
        if has_password(bare):
            raise ConfigError(key, f"carries a password as a parameter: use {ENV}{URLS[key].upper()} or PGPASSWORD")
        return bare
    if isinstance(value, Mapping):
        return json.dumps(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _refuse_cluster(options: Sequence[str], config: Config) -> None:
    """Raise ConfigError for what cannot work: before anything is sent anywhere."""
    master = value_of(options, "--master", "spark.master")
    if master.startswith("spark:"):
        raise ConfigError("submit", "a standalone cluster runs no Python driver: use --deploy-mode client")
    if config.url.startswith("sqlite"):
        raise ConfigError("url", f"{redacted(config.url)} is a file of this machine, and the driver runs on another")
    given = [key.removeprefix(prefix) for key in conf_of(options) for prefix in _TO_DRIVER if key.startswith(prefix)]
    here = {key for key in SECRETS if getattr(config, key)}
    here |= {secret for url, secret in URLS.items() if urlsplit(getattr(config, url)).password}
    for key in sorted(here):
        name = ENV + key.upper()
        if name not in given and not value_of(options, "--properties-file"):
            raise ConfigError(
                key,
                "is known here and does not travel with the job. Kubernetes: --conf "
                f"spark.kubernetes.driver.secretKeyRef.{name}=SECRET:KEY. YARN: spark.yarn.appMasterEnv.{name} in a "
                "--properties-file, or ~/.pgpass on the cluster's machines and none here",
            )


def _run(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, int]:
    """spark-submit's exit code, and the signal that told us to end it, or 0. The application outlives it."""
    told: list[int] = []
    process = subprocess.Popen(command, env=environ)

    def on_signal(number: int, _: object) -> None:
        told.append(number)
        process.terminate()

    old = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        return process.wait(), told[0] if told else 0
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _is_waited_for(options: Sequence[str]) -> bool:
    conf = conf_of(options)
    return all(conf.get(key, "true").lower() != "false" for key in _NOT_WAITED)


def _outcome(config: Config, submission: str, code: int, *, signalled: int, waited: bool) -> Outcome:
    if signalled:
        reason = "the application goes on in the cluster: end it there"
        print(f"spark-lease: {reason}", file=sys.stderr)
        return Outcome(config.name, "interrupted", 128 + signalled, reason=reason, run_key=config.run_key)
    if not waited and not code:
        return Outcome(config.name, "submitted", 0, run_key=config.run_key)
    try:
        noted = noted_outcome(replace(config, create_table="false"), BootClock(), submission)
        why = "its driver was killed, or never started" if noted is None else ""
    except SparkLeaseError as error:
        noted, why = None, str(error)
    if noted:
        return noted
    reason = f"no outcome is noted beside the lease: {why}. spark-lease history {config.name} says who held it"
    print(f"spark-lease: {reason}", file=sys.stderr)
    return Outcome(config.name, "unknown", code or 1, reason=reason, run_key=config.run_key)
