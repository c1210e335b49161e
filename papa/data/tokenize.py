"""The texts of a corpus in the slots of a model, as one table of real tokens, written and read in groups of rows.

A group holds about `GROUP` tokens of one split. Whoever reads group by group needs memory for one of them, however
large the corpus is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from papa.data.layout import CHUNK, Placed, Segments, Style, place, texts_in_blocks
from papa.data.weights import sizes_of_model, tokenizer_of
from papa.errors import InputError
from papa.files import PathLike, opened_table, provenance_of, replacing, with_provenance

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

GROUP = 1 << 18
"""Tokens of a group; its last example may exceed them."""
Row = tuple[str, int, Placed]
"""Split, number of the row there, and what of it stands where."""


def tokenize_corpus(
    model: dict[str, Any],
    texts: PathLike,
    tokens: PathLike,
    slots: int,
    style: Style,
    segments: Segments,
    blocks: bool = False,
) -> str:
    """Stage *tokenize*: lay the prepared texts of a corpus out for a model; Parquet of real tokens only.

    With `blocks` the texts of each split are running text, cut in blocks that fill all slots whatever the style; `row`
    then counts blocks, and no labels fit. Raises `InputError` where texts cannot be laid out so.
    """
    with opened_table(texts) as file:
        about, columns = provenance_of(file), file.schema_arrow.names
        words, pairs = "words" in columns, "second" in columns
        if blocks and (words or pairs):
            raise InputError(f"{texts} holds pairs of texts or lists of words; only single texts can be cut in blocks.")
        tokenizer = tokenizer_of(model, words=words)

        def rows() -> Iterator[Row]:
            if blocks:
                yield from _blocks_of_splits(tokenizer, file, slots)
                return
            for chunk in file.iter_batches(CHUNK):
                first = chunk.column("words" if words else "first").to_pylist()
                second = chunk.column("second").to_pylist() if pairs else None
                laid_out = place(tokenizer, first, second, slots=slots, style=style, segments=segments)
                yield from zip(
                    chunk.column("split").to_pylist(), chunk.column("row").to_pylist(), laid_out, strict=True
                )

        provenance = {
            "model": model["name"],
            "sizes": sizes_of_model(model),
            # blocks are not the rows of their texts: what belongs to those, labels and averages, is refused for them
            "corpus": f"{about.get('fingerprint')} in blocks" if blocks else about.get("fingerprint"),
            "rows": about.get("rows"),
            "rows_available": about.get("rows_available"),
            "slots": slots,
            "style": style,
            "segments": segments,
        }
        laid_out = total = cut = 0

        def counted() -> Iterator[pa.Table]:
            nonlocal laid_out, total, cut
            for group in _groups(rows(), _schema(words)):
                laid_out += group.num_rows
                total += len(group.column("ids").combine_chunks().flatten())
                cut += sum(number > 0 for number in group.column("cut").to_pylist())
                yield group

        write_groups(counted(), _schema(words), tokens, provenance)
    what = "blocks" if blocks else "examples"
    return f"laid out {laid_out:,} {what}, {total:,} tokens in {slots} slots; {cut:,} {what} cut"


def write_groups(groups: Iterable[pa.Table], schema: pa.Schema, tokens: PathLike, provenance: dict[str, Any]) -> None:
    """Write tables of one split each as the groups of a tokens file."""
    import pyarrow.parquet as pq

    described = with_provenance(schema, tokens, provenance)
    with replacing(tokens, seal=True) as temporary, pq.ParquetWriter(temporary, described, compression="zstd") as file:
        for group in groups:
            file.write_table(group.cast(described), row_group_size=group.num_rows)


def _schema(words: bool) -> pa.Schema:
    import pyarrow as pa

    lists = ["ids", "slots", "segments", *(["words"] if words else [])]
    types = {"split": pa.string(), "row": pa.int64(), **dict.fromkeys(lists, pa.list_(pa.int32())), "cut": pa.int32()}
    return pa.schema(types)


def _groups(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows as tables of about `GROUP` tokens, each of one split; as numbers of Python they would fill the memory."""
    import pyarrow as pa

    for split, own in groupby(rows, key=lambda row: row[0]):
        parts: list[pa.Table] = []
        tokens = 0
        while chunk := list(islice(own, CHUNK // 16)):
            examples = [example for _, _, example in chunk]
            values: dict[str, list[Any]] = {"split": [split] * len(chunk), "row": [row for _, row, _ in chunk]}
            values |= {name: [getattr(example, name) for example in examples] for name in schema.names[2:]}
            parts.append(pa.Table.from_pydict(values, schema))
            tokens += sum(len(example.ids) for example in examples)
            if tokens >= GROUP:
                yield pa.concat_tables(parts)
                parts, tokens = [], 0
        if parts:
            yield pa.concat_tables(parts)


def _blocks_of_splits(tokenizer: Any, file: pq.ParquetFile, slots: int) -> Iterator[Row]:
    """The blocks of each split, each with the split's name and its number there."""
    texts = (
        text
        for chunk in file.iter_batches(CHUNK, columns=["split", "first"])
        for text in zip(*(chunk.column(name).to_pylist() for name in ("split", "first")), strict=True)
    )
    for split, own in groupby(texts, key=lambda text: text[0]):
        for number, block in enumerate(texts_in_blocks(tokenizer, (text for _, text in own), slots)):
            yield split, number, block
