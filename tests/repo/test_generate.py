"""`make generate` changes nothing; a wrong metadata file is found."""

import subprocess
from pathlib import Path

import pytest
from google.cloud.dataflow_v1beta3 import types
from google.protobuf import json_format

from benchmarks import markdown
from scripts import generate, template_metadata
from tests.support.repository import ROOT

GENERATED = generate.generated()


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: str(path.relative_to(ROOT)))
def test_outdated_generated_file(path: Path) -> None:
    assert path.read_text() == GENERATED[path], "run make generate"


@pytest.mark.parametrize("name", template_metadata.TEMPLATES)
def test_google_accepts_the_metadata(name: str) -> None:
    text = template_metadata.metadata_text(name)
    metadata = json_format.Parse(text, types.TemplateMetadata.pb(types.TemplateMetadata()))
    assert metadata.name and not metadata.streaming
    for parameter in metadata.parameters:
        assert parameter.name and parameter.label and parameter.help_text
        assert parameter.param_type != types.ParameterType.DEFAULT


@pytest.mark.parametrize(
    ("template", "flag", "good", "bad"),
    [
        ("probe_rows", "input", "gs://a/b/*.parquet,gs://c/d", "data/*.parquet"),
        ("probe_rows", "columns", "event_time=ts,rtt=rtt_ms", "time=ts"),
        ("probe_rows", "columns", "event_time=a.us,src_addr==192.0.2.1,rtt=p1,p2", "rtt"),
        ("probe_rows", "columns", "event_time=1,src_addr==::1,dst_addr=3:packed,rtt=4", "1,2"),
        ("probe_rows", "time_unit", "ns", "minutes"),
        ("probe_rows", "rtt_unit", "us", "ns"),
        ("probe_rows", "input_format", "fping_json", "fping"),
        ("probe_rows", "anonymize_key_file", "projects/p/secrets/s/versions/1", "key.hex"),
        ("probe_rows", "max_row_size_mb", "0.5", "8MiB"),
        ("probe_rows", "split_seed", "-3", "1.5"),
        ("probe_rows", "on_bad_file", "dead_letter", "skip"),
        ("probe_rows", "overwrite", "true", "yes"),
        ("overlap", "decontaminate_source", "gs://a/mmlu,gsm8k=gs://b/*.jsonl", "eval/mmlu"),
        ("overlap", "ngram_length", "5,10,15", "5, 10"),
    ],
)
def test_values_that_templates_accept(template: str, flag: str, good: str, bad: str) -> None:
    parameters = template_metadata.metadata(template)["parameters"]
    (regexes,) = (each["regexes"] for each in parameters if each["name"] == flag)

    def matches(value: str) -> bool:
        grep = ["grep", "-qE"]
        return all(
            subprocess.run([*grep, regex], input=value, text=True).returncode == 0
            for regex in regexes
        )

    assert matches(good) and not matches(bad)


@pytest.mark.parametrize("text", ["", "<!-- bench:x -->", "<!-- /bench:x --> <!-- bench:x -->"])
def test_missing_markers(text: str) -> None:
    with pytest.raises(ValueError, match="bench:x"):
        markdown.insert(text, "x", "table")
