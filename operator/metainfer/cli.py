"""The ``metainfer`` command: one entry of the table per subcommand. Parses, prints, returns exit statuses; does no work itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

MISCONFIGURED = 2
"""Exit status for a setting that has to be changed before another start can help."""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: its name, a line of help, its own arguments, and what runs it and returns the exit status."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None


def run_operator(_: argparse.Namespace) -> int:
    """``metainfer run``."""
    # Imported here: the other subcommands must not need, nor wait for, the operator's libraries.
    from metainfer.app.logs import set_up_logs  # noqa: PLC0415
    from metainfer.app.operator import run_operator as run  # noqa: PLC0415
    from metainfer.settings import SettingsError, read_settings  # noqa: PLC0415
    from metainfer.store.errors import StoreUrlInvalid, StoreVersionError  # noqa: PLC0415

    try:
        settings = read_settings()
        set_up_logs(settings.log_level)
        return run(settings)
    except (SettingsError, StoreUrlInvalid, StoreVersionError) as error:
        print(f"metainfer: {error}", file=sys.stderr)
        return MISCONFIGURED
    except ConnectionError as error:
        print(f"metainfer: {error}", file=sys.stderr)
        return 1


def run_train(arguments: argparse.Namespace) -> int:
    """``metainfer train``."""
    from metainfer.predict.training_command import run_train as run  # noqa: PLC0415

    status, text = run(arguments)
    print(text)
    return status


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """``metainfer train``."""
    parser.epilog = "Exit status: 0 = a model was made (its line says whether it serves), 2 = wrong input, 3 = there is nothing to learn from."
    parser.add_argument("--samples", nargs="*", default=[], metavar="FILE", help="tables of samples: JSON lines, gzipped or not; - = standard input")
    parser.add_argument("--no-shipped", action="store_true", help="learn from these samples only, not from the tables that ship with the operator")
    parser.add_argument("--known-until", metavar="TIME", help="the model before knew samples up to then: the new one must beat it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the model goes (.json or .json.gz); default: standard output")
    parser.add_argument("--made-at", metavar="TIME", help="date in the model; with the same date and samples the file is the same (default: now)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--background", action="store_true", help="give way to everything else on the machine")


def run_predict(arguments: argparse.Namespace) -> int:
    """``metainfer predict``."""
    from metainfer.predict.predict_command import run_predict as run  # noqa: PLC0415

    status, text = run(arguments)
    print(text, file=sys.stderr if status else sys.stdout)
    return status


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """``metainfer predict``."""
    parser.add_argument("request", metavar="FILE", help="JSON: profile, cards, and if wanted candidates, load_clients, goal, slo; - = standard input")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, metavar="FILE", help="a model made by 'metainfer train' (default: the one that ships with the operator)")
    which.add_argument("--base", action="store_true", help="no learned model, the roofline alone")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="only the first N (default: all)")


def print_version(_: argparse.Namespace) -> int:
    """``metainfer version``."""
    try:
        print(metadata.version("meta-infer"))
    except metadata.PackageNotFoundError:
        print("unknown (running from a source tree that is not installed)")
    return 0


def run_samples(arguments: argparse.Namespace) -> int:
    """``metainfer samples export``."""
    from metainfer.app.exporting import run_export  # noqa: PLC0415
    from metainfer.store.errors import StoreVersionError  # noqa: PLC0415

    try:
        count = run_export(arguments)
    except (ValueError, StoreVersionError) as error:
        print(f"metainfer: {error}", file=sys.stderr)
        return MISCONFIGURED
    except ConnectionError as error:
        print(f"metainfer: {error}", file=sys.stderr)
        return 1
    print(f"metainfer: {count} samples", file=sys.stderr)
    return 0


def add_samples_arguments(parser: argparse.ArgumentParser) -> None:
    """``metainfer samples ...``."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    export = actions.add_parser("export", help="write the benchmarks in the store to standard output", description="Columns: see docs/operations.md.")
    export.add_argument("--format", choices=("csv", "jsonl"), default="csv", help="csv, or JSON lines, which hold the whole report too (default: csv)")
    export.add_argument("--since", metavar="WHEN", help="only what finished at or after a date, a time, or as long ago as 168h")
    export.add_argument("--family", metavar="NAME", help="only of this family of cards")
    export.add_argument("--store", metavar="URL", help="the store; default: METAINFER_STORE_URL, which keeps a password off the command line")


