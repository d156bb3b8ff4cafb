"""The peer's side of benchmarks/frappe.py: FuxiCTR's own layers, feature processor, loader and fit loop.

Its wheel ships building blocks, not models, so DLRM, DCNv2 and DeepFM are put together from them here. The
settings are those that its authors published for Frappe after a search of their own (reczoo/BARS,
ranking/ctr/*/*_frappe_x1): dim 10, batch 4096, Adam 1e-3, MLP 400x3 with batch norm, an L2 on the embeddings.

Runs under the interpreter that has fuxictr, which needs no megalith. It reads the Parquet that `megalith data
prepare --valid-fraction` wrote, so that both sides train, stop and are scored on the same rows. It prints
one JSON object a line: first its versions and settings, then each run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from fuxictr.features import FeatureMap
from fuxictr.preprocess import FeatureProcessor
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import CrossNetV2, FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from fuxictr.pytorch.torch_utils import seed_everything
from torch import Tensor, nn

DIM = 10
HIDDEN = (400, 400, 400)
SHARED: dict[str, Any] = {
    "batch_size": 4096,
    "embedding_dim": DIM,
    "learning_rate": 1e-3,
    "batch_norm": True,
    "early_stop_patience": 2,
    "epochs": 100,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    # The published DLRM joins the vectors and takes no dot products: "cat" won its authors' search.
    "dlrm": {"dropout": 0.4, "embedding_regularizer": 0.1},
    "dcnv2": {"dropout": 0.4, "embedding_regularizer": 0.05, "num_cross_layers": 4},
    "deepfm": {"dropout": 0.2, "embedding_regularizer": 0.05},
}


class _Model(BaseModel, ABC):
    """What the three share; `score` is the logit of the embedded features."""

    def __init__(self, feature_map: FeatureMap, name: str, folder: Path) -> None:
        published = PUBLISHED[name]
        super().__init__(
            feature_map,
            model_id=name,
            monitor="AUC",
            early_stop_patience=SHARED["early_stop_patience"],
            embedding_regularizer=published["embedding_regularizer"],
            verbose=0,
            model_root=str(folder),
            metrics=["AUC", "logloss"],
        )
        self.embedding_layer = FeatureEmbedding(feature_map, DIM)
        self.width: int = feature_map.sum_emb_out_dim()
        self.add_layers(feature_map, published)
        self.compile("adam", "binary_crossentropy", SHARED["learning_rate"])
        self.reset_parameters()
        self.model_to_device()

    @abstractmethod
    def add_layers(self, feature_map: FeatureMap, published: dict[str, Any]) -> None:
        """The layers after the embeddings."""

    @abstractmethod
    def score(self, inputs: dict[str, Tensor], embedded: Tensor) -> Tensor:
        """Logits of a batch."""

    def mlp(self, dropout: float, output_dim: int | None) -> nn.Module:
        return MLP_Block(
            self.width, list(HIDDEN), output_dim=output_dim, dropout_rates=dropout, batch_norm=True
        )

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        features = self.get_inputs(inputs)
        return {"y_pred": self.output_activation(self.score(features, self.embedding_layer(features)))}


class DLRM(_Model):
    """DLRM of FuxiCTR's layers."""

    def add_layers(self, feature_map: FeatureMap, published: dict[str, Any]) -> None:
        """The top MLP."""
        self.top = self.mlp(published["dropout"], output_dim=1)

    def score(self, inputs: dict[str, Tensor], embedded: Tensor) -> Tensor:
        """Logits of a batch."""
        return self.top(embedded.flatten(start_dim=1))


class DCNv2(_Model):
    """DCN-v2 of FuxiCTR's layers."""

    def add_layers(self, feature_map: FeatureMap, published: dict[str, Any]) -> None:
        """Crosses, the MLP beside them, and the head."""
        self.cross = CrossNetV2(self.width, published["num_cross_layers"])
        self.deep = self.mlp(published["dropout"], output_dim=None)
        self.head = nn.Linear(self.width + HIDDEN[-1], 1)

    def score(self, inputs: dict[str, Tensor], embedded: Tensor) -> Tensor:
        """Logits of a batch."""
        start = embedded.flatten(start_dim=1)
        return self.head(torch.cat([self.cross(start), self.deep(start)], dim=1))


