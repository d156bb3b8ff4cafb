"""The plans that a search may choose from: four decisions, and what the user allows of each."""
