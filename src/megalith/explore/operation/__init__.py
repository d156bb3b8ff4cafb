"""What a step becomes in operation: failures and checkpoints, and other jobs on the same links."""
