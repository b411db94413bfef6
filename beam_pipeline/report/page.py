"""What the pages of inspect and of the overlap report have in common: templates and their texts.

A page is one HTML file that needs nothing else: no network, no second file. Whatever comes from
data is escaped by Jinja, and a name that a template misspells is an error.
"""

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)


def environment() -> Environment:
    """Returns what renders a template."""
    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )


def part(package: str, name: str) -> str:
    """Returns the text of a file of a package, such as a template."""
    return files(package).joinpath(name).read_text("utf-8")


def shown(text: str) -> str:
    """Returns a text as it can be shown, each character as one: HTML has no NUL, no surrogates."""
    return text.translate(_CONTROLS)


def _finalized(value: object) -> object:
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
