"""Delta leases in an object store, against an S3 server: what is refused, what gets lost, what is never said."""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from deltalake import DeltaTable

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config, shown
from spark_lease.config.sources import configure, from_environment, from_file, from_spark, resolve
from spark_lease.election.ports import Grant
from spark_lease.election.record import renewed, taken
from spark_lease.errors import ConfigError, RecordUnreadable, SparkLeaseError, StoreError
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.folders.delta import DeltaStore
from spark_lease.stores.folders.object_store import ObjectFiles
from spark_lease.testing import LeaseStoreContract
from tests.services.objects import BUCKET, CARELESS, FORGETFUL, KEY, LOCKED, OLD, SECRET, ObjectServer, running_objects
from tests.services.proxy import Proxy
from tests.support.command import last_line, spark_lease
from tests.support.drivers import until

OpenStore = Callable[..., DeltaStore]
COMMIT = b"PUT /leases/%b/n/_delta_log/"


@pytest.fixture
def config(objects: ObjectServer, table: str) -> Config:
    return configure(name="n", url=f"delta+s3://{BUCKET}/{table}", storage_options=objects.options())


@pytest.fixture
def open_store(config: Config) -> Iterator[OpenStore]:
    opened: list[DeltaStore] = []

    def open_one(**changes: Any) -> DeltaStore:
        opened.append(DeltaStore(configure(**_given(config) | changes)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def own_objects() -> Iterator[ObjectServer]:
    """A server to be stopped and killed."""
    with running_objects() as server:
        yield server


@pytest.fixture
def door(objects: ObjectServer) -> Iterator[Proxy]:
    proxy = Proxy(f"http://nobody@127.0.0.1:{objects.port}/")
    yield proxy
    proxy.close()


def _given(config: Config) -> dict[str, Any]:
    return {"name": config.name, "url": config.url, "storage_options": config.storage_options}


def _grant(store: DeltaStore, holder: str = "a") -> Any:
    return store.swap("n", None, taken(None, holder=holder, duration=30.0))


def _keys(config: Config) -> list[str]:
    """Everything that is there."""
    return [each["path"] for chunk in obstore.list(ObjectFiles(config)._store) for each in chunk]


class TestContract(LeaseStoreContract):
    """The fixture `open_store` is this module's."""


@pytest.mark.fault
def test_another_engine_reads_who_is_master(open_store: OpenStore, config: Config) -> None:
    store = open_store()
    record = _grant(store, "me")
    for _ in range(60):  # over a checkpoint as well
        record = store.swap("n", record, renewed(record, duration=30.0))
    until(lambda: not store._tidying.is_busy, 60)
    path = config.url.removeprefix("delta+") + "/n"
    row = DeltaTable(path, storage_options=config.storage_options).get_add_actions(flatten=True)
    assert [row.column(f"partition.{each}").to_pylist() for each in ("holder", "epoch")] == [["me"], [record.epoch]]
    keys = _keys(config)
    assert len([each for each in keys if each.endswith(".parquet") and "_delta_log" not in each]) == 1
    assert any(each.endswith(".checkpoint.parquet") for each in keys)
    assert open_store().read("n").record == record


@pytest.mark.parametrize("name", ["a/b: ü%", ".hidden", "~x!y", "_delta_log"])
def test_any_name_has_a_table_of_its_own(open_store: OpenStore, name: str) -> None:
    store = open_store()
    assert store.swap(name, None, taken(None, holder="a", duration=30.0))
    assert store.names() == [name]


def test_a_probe_leaves_nothing_behind(open_store: OpenStore, config: Config) -> None:
    assert _grant(open_store())
    assert not [each for each in _keys(config) if "probe" in each]


@pytest.mark.parametrize(
    "option",
    [
        {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"},
        {"allow_unsafe_rename": "1"},
        {"MOUNT_ALLOW_UNSAFE_RENAME": "yes"},
        {"conditional_put": "disabled"},
        {"AWS_CONDITIONAL_PUT": "dynamo:table"},
        {"AWS_S3_LOCKING_PROVIDER": "dynamodb"},
        {"s3_locking_provider": "dynamodb"},
    ],
    ids=str,
)
def test_what_lets_two_write_at_once_is_refused(
    option: dict[str, str], open_store: OpenStore, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} in storage_options"):
        open_store(storage_options=config.storage_options | option)
    monkeypatch.setenv(*next(iter(option.items())))
    with pytest.raises(ConfigError, match=f"{next(iter(option))} in the environment"):
        open_store()
    assert _keys_without_a_check(config, monkeypatch, next(iter(option))) == []


def _keys_without_a_check(config: Config, monkeypatch: pytest.MonkeyPatch, key: str) -> list[str]:
    monkeypatch.delenv(key)
    return _keys(config)


def test_what_is_said_to_be_off_or_as_it_has_to_be_is_accepted(open_store: OpenStore, config: Config) -> None:
    safe = {"aws_conditional_put": "etag"}
    assert _grant(open_store(storage_options=config.storage_options | safe))


@pytest.mark.parametrize("bucket", [CARELESS, OLD])
def test_a_server_without_conditional_puts_is_refused_before_a_grant(
    bucket: str, open_store: OpenStore, table: str
) -> None:
    store = open_store(url=f"delta+s3://{bucket}/{table}")
    for write in (lambda: _grant(store), store.init):
        with pytest.raises(ConfigError, match="does not honour If-None-Match"):
            write()
    assert _keys(store._config) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nonsense": "1"}, "'nonsense' is not valid"),
        ({"timeout": "1h"}, "timeout follows from attempt_timeout"),
        ({"AWS_MAX_RETRIES": "1"}, "follows from attempt_timeout"),
        ({"pool_idle_timeout": "1s"}, "not for a lease"),
        ({"allow_http": "perhaps"}, "neither true nor false"),
    ],
)
def test_options_that_one_of_both_libraries_would_ignore_are_refused(
    options: dict[str, str], says: str, open_store: OpenStore, config: Config
) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(storage_options=config.storage_options | options)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("delta+s3://bucket", "names no bucket and folder"),
        ("delta+s3:///folder", "names no bucket and folder"),
        ("delta+s3://bucket/a b", "names no bucket and folder"),
        ("delta+http://host/folder", "goes with s3://"),
        ("delta+az://bucket/folder?sig=abcdef", "carries a query"),
        ("delta+s3://KEY:s3cret@bucket/folder", "carries a query or a password"),
    ],
)
def test_urls_that_cannot_be_used_are_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        DeltaStore(configure(name="n", url=url))
    assert "abcdef" not in str(raised.value) and "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "delta+gs://bucket/folder",
        "delta+abfss://box@account.dfs.core.windows.net/folder",
        "delta+abfs://box@account.dfs.core.windows.net/folder",
        "delta+s3a://bucket/folder",
    ],
)
def test_each_cloud_is_opened_by_its_url(url: str) -> None:
    store = DeltaStore(configure(name="n", url=url))
    assert store.files.table("n") == url.removeprefix("delta+") + "/n"


