"""What each worker is sent, holds and returns under a plan, without torch."""
