"""Stage *tokenize*: tokenize a corpus for a model, and write its real tokens as a table in groups of rows.

Jobs read one group at a time, so the memory they need does not depend on the size of the corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papa.data.layout import (
    CHUNK_TEXTS,
    WITHOUT_GAPS,
    Placed,
    place_texts,
    separates_words,
    texts_in_blocks,
)
from papa.data.prepare import TEXTS
from papa.data.weights import folder_of_model, loading_error, predicts_next
from papa.errors import WARNING, InputError, count
from papa.files import Json, PathLike, Record, read_table, writing_table
from papa.stages import Job, Tokenize

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

GROUP_TOKENS = 1 << 18
"""Number of tokens after which a group of rows ends; it also ends with its split."""
SENTENCEPIECE = ("sentencepiece", "protobuf")
"""The packages with which transformers reads a tokenizer that has no tokenizer.json."""
PlacedRow = tuple[str, int, Placed]
"""Split, index of the row in the split, and the tokens with their slots."""


def tokenize_corpus(jobs: Sequence[Job[Tokenize]]) -> str:
    """Stage *tokenize*: lay out the texts of a corpus for a model, and write the real tokens as Parquet.

    Texts are in the table of the corpus. With `blocks`, those of a split are running text, cut into blocks that fill
    all slots; `row` is then the index of a block. Facts: the model's `sizes`, `slots`, `style` (the layout; decoders
    have no other than contiguous), and by split the numbers of `rows`, of those that were `cut`, and of those that have
    only `unknown` tokens.

    Raises:
        InputError: The texts cannot be laid out this way.
    """
    (job,) = jobs
    settings = job.settings
    folder = folder_of_model(job)
    model = job.about["model"]
    table = read_table(job.reads["texts"])
    texts = table.select([name for name in table.column_names if name in ("split", "row", *TEXTS)])
    words = "words" in texts.column_names
    style = "contiguous" if is_decoder(folder, model) else settings.layout
    if settings.blocks and (words or "second" in texts.column_names):
        raise InputError(
            f"{job.reads['texts']} contains pairs of texts or lists of words; only single texts can be cut into blocks."
        )
    tokenizer = tokenizer_of(folder, model, words)
    sizes = sizes_of_model(folder, model)
    lay_out = _blocks if settings.blocks else _laid_out
    rows = lay_out(tokenizer, texts, settings.slots, style)
    schema = _schema(words)
    counts = Counts(tokenizer)

    def counted() -> Iterator[PlacedRow]:
        for split, row, placed in rows:
            largest = max(placed.ids, default=0)
            if largest >= sizes["vocabulary"]:
                raise beyond_embedding(tokenizer, largest, model, f"row {row} of the {split} split")
            if not placed.ids:
                raise InputError(
                    f"Row {row} of the {split} split has no token for model {model}; leave it out."
                )
            counts.add(split, placed)
            yield split, row, placed

    # the counts are complete when the rows are written; only then are the facts read
    facts = {
        "sizes": sizes,
        "slots": settings.slots,
        "style": style,
        "rows": counts.rows,
        "cut": counts.cut,
        "unknown": counts.unknown,
    }
    write_groups(_groups(counted(), schema), schema, job.output, facts, job.record)
    return counts.report("block" if settings.blocks else "example", settings.slots)


class Counts:
    """Counts of laid out rows.

    By split, `rows` counts rows, `cut` those with tokens cut off, and `unknown` those that have only tokens
    without meaning. `tokens` counts tokens, and `unknown_words` words for which the tokenizer has no token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.meaningless = without_meaning(tokenizer)
        self.rows = Counter[str]()
        self.cut = Counter[str]()
        self.unknown = Counter[str]()
        self.tokens = 0
        self.unknown_words = 0

    def add(self, split: str, row: Placed) -> None:
        self.rows[split] += 1
        self.cut[split] += row.cut > 0
        self.unknown[split] += self.meaningless.issuperset(row.ids)
        self.tokens += len(row.ids)
        self.unknown_words += row.unknown

    def report(self, unit: str, slots: int) -> str:
        """Return the line of the job, with a warning if many rows lost tokens or have none with a meaning."""
        rows = self.rows.total()
        cut = self.cut.total()
        unknown = self.unknown.total()
        report = f"laid out {count(rows, unit)}, {self.tokens:,} tokens in {slots} slots; {count(cut, unit)} cut"
        if cut > 0.01 * rows:
            report += f". {WARNING}that is more than 1%; set more `slots`"
        if unknown > 0.01 * rows:
            tokens = meaningless_tokens(self.tokenizer)
            report += f". {WARNING}{count(unknown, unit)} with only {tokens}"
        if self.unknown_words:
            words = count(self.unknown_words, "word")
            report += f". {WARNING}{words} without a token became {self.tokenizer.unk_token}"
        return report


