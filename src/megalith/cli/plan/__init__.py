"""`megalith plan`: makes, shows and checks sharding plans."""
