"""`megalith bench adaptive`: quality against bytes, of adaptive tables and of what one would use instead.

problem.py       how many bytes a method may take, which tables stay whole, what a row costs
rivals/          the other methods: tables that a learner trains like any others
methods.py       every method by name, with the settings that tuning tries
runs.py          one run: a method, a ratio and a seed in; quality and bytes out
suite.py         the grid of runs, which goes on where it was stopped
summary.py       means and standard errors over seeds
"""
