"""What trainers are handed: every argument is one the trainer has, and every host gets the rank that puts the
axes where the plan has them. The lists of arguments are those of the two projects, in data/."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from flag_plans import PLANS, job_of, prediction
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import PlanError
from megalith.explore.flags import megatron_files, torchtitan_files, trainer_files
from megalith.explore.flags.megatron import pipeline_layout
from megalith.explore.flags.ranks import host_ranks, placement_digits
from megalith.explore.job import Job, Parallel
from megalith.explore.load import load_job

DATA = Path(__file__).parent / "data"
MEGATRON = json.loads((DATA / "megatron_arguments.json").read_text())["arguments"]
TORCHTITAN = json.loads((DATA / "torchtitan_keys.json").read_text())

PLAIN = ("tp", "cp", "dp", "pp")
DATA_OUTSIDE = ("tp", "cp", "pp", "dp")


def launched(job: Job, folder: Path, host: int = 0) -> tuple[list[str], list[str]]:
    """What the script hands to torchrun and to Megatron, taken from a shell that really ran it."""
    (folder / "torchrun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / "torchrun").chmod(0o755)
    (folder / "megatron.sh").write_text(megatron_files(job, prediction())[0].text)
    done = subprocess.run(
        ["bash", folder / "megatron.sh"],
        env={"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOST": str(host), "MASTER_ADDR": "a"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    at = words.index("pretrain_gpt.py")
    return words[:at], words[at + 1 :]


def parsed(words: list[str]) -> dict[str, list[str]]:
    """Arguments by name, each checked against what Megatron's parser takes."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word
            assert name in MEGATRON, f"Megatron-LM has no {name}"
            assert name not in found, f"{name} stands twice"
            found[name] = []
        else:
            found[name].append(word)
    for name, values in found.items():
        entry = MEGATRON[name]
        assert len(values) == entry["values"] or (entry["values"] == "+" and values), (name, values)
        for value in values:
            assert "choices" not in entry or value in entry["choices"], (name, value)
            {"int": int, "float": float, "str": str}[entry["type"]](value)
    return found


@pytest.mark.parametrize("name", PLANS)
def test_megatron_knows_every_argument_of_the_script(name: str, tmp_path: Path) -> None:
    job = job_of(name)
    launch, words = launched(job, tmp_path)
    assert job.parallel is not None
    found = parsed(words)
    assert found["--tensor-model-parallel-size"] == [str(job.parallel.tp)]
    assert found["--pipeline-model-parallel-size"] == [str(job.parallel.pp)]
    hosts, processes = launch[launch.index("--nnodes") + 1], launch[launch.index("--nproc-per-node") + 1]
    assert int(hosts) * int(processes) == 128


def test_stages_and_chunks_are_said_in_megatrons_words(tmp_path: Path) -> None:
    chunks = parsed(launched(job_of("interleaved"), tmp_path)[1])
    assert chunks["--num-layers-per-virtual-pipeline-stage"] == ["4"]
    assert "--swiglu" not in chunks
    uneven = parsed(launched(job_of("uneven"), tmp_path)[1])
    assert uneven["--pipeline-model-parallel-layout"] == ["Et*9|(t*10|)*6,t*11L"]
    assert "--use-tp-pp-dp-mapping" in uneven
    assert "--overlap-grad-reduce" not in uneven


def test_experts_and_latent_attention_are_said_in_megatrons_words(tmp_path: Path) -> None:
    found = parsed(launched(job_of("latent"), tmp_path)[1])
    assert found["--expert-model-parallel-size"] == ["16"]
    assert found["--moe-layer-freq"] == ["([0]*3+[1]*58)"]
    assert found["--moe-shared-expert-intermediate-size"] == ["2048"]
    assert found["--kv-lora-rank"] == ["512"]
    assert "--num-query-groups" not in found
    assert found["--fp8-format"] == ["hybrid"]


def test_what_was_predicted_is_what_the_flags_say(tmp_path: Path) -> None:
    folded = parsed(launched(job_of("folded"), tmp_path)[1])
    assert folded["--expert-tensor-parallel-size"] == ["1"]
    assert "--tp-comm-overlap" in folded
    assert folded["--moe-token-dispatcher-type"] == ["flex"]
    assert folded["--moe-flex-dispatcher-backend"] == ["deepep"]
    flat = job_of("folded", network={"collectives": "flat"}, training={"tensor_overlap": "none"})
    plain = parsed(launched(flat, tmp_path)[1])
    assert plain["--moe-token-dispatcher-type"] == ["alltoall"]
    assert "--tp-comm-overlap" not in plain
    today = parsed(launched(job_of("today"), tmp_path)[1])
    assert today["--cp-comm-type"] == ["a2a"]
    assert today["--mtp-num-layers"] == ["1"]
    assert today["--window-size"] == ["128,0"]
    assert today["--window-attn-skip-freq"] == ["([1,0]*18)"]
    counted = parsed(launched(job_of("counted"), tmp_path)[1])
    assert counted["--num-layers-per-virtual-pipeline-stage"] == ["8"]
    assert {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"} <= set(
        counted
    )


