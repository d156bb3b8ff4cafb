"""Row stores: what holds the rows of tables, and which row an id has. Only here are kinds told apart."""
