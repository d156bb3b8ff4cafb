"""Event times: read from timestamps, integers and hours, kept in seconds, and carried by every batch."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from commands import unwrapped
from megalith.cli.app import app
from megalith.core.errors import ConfigError, DataError
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.data.prepare import PrepareOptions, prepare
from megalith.data.readers.event_time import unit_of_integers

NOON = 1_700_000_000
SECONDS = [NOON + 60 * row for row in range(40)]


def log_of(path, times, name="when", rows=40):
    """Rows whose category and number say which they are, with a column of times."""
    table = pa.table(
        {
            "label": pa.array([row % 2 for row in range(rows)], pa.float32()),
            name: times,
            "number": pa.array(range(rows), pa.float32()),
            "user": pa.array(range(1000, 1000 + rows), pa.int64()),
        }
    )
    pq.write_table(table, path)
    return path


def prepared(log, out, **options):
    given = {"event_time": "when", "numeric": "none", "min_count": 1, "threads": 1, **options}
    return prepare(PrepareOptions(source="parquet", files=(log,), out=out, **given))


def stored(folder, split="train", column="when"):
    return [
        value for path in Dataset(folder).files(split) for value in pq.read_table(path)[column].to_pylist()
    ]


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (pa.array(SECONDS, pa.int64()), "seconds"),
        (pa.array(SECONDS, pa.uint32()), "seconds"),
        (pa.array([1000 * at + 999 for at in SECONDS], pa.int64()), "milliseconds"),
        (pa.array([10**6 * at + 5 for at in SECONDS], pa.uint64()), "microseconds"),
        (pa.array([10**9 * at for at in SECONDS], pa.int64()), "nanoseconds"),
        (pa.array([1000 * at + 999 for at in SECONDS], pa.timestamp("ms")), "timestamps"),
        (pa.array([10**6 * at for at in SECONDS], pa.timestamp("us", "America/New_York")), "timestamps"),
        (pa.array(SECONDS, pa.timestamp("s", "UTC")), "timestamps"),
    ],
    ids=lambda each: str(getattr(each, "type", each)),
)
def test_times_of_any_type_are_kept_in_whole_seconds(tmp_path, times, unit):
    result = prepared(log_of(tmp_path / "log.parquet", times), tmp_path / "out")
    assert stored(tmp_path / "out") == SECONDS
    schema = result.schema
    assert (schema.event_time, schema.feature_names) == ("when", ("user",))
    assert schema.preparation["recipe"]["event_time"] == {"name": "when", "unit": unit}
    assert json.loads((tmp_path / "out" / "schema.json").read_text())["version"] == 3


def test_dates_are_their_midnight(tmp_path):
    days = pa.array([dt.date(2024, 2, 29)] * 40)
    prepared(log_of(tmp_path / "log.parquet", days), tmp_path / "out")
    midnight = dt.datetime(2024, 2, 29, tzinfo=dt.UTC).timestamp()
    assert stored(tmp_path / "out") == [midnight] * 40


def test_the_first_integer_decides_the_unit():
    units = [unit_of_integers(first) for first in (0, 10**11 - 1, 10**11, 10**14, 10**17, -(10**11))]
    assert units == ["seconds", "seconds", "milliseconds", "microseconds", "nanoseconds", "milliseconds"]


def test_the_rule_is_printed_and_in_json(tmp_path):
    log = log_of(tmp_path / "log.parquet", pa.array([1000 * at for at in SECONDS]))
    told = ["data", "prepare", "parquet", str(log), "--event-time", "when", "--out"]
    shown = CliRunner().invoke(app, [*told, str(tmp_path / "a")])
    assert "Event time: column 'when', integers, read as milliseconds since 1970" in unwrapped(shown.output)
    listed = CliRunner().invoke(app, [*told, str(tmp_path / "b"), "--json"])
    assert json.loads(listed.output)["event_time"] == {"name": "when", "unit": "milliseconds"}


@pytest.mark.parametrize(
    ("times", "options", "message"),
    [
        (pa.array(["noon"] * 40), {}, r"Column 'when' of .* has type string; --event-time takes timestamps"),
        (pa.array([0.5] * 40), {}, r"has type double; --event-time takes timestamps"),
        (pa.array([None] * 40, pa.int64()), {}, r"holds no value; name another column"),
        (pa.array(SECONDS), {"event_time": "wen"}, r"no column 'wen'; .*when"),
        (pa.array(SECONDS), {"categories": ("when",)}, r"named by --category and by --event-time"),
    ],
)
def test_columns_that_hold_no_times_are_one_sentence(tmp_path, times, options, message):
    with pytest.raises(ConfigError, match=message):
        prepared(log_of(tmp_path / "log.parquet", times), tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "has no value in column when, the event time"),
        (-1, r"has -1 in column when, which is no time from 1970 to 2106 \(seconds\)"),
        (2**32, "has 4294967296 in column when, which is no time"),
        (1000 * NOON, "has 1700000000000 in column when, which is no time"),
    ],
)
def test_a_row_without_a_time_is_a_bad_row(tmp_path, value, problem):
    log = log_of(tmp_path / "log.parquet", pa.array([*SECONDS[:7], value, *SECONDS[8:]], pa.int64()))
    with pytest.raises(DataError, match=f"line 8 {problem}"):
        prepared(log, tmp_path / "out")
    schema = prepared(log, tmp_path / "out", max_bad_rows=1).schema
    assert schema.bad_rows == 1
    assert stored(tmp_path / "out") == [*SECONDS[:7], *SECONDS[8:]]


def test_another_file_with_another_type_is_named(tmp_path):
    first = log_of(tmp_path / "a.parquet", pa.array(SECONDS))
    second = log_of(tmp_path / "b.parquet", pa.array(SECONDS, pa.timestamp("ms")))
    options = PrepareOptions(
        source="parquet", files=(first, second), out=tmp_path / "out", event_time="when", threads=1
    )
    with pytest.raises(DataError, match=r"b.parquet: column 'when' has type timestamp\[ms\], other than"):
        prepare(options)


def test_later_files_are_read_by_the_same_rule(tmp_path):
    prepared(log_of(tmp_path / "a.parquet", pa.array([1000 * at for at in SECONDS])), tmp_path / "first")
    # As a first file these would be taken for seconds.
    later = log_of(tmp_path / "b.parquet", pa.array([1000 * (row + 1) for row in range(40)], pa.int64()))
    given = {"event_time": None, "numeric": None, "vocabulary_from": tmp_path / "first"}
    prepared(later, tmp_path / "second", **given)
    assert stored(tmp_path / "second") == list(range(1, 41))
    with pytest.raises(ConfigError, match="was prepared with --event-time when; leave out --event-time user"):
        prepared(later, tmp_path / "third", **{**given, "event_time": "user"})


@pytest.mark.parametrize("source", ["criteo", "libfm"])
def test_formats_without_times_say_so(tmp_path, source):
    (tmp_path / "log").write_text("1 1:1\n")
    with pytest.raises(ConfigError, match=f"{source} files have no column of times"):
        prepare(
            PrepareOptions(
                source=source, files=(tmp_path / "log",), out=tmp_path / "out", event_time="hour", threads=1
            )
        )


AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
    "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21\n"
)


def avazu_line(label, hour, fields=21):
    return ",".join(["7", label, hour, *(["a"] * fields)]) + "\n"


def test_hours_of_avazu_are_times_also_behind_lines_that_are_left_out(tmp_path):
    lines = [
        avazu_line("1", "14102100"),
        avazu_line("2", "14102101"),
        avazu_line("0", "14102102", fields=20),
        "\n",
        avazu_line("0", "1410210x"),
        avazu_line("1", "14102103"),
        avazu_line("0", "14103123"),
    ]
    (tmp_path / "log.csv").write_text(AVAZU + "".join(lines))
    options = {"source": "avazu", "files": (tmp_path / "log.csv",), "min_count": 1, "threads": 1}
    timed = PrepareOptions(**options, out=tmp_path / "out", event_time="hour", max_bad_rows=3)
    assert prepare(timed).schema.bad_rows == 3
    hours = [dt.datetime(2014, 10, *at, tzinfo=dt.UTC) for at in ((21, 0), (21, 3), (31, 23))]
    assert stored(tmp_path / "out", column="hour") == [int(hour.timestamp()) for hour in hours]
    # An hour is still two features.
    assert {"hour_of_day", "weekday"} < set(Dataset(tmp_path / "out").schema.feature_names)
    with pytest.raises(ConfigError, match="event time of avazu files is 'hour', not 'id'"):
        prepare(PrepareOptions(**options, out=tmp_path / "b", event_time="id"))
    (tmp_path / "log.csv").write_text(AVAZU + avazu_line("1", ""))
    with pytest.raises(DataError, match="a row has no value in column hour, the event time"):
        prepare(PrepareOptions(**options, out=tmp_path / "c", event_time="hour"))


def test_batches_carry_times_shuffled_cut_and_resumed(tmp_path):
    """Whatever the order and the rank, a sample's time is that of its row."""
    log = log_of(tmp_path / "log.parquet", pa.array(SECONDS))
    prepared(log, tmp_path / "out", valid_fraction=0.2)
    dataset = Dataset(tmp_path / "out")
    rows = dataset.split("train").rows

    def times_are_right(batch):
        assert batch.event_times.dtype == torch.int64
        expected = NOON + 60 * batch.dense[:, 0].long()
        assert torch.equal(batch.event_times, expected)
        return batch.event_times.tolist()

    seen = []
    for rank in range(2):
        loader = Loader(dataset, batch_size=6, rank=rank, world_size=2, share="slices", drop_last=False)
        seen += [at for batch in loader for at in times_are_right(batch)]
    assert sorted(seen) == sorted(stored(tmp_path / "out"))
    loader = Loader(dataset, batch_size=6, drop_last=False, seed=3)
    whole = [times_are_right(batch) for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    resumed = Loader(dataset, batch_size=6, drop_last=False, seed=3)
    resumed.load_state_dict(state)
    assert [times_are_right(batch) for batch in resumed] == whole[1:]
    assert len(whole) == -(-rows // 6)
    assert loader.empty_batch().event_times.shape == (0,)


def test_data_without_times_is_as_it_was(tmp_path):
    prepared(log_of(tmp_path / "log.parquet", pa.array(SECONDS)), tmp_path / "out", event_time=None)
    content = json.loads((tmp_path / "out" / "schema.json").read_text())
    assert content["version"] == 1
    assert "event_time" not in content
    (batch,) = Loader(Dataset(tmp_path / "out"), batch_size=40)
    assert batch.event_times is None
    # Without being asked for, integers are a feature as ever.
    assert Dataset(tmp_path / "out").schema.feature_names == ("when", "user")


def test_times_that_are_none_are_found_by_the_loader(tmp_path):
    prepared(log_of(tmp_path / "log.parquet", pa.array(SECONDS)), tmp_path / "out")
    (path,) = Dataset(tmp_path / "out").files("train")
    table = pq.read_table(path)
    wrong = np.array([*SECONDS[:-1], -5])
    pq.write_table(table.set_column(1, table.schema.field("when"), pa.array(wrong)), path)
    with pytest.raises(DataError, match="column 'when', row 39: event time -5 is outside the seconds"):
        list(Loader(Dataset(tmp_path / "out"), batch_size=40))


def test_generated_rows_are_spread_over_days(tmp_path):
    told = ["data", "synth", "criteo", "--rows", "3000", "--valid-rows", "1000", "--test-rows", "0"]
    made = CliRunner().invoke(app, [*told, "--days", "10", "--out", str(tmp_path / "out")])
    assert made.exit_code == 0, made.output
    train, valid = (stored(tmp_path / "out", split, "event_time") for split in ("train", "valid"))
    assert train + valid == sorted(train + valid)
    assert valid[-1] - train[0] == 10 * 86400 - 216
    assert 7.4 * 86400 < valid[0] - train[0] < 7.6 * 86400
    told += ["--days", "10", "--format", "text", "--out", str(tmp_path / "text")]
    refused = CliRunner().invoke(app, told)
    assert "Text has no event time" in str(refused.exception)
