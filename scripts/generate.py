"""Writes every file and table that is derived from code or results: `make generate`.

  python -m scripts.generate [--pictures]

Template metadata, the JSON schema of the manifest, the tables of benches in README and docs. With
--pictures also the screenshots of inspect, which need Chromium. A test fails if `generated` differs
from what is committed.
"""

import argparse
import sys
from pathlib import Path

from benchmarks import results, table
from benchmarks.markdown import insert
from scripts import manifest_schema, template_metadata

ROOT = Path(__file__).resolve().parents[1]


def generated() -> dict[Path, str]:
    """Returns the content of each generated file and of each page with generated tables."""
    texts = {
        ROOT / "templates" / name / "metadata.json": template_metadata.metadata_text(name)
        for name in template_metadata.TEMPLATES
    }
    texts[manifest_schema.PATH] = manifest_schema.schema().decode()
    for bench, document in table.DOCUMENTS.items():
        path = ROOT / document.path
        content = document.markdown(results.FOLDER)
        texts[path] = insert(texts.get(path) or path.read_text(), bench, content)
    return texts


def draw_pictures() -> None:
    """Takes screenshots where there is a browser."""
    from scripts import screenshots

    if screenshots.main():
        print("docs/inspect*.png are as they were", file=sys.stderr)


def main() -> int:
    """Writes what has changed; returns the exit code."""
    parser = argparse.ArgumentParser(description="Writes generated files and tables.")
    parser.add_argument("--pictures", action="store_true", help="also screenshots")
    args = parser.parse_args()
    for path, text in generated().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    if args.pictures:
        draw_pictures()
    return 0


if __name__ == "__main__":
    sys.exit(main())
