"""What everything stands on: errors, configuration, schema, units, atomic files, traces. Never imports torch."""
