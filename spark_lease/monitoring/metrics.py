"""Metrics of this process's leases, named in the style of client-go's leader election.

They are in prometheus_client's own registry, for a program that serves it. For a process that is not scraped they go to
a file or to a Pushgateway, if configured. Whether a lease is held is computed when it is read; `GOOD_UNTIL` tells a
live value from one that an ended process has left behind. No lease waits for metrics.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prometheus_client import Counter, Gauge, Histogram, push_to_gateway, write_to_textfile
from prometheus_client.metrics_core import Metric

from ..clock import wall_time
from ..config.settings import Config
from ..errors import ConfigError
from ..holds import GuardedHold

log = logging.getLogger(__name__)

JOB = "spark_lease"
_LABELS = ["lease"]
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, float("inf"))
_LINGER, _BRIEFLY = 2.0, 0.2
"""Seconds that the end of a hold waits until the last numbers are out; fewer after a loss."""

_gauge = partial(Gauge, labelnames=_LABELS)
STATUS = _gauge("spark_lease_master_status", "1 while this process is master")
IN_DOUBT = _gauge("spark_lease_in_doubt", "1 while it is master and a renewal is overdue")
LEFT = _gauge("spark_lease_seconds_left", "seconds until it must stop if no renewal succeeds")
GOOD_UNTIL = _gauge(
    "spark_lease_good_until_timestamp_seconds",
    "time at which seconds_left reaches 0, by this machine's clock; 0: not master",
)
WARM = _gauge("spark_lease_warm_standby", "1 while this process is a standby whose Spark is ready")
EPOCH = _gauge("spark_lease_epoch", "epoch of the last grant to this process")
TRANSITIONS = Counter("spark_lease_transitions", "lease events by kind", [*_LABELS, "to"])
LATENCY = Histogram(
    "spark_lease_renewal_latency_seconds", "time that a renewal request took", _LABELS, buckets=_BUCKETS
)
FAILURES = Counter("spark_lease_renewal_failures", "renewals that were not confirmed", _LABELS)

METRICS = (STATUS, IN_DOUBT, LEFT, GOOD_UNTIL, WARM, EPOCH, TRANSITIONS, LATENCY, FAILURES)

_leases: dict[str, GuardedHold] = {}
"""The leases that are waited for or held, by name."""
_STANDBY = "+standby"
"""No quoted lease name has this ending."""


class _Part:
    """The metrics of one lease that leave the process together. A standby reports only that it is one: the master may
    be on the same machine, and its numbers must not be overwritten."""

    def __init__(self, name: str, metrics: Sequence[Any], suffix: str = "") -> None:
        self._name, self._metrics, self.suffix = name, metrics, suffix

    def collect(self) -> Iterator[Metric]:
        for family in (each for metric in self._metrics for each in metric.collect()):
            mine = Metric(family.name, family.documentation, family.type)
            mine.samples = [each for each in family.samples if each.labels.get("lease") == self._name]
            yield mine


class Report:
    """The metrics of one hold. Only `end` waits. Raises ConfigError if a folder is missing."""

    def __init__(self, config: Config) -> None:
        self._config, self._name = config, config.name
        self._folder = Path(config.metrics_textfile) if config.metrics_textfile else None
        if self._folder and not self._folder.is_dir():
            raise ConfigError("metrics_textfile", f"{self._folder} is no folder: create it")
        self._leaves = bool(self._folder or config.metrics_push)
        self._lease: GuardedHold | None = None
        self._parts: list[_Part] = []
        self._kicked, self._over = threading.Event(), False
        self._failed: set[str] = set()
        self._thread: threading.Thread | None = None

    def begin(self, lease: GuardedHold) -> None:
        """Measure from now on: the wait for the lease begins."""
        name, self._lease = self._name, lease
        _leases.setdefault(name, lease)  # unless another thread of this program waits for it, or has it
        STATUS.labels(name).set_function(lambda: float(_left(name) > 0))
        LEFT.labels(name).set_function(lambda: _left(name))
        GOOD_UNTIL.labels(name).set_function(lambda: left + wall_time() if (left := _left(name)) else 0.0)
        IN_DOUBT.labels(name).set_function(lambda: float(name in _leases and _leases[name].is_in_doubt))

    def standby(self, state: str) -> None:
        WARM.labels(self._name).set(float(state == "warm"))
        if not self._parts:
            self._parts = [_Part(self._name, [WARM], _STANDBY)]
        self._start()

    def held(self, lease: GuardedHold) -> None:
        _leases[self._name] = lease
        WARM.labels(self._name).set(0.0)
        self._parts = [*self._parts, _Part(self._name, [each for each in METRICS if each is not WARM])]
        EPOCH.labels(self._name).set(lease.epoch)
        TRANSITIONS.labels(self._name, "lost").inc(0)  # an alert sees an increase only of a number that is there
        self.count("held")
        self._start()

    def _start(self) -> None:
        self._kicked.set()
        if self._leaves and self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"metrics of {self._name}", daemon=True)
            self._thread.start()

    def count(self, what: str) -> None:
        """Count one more event of the kind `what`."""
        TRANSITIONS.labels(self._name, what).inc()
        self._kicked.set()

    def renewal(self, took: float, done: bool) -> None:
        """Count one renewal that took `took` seconds, `done` if it was confirmed."""
        LATENCY.labels(self._name).observe(took)
        FAILURES.labels(self._name).inc(0 if done else 1)

    def end(self, *, lost: bool) -> None:
        """Write and push the last numbers, then no more."""
        WARM.labels(self._name).set(0.0)
        if _leases.get(self._name) is self._lease:  # else another thread of this program is master by now
            del _leases[self._name]
        self._over = True
        self._kicked.set()
        if self._thread:
            self._thread.join(_BRIEFLY if lost else _LINGER)

    def _run(self) -> None:
        over = False
        while not over:
            self._kicked.clear()
            over = self._over
            self._out()
            self._kicked.wait(self._config.retry_period)

    def _out(self) -> None:
        parts = self._parts
        for part in parts:
            is_out = not self._folder or self._try("metrics_textfile", partial(self._write, part))
            is_pushed = not self._config.metrics_push or self._try("metrics_push", partial(self._push, part))
            if part is not parts[-1] and is_out and is_pushed:  # master: report once that it is no standby any more
                self._parts = parts[-1:]

    def _write(self, part: _Part) -> None:
        assert self._folder
        write_to_textfile(str(self._folder / f"spark_lease_{quote(self._name, safe='')}{part.suffix}.prom"), part)

    def _push(self, part: _Part) -> None:
        group = {"lease": self._name, "instance": f"{self._config.holder or socket.gethostname()}{part.suffix}"}
        push_to_gateway(self._config.metrics_push, JOB, part, grouping_key=group, timeout=self._config.attempt_timeout)

    def _try(self, setting: str, out: Callable[[], None]) -> bool:
        try:
            out()
            self._failed.discard(setting)
            return True
        except Exception as error:  # any error: metrics must not disturb the work
            if setting not in self._failed:
                log.warning("%s: cannot write or push metrics: %s: %s", self._name, setting, error)
            self._failed.add(setting)
            return False


def _left(name: str) -> float:
    return _leases[name].remaining() if name in _leases else 0.0
