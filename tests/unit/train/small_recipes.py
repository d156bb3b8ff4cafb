"""The recipe that the tests of training share."""


def write_recipe(path, small_data):
    """A recipe that trains a small DLRM with dropout, so that the random state matters."""
    path.write_text(
        f"""
name: small
data: {{path: {small_data}, batch_size: 256, eval_batch_size: 1000, threads: 1, prefetch: 1}}
model:
  kind: dlrm
  dim: 4
  bottom: {{layers: [16]}}
  top: {{layers: [16], dropout: 0.1}}
train: {{epochs: 2, log_every: 7, eval_every: 20, checkpoint_every: 10, window_samples: 999, tensorboard: no}}
"""
    )
    return path
