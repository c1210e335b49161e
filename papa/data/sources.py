"""Rows of a corpus, as the source has them: from a hub id, a mirror folder, local files, or generated."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papa.config import machine
from papa.data.mirror import check_recorded
from papa.errors import HOW_TO_FETCH, InputError, first_line

if TYPE_CHECKING:
    import pyarrow as pa

Corpus = Mapping[str, Any]
SOURCES = ("hub", "files", "generated")
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Rows:
    """One split: its columns, and for columns of numbered classes the classes' names in order."""

    table: pa.Table
    class_names: dict[str, list[str]] = field(default_factory=dict)


def load_rows(corpus: Corpus, split: str) -> Rows:
    """All rows of the corpus's `split`, "train" or "validation", in the order of the source.

    `corpus` names one source: `hub` (with `config`, `revision`), `files` (a path per split: .parquet, .json, .jsonl,
    .csv, .tsv, .conll, .txt) or `generated` (with `rows`, `seed`). The keys `train` and `validation` say what a hub
    dataset calls its splits. A .txt has a text on each line, or what a .conll has where the corpus has `words`. With a
    mirror folder on this machine hub ids are read from there, and nothing asks the network.

    Raises `InputError` where the source, the split or the file is missing or cannot be read.
    """
    given = [source for source in SOURCES if corpus.get(source)]
    if len(given) != 1:
        raise InputError(
            f"A corpus has one source out of {', '.join(SOURCES)}; this one has {' and '.join(given) or 'none'}."
        )
    if split not in splits_of(corpus):
        raise InputError(f"The corpus of {describe(corpus, 'train')} has no {split} split; every task needs one.")
    if given == ["hub"]:
        return _from_hub(corpus, split)
    if given == ["files"]:
        return _from_file(corpus, split)
    return _generated(corpus, split)


def splits_of(corpus: Corpus) -> list[str]:
    """The splits that a corpus has: training, validation where it has one, and those under `more_validation`."""
    named = corpus.get("files") or {split: corpus.get(split, split) for split in SPLITS}
    return [*(split for split in SPLITS if named.get(split)), *corpus.get("more_validation", [])]


def describe(corpus: Corpus, split: str) -> str:
    """How messages name a split of a corpus: "nyu-mll/glue cola, split validation"."""
    if corpus.get("files"):
        return str(corpus["files"].get(split, f"{split} file"))
    if corpus.get("generated"):
        return f"generated {corpus['generated']}, split {split}"
    config = f" {corpus['config']}" if corpus.get("config") else ""
    return f"{corpus.get('hub')}{config}, split {corpus.get(split) or split}"


def _from_hub(corpus: Corpus, split: str) -> Rows:
    hub, config, revision = corpus["hub"], corpus.get("config"), corpus.get("revision")
    mirror = machine.current().hub_mirror
    if mirror is None:
        source = {"path": hub, "revision": revision}
    else:
        folder = _mirrored(Path(mirror), hub, revision, config)
        source = {"path": str(folder), "cache_dir": _cache_of(folder)}
    try:
        dataset = _load_dataset(source, config, corpus.get(split) or split)
    except Exception as error:  # files can be wrong in more ways than the library has errors for
        advice = "Check id, config and split"
        if isinstance(error, ConnectionError) or "LocalEntryNotFound" in str(error):
            advice = f"Without a network, {HOW_TO_FETCH}"
        raise InputError(
            f"{describe(corpus, split)} cannot be loaded ({first_line(error).rstrip('.')}). {advice}."
        ) from error
    return Rows(dataset.with_format("arrow")[:], _class_names(dataset.features.to_dict()))


def _load_dataset(source: Mapping[str, str | None], config: str | None, split: str) -> Any:
    """`datasets.load_dataset`, also where configs are mere folders (refs/convert/parquet has no README)."""
    import datasets

    try:
        return datasets.load_dataset(**source, name=config, split=split)
    except ValueError as error:
        if config is None or "Available: ['default']" not in str(error):
            raise
    return datasets.load_dataset(**source, data_dir=config, split=split)


def _cache_of(folder: Path) -> str:
    """Where `datasets` may keep its own form of a folder: one place for each state of the files.

    Left to itself it goes by the path alone, and gives the old rows where the files are other ones by now.
    """
    import datasets

    files = sorted((str(path.relative_to(folder)), path.stat()) for path in folder.rglob("*") if path.is_file())
    state = [(name, found.st_size, found.st_mtime_ns) for name, found in files]
    return str(Path(datasets.config.HF_DATASETS_CACHE, "papa", hashlib.sha256(repr(state).encode()).hexdigest()[:16]))


def _mirrored(mirror: Path, hub: str, revision: str | None, config: str | None) -> Path:
    folder = mirror / hub
    if os.path.isdir(folder):
        check_recorded(folder, revision, config)
        return folder
    there = sorted(str(path.relative_to(mirror)) for path in mirror.glob("[!.]*/[!.]*") if path.is_dir())
    raise InputError(
        f"The mirror folder {mirror} has no {hub}; it has {', '.join(there) or 'nothing laid out as owner/name'}. "
        f"To add it: {HOW_TO_FETCH}."
    )