def run_restore(arguments: argparse.Namespace) -> int:
    """``metainfer restore``."""
    from metainfer.app.restoring import LEFT, Wish  # noqa: PLC0415
    from metainfer.app.restoring import run_restore as run  # noqa: PLC0415

    def tell(text: str, *, problem: bool = False) -> None:
        print(text, file=sys.stderr if problem else sys.stdout)

    if arguments.name and not arguments.namespace:
        print("metainfer: --name needs --namespace", file=sys.stderr)
        return MISCONFIGURED
    status = run(Wish(arguments.namespace, arguments.name, arguments.dry_run, tell))
    return 0 if status == LEFT and arguments.accept_left else status


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    """``metainfer restore``."""
    parser.epilog = (
        "Exit status: 0 = nothing of the operator is left, 1 = the API server refused or did not answer, 2 = wrong arguments, 3 = fields are left, and named."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true", help="every Deployment of the cluster that the operator has written to")
    which.add_argument("--namespace", metavar="NAMESPACE", help="those of one namespace")
    parser.add_argument("--name", metavar="NAME", help="one Deployment; restored even if its deletionPolicy was Retain")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, print what would change")
    parser.add_argument("--accept-left", action="store_true", help="exit with 0 also where fields are left")


def run_evaluate(arguments: argparse.Namespace) -> int:
    """``metainfer evaluate``."""
    from metainfer.predict.learned.errors import TableUnreadable, Untrainable  # noqa: PLC0415
    from metainfer.predict.public.report import POOLS, as_json, as_table, evaluate_shipped  # noqa: PLC0415

    unknown = [name for name in arguments.pool if name not in POOLS]
    if unknown:
        print(f"metainfer: there is no pool {unknown[0]!r}, known are {', '.join(POOLS)}", file=sys.stderr)
        return MISCONFIGURED
    try:
        figures = evaluate_shipped(arguments.pool or tuple(POOLS), arguments.tables, lambda text: print(text, file=sys.stderr))
    except (TableUnreadable, Untrainable) as error:
        print(f"metainfer: {error}", file=sys.stderr)
        return MISCONFIGURED
    print(as_json(figures) if arguments.output == "json" else as_table(figures))
    return 0


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """``metainfer evaluate``."""
    parser.add_argument("--pool", action="append", default=[], metavar="NAME", help="known, unseen, serving or onnx; may be repeated (default: all four)")
    parser.add_argument("--tables", type=Path, metavar="FOLDER", help="tables of the same format (default: those that ship with the operator)")
    parser.add_argument("--output", choices=("table", "json"), default="table", help="default: table")


def run_evaluate_adapter(arguments: argparse.Namespace) -> int:
    """``metainfer evaluate-adapter``."""
    from metainfer.predict.learned.errors import TableUnreadable  # noqa: PLC0415
    from metainfer.predict.public.adapter import answer_workdir  # noqa: PLC0415

    try:
        print(f"metainfer: {answer_workdir(arguments.workdir)}", file=sys.stderr)
    except (TableUnreadable, OSError) as error:
        print(f"metainfer: {error}", file=sys.stderr)
        return MISCONFIGURED
    return 0


def add_evaluate_adapter_arguments(parser: argparse.ArgumentParser) -> None:
    """``metainfer evaluate-adapter``."""
    parser.add_argument("workdir", type=Path, metavar="WORKDIR", help="holds train.csv, hw.csv, models.csv, probes.csv, candidates.csv and groups.csv")


COMMANDS = (
    Command("run", "run the operator in the cluster of KUBECONFIG, or of the pod it runs in; settings are METAINFER_* variables", run_operator),
    Command("samples", "export what was measured", run_samples, add_samples_arguments),
    Command("restore", "give the operator's fields on Deployments back, also while the operator is down", run_restore, add_restore_arguments),
    Command("train", "learn from tables of benchmarks", run_train, add_train_arguments),
    Command("predict", "rank candidates by portraits of model and cards", run_predict, add_predict_arguments),
    Command("evaluate", "compare the predictor with simpler ones on measured public tables", run_evaluate, add_evaluate_arguments),
    Command(
        "evaluate-adapter",
        "answer the evaluation contract: read the tables in WORKDIR, write predictions.csv",
        run_evaluate_adapter,
        add_evaluate_adapter_arguments,
    ),
    Command("version", "print the version", print_version),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; the exit status."""
    parser = argparse.ArgumentParser(prog="metainfer", description="Decides by measurement where and how each inference Deployment runs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    parsed = parser.parse_args(arguments)
    status: int = parsed.run(parsed)
    return status


if __name__ == "__main__":
    sys.exit(main())
