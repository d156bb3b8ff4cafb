"""What each option costs: seconds of every phase and bytes of every memory tier, by worker."""
