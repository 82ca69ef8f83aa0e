"""The lease stores in a folder: a shared file, or a Delta table on a file system or in an object store."""
