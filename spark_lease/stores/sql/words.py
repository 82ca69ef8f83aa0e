"""Text columns that PostgreSQL compares by its own operator and no other.

For two types without an operator of its own, such as VARCHAR and a literal, PostgreSQL prefers an operator of exactly
these types in any schema of the search path to its own, which needs a cast ("Operator Type Resolution" in its
documentation). A role that may CREATE there could make one that runs with the rights of the job. So both sides are cast
to TEXT; an index is still used. For the same reason functions have their schema, and numbers the other side's type.
"""

from typing import Any

from sqlalchemy import ClauseElement, String, Text, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.functions import FunctionElement

_COMPARED = (operators.eq, operators.ne, operators.is_distinct_from, operators.is_not_distinct_from)


class _AsText(FunctionElement[str]):
    inherit_cache = True
    type = Text()


@compiles(_AsText)
def _plain(element: _AsText, compiler: Any, **how: Any) -> str:
    return str(compiler.process(element.clauses, **how))


@compiles(_AsText, "postgresql")
def _cast(element: _AsText, compiler: Any, **how: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **how)} AS TEXT)"


class Words(String):
    """VARCHAR that PostgreSQL compares as TEXT: both sides of =, <> and IS DISTINCT FROM are cast."""

    class Comparator(String.Comparator[str]):
        def operate(self, op: Any, *other: Any, **how: Any) -> Any:
            if op in _COMPARED and other[0] is not None:
                to = other[0] if isinstance(other[0], ClauseElement) else literal(other[0], String())
                return op(_AsText(self.expr), _AsText(to), **how)
            return super().operate(op, *other, **how)

    comparator_factory = Comparator
