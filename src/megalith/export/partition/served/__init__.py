"""What a partition needs to know of a model: from a frozen one's folder, or from tables in a YAML file."""
