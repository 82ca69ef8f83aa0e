"""The file store and its lock against real files: the contract, what others do to them, and what is refused."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.election.ports import Denied, Grant
from spark_lease.election.record import renewed, taken
from spark_lease.errors import ConfigError, LeaseLost, RecordUnreadable, StoreError
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.folders import file
from spark_lease.stores.folders import file as module
from spark_lease.stores.folders.file import FileStore
from spark_lease.stores.folders.paths import put_new
from spark_lease.testing import LeaseStoreContract
from tests.support.command import spark_lease
from tests.support.drivers import until, wait_until_noted

OpenStore = Callable[..., FileStore]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configure(name="n", url=f"file://{tmp_path}/leases", lease_duration=3, poll_period=0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases" / "n"


@pytest.fixture
def open_store(config: Config) -> Iterator[OpenStore]:
    opened: list[FileStore] = []
    patient = configure(name="n", url=config.url, lease_duration=60)  # a disk that others use may be slow

    def open_one() -> FileStore:
        opened.append(FileStore(patient))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def contender(config: Config) -> Iterator[Callable[..., LocalHold]]:
    opened: list[LocalHold] = []

    def open_one(**changes: Any) -> LocalHold:
        opened.append(open_contender(replace(config, **changes), BootClock()))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


class TestContract(LeaseStoreContract):
    """The fixture `open_store` is this module's."""


def test_the_record_is_a_file_for_people_and_old_ones_go(open_store: OpenStore, folder: Path) -> None:
    store = open_store()
    record = store.swap("n", None, taken(None, holder="a/b: ü", duration=30.0, protection="kernel"))
    for _ in range(10):
        assert record
        record = store.swap("n", record, renewed(record, duration=30.0))
    assert record
    files = sorted(each.name for each in folder.iterdir() if each.name != "_notes")
    assert len(files) <= 3
    said = json.loads((folder / files[-1]).read_text())
    assert (said["lease"], said["holder"], said["epoch"]) == ("n", "a/b: ü", record.epoch)
    assert said["expires"].startswith("20")


