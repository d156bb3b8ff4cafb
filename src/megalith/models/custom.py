"""A model of one's own, in a file outside the package.

model:
  kind: custom
  file: my_model.py          # beside the recipe, or an absolute path
  config: MyModelConfig      # a subclass of megalith.models.base.ModelConfig in that file
  options: {dim: 8, hidden: 64}
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from megalith.core.config import Config, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import FeatureSpec, TableSpec
from megalith.models.base import ClickModel, ModelConfig, ModelInputs


class CustomConfig(Config):
    """Points at a model's settings in a file; everything else is asked of them."""

    kind: Literal["custom"] = "custom"
    file: Path
    """The Python file, relative to the recipe's folder."""
    config: str
    """The name of a subclass of `megalith.models.base.ModelConfig` in it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The fields of that class."""

    def tables(self, features: Sequence[FeatureSpec]) -> list[TableSpec]:
        """The tables that the custom model needs."""
        return self.load().tables(features)

    def build(self, inputs: ModelInputs) -> ClickModel:
        """The custom module, with fresh weights."""
        return self.load().build(inputs)

    def load(self) -> ModelConfig:
        """The settings object that the file defines, with `options` in it."""
        cls = getattr(_module(self.file), self.config, None)
        if not (isinstance(cls, type) and issubclass(cls, ModelConfig)):
            names = [
                name
                for name, value in vars(_module(self.file)).items()
                if isinstance(value, type) and issubclass(value, ModelConfig) and value is not ModelConfig
            ]
            raise ConfigError(
                f"{self.file} has no ModelConfig named '{self.config}'; {nearest(self.config, names)}"
            )
        return parse_config(cls, self.options, f"{self.file}, {self.config}")


def _module(path: Path) -> Any:
    try:
        path = path.expanduser().resolve()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"Model file {path} is no path ({error}); check model.file.") from error
    if not path.is_file():
        raise ConfigError(f"Model file {path} does not exist; check model.file.")
    name = f"megalith_custom_{abs(hash(path))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"Model file {path} is not a Python file; check model.file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(
            f"Model file {path} does not load: {type(error).__name__}: {error}; fix it."
        ) from error
    return module
