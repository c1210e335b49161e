"""The text of the HTML report: the template with its content, and a policy that blocks all other scripts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from papa import __version__
from papa.results.page_section import unbroken

PAGES = files("papa.results") / "pages"


def render(content: Mapping[str, object]) -> str:
    """Fill the template with `content` and a policy that allows only the report's scripts."""
    import vl_convert
    from jinja2 import BaseLoader, Environment, StrictUndefined

    scripts = [vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), _text("report.js")]
    digests = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(digests)} 'unsafe-eval'",  # vega compiles its expressions
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
    ]
    environment = Environment(
        loader=BaseLoader(), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["unbroken"] = unbroken
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # jinja's default would also sort keys
    template = environment.from_string(_text("report.html"))
    citation = _text("citation.bib").replace("VERSION", __version__)
    return template.render(
        content,
        citation=citation,
        version=__version__,
        scripts=scripts,
        style=_text("report.css"),
        policy="; ".join(policy),
    )


def _text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")
