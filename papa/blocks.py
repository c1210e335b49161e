"""Running text in blocks: the lines of a corpus as one stream of tokens, cut so that every block fills its slots.

For masked language modelling on corpora such as WikiText, whose lines are headings, paragraphs of many times the slots,
or empty. The paper does not say how its texts were packed; this is our reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from papa.artefacts import PathLike, provenance_of, read_table, write_table
from papa.errors import InputError
from papa.layout import CHUNK, Placed, Template
from papa.sources.models import tokenizer_of


def texts_in_blocks(tokenizer: Any, texts: Sequence[str], slots: int) -> Iterator[Placed]:
    """Yield `texts` as blocks of `slots` tokens, special tokens at both ends: `[CLS] tokens [SEP]` in slots 0 … n-1.

    Texts follow one another without a separator; one that is empty adds nothing and no token is lost. The last block
    may be shorter; its `[SEP]` stands in slot n-1 all the same. Raises `InputError` where the slots leave no room.
    """
    template = Template.of(tokenizer)
    limit = getattr(tokenizer, "model_max_length", None)
    if limit is not None and slots > limit:
        raise InputError(f"{slots} slots were asked for, but the model has positions for {limit}; take fewer slots.")
    room = slots - len(template.start) - len(template.end)
    if room < 1:
        raise InputError(f"{slots} slots leave no room for text between the special tokens; take more slots.")
    held: list[int] = []
    for begin in range(0, len(texts), CHUNK):
        made = tokenizer(list(texts[begin : begin + CHUNK]), add_special_tokens=False, verbose=False).input_ids
        held += [number for ids in made for number in ids]
        whole = len(held) - len(held) % room
        yield from (_block(template, held[start : start + room], slots) for start in range(0, whole, room))
        held = held[whole:]
    if held:
        yield _block(template, held, slots)


def _block(template: Template, ids: list[int], slots: int) -> Placed:
    kept = [*template.start, *ids, *template.end]
    front = len(template.start) + len(ids)
    where = [*range(front), *range(slots - len(template.end), slots)]
    return Placed(kept, where, [0] * len(kept), [-1] * len(kept), 0)


def tokenize_blocks(model: dict[str, Any], texts: PathLike, tokens: PathLike, slots: int) -> str:
    """Stage *tokenize* for running text: the prepared texts of each split in blocks; Parquet as `tokenize_corpus`.

    `row` counts blocks, not rows of the source, so that labels do not fit these tokens. Raises `InputError` for a
    corpus of pairs or of words.
    """
    import pyarrow as pa

    table = read_table(texts)
    if not {"split", "first"} <= set(table.column_names) or "second" in table.column_names:
        raise InputError(f"{texts} holds pairs of texts or lists of words; only single texts can be cut into blocks.")
    tokenizer = tokenizer_of(model)
    rows = zip(table.column("split").to_pylist(), table.column("first").to_pylist(), strict=True)
    columns: dict[str, list[Any]] = {name: [] for name in ("split", "row", "ids", "slots", "segments", "cut")}
    for split, lines in groupby(rows, key=lambda row: row[0]):
        for number, block in enumerate(texts_in_blocks(tokenizer, [text for _, text in lines], slots)):
            for name, value in (("split", split), ("row", number), ("cut", block.cut)):
                columns[name].append(value)
            for name in ("ids", "slots", "segments"):
                columns[name].append(getattr(block, name))
    types = {"ids": pa.list_(pa.int32()), "slots": pa.list_(pa.int32()), "segments": pa.list_(pa.int32())}
    types |= {"split": pa.string(), "row": pa.int64(), "cut": pa.int32()}
    about = provenance_of(table)
    provenance = {
        "model": model["name"],
        "corpus": about.get("fingerprint"),
        "rows": about.get("rows"),
        "rows_available": about.get("rows_available"),
        "slots": slots,
        "style": "blocks",
        "segments": "aligned",
    }
    arrays = {name: pa.array(values, types[name]) for name, values in columns.items()}
    write_table(pa.table(arrays), tokens, provenance)
    total = sum(map(len, columns["ids"]))
    return f"cut {table.num_rows:,} texts into {len(columns['row']):,} blocks, {total:,} tokens in {slots} slots"
