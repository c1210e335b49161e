"""The files in data/demo: what their scripts write; a bag of words fails where it should."""

import filecmp
import runpy

import pytest
from tiny import REPOSITORY

DEMO = REPOSITORY / "data/demo"
WRITE = runpy.run_path(str(DEMO / "write.py"))
generate, NAMES = WRITE["generate"], [*WRITE["LABELLED"]]


@pytest.mark.parametrize("script", ["write.py", "induction.py"])
def test_the_files_are_those_that_their_script_writes(script, tmp_path):
    (tmp_path / script).write_bytes((DEMO / script).read_bytes())
    (tmp_path / "write.py").write_bytes((DEMO / "write.py").read_bytes())
    runpy.run_path(str(tmp_path / script), run_name="__main__")
    written = {path.parent.relative_to(tmp_path) for path in tmp_path.glob("*/*")}
    assert written
    for folder in written:
        files = sorted(path.name for path in (DEMO / folder).iterdir())
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == files
        assert filecmp.cmpfiles(DEMO / folder, tmp_path / folder, files, shallow=False) == (files, [], [])


def texts_of(name, split, rows):
    """Texts of a corpus, with words of the second text of a pair marked, and its examples."""
    examples = generate(name, split, rows)
    second = (" ".join(f"second_{word}" for word in row.get("second", "").split()) for row in examples)
    return [f"{row['first']} {marked}".strip() for row, marked in zip(examples, second, strict=True)], examples


@pytest.mark.parametrize("name", NAMES)
def test_a_bag_of_words_is_at_chance_where_content_must_be_looked_up(name):
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    bags = []
    for split, rows in (("train", 2400), ("validation", 1200)):
        texts, examples = texts_of(name, split, rows)
        lookup = [(text, row["label"]) for text, row in zip(texts, examples, strict=True) if row["kind"] == "lookup"]
        assert len(lookup) == rows / 2
        bags.append(tuple(zip(*lookup, strict=True)))
    model = make_pipeline(CountVectorizer(token_pattern=r"\S+"), LogisticRegression(max_iter=500))
    model.fit(*bags[0])
    assert model.score(*bags[1]) < 1 / len(set(bags[0][1])) + 0.1
