"""Tries a claim and rolls it back: could a master of this role begin its work?"""

import secrets
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...database.connections import IS_READ_ONLY
from ...database.dialects import backend_of, is_mysql, matches
from .claim import TRANSIENT
from .connected import cannot_be_made, refuse_no_hold, unreachable
from .tables import raise_epoch, tables_sql


def try_claim(engine: Engine, name: str) -> str:
    """Claim under a name that no lease has, in a transaction that is never committed; returns what prevented the trial,
    most often "". Missing tables are made in that transaction, but not on MariaDB or MySQL, which would keep them.

    `name` is the lease whose fence is looked for. Raises FenceUnreachable, ConfigError.
    """
    dialect, claim = engine.dialect, raise_epoch(engine, f"doctor-{secrets.token_hex(8)}", 1)
    level: Any = "AUTOCOMMIT" if dialect.name == "sqlite" else "READ COMMITTED"
    try:
        with engine.execution_options(isolation_level=level).connect() as connection:
            refuse_no_hold(connection, name)
            if dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # Python's own begins no transaction for CREATE TABLE
            try:
                connection.execute(claim)
            except DBAPIError as error:
                if not matches(error, backend_of(engine).shape):
                    raise
                if is_mysql(engine):
                    return "its tables are not there yet, and the first master must be able to make them"
                if dialect.name == "postgresql":
                    connection.rollback()
                try:
                    for statement in tables_sql(dialect):
                        connection.exec_driver_sql(statement)
                except DBAPIError as denied:
                    if matches(denied, IS_READ_ONLY):
                        raise
                    raise cannot_be_made(engine, denied) from denied
            connection.rollback()
    except SQLAlchemyError as error:
        if matches(error, (*backend_of(engine).locked, *TRANSIENT)):
            return "it is locked at the moment"
        raise unreachable(engine, error) from error
    return ""
