"""spark-submit with the guard inside its driver."""
