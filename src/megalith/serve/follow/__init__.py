"""Following a stream of versions: a running server takes what a trainer publishes, without a restart."""
