"""Common parts of the HTML pages of inspect and of the overlap report.

A page is one HTML file that loads nothing. Jinja escapes all data; unknown names in a template are
errors. Every template can import the macro `table` from `table.html.jinja`.
"""

from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"}
_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)


def environment() -> Environment:
    """Returns the environment of all templates."""
    return Environment(
        loader=FunctionLoader(lambda name: part("beam_pipeline.report", name)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )


def part(package: str, name: str) -> str:
    """Returns the text of a package's file, such as a template."""
    return files(package).joinpath(name).read_text("utf-8")


def shown(text: str) -> str:
    """Replaces control characters, some invalid in HTML, by visible symbols of the same length."""
    return text.translate(_CONTROLS)


def _finalized(value: object) -> object:
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