def test_a_mixture_is_not_written_as_the_dense_model_of_its_sizes() -> None:
    job = job_of("interleaved", model="mixtral-8x7b", parallel={"dp": 128, "global_batch": 128})
    file = torchtitan_files(job, prediction())[0]
    content = tomllib.loads(file.text)
    assert content["model"]["name"] == "qwen3"
    assert any("num_experts=8, top_k=2" in sentence for sentence in file.missing)


def test_converters_have_torchtitans_names() -> None:
    dense = tomllib.loads(torchtitan_files(job_of("context"), prediction())[0].text)
    assert dense["model"]["converters"] == ["quantize.linear.float8"]
    experts = tomllib.loads(torchtitan_files(job_of("latent"), prediction())[0].text)
    assert experts["model"]["converters"] == ["quantize.linear.float8", "quantize.grouped_mm.float8"]


def test_sharding_becomes_the_distributed_optimizer_or_fsdp(tmp_path: Path) -> None:
    first = parsed(launched(job_of("cut"), tmp_path)[1])
    assert {"--use-distributed-optimizer", "--overlap-param-gather"} <= first.keys()
    assert "--use-megatron-fsdp" not in first
    hybrid = parsed(launched(job_of("hybrid"), tmp_path)[1])
    assert hybrid["--data-parallel-sharding-strategy"] == ["optim_grads_params"]
    assert hybrid["--num-distributed-optimizer-instances"] == ["2"]
    # Megatron's FSDP refuses the one connection that tensor parallelism asks for.
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in megatron_files(job_of("hybrid"), prediction())[0].text


def test_what_a_trainer_cannot_do_stands_in_the_file() -> None:
    for files in (megatron_files, torchtitan_files):
        file = files(job_of("zero-bubble"), prediction())[0]
        assert any("local_steps=10" in sentence for sentence in file.missing)
        assert all(f"# Not expressed: {sentence}\n" in file.text for sentence in file.missing)
    megatron = megatron_files(job_of("zero-bubble"), prediction())[0]
    assert any("zb-h1" in sentence and "runs 1f1b" in sentence for sentence in megatron.missing)
    assert megatron_files(job_of("interleaved"), prediction())[0].missing == ()


@pytest.mark.parametrize("name", PLANS)
def test_torchtitan_knows_every_key(name: str) -> None:
    job = job_of(name)
    parallel = job.parallel
    assert parallel is not None
    content = tomllib.loads(torchtitan_files(job, prediction())[0].text)
    check_keys(content, TORCHTITAN["keys"])
    found = content["parallelism"]
    degrees = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel")
    world = found["pipeline_parallel_degree"]
    for degree in degrees:
        world *= found[f"{degree}_degree"]
    assert world == 128
    if parallel.pp > 1:
        assert found["pipeline_parallel_schedule"] in TORCHTITAN["schedules"]
        parts = found["module_fqns_per_model_part"]
        assert len(parts) == parallel.pp * parallel.vpp
        named = [module for part in parts for module in part]
        layers = [f"layers.{layer}" for layer in range(job.model.layers)]  # type: ignore[union-attr]
        assert named == ["tok_embeddings", *layers, "norm", "output"]
    # Every step takes the whole batch: by micro-batches of a pipeline, or accumulated.
    copies = found["data_parallel_replicate_degree"] * found["data_parallel_shard_degree"]
    assert parallel.global_batch % (content["training"]["local_batch_size"] * copies) == 0


def check_keys(content: dict[str, Any], known: dict[str, Any], where: str = "") -> None:
    for key, value in content.items():
        assert key in known, f"torchtitan has no {where}{key}"
        entry = known[key]
        if isinstance(value, dict):
            check_keys(value, entry, f"{where}{key}.")
        elif "choices" in entry:
            assert value in entry["choices"], f"{where}{key} = {value}"
        else:
            wanted = entry["type"].removesuffix(" | None").removesuffix(" | str").partition("[")[0]
            assert type(value).__name__ == wanted, f"{where}{key} = {value}"


