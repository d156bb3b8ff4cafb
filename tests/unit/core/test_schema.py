"""Features and tables."""

import pytest
from pydantic import ValidationError

from megalith.core.config import parse_config
from megalith.core.errors import ConfigError
from megalith.core.schema import FeatureSpec, TableSpec, check_tables, feature_order
from megalith.core.store_spec import AdaptiveSpec, DynamicSpec, TieredSpec


def test_a_table_may_have_any_dim_from_one():
    assert TableSpec(name="t", rows=10, dim=1, features=("f",)).weight_bytes == 40
    with pytest.raises(ValidationError):
        TableSpec(name="t", rows=10, dim=0, features=("f",))


def test_half_precision_takes_half_the_bytes():
    assert TableSpec(name="t", rows=10, dim=3, features=("f",), dtype="bfloat16").weight_bytes == 60


def test_a_sequence_table_adds_no_pooled_columns():
    assert TableSpec(name="t", rows=10, dim=3, features=("f", "g")).output_dim == 6
    assert TableSpec(name="t", rows=10, dim=3, features=("f", "g"), pooling="none").output_dim == 0


def test_a_table_named_twice_is_refused_by_name():
    table = TableSpec(name="twin", rows=1, dim=1, features=("f",))
    with pytest.raises(ConfigError, match="'twin' is named twice"):
        check_tables([table, table])


def test_a_feature_twice_in_a_table_is_refused():
    with pytest.raises(ValidationError, match="twice"):
        TableSpec(name="t", rows=1, dim=1, features=("f", "f"))


def test_features_come_once_in_the_order_of_the_tables():
    tables = [
        TableSpec(name="a", rows=1, dim=1, features=("y", "x")),
        TableSpec(name="b", rows=1, dim=1, features=("x", "z")),
    ]
    assert feature_order(tables) == ("y", "x", "z")


def test_one_id_a_sample_unless_said_otherwise():
    assert not FeatureSpec(name="f", num_ids=3).multi_hot
    assert FeatureSpec(name="f", num_ids=3, max_length=None).multi_hot


def test_stores_are_named_by_kind_or_in_full() -> None:
    table = {"name": "t", "rows": 10, "dim": 8, "features": ("f",)}
    assert TableSpec(**table, store="tiered").store == TieredSpec()
    nested = {"kind": "dynamic", "bound": 64, "over": {"kind": "adaptive", "chunk": 4}}
    store = TableSpec(**table, store=nested).store
    assert isinstance(store, DynamicSpec)
    assert store.over == AdaptiveSpec(chunk=4)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("dynamic", "needs a bound"),
        ({"kind": "dynamic"}, "one of them"),
        ({"kind": "adaptive", "chnk": 4}, "unknown key 'store.chnk'; did you mean 'chunk'?"),
        ("tierd", "key 'store': tag 'tierd'"),
    ],
)
def test_a_store_that_cannot_be_is_one_sentence(store: object, said: str) -> None:
    table = {"name": "t", "rows": 10, "dim": 8, "features": ["f"], "store": store}
    with pytest.raises(ConfigError) as error:
        parse_config(TableSpec, table, "recipe.yaml")
    assert said in str(error.value)
