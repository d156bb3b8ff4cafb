"""`megalith bench tiers`: every side trains the same rows, and the result says what was measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from commands import megalith
from megalith.bench.tiers.candidates import CollectionTrainer, GatheredTrainer, MappedTrainer
from megalith.bench.tiers.prediction import predict_rate, stream_frequencies
from megalith.bench.tiers.processes import MemoryLimit
from megalith.bench.tiers.stream import SKEWS, TierStream
from megalith.bench.tiers.suite import TierSettings, bench_tiers
from megalith.cli.bench.commands import TierPart, chosen_parts
from megalith.core.errors import ConfigError
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.embeddings.stores.settings import TieredMemory
from megalith.hardware.disk import DiskSpeed

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


def test_a_folder_that_is_no_control_group_is_not_taken_for_a_limit(tmp_path: Path) -> None:
    limit = MemoryLimit("candidate", 1 << 30, [(tmp_path, "memory.max")])
    assert limit.method.startswith("none")
    assert limit.folder is None
    assert not list(tmp_path.iterdir())


def test_a_process_does_not_have_more_memory_than_its_limit() -> None:
    limit = MemoryLimit("over", 128 << 20)
    if limit.folder is None:
        pytest.skip("no control group can be made here.")
    over = "input(); taken = bytearray(1 << 30); print(open('/proc/self/statm').read().split()[1])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", over], text=True, **pipes)
    limit.add(process.pid)
    pages, _ = process.communicate("go\n")
    limit.close()
    # Where there is room to swap it lives on, with as much in memory as it may have.
    assert process.returncode == -signal.SIGKILL or int(pages) * 4096 <= 128 << 20
    assert not limit.folder.exists()


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


@pytest.mark.slow
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
    parts = ["rate", "peers", "training", "capability", "policies"]
    content = json.loads(json.dumps(bench_tiers(settings, parts, ["mapped"])))
    rate = content["results"]["rate"]
    assert set(rate["candidates"]) == {"tiered", "memory"}
    assert set(rate["speed_ratio"]) == {"memory"}
    assert set(content["results"]["peers"]["speed_ratio"]) == {"mapped"}
    tiered = rate["candidates"]["tiered"]
    assert 0 < tiered["hit_rate"] < 1
    assert tiered["counts"]["lookups"] == 4 * STREAM.features * STREAM.batch
    assert set(content["results"]["training"]["candidates"]) == {"tiered", "memory"}
    (alone,) = content["results"]["capability"]["candidates"].values()
    assert alone["other_resident_bytes"] > 0
    assert content["results"]["capability"]["predicted"] is None
    for part in ("rate", "training"):
        expected = content["results"][part]["predicted"]
        assert expected["samples_per_second"] > 0
        assert expected["disk"]["reads_per_second"] > 0
        assert "samples/s" in expected["sentence"]
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


def test_parts_are_named_in_a_list_or_one_by_one() -> None:
    assert chosen_parts(["policies, rate"]) == chosen_parts(["policies", "rate"]) == ["rate", "policies"]
    assert chosen_parts([]) == [part.value for part in TierPart]
    with pytest.raises(ConfigError, match=r"--only polices is no part of this suite.*policies"):
        chosen_parts(["rate,polices"])


def test_the_predicted_frequencies_are_those_of_the_stream() -> None:
    stream = replace(STREAM, rows=20_000, batch=4096, top_share=0.6)
    expected = stream_frequencies(stream)
    assert expected.num_ids == pytest.approx(stream.features * stream.rows)
    assert expected.lookups_per_sample == pytest.approx(stream.features)
    assert expected.share_of_hottest(0.01) == pytest.approx(0.6, abs=0.01)
    drawn = [stream.values(number).view(stream.features, -1) for number in range(8)]
    distinct = sum(len(torch.cat([own[n] for own in drawn]).unique()) for n in range(stream.features))
    assert float(expected.distinct(8 * stream.batch)) == pytest.approx(distinct, rel=0.02)


def test_rows_that_were_trained_before_are_read_not_begun() -> None:
    stream = replace(STREAM, rows=20_000, batch=256, top_share=0.6)
    disk = DiskSpeed("io_uring", 1e4, 1e9, 1e9, 0.0)
    found = predict_rate(stream, CacheGeometry(10_000, "lookahead", 4), 200, 1e-6, disk, cores=2)
    assert 0 < found.hit_rate < 1
    assert found.reads_per_sample == pytest.approx(stream.features * (1 - found.hit_rate))
