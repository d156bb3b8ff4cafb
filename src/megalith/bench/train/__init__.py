"""`megalith bench train`: a whole training step of DLRM, on one process or on several.

suite.py            one process: the benchmark
samples.py          the model's sizes and its random batches
candidates.py       the step of Megalith and of plain torch
torchrec_step.py    the step of TorchRec
ranks.py            several processes: the benchmark and its summary
rank_plans.py       the tables, the recipe and the sharding plan of all ranks
rank_worker.py      what one process does
rank_candidates.py  a rank of Megalith
torchrec_ranks.py   a rank of TorchRec
"""
