"""Tables that do not fit are refused before memory is taken, with what would fit."""

import subprocess
import sys

import pytest
import torch

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.memory import TableMemory, check_fits, memory_of
from megalith.embeddings.optimizers import LAMB, LARS, SGD, AdaGrad, Adam, RowWiseAdaGrad, RowWiseAdam

GIB = 1 << 30


def table(rows=1 << 22, dim=64, **more):
    return TableSpec(**{"name": "t", "features": ("f",), "rows": rows, "dim": dim, **more})


def sentence(*arguments, **options):
    with pytest.raises(PlanError) as refusal:
        check_fits(*arguments, **options)
    return str(refusal.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", [SGD, AdaGrad, RowWiseAdaGrad, Adam, RowWiseAdam, LAMB, LARS])
def test_what_is_reckoned_is_what_is_taken(optimizer, dtype):
    spec = table(rows=37, dim=5, dtype=dtype)
    collection = EmbeddingCollection([spec], optimizer())
    weights = collection.weight("t")
    states = collection.state("t").values()
    taken = TableMemory(weights.nbytes, sum(one.nbytes for one in states))
    assert memory_of([spec], [optimizer()]) == taken
    assert weights.dtype == getattr(torch, dtype)


def test_what_fits_is_let_through_and_what_is_small_is_not_asked_about():
    check_fits([table()], [SGD()], lambda: GIB)
    check_fits([table()], [SGD()], lambda: None)
    check_fits([table(rows=1000)], [SGD()], lambda: pytest.fail("asked"))


def test_the_sentence_says_what_is_needed_what_there_is_and_what_would_fit():
    said = sentence([table(rows=1 << 24)], [RowWiseAdaGrad()], lambda: 3 * GIB)
    assert said == (
        "The tables need 4.1 GiB (4.0 GiB of rows, 64.0 MiB of optimizer state) and 3.0 GiB of memory is "
        "available; take rows of 16 bits (model.dtype=float16), or dim 47 (model.dim=47), or 2 machines with "
        "as much memory under torchrun."
    )


def test_every_change_that_is_advised_does():
    spec, room = table(rows=1 << 24), 3 * GIB
    assert memory_of([table(rows=1 << 24, dim=47)], [RowWiseAdaGrad()]).total <= room
    assert memory_of([table(rows=1 << 24, dim=48)], [RowWiseAdaGrad()]).total > room
    said = sentence([spec], [Adam()], lambda: 5 * GIB)
    assert "embeddings.optimizer.kind=rowwise_adagrad" in said
    assert "float16" not in said
    assert memory_of([spec.model_copy(update={"dtype": "float16"})], [Adam()]).total > 5 * GIB


def test_a_copy_for_checkpoints_counts_and_can_be_done_without():
    check_fits([table()], [SGD()], lambda: GIB, copies=1)
    said = sentence([table()], [SGD()], lambda: GIB + GIB // 2, copies=2)
    assert "twice for checkpoints in the background" in said
    assert "train.background_checkpoints=false" in said


def test_only_the_share_of_this_machine_has_to_fit():
    check_fits([table()], [SGD()], lambda: GIB, share=1.0)
    check_fits([table(rows=1 << 24)], [SGD()], lambda: GIB, share=0.25)
    assert "on one machine" in sentence([table(rows=1 << 24)], [SGD()], lambda: GIB, share=0.5)


def test_tables_of_several_dims_get_no_advice_on_a_dim_but_single_columns_do_not_count():
    wide = [table(rows=1 << 24), table(name="one", rows=1 << 24, dim=1)]
    assert "model.dim=" in sentence(wide, [SGD()] * 2, lambda: 2 * GIB)
    assert "model.dim=" not in sentence([*wide, table(name="two", dim=8)], [SGD()] * 3, lambda: 2 * GIB)


def test_a_collection_of_a_hundred_terabytes_is_a_sentence():
    tables = [table(name=f"t{i}", features=(f"f{i}",), rows=4_000_000_000, dim=256) for i in range(26)]
    with pytest.raises(PlanError, match=r"The tables need 9\d\.\d TiB .* is available; take"):
        EmbeddingCollection(tables)


def test_memory_that_a_limit_does_not_give_is_a_sentence():
    code = """
import resource, megalith as mg
from megalith.core.errors import PlanError
from megalith.embeddings.memory import taking_memory
mg.EmbeddingCollection([mg.TableSpec(name="t", rows=10, dim=4, features=("f",))])
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
big = mg.TableSpec(name="t", rows=1 << 24, dim=64, features=("f",))
try:
    mg.EmbeddingCollection([big])
except PlanError as error:
    print(error)
import torch
try:
    with taking_memory([big], [mg.SGD()]):
        torch.empty(1 << 40)
except PlanError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    asked, taken = done.stdout.splitlines()
    assert asked.startswith("The tables need 4.1 GiB (4.0 GiB of rows, 64.0 MiB of optimizer state) and ")
    assert taken == (
        "The system does not give the 4.0 GiB of memory that the tables need; take fewer or smaller tables."
    )
