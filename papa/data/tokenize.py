"""Stage *tokens*: tokenize a corpus for a model, and write its real tokens as a table in groups of rows.

Jobs read one group at a time, so the memory they need does not depend on the size of the corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from papa.config.job import Job
from papa.config.settings import Machine
from papa.config.stages import ModelId, TokensOf
from papa.data.layout import CHUNK_TEXTS, WITHOUT_GAPS, Placed, place_texts, separates_words, texts_in_blocks
from papa.data.weights import loading_error, location_of, predicts_next, sources_of, weights_digest
from papa.errors import WARNING, InputError, count
from papa.files import PathLike, Trace, provenance_of, read_table, writing_table

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

GROUP_TOKENS = 1 << 18
"""Number of tokens after which a group of rows ends; it also ends with its split."""
PlacedRow = tuple[str, int, Placed]
"""Split, index of the row in the split, and the tokens with their slots."""


def tokenize_corpus(job: Job[TokensOf]) -> str:
    """Stage *tokens*: lay out the prepared texts of a corpus for a model, and write the real tokens as Parquet.

    With `blocks`, the texts of a split are running text, cut into blocks that fill all slots. `row` is then the index
    of a block, so labels of texts do not apply.

    Raises:
        InputError: The texts cannot be laid out this way.
    """
    settings, model = job.settings, job.settings.model
    texts = read_table(job.input("texts"))
    text_facts, words = provenance_of(texts), "words" in texts.column_names
    if is_decoder(model, job.machine):
        settings = settings.model_copy(update={"style": "contiguous"})
    if settings.blocks and (words or "second" in texts.column_names):
        raise InputError(
            f"{job.input('texts')} contains pairs of texts or lists of words; only single texts can be cut into blocks."
        )
    tokenizer = tokenizer_of(model, job.machine, words)
    rows, schema = (_blocks if settings.blocks else _texts)(tokenizer, texts, settings), _schema(words)
    facts: dict[str, Any] = {
        "model": model.name,
        "sizes": sizes_of_model(model, job.machine),
        # labels and averages that belong to whole texts must not be used for blocks
        "corpus": f"{text_facts['fingerprint']} in blocks" if settings.blocks else text_facts["fingerprint"],
        "rows": text_facts["rows"],
        "rows_available": text_facts["rows_available"],
        "slots": settings.slots,
        "style": settings.style,
    }
    counts = Counter[str]()

    def counted() -> Iterator[PlacedRow]:
        for split, row, placed in rows:
            if (largest := max(placed.ids, default=0)) >= facts["sizes"]["vocabulary"]:
                raise beyond_embedding(tokenizer, largest, model.name, f"row {row} of the {split} split")
            if not placed.ids:
                raise InputError(f"Row {row} of the {split} split has no token for model {model.name}; leave it out.")
            counts.update(rows=1, tokens=len(placed.ids), cut=placed.cut > 0, unknown=placed.unknown)
            yield split, row, placed

    sources = sources_of(model, weights_digest(model, job.machine), job.machine)
    write_groups(_groups(counted(), schema), schema, job.output("tokens"), facts, job.trace(**sources))
    unit = "block" if settings.blocks else "example"
    report = f"laid out {count(counts['rows'], unit)}, {counts['tokens']:,} tokens in {settings.slots} slots; "
    report += f"{count(counts['cut'], unit)} cut"
    if counts["cut"] > 0.01 * counts["rows"]:
        report += f". {WARNING}that is more than 1%; set more `slots`"
    if counts["unknown"]:
        report += f". {WARNING}{count(counts['unknown'], 'word')} without a token became {tokenizer.unk_token}"
    return report


def beyond_embedding(tokenizer: PreTrainedTokenizerBase, token: int, model: str, place: str) -> InputError:
    """Return the error for a token for which the model has no embedding."""
    return InputError(
        f"The tokenizer of model {model} has the token {tokenizer.convert_ids_to_tokens(token)!r} ({place}), but the "
        f"model has no embedding {token}; call model.resize_token_embeddings(len(tokenizer)), train it, and save both."
    )


def check_tokenizer(model: ModelId, machine: Machine, slots: int, words: bool, texts: Iterable[str]) -> None:
    """Raise `InputError` if the model's tokenizer cannot lay out texts, or makes of them tokens without an embedding.

    `texts` are read only if the tokenizer has such tokens.
    """
    tokenizer, vocabulary = tokenizer_of(model, machine, words), sizes_of_model(model, machine)["vocabulary"]
    next(place_texts(tokenizer, [["a"]] if words else ["a"], None, slots=slots))
    beyond = {token: index for token, index in tokenizer.get_added_vocab().items() if index >= vocabulary}
    for text in texts if beyond else ():
        if token := next((token for token in beyond if token in text), None):
            raise beyond_embedding(tokenizer, beyond[token], model.name, f"in the text {text[:60]!r}")


def write_groups(
    groups: Iterable[pa.Table],
    schema: pa.Schema,
    tokens: PathLike,
    facts: Mapping[str, object],
    trace: Trace | None = None,
) -> None:
    """Write tables, each with rows of a single split, as the groups of a tokens file."""
    with writing_table(tokens, schema, facts, trace) as file:
        for group in groups:
            file.write(group.cast(schema))


def tokenizer_of(model: ModelId, machine: Machine, words: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, for texts or for lists of `words`.

    A byte-level tokenizer (RoBERTa, Qwen) inserts spaces before listed words only if it is loaded with an option.
    """
    from transformers import AutoTokenizer

    path = location_of(model, machine)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        if words and not separates_words(tokenizer):
            tokenizer = AutoTokenizer.from_pretrained(path, add_prefix_space=True, trust_remote_code=False)
    except Exception as error:  # malformed files raise more errors than the library documents
        raise loading_error(model, machine, "tokenizer", error) from error
    return tokenizer


