"""Works until it is ended: a Spark worker writes the time to a file, again and again."""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession


def work(folder):
    with Path(folder, "works").open("a") as file:
        while True:
            file.write(f"{time.time()}\n")
            file.flush()
            time.sleep(0.01)


SparkSession.builder.getOrCreate().sparkContext.parallelize([sys.argv[1]], 1).foreach(work)
