"""What everything stands on: errors, configuration, schema, units, files, traces. Never imports torch."""