@pytest.mark.parametrize(("name", "extra"), [("zb-h1", 0), ("zb-h2", 0), ("long-link", 4)])
def test_a_schedule_without_a_name_is_written_out_as_torch_reads_it(name: str, extra: int) -> None:
    """torch checks the order and adds sends and receives to it, which fails where it could not run."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    job = job_of("zero-bubble")
    training = job.training.model_copy(update={"schedule": name, "extra_in_flight": extra})
    toml, csv = torchtitan_files(job.model_copy(update={"training": training}), prediction())
    assert tomllib.loads(toml.text)["parallelism"]["pipeline_parallel_schedule_csv"] == csv.name
    actions = {
        rank: [schedules._Action.from_str(word) for word in line.split(",")]
        for rank, line in enumerate(csv.text.splitlines())
    }
    mapping = schedules._validate_schedule(actions, 8, 8, 32)
    assert mapping == {stage: stage for stage in range(8)}
    schedules._add_send_recv(actions, stage_to_rank=mapping.__getitem__, num_stages=8)


def test_known_shapes_are_torchtitans_flavours() -> None:
    content = tomllib.loads(torchtitan_files(job_of("context"), prediction())[0].text)
    assert content["model"]["flavor"] == "70B"
    other = torchtitan_files(job_of("interleaved"), prediction())[0]
    assert any("TransformerModelArgs(dim=12288" in sentence for sentence in other.missing)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("orders", [[PLAIN], [DATA_OUTSIDE, PLAIN]])
def test_hosts_get_the_ranks_that_put_axes_where_the_plan_has_them(
    name: str, orders: list[tuple[str, ...]]
) -> None:
    job = job_of(name)
    ranks = host_ranks(job, orders)
    assert ranks is not None
    check_ranks(job, ranks.order, ranks.rank_of)


def check_ranks(job: Job, order: tuple[str, ...], rank_of: Any) -> None:
    """Each device's coordinates on the axes, by its place in the cluster and by its rank, are the same."""
    parallel = job.parallel
    assert parallel is not None
    sizes = {"tp": parallel.tp, "cp": parallel.cp, "dp": parallel.dp, "pp": parallel.pp}
    digits = placement_digits(parallel)
    world = parallel.tp * parallel.cp * parallel.dp * parallel.pp
    for place in range(world):
        wanted = dict.fromkeys(sizes, 0)
        left = place
        for digit in digits:
            left, value = divmod(left, digit.size)
            wanted[digit.axis] += value * digit.stride
        host, local = divmod(place, 8)
        rank = rank_of(host) * 8 + local
        got = {}
        for axis in order:
            rank, got[axis] = divmod(rank, sizes[axis])
        assert got == wanted


@given(
    sizes=st.tuples(*[st.sampled_from((1, 2, 4))] * 3),
    cut=st.booleans(),
    order=st.permutations(["dp", "pp", "cp"]),
)
def test_any_order_of_axes_outside_a_host_is_reached(
    sizes: tuple[int, int, int], cut: bool, order: list[str]
) -> None:
    cp, dp, pp = sizes
    placement = ["tp", *order]
    if cut and pp == 4:
        placement[placement.index("pp")] = "pp:2"
        placement.append("pp:2")
    parallel = Parallel(tp=8, cp=cp, dp=dp, pp=pp, global_batch=dp, placement=tuple(placement))
    job = job_of("interleaved").model_copy(update={"parallel": parallel})
    ranks = host_ranks(job, [PLAIN])
    assert ranks is not None
    check_ranks(job, PLAIN, ranks.rank_of)


def test_the_shell_numbers_hosts_as_python_does(tmp_path: Path) -> None:
    job = job_of("cut")
    ranks = host_ranks(job, [PLAIN])
    assert ranks is not None
    for host in (0, 3, 5, 12, 15):
        launch, _ = launched(job, tmp_path, host)
        assert int(launch[launch.index("--node-rank") + 1]) == ranks.rank_of(host)
    assert sorted(ranks.rank_of(host) for host in range(16)) == list(range(16))


def test_a_placement_that_hosts_cannot_take_is_said() -> None:
    job = job_of("interleaved")
    parallel = Parallel(tp=4, pp=8, dp=4, global_batch=64, micro_batch=1, placement=("pp", "tp", "dp"))
    file = megatron_files(job.model_copy(update={"parallel": parallel}), prediction())[0]
    assert any("not neighbours" in sentence for sentence in file.missing)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20))
def test_layouts_unfold_to_the_layers_they_were_made_of(layers: list[int]) -> None:
    # As Megatron unfolds them: commas are for the eye, (...)*n and then x*n are repeated.
    text = pipeline_layout(layers).replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    assert [stage.count("t") for stage in text.split("|")] == layers
    assert text.startswith("E")
    assert text.endswith("L")
    assert set(text) <= set("EtL|")


def test_recommendation_models_have_no_flags() -> None:
    job = load_job({"model": "neo-a", "cluster": "zionex", "parallel": {"dp": 128, "global_batch": 1024}})
    assert trainer_files(job, prediction()) == []
    with pytest.raises(PlanError, match="transformers only"):
        megatron_files(job, prediction())


def test_every_combination_of_options_is_written(tmp_path: Path) -> None:
    for sharding, schedule, precision in product(
        ("none", "zero1", "zero2", "zero3", "hybrid"), ("gpipe", "1f1b", "long-link"), ("bf16", "fp32")
    ):
        job = job_of("uneven")
        assert job.parallel is not None
        job = job.model_copy(
            update={
                "parallel": job.parallel.model_copy(update={"sharding": sharding}),
                "training": job.training.model_copy(update={"schedule": schedule, "precision": precision}),
            }
        )
        for file in trainer_files(job, prediction()):
            assert file.text.endswith("\n")
