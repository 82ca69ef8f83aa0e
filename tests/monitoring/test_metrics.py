"""Metrics: what a hold counts, whoever keeps it, and how that leaves a process that nobody scrapes."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from spark_lease import ConfigError, LeaseEvent, LeaseHeldByOther, LeaseLost, hold_lease
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.holds import open_contender
from spark_lease.monitoring.events import open_events
from spark_lease.monitoring.metrics import METRICS
from spark_lease.testing import MemoryStore, VirtualClock
from tests.support.command import COMMAND
from tests.support.drivers import until
from tests.support.policy import Contender

ALERTS = Path(__file__).parents[2] / "conf" / "prometheus_alerts.yml"


def value(name: str, **labels: str) -> float:
    """As a scrape of this process would find it."""
    return REGISTRY.get_sample_value(f"spark_lease_{name}", {"lease": "n"} | labels) or 0.0


def written(text: str) -> dict[str, float]:
    """By name, and for transitions by what happened."""
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    assert {each.labels["lease"] for each in samples} == {"n"}
    return {each.name.removeprefix("spark_lease_") + each.labels.get("to", ""): each.value for each in samples}


# The block is interrupted wherever it is: maybe where the client library has just opened a file of /proc.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_a_hold_is_counted_whoever_keeps_it(url: str, keeper: str) -> None:
    database = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    before = {each: value(each) for each in ("renewal_latency_seconds_count", "renewal_failures_total")}
    lost_before = value("transitions_total", to="lost")
    settings: dict[str, Any] = {"url": url, "lease_duration": 6, "keeper": keeper, "on_lost": "stop", "metrics": True}
    with pytest.raises(LeaseLost):
        with hold_lease("n", **settings) as lease:
            assert (value("master_status"), value("epoch")) == (1.0, lease.epoch)
            counted = REGISTRY.get_sample_value("spark_lease_transitions_total", {"lease": "n", "to": "lost"})
            assert counted == lost_before, "it is there before the loss: else no alert sees an increase"
            assert 0 < value("seconds_left") <= 3
            until(lambda: value("renewal_latency_seconds_count") > before["renewal_latency_seconds_count"])
            assert value("renewal_failures_total") == before["renewal_failures_total"]
            database.execute("BEGIN EXCLUSIVE")
            until(lambda: value("in_doubt"))
            assert value("master_status") == 1
            until(lambda: value("renewal_failures_total") > before["renewal_failures_total"])
            until(lambda: not value("master_status"))
            until(lambda: value("transitions_total", to="lost") == lost_before + 1)
    database.close()
    assert value("good_until_timestamp_seconds") == value("seconds_left") == value("in_doubt") == 0


def test_a_standby_is_no_master(url: str) -> None:
    with closing(open_contender(configure(name="n", url=url), BootClock())) as master:
        master.acquire()
        with pytest.raises(LeaseHeldByOther):
            hold_lease("n", url=url, if_held="skip", metrics=True).__enter__()
        assert value("master_status") == 0


def test_a_warm_standby_is_counted_until_it_is_master(url: str, clock: VirtualClock, store: MemoryStore) -> None:
    events = open_events(configure(name="n", url=url, metrics=True))
    lease = Contender(clock, store).lease
    events.begin(lease)
    for state, is_warm in (("warming up", 0), ("warm", 1), ("cold", 0), ("warm", 1)):
        events.standby(lease, state)
        assert value("warm_standby") == is_warm
    lease.acquire()
    events.held(lease)
    assert value("warm_standby") == 0
    events.end()


def test_a_standby_beside_the_master_leaves_its_numbers_alone(
    url: str, tmp_path: Path, clock: VirtualClock, store: MemoryStore
) -> None:
    settings: dict[str, Any] = {"name": "n", "url": url, "metrics_textfile": str(tmp_path), "retry_period": 0.05}
    config, file, beside = (
        configure(**settings),
        tmp_path / "spark_lease_n.prom",
        tmp_path / "spark_lease_n+standby.prom",
    )
    with hold_lease("n", url=url, metrics_textfile=str(tmp_path), keeper="thread"):
        until(lambda: file.exists() and written(file.read_text())["master_status"] == 1)
        events, lease = open_events(config), Contender(clock, store).lease
        events.begin(lease)
        events.standby(lease, "warm")
        until(lambda: beside.exists() and written(beside.read_text()) == {"warm_standby": 1})
        assert (value("master_status"), written(file.read_text())["master_status"]) == (1, 1)
    assert "warm_standby" not in written(file.read_text()), "a series in two files is refused by the collector"
    lease.acquire()
    events.held(lease)
    until(lambda: written(beside.read_text()) == {"warm_standby": 0})
    events.end()


def test_a_file_for_the_textfile_collector_outlives_the_job(url: str, tmp_path: Path) -> None:
    file = tmp_path / "out" / "spark_lease_n.prom"
    file.parent.mkdir()
    flags = ["--lease", "n", "--url", url, "--metrics-textfile", str(file.parent), "--lease-duration", "4"]
    inside = f"import time, pathlib; time.sleep(1.5); print(pathlib.Path({str(file)!r}).read_text())"
    done = subprocess.run(
        [COMMAND, "run", *flags, "--", sys.executable, "-c", inside], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    during, after = written(done.stdout.rpartition("{")[0]), written(file.read_text())
    assert (during["master_status"], after["master_status"]) == (1, 0)
    assert during["good_until_timestamp_seconds"] > 1.7e9 and after["good_until_timestamp_seconds"] == 0
    assert during["renewal_latency_seconds_count"] >= 1
    assert (after["transitions_totalheld"], after["transitions_totalfinished"]) == (1, 1)
    assert after["epoch"] == during["epoch"]
    assert list(file.parent.iterdir()) == [file]


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    pushed: list[tuple[str, bytes]] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            pushed.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Not on standard error."""

    server = HTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", pushed
    server.shutdown()
    server.server_close()


