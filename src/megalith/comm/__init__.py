"""How ranks reach each other: process groups, shared memory, pipes, all-to-all, all-reduce."""
