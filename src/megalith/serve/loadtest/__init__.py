"""Load on a server from outside: requests drawn or recorded, sent at a rate or as quick as answers come."""
