"""Dynamic tables: ids of any 64-bit value over a bounded number of rows of another store."""
