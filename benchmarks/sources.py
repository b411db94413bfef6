"""Bench: the same measurements in every form that the job reads, beside DuckDB reading the file.

    python -m benchmarks.sources --size 1m --rounds 3

Each form is one file, written once from simulated measurements. `main` groups it into rows; DuckDB
copies it to one flat Parquet file, without grouping. A run of `main` counts only if its dataset has
all measurements. CPU is beyond start-up: less that of a run over a single measurement.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import markdown as md
from benchmarks import runner
from benchmarks.results import Median, Results, Run, medians
from benchmarks.runner import Bench, Found

FORMS = {
    "parquet": "Parquet",
    "csv": "CSV",
    "csv.gz": "CSV, gzip",
    "jsonl": "JSON lines",
    "atlas.jsonl": "RIPE Atlas, JSON lines",
    "atlas.jsonl.bz2": "RIPE Atlas, bzip2",
    "scamper.jsonl": "scamper, JSON lines",
}
CONTENDERS = {"main": "Probeline", "duckdb": "DuckDB to Parquet"}
_LEAST_S = 0.1  # of CPU beyond start-up, that a rate is worth
_READERS = {"parquet": "read_parquet", "csv": "read_csv", "csv.gz": "read_csv"}


def write_form(source: str, form: str, target: str) -> int:
    """Writes measurements of a Parquet file in another form; returns their number."""
    import bz2
    import json

    import duckdb
    import pyarrow.parquet as pq

    table = pq.read_table(source)
    if form in ("parquet", "csv", "csv.gz", "jsonl"):
        kind = {"parquet": "PARQUET", "jsonl": "JSON"}.get(form, "CSV, HEADER")
        zipped = ", COMPRESSION GZIP" if form.endswith(".gz") else ""
        duckdb.sql(f"COPY (FROM '{source}') TO '{target}' (FORMAT {kind}{zipped})")
        return table.num_rows
    opened = bz2.open if form.endswith(".bz2") else open
    with opened(target, "wt") as file:  # type: ignore[operator]
        for row in table.to_pylist():
            seconds = int(row["event_time"].timestamp())
            lost = row["rtt"] < 0
            if form.startswith("scamper"):
                reply = {"from": row["dst_addr"], "seq": 0, "reply_size": 84, "rtt": row["rtt"]}
                value = {"type": "ping", "version": "0.4", "method": "icmp-echo", "ping_sent": 1}
                value |= {"src": row["src_addr"], "dst": row["dst_addr"]}
                value |= {"start": {"sec": seconds, "usec": 0}}
                value |= {"responses": [] if lost else [reply]}
            else:
                value = {"fw": 5080, "mver": "2.6.2", "lts": 11, "dst_name": row["dst_addr"]}
                value |= {"af": row["ip_version"], "dst_addr": row["dst_addr"], "proto": "ICMP"}
                value |= {"src_addr": "10.0.0.5", "ttl": 57, "size": 64, "dup": 0, "rcvd": 1}
                value |= {"result": [{"x": "*"} if lost else {"rtt": row["rtt"]}], "sent": 1}
                value |= {"min": row["rtt"], "max": row["rtt"], "avg": row["rtt"], "msm_id": 1001}
                value |= {"prb_id": 2, "timestamp": seconds, "msm_name": "Ping", "step": 240}
                value |= {"from": row["src_addr"], "type": "ping", "stored_timestamp": seconds}
            file.write(json.dumps(value) + "\n")
    return table.num_rows


def copy(source: str, target: str) -> int:
    """Copies a file to Parquet with DuckDB; returns its rows."""
    import duckdb

    form = source.partition("pings.")[2]
    reader = _READERS.get(form, "read_json")
    duckdb.sql(f"SET threads = 1; COPY (FROM {reader}('{source}')) TO '{target}' (FORMAT PARQUET)")
    return duckdb.read_parquet(target).shape[0]


def _measured(bench: Bench, form: str, contender: str, number: int, size: int) -> Run:
    options = bench.args
    folder = options.data_dir / f"sources-{size}"
    flags = {"num_measurements": size, "num_probes": options.num_probes, "seed": 1, "num_files": 1}
    (source,) = runner.generated(folder, **flags).glob("*.parquet")
    path = options.data_dir / f"sources-forms-{size}" / f"pings.{form}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        runner.call("benchmarks.sources:write_form", source, form, path)

    def command(folder: Path) -> list[str]:
        if contender == "duckdb":
            return runner.call_command("benchmarks.sources:copy", path, folder / "flat.parquet")
        job = runner.module_command("beam_pipeline.main", input=path, output=folder / "rows")
        return [*job, "--direct_num_workers=1"]

    def check(folder: Path, _: str) -> Found:
        if contender == "duckdb":
            return Found({"megabytes": path.stat().st_size / 1e6}, None, {})
        found = runner.call("benchmarks.check:count", folder / "rows")["measurements"]
        error = None if found == size else f"the output holds {found:,} measurements"
        return Found({"megabytes": path.stat().st_size / 1e6}, error, {})

    return bench.measured({"form": form, "contender": contender}, number, command, check)


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("sources", "The job over every form of input, beside DuckDB.")
    parser.add_argument("--size", type=runner.number, default=1_000_000, help="measurements")
    parser.add_argument("--num_probes", type=int, default=3000)
    runner.add_choices(parser, "--forms", FORMS)
    runner.add_choices(parser, "--contenders", CONTENDERS)
    args: argparse.Namespace = parser.parse_args(argv)
    bench = Bench("sources", args, {"size": args.size, "num_probes": args.num_probes})
    cases = [
        (form, contender)
        for form in args.forms
        for contender in args.contenders
        if contender == "main" or not form.endswith(".bz2")  # which DuckDB does not read
    ]
    start_up: dict[tuple[str, str], float] = {}
    for case in cases:
        runs = [_measured(bench, *case, 0, 100) for _ in range(2)]  # the first reads from disk
        bench.warm_up(" ".join(case), runs[1])
        start_up[case] = min(run.figures.get("cpu_s", 0.0) for run in runs)
    for number, case in bench.rounds(cases):
        run = _measured(bench, *case, number, args.size)
        run.figures["beyond_s"] = run.figures["cpu_s"] - start_up[case]
        bench.keep(run)
    return bench.end(markdown(bench.results))


def markdown(results: Results) -> str:
    """Returns the table of a result, a line per form, with notes."""

    def rate(line: Median | None, amount: float, digits: int) -> str:
        seconds = line.figures["beyond_s"] if line and line.figures else 0
        return f"{amount / seconds:,.{digits}f}" if seconds >= _LEAST_S else ""

    pings = results.options["size"] / 1e6
    forms: dict[str, dict[str, Median]] = {}
    for line in medians(results.runs):
        forms.setdefault(line.case["form"], {})[line.case["contender"]] = line
    ours, *others = CONTENDERS
    own: md.Columns = {
        "form": lambda line: FORMS[line.case["form"]],
        "MB": md.figure("megabytes"),
        "MB/CPU-s": lambda line: rate(line, line.figures["megabytes"], 0),
        "M pings/CPU-s": lambda line: rate(line, pings, 2),
        **md.COSTS,
    }
    beside = {
        f"{CONTENDERS[name]}, M pings/CPU-s": (
            lambda line, name=name: rate(forms[line.case["form"]].get(name), pings, 2)
        )
        for name in others
    }
    notes = [
        md.circumstances(results),
        f"{md.size(results.options['size'])} simulated measurements in one file, one process. "
        "MB and pings per CPU-second are beyond start-up, and omitted where that is less than "
        f"{_LEAST_S:g} s; DuckDB copies without grouping.",
    ]
    lines = [found[ours] for found in forms.values() if ours in found]
    return md.page([md.results_table(own | beside, lines)], notes)


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
