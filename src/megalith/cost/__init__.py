"""Time and bytes: operators on a device, collectives over a cluster, the memory of a training state."""
