"""The runtime of a plan: tables cut over processes, looked up and trained as if they were whole."""
