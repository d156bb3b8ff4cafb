"""What serving a model costs on a host and its cards: lookups, products, transfers, host work.

card_host.py     a host, its cards and their links, taken from a cluster
assumptions.py   what of a data sheet is reached; none of it was measured on a card
seconds.py       seconds of each kind of work
"""
