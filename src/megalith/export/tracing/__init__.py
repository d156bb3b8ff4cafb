"""How `megalith.export.trace` makes a program of a model: what torch runs is recorded, then put in order."""
