"""A SQLite file that is deleted or replaced while it is in use: there is one master, in the file that stands there."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_lease import LeaseLost, RecordUnreadable
from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.election.contender import Contender
from spark_lease.election.ports import Denied, Grant
from spark_lease.election.record import taken
from spark_lease.errors import Loss
from spark_lease.holds import open_contender
from spark_lease.stores.sql.store import SqlStore


@pytest.fixture(params=["wal", "delete"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """In a journal mode that an application may have set."""
    file = tmp_path / "leases.db"
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA journal_mode = {request.param}")
    connection.close()
    return file


@pytest.fixture(params=["lease", "database"])
def config(request: pytest.FixtureRequest, file: Path) -> Config:
    """Of a lease whose tables are there; `.bak` is a backup from before the grant."""
    config = configure(name="n", url=f"sqlite:///{file}", locker=request.param)
    SqlStore(config).init()
    file.with_suffix(".bak").write_bytes(file.read_bytes())
    return config


@pytest.fixture
def contender(config: Config) -> Iterator[Callable[[], Contender]]:
    opened: list[Contender] = []

    def open_one() -> Contender:
        opened.append(open_contender(config, BootClock()))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def delete(file: Path) -> None:
    for each in ("", "-wal", "-shm"):
        file.with_name(file.name + each).unlink(missing_ok=True)


def restore(file: Path) -> None:
    delete(file)
    file.with_suffix(".bak").rename(file)


def test_a_holder_whose_file_was_deleted_has_lost_and_makes_none_anew(contender: Callable[[], Contender], file: Path):
    holder = contender()
    holder.acquire()
    holder.renew()
    delete(file)
    with pytest.raises(LeaseLost) as lost:
        holder.renew()
    assert lost.value.reason is Loss.UNREADABLE
    assert "the file is gone" in str(lost.value)
    assert not file.exists()


def test_a_holder_over_whose_file_a_backup_was_restored_has_lost(contender: Callable[[], Contender], file: Path):
    holder = contender()
    holder.acquire()
    holder.renew()
    restore(file)
    with pytest.raises(LeaseLost) as lost:
        holder.renew()
    assert lost.value.reason is Loss.TAKEN


def test_a_standby_sees_who_is_master_in_the_file_that_was_restored(config: Config, file: Path):
    first, standby, second = (SqlStore(config) for _ in range(3))
    assert first.swap("n", None, taken(None, holder="first", duration=30.0))
    for _ in range(2):
        assert (seen := standby.read("n").record) and seen.holder == "first"
    restore(file)
    assert second.swap("n", None, taken(None, holder="second", duration=30.0))
    assert (seen := standby.read("n").record) and seen.holder == "second"
    assert standby.notes.append("n", "kind", "key", "noted")
    assert second.notes.get("n", "kind", "key") == "noted"
    delete(file)
    with pytest.raises(RecordUnreadable, match="the file is gone"):
        standby.read("n")
    for each in (first, standby, second):
        each.close()


def test_a_file_that_the_first_request_makes_is_kept(tmp_path: Path) -> None:
    config = configure(name="n", url=f"sqlite:///{tmp_path}/new.db")
    first, other = (open_contender(config, BootClock()) for _ in range(2))
    assert isinstance(first.try_acquire(), Grant)
    first.renew()
    assert isinstance(other.try_acquire(), Denied)
    first.renew()
    first.close()
    other.close()
