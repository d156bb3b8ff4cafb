"""A step time that no plan can beat, so that the gap of a plan is known."""
