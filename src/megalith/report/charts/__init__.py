"""The charts of a run, as plotly.js figures.

    quality.py           loss, metrics and calibration
    speed.py             samples a second, and where the time went
    step_time.py         the spans of a step, from the reader to the kernels, and waiting
    ranks.py             time, waiting, lookups and memory of every rank
    embedding_tables.py  sizes of tables, and how skewed their lookups are
    tiers.py             hits, reads and bytes of tables beyond memory
    adaptive.py          live columns and bytes of adaptive tables
    dynamic_tables.py    ids that come and go in tables without a vocabulary
    quality_bytes.py     quality against bytes of methods that shrink tables
    lines.py             lines of points
    axes.py              axes of bytes, seconds, samples and names

Colours are names of the page's style variables ("--train"), which page.js fills in, so that one figure is
right in light and in dark. Each chart says in its caption what is to be seen; a chart without data is None.
"""
