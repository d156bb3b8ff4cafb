"""From a request to its answer: checks, the queue, batches, and which card takes what."""