def test_a_folder_of_this_machine_has_no_storage_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder of this machine"):
        DeltaStore(configure(name="n", url=f"delta://{tmp_path}", storage_options={"region": "x"}))


def test_a_mount_that_renames_over_what_is_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOUNT_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ConfigError, match="MOUNT_ALLOW_UNSAFE_RENAME in the environment"):
        DeltaStore(configure(name="n", url=f"delta://{tmp_path}/leases"))


def test_a_bucket_that_is_not_there_is_said(open_store: OpenStore, table: str) -> None:
    store = open_store(url=f"delta+s3://nosuch/{table}")
    for ask in (lambda: store.read("n"), lambda: _grant(store), store.names, store.init):
        with pytest.raises(ConfigError, match="there is no such bucket"):
            ask()


def test_a_table_is_made_by_init_where_first_use_may_not(open_store: OpenStore) -> None:
    careful = open_store()
    object.__setattr__(careful._config, "create_table", "false")
    with pytest.raises(ConfigError, match="spark-lease init --lease n makes it"):
        _grant(careful)
    made = open_store().init()
    assert made and made[0].startswith("made s3://")
    assert open_store().init() == []
    assert careful.read("n").record


def test_a_server_that_hangs_is_an_error_in_time(own_objects: ObjectServer) -> None:
    options, clock = own_objects.options(), BootClock()
    url = f"delta+s3://{BUCKET}/x"
    settings: dict[str, Any] = {"name": "n", "url": url, "storage_options": options}
    first = DeltaStore(configure(**settings))
    record = _grant(first)
    store, unprobed = (DeltaStore(configure(attempt_timeout=0.5, **settings)) for _ in range(2))
    own_objects.hang()
    asks: list[Callable[[], Any]] = [
        lambda: store.read("n"),
        lambda: store.swap("n", record, renewed(record, duration=30.0)),
        lambda: _grant(unprobed, "b"),
    ]
    for ask in asks:
        start = clock.now()
        with pytest.raises(StoreError, match=r"no answer within 0.5 s|error sending request"):  # ours, or the client's
            ask()
        assert clock.now() - start < 1.5
    own_objects.go_on()
    assert _eventually(lambda: store.read("n").record)
    for each in (first, store, unprobed):
        each.close()


