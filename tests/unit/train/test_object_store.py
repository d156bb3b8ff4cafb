"""Training from an object store: a real server that speaks S3, with raw files and prepared ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs
from small_recipes import outcome, trained
from test_raw_training import write_logs

from megalith.core.errors import ConfigError, DataError
from megalith.data.places import list_files
from megalith.data.prepare import PrepareOptions, prepare
from megalith.train.recipe import load_recipe
from megalith.train.trainer import Trainer

moto_server = pytest.importorskip("moto.server", reason="needs moto: pip install 'megalith[test]'")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The port of a store, and the folder whose files it has in the bucket `logs`."""
    folder = tmp_path_factory.mktemp("store")
    logs = write_logs(folder / "logs")
    prepare(
        PrepareOptions(
            source="parquet", files=tuple(sorted(logs.iterdir())), out=folder / "prepared", min_count=1
        )
    )
    (folder / "recipe.yaml").write_text(
        """
name: stored
data: {path: none, batch_size: 100, threads: 1, prefetch: 1}
model: {kind: dlrm, dim: 4, bottom: {layers: [8]}, top: {layers: [8]}}
train: {epochs: 1, log_every: 7, checkpoint_every: 10, tensorboard: no}
"""
    )
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        remote = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            region="eu-west-1",
            allow_bucket_creation=True,
        )
        remote.create_dir("logs")
        for path in (path for path in folder.rglob("*") if path.is_file()):
            with remote.open_output_stream(f"logs/{path.relative_to(folder)}") as stream:
                stream.write(path.read_bytes())
        with remote.open_output_stream("logs/logs/part-9.parquet.tmp") as stream:
            stream.write(b"half a file")
        yield port, folder
    server.stop()


def metrics(run):
    return [line for line in outcome_of(run) if line["kind"] == "train"]


def outcome_of(run):
    # There is no split to evaluate on.
    run.evaluation("valid").write_text("{}")
    return outcome(run)[0]


@pytest.mark.parametrize("by", ["environment", "place"])
def test_runs_from_a_store_are_those_from_a_disk(store, tmp_path, monkeypatch, by):
    port, folder = store
    query = ""
    if by == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    else:
        query = f"?endpoint_override=127.0.0.1:{port}&scheme=http"
    raw = ["data.raw.source=parquet", "data.raw.hash_buckets=50"]
    vocabulary = [f"data.raw.vocabulary_from={folder / 'prepared'}"]
    recipe = folder / "recipe.yaml"
    pairs = [
        ([f"data.path={folder / 'prepared'}"], [f"data.path=s3://logs/prepared{query}"]),
        ([f"data.path={folder / 'logs'}", *raw], [f"data.path=s3://logs/logs{query}", *raw]),
        (
            [f"data.path={folder / 'logs'}/part-[01]*", *vocabulary],
            [
                f"data.path=s3://logs/logs/part-[01]*{query}",
                f"data.raw.vocabulary_from=s3://logs/prepared{query}",
            ],
        ),
    ]
    for number, (here, there) in enumerate(pairs):
        expected = metrics(trained(recipe, tmp_path / f"here-{number}", *here))
        assert expected
        run = trained(recipe, tmp_path / f"there-{number}", *there)
        assert metrics(run) == expected
    assert run.inputs.dataset().schema.categorical[0].num_ids > 2


def test_a_place_that_is_not_there_is_named(store, monkeypatch):
    port, folder = store
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert [Path(file.name).name for file in list_files("s3://logs/logs")] == [
        f"part-{number}.parquet" for number in range(3)
    ]
    with pytest.raises(DataError, match="s3://logs/none does not exist"):
        list_files("s3://logs/none")
    with pytest.raises(ConfigError, match="was given with credentials"):
        list_files("s3://me:secret@logs/none")
    with pytest.raises(ConfigError, match="there is no key endpoint"):
        list_files("s3://logs/none?endpoint=127.0.0.1")
    recipe = load_recipe(str(folder / "recipe.yaml"), ["data.path=s3://logs/logs"])
    with pytest.raises(
        DataError, match=r"s3://logs/logs is not a prepared data set \(schema.json is missing"
    ):
        Trainer(recipe, folder / "refused")
