"""What a training software reaches of the hardware: at most six fitted constants, and facts of how it trains.

A profile is a YAML file beside this module, or one of the user's (`megalith explore calibrate` writes it).
Its constants lie over those of the device (cost/calibration.yaml), which all stacks share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from megalith.core.config import Config, load_yaml, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.cost.calibration import Calibration, calibration
from megalith.cost.operators import QUANTISED
from megalith.hardware.cluster import Device

FOLDER = Path(__file__).parent
MOST_CONSTANTS = 6
ATTENTION_CEILING = 0.75
"""Share of peak that no fused attention of any stack is known to pass."""
POWER_EXPONENT = 0.75
GRAPHED_KERNEL_SECONDS = 3e-6
"""From a kernel of a graph to the next: no host in between, the first's tail and the second's start alone."""
AMPERE_KERNELS = 0.6
"""Share of its rate that fused attention keeps on a later device if it was written for Ampere's
instructions."""


class ConstantPrior(NamedTuple):
    """What is known of a constant before any measurement of a stack: shared by all stacks."""

    value: float
    spread: float
    """Standard deviation: of the logarithm, or of the value itself where it may be 0."""
    low: float
    high: float
    logarithmic: bool = True


PRIORS: dict[str, ConstantPrior] = {
    "products": ConstantPrior(1.0, 0.08, 0.6, 1.3),
    "attention": ConstantPrior(1.0, 0.25, 0.3, 3.0),
    "memory": ConstantPrior(1.0, 0.20, 0.3, 1.3),
    "overlap": ConstantPrior(0.7, 0.15, 0.0, 1.0, logarithmic=False),
    "kernel_seconds": ConstantPrior(5e-6, 0.6, 1e-6, 5e-5),
    "micro_batch_seconds": ConstantPrior(5e-4, 1.2, 1e-5, 2e-2),
    "scale_loss": ConstantPrior(0.003, 0.003, 0.0, 0.03, logarithmic=False),
    "small_group_exponent": ConstantPrior(0.0, 0.5, 0.0, 1.2, logarithmic=False),
}
"""Constant -> what it is before fitting. `docs/guides/explore.md` says what each means."""


class StackConstants(Config):
    """The fitted constants of a stack; one that is left out is the device's own."""

    products: float | None = Field(default=None, gt=0)
    """Rate of matrix products, as a multiple of what the device reaches in the middle of all stacks."""
    attention: float | None = Field(default=None, gt=0)
    """Rate of fused attention, as a multiple of the same."""
    memory: float | None = Field(default=None, gt=0)
    """Rate of passes over memory (norms, activations, casts, optimizer), as a multiple of the same:
    fusion."""
    overlap: float | None = Field(default=None, ge=0, le=1)
    """Share of the traffic beside compute that costs nothing; the rest slows compute down."""
    kernel_seconds: float | None = Field(default=None, gt=0)
    """Host work and tail of one kernel."""
    micro_batch_seconds: float | None = Field(default=None, gt=0)
    """Host work of one micro-batch."""
    scale_loss: float | None = Field(default=None, ge=0)
    """Share of a step lost with each doubling of the devices beyond eight."""

    small_group_exponent: float | None = Field(default=None, ge=0)
    """Groups of n < 8 ranks inside a node reach (n/8)^x of the link's rate: the library gives them fewer
    channels."""

    def given(self) -> dict[str, float]:
        """Those that the profile sets."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class StackTraits(Config):
    """How the software trains where a job does not say: choices of its authors, nothing fitted."""

    attention: Literal["flash", "unfused"] = "flash"
    ampere_kernels: bool = False
    """Its fused attention uses Ampere's instructions on every device (FlashAttention 2, Triton of 2023)."""
    overlap: bool = True
    """Gradients and parameters travel beside compute."""
    waits_for_transfers: bool = False
    """A device computes nothing while it sends to the next stage."""
    tensor_overlap: bool = True
    """Tensor-parallel traffic runs beside the products that it feeds, inside the fastest domain."""
    sharded_optimizer: bool = True
    """A job that leaves `parallel.sharding` out gets zero1 if it has replicas."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What a job that leaves `training.recompute` out begins with; more where memory forces it."""
    selective: Literal["core", "products"] = "core"
    """What selective recompute does again: the attention's core (Megatron), or every second product and all
    that is not a product (torchtitan)."""
    modules: tuple[str, ...] = ()
    """Modules of `training.recompute_modules` that selective recompute does again beside fused attention."""
    offloads_activations: bool = False
    """Where host memory is fast (NVLink-C2C), activations go there before anything is computed twice."""
    expert_tp: int | None = None
    """Ranks that its recipes cut a routed expert over; None: as many as everything else."""
    graphed_experts: bool = False
    """Steps with quantised experts are one graph on Blackwell, and a layer's experts one kernel: the host
    launches nothing in between."""
    narrow_dispatch: bool = False
    """FP8 training sends tokens to experts in FP8 too."""
    fused_loss: bool = True
    """Logits are kept once, in half precision, and become their own gradient."""
    gradient_bytes: dict[str, float] = Field(default_factory=dict)
    """Precision -> bytes of gradient a parameter; `default` for the others. 2 and 4 if left out."""
    master_is_parameter: bool = False
    """Sharded parameters are in single precision and the optimizer updates them (FSDP)."""
    reserved_gibibytes: float = Field(default=3.0, ge=0)
    """CUDA context, NCCL's buffers, workspaces of libraries."""
    fragmentation: float = Field(default=0.0, ge=0, lt=1)
    """Share of what is allocated that the allocator holds beyond it at the peak."""
    keeps_gathered: bool = False
    """With pipeline stages, ZeRO-3 keeps weights gathered and gradients whole from a step's first micro-batch
    to its last (torchtitan)."""


