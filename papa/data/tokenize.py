"""The texts of a corpus in the slots of a model, as one table of real tokens, written and read in groups of rows.

A group contains about `GROUP` tokens of one split. Whoever reads group by group needs memory for one of them, however
large the corpus is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import TYPE_CHECKING

from papa.config.job import Job
from papa.config.settings import Machine
from papa.config.stages import ModelId, TokensOf
from papa.data.layout import CHUNK, Placed, parts_words, place, place_choices, texts_in_blocks
from papa.data.weights import (
    digest_of_vocabulary,
    not_loaded,
    place_of,
    revision_of,
    says_next,
    sources_of,
    weights_digest,
)
from papa.errors import InputError, count
from papa.files import PathLike, Trace, provenance_of, read_table, writing_table

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

GROUP = 1 << 18
"""Tokens of a group; its last example may exceed them."""
Row = tuple[str, int, Placed]
"""Split, number of the row there, and what of it stands where."""


def tokenize_corpus(job: Job[TokensOf]) -> str:
    """Stage *tokens*: lay the prepared texts of a corpus out for a model; Parquet of real tokens only.

    With `blocks` the texts of each split are running text, cut in blocks that fill all slots whatever the style; `row`
    then counts blocks, and no labels fit. Each choice of a question is an example of its own: they stand together and
    have the `row` of their question, `begin` is the first token of the choice, `characters` how long the choice is.

    Raises:
        InputError: The texts cannot be laid out so, or choices are for a model that is no decoder.
    """
    settings, model = job.settings, job.settings.model
    texts = read_table(job.input("texts"))
    about, words, choices = provenance_of(texts), "words" in texts.column_names, "choices" in texts.column_names
    if is_decoder(model, job.machine):
        settings = settings.model_copy(update={"style": "contiguous"})
    elif choices:
        raise InputError(
            f"Model {model.name} is no decoder, and only a decoder's own head chooses between choices of questions; "
            "leave it out of this task."
        )
    if settings.blocks and (words or "second" in texts.column_names):
        raise InputError(
            f"{job.input('texts')} contains pairs of texts or lists of words; only single texts can be cut in blocks."
        )
    tokenizer = tokenizer_of(model, job.machine, words)
    form = _blocks_of_splits if settings.blocks else _choices if choices else _rows
    rows, schema = form(tokenizer, texts, settings), _schema(words, choices)
    facts = {
        "model": model.name,
        "sizes": sizes_of_model(model, job.machine),
        # blocks are not the rows of their texts: what belongs to those, labels and averages, is refused for them
        "corpus": f"{about['fingerprint']} in blocks" if settings.blocks else about["fingerprint"],
        "rows": about["rows"],
        "rows_available": about["rows_available"],
        "slots": settings.slots,
        "style": settings.style,
        "segments": settings.segments,
    }
    laid_out = total = cut = 0

    def counted() -> Iterator[pa.Table]:
        nonlocal laid_out, total, cut
        for group in _groups(rows, schema):
            laid_out += group.num_rows
            total += len(group.column("ids").combine_chunks().flatten())
            cut += sum(number > 0 for number in group.column("cut").to_pylist())
            yield group

    sources = sources_of(model, weights_digest(model, job.machine), job.machine)
    if vocabulary := digest_of_vocabulary(model, job.machine, cached_only=False):
        sources["tokenizer"] = vocabulary
    trace = job.trace(**sources)
    write_groups(counted(), schema, job.output("tokens"), facts, trace)
    what = "block" if settings.blocks else "choice" if choices else "example"
    return f"laid out {count(laid_out, what)}, {total:,} tokens in {settings.slots} slots; {count(cut, what)} cut"


def write_groups(
    groups: Iterable[pa.Table],
    schema: pa.Schema,
    tokens: PathLike,
    facts: Mapping[str, object],
    trace: Trace | None = None,
) -> None:
    """Write tables of one split each as the groups of a tokens file."""
    with writing_table(tokens, schema, facts, trace) as file:
        for group in groups:
            file.write(group.cast(schema))


def tokenizer_of(model: ModelId, machine: Machine, words: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to the model; `words=True` readies it for texts that come as lists of words.

    Byte-level tokenizers (RoBERTa, Qwen) must be told when they are made that every word has a space before it.
    """
    from transformers import AutoTokenizer

    place, revision = place_of(model, machine), revision_of(model, machine)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision, trust_remote_code=False)
        if words and not parts_words(tokenizer):
            tokenizer = AutoTokenizer.from_pretrained(
                place, revision=revision, trust_remote_code=False, add_prefix_space=True
            )
    except Exception as error:  # files can be wrong in more ways than the library has errors for
        raise not_loaded(model, machine, "tokenizer", error) from error
    return tokenizer


def shape_of_model(model: ModelId, machine: Machine) -> tuple[int, int, int]:
    """(layers, heads per layer, heads of keys) as the model's config says, without loading its weights."""
    sizes, config = sizes_of_model(model, machine), _config_of(model, machine)
    return sizes["layers"], sizes["heads"], int(getattr(config, "num_key_value_heads", None) or sizes["heads"])


