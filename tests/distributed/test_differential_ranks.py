"""Differential checkpoints of several ranks: each kept step loads on any number, and is gone on from."""

import torch
from processes import on_ranks
from small_runs import flat, losses, outcome, train, write_plan

from megalith.checkpoint.inspection import kept_steps, verified
from megalith.checkpoint.store import CheckpointStore
from megalith.data.dataset import Dataset
from megalith.train.checkpoints import open_learner
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

KEPT = ("train.keep_checkpoints=20", "train.eval_every=100", "train.trace=no")
DIFFERENTIAL = "checkpoint={differential: yes, compact_at: 100}"


def weights(run, data, step):
    """All that training changes, as one process loads it."""
    learner, _ = open_learner(run, Dataset(data), step)
    return {name: value for name, value in flat("", learner.state_dict()) if not name.endswith(".random")}


def held(folder, data, step):
    """What a rank of several holds of the tables, by rectangle."""
    learner, _ = open_learner(RunFolder(folder), Dataset(data), step)
    return {
        (path, shard.rows, shard.columns): {name: part.tolist() for name, part in shard.parts.items()}
        for path, table in learner.state_dict()["tables"].items()
        for shard in table.shards
    }


def go_on(recipe, folder, overrides, step):
    trainer = Trainer(load_recipe(str(recipe), overrides), RunFolder(folder))
    trainer.resume(step)
    trainer.train()


def test_a_chain_of_two_ranks_loads_on_any_number_and_is_gone_on_from(tiny_recipe, tmp_path):
    data = load_recipe(str(tiny_recipe)).data.path
    plan = f"sharding.plan={write_plan(tmp_path / 'two.json', tiny_recipe, 2)}"
    whole = train(tiny_recipe, tmp_path / "whole", 2, *KEPT, plan)
    chain = train(tiny_recipe, tmp_path / "chain", 2, *KEPT, plan, DIFFERENTIAL)
    assert losses(chain) == losses(whole)
    steps = kept_steps(CheckpointStore(chain.checkpoints))
    assert [each.kind for each in steps] == ["baseline", *["delta"] * (len(steps) - 1)]
    assert all(each.can_be_restored for each in verified(CheckpointStore(chain.checkpoints)))
    for step in (5, 15, 24):
        expected, own = weights(whole, data, step), weights(chain, data, step)
        assert expected.keys() == own.keys()
        assert all(torch.equal(own[name], value) for name, value in expected.items())
    # Opened for an evaluation on three ranks, under a plan for three.
    auto = "sharding.plan=auto"
    for run in (whole, chain):
        run.write_recipe(load_recipe(str(run.config), [auto]))
    assert on_ranks(3, held, chain.folder, data, 15) == on_ranks(3, held, whole.folder, data, 15)
    # And trained on from the middle, on three ranks and back on two, from deltas over those of others.
    for world_size, step, again in ((3, 10, 15), (2, 15, 20)):
        for run, extra in ((whole, ()), (chain, (DIFFERENTIAL,))):
            on_ranks(world_size, go_on, tiny_recipe, run.folder, (*KEPT, auto, *extra), step)
            assert again in CheckpointStore(run.checkpoints).steps()
        assert outcome(chain) == outcome(whole)