class StackErrors(Config):
    """How far predictions with a user's profile were from the steps it was fitted on."""

    steps: int = Field(gt=0)
    half_width: float = Field(gt=0)
    """80% of the steps were within this, of the logarithm."""
    left_out: bool = True
    """By fits without the step's model; else by the fit itself, and widened."""


class StackProfile(Config):
    """A training software: its name, where its figures come from, its constants and its traits."""

    name: str
    title: str = ""
    like: str = ""
    """The profile whose constants it shares: another release of the same software."""
    until: str = ""
    """The last release that it stands for, such as 26.04."""
    measured: str = ""
    """The runs that its constants were fitted on."""
    constants: StackConstants = StackConstants()
    traits: StackTraits = StackTraits()
    errors: StackErrors | None = None
    """Of a profile that `megalith explore calibrate` wrote; those of the package's are in
    validation/left_out.json."""


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """A profile as plans hold it; compared by identity, as `load_stack` makes each once."""

    profile: StackProfile

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.profile.name

    @property
    def traits(self) -> StackTraits:
        """How it trains where a job does not say."""
        return self.profile.traits

    @property
    def fitted_as(self) -> str:
        """The profile that its constants are fitted with: its own, or that of another release."""
        return self.profile.like or self.name

    def constants(self, device: Device, precision: str = "bf16", experts: bool = False) -> Calibration:
        """The device's constants under this software; with graphs if it trains such a model in them."""
        graphed = experts and self.traits.graphed_experts and precision in QUANTISED
        return _constants(self, device, graphed and device.generation == "blackwell")

    def gradient_bytes(self, precision: str) -> float:
        """Bytes of gradient that it keeps a parameter."""
        kept = self.traits.gradient_bytes
        if precision in kept or "default" in kept:
            return kept.get(precision, kept.get("default", 4.0))
        return 2.0 if precision == "fp16" else 4.0


@lru_cache(maxsize=1024)
def _constants(stack: Stack, device: Device, graphed: bool) -> Calibration:
    base, given = calibration(device), stack.profile.constants.given()
    memory = given.get("memory", 1.0)
    products = given.get("products", 1.0) * _power_share(device, base)
    kept: dict[str, float] = {
        name: given[name]
        for name in ("overlap", "kernel_seconds", "micro_batch_seconds", "scale_loss")
        if name in given
    }
    if "small_group_exponent" in given:
        kept["inside_rank_exponent"] = given["small_group_exponent"]
    if graphed:
        kept |= {"kernel_seconds": GRAPHED_KERNEL_SECONDS, "launch_seconds": 0.0}
    attention = base.attention_fraction * given.get("attention", 1.0)
    if stack.traits.ampere_kernels and device.generation not in ("volta", "ampere"):
        attention *= AMPERE_KERNELS
    return replace(
        base,
        gemm_fraction=base.gemm_fraction * products,
        gemm_fraction_fp8=base.gemm_fraction_fp8 * products,
        gemm_fraction_fp4=base.gemm_fraction_fp4 * products,
        attention_fraction=min(ATTENTION_CEILING, attention),
        memory_fraction=base.memory_fraction * memory,
        **kept,
    )


def _power_share(device: Device, base: Calibration) -> float:
    """What the power that a device may draw makes of the products' rate: clocks follow it, less than in
    proportion."""
    if not base.power_watts or not device.watts:
        return 1.0
    return float((device.watts / base.power_watts) ** POWER_EXPONENT)


DEFAULTS = {"volta": "megatron-2021", "ampere": "megatron-2021", "blackwell": "megatron-bridge"}
"""Generation of devices -> the stack of a job that names none: the one most measured on them."""
DEFAULT = "nemo-25"


def default_stack(device: Device) -> str:
    """The stack of a job on this device that names none."""
    return DEFAULTS.get(device.generation, DEFAULT)


def stack_names() -> list[str]:
    """The profiles that ship with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_stack(source: str) -> Stack:
    """A profile of the package by name, or one in a YAML file."""
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return _read(path.absolute(), path.stat().st_mtime_ns if path.exists() else 0)
    if source not in stack_names():
        raise ConfigError(f"training.stack: there is no stack '{source}'; {nearest(source, stack_names())}")
    return _read(FOLDER / f"{source}.yaml", 0)


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Stack:
    profile = parse_profile(load_yaml(path), str(path))
    if profile.like:
        profile = profile.model_copy(update={"constants": load_stack(profile.like).profile.constants})
    return Stack(profile)


def release_of(name: str, release: str) -> str:
    """The profile of a release of the software `name`: its own, or that of the releases until then."""
    profiles = (load_stack(other).profile for other in stack_names())
    older = sorted(
        (profile.until, profile.name)
        for profile in profiles
        if profile.like == name and profile.until >= release
    )
    return older[0][1] if older else name


def parse_profile(content: dict[str, Any], origin: str) -> StackProfile:
    """A profile from a mapping; more than six constants are refused."""
    profile = parse_config(StackProfile, content, origin)
    given = profile.constants.given()
    if len(given) > MOST_CONSTANTS:
        raise ConfigError(
            f"{origin}: a stack has at most {MOST_CONSTANTS} constants and this one {len(given)}; remove "
            f"'{list(given)[-1]}'."
        )
    return profile