def _eventually(ask: Callable[[], Any]) -> Any:
    """What hung may still have to end."""
    for _ in range(20):
        try:
            return ask()
        except StoreError:
            continue
    return None


def test_a_server_that_was_killed_is_not_taken_for_a_loss_and_an_empty_one_is(own_objects: ObjectServer) -> None:
    config = configure(name="n", url=f"delta+s3://{BUCKET}/x", storage_options=own_objects.options())
    store = DeltaStore(config)
    record = _grant(store)
    own_objects.kill()
    for ask in (lambda: store.read("n"), lambda: store.swap("n", record, renewed(record, duration=30.0))):
        with pytest.raises(StoreError) as raised:
            ask()
        assert type(raised.value) is StoreError
    own_objects.restart()
    with pytest.raises(RecordUnreadable, match="is gone"):
        store.swap("n", record, renewed(record, duration=30.0))
    second = _grant(DeltaStore(config), "b")
    assert second.epoch > record.epoch
    store.close()


@pytest.fixture
def through_the_door(door: Proxy, objects: ObjectServer, table: str) -> Iterator[LocalHold]:
    port = door.url.rpartition(":")[2].partition("/")[0]
    options = objects.options(aws_endpoint_url=f"http://127.0.0.1:{port}")
    url = f"delta+s3://{BUCKET}/{table}"
    contender = open_contender(configure(name="n", url=url, storage_options=options, attempt_timeout=2.0), BootClock())
    yield contender
    contender.close()


def test_an_answer_that_was_lost_is_found_again(through_the_door: LocalHold, door: Proxy, table: str) -> None:
    """At the grant, at a renewal, at the release."""
    lease, commit = through_the_door, COMMIT % table.encode()
    steps: list[Callable[[], Any]] = [lease.try_acquire, lambda: lease._locker.renew(), lambda: lease._locker.release()]
    assert _eventually(lease._locker._store.init)  # type: ignore[attr-defined]
    answers: list[Any] = []
    for step in steps:
        door.swallow_answers_from(commit)
        with pytest.raises(StoreError):
            step()
        assert door.mode == "deaf"
        door.reopen()
        door.slam()
        answers.append(_eventually(step))
    grants, given_back = answers[:2], answers[2]
    assert all(isinstance(each, Grant) for each in grants)
    assert given_back is False  # there was nothing left to give
    found = lease._locker._store.read("n").record  # type: ignore[attr-defined]
    assert found and found.holder is None and found.epoch == lease.epoch


def test_a_commit_whose_answer_was_lost_and_that_was_sent_again_is_no_loss(objects: ObjectServer, table: str) -> None:
    """Sent again it meets itself, and the library calls that a conflict."""
    config = configure(name="n", url=f"delta+s3://{FORGETFUL}/{table}", storage_options=objects.options())
    lease = open_contender(config, BootClock())
    epoch = lease.acquire()
    for _ in range(6):
        lease.renew()
    assert lease.check() == epoch
    lease.release()
    found = DeltaStore(config).read("n").record
    assert found and found.holder is None and found.epoch == epoch
    lease.close()


def _unreachable(config: Config) -> DeltaStore:
    options = config.storage_options | {"aws_endpoint_url": "http://127.0.0.1:9"}
    return DeltaStore(configure(name="n", url=config.url, storage_options=options, attempt_timeout=2.0))


def _elsewhere(config: Config, bucket: str) -> DeltaStore:
    return DeltaStore(configure(name="n", url=f"delta+s3://{bucket}/x", storage_options=config.storage_options))


