"""Load pretrained models from folders, from the hub, or as a study's config specifies them."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from pydantic import TypeAdapter

from papa.config.settings import budget_on
from papa.data import packed
from papa.data.digests import digest_of_file
from papa.data.layout import WITHOUT_GAPS
from papa.data.tokens import TokensFile
from papa.data.weights import (
    NO_CODE,
    WEIGHT_FILES,
    folder_of_model,
    locate,
    predicts_next,
    without_progress_bars,
)
from papa.errors import InputError, count, first_line
from papa.files import KEY_DIGITS, PACKAGES, PathLike, Record, opened_table, read_json, write_json
from papa.model.check import refused
from papa.model.model import Model, check_stock
from papa.model.settling import Checked
from papa.stages import AnyJob

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

log = logging.getLogger(__name__)
Dtype = Literal["float32", "bfloat16"]
CHECKED = TypeAdapter(Checked)
_kept: ContextVar[dict[tuple[str, str, str], Model]] = ContextVar("papa_kept")


def load_model(
    path_or_id: PathLike,
    revision: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
) -> Model:
    """Load a pretrained transformer whose heads can be replaced, and check it on a tiny batch.

    Args:
        path_or_id: a local folder, an installed package with a model, or a hub id.
        revision: a branch, tag or commit of the hub.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        dtype: type of the weights.

    Raises:
        InputError: the model cannot be loaded, its attention is not supported, it fails the check, or the device is
            missing.
    """
    stock = stock_model(path_or_id, revision, device, dtype)
    with refused(os.fspath(path_or_id)):
        return Model(stock)


def stock_model(
    path_or_id: PathLike,
    revision: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
) -> PreTrainedModel:
    """Load an unmodified model, with its prediction head if it is a language model; see `load_model`."""
    if not isinstance(path_or_id, str | os.PathLike):
        raise InputError(
            f"load_model takes a folder or a hub id, but a {type(path_or_id).__name__} was given; for a loaded model, "
            "use papa.Model(model)."
        )
    if dtype not in get_args(Dtype):
        raise InputError(f"dtype {dtype!r} is unknown; use one of {', '.join(get_args(Dtype))}.")
    usable = _usable(device)
    return _loaded(locate(os.fspath(path_or_id), revision), usable, getattr(torch, dtype))


def model_of(job: AnyJob) -> Model:
    """Return the model of a job, on this machine's device.

    Weights are float32. The precision determines whether computations use bfloat16, by autocast, and whether an NVIDIA
    GPU may use TF32 for all matrix products of this process.

    Raises:
        InputError: as for `load_model`, or the files of the model have changed since the run began.
    """
    folder = folder_of_model(job)
    precision = getattr(job.settings, "precision", "float32")
    kept = _kept.get({})  # thrown away unless models are being kept
    key = (job.inputs["model"], folder, job.machine.device)
    model = kept[key] if key in kept else _checked_model(job, folder)
    _check_layout(job, model)
    kept[key] = model
    model.precision = torch.bfloat16 if precision == "bfloat16" else torch.float32
    if model.device.type == "cuda":  # CPUs would also use another algorithm
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    model.token_budget = budget_on(model.device.type, job.machine.token_budget)
    return model


def _check_layout(job: AnyJob, model: Model) -> None:
    """Raise `InputError` if the tokens of a job are laid out for a decoder and its model is none, or the reverse.

    The config decides about the layout. What attention does is measured when the model is checked.
    """
    path = Path(job.reads.get("tokens", ""))
    if not path.is_file():  # `papa plan` times a model before there are tokens
        return
    with opened_table(path) as file:
        style = file.facts["style"]
        record = file.provenance.record
    asked = style if record is None else record.settings["layout"]
    if model.causal and style not in WITHOUT_GAPS and _has_gaps(path):
        fault = "laid out for an encoder, but no token of model {} sees a later one"
    elif not model.causal and style in WITHOUT_GAPS and asked not in WITHOUT_GAPS:
        fault = "laid out for a decoder, but tokens of model {} see later ones"
    else:
        return
    raise InputError(
        f"{path} is {fault.format(job.about['model'])}; delete this file, set `layout` of the corpus to natural, and "
        "run again."
    )


def _has_gaps(path: Path) -> bool:
    """Return whether a text in a tokens file has a slot without a token before its last token."""
    with TokensFile.opened(path) as file:
        for _, tokens in file.between(0, file.rows):
            last = tokens.slots[tokens.offsets[1:] - 1]
            if not torch.equal(last.long() + 1, tokens.lengths):
                return True
    return False


def _checked_model(job: AnyJob, folder: str) -> Model:
    """Load a model, and check it unless a job has checked the same files with the same code on such a device."""
    stock = stock_model(folder, device=job.machine.device)
    name = job.about["model"]
    settings = {
        "code": digest_of_file(*sorted(Path(__file__).parent.glob("*.py")), packed.__file__),
        "device": stock.device.type,
        # another version of transformers may compute the same model in another way
        "packages": {name: version(name) for name in PACKAGES},
    }
    record = Record("check", 1, settings, {"model": job.inputs["model"]})
    checks = Path(job.reads["checks"])
    key = record.key[:KEY_DIGITS]
    with refused(folder):
        if path := next(checks.glob(f"*-{key}.json"), None):
            return Model(stock, CHECKED.validate_python(read_json(path)))
        model = Model(stock)
    with suppress(InputError):  # `papa plan` may have no right to write
        write_json(
            CHECKED.dump_python(model.checked, mode="json"), checks / f"{name}-{key}.json", record
        )
    return model


@contextmanager
def keeping_models() -> Iterator[None]:
    """Let `model_of` cache models inside the `with` block, for a process that runs many jobs."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def saved(model: object, folder: Path) -> None:
    """Save a loaded model, and the tokenizer from its origin, to a folder.

    Raises:
        InputError: `model` is not a transformers model, or its tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer, PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise InputError(
            "A model must be a hub id, a folder or a transformers model; a "
            f"{'papa.Model' if isinstance(model, Model) else type(model).__name__} was given."
        )
    origin = str(model.name_or_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(origin, trust_remote_code=False)
    except Exception as error:  # folders and the hub raise many types of errors
        raise InputError(
            f"The tokenizer of this {type(model).__name__} could not be loaded from {origin!r}; save the model and its "
            "tokenizer to one folder, and give that folder."
        ) from error
    with without_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _loaded(name: str, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Load a model from a folder with transformers, with all weights from files and dropout off."""
    try:
        with _importing_quietly(), without_progress_bars():
            config = _config_of(name)
            # Request eager attention, because the config may request a kernel, which is code from the hub. Pass it as
            # an argument, because AutoModel prefers config.json to this config.
            model, report = class_of(config, name).from_pretrained(
                name,
                config=config,
                trust_remote_code=False,
                attn_implementation="eager",
                # by default, transformers 5 loads weights in the dtype that config.json names
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `_check_weights` names them
            )
            check_stock(model)
    except InputError:
        raise
    except Exception as error:  # damaged files raise many types of errors
        raise InputError(
            f"The model {name} could not be loaded ({first_line(error)}); give the id of a model that the hub has, or "
            f"a local folder with config.json and model.safetensors. {NO_CODE}"
        ) from error
    _check_weights(name, model, report)
    _check_finite(name, model)
    safe = [file for file in WEIGHT_FILES if file.startswith("model.safetensors")]
    if not any(Path(name, file).is_file() for file in safe):
        log.warning(
            "%s has no safetensors; its pickled weights were loaded in weights-only mode, so no code in them ran",
            name,
        )
    # two biases of DeBERTa stay float32; rotary frequencies, which are no parameters, must
    for weights in model.parameters():
        weights.data = weights.data.to(dtype)
    # a head with missing weights would be random; a task that needs one says so
    used = model
    if lacks_head(model, report):
        log.info("%s has no weights for the head of %s", name, type(model).__name__)
        used = model.base_model
    stock: PreTrainedModel = used.to(device).eval()
    return stock


