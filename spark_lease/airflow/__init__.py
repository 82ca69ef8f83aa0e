"""For Airflow: an operator, a sensor, a trigger, a connection. Its environment needs nothing of Spark or Java."""
