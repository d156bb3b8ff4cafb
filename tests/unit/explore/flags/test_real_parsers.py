"""What is written, read by the trainers' own code where that is installed: torchtitan's configuration and
models, Megatron-Core's configuration."""

from __future__ import annotations

import ast
import re
import shlex
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from flag_plans import PLANS, job_of, prediction

from megalith.explore.flags import megatron_files, torchtitan_files
from megalith.explore.job import Job, TransformerModel

TITAN = "torchtitan is not installed (pip install torchtitan==0.2.2): its parser was not tried"
CORE = "megatron-core is not installed (pip install megatron-core): its configuration was not tried"


def read_by_torchtitan(job: Job, folder: Path) -> Any:
    config = pytest.importorskip("torchtitan.config", reason=TITAN, exc_type=ImportError)
    if not hasattr(config, "ConfigManager"):
        pytest.skip("this torchtitan reads no TOML files; files are written for 0.2.2")
    for file in torchtitan_files(job, prediction()):
        (folder / file.name).write_text(file.text)
    return config.ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])


@pytest.mark.parametrize("name", PLANS)
def test_torchtitan_reads_the_file_as_it_was_meant(name: str, tmp_path: Path) -> None:
    job = job_of(name)
    parallel = job.parallel
    assert parallel is not None
    config = read_by_torchtitan(job, tmp_path)
    found = config.parallelism
    assert found.tensor_parallel_degree == parallel.tp
    assert found.context_parallel_degree == parallel.cp
    assert found.pipeline_parallel_degree == parallel.pp
    assert found.data_parallel_replicate_degree * found.data_parallel_shard_degree == parallel.dp
    converters = pytest.importorskip("torchtitan.protocols.model_converter", reason=TITAN)
    assert set(config.model.converters) <= set(converters._registry_model_converter_cls)
    assert bool(config.model.converters) == (job.training.precision == "fp8")


@pytest.mark.parametrize("name", ["llama3-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b"])
def test_torchtitans_flavour_is_the_model(name: str) -> None:
    specs = pytest.importorskip("torchtitan.protocols.train_spec", reason=TITAN, exc_type=ImportError)
    job = job_of("interleaved", model=name, parallel={"dp": 128, "global_batch": 128})
    file = torchtitan_files(job, prediction())[0]
    model, flavor = re.search(r'name = "(.+)"\nflavor = "(.+)"', file.text).groups()  # type: ignore[union-attr]
    sizes = specs.get_train_spec(model).model_args[flavor]
    assert isinstance(job.model, TransformerModel)
    assert (sizes.dim, sizes.n_layers, sizes.n_heads) == (
        job.model.hidden,
        job.model.layers,
        job.model.heads,
    )
    assert sizes.vocab_size == job.model.vocab
    if job.model.experts:
        assert sizes.moe_args.num_experts == job.model.experts
        assert sizes.moe_args.top_k == job.model.experts_per_token


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", PLANS)
def test_megatron_core_takes_the_configuration(name: str) -> None:
    configs = pytest.importorskip("megatron.core.transformer.transformer_config", reason=CORE)
    job = job_of(name)
    assert isinstance(job.model, TransformerModel)
    flags = flags_of(megatron_files(job, prediction())[0].text)
    kind = configs.MLATransformerConfig if job.model.low_rank_attention else configs.TransformerConfig
    known = {field.name: field for field in fields(kind)}
    values = {key: value for key, value in flags.items() if key in known}
    values["pipeline_dtype"] = pytest.importorskip("torch").bfloat16
    for dropped in ("attention_backend", "tp_comm_overlap", "moe_flex_dispatcher_backend", "fp8_format"):
        # These need Transformer Engine or DeepEP, which need a GPU.
        if dropped in values:
            assert dropped in known
            values.pop(dropped)
    if values.get("moe_token_dispatcher_type") == "flex":
        values["moe_token_dispatcher_type"] = "alltoall"
    values["add_bias_linear"] = not flags.get("disable_bias_linear", False)
    if layers := values.pop("num_layers_per_virtual_pipeline_stage", None):
        values["virtual_pipeline_model_parallel_size"] = (
            job.model.layers // values["pipeline_model_parallel_size"] // layers
        )
    config = kind(**values)
    assert job.parallel is not None
    assert config.tensor_model_parallel_size == job.parallel.tp
    assert config.num_layers == job.model.layers
    if job.model.experts:
        assert config.num_moe_experts == job.model.experts
        assert config.expert_model_parallel_size == job.parallel.ep


def flags_of(script: str) -> dict[str, Any]:
    """Arguments of the script as fields of Megatron-Core's configuration."""
    renamed = {"num_experts": "num_moe_experts", "group_query_attention": "", "swiglu": ""}
    found: dict[str, Any] = {}
    for line in script.splitlines():
        if not line.startswith("  --"):
            continue
        name, *values = shlex.split(line)
        key = name.removeprefix("--").replace("-", "_")
        key = renamed.get(key, key)
        value: Any = values[0] if values else True
        if key in ("moe_layer_freq", "window_attn_skip_freq"):
            value = eval(value)
        elif key == "window_size":
            value = tuple(int(part) for part in value.split(","))
        elif isinstance(value, str):
            with suppress(ValueError, SyntaxError):
                value = ast.literal_eval(value)
        if key == "recompute_modules":
            value = list(values)
        found[key] = value
    return found
