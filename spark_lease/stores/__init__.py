"""The places that keep lease records: SQL tables, shared files, Delta tables."""
