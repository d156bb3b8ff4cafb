"""What all protocols share: requests into an engine, answers out of it, counted, traced and recorded."""
