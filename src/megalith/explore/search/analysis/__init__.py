"""What an answer says beside the best plan: why, at what price, what would help, why nothing fits."""
