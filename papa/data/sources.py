"""Rows of a corpus in the order of its source: the hub, a mirror folder or local files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from papa.config.settings import SLICE, Corpus, InFiles, Machine, OnHub
from papa.data.columns import Columns
from papa.data.digests import digest_of_file, state_of
from papa.data.hub import HOW_TO_FETCH, files_of_configs, folder_of
from papa.data.readers import WantedColumns, class_names_of, read_file
from papa.errors import InputError, first_line
from papa.files import KEY_DIGITS, check_file, digest_of_json

if TYPE_CHECKING:
    from datasets import Dataset


def load_splits(corpus: Corpus, wanted: WantedColumns, machine: Machine) -> dict[str, Columns]:
    """Load the columns that are `wanted` (None: all) of each split of a corpus, in the order of the source.

    Raises:
        InputError: The source, a split or a file is missing or cannot be read.
    """
    if isinstance(corpus, InFiles):
        read = {
            path: read_file(Path(path), wanted, corpus.words is not None, corpus.columns)
            for path in dict.fromkeys(corpus.paths.values())  # splits may be slices of one file
        }
        return {
            split: _sliced(read[corpus.paths[split]], file)
            for split, file in corpus.sources.items()
        }
    folder = folder_of("dataset", corpus.hub, corpus.revision, machine)
    if folder is None:
        raise InputError(f"{describe(corpus, 'train')} is not on this machine; {HOW_TO_FETCH}.")
    return {split: _in_folder(corpus, split, wanted, folder) for split in corpus.sources}


def _sliced(rows: Columns, file: str) -> Columns:
    """Return the rows of the slice at the end of a file's name, or all rows; raise `InputError` if it has too few."""
    if (match := SLICE.search(file)) is None:
        return replace(rows, source=file)
    available = rows.table.num_rows
    begin = int(match[1] or 0)
    end = int(match[2] or available)
    if not begin < end <= available:
        raise InputError(
            f"{file} is no slice of the rows 0 to {available - 1:,} of this file; correct the numbers."
        )
    table = rows.table.slice(begin, end - begin)
    # messages name the rows of the whole file, which the user opens
    lines = rows.lines[begin:end]
    return replace(rows, source=file, table=table, lines=lines, indices=range(begin, end))


def describe(corpus: Corpus, split: str) -> str:
    """Describe a split of a corpus for messages: "nyu-mll/glue cola, split validation"."""
    source = corpus.sources[split]
    if isinstance(corpus, InFiles):
        return source
    return f"{' '.join(filter(None, (corpus.hub, corpus.config)))}, split {source}"


def source_digests(corpus: Corpus, machine: Machine) -> dict[str, str] | None:
    """Return the digests of a corpus's files; None if it is not on this machine.

    They are those of each local file by split, or one of all files of a config of a dataset, under "files".
    """
    try:
        if isinstance(corpus, InFiles):
            for path in corpus.paths.values():
                check_file(path)
            return {split: digest_of_file(path) for split, path in corpus.paths.items()}
        folder = folder_of("dataset", corpus.hub, corpus.revision, machine)
        if folder is None:
            return None
        files = _files_in(folder)
        if ".huggingface.yaml" not in files:  # it can name any files, too
            files = files_of_configs(files, _configs_on_card(folder), [corpus.config])
        return {"files": digest_of_json({name: digest_of_file(folder / name) for name in files})}
    except OSError as error:
        raise InputError(
            f"{error.filename} cannot be read ({error.strerror}); make it readable and run again."
        ) from error


def _files_in(folder: Path) -> list[str]:
    """Return the paths of all files of a dataset, relative to its folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _configs_on_card(folder: Path) -> object:
    """Return the configs that a dataset's README.md declares; None if it declares none."""
    from huggingface_hub.repocard import metadata_load

    card = metadata_load(folder / "README.md") if (folder / "README.md").is_file() else None
    return (card or {}).get("configs")


def _in_folder(corpus: OnHub, split: str, wanted: WantedColumns, folder: Path) -> Columns:
    try:
        dataset = _load_dataset(folder, corpus.config, corpus.sources[split])
    except Exception as error:  # malformed files raise more errors than the library documents
        raise InputError(
            f"{describe(corpus, split)} cannot be loaded from {folder} ({first_line(error).rstrip('.')}); "
            "check the id, the config and the split."
        ) from error
    names = dataset.column_names
    class_names = class_names_of(dataset.features.to_dict())
    if wanted is not None:
        dataset = dataset.select_columns([name for name in names if name in wanted])
    return Columns(describe(corpus, split), dataset.with_format("arrow")[:], names, class_names)


def _load_dataset(folder: Path, config: str | None, split: str) -> Dataset:
    """Load a dataset; a config that no README declares (refs/convert/parquet) is loaded as a folder."""
    import datasets

    # the cache of `datasets` depends only on paths, so it would return old rows after files have changed
    files = _files_in(folder)
    key = digest_of_json([files, state_of(folder / name for name in files)])[:KEY_DIGITS]
    cache = Path(datasets.config.HF_DATASETS_CACHE, "papa", key)
    options = {"split": split, "cache_dir": str(cache)}
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(str(folder), name=config, **options)
    except ValueError as error:
        if config is None or "Available: ['default']" not in str(error):
            raise
        return datasets.load_dataset(str(folder), data_dir=config, **options)
    finally:
        if shown:
            datasets.enable_progress_bars()
