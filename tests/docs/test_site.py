"""The site: every page is in its navigation, pages that repeat the code are as the code is, and no link is dead."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import papa

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


def script(name):
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site, generated = script("site"), script("generated")


def test_every_page_is_once_in_the_navigation():
    nav = tomllib.loads((DOCS / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    assert sorted(site.navigation(nav)) == sorted(site.sources())
    assert {path for path in site.sources().values() if path.endswith(".md")} >= {
        f"docs/{page.name}" for page in DOCS.glob("*.md")
    }


def test_a_page_that_is_in_no_navigation_ends_the_build(tmp_path, monkeypatch):
    """Before anything is laid out, and with a sentence that names the page."""
    monkeypatch.setattr(site, "sources", lambda: {"index.md": "docs/index.md", "lost.md": "docs/lost.md"})
    monkeypatch.setattr(site, "BUILD", tmp_path / "build")
    with pytest.raises(SystemExit, match=r"lost\.md"):
        site.main()
    assert not (tmp_path / "build").exists()


def test_links_get_the_places_of_the_site(tmp_path):
    text = "[a](../config/README.md#every-key) [b](method.md) [c](../LICENSE) [d](https://e.f) [g](#h) `[i](faq.md)`"
    moved = "[a](config.md#every-key) [b](method.md) [c](LICENSE) [d](https://e.f) [g](#h) `[i](faq.md)`"
    assert site.with_links_of_site(text, DOCS, tmp_path) == moved
    assert [file.name for file in tmp_path.iterdir()] == ["LICENSE"]
    fenced = "```\n[a](../config/README.md)\n```\n[a](docs/faq.md)"
    assert site.with_links_of_site(fenced, REPOSITORY, tmp_path) == fenced.replace("(docs/", "(")


def test_the_reference_of_python_names_what_papa_has():
    named = re.findall(r"^::: papa\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == papa.__all__


@pytest.mark.parametrize("name", generated.PAGES)
def test_pages_repeat_the_code(name):
    assert (DOCS / name).read_text(encoding="utf-8") == generated.PAGES[name](), "run `make docs`"


@pytest.mark.slow
def test_the_examples_of_the_reference_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec("\n".join(re.findall("```python\n(.*?)```", (DOCS / "api.md").read_text(encoding="utf-8"), re.DOTALL)), names)
    at = names["inputs"]["attention_mask"].bool()
    expected = names["model"].hidden_states(names["inputs"], names["average"])[:, -1]
    assert (names["outputs"].last_hidden_state - expected)[at].abs().max() < 1e-4
    assert names["hidden"].shape == (24, 7, 8, 384) and names["logits"].shape == (24, 2)
    assert names["weights"].shape == (6, 12) and names["curve"]["fraction"].tolist() == ["1", "1/2", "0"]


class Page(HTMLParser):
    """The names of places in a page, and what the page links to or shows."""

    def __init__(self, file):
        super().__init__()
        self.places, self.targets = {""}, []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places.add(given.get("id"))
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.mark.slow
def test_the_site_has_no_dead_link():
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings_handlers.python", reason="the extra docs is not installed")
    subprocess.run([sys.executable, DOCS / "site.py"], check=True, capture_output=True, text=True)
    folder = site.BUILD / "site"
    pages = {file: Page(file) for file in folder.rglob("*.html") if file.name != "404.html"}
    assert {file.relative_to(folder).stem + ".md" for file in pages} == set(site.sources())
    for file, page in pages.items():
        for target in page.targets:
            path, _, heading = target.partition("#")
            if re.match("[a-z]+:|//", path):
                assert not re.search(rf'<(?:script|link|img)[^>]*"{re.escape(target)}"', file.read_text("utf-8")), target
                continue
            place = (file.parent / unquote(path.partition("?")[0])).resolve() if path else file
            place = place / "index.html" if place.is_dir() else place
            assert place.exists(), f"{file.name} leads to {target}, which is not there"
            if heading and place in pages:
                assert unquote(heading) in pages[place].places, f"{file.name} leads to {target}, which is not there"
    api = (folder / "api.html").read_text(encoding="utf-8")
    assert all(f'id="papa.{name}"' in api for name in papa.__all__)