def test_a_writer_that_was_paused_before_its_write_never_wins(
    open_store: OpenStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused until the file that it would write was written and removed again by those who went on."""
    slow, fast = open_store(), open_store()
    first = slow.swap("n", None, taken(None, holder="slow", duration=1.0))

    def paused(path: Path, data: bytes) -> bool:
        monkeypatch.setattr(file, "put_new", put_new)
        record = fast.swap("n", first, taken(first, holder="fast", duration=1.0))
        for _ in range(6):
            assert record
            record = fast.swap("n", record, renewed(record, duration=1.0))
        assert not path.exists()
        return put_new(path, data)

    monkeypatch.setattr(file, "put_new", paused)
    assert slow.swap("n", first, renewed(first, duration=1.0)) is None
    seen = fast.read("n").record
    assert seen
    assert seen.holder == "fast"
    assert slow.read("n").record == seen


def damage_delete(folder: Path) -> None:
    shutil.rmtree(folder)


def damage_lock(folder: Path) -> None:
    (folder / "lock").unlink()


def damage_replace(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    folder.rename(folder.with_name("moved"))
    folder.with_name("copy").rename(folder)


def damage_write(folder: Path) -> None:
    last = max(each for each in folder.iterdir() if each.suffix == ".json")
    last.write_text(last.read_text().replace('"epoch": 1', '"epoch": 2'))


def damage_garbage(folder: Path) -> None:
    max(each for each in folder.iterdir() if each.suffix == ".json").write_text("{")


@pytest.mark.parametrize(
    "damage", [damage_delete, damage_lock, damage_replace, damage_write, damage_garbage], ids=lambda each: each.__name__
)
def test_whatever_is_done_to_its_files_is_a_loss_at_the_next_renewal(
    contender: Any, folder: Path, damage: Callable[[Path], None]
) -> None:
    mine = contender()
    mine.acquire()
    mine.renew()
    wait_until_noted(mine)
    damage(folder)
    with pytest.raises(LeaseLost):
        mine.renew()


def test_a_record_that_cannot_be_read_is_left_alone(contender: Any, folder: Path) -> None:
    mine, other = contender(), contender()
    mine.acquire()
    damage_garbage(folder)
    mine.close()
    before = sorted(folder.glob("[!_]*"))  # the grant is noted when it may be
    with pytest.raises(RecordUnreadable, match="is no record of a lease: correct it by hand"):
        other.acquire()
    assert sorted(folder.glob("[!_]*")) == before


def test_the_lock_of_a_living_holder_keeps_all_others_out(contender: Any, folder: Path) -> None:
    """One that did not renew for long, and is nevertheless there."""
    mine, other = contender(), contender()
    mine.acquire()
    other.try_acquire()
    BootClock().wait(threading.Event(), 3.2)
    held = other.try_acquire()
    assert isinstance(held, Denied)
    mine.close()
    until(lambda: isinstance(other.try_acquire(), Grant))


def test_a_file_system_without_locks_is_refused(contender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(fd: int, what: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(module.fcntl, "flock", without)
    with pytest.raises(ConfigError, match="this file system has no locks: Operation not supported"):
        contender().try_acquire()
    assert fcntl.flock is without


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://host/x", "is no folder of this machine: file:///path/to/leases"),
        ("file:///", "is no folder of this machine"),
        ("file:///x?y=1", "is no folder of this machine"),
    ],
)
def test_urls_that_cannot_be_used_are_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FileStore(configure(name="n", url=url))


def test_places_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileStore(configure(name="n", url=f"file://{tmp_path}/file"))
    with pytest.raises(ConfigError, match="is no folder: name another"):
        store.swap("n", None, taken(None, holder="me", duration=1.0))
    store.close()
    for link, target in (("away", str(tmp_path / "not-mounted")), ("round", "round")):
        (tmp_path / link).symlink_to(target)
        store = FileStore(configure(name="n", url=f"file://{tmp_path}/{link}"))
        with pytest.raises(ConfigError, match=f"{link} is a link to .*, which is not there: is it mounted"):
            store.swap("n", None, taken(None, holder="me", duration=1.0))
        for look in (store.names, store.init):
            with pytest.raises(ConfigError, match="which is not there: is it mounted"):
                look()
        store.close()
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o555)
        store = FileStore(configure(name="n", url=f"file://{tmp_path}/closed"))
        with pytest.raises(ConfigError, match="cannot be written to"):
            store.swap("n", None, taken(None, holder="me", duration=1.0))
        store.close()


def test_a_fault_of_the_file_system_is_no_answer_and_the_next_renewal_works(
    contender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ESTALE and EIO are everyday NFS."""
    mine = contender()
    mine.acquire()
    read, faults = Path.read_bytes, [OSError(errno.ESTALE, "Stale file handle")]

    def once(path: Path) -> bytes:
        if faults:
            raise faults.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", once)
    with pytest.raises(StoreError, match="Stale file handle"):
        mine.renew()
    mine.renew()
    assert mine.check()


def test_a_setting_that_turns_wrong_under_a_holder_is_no_answer(
    contender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be written to is the setting's fault at start, and the store's later on."""
    mine = contender()
    mine.acquire()
    with monkeypatch.context() as patched:
        patched.setattr(module.os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        patched.setattr(os, "access", lambda *_: False)
        with pytest.raises(StoreError, match="cannot be written to"):
            mine.renew()
    mine.renew()
    assert mine.check()


def test_a_release_frees_the_lock_though_a_forked_child_has_the_file_open(contender: Any) -> None:
    mine, other = contender(), contender()
    mine.acquire()
    lock = mine._locker._lock
    child = os.dup(lock._fd)  # what a fork leaves in the child
    mine.release()
    assert isinstance(other.try_acquire(), Grant)
    os.close(child)


def test_a_lock_that_comes_late_is_given_back_by_who_gave_up(contender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go, flock = threading.Event(), fcntl.flock

    def late(fd: int, what: int) -> None:
        go.wait(10)
        flock(fd, what)

    slow, other = contender(attempt_timeout=0.2), contender()
    monkeypatch.setattr(module.fcntl, "flock", late)
    with pytest.raises(StoreError, match="no answer within"):
        slow.try_acquire()
    monkeypatch.setattr(module.fcntl, "flock", flock)
    slow.close()
    go.set()
    until(lambda: isinstance(other.try_acquire(), Grant))


@pytest.mark.parametrize("scheme", ["file", "delta"])
def test_a_share_that_is_not_mounted_is_no_second_store(scheme: str, tmp_path: Path) -> None:
    settings = {"name": "n", "url": f"{scheme}://{tmp_path}/mnt/leases", "create_table": "false"}
    lease = open_contender(configure(**settings), BootClock())
    with pytest.raises(ConfigError, match=r"mnt/leases does not exist: is it mounted\? spark-lease init makes it"):
        lease.acquire()
    lease.close()
    made = spark_lease("init", "--lease", "n", "--url", settings["url"])
    assert made.stdout.splitlines() == [f"made {tmp_path}/mnt/leases", f"made {tmp_path}/mnt/leases/n"]
    lease, stranger = (open_contender(configure(**settings | {"name": each}), BootClock()) for each in ("n", "other"))
    assert lease.acquire()
    with pytest.raises(ConfigError, match="there is no lease 'other' in"):
        stranger.acquire()
    for each in (lease, stranger):
        each.close()
