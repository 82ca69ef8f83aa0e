"""What is particular to a Spark driver: stopping it, noticing that it is an orphan, running a script in it."""
