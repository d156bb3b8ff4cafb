"""Every kind of model that a recipe can name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from megalith.models.custom import CustomConfig
from megalith.models.dcnv2.config import DCNv2Config
from megalith.models.deepfm.config import DeepFMConfig
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.wide_deep.config import WideDeepConfig

AnyModel = Annotated[
    DLRMConfig | DCNv2Config | DeepFMConfig | WideDeepConfig | CustomConfig, Field(discriminator="kind")
]
