"""`manifest.json` of a frozen model, and what stands beside it in the folder.

    manifest.json            what this module describes
    tables-NNNNN.safetensors rows of tables, encoded: `TABLE/rows`, and where they have them `TABLE/starts`
                             and `TABLE/ids`
    dense.safetensors        weights of the program, by the names it gives them, in the precision of their
                             layer; `NAME/scales` of those that are codes
    checks.safetensors       some held-out samples and the outputs this model gives for them: what a backend
                             is compared with before it may serve, and what warms it up
    inputs/                  schema and vocabulary: raw values to ids and numbers, as in training
    report.json              what the gate measured, of the whole and by table and layer

Nothing of it runs code. Files are listed with size and checksum; one that is missing, cut or changed is
refused by name.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megalith.checkpoint.manifest import FileName, FileRecord
from megalith.core.config import Config
from megalith.core.schema import Pooling
from megalith.export.program import ModelProgram

FORMAT: Literal["megalith-frozen-model"] = "megalith-frozen-model"
VERSION = 2
READABLE = (1, 2)
"""Versions of folders; in the first, weights of layers in few bits are stored as float32."""
MANIFEST, DENSE_FILE, CHECKS_FILE, REPORT = (
    "manifest.json",
    "dense.safetensors",
    "checks.safetensors",
    "report.json",
)
INPUTS = "inputs"

TablePrecision = Literal["float32", "float16", "int8", "int4"]


class FeatureRecord(Config):
    """A categorical feature of a request, in the order in which its ids are sent."""

    name: str
    max_length: int | None = None
    """Most ids of a sample; None is any number."""
    is_raw: bool = False
    """Ids are any 64-bit values, of which a table knows some."""
    user_side: bool = False
    """The same for all samples of a request: sent, and looked up, once."""
    average_length: float | None = None
    """Ids of a sample, as measured on the data."""


class FrozenTableRecord(Config):
    """A frozen table: how its rows are encoded, where they lie, and who looks them up."""

    name: str
    rows: int = Field(ge=0)
    """Those that are stored."""
    dim: int = Field(ge=1)
    features: tuple[str, ...] = Field(min_length=1)
    pooling: Pooling = "sum"
    padding_index: int | None = None
    """A row that reads as zeros and does not count in a mean."""
    precision: TablePrecision
    scale: Literal["float16", "float32"] | None = None
    """What scale and bias of a row of integers are stored as."""
    row_bytes: int | None = None
    """None where rows are of unequal length."""
    chunk: int | None = None
    """Rows keep a prefix of their columns, a multiple of this; the rest reads as zeros. `TABLE/starts`
    (uint32 [rows + 1]) says where each begins, in units of `start_bytes`."""
    start_bytes: int | None = None
    ids: Literal["rows", "listed"] = "rows"
    """`rows`: an id is its row. `listed`: `TABLE/ids` (int64, rising) are the ids that have one."""
    unknown: int | None = None
    """Of listed ids, the row of all others; None reads as zeros."""
    file: FileName
    bytes: int = Field(ge=0)
    """All of its tensors."""


class Contract(Config):
    """What the outputs in `checks.safetensors` were computed with."""

    version: int = 1
    """Of the reduced-precision operators' definitions; the twins in `megalith.ops` define them."""
    products: Literal["float32", "bfloat16", "u8s7", "u8s8"] = "float32"
    """Narrowest products of the dense part. `u8s7`: weights of 7 bits, exact on every machine by 16-bit
    sums; `u8s8`: weights of 8 bits, by 32-bit sums."""
    simd: str
    """The build of the kernels that computed them."""
    versions: dict[str, str]
    """Of this package, torch and other libraries that took part."""


class GateRecord(Config):
    """What the frozen model lost against the trained one, on a split that it was not trained on."""

    split: str
    samples: int
    budget: float
    """Highest share by which normalized entropy might rise."""
    trained_ne: float
    frozen_ne: float
    trained_auc: float
    frozen_auc: float

    @property
    def ne_loss(self) -> float:
        """Share by which normalized entropy rose."""
        return self.frozen_ne / self.trained_ne - 1


class TuneRecord(Config):
    """How quick the best backend was, and where that was measured."""

    cpu: str
    threads: int = Field(ge=1)
    """Of one request."""
    seconds: dict[str, float]
    """Median of a request by the samples in it."""


class ModelManifest(Config):
    """The content of `manifest.json`."""

    format: Literal["megalith-frozen-model"] = FORMAT
    version: int = VERSION
    name: str
    """Of the model, as a server lists it."""
    step: int
    """Training steps behind it."""
    num_dense: int = Field(ge=0)
    features: tuple[FeatureRecord, ...]
    tables: tuple[FrozenTableRecord, ...]
    program: ModelProgram
    contract: Contract
    gate: GateRecord | None = None
    """None where it was frozen without a check, which was then asked for."""
    backend: str = "native"
    """What runs it, such as native or native+openvino; `--tune` puts here what it found best."""
    tuning: TuneRecord | None = None
    """What `--tune` measured."""
    files: dict[str, FileRecord]
    """Every other file, by path within the folder."""
