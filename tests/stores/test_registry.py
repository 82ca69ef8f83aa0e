"""Stores of other packages: found by their entry point, used by their URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_lease.config.sources import configure
from spark_lease.errors import ConfigError
from spark_lease.stores.registry import open_store
from tests.support.command import COMMAND

# A store in JSON files of a folder, under an exclusive flock(2): what somebody may write in an afternoon.
STORE = """
import fcntl, json, time
from dataclasses import asdict, replace
from pathlib import Path
from spark_lease.election.record import LeaseRecord, Snapshot

class FolderStore:
    def __init__(self, config):
        self.where = config.url
        self.folder = Path(config.url.removeprefix("folder://"))
    def read(self, name):
        with self.opened(name) as file:
            return self.observed(file)
    def swap(self, name, old, new):
        with self.opened(name) as file:
            if self.observed(file).record != old:
                return None
            now = round(time.time() * 1000)
            stamp = 0 if new.holder is None else now + round(new.duration * 1000)
            epoch = new.epoch if old and new.epoch == old.epoch else max(new.epoch, now)
            written = replace(new, epoch=epoch, stamp=stamp)
            file.seek(0)
            file.truncate()
            file.write(json.dumps(asdict(written)))
            return written
    def names(self):
        return sorted(each.name for each in self.folder.iterdir())
    def close(self):
        pass
    def opened(self, name):
        file = (self.folder / name).open("a+")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file
    def observed(self, file):
        file.seek(0)
        text = file.read()
        record = LeaseRecord(**json.loads(text)) if text else None
        return Snapshot(record, (record.stamp or 0) / 1000 - time.time() if record else 0.0)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What an installer leaves of a package with entry points, on a path of its own."""
    site = tmp_path / "site"
    info = site / "folder_lease-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "folder_lease.py").write_text(STORE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: folder_lease\nVersion: 1\n")
    stores = {"folder": "FolderStore", "broken": "Nothing", "sqlite": "Nothing"}
    lines = [f"{scheme} = folder_lease:{name}" for scheme, name in stores.items()]
    (info / "entry_points.txt").write_text("\n".join(["[spark_lease.stores]", *lines]))
    return site


def spark_lease(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run([COMMAND, *words], env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_store_of_another_package_is_used_by_its_url(installed: Path, tmp_path: Path) -> None:
    url = f"folder://{tmp_path}/leases"
    (tmp_path / "leases").mkdir()
    done = spark_lease(installed, "run", "--lease", "n", "--url", url, "--", "true")
    assert done.returncode == 0, done.stderr
    status = spark_lease(installed, "status", "--url", url, "--json")
    (row,) = json.loads(status.stdout)
    assert (row["lease"], row["state"]) == ("n", "free")
    again = spark_lease(installed, "run", "--lease", "n", "--url", url, "--", "true")
    assert json.loads(again.stdout.splitlines()[-1])["epoch"] > row["epoch"]


def test_what_cannot_be_loaded_is_a_sentence_and_ours_stay_ours(installed: Path, tmp_path: Path) -> None:
    broken = spark_lease(installed, "status", "--url", "broken://x")
    assert broken.returncode == 78
    assert "broken:// is folder_lease:Nothing, which cannot be loaded" in broken.stderr
    unknown = spark_lease(installed, "status", "--url", "redis://x")
    assert "folder://" in unknown.stderr
    ours = spark_lease(installed, "run", "--lease", "n", "--url", f"sqlite:///{tmp_path}/x.db", "--", "true")
    assert ours.returncode == 0, ours.stderr


def test_an_unknown_url_names_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="delta://, file://, mariadb://, mysql://, postgresql://, sqlite://"):
        open_store(configure(name="n", url="redis://host"))


def test_a_folders_leases_need_no_package_of_deltas_which_is_named_where_it_is_missing(tmp_path: Path) -> None:
    lines = (
        "import sys",
        "sys.modules |= dict.fromkeys(('arro3', 'arro3.core', 'deltalake', 'obstore', 'sqlalchemy'))",
        "from spark_lease.cli.main import main",
        f"url = ['--url', 'file://{tmp_path}/leases']",
        "assert main(['run', '--lease', 'n', '--run-key', 'k', *url, '--', 'true']) == 0",
        "assert main(['status', 'n', *url]) == main(['history', 'n', *url]) == main(['runs', 'n', *url]) == 0",
        f"sys.exit(main(['runs', 'n', '--url', 'delta://{tmp_path}/leases']))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 78, done.stderr
    assert "delta:// needs arro3.core: pip install 'spark_lease[delta]'" in done.stderr


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("/tmp/x.db", "did you mean sqlite:////tmp/x.db, or file:///tmp/x.db for a shared folder"),
        ("//etl:s3cret@db/ops", "did you mean"),
        ("postgres://db/ops", "did you mean postgresql://"),
        ("oracle://db", "known here: .* and the word local"),
    ],
)
def test_what_is_no_url_of_a_store_is_told_with_what_may_be_meant_and_no_password(url: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) as raised:
        open_store(configure(name="n", url=url))
    assert "s3cret" not in str(raised.value)
