"""`SparkLeaseSensor` and its trigger."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_lease.airflow.trigger import LeaseFreeTrigger
from spark_lease.cli.leases import leases
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.election.directive import label_of
from spark_lease.holds import open_contender
from tests.airflow.firing import fire
from tests.support.drivers import until

pytestmark = pytest.mark.timeout(120)


def test_it_sees_who_is_master_and_waits_for_a_lease_to_be_free(master: Callable[..., subprocess.Popen[str]]) -> None:
    master("taken", "sleep", "60")
    soon = master("soon", "sleep", "3")
    ended = fire("senses")
    assert {each.state for each in ended.values()} == {"success"}
    assert ended["free"].told["state"] == ended["poked"].told["state"] == "free"
    assert (ended["master"].told["state"], ended["master"].told["holder"][:6]) == ("held", "other:")
    assert (ended["site"].told["state"], ended["site"].told["site"]) == ("held", "paris")
    assert soon.wait(20) == 0
    assert ended["soon_free"].told["state"] == "free"


@pytest.mark.parametrize(("is_free", "poll_period"), [(False, 0.1), (True, 3600.0)])
def test_a_submission_that_is_deferred_stands_by_and_is_seen_to(
    is_free: bool, poll_period: float, master: Callable[..., subprocess.Popen[str]], store: str
) -> None:
    """Though the lease is free already: Airflow fails a task whose trigger fires at once."""
    lease = f"noted, free {is_free}"
    running = master(lease, "sleep", "0" if is_free else "60")
    assert not is_free or running.wait(20) == 0
    config = configure(name=lease, url=store)
    trigger = LeaseFreeTrigger(lease=lease, lease_conn_id="lease", poll_period=poll_period, stands_by="lyon")

    def standbys() -> list[str]:
        return [label_of(each["holder"]) for each in leases(config, [lease])[0]["standbys"]]

    async def defer() -> None:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        while await asyncio.to_thread(standbys) != ["lyon"]:
            assert not waiting.done(), waiting.result()
            await asyncio.sleep(0.1)
        waiting.cancel()

    asyncio.run(asyncio.wait_for(defer(), 30))
    until(lambda: not standbys(), 30)


def test_what_is_deferred_elsewhere_lets_the_preferred_site_go_first(
    master: Callable[..., subprocess.Popen[str]],
) -> None:
    assert master("handed", "true").wait(20) == 0  # it is free from now on

    def trigger(site: str) -> LeaseFreeTrigger:
        settings = {"site": site, "preferred_site": "paris"}
        return LeaseFreeTrigger(
            lease="handed", lease_conn_id="lease", lease_settings=settings, poll_period=4.0, stands_by=site
        )

    async def defer() -> None:
        lyon = asyncio.ensure_future(anext(trigger("lyon").run()))
        await anext(trigger("paris").run())
        assert not lyon.done()
        running = await asyncio.to_thread(master, "handed", "sleep", "60")
        done, _ = await asyncio.wait([lyon], timeout=8)  # longer than its head start
        assert not done
        running.terminate()
        await asyncio.to_thread(running.wait, 20)
        done, _ = await asyncio.wait([lyon], timeout=5)  # it leaves the next release to the other site as well
        assert not done
        await lyon

    asyncio.run(asyncio.wait_for(defer(), 60))


def test_what_another_has_done_meanwhile_is_waited_for_no_longer(
    master: Callable[..., subprocess.Popen[str]],
) -> None:
    """The other site goes on to the next day at once, and so to the end of its backlog."""
    assert master("backlog", "true", run_key="monday").wait(20) == 0
    master("backlog", "sleep", "60", run_key="tuesday")

    def waiting(key: str) -> asyncio.Future[object]:
        trigger = LeaseFreeTrigger(
            lease="backlog",
            lease_conn_id="lease",
            lease_settings={"run_key": key},
            poll_period=0.2,
            stands_by="lyon",
        )
        return asyncio.ensure_future(anext(LeaseFreeTrigger(**trigger.serialize()[1]).run()))

    async def defer() -> None:
        tuesday = waiting("tuesday")
        await waiting("monday")
        done, _ = await asyncio.wait([tuesday], timeout=1)
        assert not done
        tuesday.cancel()

    asyncio.run(asyncio.wait_for(defer(), 60))


def test_a_store_without_a_clock_is_not_looked_at_by_one_process_after_the_other(tmp_path: Path) -> None:
    from airflow.exceptions import AirflowFailException

    from spark_lease.airflow.sensor import SparkLeaseSensor

    place = {"url": f"file://{tmp_path}", "create_table": "true", "site": "paris"}
    lease = open_contender(configure(name="n", **place), BootClock())
    lease.acquire()
    told = {"task_id": "t", "lease": "n", "lease_settings": place, "deferrable": False, "mode": "reschedule"}
    context = {"ti": SimpleNamespace(xcom_push=lambda **told: None)}
    with pytest.raises(AirflowFailException, match=r"its store has no clock, .* deferrable=True"):
        SparkLeaseSensor(**told).poke(context)
    for other in ({"mode": "poke"}, {"deferrable": True}):
        assert not SparkLeaseSensor(**told | other).poke(context)
    until(lambda: SparkLeaseSensor(**told | {"site": "paris"}).poke(context))  # noted right after the grant
    lease.release()
    assert SparkLeaseSensor(**told).poke(context)
    lease.close()


def test_its_docstring_says_that_it_guards_nothing() -> None:
    from spark_lease.airflow.sensor import SparkLeaseSensor

    assert "looks and does not guard" in (SparkLeaseSensor.__doc__ or "")
