"""Configuration from YAML with overrides, and the one sentence each mistake gets."""

from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from megalith.core.config import Config, apply_overrides, load_config, parse_config, to_yaml
from megalith.core.errors import ConfigError


class Round(Config):
    kind: Literal["round"] = "round"
    radius: float = 1.0


class Square(Config):
    kind: Literal["square"] = "square"
    side: float = 1.0


class Outer(Config):
    name: str
    steps: int = 10
    shape: Annotated[Round | Square, Field(discriminator="kind")] = Round()
    many: tuple[Round, ...] = ()


def written(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_overrides_reach_nested_keys_and_keep_types(tmp_path):
    path = written(tmp_path, "name: a\nshape: {kind: square}\n")
    config = load_config(Outer, path, ["shape.side=2.5", "steps=3"])
    assert config == Outer(name="a", steps=3, shape=Square(side=2.5))


def test_exponents_without_a_dot_are_numbers(tmp_path):
    """YAML 1.1 reads 1e-3 as text; a learning rate written so must still be a number."""
    assert (
        load_config(Outer, written(tmp_path, "name: a\nshape: {kind: round, radius: 1e-3}\n")).shape.radius
        == 1e-3
    )


def test_a_configuration_is_frozen():
    with pytest.raises(ValidationError):
        Outer(name="a").steps = 3


def test_written_configuration_reads_back(tmp_path):
    config = Outer(name="a", shape=Square(side=3), many=(Round(radius=2),))
    assert load_config(Outer, written(tmp_path, to_yaml(config))) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: a\nstep: 3\n", "unknown key 'step'; did you mean 'steps'?"),
        ("name: a\nshape: {kind: square, sid: 3}\n", "did you mean 'side'?"),
        ("name: a\nshape: {kind: squre}\n", "'shape'"),
        (
            "name: a\nmany: [{radius: 1}, {radios: 1}]\n",
            "unknown key 'many.1.radios'; did you mean 'radius'?",
        ),
        ("steps: 3\n", "key 'name' is missing"),
        ("name: a\nsteps: many\n", "key 'steps': should be a valid integer"),
        ("name: [a\n", "line 2"),
        ("- a\n", "must hold a mapping"),
    ],
)
def test_each_mistake_is_one_sentence_that_names_file_and_key(tmp_path, text, sentence):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_config(Outer, path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent.yaml does not exist"):
        load_config(Outer, tmp_path / "absent.yaml")


@pytest.mark.parametrize("override", ["steps", "=3", "name.deep=3"])
def test_an_override_that_makes_no_sense_is_refused(override):
    with pytest.raises(ConfigError, match="Override"):
        apply_overrides({"name": "a"}, [override])


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(), min_size=1))
def test_overriding_leaves_the_original_alone(values):
    original = {"top": {"a": 0}}
    changed = apply_overrides(original, [f"top.{key}={value}" for key, value in values.items()])
    assert original == {"top": {"a": 0}}
    assert changed["top"] == {"a": 0, **values}


def test_parse_config_takes_the_first_unknown_key_over_what_follows_from_it():
    with pytest.raises(ConfigError, match="unknown key 'nam'"):
        parse_config(Outer, {"nam": "a"}, "here")
