"""Training over sites that differ: other devices in each, other numbers of them, a link for each pair.

shares.py       which stages, layers and samples each site takes
replicas.py     whole replicas on each site: gradients cross
stages.py       one pipeline over all sites: activations cross
predicted.py    the step of either, as a prediction
"""

from __future__ import annotations

from megalith.explore.sites.predicted import predict_sites

__all__ = ["predict_sites"]
