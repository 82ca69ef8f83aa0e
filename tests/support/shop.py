"""A lease store of each kind, as a command is told of it, and a lease in it as a contender would make it."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from spark_lease.cli.main import main
from spark_lease.config.settings import Config
from spark_lease.election.ports import LeaseStore
from spark_lease.election.record import LeaseRecord, released, renewed, taken

KINDS = [
    pytest.param("postgresql", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    "sqlite",
    "delta",
    "objects",
    "file",
]


@dataclass
class Shop:
    """One lease store. `command` runs spark-lease on it in this process, and gives exit code, output and errors."""

    kind: str
    config: Config
    store: LeaseStore
    capture: pytest.CaptureFixture[str]

    @property
    def has_clock(self) -> bool:
        return self.kind in ("postgresql", "mariadb", "sqlite")

    @property
    def flags(self) -> list[str]:
        return ["--url", self.config.url, "--table", self.config.table, "--locker", self.config.locker]

    def command(self, *words: str) -> tuple[int, str, str]:
        self.capture.readouterr()
        code = main([*words, *self.flags])
        out, err = self.capture.readouterr()
        return code, out, err

    def row(self, name: str) -> dict[str, object]:
        """What `status` says of it."""
        (row,) = json.loads(self.command("status", name, "--json")[1])
        return row  # type: ignore[no-any-return]

    def take(self, name: str, *, holder: str = "a:1:2:3", duration: float = 30.0) -> LeaseRecord:
        there = self.store.read(name).record
        wanted = taken(there, holder=holder, duration=duration, protection="kernel")
        return self._written(self.store.swap(name, there, wanted))

    def renew(self, name: str, mine: LeaseRecord) -> LeaseRecord | None:
        return self.store.swap(name, mine, renewed(mine, duration=mine.duration))

    def release(self, name: str, mine: LeaseRecord) -> LeaseRecord:
        return self._written(self.store.swap(name, mine, released(mine)))

    def record(self, name: str) -> LeaseRecord:
        return self._written(self.store.read(name).record)

    @staticmethod
    def _written(record: LeaseRecord | None) -> LeaseRecord:
        assert record is not None
        return record
