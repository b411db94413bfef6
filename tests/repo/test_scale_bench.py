"""The scale bench counts what it says, and its estimates are the sums that they claim to be."""

import json
import os
import subprocess
import sys
from collections import Counter

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline import generate
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.jobs.frame import add_transforms
from beam_pipeline.jobs.monitoring import counter
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.probe_rows import bucket
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.sources.inputs import InputFile
from beam_pipeline.storage.matching import FileVersion
from benchmarks import ROOT, estimate, many_probes, markdown, results, scale, scale_table
from benchmarks.counted_job import counters_of
from benchmarks.estimate import Assumptions, PerMeasurement, Prices, Use
from benchmarks.gcs_requests import billed_class
from benchmarks.random_probes import write_measurements
from benchmarks.results import Results, Run
from tests.support.engines import Gcs
from tests.support.faulty_gcs import faulty

NUM_MEASUREMENTS = 40_000


def counted_job(*flags: str, **environment: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.counted_job", *flags],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counters, requests = (json.loads(line) for line in done.stderr.splitlines()[-2:])
    return counters | requests


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("scale") / "in"
    flags = [f"--num_measurements={NUM_MEASUREMENTS}", "--num_probes=4"]
    assert generate.main([f"--output={folder}", *flags]) == 0
    return str(folder)


def test_few_probes_get_the_small_chunks_of_many(measurements, tmp_path):
    counts = counted_job(
        f"--input={measurements}/*.parquet", f"--output={tmp_path}/rows", "--group_rows=800",
        f"--rows_in_all={scale.LARGE_RUN}",
    )  # fmt: skip
    assert counts["rows_read"] == NUM_MEASUREMENTS
    assert counts["chunks"] == pytest.approx(NUM_MEASUREMENTS / scale.CHUNK_RECORDS, rel=0.05)
    assert counts["class_a"] == counts["class_b"] == 0


@pytest.mark.slow
def test_a_counter_that_stays_at_0_is_0_on_prism(prism: str):
    def count(element: int) -> None:
        counter("rows_left_out").inc(0)
        counter("rows_read").inc(element)

    flags = ["--runner=PrismRunner", f"--prism_location={prism}", "--environment_type=LOOPBACK"]
    pipeline = beam.Pipeline(options=PipelineOptions(flags))
    _ = pipeline | beam.Create([1, 2]) | beam.Map(count)
    result = pipeline.run()
    result.wait_until_finish()
    assert counters_of(result) == {"rows_left_out": 0, "rows_read": 3}


def test_requests_to_gcs_are_counted_as_they_arrive(measurements, gcs: Gcs):
    bucket = gcs.make_bucket()
    with faulty(gcs.endpoint) as proxy:
        counts = counted_job(
            f"--input={measurements}/*.parquet", f"--output={bucket}/rows",
            STORAGE_EMULATOR_HOST=proxy.endpoint,
        )  # fmt: skip
    arrived = Counter(request.method for request in proxy.requests)
    lists = sum(
        request.method == "GET" and request.name.endswith("/o") for request in proxy.requests
    )
    batches = sum(request.name.startswith("/batch/") for request in proxy.requests)
    assert counts["class_a"] == arrived["POST"] - batches + lists
    assert counts["upload_parts"] == arrived["PUT"]
    assert counts["deletes"] == arrived["DELETE"] + batches
    assert batches > 0
    # What was looked at before is read from where the emulator says, past the proxy.
    assert counts["class_b"] >= arrived["GET"] - lists > 0
    assert counts["uploaded_bytes"] > counts["bytes_written"]  # its shards, and what was staged


@pytest.mark.parametrize(
    ("method", "url", "kind"),
    [
        ("GET", "http://h/storage/v1/b/bucket/o?prefix=x", "class_a"),
        ("GET", "http://h/storage/v1/b/bucket/o/in%2Fo", "class_b"),
        ("GET", "http://h/download/storage/v1/b/bucket/o/x?alt=media", "class_b"),
        ("POST", "http://h/upload/storage/v1/b/bucket/o?uploadType=resumable", "class_a"),
        ("PUT", "http://h/upload/storage/v1/b/bucket/o?upload_id=x", "upload_parts"),
        ("POST", "http://h/storage/v1/b/bucket/o/x/rewriteTo/b/bucket/o/y", "class_a"),
        ("DELETE", "http://h/storage/v1/b/bucket/o/x", "deletes"),
        ("POST", "http://h/batch/storage/v1", "deletes"),
    ],
)
def test_a_request_is_of_the_class_that_google_bills(method, url, kind):
    assert billed_class(method, url) == kind


@pytest.mark.parametrize(
    ("num_gb", "billed"), [(0, 0), (100, 25), (250, 62.5), (350, 112.5), (5220, 2597.5)]
)
def test_the_shuffle_is_billed_by_tiers(num_gb, billed):
    assert estimate.billed_shuffle_gb(num_gb, Prices()) == pytest.approx(billed)


FIGURES = PerMeasurement(
    cpu_s=1e-6, gcs_cpu_s=1e-6, runner_cpu_s=2e-6, shuffle_bytes=16.0, output_bytes=8.0,
    uploaded_bytes=40.0, downloaded_bytes=60.0, class_a=1e-6, class_b=2e-6, deletes=1e-6,
    upload_parts=0.0,
)  # fmt: skip
PER_SHARD = {"class_a": 3.0, "class_b": 4.0, "deletes": 2.0, "upload_parts": 1.0}
ASSUMED = Assumptions(vcpu_speed=0.5, request_s=0.1, stream_bytes_per_s=50e6, start_s=100.0)


def test_an_estimate_is_the_sum_of_its_parts():
    run = estimate.Run(num_measurements=1_000_000_000, num_shards=160, vcpus=10)
    low = estimate.use_of(run, FIGURES, PER_SHARD, ASSUMED, is_high=False)
    high = estimate.use_of(run, FIGURES, PER_SHARD, ASSUMED, is_high=True)
    commit_s = (160 * 10 + 1000) * 0.1 / 32
    assert low.commit_hours * 3600 == pytest.approx(commit_s)
    assert low.vcpu_hours * 3600 == pytest.approx(4000)
    assert low.wall_hours * 3600 == pytest.approx(100 + 400 + commit_s)
    assert (low.class_a, low.class_b) == pytest.approx((1000 + 480, 2000 + 640))
    requests = 1000 + 2000 + 1000 + 160 * 10
    busy_s = 8000 + requests * 0.1 + 2000
    assert high.wall_hours * 3600 == pytest.approx(100 + busy_s / 10 + commit_s)
    assert high.vcpu_hours == pytest.approx(10 * high.wall_hours)
    assert high.shuffle_gb == pytest.approx(2 * low.shuffle_gb)
    assert low.shuffle_gb == pytest.approx(16e9 / 2**30)
    assert low.temporary_gb == pytest.approx(32e9 / 2**30)


def test_costs_are_use_times_price():
    use = Use(
        vcpu_hours=100, wall_hours=1, commit_hours=0.1, shuffle_gb=100, temporary_gb=300,
        output_gb=1, class_a=10_000, class_b=100_000,
    )  # fmt: skip
    costs = estimate.costs_of(use, Prices(), Assumptions())
    assert costs == pytest.approx(
        {
            "vCPU": 5.6, "memory": 1.4228, "disk": 0.0675, "shuffle": 0.275,
            "requests": 0.09, "deleted objects": 1.4,
        }
    )  # fmt: skip


def a_bucket(num_probes: int) -> Run:
    """Returns a run whose figures grow with the number of probes, in millions."""
    more = num_probes // 1_000_000
    case = {"shape": "a unit and a bucket", "place": "memory", "num_measurements": scale.LARGE_RUN}
    figures = {
        "unit_rows": 2_000_000, "unit_cpu_s": 0.2 + 0.2 * more, "measurements": 3_500_000,
        "sort_cpu_s": 0.35, "stage_cpu_s": 0.35, "write_cpu_s": 0.7, "rows": num_probes // 10_000,
        "rows_stored": 70 * more, "shard_bytes": 3_500_000 * 10, "peak_mib": 400.0,
        "grouped_by_probe_bytes": 3_500_000 * (16 + more), "grouped_by_shard_bytes": 0,
    }  # fmt: skip
    return Run(case | {"num_probes": num_probes}, figures, load_before=0.1)


def made_up_results() -> Results:
    found = Results(
        bench="scale", date="2026-11-21T10:00:00+00:00", options={"rounds": 1, "seed": 1}
    )
    found.machine |= {"cores": 2, "memory_gib": 24}
    for shape in scale.shapes([10_000_000, 100_000_000]):
        n = shape.num_measurements
        figures = {
            "wall_s": n / 1e6, "cpu_s": n / (1e6 if shape.place == "prism" else 2e6),
            "peak_mib": 500.0, "grouped_by_probe_bytes": 16 * n, "grouped_by_shard_bytes": n,
            "bytes_written": 8 * n, "shards_written": 202 if shape.num_shards else 2,
            "uploaded_bytes": 40 * n, "downloaded_bytes": 60 * n,
            **dict.fromkeys(estimate.REQUESTS, 50 + n / 100000.0),
        }  # fmt: skip
        if shape.num_shards:
            figures |= {name: figures[name] + 600 for name in estimate.REQUESTS}
        found.runs.append(Run(shape.case, figures, load_before=0.1))
    for num_probes in scale.MANY_PROBES:
        found.runs.append(a_bucket(num_probes))
    steps = {
        f"{step}_{unit}": 10.0 for step in ("unit", "sort", "cut", "shard")
        for unit in ("mib", "cpu_s", "wall_s")
    }  # fmt: skip
    figures = {"start_mib": 300.0, "shard_run_bytes": 1 << 28, **steps}
    case = {"shape": "one thread", "place": "memory", "num_measurements": 50_000_000}
    found.runs.append(Run(case, figures, load_before=0.1))
    return found


def test_tables_keep_what_was_measured_apart_from_what_is_estimated(tmp_path):
    found = made_up_results()
    path = results.path_for(found, tmp_path)
    results.save(found, path)
    assert results.load(path) == found
    text = scale_table.markdown(found)
    measured, _, estimated = text.partition("**Estimated**")
    row = "| all probes | memory | 100 M | 500 | 16.0 | 1.0 | 0.0 | 8.0 | 40.0 | 60.0 | 500 |"
    assert row in measured
    assert "One shard more takes 3.0 class A, 3.0 class B" in measured
    assert "$" not in measured
    assert "`vcpu_hour` = 0.056" in estimated
    assert "25% up to 250 GB, then 50% up to 5120 GB" in estimated
    assert "| sort the hot probe | 10 | 10.0 | 10.0 |" in measured
    assert "| 0.10% | 35 M | 32,000 | disjoint | 1.0 | 576 | 1.7 | 0.2 | 0.6 |" in estimated
    shards = "| shards | 14 | 14 | 2,244 | 2,244 | 2,244 | 2,244 | 10,000 | 10,000 |"
    assert estimated.count(shards) == 1
    assert "| 10,000 | 1 | 100 | 100 | 100 | 200 | 500 | 1.0 | 16.0 | 0.0 | 1.0 | 400 |" in measured
    assert "| 1 M | 100 | 200 | 100 | 100 | 200 | 600 | 1.2 | 17.0 | 0.0 | 1.1 | 400 |" in measured
    assert markdown.insert("<!-- bench:scale -->\n<!-- /bench:scale -->", "scale", text)


def test_more_probes_add_what_a_unit_and_a_bucket_of_theirs_take():
    lines = results.medians(made_up_results().runs)
    few = estimate.per_measurement(lines, "all probes")
    assert estimate.with_more_probes(few, lines, 10_000, 10_000) == few
    many = estimate.with_more_probes(few, lines, 10_000, 10_000_000)
    assert many.cpu_s - few.cpu_s == pytest.approx(10 * 100e-9)
    assert many.shuffle_bytes - few.shuffle_bytes == pytest.approx(10)
    assert many.class_b - few.class_b == pytest.approx(700 / 3_500_000)
    assert many.output_bytes == few.output_bytes
    with pytest.raises(ValueError, match="no good run of a bucket of 77 probes"):
        estimate.with_more_probes(few, lines, 10_000, 77)


def test_a_unit_and_a_bucket_are_measured_as_they_are():
    """A ten-thousandth of a run of 400 M measurements, so that the test is short."""
    figures = many_probes.measure(1_000_000, 400_000_000)
    assert figures["measurements"] == 40_000
    assert figures["rows"] == 100  # as many as the bucket has probes
    assert figures["rows_stored"] == 0
    assert figures["unit_chunks"] == bucket.num_buckets(400_000_000)
    assert figures["grouped_by_probe_bytes"] > 40_000 * 16
    assert figures["grouped_by_shard_bytes"] > 40_000 * 16  # rows travel inline
    assert all(figures[f"{step}_cpu_s"] > 0 for step in ("unit", "sort", "stage", "write"))


def test_random_probes_have_about_as_many_measurements_each(tmp_path):
    write_measurements(tmp_path, 20_000, 2_000, seed=1)
    table = pq.read_table(tmp_path)
    assert table.num_rows == 20_000
    counts = table["src_addr"].value_counts().field("counts").to_numpy()
    assert len(counts) > 1_990 and counts.max() < 40


def test_an_estimate_wants_all_the_runs_that_it_is_made_of():
    found = made_up_results()
    found.runs = [run for run in found.runs if run.case["place"] != "prism"]
    with pytest.raises(ValueError, match="no good run of all probes at 10,000,000 in prism"):
        estimate.per_measurement(results.medians(found.runs), "all probes")


def test_a_pipeline_of_a_thousand_large_files_is_small():
    options, _ = parse(["--input=x", "--output=x"])
    files = [
        InputFile(
            FileVersion(f"gs://bucket/in/{i:04d}.parquet", 350_000_000, 1),
            "parquet",
            (131_072,) * 267,
        )
        for i in range(1000)
    ]
    pipeline = beam.Pipeline(IN_MEMORY_RUNNER)
    job = Job(
        run=JobRun("gs://bucket/out/.probeline-temp/run", output="gs://bucket/out"),
        command="a command",
        read_options=options.read_options(),
        dataset_options=options.dataset_options(),
        inline_bytes=scale.INLINE_BYTES,
    )
    add_transforms(pipeline, job.run, lambda *_: probe_rows.build(pipeline, files, job))
    assert len(pipeline.to_runner_api().SerializeToString()) < 400_000
