"""Plan training across buildings and regions: a model, a cluster and a plan in, a simulated step out."""
