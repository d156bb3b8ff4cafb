"""Which backend runs a model, as text: in the manifest, behind `--backend` and in the table of `--tune`.

native                              the whole model
onnxruntime:precision=float32       with options of that backend
native+openvino:device=CPU          lookups by one, the dense part by another
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Outputs
from megalith.export.backends.inputs import RequestIds
from megalith.export.backends.registry import find_backend
from megalith.export.manifest import ModelManifest
from megalith.export.program import EMBEDDED


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend by name, with its options."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        listed = ",".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.name}:{listed}" if listed else self.name


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The backends of a whole model; `dense` is None where one runs all of it."""

    lookups: BackendChoice
    dense: BackendChoice | None = None

    def __str__(self) -> str:
        return str(self.lookups) if self.dense is None else f"{self.lookups}+{self.dense}"


def parse_choice(text: str) -> ModelChoice:
    """A choice from its text.

    >>> str(parse_choice("native+openvino:device=CPU"))
    'native+openvino:device=CPU'
    """
    names = text.split("+")
    if len(names) > 2 or not all(name.partition(":")[0].strip() for name in names):
        raise ConfigError(
            f"'{text}' is no choice of backends; write one such as native, or two such as native+openvino."
        )
    chosen = [_one(name, text) for name in names]
    return ModelChoice(chosen[0], chosen[1] if len(chosen) == 2 else None)


def _one(part: str, text: str) -> BackendChoice:
    name, _, listed = part.partition(":")
    options: dict[str, str] = {}
    for item in filter(None, listed.split(",")):
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"'{item}' in '{text}' must have the form key=value.")
        options[key.strip()] = value.strip()
    return BackendChoice(name.strip(), options)


def load_whole(model: ModelSource, choice: ModelChoice | str, threads: int = 1) -> LoadedPart:
    """The whole model on the backends of a choice."""
    choice = parse_choice(choice) if isinstance(choice, str) else choice
    settings = LoadSettings(threads=threads, options=choice.lookups.options)
    first = find_backend(choice.lookups.name)
    if choice.dense is None:
        if "whole" not in first.parts:
            raise ConfigError(
                f"Backend '{first.name}' runs {' and '.join(first.parts)} alone; pair it with another, such "
                f"as native+{first.name}."
            )
        return first.load(model, "whole", settings)
    second = find_backend(choice.dense.name)
    return _load_pair(model, first, second, settings, replace(settings, options=choice.dense.options))


def _load_pair(
    model: ModelSource, first: Backend, second: Backend, lookups: LoadSettings, dense: LoadSettings
) -> PairedParts:
    loaded = first.load(model, "lookups", lookups)
    try:
        return PairedParts(model.manifest, loaded, second.load(model, "dense", dense))
    except BaseException:
        loaded.close()
        raise


class PairedParts(LoadedPart):
    """A whole model of two parts: lookups by one backend, the dense part by another."""

    def __init__(self, manifest: ModelManifest, lookups: LoadedPart, dense: LoadedPart) -> None:
        super().__init__(manifest, "whole", dense.settings)
        self.lookups, self.dense = lookups, dense
        self.joins_users = lookups.joins_users

    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """Looks up, then scores; the request was checked once, for both."""
        pooled = self.lookups.answer(batch, None, ids)[EMBEDDED]
        return self.dense.answer(batch, dense, RequestIds(None, pooled=pooled))

    def bytes(self) -> dict[str, int]:
        """Of both."""
        total: dict[str, int] = {}
        for part in (self.lookups, self.dense):
            for key, count in part.bytes().items():
                total[key] = total.get(key, 0) + count
        return total

    def release(self) -> None:
        """Closes both."""
        self.lookups.close()
        self.dense.close()
