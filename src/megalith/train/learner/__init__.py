"""The learner: tables, dense model and optimizers of one process."""