def is_decoder(model: ModelId, machine: Machine) -> bool:
    """Return whether the model is a causal language model, according to its config."""
    config = _config_of(model, machine)
    return predicts_next(config.architectures, getattr(config, "is_decoder", False))


def sizes_of_model(model: ModelId, machine: Machine) -> dict[str, int]:
    """Return sizes from the model's config; `layers` counts only layers with attention, `heads` is per layer."""
    config = _config_of(model, machine)
    try:
        return {
            "layers": _attending_layers(config) or int(config.num_hidden_layers),
            "heads": int(config.num_attention_heads),
            "hidden": int(config.hidden_size),
            "intermediate": int(getattr(config, "intermediate_size", 4 * config.hidden_size)),
            "vocabulary": int(config.vocab_size),
        }
    except Exception as error:  # malformed configs raise more errors than the library documents
        raise loading_error(model, machine, "config", error) from error


def _attending_layers(config: PreTrainedConfig) -> int:
    """Return the number of layers with attention if the config lists the layer types, otherwise 0."""
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    return sum("attention" in layer_type and "linear" not in layer_type for layer_type in types)


def _config_of(model: ModelId, machine: Machine) -> PreTrainedConfig:
    from transformers import AutoConfig

    path = location_of(model, machine)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # malformed configs raise more errors than the library documents
        raise loading_error(model, machine, "config", error) from error
    return config


def _schema(words: bool) -> pa.Schema:
    import pyarrow as pa

    lists = ["ids", "slots", "segments", *(["words"] if words else [])]
    types = {"split": pa.string(), "row": pa.int64(), **dict.fromkeys(lists, pa.list_(pa.int32())), "cut": pa.int32()}
    return pa.schema(types)


def _chunks(texts: pa.Table) -> Iterator[dict[str, list[Any]]]:
    for chunk in texts.to_batches(CHUNK_TEXTS):
        yield dict(zip(chunk.schema.names, (column.to_pylist() for column in chunk.columns), strict=True))


def _texts(tokenizer: PreTrainedTokenizerBase, texts: pa.Table, settings: TokensOf) -> Iterator[PlacedRow]:
    for columns in _chunks(texts):
        first, second = columns.get("words", columns.get("first", [])), columns.get("second")
        laid_out = place_texts(tokenizer, first, second, slots=settings.slots, style=settings.style)
        yield from zip(columns["split"], columns["row"], laid_out, strict=True)


def _blocks(tokenizer: PreTrainedTokenizerBase, texts: pa.Table, settings: TokensOf) -> Iterator[PlacedRow]:
    rows = (row for columns in _chunks(texts) for row in zip(columns["split"], columns["first"], strict=True))
    for split, rows_of_split in groupby(rows, key=lambda row: row[0]):
        running = (text for _, text in rows_of_split)
        blocks = texts_in_blocks(tokenizer, running, settings.slots, settings.style in WITHOUT_GAPS)
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
            values |= {name: [getattr(example, name) for example in examples] for name in schema.names[2:]}
            parts.append(pa.Table.from_pydict(values, schema))
            tokens += sum(len(example.ids) for example in examples)
            if tokens >= GROUP_TOKENS:
                yield pa.concat_tables(parts)
                parts, tokens = [], 0
        if parts:
            yield pa.concat_tables(parts)
