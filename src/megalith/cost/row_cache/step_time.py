"""Seconds of a step over a row cache, and what bounds it.

Batches are resolved a few ahead of the one that is computed, by a thread of their own; another reads the rows
that are missing. The computation uses all cores, so what these threads compute is taken from it:

    busy = compute + (resolve + read) / cores
    waiting = max(resolve, read, disk)
    step = (busy^3 + waiting^3)^(1/3)               with a pipeline
    step = compute + waiting                        without one

    resolve = lookups * a + rows read * b + written * c + new * d     (ResolveCosts: processor seconds)
    read = random reads * what one takes of a core + rows * e         (DiskSpeed, ResolveCosts)
    disk = random reads / rate + bytes in order / rate                (DiskSpeed: measured)

The cubes are a maximum without a corner: where cores and the disk are both nearly full, threads wait for each
other. The exponent is that of runs on two cores, whose disk gave 115,000 of 140,000 reads a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from megalith.core.units import format_bytes
from megalith.cost.row_cache.prediction import CachePrediction, RowTraffic
from megalith.hardware.disk import DiskSpeed

_EXPONENT = 3.0


@dataclass(frozen=True, slots=True)
class ResolveCosts:
    """Processor seconds of the threads that resolve and read.

    Least squares over resolved batches of rows of 260 bytes, with 0 to 56% of the lookups read from disk
    (benchmarks/row_cache.py --costs prints them for this machine).
    """

    per_lookup: float = 4.5e-8
    """Found once for the window and once for the batch."""
    per_read_row: float = 1e-6
    """Who leaves for it, and where it lies; the read itself is the disk's."""
    per_written_row: float = 4e-7
    per_new_row: float = 8e-7
    """Its start value."""
    per_taken_row: float = 5e-7
    """From its block into the pool, with its checksum, on the thread that reads."""

    def seconds(self, traffic: RowTraffic) -> float:
        """Of one step, on the thread that resolves."""
        written = traffic.evicted_rows + 2 * traffic.moved_rows
        return (
            traffic.lookups * self.per_lookup
            + traffic.read_rows * self.per_read_row
            + written * self.per_written_row
            + traffic.new_rows * self.per_new_row
        )


@dataclass(frozen=True, slots=True)
class TierPrediction:
    """What a run over a row cache will do."""

    hit_rate: float
    reads_per_sample: float
    """Rows read from disk."""
    written_rows_per_sample: float
    touched_rows: float
    disk_bytes: float
    compute_seconds: float
    """Of a step with all rows in memory."""
    resolve_seconds: float
    read_seconds: float
    """Of a core, to start reads and take what they bring."""
    disk_seconds: float
    step_seconds: float
    bound_by: str
    """compute, resolve, read, disk reads or disk writes."""
    step_seconds_range: tuple[float, float] | None = None
    """With the quickest and the slowest that the disk was measured at, where it was more than once."""

    @property
    def rate_of_memory(self) -> float:
        """Rate as a part of that with all rows in memory."""
        return self.compute_seconds / self.step_seconds if self.step_seconds else 1.0

    def __str__(self) -> str:
        share = f"{self.rate_of_memory:.0%} of the rate in memory"
        if self.step_seconds_range is not None:
            quick, slow = self.step_seconds_range
            share += f", {quick * 1e3:,.1f} to {slow * 1e3:,.1f} as the disk varies"
        return (
            f"Cache hits {self.hit_rate:.1%}, {self.reads_per_sample:.2f} disk reads a sample, "
            f"{self.step_seconds * 1e3:,.1f} ms a step ({share}), "
            f"bound by {self.bound_by}; {format_bytes(self.disk_bytes)} on disk at the end."
        )


def predict_tier(
    cache: CachePrediction,
    compute_seconds: float,
    disk: DiskSpeed,
    *,
    cores: int,
    costs: ResolveCosts | None = None,
    pipelined: bool = True,
    late: bool = False,
) -> TierPrediction:
    """Step time of a whole run, or of its last part (`late`), from what moves and what that costs.

    `compute_seconds` is a step with all rows in memory: measured, or by the cost model.
    """
    traffic = cache.late if late else cache.run
    costs = costs or ResolveCosts()
    resolve = costs.seconds(traffic)
    reads = traffic.disk_reads / disk.reads_per_second
    # What is collected is read whole before it is written: as many rows as are appended.
    in_order = (traffic.evicted_rows + traffic.moved_rows) * cache.record_bytes
    writes = in_order / disk.write_bytes_per_second
    if traffic.moved_rows:
        writes += in_order / disk.read_bytes_per_second
    read = traffic.disk_reads * disk.read_processor_seconds + traffic.read_rows * costs.per_taken_row
    waiting = max(resolve, read, reads + writes)
    busy = compute_seconds + (resolve + read) / cores
    step = (
        (busy**_EXPONENT + waiting**_EXPONENT) ** (1 / _EXPONENT) if pipelined else compute_seconds + waiting
    )
    slowest = "disk reads" if reads >= writes else "disk writes"
    if reads + writes < waiting:
        slowest = "resolve" if resolve == waiting else "read"
    bound = slowest if waiting > (busy if pipelined else compute_seconds) else "compute"
    varied = [
        predict_tier(
            cache,
            compute_seconds,
            replace(disk, reads_per_second=rate, reads_range=None),
            cores=cores,
            costs=costs,
            pipelined=pipelined,
            late=late,
        ).step_seconds
        for rate in disk.reads_range or ()
    ]
    return TierPrediction(
        hit_rate=traffic.hit_rate,
        reads_per_sample=traffic.read_rows / cache.batch,
        written_rows_per_sample=traffic.evicted_rows / cache.batch,
        touched_rows=cache.touched_rows,
        disk_bytes=cache.disk_bytes,
        compute_seconds=compute_seconds,
        resolve_seconds=resolve,
        read_seconds=read,
        disk_seconds=reads + writes,
        step_seconds=step,
        bound_by=bound,
        step_seconds_range=(varied[1], varied[0]) if varied else None,
    )
