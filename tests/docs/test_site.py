"""The site: every page is in its navigation, pages that repeat the code are as the code is, and no link is dead."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from test_pages import python_of
from tiny import REPOSITORY, succeeded

import papa

DOCS = REPOSITORY / "docs"


def script(name):
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = script("site")
generated = script("generated")


def test_every_page_is_once_in_the_navigation():
    nav = tomllib.loads((DOCS / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(site.navigation(nav)) == sorted(set(site.sources()) - site.UNLISTED)
    assert {path for path in site.sources().values() if path.endswith(".md")} >= {
        f"docs/{page.name}" for page in DOCS.glob("*.md")
    }


def test_links_get_the_places_of_the_site(tmp_path):
    text = "[a](../config/README.md#every-key) [b](method.md) [c](../LICENSE) [d](https://e.f) [g](#h) `[i](api.md)`"
    moved = "[a](config.md#every-key) [b](method.md) [c](LICENSE) [d](https://e.f) [g](#h) `[i](api.md)`"
    assert site.with_links_of_site(text, DOCS, tmp_path) == moved
    assert [file.name for file in tmp_path.iterdir()] == ["LICENSE"]
    fenced = "```\n[a](../config/README.md)\n```\n[a](docs/api.md)"
    assert site.with_links_of_site(fenced, REPOSITORY, tmp_path) == fenced.replace("(docs/", "(")


def test_the_reference_of_python_names_what_papa_has():
    named = re.findall(r"^::: papa\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == papa.__all__


@pytest.mark.parametrize("name", generated.PAGES)
def test_pages_repeat_the_code(name):
    assert (DOCS / name).read_text() == generated.PAGES[name](), "run `make docs`"


@pytest.mark.slow
def test_the_examples_of_the_reference_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(python_of("docs/api.md"), names)
    at = names["inputs"]["attention_mask"].bool()
    expected = names["model"].hidden_states(names["inputs"], names["average"])[:, -1]
    assert (names["outputs"].last_hidden_state - expected)[at].abs().max() < 1e-4
    assert names["hidden"].shape == (24, 7, 8, 384)
    assert names["weights"].shape == (6, 12)


class Page(HTMLParser):
    """The names of places in a page, what it links to or loads, and how many there are of each element."""

    def __init__(self, text):
        super().__init__()
        self.places = {""}
        self.links = []
        self.loads = []
        self.counts = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.counts[tag] += 1
        self.places.add(given.get("id"))
        target = given.get("href" if tag in ("a", "link") else "src")
        if target:
            (self.links if tag == "a" else self.loads).append(target)


@pytest.fixture(scope="module")
def built():
    """The pages of the site, built strictly, by their names."""
    for package in ("zensical", "mkdocstrings_handlers"):
        pytest.importorskip(package, reason="the extra docs is not installed")
    succeeded(subprocess.run([sys.executable, DOCS / "site.py"], capture_output=True, text=True))
    files = (site.BUILD / "site").glob("*.html")
    return {file.name: file.read_text() for file in files if file.name != "404.html"}


@pytest.mark.slow
def test_the_site_has_no_dead_link(built):
    assert {name.replace(".html", ".md") for name in built} == set(site.sources())
    pages = {name: Page(text) for name, text in built.items()}
    for name in site.UNLISTED:
        linked = [page for page in pages.values() if name.replace(".md", ".html") in page.links]
        assert linked and pages[name.replace(".md", ".html")].counts["input"], (
            f"{name} is linked, and has its filter"
        )
    for name, page in pages.items():
        for target in page.links + page.loads:
            path, _, heading = target.partition("#")
            if re.match("[a-z]+:", target):
                assert target in page.links, f"{name} loads {target} from elsewhere"
                continue
            file = (site.BUILD / "site" / (unquote(path) or name)).resolve()
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{name} leads to {target}, which is not there"
            if heading and file.name in pages:
                assert unquote(heading) in pages[file.name].places, (
                    f"{name} leads to {target}, which is not there"
                )
    assert pages["api.html"].places >= {f"papa.{name}" for name in papa.__all__}
