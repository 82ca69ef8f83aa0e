"""psycopg2 cursors that refuse to end a fenced transaction, and begin it with the first statement."""

import re
from functools import lru_cache
from typing import Any
from weakref import ref

from .refusals import IDLE, OVER, refuse, refuse_end

_ONE = re.compile(rb"\s*(?:INSERT|UPDATE|DELETE|SELECT|WITH|MERGE)\b[^;]*+;?\s*\Z", re.I)
"""Certainly one statement that ends no transaction: if none is open after BEGIN and this, nothing was run."""
_LOOKS = "looks_for_spark_lease"
_READY = 1
"""psycopg2's status of a connection that has begun no transaction; this module does not import psycopg2."""

unbegun: dict[Any, ref[Any]] = {}
"""The driver's connections of blocks (`Psycopg2`) that have sent nothing yet. A program that kept one from before the
block may use it without our cursors: if that leaves a transaction open, the block's first statement is refused."""


def unbegun_block(connection: Any) -> Any:
    known = unbegun.get(connection)
    return known() if known else None


@lru_cache(maxsize=16)
def looking(base: Any) -> Any:
    """A subclass of `base`, a psycopg2 cursor: it refuses statements that end the transaction or come after its end."""
    if hasattr(base, _LOOKS):
        return base
    methods = ("execute", "executemany", "callproc", "copy_expert", "copy_from", "copy_to")
    guarded = {each: _guarded(getattr(base, each), each == "execute" and _is_plain(base)) for each in methods}
    return type(base.__name__, (base,), {"__slots__": (), _LOOKS: True, **guarded})


def refuse_unlooked(cursor: Any) -> None:
    if not hasattr(cursor, _LOOKS):
        refuse(f"cursors of the class {type(cursor).__name__} cannot be checked: use psycopg2's own")


def _is_plain(base: Any) -> bool:
    """True if its execute and mogrify are psycopg2's own: another execute may run more than its argument."""
    owners = (next(c for c in base.__mro__ if each in vars(c)) for each in ("execute", "mogrify"))
    return all(owner.__module__.startswith("psycopg2.") for owner in owners)


def _guarded(method: Any, goes_along: bool) -> Any:
    """`method` with the checks. `goes_along`: BEGIN may be sent with the statement.

    In autocommit the driver's own commit and rollback do nothing. But they would end a transaction that the driver
    began itself, in `with` or out of autocommit: the statement that begins one is refused.
    """

    def guarded(cursor: Any, *args: Any, **more: Any) -> Any:
        connection = cursor.connection
        block = unbegun_block(connection)
        if block is None and connection.get_transaction_status() == IDLE:
            refuse(OVER)
        if block is not None and goes_along and not (more or cursor.name):
            statement = cursor.mogrify(*args)
            if _ONE.match(statement):
                result = block.begin_with(cursor, method, statement)
                refuse_own(connection)
                return result
        refuse_end(_text(cursor, args[0] if args else more.get("query", more.get("sql"))))
        if block is not None:
            block.begin()
        result = method(cursor, *args, **more)
        refuse_own(connection)
        return result

    return guarded


def refuse_own(driver: Any) -> None:
    if driver.status != _READY:
        refuse(
            "the driver began a transaction of its own: in the block use neither `with` nor autocommit; "
            "a pool listener must end what it begins"
        )


def _text(cursor: Any, query: Any) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    return str(query.as_string(cursor)) if hasattr(query, "as_string") else ""  # of psycopg2.sql, or a file
