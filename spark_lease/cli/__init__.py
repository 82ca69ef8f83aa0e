"""The command line, one file per group of commands. The only place that prints."""
