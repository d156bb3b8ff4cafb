"""What a run tells while it trains: load of every rank, what is wrong and what to do, numbers for Prometheus.

monitor.py      all of it, as the trainer calls it
anomalies.py    losses and gradients that are not what they should be, each named once
tables.py       tables that nobody looks up, or that learn nothing
stalled.py      a reader that gives no batch any more
rank_load.py    waiting, lookups, bytes of every rank
gauges.py       the newest numbers, as Prometheus reads them
endpoint.py     the port on which it reads them
"""
