"""A trained run as a folder that transformers loads: `preln` as a Llama, every other design with a modelling file of its own.

That file imports this package, which has to be installed where the folder is used, and a user's design comes along as a file. The
tokenizer comes along too; the one of bytes becomes a byte-level tokenizer without merges, which gives the same ids.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from depthbench.data.bpe import alphabet
from depthbench.data.tokenizer import TOKENIZER, Tokenizer
from depthbench.errors import UserError
from depthbench.files import make_folder, write_bytes, write_json, write_text
from depthbench.hf.llama import llama_config, to_llama
from depthbench.study.load import load_run
from depthbench.study.store import RunFolder

MODELLING = "modeling_depthbench.py"
DESIGN = "depthbench_design.py"
END = "<|endoftext|>"


def export(folder: RunFolder, tokenizer: Tokenizer, out: Path) -> Path:
    """Write the run of `folder` to `out`. Raises `UserError` if there is a checkpoint already, or the run has not finished."""
    if (out / "config.json").exists():
        raise UserError(f"{out} holds a checkpoint already; give another folder")
    cell, model = folder.cell(), load_run(folder.path)
    tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    make_folder(out)
    write_tokenizer(tokenizer, cell.shape.context, out)
    if cell.design.name == "preln":
        config, tensors = llama_config(cell.shape), to_llama(tensors)
    else:
        own = cell.design.class_name
        config = {
            "architectures": ["DepthBenchForCausalLM"],
            "model_type": "depthbench",
            "auto_map": {
                "AutoConfig": f"{MODELLING.removesuffix('.py')}.DepthBenchConfig",
                "AutoModelForCausalLM": f"{MODELLING.removesuffix('.py')}.DepthBenchForCausalLM",
            },
            "design": own or cell.design.name,
            "design_options": dict(cell.design.options),
            "shape": asdict(cell.shape),
            "vocab_size": cell.shape.vocab_size,
            "max_position_embeddings": cell.shape.context,
            "hidden_size": cell.shape.d_model,
            "num_hidden_layers": cell.shape.n_layers,
            "tie_word_embeddings": False,
            "dtype": "float32",
        }
        tensors = {f"model.{name}": value for name, value in tensors.items()}
        write_text(out / MODELLING, modelling(own))
        if own:
            write_bytes(out / DESIGN, folder.design_path.read_bytes())
    config |= {"eos_token_id": tokenizer.eos, "bos_token_id": None, "pad_token_id": None, "use_cache": cell.design.name == "preln"}
    _write_tensors(tensors, out / "model.safetensors")
    write_json(out / "config.json", config)  # last: its presence says that all is there
    return out


def _write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    seen: set[int] = set()
    for name, tensor in tensors.items():  # safetensors refuses what shares memory
        if tensor.untyped_storage().data_ptr() in seen:
            tensors[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    beside = path.with_name(f".{path.name}.part")
    try:
        save_file(tensors, beside, metadata={"format": "pt"})
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_tokenizer(tokenizer: Tokenizer, context: int, out: Path) -> None:
    """`tokenizer.json` and its configuration."""
    if tokenizer.file is not None:
        write_bytes(out / TOKENIZER, tokenizer.file)
        import tokenizers

        end = tokenizers.Tokenizer.from_str(tokenizer.file.decode()).id_to_token(tokenizer.eos)
    else:
        write_bytes(out / TOKENIZER, byte_tokenizer(tokenizer.eos))
        end = END
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "model_max_length": context,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    write_json(out / "tokenizer_config.json", content)


def byte_tokenizer(eos: int) -> bytes:
    """A tokenizer.json that gives one id for each byte, the byte itself, and has the EOS `eos`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = dict(sorted(alphabet().items(), key=lambda item: item[1])) | {END: eos}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(END, special=True)])
    return core.to_str(pretty=True).encode()


def modelling(own: str) -> str:
    """The modelling file; `own` is the class of a user's design in the file beside it, "" for one of the package."""
    line = f"from .{DESIGN.removesuffix('.py')} import {own} as Design" if own else ""
    template = (Path(__file__).parent / "modeling_template.txt").read_text(encoding="utf-8")
    return template.replace("# {import of the design}", line).replace("{design}", "Design" if own else "find_design(config.design)")
