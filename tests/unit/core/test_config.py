"""Configuration from YAML with overrides, and the one sentence each mistake gets."""

from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from megalith.core.config import Config, apply_overrides, load_config, load_yaml, parse_config, to_yaml
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


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("step=3", "Command line, step=3: unknown key 'step'; did you mean 'steps'?"),
        ("steps=many", "Command line, steps=many: key 'steps': should be a valid integer"),
        ("shape.sid=3", "Command line, shape.sid=3: unknown key 'shape.sid'; did you mean 'side'?"),
        ("shape={kind: round, side: 2}", "Command line, shape={kind: round, side: 2}: unknown key"),
        ("many.0.radius=far", "Command line, many.0.radius=far: key 'many.0.radius': should be"),
    ],
)
def test_what_an_override_brought_is_blamed_on_the_command_line(tmp_path, override, sentence):
    path = written(tmp_path, "name: a\nshape: {kind: square}\nmany: [{radius: 1}]\n")
    with pytest.raises(ConfigError) as error:
        load_config(Outer, path, ["name=b", override])
    assert str(error.value).startswith(sentence)
    assert str(path) not in str(error.value)


def test_what_the_file_brought_is_blamed_on_the_file_whatever_is_overridden(tmp_path):
    path = written(tmp_path, "name: a\nshape: {kind: square, sid: 3}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: unknown key 'shape\.sid'"):
        load_config(Outer, path, ["steps=3", "shape.side=3"])


def test_overrides_reach_into_lists_by_position(tmp_path):
    path = written(tmp_path, "name: a\nmany: [{radius: 1}, {radius: 2}]\n")
    config = load_config(Outer, path, ["many.1.radius=5"])
    assert config.many == (Round(radius=1), Round(radius=5))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent.yaml does not exist"):
        load_config(Outer, tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    "override", ["steps", "=3", "name.deep=3", "list.x=1", "list.2=1", "list.-1=1", "list.0.a=1"]
)
def test_an_override_that_makes_no_sense_is_refused(override):
    with pytest.raises(ConfigError, match="Override"):
        apply_overrides({"name": "a", "list": [1, 2]}, [override])


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(), min_size=1))
def test_overriding_leaves_the_original_alone(values):
    original = {"top": {"a": 0}}
    changed = apply_overrides(original, [f"top.{key}={value}" for key, value in values.items()])
    assert original == {"top": {"a": 0}}
    assert changed["top"] == {"a": 0, **values}


def test_parse_config_takes_the_first_unknown_key_over_what_follows_from_it():
    with pytest.raises(ConfigError, match="unknown key 'nam'"):
        parse_config(Outer, {"nam": "a"}, "here")


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
)
MERGED = "\n".join(
    ["a0: &a0 {k: v}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 12)]
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 5000 + "]" * 5000, "line 1: nested more than 100 levels deep"),
        ("a:\n  " + "- " * 5000 + "b", "line 2: nested more than 100 levels deep"),
        (
            "\n".join(" " * level + "a:" for level in range(5000)),
            "line 100: nested more than 100 levels deep",
        ),
        (BOMB, "line 7: more than 1,000,000 values with aliases written out"),
        (MERGED, "values with aliases written out"),
        ("a: &a [*a]", "line 1: an alias stands for something that contains it"),
        ("a: &a {<<: *a}", "an alias stands for something that contains it"),
        ("a: 2024-99-99", "a value is not what it looks like"),
        ("a: !!timestamp x", "a value is not what it looks like"),
        ("a: !!bool x", "a value is not what it looks like"),
        ("a: !!int x", "a value is not what it looks like"),
        ("a: " + "9" * 5000, "a value is not what it looks like"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: \x00", "special characters are not allowed"),
        ("? [a]\n: b", "unhashable"),
    ],
)
def test_yaml_that_is_too_much_or_no_value_is_one_sentence(tmp_path, text, problem):
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        load_yaml(path)
    assert str(refusal.value).startswith(str(path))
    assert problem in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_aliases_within_bounds_are_read(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("base: &base {a: 1}\none: *base\ntwo: {<<: *base, b: 2}\n")
    assert load_yaml(path) == {"base": {"a": 1}, "one": {"a": 1}, "two": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    "override", ["a=" + "[" * 5000, "a=2024-99-99", ".".join("a" * 5000) + "=1", "=1", "a" * 5000]
)
def test_an_override_that_is_too_much_is_a_short_sentence(override):
    with pytest.raises(ConfigError) as refusal:
        apply_overrides({}, [override])
    assert len(str(refusal.value)) < 300
