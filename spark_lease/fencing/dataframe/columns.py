"""How each column of a DataFrame gets into a table: Spark's expression, the type in which it is staged, the move.

A type that Arrow, CSV and a driver's values represent alike is staged as itself. Spark turns all others (binary,
arrays, intervals, structs) into the text that the database reads for that type: as CSV, an hour may silently arrive as
a million hours. Times without a zone are wall times of Spark's session, as they are for its JDBC writer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .target import Field, Target, refusal

_TEXT = {"postgresql": "text", "mysql": "longtext CHARACTER SET utf8mb4", "sqlite": "text"}
_AS_IT_IS: dict[str, dict[str, str]] = {
    "postgresql": {
        "boolean": "boolean", "byte": "smallint", "short": "smallint", "integer": "integer", "long": "bigint",
        "float": "real", "double": "double precision", "decimal": "numeric", "date": "date",
        "timestamp": "timestamp with time zone", "timestamp_ntz": "timestamp without time zone",
    },
    "mysql": {
        "boolean": "tinyint", "byte": "smallint", "short": "smallint", "integer": "integer", "long": "bigint",
        "float": "double", "double": "double", "decimal": "{0}", "date": "date", "binary": "longblob",
        "timestamp_ntz": "datetime(6)",
    },
    "sqlite": {
        "boolean": "integer", "byte": "integer", "short": "integer", "integer": "integer", "long": "integer",
        "float": "real", "double": "real", "binary": "blob",
    },
}  # fmt: skip
_NESTED = ("struct", "map", "variant")
_DATED = ("date", "timestamp", "timestamp_ntz")
_SECONDS = "CAST(extract(SECOND FROM {0}) AS STRING)"
_TWO_DIGITS = "lpad(CAST(extract({part} FROM {{0}}) AS STRING), 2, '0')"
_HOUR, _MINUTE = (_TWO_DIGITS.format(part=each) for each in ("HOUR", "MINUTE"))
# Not by date_format, which first makes an instant in the session's time zone: there is no 02:30 when its clocks go
# forward. With spark.sql.legacy.timeParserPolicy = LEGACY, SSSSSS has another meaning for it as well.
_TIME = f"concat(CAST(CAST({{0}} AS DATE) AS STRING), ' ', {_HOUR}, ':', {_MINUTE}, ':', lpad({_SECONDS}, 9, '0'))"
_ISO = "concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSS')"
_JSON = (
    "to_json({0}, map('ignoreNullFields', 'false', "
    f"'timestampFormat', concat({_ISO}, 'XXX'), 'timestampNTZFormat', {_ISO}))"
)
_JSON_KEYS = ["string", "char", "varchar", "boolean", "byte", "short", "integer", "long", "float", "double", "decimal"]
_INSTANT = "date_format({0}, 'yyyy-MM-dd HH:mm:ss.SSSSSSXXXXX')"
_ZONED = ("timestamptz", "_timestamptz")


@dataclass(frozen=True, slots=True)
class Column:
    """`expression` in Spark's SQL is staged as a column of the type `staged`, which `moved` turns into `field`."""

    field: Field
    expression: str
    staged: str
    moved: str