@contextmanager
def _importing_quietly() -> Iterator[None]:
    """Let transformers import a model's code without messages, and without collecting garbage.

    The import creates no garbage, but many objects, which take a second to scan.
    """
    from transformers.utils import logging as loading

    verbosity = loading.get_verbosity()
    collecting = gc.isenabled()
    gc.disable()
    loading.set_verbosity_error()
    try:
        yield
    finally:
        loading.set_verbosity(verbosity)
        if collecting:
            gc.enable()


def _config_of(name: str) -> PreTrainedConfig:
    """Load the config of a model; raise `InputError` if papa cannot use such a model."""
    import transformers

    # without trust_remote_code=False, transformers asks on the terminal whether to run the code of a model
    config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(
        name, trust_remote_code=False
    )
    positions = str(getattr(config, "position_embedding_type", ""))
    if positions.startswith("relative_key"):
        raise InputError(
            f"The model {name} has relative positions ({positions}), which transformers {transformers.__version__} "
            "leaves out; use a model with absolute positions."
        )
    quantised = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    if quantised not in (None, *DEQUANTISED):
        raise InputError(QUANTISED.format(name))
    return config


DEQUANTISED = ("mxfp4", "fp8")
"""Kinds of quantised weights that transformers can load as plain ones."""
QUANTISED = "The weights of {} are quantised, which papa does not support; give the model before it was quantised."
ADAPTER = re.compile("lora|loha|lokr|ia3|adapter|adaption|prefix|prompt", re.IGNORECASE)
"""Pattern in the names of tensors that adapt a model; without them, it is another model."""
OTHER_HEAD = re.compile(
    r"(?:\w+\.)?(?:pooler|cls|score|seq_relationship|decoder|config|qa_outputs|embeddings_project"
    r"|lm_\w+|\w*vocab_\w+|\w*(?:predictions?|classifiers?|head))\b"
)
"""Names of prediction heads and poolers in published checkpoints, and of leftovers from pretraining."""
OLD_BUFFER = re.compile(
    r"(?:position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias|attention\.bias|word_embeddings\._weight"
    r"|decoder\.version)$"
)
"""Names of tensors in old checkpoints that models compute themselves."""


