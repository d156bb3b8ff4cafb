"""`megalith export MODEL --hardware NAME`, as a user runs it."""

import json

import pytest
import yaml

from megalith.export.partition.records import read_partition
from small_frozen import manifest, weights


def test_a_shape_is_cut_over_the_cards_of_a_host(command):
    done = command("export", "dlrm-v2", "--hardware", "yosemite-v2", "--json")
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    made = printed["partition"]
    assert (len(made["cards"]), made["replicas"]) == (2, 3)
    assert made["prediction"]["measured"] is False
    assert made["prediction"]["items"] == 270
    assert [each["hardware"] for each in printed["guidance"]] == [
        "yosemite-v2",
        "yosemite-v2-mtia-v1",
        "yosemite-v2-mtia-v2",
    ]
    changes = {gain["change"] for gain in printed["guidance"][0]["gains"]}
    assert changes == {"card memory", "memory bandwidth", "link", "TOPS", "cards", "host"}
    assert [each["cards_per_replica"] for each in printed["choices"]] == [2, 3, 6]
    assert printed["written"] is None


def test_people_read_what_is_a_prediction(command):
    done = command("export", "rm1", "--hardware", "yosemite-v2", "--user", "t0,t3", "--items", 100)
    assert done.code == 0, done.err
    for said in (
        "rm1 on yosemite-v2: 8 tables of 1.1 GiB in int8",
        "Looked up once a request: t0, t3.",
        "A request of 100 items takes",
        "Rate per watt (prediction):",
        "2x memory bandwidth",
        "none of it was measured on a card",
    ):
        assert said in done.out


def test_more_cards_a_replica_and_narrower_tables(command):
    done = command(
        "export",
        "large",
        "--hardware",
        "yosemite-v2",
        "--tables",
        "int4",
        "--cards",
        4,
        "--host-tables",
        "0",
        "--json",
    )
    assert done.code == 0, done.err
    made = json.loads(done.out)["partition"]
    assert (len(made["cards"]), made["replicas"], made["idle_cards"]) == (4, 1, 2)
    assert made["precision"] == "int4"
    assert made["host_tables"] == []


def test_a_run_is_cut_by_the_tables_of_its_model(command, trained, data):
    done = command("export", trained, "--hardware", "yosemite-v2", "--json")
    assert done.code == 0, done.err
    made = json.loads(done.out)["partition"]
    placed = [name for card in made["cards"] for name in card["tables"]] + made["host_tables"]
    assert len(placed) == len(set(placed)) == 26
    assert made["model"] == "small"
    assert not (trained / "partition.json").exists()


def test_tables_and_hardware_of_one_s_own(command, tmp_path):
    tables = {"tables": [{"name": "a", "rows": 10_000_000, "dim": 60, "lookups": 3}]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tables))
    hardware = {
        "clusters": {
            "mine": {
                "device": "mtia-v1",
                "host": "yosemite-host",
                "levels": [{"name": "host", "count": 2, "link": "pcie4-x8"}],
            }
        }
    }
    (tmp_path / "cards.yaml").write_text(yaml.safe_dump(hardware))
    done = command("export", tmp_path / "mine.yaml", "--hardware", tmp_path / "cards.yaml", "--json")
    assert done.code == 0, done.err
    made = json.loads(done.out)["partition"]
    assert (made["hardware"], made["replicas"]) == ("mine", 2)
    assert made["cards"][0]["table_bytes"] == 640_000_000


def test_a_frozen_model_keeps_its_partition(command, tmp_path):
    weights(tmp_path)
    (tmp_path / "manifest.json").write_text(manifest().model_dump_json())
    done = command("export", tmp_path, "--hardware", "yosemite-v2", "--host-tables", "0", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["written"] == str(tmp_path / "partition.json")
    record = read_partition(tmp_path)
    assert record.cards[0].tables == ("users", "items")
    assert record.user_features == ("user",)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rm4", "--hardware", "yosemite-v2"), "No model 'rm4': did you mean 'rm"),
        (("rm1", "--hardware", "zionex"), "Cluster 'zionex' has no host beside its devices"),
        (("rm1", "--hardware", "yosemite-v3"), "Unknown cluster 'yosemite-v3'; did you mean 'yosemite-v2'?"),
        (("neo-a", "--hardware", "yosemite-v2"), "do not fit on 6 nnpi-1150 with"),
        (("rm1", "--hardware", "yosemite-v2", "--user", "zz"), "names 'zz', which no table has"),
        (("rm1", "--hardware", "yosemite-v2", "--cards", 7), "has 6 cards; name 1 to 6"),
    ],
)
def test_what_cannot_be_is_one_sentence(command, arguments, said):
    assert said in command("export", *arguments).sentence
