"""What is offered where a plan does not fit in memory."""

from __future__ import annotations

import pytest

from megalith.explore import load_job, predict
from megalith.explore.predict import DoesNotFitError


def test_the_change_that_is_offered_fits() -> None:
    asked = {"tp": 8, "dp": 8, "global_batch": 64, "micro_batch": 1, "sharding": "none"}
    base = {
        "model": "llama3-70b",
        "cluster": "dgx-h100",
        "parallel": asked,
        "training": {"recompute": "none"},
    }
    with pytest.raises(DoesNotFitError) as caught:
        predict(load_job(base))
    offered = str(caught.value).rpartition("; take ")[2].rstrip(".").split()
    assert predict(load_job(base, offered)).fits


def test_a_cluster_that_is_too_small_says_how_large() -> None:
    with pytest.raises(DoesNotFitError, match=r"a cluster of at least \d+ such devices \(8 are here\)"):
        predict(
            load_job(
                {
                    "model": "llama3-405b",
                    "cluster": {
                        "device": "h100-80g",
                        "levels": [{"name": "node", "count": 8, "link": "nvlink4"}],
                    },
                    "parallel": {"tp": 8, "global_batch": 8},
                }
            )
        )
