"""Tables that people bring, as Parquet, Arrow or CSV files: one set of rules for what each column is.

files.py     the formats: a sample of a file, and its rows as record batches
csv_file.py  the same of CSV, whose columns are text
listing.py   what each column is taken for, and why
rules.py     the rules
columns.py   the choice that a data set keeps
values.py    columns to numbers, times, keys and vectors
source.py    rows as blocks
"""
