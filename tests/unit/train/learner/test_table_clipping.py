"""`train.clip_tables`: one norm over the gradients of the dense part and of tables."""

import gc

import pytest
import torch

from megalith.core.errors import ConfigError
from megalith.data.dataset import Dataset
from megalith.sharding.row_wise_plan import row_wise_plan
from megalith.train.learner.learner import Learner
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer


def table_rows(trainer):
    """Weights of all tables, by id: where rows lie on disk does not matter."""
    rows = []
    for state in trainer.learner.embeddings.table_states().values():
        blocks = list(state.blocks(1 << 24))
        ids = torch.cat([torch.as_tensor(block.ids) for block in blocks])
        rows.append(torch.cat([block.parts["weight"] for block in blocks])[ids.argsort()].flatten())
    return torch.cat(rows).clone()


def test_clipping_with_tables_bounds_both_gradients_together(recipe, tmp_path):
    """A step of SGD with a rate of 1 is the gradient of the tables."""
    overrides = [
        "embeddings.optimizer={kind: sgd, lr: 1.0}",
        "train.clip_norm=0.01",
        "train.clip_tables=true",
    ]
    trainer = Trainer(load_recipe(str(recipe), overrides), RunFolder(tmp_path))
    before = table_rows(trainer)
    trainer.learner.step(next(iter(trainer.loader)), 1.0)
    norms = [parameter.grad.norm() for parameter in trainer.learner.dense.parameters()]
    tables = (table_rows(trainer) - before).norm()
    assert tables > 0
    total = torch.stack([*norms, tables]).norm()
    torch.testing.assert_close(total, torch.tensor(0.01), rtol=1e-3, atol=0)


@pytest.mark.parametrize("store", ["dense", "tiered", "dynamic"])
def test_clipping_that_bounds_nothing_changes_nothing(recipe, tmp_path, store):
    overrides = ["train.epochs=null", "train.steps=12"]
    if store == "tiered":
        overrides += ["memory.dram=64KiB", "data.eval_batch_size=100", f"memory.path={tmp_path / 'rows'}"]
    if store == "dynamic":
        overrides.append("embeddings.stores={'*': {kind: dynamic, bound: 4096}}")
    learnt = []
    for name, clip in (("plain", []), ("clipped", ["train.clip_norm=1e9", "train.clip_tables=true"])):
        trainer = Trainer(load_recipe(str(recipe), [*overrides, *clip]), RunFolder(tmp_path / name))
        trainer.train()
        learnt.append(table_rows(trainer))
        del trainer
        gc.collect()
    assert torch.equal(*learnt)


def test_clipping_of_tables_on_many_ranks_is_refused(recipe):
    settings = load_recipe(str(recipe), ["train.clip_norm=1", "train.clip_tables=true"])
    schema = Dataset(settings.data.path).schema
    plan = row_wise_plan(settings.model.tables(schema.categorical), 2)
    with pytest.raises(ConfigError, match=r"train\.clip_tables=false"):
        Learner(settings.learner_config(), schema, plan)


def test_clipping_of_tables_needs_a_norm_and_whole_rows(recipe, tmp_path):
    with pytest.raises(ConfigError, match="give clip_norm too"):
        load_recipe(str(recipe), ["train.clip_tables=true"])
    overrides = ["train.clip_norm=1", "train.clip_tables=true", "adaptive.ratio=4"]
    with pytest.raises(ConfigError, match="max_gradient"):
        Trainer(load_recipe(str(recipe), overrides), RunFolder(tmp_path))
