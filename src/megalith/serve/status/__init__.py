"""What a server says of itself: counters, Prometheus metrics, and a page for the browser."""
