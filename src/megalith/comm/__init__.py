"""Communication between ranks: process groups, shared memory, pipes, all-to-all, all-reduce."""
