"""The options of `megalith export`, and what they ask for in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from megalith.cli.evaluate import CheckpointOption, TrustFlag
from megalith.cli.output import JsonFlag, print_json


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a run; without --out or with --over that of a frozen model; with --hardware also "
            "a recipe, a YAML file of tables, or a shape that ships: rm1, rm2, rm3, dlrm-v2, large.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write; it appears when it is complete and passed its gate."),
    ] = None,
    over: Annotated[
        Path | None,
        typer.Option(
            metavar="BASE",
            help="Write to --out only what changed since this frozen model: a delta, which `megalith serve` "
            "loads over it.",
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]float32|float16|int8|int4",
            help="Precision of tables, or of one; may be given several times [default: int8].",
        ),
    ] = None,
    dense: Annotated[
        str | None,
        typer.Option(
            metavar="float32|bfloat16|int8",
            help="Precision of the dense part's layers [default: float32; of cards int8].",
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    split: Annotated[
        str | None, typer.Option(help="Held-out split of the gate; by default the recipe's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Another prepared data set with the same features, for the gate.")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0.0, help="Highest share by which NE may rise; above it nothing is written.")
    ] = 0.0005,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="<name,...>",
            help="Features that are the same for all samples of a request: sent and looked up once.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the model, as a server lists it [default: that of --out].")
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate/--no-gate", help="Without it a model is frozen unchecked.")
    ] = True,
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure the backends on this machine and keep the best.")
    ] = False,
    check: Annotated[
        str | None,
        typer.Option(metavar="BACKEND", help="Run the conformance suite of a backend on the frozen model."),
    ] = None,
    batches: Annotated[
        str, typer.Option(metavar="N,...", help="Sizes of the requests that --tune and --check send.")
    ] = "1,32,256",
    threads: Annotated[
        str | None, typer.Option(metavar="N,...", help="Threads that --tune tries [default: 1, all cores].")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Cut the model over a host with cards: yosemite-v2, yosemite-v2-mtia-v1, "
            "yosemite-v2-mtia-v2, or a YAML file of your own."
        ),
    ] = None,
    items: Annotated[
        int, typer.Option(min=1, help="With --hardware: items that a request asks scores for.")
    ] = 270,
    cards: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --hardware: cards of a replica [default: the fewest that hold the tables]."
        ),
    ] = None,
    host_tables: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="With --hardware: tables of at most this size stay on the host where that moves no more; 0 "
            "puts all on cards [default: 1M].",
        ),
    ] = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Freeze a trained run into a folder that serves and scores, with its tables in few bits.

    The frozen model is compared with the trained one on a held-out split. Where it loses more than the
    budget, nothing is written. --tune and --check run it on this machine's backends, --hardware predicts it
    on cards; without --out they take a folder that was written before. --over compares two of these.
    """
    from megalith.cli.export.backends import TuneOptions, check_folder, tune_folder
    from megalith.cli.export.freeze import freeze_folder
    from megalith.cli.export.plan import ExportPlanOptions, plain_precision, plan_export
    from megalith.core.errors import ConfigError

    if over is not None:
        from megalith.cli.export.delta import export_delta

        others = {
            "--tables": tables,
            "--dense": dense,
            "--checkpoint": checkpoint,
            "--split": split,
            "--data": data,
            "--user": user,
            "--name": name,
            "--tune": tune,
            "--check": check,
            "--hardware": hardware,
        }
        meant = [option for option, value in others.items() if value]
        export_delta(over, Path(model), out, meant, json_output)
        return
    if out is None and not (tune or check or hardware):
        raise ConfigError(
            "Name the folder to write with --out, or ask of a frozen one with --tune, --check or --hardware."
        )
    asked = TuneOptions(batches, threads)
    results: dict[str, Any] = {}
    if out is not None:
        from megalith.train.checkpoints import parse_checkpoint
        from megalith.train.freezing.freeze import FreezeRequest
        from megalith.train.freezing.precisions import dense_precision, table_precisions

        request = FreezeRequest(
            run=Path(model),
            out=out,
            tables=table_precisions(tables or []),
            dense=dense_precision(dense or "float32"),
            checkpoint=parse_checkpoint(checkpoint),
            split=split,
            data=data,
            budget=budget,
            user=tuple(each.strip() for each in (user or "").split(",") if each.strip()),
            name=name,
            gate=gate,
            trust_code=trust_code,
        )
        results["export"] = freeze_folder(request, json_output)
        model = str(out)
    if tune:
        results["tuning"] = tune_folder(Path(model), asked, json_output)
    if hardware is not None:
        # What was just frozen has its precisions; tables and layers of all else are as asked.
        frozen = out is not None
        results["cards"] = plan_export(
            model,
            ExportPlanOptions(
                hardware=hardware,
                items=items,
                user_features=None if frozen else user,
                tables=None if frozen else plain_precision(tables),
                dense=None if frozen else dense,
                cards=cards,
                host_tables=host_tables,
                json_output=json_output,
            ),
        ).to_dict()
    failure = None
    if check is not None:
        results["check"], failure = check_folder(Path(model), check, asked, json_output)
    if json_output:
        print_json(next(iter(results.values())) if len(results) == 1 else results)
    if failure is not None:
        raise failure
