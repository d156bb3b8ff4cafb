"""What a job file may say: model, cluster, parallelism, training, network, constraints.

The search answers with jobs too, so that every answer can be predicted again. Names from the catalogs may
stand wherever a description may: `model: llama3-70b`, `cluster: two-buildings`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from megalith.core.config import Config
from megalith.hardware.catalog import ClusterSpec as ClusterSpec
from megalith.hardware.catalog import LevelSpec as LevelSpec

Precision = Literal["fp16", "bf16", "fp8", "mxfp8", "nvfp4", "fp32"]
Recompute = Literal["none", "selective", "full"]
Sharding = Literal["none", "zero1", "zero2", "zero3", "hybrid"]
ScheduleName = Literal[
    "gpipe",
    "1f1b",
    "interleaved",
    "breadth-first",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe",
    "long-link",
    "greedy",
]
Routing = Literal["ecmp", "spray", "adaptive"]
Collectives = Literal["auto", "flat", "hierarchical"]
Compression = Literal["none", "bf16", "int8", "int4"]
Attention = Literal["auto", "unfused", "flash"]
TensorOverlap = Literal["auto", "none", "ring"]
ContextExchange = Literal["ring", "all-gather", "all-to-all"]
RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]
Offload = Literal["none", "optimizer", "activations", "both"]


class LowRankAttention(Config):
    """Multi-head latent attention: keys and values from a short latent vector (DeepSeek-V2)."""

    q_rank: int = Field(default=0, ge=0)
    """0: queries straight from the hidden state."""
    kv_rank: int = Field(gt=0)
    rope_head_dim: int = Field(default=64, gt=0)
    nope_head_dim: int = Field(default=128, gt=0)
    v_head_dim: int = Field(default=128, gt=0)


class TransformerModel(Config):
    """A decoder-only transformer, dense or with mixtures of experts."""

    kind: Literal["transformer"] = "transformer"
    name: str = ""
    hidden: int = Field(gt=0, le=10_000_000)
    layers: int = Field(gt=0, le=100_000)
    heads: int = Field(gt=0, le=1_000_000)
    kv_heads: int | None = Field(default=None, gt=0)
    """As many as `heads` when left out."""
    head_dim: int | None = Field(default=None, gt=0)
    """hidden / heads when left out."""
    ffn: int | None = Field(default=None, gt=0)
    """4 x hidden when left out."""
    gated: bool = False
    vocab: int = Field(gt=0, le=1_000_000_000)
    seq: int = Field(gt=0, le=1_000_000_000)
    tied_embeddings: bool = True
    experts: int = Field(default=0, ge=0)
    experts_per_token: int = Field(default=0, ge=0)
    expert_ffn: int | None = Field(default=None, gt=0)
    """`ffn` when left out."""
    shared_experts: int = Field(default=0, ge=0)
    shared_ffn: int | None = Field(default=None, gt=0)
    """Width of one shared expert; `expert_ffn` when left out."""
    dense_layers: int = Field(default=0, ge=0)
    """First layers that are dense although the model has experts."""
    expert_every: int = Field(default=1, gt=0)
    """Of so many layers after those the last one has experts, the others are dense: 2 in Llama 4
    Maverick."""
    window: int | None = Field(default=None, gt=0)
    """Keys that a token of a sliding-window layer attends to; all layers are full when left out."""
    full_attention_every: int = Field(default=0, ge=0)
    """Of so many layers the last one attends to everything, the others to `window`; 0: none does."""
    mtp_layers: int = Field(default=0, ge=0)
    """Modules of multi-token prediction, on the last stage: a layer, a projection and the output head
    again."""
    low_rank_attention: LowRankAttention | None = None

    @model_validator(mode="after")
    def _consistent(self) -> TransformerModel:
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts={self.experts} needs experts_per_token from 1 to {self.experts}, not "
                f"{self.experts_per_token}"
            )
        if self.experts_per_token and not self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} needs experts; add them or take 0")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers={self.dense_layers} is more than layers={self.layers}")
        if kv_groups_uneven(self.heads, self.kv_heads):
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        return self


def kv_groups_uneven(heads: int, kv_heads: int | None) -> bool:
    """Whether heads of keys and values cannot serve equal numbers of query heads."""
    return kv_heads is not None and heads % kv_heads != 0


class DlrmModel(Config):
    """A recommendation model; tables by groups of equal ones."""

    kind: Literal["dlrm"] = "dlrm"
    name: str = ""
    tables: int = Field(gt=0)
    rows: int = Field(gt=0)
    dim: int = Field(gt=0)
    pooling: float = Field(default=1.0, gt=0)
    dense: int = Field(default=13, ge=0)
    bottom: tuple[int, ...] = (512, 256)
    top: tuple[int, ...] = (1024, 1024, 512)
    num_crosses: int = Field(default=0, ge=0)
    """Cross layers over all vectors side by side, before the top MLP; 0: pairwise dot products instead."""
    cross_rank: int | None = Field(default=None, gt=0)
    """None: full cross matrices."""
    table_dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    mflops_per_sample: float | None = Field(default=None, gt=0)
    """Forward, when a source gives the total and not the layers."""


class Parallel(Config):
    """tp x cp x pp x dp devices; etp x ep divides tp x cp x dp, as in Megatron."""

    tp: int = Field(default=1, gt=0)
    cp: int = Field(default=1, gt=0)
    ep: int = Field(default=1, gt=0)
    etp: int | None = Field(default=None, gt=0)
    """Tensor parallelism of routed experts. Left out it is tp where ep divides cp x dp; else the most that
    lets ep x etp divide tp x cp x dp: experts folded over the tensor-parallel group."""
    pp: int = Field(default=1, gt=0)
    vpp: int = Field(default=1, gt=0)
    """Chunks of a device. A file that says neither this nor `training.schedule` gets the better of 1F1B and
    interleaving in as many chunks as divide."""
    dp: int = Field(default=1, gt=0)
    sharding: Sharding = "none"
    """A file that leaves it out gets the better of none and zero1 on devices after Ampere, else none."""
    shard_within: str | None = None
    """The level whose members each hold one whole copy in hybrid sharding; the outermost if left out."""
    micro_batch: int | None = Field(default=None, gt=0)
    """The best that fits in memory when left out."""
    global_batch: int = Field(gt=0, le=1_000_000_000)
    sequence_parallel: bool = True
    context_exchange: ContextExchange = "ring"
    """How context parallelism brings keys and values together: round a ring beside attention, gathered before
    it (Llama 3), or heads exchanged for tokens by all-to-all (Ulysses)."""
    placement: tuple[str, ...] = ("tp", "cp", "dp", "pp")
    """Axes from the innermost devices out; an axis may be cut: ("tp", "pp:4", "dp", "pp:2") keeps runs of 4
    stages together and lays the two runs 1 and 2 outermost."""
    batch_per_site: tuple[int, ...] | None = None
    """Samples of each site where replicas lie on sites that differ; by their speed when left out."""
    layers_per_stage: tuple[int, ...] | None = None
    """Layers of each of the pp x vpp virtual stages in the order data visits them; even when left out."""
    embedding_as_layer: bool = False
    head_as_layer: bool = False
    """Count the embedding, or the output head, as a layer where layers are spread evenly: Llama 3 405B has
    126 + 2 over pp x vpp."""


class Training(Config):
    """How the model is trained: precision, recompute, schedule, what overlaps, what is exchanged."""

    precision: Precision = "bf16"
    stack: str | None = None
    """The software that trains: a profile of the package (`megalith explore catalog` lists them) or a YAML
    file of `megalith explore calibrate`. By device when left out; the prediction says which was taken."""
    recompute: Recompute | None = None
    """The least that fits in memory when left out, beginning with what the stack does by default."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """What selective recompute does again, in Megatron's names; the stack's own choice when left out."""
    offload: Offload = "none"
    """What lies in host memory between its uses: the optimizer's state, activations, or both."""
    offload_share: float = Field(default=1.0, gt=0, le=1)
    """Of the layers' activations, the share that goes there."""
    schedule: ScheduleName = "1f1b"
    """greedy: an order made for the costs of the links, with as many micro-batches in flight as memory holds
    (CrossPipe's)."""
    extra_in_flight: int = Field(default=0, ge=0)
    """Micro-batches that the long-link schedule holds above 1F1B's, to hide a slow boundary."""
    attention: Attention = "auto"
    """unfused: scores, softmax and dropout go through memory, as in Megatron of 2021-22; flash: they do not.
    auto is as the stack does."""
    tensor_overlap: TensorOverlap = "auto"
    """ring: tensor-parallel traffic runs beside the matrix products it feeds (Megatron-Core's --tp-comm-
    overlap), inside the fastest domain. auto is as the stack does."""
    overlap: bool = True
    """Gradient and parameter traffic beside compute. A file that leaves it out gets what the stack does: in
    those of 2021-22 nothing overlaps, messages between stages neither."""
    bucket_bytes: int = Field(default=40_000_000, gt=0)
    compression: Compression = "none"
    """Of gradients on the outermost level that data parallelism crosses."""
    local_steps: int = Field(default=1, gt=0)
    """Above 1: DiLoCo, one exchange across sites in so many steps. It changes the mathematics."""