def is_decoder(model: ModelId, machine: Machine) -> bool:
    """Whether the model's config names a causal language model, whose texts are laid out without gaps."""
    config = _config_of(model, machine)
    return says_next(config.architectures, getattr(config, "is_decoder", False))


def sizes_of_model(model: ModelId, machine: Machine) -> dict[str, int]:
    """Layers that attend, heads in each, sizes of hidden states and of the layers between them, and words of the
    vocabulary, as the model's config says, without loading its weights."""
    config = _config_of(model, machine)
    try:
        return {
            "layers": len(_attending(config)) or int(config.num_hidden_layers),
            "heads": int(config.num_attention_heads),
            "hidden": int(config.hidden_size),
            "intermediate": int(getattr(config, "intermediate_size", 4 * config.hidden_size)),
            "vocabulary": int(config.vocab_size),
        }
    except Exception as error:  # configs can be wrong in more ways than the library has errors for
        raise not_loaded(model, machine, "config", error) from error


def _attending(config: PreTrainedConfig) -> list[str]:
    """The layers that attend, where a config says so of each, because others in between do something else."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    return [kind for kind in kinds if "attention" in kind and "linear" not in kind]


def _config_of(model: ModelId, machine: Machine) -> PreTrainedConfig:
    from transformers import AutoConfig

    try:
        own = {"revision": revision_of(model, machine), "trust_remote_code": False}
        found: PreTrainedConfig = AutoConfig.from_pretrained(place_of(model, machine), **own)
    except Exception as error:  # configs can be wrong in more ways than the library has errors for
        raise not_loaded(model, machine, "config", error) from error
    return found


def _schema(words: bool, choices: bool = False) -> pa.Schema:
    import pyarrow as pa

    lists = ["ids", "slots", "segments", *(["words"] if words else [])]
    numbers = ["cut", *(["begin", "characters"] if choices else [])]
    types = {"split": pa.string(), "row": pa.int64(), **dict.fromkeys(lists, pa.list_(pa.int32()))}
    return pa.schema(types | dict.fromkeys(numbers, pa.int32()))


def _rows(tokenizer: PreTrainedTokenizerBase, texts: pa.Table, told: TokensOf) -> Iterator[Row]:
    """Each row of the texts laid out, `CHUNK` at a time."""
    for chunk in texts.to_batches(CHUNK):
        columns = dict(zip(chunk.schema.names, (column.to_pylist() for column in chunk.columns), strict=True))
        first = columns["words"] if "words" in columns else columns["first"]
        laid_out = place(
            tokenizer, first, columns.get("second"), slots=told.slots, style=told.style, segments=told.segments
        )
        yield from zip(columns["split"], columns["row"], laid_out, strict=True)


def _choices(tokenizer: PreTrainedTokenizerBase, texts: pa.Table, told: TokensOf) -> Iterator[Row]:
    """Each choice of each question laid out behind it."""
    for chunk in texts.to_batches(CHUNK):
        columns = dict(zip(chunk.schema.names, (column.to_pylist() for column in chunk.columns), strict=True))
        laid_out = place_choices(tokenizer, columns.get("first"), columns["choices"], told.slots)
        for split, row, choices in zip(columns["split"], columns["row"], laid_out, strict=True):
            yield from ((split, row, choice) for choice in choices)


def _blocks_of_splits(tokenizer: PreTrainedTokenizerBase, texts: pa.Table, told: TokensOf) -> Iterator[Row]:
    """The blocks of each split, each with the split's name and its number there."""
    rows = (
        row
        for chunk in texts.select(["split", "first"]).to_batches(CHUNK)
        for row in zip(*(column.to_pylist() for column in chunk.columns), strict=True)
    )
    for split, own in groupby(rows, key=lambda row: row[0]):
        blocks = texts_in_blocks(tokenizer, (text for _, text in own), told.slots, told.style == "contiguous")
        for number, block in enumerate(blocks):
            yield split, number, block


def _groups(rows: Iterable[Row], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows as tables of about `GROUP` tokens, each of one split; as numbers of Python they would fill the memory."""
    import pyarrow as pa

    for split, own in groupby(rows, key=lambda row: row[0]):
        parts: list[pa.Table] = []
        tokens = 0
        while chunk := list(islice(own, CHUNK // 16)):
            examples = [example for _, _, example in chunk]
            values = {"split": [split] * len(chunk), "row": [row for _, row, _ in chunk]}
            values |= {name: [getattr(example, name) for example in examples] for name in schema.names[2:]}
            parts.append(pa.Table.from_pydict(values, schema))
            tokens += sum(len(example.ids) for example in examples)
            if tokens >= GROUP:
                yield pa.concat_tables(parts)
                parts, tokens = [], 0
        if parts:
            yield pa.concat_tables(parts)
