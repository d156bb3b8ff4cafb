"""What `megalith diff` compares, and on which rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megalith.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from megalith.export.backends.inputs import ScoreRequest
    from megalith.export.difference import ComparedSide
    from megalith.export.folder import FrozenModel
    from megalith.train.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """What a user asks `megalith diff` for."""

    first: Path
    second: Path | None
    backends: tuple[str, ...]
    rows: tuple[Path, ...]
    split: str | None
    requests: Path | None
    number: int
    samples: int
    checkpoint: str | None
    trust_code: bool

    @property
    def models(self) -> tuple[Path, Path]:
        """Both folders; the same one twice where its backends are compared."""
        return self.first, self.second or self.first

    def checkpoint_of(self, folder: Path) -> Checkpoint:
        """The checkpoint of a run; an exported model is of one step."""
        from megalith.train.checkpoints import parse_checkpoint

        return None if is_frozen(folder) else parse_checkpoint(self.checkpoint)


def is_frozen(folder: Path) -> bool:
    """Whether a folder is that of an exported model."""
    from megalith.export.folder import is_model

    return is_model(folder)


def compared_sides(asked: DiffRequest) -> tuple[ComparedSide, ComparedSide]:
    """Both models, opened."""
    frozen = [is_frozen(folder) for folder in asked.models]
    if len(asked.backends) > sum(frozen):
        raise ConfigError(
            f"--backend is given {len(asked.backends)} times for {sum(frozen)} exported models; a run has "
            "none. Give it once for each."
        )
    if asked.checkpoint is not None and all(frozen):
        raise ConfigError("--checkpoint is of a run, and both are exported models; leave it out.")
    if asked.second is None and len(asked.backends) < 2:
        raise ConfigError("Name a second model, or two backends with --backend A --backend B.")
    left = list(asked.backends)
    sides = []
    for folder, is_model in zip(asked.models, frozen, strict=True):
        sides.append(_frozen(folder, left.pop(0) if left else None) if is_model else _run(asked, folder))
    return sides[0], sides[1]


def _frozen(folder: Path, backend: str | None) -> ComparedSide:
    from megalith.export.difference import FrozenSide
    from megalith.export.folder import FrozenModel

    return FrozenSide(FrozenModel(folder), str(folder), backend)


def _run(asked: DiffRequest, folder: Path) -> ComparedSide:
    from megalith.train.freezing.run_side import RunSide
    from megalith.train.scoring.scorer import Scorer

    return RunSide(Scorer(folder, asked.checkpoint_of(folder), trusted=asked.trust_code))


def rows_to_compare(asked: DiffRequest) -> ScoreRequest:
    """Given rows, a recorded request, or the samples that an exported model carries."""
    if asked.requests is not None:
        if asked.rows or asked.split is not None:
            raise ConfigError("--requests and --rows name two sets of rows; give one of them.")
        return _recorded(asked)
    if asked.rows:
        return _read(asked)
    if asked.split is not None:
        raise ConfigError("--split is of the data set that --rows names; name that too.")
    return _carried(asked)


def _carried(asked: DiffRequest) -> ScoreRequest:
    from megalith.export.backends.checks import recorded_checks
    from megalith.export.difference.requests import tiled
    from megalith.export.folder import FrozenModel

    for folder in asked.models:
        model = FrozenModel(folder, verify=False) if is_frozen(folder) else None
        found = None if model is None else recorded_checks(model)
        if model is not None and found is not None:
            features, user = _features(model)
            return _first(tiled(found[0], features, user), asked.samples)
    raise ConfigError("Neither model carries samples; name rows with --rows, or --requests.")


def _features(model: FrozenModel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    named = model.manifest.features
    return tuple(one.name for one in named), tuple(one.name for one in named if one.user_side)


def _first(request: ScoreRequest, count: int) -> ScoreRequest:
    from megalith.export.backends.conformance.requests import rows_of_request

    if request.lengths is None or request.values is None:
        raise DataError("The request has no ids ('values' and 'lengths'); choose another.")
    samples = request.lengths.shape[1]
    return request if samples <= count else rows_of_request(request, range(count))


def _recorded(asked: DiffRequest) -> ScoreRequest:
    import torch

    from megalith.export.backends.inputs import ScoreRequest
    from megalith.export.difference.requests import tiled
    from megalith.export.folder import FrozenModel
    from megalith.serve.front.recorder import read_requests

    assert asked.requests is not None
    kept = read_requests(asked.requests)
    if asked.number >= len(kept):
        raise DataError(f"{asked.requests} has {len(kept)} requests; choose --number below that.")
    inputs = kept[asked.number].inputs
    unknown = sorted(inputs.keys() - set(ScoreRequest._fields))
    if unknown:
        raise DataError(
            f"Request {asked.number} of {asked.requests} has raw columns ('{unknown[0]}'); choose another "
            "with --number."
        )
    request = ScoreRequest(**{name: torch.from_numpy(array.copy()) for name, array in inputs.items()})
    if request.user_lengths is not None:
        frozen = next((folder for folder in asked.models if is_frozen(folder)), None)
        if frozen is None:
            raise ConfigError("The request has the user's features once; compare with an exported model.")
        request = tiled(request, *_features(FrozenModel(frozen, verify=False)))
    return _first(request, asked.samples)


def _read(asked: DiffRequest) -> ScoreRequest:
    from megalith.export.difference.requests import request_of
    from megalith.train.scoring.predict import PredictRequest, open_input, open_scorer

    folder = asked.first
    read = PredictRequest(
        *(folder, asked.rows, Path(), asked.split, asked.checkpoint_of(folder), asked.samples),
        trust_code=asked.trust_code,
    )
    source = open_input(open_scorer(read), read)
    try:
        for batch in source.stream():
            return request_of(batch)
    finally:
        source.close()
    raise DataError(f"{asked.rows[0]} has no rows; name other rows.")
