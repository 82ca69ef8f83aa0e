"""Looking at a lease without taking it."""

from __future__ import annotations

from pathlib import Path

from spark_lease import hold_lease
from spark_lease.airflow.trigger import is_wanted
from spark_lease.cli.main import main
from spark_lease.config.sources import configure
from spark_lease.monitoring.observer import LeaseObserver


def test_a_lease_that_this_site_may_not_take_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    paris, lyon = (LeaseObserver(configure(name="n", url=url, site=site)) for site in ("paris", "lyon"))
    with hold_lease("n", url=url):
        assert not is_wanted(paris.look(), "", "")
    assert is_wanted(paris.look(), "", "")
    assert main(["pause", "n", "--url", url, "--reason", "schema change"]) == 0
    assert (paris.look().state, paris.look().why.endswith(": schema change")) == ("blocked", True)
    assert not is_wanted(paris.look(), "", "")
    assert main(["transfer", "n", "--url", url, "--to", "lyon", "--anyway"]) == 0
    assert not is_wanted(paris.look(), "", "")
    assert is_wanted(lyon.look(), "", "")
