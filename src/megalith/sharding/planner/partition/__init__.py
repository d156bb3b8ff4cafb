"""From options to plans: which option each table takes, and which worker each shard."""