def _class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of numbered classes out of the description that `datasets` keeps of columns; lists are looked into."""
    names = {}
    for column, feature in features.items():
        while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            names[column] = [str(name) for name in feature["names"]]
    return names


def _generated(corpus: Corpus, split: str) -> Rows:
    import pyarrow as pa

    from papa.data import generated

    frame = generated.generate(corpus["generated"], split, corpus["rows"][split], corpus.get("seed", 0))
    return Rows(pa.Table.from_pandas(frame, preserve_index=False))


def _from_file(corpus: Corpus, split: str) -> Rows:
    path = Path(corpus["files"][split])
    kind = path.suffix.lower()
    if kind == ".txt" and corpus.get("words"):
        kind = ".conll"
    if kind not in READERS:
        raise InputError(f"{path} has no known form; known are {', '.join(READERS)}.")
    if not os.path.isfile(path):
        raise InputError(f"There is no file {path} (relative paths start from {Path.cwd()}).")
    try:
        return READERS[kind](path, corpus.get("columns"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8."
        ) from error
    except InputError:
        raise
    except Exception as error:  # a file can be wrong in more ways than its reader has errors for
        raise InputError(f"{path} cannot be read as {kind[1:]} ({first_line(error)}).") from error


def _read_parquet(path: Path, _: Sequence[str] | None) -> Rows:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    described = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    return Rows(table, _class_names(described.get("info", {}).get("features") or {}))


def _read_json(path: Path, _: Sequence[str] | None) -> Rows:
    """One array of objects, or one object per line; a key that an object lacks is null there."""
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        records = json.loads(text)
    else:
        # split("\n"), for splitlines() also cuts at characters that JSON strings may hold as they are
        records = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not all(isinstance(record, dict) for record in records):
        raise InputError(f"{path} must hold objects, column names to values: an array of them or one on each line.")
    names = list(dict.fromkeys(name for record in records for name in record))
    return Rows(_table(path, {name: [record.get(name) for record in records] for name in names}))


def _read_csv(path: Path, _: Sequence[str] | None) -> Rows:
    """A header line, then rows. Every value stays text, so that neither "NA" nor "1984" becomes something else.

    Quotes mean something in CSV only: TSV files of the field hold bare quotes, and a tab is no part of a text.
    """
    quoting: dict[str, Any] = (
        {"strict": True} if path.suffix.lower() == ".csv" else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    )
    with open(path, encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, **quoting)
        header = next(reader, [])
        if not header or len(set(header)) < len(header):
            raise InputError(f"{path} must start with a line of distinct column names; it starts with {header}.")
        records = []
        for record in reader:
            if record and len(record) != len(header):
                raise InputError(
                    f"{path} line {reader.line_num} has {len(record)} values for the columns {', '.join(header)}; "
                    "a value that holds the separator must stand in quotes, and only CSV knows quotes."
                )
            if record:
                records.append(record)
    return Rows(_table(path, dict(zip(header, _columns(records, len(header)), strict=True))))


def _read_lines(path: Path, _: Sequence[str] | None) -> Rows:
    """One text per line in the column `text`; blank lines are none."""
    with open(path, encoding="utf-8-sig") as lines:
        return Rows(_table(path, {"text": [line.rstrip("\n") for line in lines if line.strip()]}))


def _read_conll(path: Path, columns: Sequence[str] | None) -> Rows:
    """One word per line with its tags behind it, a blank line between sentences; lines with -DOCSTART- are left out."""
    sentences = list(_sentences(path))
    width = len(sentences[0][0]) if sentences else 0
    names = list(columns) if columns else ["words", *(f"column_{number}" for number in range(2, width + 1))]
    if sentences and len(names) != width:
        raise InputError(
            f"{path} has {width} columns, but the corpus names {len(names)} (columns: {', '.join(names)})."
        )
    by_sentence = [_columns(sentence, width) for sentence in sentences]
    return Rows(_table(path, {name: [sentence[place] for sentence in by_sentence] for place, name in enumerate(names)}))


def _sentences(path: Path) -> Iterator[list[list[str]]]:
    sentence: list[list[str]] = []
    width = 0
    with open(path, encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.strip("\r\n ")
            if line and not line.startswith("-DOCSTART-"):
                # not split() without an argument: a no-break space is part of a word
                fields = line.split("\t") if "\t" in line else [part for part in line.split(" ") if part]
                width = width or len(fields)
                if len(fields) != width:
                    raise InputError(
                        f"{path} line {number} has {len(fields)} columns, the lines above it {width}: {line!r}."
                    )
                sentence.append(fields)
            elif sentence:
                yield sentence
                sentence = []
    if sentence:
        yield sentence


def _columns(records: Iterable[Sequence[str]], width: int) -> list[list[str]]:
    return [list(column) for column in zip(*records, strict=True)] or [[] for _ in range(width)]


def _table(path: Path, columns: Mapping[str, list[Any]]) -> pa.Table:
    import pyarrow as pa

    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            raise InputError(f"Column {name} of {path} mixes kinds of values ({first_line(error)}).") from error
    return pa.table(arrays)


READERS = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".conll": _read_conll,
    ".txt": _read_lines,
}
