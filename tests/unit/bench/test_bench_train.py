"""`megalith bench train`: the peers learn what we learn, and the step's time is taken apart."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from commands import megalith, unwrapped
from megalith.bench.peers.lookup import OURS, LookupShape
from megalith.bench.train.candidates import PARTS
from megalith.bench.train.samples import draw_samples
from megalith.bench.train.suite import candidates

SHAPE = LookupShape(tables=3, rows=200, dim=8, batch=16, lookups=2)


@pytest.mark.skipif(
    find_spec("torchrec") is None, reason="TorchRec is not installed; `make bench` installs it."
)
@pytest.mark.filterwarnings("ignore")
def test_torchrec_has_our_losses() -> None:
    with candidates(SHAPE, ["torchrec"]) as trainers:
        for seed in range(4):
            batch = draw_samples(SHAPE, seed)
            for trainer in trainers.values():
                trainer.timed(batch)
            assert trainers["torchrec"].loss == pytest.approx(trainers[OURS].loss, abs=1e-5)


def test_plain_torch_starts_from_our_loss() -> None:
    with candidates(SHAPE, ["torch"]) as trainers:
        batch = draw_samples(SHAPE, 0)
        for trainer in trainers.values():
            trainer.timed(batch)
        assert trainers["torch"].loss == pytest.approx(trainers[OURS].loss, abs=1e-5)


def test_the_command_takes_the_step_apart_and_saves_the_result(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    small = ("--tables", "2", "--rows", "100", "--dim", "8", "--batch", "8", "--repeats", "1")
    done = megalith("bench", "train", *small, "--peer", "torch", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "dense optimizer" in unwrapped(done.stdout)
    results = json.loads(out.read_text())["results"]
    assert tuple(results["parts"]) == PARTS
    assert set(results["candidates"]) == {OURS, "torch"}
    assert results["speed_ratio"]["torch"] > 0
