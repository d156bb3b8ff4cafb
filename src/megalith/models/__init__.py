"""Click models. Each is a folder of the same shape: `config.py` (settings and the tables it needs) and
`model.py` (the module: dense features and embedding vectors in, one logit a sample out).
"""
