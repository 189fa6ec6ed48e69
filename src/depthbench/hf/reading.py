"""Reading checkpoints of causal decoders, in a folder or on the hub, without running code that came with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from depthbench.errors import UserError
from depthbench.hf.hub import check_name


def import_transformers() -> Any:
    """The library. Raises `UserError` that names the extra if it is missing."""
    try:
        import transformers
    except ImportError:
        raise UserError("Hugging Face checkpoints need transformers; pip install 'depthbench[hf]'") from None
    library: Any = transformers
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


def read_config(name: str) -> Any:
    """The configuration, refused if it is no causal decoder or wants code of the repository's own."""
    transformers = import_transformers()
    check_name(name)
    if Path(name).is_dir() and not (Path(name) / "config.json").exists():
        raise UserError(f"{name} is no checkpoint: it has no config.json")
    try:
        raw, _ = transformers.PretrainedConfig.get_config_dict(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {name}: {first_line(error)}; give a folder or the name of a repository that can be reached"
        ) from error
    if raw.get("auto_map"):
        raise UserError(
            f"{name} wants to run code of its own repository ({', '.join(raw['auto_map'])}), which is refused: it could do anything"
        )
    architectures = raw.get("architectures") or []
    causal = any("CausalLM" in item or item.endswith("LMHeadModel") for item in architectures)
    if raw.get("is_encoder_decoder") or (architectures and not causal):
        raise UserError(
            f"{name} is {' or '.join(architectures) or 'an encoder'}, and this needs a causal decoder with a language-model head"
        )
    try:
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read the configuration of {name}: {first_line(error)}") from error


def read_model(name: str, allow_pickle: bool = False) -> Any:
    """The model with its weights, fp32. Raises `UserError` if they are pickled, damaged, or not all there in the right shape: the
    library would put random numbers in their place. Tensors that the model has no use for are named on stderr.
    """
    transformers = import_transformers()
    folder = Path(name)
    if folder.is_dir() and not allow_pickle and not list(folder.glob("*.safetensors")):
        pickled = [path.name for path in sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))]
        if pickled:
            raise UserError(
                f"the weights in {name} are pickled ({pickled[0]}), and reading a pickle can run any code; convert them to"
                " safetensors, or add --allow-pickle if you trust their source"
            )
        raise UserError(f"{name} has no weights (*.safetensors)")
    try:
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            name,
            dtype=torch.float32,
            use_safetensors=None if allow_pickle else True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to be refused below, by name
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"cannot read the checkpoint {name}: {first_line(error)}") from error
    _check_loaded(name, loaded)
    return model


def _check_loaded(name: str, loaded: dict[str, Any]) -> None:
    """`loaded` is what the library says of the tensors; tied ones are not missing."""
    mismatched = sorted(loaded["mismatched_keys"])
    if mismatched:
        tensor, found, wanted = mismatched[0]
        raise UserError(
            f"the weights in {name} do not fit its config.json: {tensor} is {list(found)} and should be {list(wanted)}"
            f"{_and_others(mismatched)}; restore the one or the other"
        )
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise UserError(
            f"the checkpoint {name} lacks the tensor {missing[0]}{_and_others(missing)}; restore its weights, which would be random"
        )
    unexpected = sorted(loaded["unexpected_keys"])
    if unexpected:
        others = _and_others(unexpected)
        print(f"warning: {name} has a tensor that its model does not use: {unexpected[0]}{others}", file=sys.stderr)


def _and_others(names: list[Any]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def read_tokenizer(name: str, advice: str) -> Any:
    """The tokenizer beside a checkpoint; `advice` is what to do without one."""
    try:
        return import_transformers().AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"{name} has no tokenizer that can be read; {advice}") from error


def first_line(error: Exception) -> str:
    """The first line of what a library says, to go on behind it."""
    return str(error).strip().split("\n")[0].rstrip(" .;")
