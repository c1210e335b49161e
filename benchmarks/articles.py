"""Cut the articles of WikiText-103 into texts for config/gemma.yaml: the first 1,016 tokens of each article.

    python benchmarks/articles.py FOLDER MODEL    # FOLDER has the dataset's Parquet files, MODEL a tokenizer

Writes wikitext/{train,validation}-{128,1024,one}.jsonl with the columns `text` and `article`. Both sizes have the same
tokens: a text of the larger one is eight texts of the smaller one. *one* has one of these eight for each article, from
another place in each. Texts begin where a word begins, so that their tokens are those of the article.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pandas as pd
from transformers import AutoTokenizer, PreTrainedTokenizerBase

TITLE = re.compile(r" = [^=]+ = \n")
SLOTS = 128
TEXTS = 8
"""Number of texts of an article; with a token at the beginning of each, all of them fit into 1,024 slots."""


def articles(lines: list[str]) -> Iterator[str]:
    """Yield the articles of a split; unlike a line of text with equals signs, a title stands between empty lines."""
    article: list[str] = []
    for before, line, after in zip([" \n", *lines], lines, [*lines[1:], " \n"], strict=False):
        is_title = TITLE.fullmatch(line) and not before.strip() and not after.strip()
        if is_title and article:
            yield "".join(article)
            article = []
        if line.strip():
            article.append(line)
    yield "".join(article)


def pieces(article: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the article's first texts, each of which has at most 127 tokens and begins where a word begins."""
    encoded = tokenizer(article, return_offsets_mapping=True, add_special_tokens=False)
    starts = [start for start, _ in encoded["offset_mapping"]]
    cuts = [0]
    while len(cuts) <= TEXTS and cuts[-1] + SLOTS - 1 < len(starts):
        end = cuts[-1] + SLOTS - 1
        while not article[starts[end]].isspace():
            end -= 1
        cuts.append(end)
    if len(cuts) <= TEXTS:
        cuts.append(len(starts))
    places = [*starts, len(article)]
    return [article[places[begin] : places[end]] for begin, end in pairwise(cuts)]


def main(folder: Path, model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    to = Path("wikitext")
    to.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        [file] = folder.glob(f"{split}-*.parquet")
        lines = pd.read_parquet(file)["text"].tolist()
        cut = [pieces(article, tokenizer) for article in articles(lines)]
        short = [(number, text) for number, texts in enumerate(cut) for text in texts]
        long = [(number, "".join(texts)) for number, texts in enumerate(cut)]
        one = [(number, texts[number % len(texts)]) for number, texts in enumerate(cut)]
        for name, rows in ((SLOTS, short), (SLOTS * TEXTS, long), ("one", one)):
            table = pd.DataFrame(rows, columns=["article", "text"])
            table.to_json(to / f"{split}-{name}.jsonl", orient="records", lines=True)
            print(f"{split}, {name}: {len(cut)} articles, {len(table)} texts")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
