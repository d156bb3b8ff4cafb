"""Reports: a run's folder or a saved benchmark in, one HTML file out that opens anywhere and asks the network
for nothing.

collect.py     what the files of a run say
timing.py      where its time went, from trace.jsonl
tables.py      how large its embedding tables are and how uneven the traffic on them is
charts.py      the charts, as plotly.js figures
page.py        the page around them; page.css and page.js lie beside it
bench_page.py  the page of a saved benchmark
"""

from megalith.report.bench_page import write_bench_report
from megalith.report.page import write_report

__all__ = ["write_bench_report", "write_report"]
