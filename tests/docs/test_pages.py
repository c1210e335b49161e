"""The pages of the project: links that lead somewhere, a short README whose code runs, one version everywhere."""

import re
import tomllib
from urllib.parse import unquote

import pytest
import yaml
from tiny import REPOSITORY

import papa
from papa.config.reading import config_of

PAGES = [
    page
    for folder in (".", "docs", "config", "benchmarks", "data", "results")
    for page in sorted((REPOSITORY / folder).glob("*.md"))
]


def text_of(page):
    return (REPOSITORY / page).read_text()


def python_of(page):
    """The Python of a page, as one program."""
    return "\n".join(re.findall("```python\n(.*?)```", text_of(page), re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    text = re.sub("```.*?```", "", text_of(page), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match("[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        place = page.parent / unquote(path) if path else page
        assert place.exists(), f"{page.name} links to {target}, which is not there"
        if heading:
            headings = re.findall("^#+ (.*)", place.read_text(), re.MULTILINE)
            anchors = [
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings
            ]
            assert heading in anchors, (
                f"{page.name} links to {target}, and {place.name} has no such heading"
            )


def test_the_readme_leads_to_every_page():
    """By itself, or by pages that it leads to."""
    reached = set()
    ahead = [REPOSITORY / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in PAGES and page not in reached:
            reached.add(page)
            ahead += [
                (page.parent / path).resolve()
                for path in re.findall(r"\]\(([^)\s:#]+\.md)", text_of(page))
            ]
    assert set(PAGES) - reached == {REPOSITORY / "data/README.md"}


def test_pages_are_few_and_short():
    others = {"index.md", "api.md", "cli.md", "models.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    counted = [page for page in PAGES if page.name not in others]
    assert len(text_of("README.md").splitlines()) <= 110
    assert len([page for page in counted if page.parent.name == "docs"]) <= 20
    assert sum(len(page.read_text().split()) for page in counted) <= 25_000


def cells(page, *names):
    """The cells of the table row of a page that has cells with these names."""
    rows = text_of(page).replace("−", "-").splitlines()
    row = next(line for line in rows if all(f"| {each} |" in line for each in names))
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("task", ["CoLA", "MNLI", "MRPC", "NER", "POS", "SST-2"])
def test_numbers_of_the_page_of_results_are_those_of_the_measured_studies(task):
    """Lost and contributed are differences of the scores; intervals of shares are as they were measured."""
    study = task.lower().replace("-", "")
    measured = f"docs/measured/minilm_{study}/tables/summary.md"
    _, metric, _, floor, original, *_, averages, _, reliance = cells(measured, task)
    scores = [score.split()[0] for score in (original, averages, floor)]
    shown = cells("docs/results.md", task, scores[0])
    assert shown[1:5] == [metric, *scores]
    numbers = [float(score) for score in scores]
    for cell, score in zip(shown[5:7], numbers[1:], strict=True):
        assert float(cell.split()[0]) == pytest.approx(100 * (numbers[0] - score), abs=0.051)
    assert re.findall(r"\(.*\)", shown[7]) == re.findall(r"\(.*\)", reliance)


def numbers_with_intervals(text):
    """Each number of a text that has an interval, with the interval's ends; the number may be a word."""
    plain = " ".join(text.replace("−", "-").split())
    plain = re.sub(r" (nats|points|per token|of accuracy)\b", "", plain)
    return re.findall(r"([\w.-]+)%? \((-?[\d.]+) to (-?[\d.]+)", plain)


def is_rounded(shown, exact):
    """A table may have a word, such as inconclusive, instead of a number; a page may not."""
    digits = len(shown.partition(".")[2])
    return exact.isalpha() or abs(float(shown) - float(exact)) <= 0.51 * 10**-digits


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/decoders.md"])
def test_numbers_with_intervals_are_those_that_were_measured(page):
    tables = [table.read_text() for table in (REPOSITORY / "docs/measured").rglob("*.md")]
    measured = set(numbers_with_intervals(" ".join(tables)))
    written = re.sub("(?s)<!-- .*?<!-- end", "", text_of(page))
    for shown in numbers_with_intervals(written):
        assert any(all(map(is_rounded, shown, exact)) for exact in measured), shown


def test_tokens_on_the_page_of_decoders_are_those_that_were_measured():
    table = "docs/measured/gemma_128/tables/tokens_without_unk.md"
    for part in (
        "new in the text",
        "occurred before",
        "complete a repeated pair",
        "slots 0 to 31",
        "slots 96 to 127",
    ):
        _, _, _, _, *scores, _, reliance = cells(table, part)
        assert cells("docs/decoders.md", part) == [part, *scores, reliance]


def test_orders_on_the_page_of_results_are_those_that_were_measured():
    for order in ("λ, seed 0", "gradient, seed 0", "first layer first", "last layer first"):
        row = cells("docs/measured/mpnet_orders/tables/orders.md", order)
        assert cells("docs/results.md", order.removesuffix(", seed 0"), row[5])[3] == row[9]


def quoted(page):
    """The quotes on a page that are conclusions, each on one line."""
    quotes = re.findall(r"(?:^> .*\n)+", text_of(page), re.MULTILINE)
    lines = [" ".join(quote.replace("\n> ", " ").removeprefix("> ").split()) for quote in quotes]
    return [line for line in lines if line.startswith("With all ")]


def test_every_explained_sentence_is_one_of_the_first_study():
    [_, conclusion] = quoted("docs/start.md")  # the first is the demo's
    explained = re.findall(
        r'^\*\*"(.*?)"\*\*$', text_of("docs/reading-a-claim.md"), re.MULTILINE | re.DOTALL
    )
    assert explained
    assert all(" ".join(sentence.split()) in conclusion for sentence in explained)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "lines"), [("README.md", 1), ("docs/recipes.md", 9)])
def test_the_python_of_a_page_prints_what_it_says(capsys, tmp_path, monkeypatch, page, lines):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(REPOSITORY / "data")
    code = python_of(page)
    exec(code, {})
    comments = "\n".join(re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE))
    expected = re.sub(", (?=[a-z])", "\n", comments).splitlines()
    assert len(expected) == lines
    assert capsys.readouterr().out.splitlines() == expected
    assert (tmp_path / "heads.svg").exists() == ("heads.svg" in code)


@pytest.mark.slow
def test_the_python_of_the_page_of_own_data_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(REPOSITORY / "data")
    names = {}
    exec(python_of("docs/own-data.md"), names)
    assert (tmp_path / "saved/report/index.html").exists()
    end = names["study"].claims["claims"][-1]
    quoted_interval = re.search(r"reliance of 72% \((\d+) to (\d+)\)", text_of("docs/own-data.md"))
    low, high = (int(end) / 100 for end in quoted_interval.groups())
    assert end["task"] and end["fraction"] == "0" and low < end["reliance"] < high, (
        "the first example has a finding"
    )


def test_the_first_config_of_the_page_on_keys_is_one():
    block = re.search("```yaml\n(name: .*?)```", text_of("config/README.md"), re.DOTALL)
    assert config_of(yaml.safe_load(block[1])).name == "mine"


def test_one_version_everywhere():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert (
        citation["version"]
        == citation["preferred-citation"]["version"]
        == project["version"]
        == papa.__version__
    )
    # between two releases, results name the one to come
    released = re.search(r"^## \[([0-9.]+)\] - (\S+)$", text_of("CHANGELOG.md"), re.MULTILINE)
    unreleased = re.search(
        r"^## \[Unreleased\]\n\nThis will be ([0-9.]+)\. ", text_of("CHANGELOG.md"), re.MULTILINE
    )
    assert papa.__version__ == (f"{unreleased[1]}.dev0" if unreleased else released[1])
    assert unreleased or str(citation["date-released"]) == released[2]
    assert citation["license"] == project["license"]
    assert all(reference["doi"] in text_of("README.md") for reference in citation["references"])
