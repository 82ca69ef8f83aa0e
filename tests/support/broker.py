"""What an ActiveMQ broker with the lease database locker sends, as far as its lock goes."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

TABLE = "ACTIVEMQ_LOCK"


OBTAIN = f"UPDATE {TABLE} SET BROKER_NAME=%s, TIME=%s WHERE (TIME IS NULL OR TIME < %s) AND ID = 1"


KEEP = f"UPDATE {TABLE} SET BROKER_NAME=%s, TIME=%s WHERE BROKER_NAME=%s AND ID = 1"


class Broker:
    """A broker with the lease database locker, as far as its lock goes."""

    def __init__(self, url: str, name: str = "paris", lease: float = 30.0) -> None:
        self.name, self.lease = name, lease
        url = url.replace("postgresql:", "postgresql+psycopg2:").replace("mysql:", "mysql+pymysql:")
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        self.connection = self._engine.connect()

    def sql(self, statement: str, *values: Any) -> Any:
        done = self.connection.exec_driver_sql(statement, values)
        return [tuple(row) for row in done] if done.returns_rows else done.rowcount

    def start(self) -> None:
        """What every start runs, with its errors ignored."""
        columns = "ID BIGINT NOT NULL, TIME BIGINT, BROKER_NAME VARCHAR(250), PRIMARY KEY (ID)"
        for statement in (f"CREATE TABLE {TABLE}( {columns} )", f"INSERT INTO {TABLE}(ID) VALUES (1)"):
            try:
                self.sql(statement)
            except Exception as error:
                assert "exist" in str(error) or "uplicate" in str(error)

    def obtain(self) -> bool:
        now = int(time.time() * 1000)
        return bool(self.sql(OBTAIN, self.name, now + round(self.lease * 1000), now) == 1 and self.keep())

    def keep(self) -> bool:
        return bool(self.sql(KEEP, self.name, int(time.time() * 1000) + round(self.lease * 1000), self.name) == 1)

    def release(self) -> None:
        self.sql(KEEP, None, 0, self.name)