def lacks_head(model: PreTrainedModel, report: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint has no weights for the prediction head of its class.

    With some of them, it is damaged. Weights that the head shares with embeddings are not the head's own.
    """
    inside = f"{model.base_model_prefix}."
    head = {key for key, _ in model.named_parameters() if not key.startswith(inside)}
    return model.base_model is not model and bool(head) and head <= {*report["missing_keys"]}


def _check_weights(name: str, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that is not exactly this model; name tensors outside the model that are not used."""
    if getattr(model, "hf_quantizer", None) is not None:
        raise InputError(QUANTISED.format(name))
    if report["mismatched_keys"]:
        key, shape, needed = min(report["mismatched_keys"])
        raise InputError(
            f"The weights of {name} do not fit its config.json: {key} has the shape {[*shape]} instead of {[*needed]}; "
            "correct config.json, or give a checkpoint without pruned heads."
        )
    unused = sorted(report["unexpected_keys"])
    # no hidden state and no logit of a token depends on a pooler, so it may be random
    missing = sorted(key for key in report["missing_keys"] if "pooler." not in key)
    if lacks_head(model, report):  # then only the rest of the model is used
        missing = [key for key in missing if key.startswith(f"{model.base_model_prefix}.")]
    if missing:
        instead = f", and {unused[0]} is not one of its tensors" if unused else ""
        raise InputError(
            f"The weights of {name} lack {count(len(missing), 'tensor')} of the model ({missing[0]} is the first"
            f"{instead}), so they would be random; give a checkpoint of the whole model."
        )
    parts = {part for part, _ in model.base_model.named_children() if part != "pooler"}
    new = [key for key in unused if not OLD_BUFFER.search(key)]
    of_parts = [
        key for key in new if key.removeprefix(f"{model.base_model_prefix}.").split(".")[0] in parts
    ]
    inside = [key for key in unused if ADAPTER.search(key) or key in of_parts]
    if inside:
        raise InputError(
            f"{type(model).__name__} has no place for {count(len(inside), 'tensor')} in the weights of {name} "
            f"({inside[0]} is the first), so it would be another model; merge adapters into the weights first "
            "(merge_and_unload, save_pretrained), or correct config.json."
        )
    unknown = [key for key in new if not OTHER_HEAD.match(key)]
    if unknown:
        tensors = count(len(unknown), "tensor")
        log.warning("%s of %s, such as %s, are not used", tensors, name, unknown[0])


def _check_finite(name: str, model: PreTrainedModel) -> None:
    """Refuse a checkpoint with NaN or infinity, which a batch would show only by the tokens it has."""
    for key, weights in model.named_parameters():
        # the sum of finite numbers may be infinite, so only then is each number read
        if weights.is_meta or weights.sum().isfinite():
            continue
        for fault, found in (("NaN", weights.isnan()), ("infinity", weights.isinf())):
            if found.any():
                raise InputError(
                    f"{key} of {name} contains {fault}, so the checkpoint is damaged; download or save it again."
                )


LANGUAGE_MODELS = (
    "ForCausalLM",
    "LMHeadModel",
    "GenerationDecoder",
    "ForMaskedLM",
    "ForConditionalGeneration",
)
"""Suffixes of the class names of models with a language-modelling head."""


def class_of(config: PreTrainedConfig, name: str) -> Any:
    """Return the class that loads a checkpoint: a language model with its head, or the encoder of an encoder-decoder.

    Raises:
        InputError: transformers has no class for the encoder of an encoder-decoder.
    """
    import transformers
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForTextEncoding,
    )
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
    )

    # T5ForTokenClassification is only the encoder
    if config.is_encoder_decoder or config.model_type.endswith("t5"):
        if config.model_type not in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
            encoder = f"transformers.AutoModel.from_pretrained({name!r}).get_encoder()"
            raise InputError(
                f"The model {name} is an encoder-decoder ({config.model_type}), and papa accepts only one of the two; "
                f"in Python, pass the encoder, {encoder}, to papa.Model, or load another model."
            )
        config.is_encoder_decoder = False  # T5Gemma needs this to load only the encoder
        return AutoModelForTextEncoding
    # the class that saved a checkpoint has its head; transformers' list may give this config another class
    architecture = (config.architectures or [""])[0]
    model_class = getattr(transformers, architecture, None)
    # config.json may name anything in transformers, so the class must be one for this config
    fits_config = getattr(model_class, "config_class", None) is type(config)
    if fits_config and architecture.endswith((*LANGUAGE_MODELS, "EncoderModel")):
        return model_class
    # embeddings that are tied to the head of a decoder are the head, also of a checkpoint without one
    tied = getattr(config, "tie_word_embeddings", False) and predicts_next(config.to_dict())
    of_decoder = tied and config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if of_decoder or architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return AutoModelForCausalLM
    return AutoModelForMaskedLM if architecture.endswith("ForMaskedLM") else AutoModel


def _usable(device: str) -> str:
    """Resolve "auto", and raise `InputError` if this machine lacks the device."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if gpus else "cpu"
    try:
        # errors of a GPU may appear only when a value is read, so read one
        torch.zeros(1, device=device).item()
    except Exception as error:  # each kind of device raises another type of error
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise InputError(
            f"device is {device!r}, which torch {torch.__version__} cannot use on this machine, where it finds "
            f"{count(gpus, 'CUDA GPU')}{'' if visible is None else f' (CUDA_VISIBLE_DEVICES is {visible!r})'}; use "
            "auto, cpu, cuda, or cuda:N for one of several GPUs."
        ) from error
    return device