def beyond_embedding(
    tokenizer: PreTrainedTokenizerBase, token: int, model: str, place: str
) -> InputError:
    """Return the error for a token for which the model has no embedding."""
    return InputError(
        f"The tokenizer of model {model} has the token {tokenizer.convert_ids_to_tokens(token)!r} ({place}), but the "
        f"model has no embedding {token}; call model.resize_token_embeddings(len(tokenizer)), train it, and save both."
    )


def check_tokenizer(
    folder: str, name: str, slots: int, words: bool, texts: Iterable[str] = ()
) -> None:
    """Raise `InputError` if a model's tokenizer cannot lay out texts, or makes of them tokens without an embedding.

    `texts` are read only if the tokenizer has such tokens.
    """
    tokenizer = tokenizer_of(folder, name, words)
    vocabulary = sizes_of_model(folder, name)["vocabulary"]
    next(place_texts(tokenizer, [["a"]] if words else ["a"], None, slots=slots))
    added = tokenizer.get_added_vocab().items()
    beyond = [(token, index) for token, index in added if index >= vocabulary]
    for text in texts if beyond else ():
        for token, index in beyond:
            if token in text:
                raise beyond_embedding(tokenizer, index, name, f"in the text {text[:60]!r}")


def write_groups(
    groups: Iterable[pa.Table],
    schema: pa.Schema,
    tokens: PathLike,
    facts: Json,
    record: Record | None = None,
) -> None:
    """Write tables, each with rows of a single split, as the groups of a tokens file; then its facts are looked up."""
    with writing_table(tokens, schema, {}, record) as file:
        for group in groups:
            file.write(group.cast(schema))
        file.facts |= facts