def columns_of(schema: Any, target: Target, dialect: str) -> list[Column]:
    """The columns for a DataFrame's `schema`, matched by name. Raises ConfigError if they do not fit the table.

    They are in the order of the table: a row that is laid out like the table's moves there unchanged.
    """
    dialect = "mysql" if dialect == "mariadb" else dialect
    sources = sorted(schema.fields, key=lambda each: target.fields.index(target.field_of(each.name)))
    found = [_column(each, target.field_of(each.name), dialect, number) for number, each in enumerate(sources)]
    names = [each.field.name for each in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise refusal(f"several columns of the DataFrame are called {', '.join(twice)}: rename or drop them")
    needed = [each.name for each in target.fields if each.is_needed and not each.is_made_there]
    if missing := [each for each in needed if each not in names]:
        raise refusal(f"{target.name} needs {', '.join(missing)}, which the DataFrame lacks, and has no default for it")
    if made := [each.field.name for each in found if each.field.is_made_there]:
        raise refusal(f"{target.name} makes {', '.join(made)} itself: drop it from the DataFrame")
    if not found:
        raise refusal("the DataFrame has no columns")
    return found


def _column(source: Any, field: Field, dialect: str, number: int) -> Column:
    kind, expression = source.dataType.typeName(), "`" + source.name.replace("`", "``") + "`"
    if dialect == "postgresql":
        if field.kind in ("char", "name", "_char", "_name"):
            raise refusal(f"{field.name} is of the type {field.type}, which cuts off text in silence: make it text")
        kind, expression = _in_zone(kind, expression, field)
        if kind in ("float", "double") and field.kind == "numeric":
            # A cast from real keeps 6 digits, from double precision 15; the text of a double keeps them all.
            kind, expression = "", f"CAST({expression} AS DOUBLE)"
    elif dialect == "sqlite" and kind == "decimal" and source.dataType.precision > 15 and _makes_floats(field.type):
        hint = "SQLite keeps 15 digits of a decimal unless the column is TEXT: make it that, or cast to double"
        raise refusal(f"{field.name} is of the type {field.type}: {hint}")
    elif kind in ("float", "double"):
        refused, why = f"isnan({expression})", "NaN, which SQLite would store as NULL"
        if dialect == "mysql":
            refused += f" OR abs({expression}) = DOUBLE('Infinity')"
            why = "NaN or Infinity, which MariaDB and MySQL do not have"
        expression = _unless(refused, f"write_sql: {field.name} has {why}", expression)
    elif kind in _DATED and dialect == "mysql":
        if kind == "timestamp":
            kind, expression = "timestamp_ntz", f"CAST({expression} AS TIMESTAMP_NTZ)"
        problem = f"write_sql: {field.name} has a year outside 1 to 9999, which MariaDB and MySQL do not have"
        expression = _unless(f"year({expression}) NOT BETWEEN 1 AND 9999", problem, expression)
    staged = _AS_IT_IS[dialect].get(kind, "").format(source.dataType.simpleString())
    if kind == "byte":
        expression = f"CAST({expression} AS SMALLINT)"
    if not staged:
        expression, staged = _text(expression, source.dataType, field, dialect), _TEXT[dialect]
    place = f"c{number}"
    # Not to a text type: a cast to varchar(3) truncates silently, while an assignment refuses.
    is_read = dialect == "postgresql" and staged == "text" and field.category != "S"
    return Column(field, expression, staged, f"CAST({place} AS {field.type})" if is_read else place)


def _unless(refused: str, problem: str, expression: str) -> str:
    """Spark's SQL: an error if `refused` is true, else `expression`."""
    return "if({}, raise_error('{}'), {})".format(refused, problem.replace("'", "\\'"), expression)


def _makes_floats(declared: str) -> bool:
    """True if SQLite turns the text of a number into a float in such a column (its documentation, "Determination Of
    Column Affinity")."""
    upper = declared.upper()
    return bool(upper) and ("INT" in upper or not any(word in upper for word in ("CHAR", "CLOB", "TEXT", "BLOB")))


def _in_zone(kind: str, expression: str, field: Field) -> tuple[str, str]:
    if kind == "timestamp" and field.kind != "timestamptz":
        return "timestamp_ntz", f"CAST({expression} AS TIMESTAMP_NTZ)"
    if kind == "timestamp_ntz" and field.kind == "timestamptz":
        return "timestamp", f"CAST({expression} AS TIMESTAMP_LTZ)"
    return kind, expression


def _text(expression: str, kind: Any, field: Field, dialect: str) -> str:
    """Spark's SQL for the text of `expression` that the database reads."""
    name = kind.typeName()
    if name == "binary":
        return f"concat(char(92), 'x', lower(hex({expression})))"
    if name in _NESTED or (name == "array" and field.category != "A"):
        _refuse_keys(kind, field)
        return _JSON.format(expression)
    if name == "array":
        return _array(expression, kind.elementType, field, 0)
    if name == "daytimeinterval":
        return _duration(expression, dialect)
    if name == "yearmonthinterval":
        months = f"CAST({expression} AS INTERVAL YEAR TO MONTH)"
        return f"concat(12 * extract(YEAR FROM {months}) + extract(MONTH FROM {months}), ' months')"
    if name in ("timestamp", "timestamp_ntz"):
        return _TIME.format(expression)
    if name in ("string", "char", "varchar"):
        return expression
    if name in ("interval", "udt", "object"):
        raise refusal(
            f"{field.name}: a value of the type {kind.simpleString()} has no counterpart here: cast it to another type"
        )
    return f"CAST({expression} AS STRING)"


def _refuse_keys(kind: Any, field: Field) -> None:
    """Raise ConfigError for a map, at any depth, whose keys Spark would write as its internal numbers."""
    if kind.typeName() == "map" and kind.keyType.typeName() not in _JSON_KEYS:
        raise refusal(f"{field.name}: JSON has no key of the type {kind.keyType.simpleString()}: cast it to string")
    inner = [getattr(kind, each, None) for each in ("elementType", "valueType")]
    for each in [*inner, *(one.dataType for one in getattr(kind, "fields", []))]:
        if each is not None:
            _refuse_keys(each, field)


def _duration(expression: str, dialect: str) -> str:
    """Spark's SQL for an interval in hours: its day has 24 hours for Spark, but not for PostgreSQL."""
    whole = f"CAST({expression} AS INTERVAL DAY TO SECOND)"
    hours, minutes = f"24 * extract(DAY FROM {whole}) + extract(HOUR FROM {whole})", f"extract(MINUTE FROM {whole})"
    seconds = _SECONDS.format(whole)
    if dialect == "postgresql":
        return f"concat({hours}, ' hours ', {minutes}, ' minutes ', {seconds}, ' seconds')"
    sign = f"if({whole} < INTERVAL '0' SECOND, '-', '')"
    fraction = f"lpad(CAST(abs(extract(SECOND FROM {whole})) AS STRING), 9, '0')"
    return f"concat({sign}, abs({hours}), ':', lpad(abs({minutes}), 2, '0'), ':', {fraction})"


def _array(expression: str, element: Any, field: Field, depth: int) -> str:
    """PostgreSQL documentation, "Array Input and Output Syntax"."""
    each = f"e{depth}"
    item = f"coalesce({_element(each, element, field, depth)}, 'NULL')"
    return f"concat('{{', array_join(transform({expression}, {each} -> {item}), ','), '}}')"


def _element(each: str, kind: Any, field: Field, depth: int) -> str:
    name = kind.typeName()
    if name == "array":
        return _array(each, kind.elementType, field, depth + 1)
    if name == "timestamp" or (name == "timestamp_ntz" and field.kind in _ZONED):
        text = _INSTANT.format(f"CAST({each} AS TIMESTAMP_LTZ)")
    else:
        text = _text(each, kind, field, "postgresql")
    back = "char(92)"
    return f"concat('\"', replace(replace({text}, {back}, concat({back}, {back})), '\"', concat({back}, '\"')), '\"')"


def selected(frame: Any, columns: Sequence[Column]) -> Any:
    """`frame` with the columns that are staged: c0, c1, …"""
    return frame.selectExpr(*(f"{each.expression} AS c{number}" for number, each in enumerate(columns)))
