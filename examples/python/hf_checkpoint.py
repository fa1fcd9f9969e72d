"""A checkpoint of llama2.c, or of this repository's toy decoder, as one of Hugging Face transformers.

    pip install numpy
    python3 hf_checkpoint.py ../model/model.bin FOLDER --tokenizer ../model/tokenizer.bin
    python3 hf_checkpoint.py ../../bench/accuracy/longctx.bin FOLDER --words FILE     # a word a line
    python3 hf_attention.py --model FOLDER --prompt-file FILE

The folder gets config.json, model.safetensors (f32), and of a tokenizer tokenizer.json and
tokenizer_config.json. llama2.c turns neighbouring features by RoPE, transformers those half a head apart:
the rows of wq and wk are put in that order, which changes no score. What examples/llama.h reads is read:
llama2.c's versions 0 and 1 and the format at the end of bench/accuracy/README.md.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import struct
import sys
from typing import Any, Dict, List, NamedTuple, NoReturn, Tuple, Union

import numpy as np

_SPECIAL = ("<unk>", "<s>", "</s>")


class Sizes(NamedTuple):
    dim: int
    hidden_dim: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    seq_len: int
    head_dim: int
    theta: float
    epsilon: float
    shared: bool                            # the classifier is the embedding


def read_model(path: str) -> Tuple[Sizes, Dict[str, np.ndarray]]:
    """Sizes, and tensors [layers, ...] of f32 by the names of examples/llama.h."""
    with open(path, "rb") as f:
        data = f.read()
    if len(data) < (64 if data[:8] == b"SANTA-LM" else 37 if data[:4] == b"24ka" else 28):
        raise ValueError(f"{path}: not a model, shorter than its header")
    old, tables, norms_first, dtype = 0, False, False, "<f4"
    if data[:8] == b"SANTA-LM":
        version, old, *n = struct.unpack_from("<10I", data, 8)
        kind, theta, epsilon, flags = struct.unpack_from("<IffI", data, 48)
        if version != 1 or kind > 2:
            raise ValueError(f"{path}: version {version}, type {kind} are not known")
        dtype = ("<f4", "<f2", "<u2")[kind]
        s = Sizes(n[0], n[1], n[2], n[3], n[4], n[6], n[7], n[5], theta, epsilon, bool(flags & 1))
    else:
        ak42 = data[:4] == b"24ka"
        if ak42 and struct.unpack_from("<i", data, 4)[0] != 1:
            raise ValueError(f"{path}: a llama2.c checkpoint that is not of version 0 or 1")
        n = list(struct.unpack_from("<7i", data, 8 if ak42 else 0))
        shared = bool(data[36]) if ak42 else n[5] > 0
        old, tables, norms_first = (256, False, True) if ak42 else (28, True, False)
        head_dim = n[0] // n[3] if n[3] > 0 else 0
        s = Sizes(n[0], n[1], n[2], n[3], n[4], abs(n[5]), n[6], head_dim, 1e4, 1e-5, shared)
    if not all(0 < size < 2**31 for size in s[:8]) or s.heads % s.kv_heads or s.head_dim % 2:
        raise ValueError(f"{path}: not a model: its header has sizes that none has")
    if not (0 < s.theta < math.inf and 0 <= s.epsilon < math.inf):
        raise ValueError(f"{path}: not a model: its header has theta {s.theta}, epsilon {s.epsilon}")
    q, kv, layers = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.layers
    shapes: Dict[str, Tuple[int, ...]] = {
        "embedding": (s.vocab_size, s.dim), "att_norm": (layers, s.dim), "wq": (layers, q, s.dim),
        "wk": (layers, kv, s.dim), "wv": (layers, kv, s.dim), "wo": (layers, s.dim, q),
        "ffn_norm": (layers, s.dim), "w1": (layers, s.hidden_dim, s.dim),
        "w2": (layers, s.dim, s.hidden_dim), "w3": (layers, s.hidden_dim, s.dim), "norm": (s.dim,),
    }
    order = list(shapes)
    if norms_first:
        first = ["att_norm", "ffn_norm", "norm"]
        order = first + [name for name in order if name not in first]
    if tables:
        shapes["rope"] = (s.seq_len, s.head_dim)
        order.append("rope")
    if not s.shared:
        shapes["classifier"] = (s.vocab_size, s.dim)
        order.append("classifier")
    if len(data) != old + np.dtype(dtype).itemsize * sum(math.prod(shapes[name]) for name in order):
        raise ValueError(f"{path}: not as long as its header says")
    numbers = np.frombuffer(data, dtype, offset=old)
    if dtype == "<u2":                      # bf16
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    tensors, at = {}, 0
    for name in order:
        count = int(np.prod(shapes[name]))
        tensors[name] = numbers[at:at + count].reshape(shapes[name]).astype("<f4")
        at += count
    return s, tensors


def _halves(w: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows 0, 2, 4 .. of each head, then 1, 3, 5 .."""
    return w.reshape(-1, head_dim // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def write_model(s: Sizes, t: Dict[str, np.ndarray], folder: str) -> None:
    named = {"model.embed_tokens.weight": t["embedding"], "model.norm.weight": t["norm"]}
    if not s.shared:
        named["lm_head.weight"] = t["classifier"]
    for i in range(s.layers):
        for name, x in (("input_layernorm", t["att_norm"][i]),
                        ("self_attn.q_proj", _halves(t["wq"][i], s.head_dim)),
                        ("self_attn.k_proj", _halves(t["wk"][i], s.head_dim)),
                        ("self_attn.v_proj", t["wv"][i]), ("self_attn.o_proj", t["wo"][i]),
                        ("post_attention_layernorm", t["ffn_norm"][i]), ("mlp.gate_proj", t["w1"][i]),
                        ("mlp.down_proj", t["w2"][i]), ("mlp.up_proj", t["w3"][i])):
            named[f"model.layers.{i}.{name}.weight"] = x
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, x in named.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in named.values():
            f.write(np.ascontiguousarray(x).tobytes())
    _write_json(folder, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": s.dim, "intermediate_size": s.hidden_dim, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim,
        "vocab_size": s.vocab_size, "max_position_embeddings": s.seq_len, "rms_norm_eps": s.epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.theta},
        "tie_word_embeddings": s.shared, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32"
    })