def test_metrics_are_pushed_as_it_changes(url: str, gateway: tuple[str, list[tuple[str, bytes]]]) -> None:
    where, pushed = gateway
    with hold_lease("n", url=url, metrics_push=where, holder="site-a", keeper="thread"):
        until(lambda: pushed)
    assert {path for path, _ in pushed} == {"/metrics/job/spark_lease/instance/site-a/lease/n"}
    first, last = written(pushed[0][1].decode()), written(pushed[-1][1].decode())
    assert (first["master_status"], last["master_status"]) == (1, 0)


def test_a_gateway_that_is_down_disturbs_nobody(url: str, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"metrics_push": "http://127.0.0.1:1", "keeper": "thread", "retry_period": 0.1}
    with hold_lease("n", url=url, **settings) as lease:
        until(lambda: "cannot write or push metrics: metrics_push" in caplog.text)
        lease.check()
    assert caplog.text.count("cannot write or push metrics") == 1, "said once"


@pytest.mark.parametrize(
    ("setting", "wrong", "says"),
    [
        ("metrics_push", "gateway:9091", "not a URL like"),
        ("metrics_push", "http://user:hunter2@gateway:9091", "carries a password|not a URL like"),
        ("metrics_textfile", "/no/such/folder", "is no folder: create it"),
    ],
)
def test_metrics_that_cannot_leave_are_refused_at_the_start(url: str, setting: str, wrong: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        hold_lease("n", url=url, **{setting: wrong})
    assert "hunter2" not in str(refused.value)


def test_an_event_is_a_plain_dict_and_the_last_says_that_it_ended(url: str) -> None:
    told: list[LeaseEvent] = []
    with hold_lease("n", url=url, on_event=told.append, keeper="thread") as lease:
        until(lambda: told)
    until(lambda: len(told) == 2)
    first, last = (each.as_dict() for each in told)
    assert list(first) == ["what", "lease", "holder", "epoch", "remaining", "detail", "at"]
    assert (first["what"], first["lease"], first["holder"]) == ("held", "n", lease.holder)
    assert (last["what"], last["detail"], last["remaining"], last["epoch"]) == ("ended", "finished", 0, lease.epoch)
    assert str(last["at"]) >= str(first["at"]) > "2026-11-20T00:00:00.000Z"


def test_every_metric_of_the_example_alerts_is_there() -> None:
    rules = [each for group in yaml.safe_load(ALERTS.read_text())["groups"] for each in group["rules"]]
    assert {each["alert"] for each in rules} >= {"SparkLeaseNoMaster", "SparkLeaseFlapping", "SparkLeaseInDoubt"}
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    families = [family for each in METRICS for family in each.describe()]
    known = {family.name + suffix for family in families for suffix in suffixes[family.type]}
    for each in rules:
        named = set(re.findall(r"spark_lease_\w+", each["expr"]))
        assert named and named <= known, each["alert"]
        assert each["expr"].count("(") == each["expr"].count(")")
