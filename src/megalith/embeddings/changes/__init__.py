"""Which rows of a table changed, as the readers of changes ask for them."""
