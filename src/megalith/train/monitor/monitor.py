"""`RunMonitor`: watches a run while it trains. Of no effect on what is learnt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from megalith.comm.ranks import Ranks
from megalith.core.spans import tracing
from megalith.core.trace import Tracer
from megalith.train.learner.learner import Learner
from megalith.train.loop import LoopConfig
from megalith.train.monitor.anomalies import AnomalyLog, LossWatch, NormWatch, StalledReader
from megalith.train.monitor.endpoint import MetricsEndpoint
from megalith.train.monitor.gauges import Gauges
from megalith.train.monitor.rank_load import LoadMeter
from megalith.train.monitor.stalled import TICKS, StallWatch, Ticker
from megalith.train.monitor.tables import TableCounter, TableWatch
from megalith.train.pipeline import PreparedBatch
from megalith.train.run.reporter import Reporter

NORM_EVERY = 10
"""The norm of the dense gradient is measured in every so many steps: a pass over all dense weights."""


class RunMonitor:
    """Load of all ranks, anomalies, and numbers for Prometheus; a context around the steps of a run.

    All ranks have one and call it alike; the first one tells.
    """

    def __init__(
        self,
        config: LoopConfig,
        learner: Learner,
        ranks: Ranks,
        reporter: Reporter,
        tracer: Tracer,
        total_steps: int,
        features: tuple[str, ...],
    ) -> None:
        self._config, self._learner, self._ranks = config, learner, ranks
        self._reporter, self._tracer = reporter, tracer
        self._log = AnomalyLog(lambda anomaly: reporter.write(anomaly.to_dict()))
        self._losses, self._norms = LossWatch(self._log), NormWatch(self._log)
        self._tables, self._use = (
            TableWatch(learner.tables, self._log),
            TableCounter(learner.tables, features),
        )
        self._load = LoadMeter(learner.embeddings)
        # Told of the log alone, which nothing here is told of: with the run ends all that the learner holds.
        self._stalled = StalledReader(self._log, config.stall_seconds)
        self._stalls = StallWatch(self._stalled.begin, self._stalled.end)
        self._gauges = Gauges(total_steps, learner.config.global_batch)
        self.url: str | None = None
        """Where Prometheus finds the numbers, if it is to."""
        self._held = ExitStack()

    def __enter__(self) -> RunMonitor:
        with ExitStack() as held:
            held.enter_context(tracing(self._tracer))
            self._load.begin(self._tracer.totals())
            self.url = self._ranks.from_first(lambda: self._listen(held))
            if self._config.stall_seconds is not None and self._ranks.is_first:
                held.enter_context(Ticker(self._stalls.tick, self._config.stall_seconds / TICKS))
            self._held = held.pop_all()
        self._reporter.on_entry = self._reported
        if self.url is not None:
            self._reporter.tell(f"Metrics for Prometheus: {self.url}")
        return self

    def __exit__(self, *_: object) -> None:
        self._reporter.on_entry = lambda entry: None
        self._learner.see_gradient(None)
        self._learner.measures_norm = False
        self._held.close()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around waiting for a batch."""
        with self._stalls.waiting():
            yield

    def before(self, step: int, batch: PreparedBatch, waited: float) -> None:
        """The batch of a step has come, after `waited` seconds."""
        self._stalled.step = step
        self._use.count(batch.batch)
        self._load.add(waited, batch.ids)
        # One step of each report: the last before it.
        looks = (step + 1) % self._config.log_every == 0
        self._learner.see_gradient(self._use.see_gradient if looks else None)
        self._learner.measures_norm = looks or step % NORM_EVERY == 0

    def after(self, step: int, loss: float | None) -> None:
        """A step was taken; only the first rank knows the whole loss."""
        measured = self._learner.gradient_norm
        norm = None if measured is None or not self._ranks.is_first else float(measured)
        if loss is not None:
            self._losses.see(step, loss)
        if norm is not None:
            self._norms.see(step, norm)
        self._gauges.stepped(step, loss, norm)

    def take(self, step: int) -> list[dict[str, Any]]:
        """The load of every rank since the last report, which all ranks make together."""
        load, use = self._load.take(self._tracer.totals()).to_dict(), self._use.take()
        own = load, use
        found = self._ranks.from_each(lambda: own)
        if self._ranks.is_first:
            self._tables.see(step, [use for _, use in found])
        return [load for load, _ in found]

    def _reported(self, entry: dict[str, Any]) -> None:
        self._gauges.reported(entry, self._tracer.totals(), self._log.counts)

    def _listen(self, held: ExitStack) -> str | None:
        if self._config.metrics_port is None:
            return None
        endpoint = MetricsEndpoint(self._config.metrics_host, self._config.metrics_port, self._gauges.text)
        held.callback(endpoint.close)
        return endpoint.url
