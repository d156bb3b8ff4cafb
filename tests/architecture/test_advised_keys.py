"""Settings that messages and docstrings advise, such as `data.batch_size=100`, exist."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

import megalith
from megalith.explore.job import Job
from megalith.train.recipe import Recipe

SOURCES = sorted(Path(megalith.__file__).parent.rglob("*.py"))
ADVICE = re.compile(r"(?<![\w./-])([a-z_]+(?:\.[a-z_0-9]+)+)=")


def models_in(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def has_key(models, parts):
    """Whether one of the models has the dotted key; what a mapping of anything holds is not known."""
    if not parts:
        return True
    found = [model.model_fields[parts[0]].annotation for model in models if parts[0] in model.model_fields]
    return any(has_key(models_in(annotation), parts[1:]) for annotation in found)


def advised(path):
    """Dotted keys with a value in the strings of a file, where the first part is a section of a recipe or a
    job."""
    sections = {*Recipe.model_fields, *Job.model_fields}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (key for key in ADVICE.findall(node.value) if key.split(".")[0] in sections)


@pytest.mark.parametrize(
    "package", sorted({path.relative_to(SOURCES[0].parent).parts[0] for path in SOURCES})
)
def test_every_key_that_is_advised_exists(package):
    root = SOURCES[0].parent
    for path in SOURCES:
        if path.relative_to(root).parts[0] == package:
            for key in advised(path):
                assert has_key([Recipe, Job], key.split(".")), f"{path.relative_to(root)} advises {key}="


def test_the_search_finds_advice_and_knows_keys():
    steps = next(path for path in SOURCES if path.match("data/loader/steps.py"))
    assert "data.batch_size" in list(advised(steps))
    assert has_key([Recipe, Job], ["model", "bottom", "layers"])
    assert not has_key([Recipe, Job], ["data", "drop_last"])
