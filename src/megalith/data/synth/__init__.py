"""Generated click data, calibrated to Criteo Kaggle and Avazu or of any shape, with a planted truth.

    calibration.py   the shape of each real data set: criteo.yaml, avazu.yaml
    calibrate.py     how those numbers were read off the head of a real file
    sampler.py       ids and numbers drawn by table lookup
    drift.py         ids that rise, fall and enter as time passes
    truth.py         the click probability of every row
    tail.py          effects of rare ids on it, for `--tail`
    tables.py        data of any shape, and of published models (model_shapes.yaml)
    options.py       what can be asked for
    fields.py        categorical fields, ready to draw from
    stream.py        blocks of rows, each made from its own seed
    text.py          blocks as Criteo TSV or Avazu CSV
    generate.py      a whole data set on disk

Every row has a known click probability, so the best log loss that any model can reach is known too.
"""
