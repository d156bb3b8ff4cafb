"""`megalith bench tiers`: every side trains the same rows, and the result says what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from commands import megalith
from megalith.bench.tiers.candidates import CollectionTrainer, GatheredTrainer, MappedTrainer
from megalith.bench.tiers.stream import SKEWS, TierStream
from megalith.bench.tiers.suite import TierSettings, bench_tiers
from megalith.embeddings.stores.settings import TieredMemory

STREAM = TierStream(features=3, rows=400, declared=400, dim=8, batch=16)
needs_rocksdb = pytest.mark.skipif(
    find_spec("rocksdict") is None, reason="rocksdict is not installed; `make bench` installs it."
)


@pytest.mark.parametrize("skew", sorted(SKEWS))
def test_the_most_frequent_rows_take_their_share(skew: str) -> None:
    stream = replace(STREAM, rows=20_000, batch=4096, top_share=SKEWS[skew])
    drawn = torch.cat([stream.values(number).view(3, -1) for number in range(8)], dim=1).flatten()
    _, counts = drawn.unique(return_counts=True)
    frequent = stream.spread(torch.arange(200))
    share = torch.isin(drawn, frequent).double().mean()
    assert abs(float(share) - SKEWS[skew]) < 0.02
    assert torch.equal(stream.values(3), stream.values(3))
    assert counts.max() > counts.double().mean()


def test_every_row_is_touched_once() -> None:
    batches = []
    while (values := STREAM.fill(len(batches))) is not None:
        batches.append(values.view(3, -1))
    touched = torch.cat(batches, dim=1)
    for own in touched:
        assert torch.equal(own.unique(), torch.arange(STREAM.rows))


def weights_of(trainer: CollectionTrainer) -> torch.Tensor:
    """All rows, read by lookups of one id each."""
    with torch.no_grad():
        some = [ids.repeat(STREAM.features) for ids in torch.arange(STREAM.rows).split(50)]
        return torch.cat([trainer.collection(ids, torch.arange(len(ids) + 1)) for ids in some])


def gathered_alike(trainer: GatheredTrainer, ours: CollectionTrainer) -> None:
    """Gives a store the start values of ours."""
    keys = torch.arange(STREAM.features * STREAM.rows)
    weights = weights_of(ours).view(STREAM.rows, STREAM.features, STREAM.dim).transpose(0, 1).flatten(0, 1)
    trainer.write(keys, torch.cat([weights, torch.zeros(len(keys), 1)], dim=1))


@pytest.mark.parametrize("kind", ["tiered", "mapped", pytest.param("rocksdb", marks=needs_rocksdb)])
def test_all_sides_train_the_same_rows(kind: str, tmp_path: Path) -> None:
    flat = replace(STREAM, top_share=0.1)
    batches = [flat.values(number) for number in range(40)]
    ours = CollectionTrainer(STREAM, None)
    if kind == "tiered":
        memory = TieredMemory(dram=300 * STREAM.row_bytes, path=tmp_path / "rows", window=3)
        tiered = CollectionTrainer(STREAM, memory)
        ours.train(batches)
        tiered.train(batches)
        assert torch.equal(weights_of(tiered), weights_of(ours))
        assert tiered.report()["counts"]["reads"] > 0
        tiered.close()
    else:
        peer: GatheredTrainer
        if kind == "mapped":
            peer = MappedTrainer(STREAM, tmp_path / "rows")
        else:
            from megalith.bench.tiers.rocksdb import RocksTrainer

            peer = RocksTrainer(STREAM, tmp_path / "rows", 64 << 20)
        gathered_alike(peer, ours)
        ours.train(batches)
        peer.train(batches)
        rows = peer.read(torch.arange(STREAM.features * STREAM.rows))[:, : STREAM.dim]
        trained = rows.view(STREAM.features, STREAM.rows, STREAM.dim).transpose(0, 1).flatten(1)
        torch.testing.assert_close(trained, weights_of(ours))
        peer.close()
    assert not (tmp_path / "rows").exists()


def test_the_result_says_what_was_measured(tmp_path: Path) -> None:
    settings = TierSettings(
        stream=replace(STREAM, declared=800, rows=400),
        cache_bytes=300 * STREAM.row_bytes,
        limit_bytes=2 << 30,
        folder=tmp_path,
        steps=4,
        repeats=2,
        warmup=2,
        window=2,
        threads=1,
    )
    content = json.loads(json.dumps(bench_tiers(settings, ["rate", "policies"], ["mapped"])))
    rate = content["results"]["rate"]
    assert set(rate["candidates"]) == {"tiered", "memory", "mapped"}
    assert set(rate["speed_ratio"]) == {"memory", "mapped"}
    tiered = rate["candidates"]["tiered"]
    assert 0 < tiered["hit_rate"] < 1
    assert tiered["counts"]["lookups"] == 4 * STREAM.features * STREAM.batch
    for skew in SKEWS:
        found = content["results"]["policies"][skew]
        assert all(found[policy]["reads"] > 0 for policy in ("lru", "lfu", "lookahead"))
    assert content["settings"]["peers"] == ["mapped"]
    assert not any(tmp_path.iterdir())


def test_the_command_prints_tables(tmp_path: Path) -> None:
    arguments = ["--touched", "300KiB", "--cache", "100KiB", "--features", "3", "--dim", "8", "--batch", "16"]
    steps = ["--steps", "2", "--warmup", "2", "--repeats", "1", "--workdir", str(tmp_path)]
    out = tmp_path / "tiers.json"
    done = megalith("bench", "tiers", "--only", "policies", *arguments, *steps, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "Rows read by policy" in done.stdout
    assert json.loads(out.read_text())["settings"]["stream"]["dim"] == 8
