"""What tiers of tables will do in a run, before it starts; no run fails for want of it."""
