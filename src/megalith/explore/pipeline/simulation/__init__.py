"""The engines behind `simulate`: a schedule and its costs become a flat program, which is then run.

op_table.py, compiler.py, collective_buckets.py    a schedule and its costs -> program.py
in_order.py        the fast loop, where every link has one sender
events.py          any program, in the order of time
steady_state/      what repeats in a long step is skipped
wavefront/         wide pipelines, whole rows of operations at once
device_times.py    what a run found -> a timeline
"""
