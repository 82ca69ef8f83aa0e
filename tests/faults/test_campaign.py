"""A few rounds of `make campaign`, and that its network and its checker see what they have to."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.campaign.__main__ import DataCentre, missing
from tests.faults.campaign.round import ADVISORY
from tests.faults.campaign.schedule import Kind, schedule
from tests.faults.campaign.stores import STORES, kinds_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()) and "CI" not in os.environ, reason=missing()),
]

ARRIVES = """
import socket
from contextlib import closing
from tests.faults.campaign.network import Host, switch_on

switch_on()
with closing(Host("paris", 2)) as paris, closing(Host("rome", 3)) as rome:

    def arrives(sender, receiver):
        with receiver.inside():
            ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ear.bind((receiver.address, 0))
        ear.settimeout(0.3)
        with sender.inside():
            mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with ear, mouth:
            mouth.sendto(b"x", ear.getsockname())
            try:
                return ear.recv(9) == b"x"
            except TimeoutError:
                return False

    both = lambda: (arrives(paris, rome), arrives(rome, paris))
    assert any(both() == (True, True) for _ in range(20)), "nothing arrives"
    for fault, expected in {"cut": (False, False), "be_deaf": (True, False), "be_mute": (False, True)}.items():
        getattr(paris, fault)()
        assert any(both() == expected for _ in range(20)), (fault, both())
        paris.heal()
        assert any(both() == (True, True) for _ in range(20)), f"{fault} is not healed"
    assert paris.processes() == []
"""


def seed_of(kind: Kind) -> int:
    """Of the first round on a server in which it is the only fault."""
    kinds = kinds_of("PostgreSQL")
    return next(seed for seed in itertools.count() if [each.kind for each in schedule(seed, kinds)] == [kind])


@pytest.fixture(params=["PostgreSQL", "MariaDB"])
def centre(request: pytest.FixtureRequest) -> Iterator[DataCentre]:
    with closing(DataCentre(request.param)) as found:
        yield found


def test_a_fault_of_the_network_strikes_one_host_and_the_direction_that_it_names() -> None:
    subprocess.run(["unshare", "--net", sys.executable, "-c", ARRIVES], cwd=Path(__file__).parents[2], check=True)


def test_each_kind_of_fault_comes_as_often_as_the_others() -> None:
    every = {kind for _, kinds in STORES.values() for kind in kinds}
    assert every == {*Kind}
    for store in STORES:
        kinds = kinds_of(store)
        assert {fault.kind for seed in range(len(kinds)) for fault in schedule(seed, kinds)} == {*kinds}
        assert schedule(17, kinds) == schedule(17, kinds)


@pytest.mark.fault
@pytest.mark.mariadb
def test_no_round_is_violated(centre: DataCentre) -> None:
    for kind in (Kind.FREEZE_ALL, Kind.MUTE, Kind.SERVER_CRASHED):
        verdict = centre.play(seed_of(kind), "")
        assert not verdict["violations"], verdict
        assert verdict["grants"] and verdict["lines"], verdict


@pytest.mark.postgres
def test_a_lock_that_ends_with_its_session_is_found_out() -> None:
    with closing(DataCentre("PostgreSQL")) as centre:
        verdict = centre.play(seed_of(Kind.SERVER_CRASHED), ADVISORY)
    assert any(each.startswith("P3") for each in verdict["violations"]), verdict
