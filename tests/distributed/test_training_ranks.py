"""Training on several ranks against one process: the same losses, weights and reports."""

import pytest
import torch
from small_runs import losses, train, weights, write_plan


def close(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_learn_what_one_process_learns(tiny_recipe, tiny_data, tmp_path, world_size):
    one = train(tiny_recipe, tmp_path / "one", 1)
    plan = write_plan(tmp_path / "plan.json", tiny_recipe, world_size)
    many = train(tiny_recipe, tmp_path / "many", world_size, f"sharding.plan={plan}")
    assert losses(many) == pytest.approx(losses(one), abs=1e-5)
    close(weights(many, tiny_data), weights(one, tiny_data))
