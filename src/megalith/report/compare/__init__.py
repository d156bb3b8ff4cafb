"""Several runs on one page.

facts.py    a line for each run, which is best in each column, and where their recipes differ
charts.py   learning curves of all runs, one colour a run
page.py     the page
"""

from megalith.report.compare.page import write_comparison

__all__ = ["write_comparison"]
