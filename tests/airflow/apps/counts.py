"""Counts a few rows."""

from pyspark.sql import SparkSession

assert SparkSession.builder.getOrCreate().range(7).count() == 7
