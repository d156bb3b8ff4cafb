"""Generated data, whose columns are ids: tables on disk and adaptive ones, ids outside of a table."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from scored_runs import eval_scores, predicted
from small_recipes import trained, write_recipe

import megalith as mg
from megalith.core.errors import DataError

KINDS = {
    "dense": (),
    "tiered": ("memory.dram=1MiB",),
    "adaptive": ("adaptive={ratio: 8, interval: 4, warm_up: 8, chunk: 1, end: 0.4}",),
}


@pytest.fixture(scope="module")
def part(small_data):
    return small_data / "test" / "part-00000.parquet"


@pytest.fixture(scope="module", params=KINDS)
def scored(request, small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    recipe = write_recipe(folder / "small.yaml", small_data)
    trained(recipe, folder / "run", *KINDS[request.param], "train.steps=30")
    return folder, eval_scores(folder, folder / "eval.parquet")["score"].to_numpy()


def test_scores_are_those_of_an_evaluation_whatever_holds_the_rows(scored, small_data, part, tmp_path):
    folder, scores = scored
    run, out = folder / "run", tmp_path / "out.parquet"
    np.testing.assert_array_equal(predicted(run, small_data, out=out, split="test")["score"], scores)
    np.testing.assert_array_equal(predicted(run, part, out=out)["score"], scores)
    first, second = mg.load_run(run), mg.load_run(run)
    frame = pq.read_table(part).to_pandas()
    np.testing.assert_array_equal(first.predict(frame), scores)
    np.testing.assert_array_equal(second.predict(frame), scores)
    vectors = first.embeddings("C3")
    assert len(vectors) == {each.name: each.num_ids for each in first.schema.categorical}["C3"]
    assert vectors["kind"].unique().to_pylist() == ["id"]


def test_ids_outside_of_a_table_are_refused(whole, part):
    run = mg.load_run(whole.folder)
    frame = pq.read_table(part).slice(0, 5).to_pandas()
    frame.loc[3, "C2"] = 10**7
    with pytest.raises(DataError, match=r"row 4: column 'C2' holds id 10000000, which is outside \[0, "):
        run.predict(frame)
    frame.loc[3, "C2"] = None
    with pytest.raises(DataError, match="row 4: column 'C2' holds no id"):
        run.predict(frame)
