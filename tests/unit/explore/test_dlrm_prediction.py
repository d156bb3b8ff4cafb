"""The predicted step of recommendation models."""

from __future__ import annotations

import pytest

from megalith.core.errors import PlanError
from megalith.explore import load_job, predict
from megalith.explore.cost.dlrm import dlrm_flops
from megalith.explore.dlrm import make_dlrm_plan


def test_neo_s_models_run_on_neo_s_machine() -> None:
    for name in ("neo-a", "neo-f", "neo-i"):
        prediction = predict(load_job({"model": name, "cluster": "zionex", "global_batch": 65536}))
        assert sum(prediction.breakdown.values()) == pytest.approx(prediction.step_seconds)
        assert 2e5 < 65536 / prediction.step_seconds < 2e7
        assert prediction.fits


def test_tables_that_fit_nowhere_say_how_many_devices_would_do() -> None:
    job = load_job({"model": "neo-f", "cluster": "zionex", "parallel": {"dp": 16, "global_batch": 16384}})
    with pytest.raises(PlanError, match=r"take parallel\.dp=\d+"):
        predict(job)


def test_crosses_count_in_the_flops_of_a_sample() -> None:
    """What MLPerf's dlrm-v2 takes: 27 vectors of 128 columns through three crosses of rank 512."""

    def flops(**changes: object) -> float:
        job = load_job({"model": "mlperf-dlrm-v2", "cluster": "zionex", "global_batch": 65536})
        return dlrm_flops(make_dlrm_plan(job).model.model_copy(update=changes))

    bottom = 13 * 512 + 512 * 256 + 256 * 128
    width = 27 * 128
    top = width * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert flops() == 2 * (bottom + 3 * 2 * width * 512 + top)
    assert flops() == pytest.approx(32e6, rel=0.01)
    assert flops(cross_rank=None) == 2 * (bottom + 3 * width * width + top)
    job = load_job({"model": "mlperf-dlrm-v2", "cluster": "zionex", "global_batch": 65536})
    plain = load_job({"model": "mlperf-dlrm", "cluster": "zionex", "global_batch": 65536})
    assert predict(job).breakdown["compute"] > 2 * predict(plain).breakdown["compute"]
