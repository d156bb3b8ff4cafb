"""What machines have: this one, for now. Never imports torch."""
