"""Tables of figures in README and docs are what the results in benchmarks/results say."""

import re
from pathlib import Path

import pytest

from benchmarks import headlines, table
from benchmarks import results as results_files
from tests.support.repository import ROOT

MARKED = re.compile(r"<!-- bench:(\w+) -->\n(.*?)\n<!-- /bench:\1 -->", re.DOTALL)


def marked_tables() -> dict[str, tuple[Path, str]]:
    """Returns the document and the content of each place for figures, by its bench."""
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return {
        bench: (path.relative_to(ROOT), content)
        for path in documents
        for bench, content in MARKED.findall(path.read_text())
    }


def test_every_place_is_known() -> None:
    where = {bench: path for bench, (path, _) in marked_tables().items()}
    assert where == {bench: document.path for bench, document in table.DOCUMENTS.items()}


@pytest.mark.parametrize("bench", table.DOCUMENTS)
def test_documents_show_the_newest_results(bench: str) -> None:
    content = table.DOCUMENTS[bench].markdown(results_files.FOLDER)
    assert marked_tables()[bench][1] == content, f"python -m benchmarks.table --bench={bench}"


def test_a_results_file_of_another_day_changes_the_headlines(tmp_path: Path) -> None:
    for path in results_files.FOLDER.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    newest = results_files.newest("overlap", tmp_path)
    newest.date = "2099-01-01T00:00:00+00:00"
    newest.options["rounds"] = 7
    results_files.save(newest, tmp_path / "overlap-2099-01-01.json")
    lines = headlines.markdown(tmp_path).splitlines()
    assert {line.rsplit("| ", 1)[1] for line in lines if "overlap" in line} == {
        "overlap, 2099-01-01, median of 7 |"
    }
    assert lines[2:] and all(line.count("|") == 6 for line in lines if line.startswith("|"))
