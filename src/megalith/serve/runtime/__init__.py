"""How an engine works inside: shared memory, cards as processes, the scheduler, versions and faults."""