def tokenizer_of(folder: str, name: str = "", words: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer in the folder of the model `name`, for texts or for lists of `words`.

    A byte-level tokenizer (RoBERTa, Qwen) inserts spaces before listed words only if it is loaded with an option.
    """
    from transformers import AutoTokenizer

    if missing := missing_packages(folder, name):
        raise InputError(missing)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if words and not separates_words(tokenizer):
            tokenizer = AutoTokenizer.from_pretrained(
                folder, add_prefix_space=True, trust_remote_code=False
            )
    except Exception as error:  # malformed files raise more errors than the library documents
        raise loading_error(folder, name, "tokenizer", error) from error
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    # transformers makes an empty one up if it finds no files
    if len(tokenizer.get_vocab().keys() - special) < 2:
        raise InputError(
            f"{name or folder} has no tokenizer files; write them into {folder} with `save_pretrained`."
        )
    return tokenizer


def without_meaning(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the special tokens, among them the unknown one, and SentencePiece's token of a space."""
    space: Any = tokenizer.convert_tokens_to_ids("\u2581")
    return {*tokenizer.all_special_ids, space}


def meaningless_tokens(tokenizer: PreTrainedTokenizerBase) -> str:
    """Name the tokens without meaning for a message; not every tokenizer has an unknown token."""
    unknown = tokenizer.unk_token
    return "special tokens" if unknown is None else f"unknown tokens ({unknown})"


def missing_packages(folder: str, name: str = "") -> str | None:
    """Return a sentence if packages are not installed that the tokenizer in a folder needs; otherwise None."""
    files = sorted(path.name for path in Path(folder).glob("*.model"))
    if not files or Path(folder, "tokenizer.json").is_file():
        return None
    missing = []
    for package in SENTENCEPIECE:
        try:
            version(package)
        except PackageNotFoundError:
            missing.append(package)
    if not missing:
        return None
    return (
        f"The tokenizer of {name or folder} is in {files[0]}, which needs {' and '.join(missing)}: "
        f"pip install {' '.join(missing)}."
    )


def is_decoder(folder: str, name: str = "") -> bool:
    """Return whether the model in a folder is a decoder, according to its config."""
    return predicts_next(_config_of(folder, name).to_dict())


def sizes_of_model(folder: str, name: str = "") -> dict[str, int]:
    """Return sizes from a model's config; `layers` counts only layers with attention, `heads` is per layer."""
    whole = _config_of(folder, name)
    try:
        # the config of a model that also sees images has a part for text
        config: Any = whole.get_text_config()
        types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
        # linear attention, as in Qwen3-Next, has no softmax whose result constants could replace
        attending = sum("attention" in kind and "linear" not in kind for kind in types or [])
        return {
            "layers": attending or int(config.num_hidden_layers),
            "heads": int(config.num_attention_heads),
            "hidden": int(config.hidden_size),
            "intermediate": int(
                getattr(config, "intermediate_size", None) or 4 * config.hidden_size
            ),
            "vocabulary": int(config.vocab_size),
        }
    except Exception as error:  # malformed configs raise more errors than the library documents
        raise loading_error(folder, name, "config", error) from error


def _config_of(folder: str, name: str) -> PreTrainedConfig:
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # malformed configs raise more errors than the library documents
        raise loading_error(folder, name, "config", error) from error
    return config


def _schema(words: bool) -> pa.Schema:
    import pyarrow as pa

    lists = ["ids", "slots", "segments", *(["words"] if words else [])]
    types = {
        "split": pa.string(),
        "row": pa.int64(),
        **dict.fromkeys(lists, pa.list_(pa.int32())),
        "cut": pa.int32(),
    }
    return pa.schema(types)


def _laid_out(
    tokenizer: PreTrainedTokenizerBase, texts: pa.Table, slots: int, style: str
) -> Iterator[PlacedRow]:
    for chunk in texts.to_batches(CHUNK_TEXTS):
        columns = chunk.to_pydict()
        first = columns.get("words", columns.get("first", []))
        second = columns.get("second")
        laid_out = place_texts(tokenizer, first, second, slots=slots, style=style)
        yield from zip(columns["split"], columns["row"], laid_out, strict=True)


def _blocks(
    tokenizer: PreTrainedTokenizerBase, texts: pa.Table, slots: int, style: str
) -> Iterator[PlacedRow]:
    rows = (row for chunk in texts.to_batches(CHUNK_TEXTS) for row in chunk.to_pylist())
    for split, rows_of_split in groupby(rows, key=lambda row: row["split"]):
        running = (row["first"] for row in rows_of_split)
        blocks = texts_in_blocks(tokenizer, running, slots, contiguous=style in WITHOUT_GAPS)
        for row, block in enumerate(blocks):
            yield split, row, block


def _groups(rows: Iterable[PlacedRow], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield tables of about `GROUP_TOKENS` tokens, each of a single split, built in chunks to save memory."""
    import pyarrow as pa

    for split, rows_of_split in groupby(rows, key=lambda row: row[0]):
        parts: list[pa.Table] = []
        tokens = 0
        while chunk := list(islice(rows_of_split, CHUNK_TEXTS // 16)):
            examples = [example for _, _, example in chunk]
            values = {"split": [split] * len(chunk), "row": [row for _, row, _ in chunk]}
            for name in schema.names[2:]:
                values[name] = [getattr(example, name) for example in examples]
            parts.append(pa.Table.from_pydict(values, schema))
            tokens += sum(len(example.ids) for example in examples)
            if tokens >= GROUP_TOKENS:
                yield pa.concat_tables(parts)
                parts = []
                tokens = 0
        if parts:
            yield pa.concat_tables(parts)
