"""The `spark.lease.*` settings that spark-submit was given, as the driver sees them before there is a session."""

from .jvm import ended_jvm, spark_context, under_spark_submit


def submitted_conf() -> dict[str, str]:
    """All Spark settings of this driver; empty where asking for them would start a JVM."""
    context = spark_context()
    if context is not None and ended_jvm() is None:
        return dict(context.getConf().getAll())
    if not under_spark_submit():
        return {}
    from pyspark import SparkConf, SparkContext  # heavy, and there for certain: spark-submit runs us

    # Connects to the JVM that runs us, and makes no context. SparkConf() sees spark-submit's settings only after it.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())
