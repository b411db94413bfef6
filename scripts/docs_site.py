"""A hook of MkDocs: the pages and links that lead out of docs/, which mkdocs.yml cannot express.

In the repository, pages link to files anywhere: ../CONTRIBUTING.md, ../templates/tpu. For the site
README.md becomes the first page, CONTRIBUTING.md, CHANGELOG.md and other Markdown become pages,
and a source or a folder that is linked to becomes a page that shows it, below sources/. Links are
written anew to lead there. So there is no second copy of any text, and MkDocs checks every link.
"""

import json
import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks/README.md",
    "examples/README.md": "examples/README.md",
}
_LANGUAGES = {".sh": "bash", ".yml": "yaml", ".yaml": "yaml", ".py": "python", ".json": "json"}
_PICTURES = (".png", ".svg", ".jpg", ".gif", ".webp")
_CODE = re.compile(r"(^(?P<fence> *`{3,}).*?^(?P=fence)$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")  # colours
_LINK = re.compile(r"(?<=\]\()[^)\s]+|(?<=^\[)([^\]]+\]:\s+)(\S+)$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"(\b(?:src|srcset|href)=\")([^\"\s]+)")
_log = logging.getLogger("mkdocs.hooks.docs_site")


def place_of(path: str) -> str:
    """Returns where a file or folder of the repository is in the site, as MkDocs names sources."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith((*_PICTURES, ".md")):
        return f"sources/{path}"
    return f"sources/{path}/index.md" if (ROOT / path).is_dir() else f"sources/{path}.md"


def target_of(link: str, page: str) -> str | None:
    """Returns what a link of a page leads to in the repository; None if that is elsewhere or not.

    A folder with a README.md is that.
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), parts.path))
    if path.startswith("..") or not (ROOT / path).exists():
        return None
    return f"{path}/README.md" if (ROOT / path / "README.md").exists() else path


def with_links(text: str, change: Callable[[str], str], change_tag: Callable[[str], str]) -> str:
    """Returns Markdown with each link changed, those of HTML tags by `change_tag`; code stays."""

    def in_prose(prose: str) -> str:
        prose = _LINK.sub(lambda m: m[1] + change(m[2]) if m[1] else change(m[0]), prose)
        return _ATTRIBUTE.sub(lambda m: m[1] + change_tag(m[2]), prose)

    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [in_prose(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, in_prose(text[end:])])


def for_the_site(text: str, page: str) -> str:
    """Returns the Markdown of a page of the repository, its links leading into the site."""
    here = posixpath.dirname(place_of(page))

    def change(link: str) -> str:
        target = target_of(link, page)
        if target is None:
            return link  # MkDocs complains of it, if it leads nowhere
        _, hash_sign, anchor = link.partition("#")
        return posixpath.relpath(place_of(target), here or ".") + hash_sign + anchor

    def change_tag(link: str) -> str:
        """MkDocs does not look into tags: what it makes of a page has another name."""
        if target_of(link, page) is None:
            if not urlsplit(link).scheme:
                _log.warning("%s: a tag names %s, and there is no such file", page, link)
            return link
        return re.sub(r"README\.md(?=#|$)", "index.md", change(link)).replace(".md", ".html")

    return with_links(text, change, change_tag)


def targets(text: str, page: str) -> list[str]:
    """Returns the paths in the repository that a page links to, in order."""
    found: list[str] = []

    def note(link: str) -> str:
        found.append(target_of(link, page) or "")
        return link

    with_links(text, note, note)
    return list(filter(None, found))


def listing(path: str) -> str:
    """Returns a page on the texts of a folder, as if it lay beside it."""
    files = (item for item in (ROOT / path).iterdir() if item.is_file())
    names = sorted(item.name for item in files if b"\0" not in item.read_bytes()[:1024])
    links = [f"- [{name}]({posixpath.basename(path)}/{name})" for name in names]
    return "\n".join([f"# {path}", "", *links, ""])


def source(path: str) -> str:
    """Returns a page that shows a file."""
    text = (ROOT / path).read_text().rstrip()
    language = _LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"# {path}\n\n````{language}\n{text}\n````\n"


def notebook(path: str) -> str:
    """Returns a page that shows a notebook and what it printed."""
    parts = []
    for cell in json.loads((ROOT / path).read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"````python\n{text}\n````")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join(data["image/png"]).replace("\n", "")
                parts.append(f"![Output](data:image/png;base64,{picture})")
            elif printed := "".join(output.get("text") or data.get("text/plain", "")):
                parts.append(f"````text\n{_TERMINAL.sub('', printed).rstrip()}\n````")
    return "\n\n".join([*parts, ""])


def markdown_of(path: str) -> str:
    """Returns the Markdown that a path of the repository is shown as, links as they are there."""
    if (ROOT / path).is_dir():
        return listing(path)
    if path.endswith(".ipynb"):
        return notebook(path)
    return (ROOT / path).read_text() if path.endswith(".md") else source(path)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds what lies outside of docs/ and is linked to from a page, and what that links to."""
    waiting = list(PAGES)
    for file in files.documentation_pages():
        page = f"docs/{file.src_uri}"
        waiting += targets((ROOT / page).read_text(), page)
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or path.startswith("docs/"):
            continue
        seen.add(path)
        if path.endswith(_PICTURES):
            picture = str(ROOT / path)
            files.append(File.generated(config, place_of(path), abs_src_path=picture))
            continue
        text = markdown_of(path)
        waiting += targets(text, path)
        text = for_the_site(text, path)
        if path not in PAGES:
            text = f"---\nsearch:\n  exclude: true\n---\n\n{text}"
        files.append(File.generated(config, place_of(path), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lets the links of a page in docs/ lead into the site; those of others do already."""
    if page.file.generated_by:
        return markdown
    return for_the_site(markdown, f"docs/{page.file.src_uri}")


def on_page_content(html: str, **_: object) -> str:
    """Gives the headings of tables a scope: MkDocs writes none, and all of ours head a column."""
    return re.sub(r"<th\b(?! scope)(?=[ >])", '<th scope="col"', html)