def _write_json(folder: str, name: str, value: Any) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)


def _write_tokenizer(folder: str, pieces: List[str], special: Tuple[str, ...],
                     parts: Dict[str, Any]) -> None:
    added = [{"id": i, "content": pieces[i], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i in range(len(special))]
    _write_json(folder, "tokenizer.json", {"version": "1.0", "truncation": None, "padding": None,
                                           "added_tokens": added, **parts})
    _write_json(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": pieces[1], "eos_token": pieces[2],
        "unk_token": pieces[0], "clean_up_tokenization_spaces": False
    })


def read_bpe(path: str, vocab_size: int) -> Tuple[List[str], List[float]]:
    """tokenizer.bin of llama2.c: its tokens and their scores."""
    with open(path, "rb") as f:
        data = f.read()
    if vocab_size < 3:
        raise ValueError(f"{path}: a tokenizer has 3 special tokens, the model {vocab_size} in all")
    pieces, scores, at = list(_SPECIAL), [0.0] * 3, 4
    for i in range(vocab_size):
        score, length = struct.unpack_from("<fi", data, at) if at + 8 <= len(data) else (0.0, -1)
        if not 0 <= length <= len(data) - at - 8:
            raise ValueError(f"{path}: not a tokenizer of {vocab_size} tokens, token {i} is not whole")
        if i >= 3:
            pieces.append(data[at + 8:at + 8 + length].decode("utf-8"))
            scores.append(score)
        at += 8 + length
    return pieces, scores


def write_bpe(pieces: List[str], scores: List[float], folder: str) -> None:
    """BOS, a space, characters or bytes, then merges by score."""
    vocab: Dict[str, int] = {}
    for i, piece in enumerate(pieces):
        vocab.setdefault(piece, i)
    merges = []
    for i in sorted(range(259, len(pieces)), key=lambda i: -scores[i]):
        x = pieces[i]
        merges += [[x[:j], x[j:]] for j in range(1, len(x)) if x[:j] in vocab and x[j:] in vocab]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    _write_tokenizer(folder, pieces, _SPECIAL, {
        "normalizer": {"type": "Prepend", "prepend": " "}, "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [bos, text],
                           "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                  "ignore_merges": False, "vocab": vocab, "merges": merges}
    })


def read_words(path: str, vocab_size: int) -> List[str]:
    """A token a line."""
    with open(path, encoding="utf-8") as f:
        pieces = f.read().split("\n")[:vocab_size]
    if vocab_size < 3:
        raise ValueError(f"{path}: a tokenizer wants 3 words, for unknown, begin and end")
    if len(set(pieces)) != vocab_size:
        raise ValueError(f"{path}: not {vocab_size} different words")
    return pieces


def write_words(pieces: List[str], folder: str) -> None:
    """Texts are words with spaces between them."""
    _write_tokenizer(folder, pieces, (), {
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {x: i for i, x in enumerate(pieces)},
                  "unk_token": pieces[0]}
    })


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:                  # without the usage, which hides it
        self.exit(2, f"{self.prog}: {message}\n")


def main() -> Union[int, str]:
    parser = _Parser(
        description="A checkpoint of llama2.c or of the toy decoder as one of transformers.")
    parser.add_argument("model", help="model.bin")
    parser.add_argument("folder", help="is made")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--tokenizer", metavar="FILE", help="tokenizer.bin of llama2.c")
    either.add_argument("--words", metavar="FILE", help="or its tokens, one a line")
    args = parser.parse_args()
    try:                                    # all is read before anything is written
        sizes, tensors = read_model(args.model)
        bpe = None if args.tokenizer is None else read_bpe(args.tokenizer, sizes.vocab_size)
        words = None if args.words is None else read_words(args.words, sizes.vocab_size)
        os.makedirs(args.folder, exist_ok=True)
        write_model(sizes, tensors, args.folder)
        if bpe:
            write_bpe(*bpe, args.folder)
        elif words:
            write_words(words, args.folder)
    except UnicodeDecodeError as error:
        return f"hf_checkpoint.py: {args.tokenizer or args.words}: {error}"
    except (OSError, ValueError) as error:
        return f"hf_checkpoint.py: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
