"""The `spark.lease.*` settings that spark-submit was given, as the driver sees them before there is a session."""

from __future__ import annotations

from .demotion import ended_jvm, spark_context, under_spark_submit


def submitted_conf() -> dict[str, str]:
    """All Spark settings of this driver; empty where asking for them would start a JVM."""
    context = spark_context()
    if context is not None and ended_jvm() is None:
        return dict(context.getConf().getAll())
    if not under_spark_submit():
        return {}
    from pyspark import SparkConf, SparkContext  # heavy, and there for certain: spark-submit runs us

    SparkContext._ensure_initialized()  # connects to the JVM that runs us; makes no context
    return dict(SparkConf().getAll())