class DeepFM(_Model):
    """DeepFM of FuxiCTR's layers."""

    def add_layers(self, feature_map: FeatureMap, published: dict[str, Any]) -> None:
        """The factorization machine and the MLP."""
        self.fm = FactorizationMachine(feature_map)
        self.deep = self.mlp(published["dropout"], output_dim=1)

    def score(self, inputs: dict[str, Tensor], embedded: Tensor) -> Tensor:
        """Logits of a batch."""
        return self.fm(inputs, embedded) + self.deep(embedded.flatten(start_dim=1))


MODELS: dict[str, type[_Model]] = {"dlrm": DLRM, "dcnv2": DCNv2, "deepfm": DeepFM}


def encode(prepared: Path, folder: Path) -> FeatureMap:
    """Fits FuxiCTR's feature processor on the training rows and writes each split as it reads them."""
    schema = json.loads((prepared / "schema.json").read_text(encoding="utf-8"))
    names = [feature["name"] for feature in schema["categorical"]]
    processor = FeatureProcessor(
        feature_cols=[{"name": names, "active": True, "dtype": "int", "type": "categorical"}],
        label_col={"name": schema["label"], "dtype": "float"},
        dataset_id="frappe",
        data_root=str(folder),
    )
    for split in ("train", "valid", "test"):
        frame = processor.preprocess(pl.scan_parquet(prepared / split / "*.parquet"))
        if split == "train":
            processor.fit(frame, min_categr_count=1)
        columns = {column.name: column.to_numpy() for column in frame.collect().get_columns()}
        np.savez(folder / "frappe" / f"{split}.npz", **processor.transform(columns))
    feature_map = FeatureMap("frappe", str(folder / "frappe"))
    feature_map.load(str(folder / "frappe" / "feature_map.json"), {"embedding_dim": DIM})
    return feature_map


def train(feature_map: FeatureMap, folder: Path, name: str, seed: int) -> dict[str, Any]:
    """One run: fits with early stopping on `valid`, then scores `test` with the best weights."""
    seed_everything(seed)
    paths = {f"{split}_data": str(folder / "frappe" / f"{split}.npz") for split in ("train", "valid", "test")}
    loaders = RankDataLoader(
        feature_map, data_format="npz", batch_size=SHARED["batch_size"], num_workers=0, **paths
    )
    train_loader, valid_loader, test_loader = loaders
    model = MODELS[name](feature_map, name, folder)
    began = time.perf_counter()
    model.fit(train_loader, epochs=SHARED["epochs"], validation_data=valid_loader)
    seconds = time.perf_counter() - began
    valid, test = model.evaluate(valid_loader), model.evaluate(test_loader)
    return {
        "model": name,
        "seed": seed,
        "valid_auc": float(valid["AUC"]),
        "test_auc": float(test["AUC"]),
        "test_log_loss": float(test["logloss"]),
        "epochs": model._epoch_index + 1,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Trains every model and seed, and prints a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of prepared data with a valid split")
    parser.add_argument("--models", default="dlrm,dcnv2,deepfm", help="some of dlrm, dcnv2, deepfm")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each model")
    options = parser.parse_args()
    about = {package: version(package) for package in ("fuxictr", "torch", "numpy")}
    settings = {"shared": SHARED | {"hidden": HIDDEN}, "models": PUBLISHED}
    print(json.dumps({"versions": about, "settings": settings}), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        feature_map = encode(options.data, folder)
        for name in options.models.split(","):
            for seed in range(options.seeds):
                print(json.dumps(train(feature_map, folder, name, seed)), flush=True)


if __name__ == "__main__":
    main()
