"""A pipeline's main in a driver that was started otherwise than by spark-submit: `decorated.py`."""

from pyspark.sql import SparkSession

from spark_lease import leased


@leased("decorated")
def main(lease):
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    print("counted", spark.range(5).count(), "protection", lease.protection, flush=True)


main()