@pytest.mark.parametrize(
    ("opens", "kind"),
    [
        (_unreachable, StoreError),
        (lambda config: _elsewhere(config, LOCKED), ConfigError),
        (lambda config: _elsewhere(config, "nosuch"), ConfigError),
        (lambda config: _elsewhere(config, CARELESS), ConfigError),
    ],
    ids=["unreachable", "refused", "no bucket", "careless"],
)
def test_no_key_is_in_an_error_or_in_the_log(
    opens: Callable[[Config], DeltaStore],
    kind: type[SparkLeaseError],
    config: Config,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    store = opens(config)
    with pytest.raises(kind) as raised:
        _grant(store)
    told = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + caplog.text + repr(store._config)
    assert SECRET not in told and KEY not in told
    store.close()


def test_the_query_of_a_url_is_in_no_message(config: Config) -> None:
    error = OSError(f"PUT https://x.blob.core.windows.net/b/k?sv=1&sig=abcdef failed, {SECRET}")
    assert ObjectFiles(config).error_text(error) == "PUT https://x.blob.core.windows.net/b/k?… failed, ***"
    error = OSError("GET http://etl:hunter2@127.0.0.1:9000/leases?list-type=2: no answer")
    assert ObjectFiles(config).error_text(error) == "GET http://***@127.0.0.1:9000/leases?… no answer"


def test_the_same_error_has_the_same_words(config: Config) -> None:
    """So that a standby logs it once, and not at every look."""
    store = _unreachable(config)

    def said(ask: Callable[[], Any]) -> str:
        with pytest.raises(StoreError) as raised:
            ask()
        return str(raised.value)

    asks: list[Callable[[], Any]] = [lambda: store.read("n"), lambda: _grant(store)]
    for ask in asks:
        assert said(ask) == said(ask)
    store.close()


def test_options_are_printed_nowhere(config: Config, tmp_path: Path) -> None:
    assert SECRET not in repr(config)
    assert "'aws_secret_access_key': '***'" in dict(shown(config))["storage_options"]
    environ = os.environ | {"SPARK_LEASE_STORAGE_OPTIONS": json.dumps(config.storage_options)}
    told = spark_lease("config", "--url", config.url, env=environ)
    assert told.returncode == 0 and "aws_secret_access_key" in told.stdout
    look = "cat /proc/[0-9]*/cmdline; echo"
    ran = spark_lease("run", "--lease", "n", "--url", config.url, "--", "sh", "-c", look, env=environ)
    assert last_line(ran)["outcome"] == "finished", ran.stderr
    assert "sh\0-c" in ran.stdout
    for each in (told, ran):
        assert SECRET not in each.stdout + each.stderr


def test_options_come_as_a_table_as_json_or_as_pairs(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[storage_options]\nregion = "eu"\naccount_key = "a=b=="\n')
    wanted = {"region": "eu", "account_key": "a=b=="}
    for layer in (
        from_file(tmp_path / "c.toml"),
        from_environment({"SPARK_LEASE_STORAGE_OPTIONS": json.dumps(wanted)}),
        from_environment({"SPARK_LEASE_STORAGE_OPTIONS": "region=eu, account_key=a=b=="}),
    ):
        assert resolve(layer).config.storage_options == wanted
    with pytest.raises(ConfigError, match="a text with a comma in it needs JSON") as raised:
        configure(storage_options="key=a,b")
    assert "key=a" not in str(raised.value)
    with pytest.raises(ConfigError, match="SPARK_LEASE_STORAGE_OPTIONS"):
        from_spark({"spark.lease.storageOptions": "key=s3cret"})


@pytest.mark.parametrize("spell", [str.upper, str.lower, lambda key: key.removeprefix("aws_")])
def test_options_are_understood_as_both_libraries_spell_them(
    spell: Callable[[str], str], open_store: OpenStore, config: Config
) -> None:
    options = {spell(key): value for key, value in config.storage_options.items()}
    assert _grant(open_store(storage_options=options))


def test_options_may_come_from_the_clouds_own_variables(
    open_store: OpenStore, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in config.storage_options.items():
        monkeypatch.setenv("AWS_ALLOW_HTTP" if key == "allow_http" else key.upper(), value)
    store = open_store(storage_options={})
    assert _grant(store)
    assert store.files.error_text(OSError(f"it was {SECRET}, {KEY}")) == "it was ***, ***"
