"""The predicted step of recommendation models."""

from __future__ import annotations

import pytest

from megalith.core.errors import PlanError
from megalith.explore import load_job, predict


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
