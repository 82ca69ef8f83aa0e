"""Makes Spark ready for its first write by a small write in a scratch folder."""

import json
import sys
from contextlib import closing, suppress
from importlib import import_module
from typing import Any

from .jvm import live_context

_MERGE = """
    MERGE INTO delta.`{table}` AS t USING (SELECT id, id * 2 AS value FROM range(50, 150)) AS s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET value = s.value WHEN NOT MATCHED THEN INSERT *
"""


def streams() -> dict[str, Any]:
    """The active streams of the existing session, by id."""
    sessions = getattr(sys.modules.get("pyspark.sql"), "SparkSession", None)
    session = getattr(sessions, "_instantiatedSession", None)
    if session is None or live_context() is None:
        return {}
    return {str(each.id): each for each in session.streams.active}


def make_active(session: Any) -> None:
    """Make `session` active for the calling thread, as `getOrCreate` does for a new one."""
    find = getattr(type(session), "_get_j_spark_session_class", None)  # of PySpark 4
    made = find(session._jvm) if find else session._jvm.SparkSession
    made.setActiveSession(session._jsparkSession)


def is_fixed(session: Any, key: str) -> bool:
    """True if Spark reads the setting `key` only when it starts."""
    entries = session._jvm.org.apache.spark.internal.config.ConfigEntry
    is_known = key.startswith(("spark.master", "spark.hadoop.")) or entries.findEntry(key) is not None
    return is_known and key != "spark.app.name" and not session.conf.isModifiable(key)


def has_delta(session: Any) -> bool:
    return "delta" in str(session.conf.get("spark.sql.extensions", "")).lower()


def checkpoint_of(context: Any, table: str) -> int:
    """The version of the newest checkpoint that a Delta table names; 0: none (PROTOCOL.md, "Last Checkpoint File")."""
    path = context._jvm.org.apache.hadoop.fs.Path(table, "_delta_log/_last_checkpoint")
    file = path.getFileSystem(context._jsc.hadoopConfiguration())
    if not file.exists(path):
        return 0
    with closing(file.open(path)) as stream:
        return int(json.loads(context._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))["version"])


def compute(session: Any) -> None:
    """Run a shuffle and a Python worker, and import pandas, as many jobs do: that takes a second."""
    from pyspark.sql import functions as F

    with suppress(Exception):  # a pandas that does not fit its NumPy may raise anything
        import_module("pandas")

    session.range(100).groupBy(F.col("id") % 4).count().collect()
    plus_one = F.udf(lambda number: number + 1, "long")  # a lambda: workers need not have this package
    session.range(4).select(plus_one("id")).collect()


def merge(session: Any, table: str) -> None:
    """Write and merge a Delta table if all tasks run on this machine: other machines do not see its folders."""
    if has_delta(session) and str(session.sparkContext.master).startswith("local"):
        rows = session.range(100).selectExpr("id", "id AS value")
        rows.write.format("delta").mode("overwrite").save(table)
        session.sql(_MERGE.format(table=table)).collect()