class Network(Config):
    """How the fabric between nodes is used; inside a node nothing of this matters."""

    routing: Routing = "adaptive"
    collectives: Collectives = "auto"
    multipath: int = Field(default=1, gt=0)
    """Flows that one transfer is cut into across the outermost level."""


class Constraints(Config):
    """What a search may not do."""

    fixed: dict[str, int | str] = Field(default_factory=dict)
    """Axis or option -> the only value allowed, such as {tp: 8, schedule: 1f1b}."""
    forbidden_crossings: tuple[str, ...] = ()
    """axis@level, such as tp@building: that axis must stay inside members of that level."""
    memory_margin: float = Field(default=0.02, ge=0, lt=1)
    """Share of a device's memory kept free; buffers and fragmentation are counted apart."""
    deadline_seconds: float | None = Field(default=None, gt=0)
    """Step time that must be met; among plans that meet it the cheapest is best."""
    trainer: Literal["megatron", "torchtitan"] | None = None
    """Search only what this trainer runs as predicted: its schedules, shardings, collectives, placements."""
    allow_local_steps: bool = False
    allow_compression: bool = False


class Reliability(Config):
    """How often devices fail, and what saving and starting again take; for `explore goodput`."""

    device_hours_between_failures: float = Field(default=50_700, gt=0)
    """Of one device; Llama 3's 419 interruptions in 54 days on 16,384 GPUs."""
    restart_seconds: float = Field(default=300, ge=0)
    """From a failure until steps run again, the checkpoint's reading not counted."""
    checkpoint_seconds: float | None = Field(default=None, gt=0)
    """From one checkpoint to the next; the best by Young and Daly when left out."""
    checkpoint_overlap: float = Field(default=0.9, ge=0, le=1)
    """Share of a checkpoint's writing that runs beside training."""
    writer_gigabytes_per_second: float = Field(default=2.0, gt=0, le=1e6)
    """What one node writes and reads."""
    storage_gigabytes_per_second: float = Field(default=2000.0, gt=0, le=1e9)
    """What all storage takes; Llama 3's sustained 2 TB/s."""
    devices_per_writer: int = Field(default=8, gt=0)
    straggler_share: float = Field(default=1e-6, ge=0, le=1)
    """Share of devices that are slow at a time."""
    straggler_slowdown: float = Field(default=0.1, ge=0)
    """How much longer a step takes when one of its devices is."""


class Job(Config):
    """A question to the Explorer: a model on a cluster, and as much of a plan as is decided.

    `load_job` makes it from a file; `predict` needs its `parallel` section, `search` finds one.
    """

    name: str = ""
    model: TransformerModel | DlrmModel = Field(discriminator="kind")
    cluster: ClusterSpec
    parallel: Parallel | None = None
    """`search` finds it when left out; `global_batch` is then taken from here below."""
    global_batch: int | None = Field(default=None, gt=0)
    training: Training = Training()
    network: Network = Network()
    constraints: Constraints = Constraints()
    reliability: Reliability = Reliability()
    hardware: tuple[str, ...] = ()
    """Paths of YAML files that add devices, links and clusters to the catalog, or replace them."""
