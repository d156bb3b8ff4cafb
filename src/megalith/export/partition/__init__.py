"""A frozen model cut over a host and its cards, and what serving it there will cost. Starts without torch.

served/            what a partition needs to know of a model: tables, lookups, products
request_bytes.py   what a request moves, and the ways to move less
rules.py           which card each table goes to
prediction.py      seconds of a request, requests a second
partitioner.py     how many cards, and which of the rules
shortage.py        what to say of a model that does not fit
plan.py            all of it together: the record of a partition
records.py         `partition.json`
guidance.py        what a better card would bring
lessons.py         what the ways to move less are worth
"""
