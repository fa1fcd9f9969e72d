"""santa.h as an attention of Hugging Face transformers 5: decode steps are sampled, or prefill is sparse.

    pip install torch transformers
    import hf_attention                                         # registers "santa"
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="santa")
    hf_attention.configure(method="sys", num_samples=128, seed=7)
    model.generate(**inputs)

    python3 hf_attention.py --model PATH --prompt-file FILE     # your checkpoint: answers, KL, time

configure() takes what santa.decode() takes for how to sample; until then it is sys with 128 draws a head,
rows of fewer than 16 * num_samples keys exact. A step (one query token a sequence) draws by seed, layer,
position (number of keys where the model does not pass it on) and place in the batch: the same call gives
the same tokens. Calls of more query tokens, such as prefill or the check of drafted tokens, are exact.

configure(method="sample-attention") is the other way round: decode steps are exact, and prefill reads the
blocks of keys that a few of its rows name. Runs of 32 query tokens or more that are causal are done so,
also those of a prompt in pieces; what is shorter or not causal (a prefix mask) stays exact. A head reads
its own blocks, unless sample_attention={"per_head": 0} says that the heads of a group share them.

What a model asks for is done or refused: grouped heads, sliding windows, sinks (gpt-oss), soft cap
(Gemma 2), padding left and right, packed sequences, prefix masks. A model that knows no attention but its
own (Bloom) is refused. A mask, boolean or of 0 and the lowest
number, must let each query row see one run of keys, the same for all heads; another, or one with other
numbers, is a ValueError. So are dropout, position biases, paged caches and gradients. A row that sees no
key (padding) gives zeros. Keys are not copied; sequences of a batch that differ in their padding are one
call.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.models.auto.modeling_auto import MODEL_MAPPING

import santa

_ALLOWED = ("method", "num_samples", "top_p", "tile_size", "stash", "num_combs", "dense_below", "scores",
            "bernoulli_draws", "seed", "vattention", "sample_attention", "isa", "num_threads")
_OF_ONE_CALL = {"vattention": ("audit", "heavy_index"),          # arrays of one call, in or out
                "sample_attention": ("audit", "mask", "mask_out", "row_mass")}
_SPARSE = "sample-attention"
_SPARSE_ROWS = 32                                                # fewer the library does densely
_settings: Dict[str, Any] = {"method": "sys", "num_samples": 128, "dense_below": santa.AUTO}
_calls = 0                                                       # of santa_attention
_known: Dict[Any, bool] = {}                                     # see _asks_interface


def _method_of(options: Dict[str, Any]) -> str:
    """Its name in santa.methods(); "" if it is a number that none has."""
    method = options.get("method", "dense")
    if isinstance(method, str):
        return method.replace("_", "-")
    return next((name for i, name in enumerate(santa.methods()) if i == method), "")


def methods() -> List[str]:
    """The names that configure() takes for method."""
    return [name for name in santa.methods() if name != "saap"]


def _check(options: Dict[str, Any]) -> None:
    """Has the library look at the options of a tiny call, which it does not run."""
    one = torch.zeros(1, 1, 1, 8)
    santa.workspace_size(one, one, one, causal=True, **options)


def configure(**options: Any) -> Dict[str, Any]:
    """Options of santa.decode() for the sampled calls of all models. Returns those before.

    What is not named becomes its default: method="dense" is one.
    num_threads, which exact calls take, too, is torch.get_num_threads() by default. What is wrong is
    refused here, as santa.decode() would refuse it, and the options before stay.
    """
    global _settings
    wrong = [name for name in options if name not in _ALLOWED]
    wrong += [f"{name}[{key!r}]" for name, keys in _OF_ONE_CALL.items() for key in keys
              if isinstance(options.get(name), Mapping) and key in options[name]]
    if wrong or str(options.get("scores")).lower() in ("proxy", "6") or _method_of(options) == "saap":
        raise TypeError(
            f"{', '.join(wrong) or 'what needs a copy or an index of K'}: not for configure(), which takes "
            f"{', '.join(_ALLOWED)}")
    _check(options)
    before, _settings = _settings, {name: dict(x) if isinstance(x, Mapping) else x
                                    for name, x in options.items()}
    return before


class Counts(NamedTuple):
    """Of the calls on a CPU since reset_counts() that configure() is for, decode steps or, with
    sample-attention, prefill: over layers, sequences and KV heads."""
    keys: int = 0
    v_rows_read: int = 0                    # once for a group of heads
    rows: int = 0                           # query rows x heads
    dense_rows: int = 0                     # those of them that had too few keys, or kept too many


_counts = Counts()


def reset_counts() -> Counts:
    """What was counted until now."""
    global _counts
    before, _counts = _counts, Counts()
    return before


# ------------------------------------------------------------------------------- masks

class _Run(NamedTuple):
    """Query rows begin .. end - 1 see keys up to their own (causal) or to the last."""
    begin: int
    end: int
    causal: bool
    window: int                             # 0 = none


class _Part(NamedTuple):
    """A run of one sequence: its first key, and where the last row's keys end."""
    run: _Run
    first: int
    last: int


class _Call(NamedTuple):
    """Sequences begin .. end - 1, with each one's first and last key."""
    begin: int
    end: int
    run: _Run
    firsts: List[int]
    lasts: List[int]


def _visible(mask: torch.Tensor, batch: int, q_len: int, kv_len: int) -> torch.Tensor:
    """[batch, q_len, kv_len] of bool."""
    if mask.dim() != 4 or mask.shape[-1] != kv_len:
        raise ValueError(f"attention mask of shape {tuple(mask.shape)}, not [batch, 1, {q_len}, {kv_len}]")
    if mask.dtype != torch.bool:
        if not mask.dtype.is_floating_point:
            raise ValueError(f"attention mask of {mask.dtype}: neither boolean nor additive")
        seen, hidden = mask == 0, mask <= torch.finfo(mask.dtype).min / 2
        if not bool((seen | hidden).all()):
            raise ValueError(
                "attention mask with numbers beside 0 and the lowest one: santa.h adds no such bias")
        mask = seen
    if mask.shape[1] > 1:
        if not bool((mask == mask[:, :1]).all()):
            raise ValueError("attention mask that differs between heads")
        mask = mask[:, :1]
    return mask.expand(batch, 1, q_len, kv_len)[:, 0]


def _runs(begin: Sequence[int], end: Sequence[int]) -> List[_Part]:
    """Rows that see keys begin[i] .. end[i] - 1, in few runs."""
    runs: List[_Part] = []
    i, n = 0, len(begin)
    while i < n:
        if begin[i] == end[i]:
            i += 1
            continue
        j, window = i + 1, 0
        causal = j < n and begin[j] < end[j] and end[j] == end[i] + 1 and begin[j] - begin[i] in (0, 1)
        if causal:
            while j < n and begin[j] < end[j] and end[j] == end[j - 1] + 1:
                if begin[j] == begin[j - 1] + 1:  # the window has the length of the row before
                    window = end[j] - begin[j]
                elif begin[j] != begin[j - 1] or window:
                    break
                j += 1
        else:
            while j < n and (begin[j], end[j]) == (begin[i], end[i]):
                j += 1
        first, row = begin[i], i
        if not runs and end[i] - first == 1 and (causal or j == i + 1 > 1):
            row, causal = 0, True           # the rows above see nothing, as in a causal run: left padding
        runs.append(_Part(_Run(row, j, causal, window), first, end[j - 1]))
        i = j
    return runs


def _joined(some: List[_Part], more: List[_Part]) -> Optional[List[_Part]]:
    """Runs that are right for both sequences, or None. A window does not show in a run that is no longer;
    of the two the longer one stands for both."""
    if len(some) != len(more):
        return None
    joined = []
    for a, b in zip(some, more):
        window = max(a.run.window, b.run.window)
        if a.run._replace(window=window) != b.run._replace(window=window):
            return None
        if any(x.run.window != window and (x.run.window or x.last - x.first > window) for x in (a, b)):
            return None
        longer = max(a, b, key=lambda x: x.last - x.first)
        joined.append(longer._replace(run=a.run._replace(window=window)))
    return joined


def _plan(mask: Optional[torch.Tensor], batch: int, q_len: int, kv_len: int, is_causal: bool,
          window: int) -> List[_Call]:
    """The calls that do what the mask says. mask None: rows see all keys up to their own, q_len of them."""
    if mask is None:
        if q_len > 1 and is_causal and q_len != kv_len:
            raise ValueError(
                f"{q_len} query tokens, {kv_len} keys and no attention mask: it is not known who sees what")
        if window and not is_causal:
            raise ValueError("a sliding window without causality and without a mask")
        causal = q_len > 1 and is_causal
        return [_Call(0, batch, _Run(0, q_len, causal, window), [0] * batch, [kv_len] * batch)]
    seen = _visible(mask, batch, q_len, kv_len)
    if mask.shape[0] == 1:
        seen = seen[:1]                                         # the same for all sequences
    count = seen.sum(-1)
    begin = torch.where(count > 0, seen.to(torch.uint8).argmax(-1), 0)
    end = torch.where(count > 0, kv_len - seen.flip(-1).to(torch.uint8).argmax(-1), 0)
    if not bool((end - begin == count).all()):
        raise ValueError(
            "attention mask with a row that sees keys with gaps between them: santa.h takes one run of keys"
        )
    rows = [_runs(b, e) for b, e in zip(begin.tolist(), end.tolist())] * (batch // seen.shape[0])
    calls: List[_Call] = []
    b = 0
    while b < batch:  # neighbours that differ in where their keys begin and end go together
        shape, stop = rows[b], b + 1
        while stop < batch:
            joined = _joined(shape, rows[stop])
            if joined is None:
                break
            shape, stop = joined, stop + 1
        calls += [_Call(b, stop, part.run, [x[i].first for x in rows[b:stop]],
                        [x[i].last for x in rows[b:stop]]) for i, part in enumerate(shape)]
        b = stop
    return calls


def _kept(x: Optional[torch.Tensor], find: Callable[..., Any], *sizes: Any) -> Any:
    """find(x, *sizes). All layers get the same tensor: what was found is kept with it, as long as nobody
    writes to it."""
    if x is None or x.is_inference():
        return find(x, *sizes)
    key = (x._version, find, sizes)
    kept = getattr(x, "_santa_found", None)
    if kept is None or kept[0] != key:
        kept = (key, find(x, *sizes))
        x._santa_found = kept                                   # type: ignore[attr-defined]
    return kept[1]


# ------------------------------------------------------------------------------- attention

@torch.compiler.disable
def santa_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                    attention_mask: Optional[torch.Tensor], scaling: Optional[float] = None,
                    dropout: float = 0.0, is_causal: Optional[bool] = None, softcap: Optional[float] = None,
                    s_aux: Optional[torch.Tensor] = None, sliding_window: Optional[int] = None,
                    position_bias: Optional[torch.Tensor] = None, cache: Any = None,
                    position_ids: Optional[torch.Tensor] = None, **_: Any) -> Tuple[torch.Tensor, None]:
    """query [batch, heads, q_len, head_dim], key and value [batch, kv_heads, len, head_dim]; the result
    is [batch, q_len, heads, head_dim], and no weights."""
    global _counts, _calls
    _calls += 1
    if dropout and module.training or position_bias is not None or cache is not None:
        raise ValueError("santa has no dropout, position bias or paged cache")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise ValueError("santa has no gradients: use torch.no_grad()")
    batch, heads, q_len, _head_dim = query.shape
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    calls = _kept(attention_mask, _plan, batch, q_len, key.shape[2], bool(is_causal), int(sliding_window or 0))
    method = _method_of(_settings)
    shared = {"num_threads": _threads(),                         # of exact calls, too
              **{name: _settings[name] for name in ("num_threads", "isa") if name in _settings}}
    layer = getattr(module, "layer_idx", None) or 0
    sinks = None if s_aux is None else s_aux.detach().float().contiguous()
    full = sum((x.end - x.begin) * (x.run.end - x.run.begin) for x in calls) == batch * q_len
    out = (torch.empty if full else torch.zeros)((batch, q_len, heads, value.shape[3]), dtype=query.dtype,
                                                 device=query.device)
    for b, stop, run, firsts, lasts in calls:
        base = min(firsts)
        rows, keys = slice(run.begin, run.end), slice(base, max(lasts))
        starts = None if max(firsts) == base else [first - base for first in firsts]
        options = dict(shared)
        sparse = method == _SPARSE and run.causal and run.end - run.begin >= _SPARSE_ROWS
        sampled = sparse or method != _SPARSE and q_len == 1
        if sparse:
            options["method"] = method
            options["sample_attention"] = {"per_head": 1, **(_settings.get("sample_attention") or {})}
        elif sampled:
            options.update(_settings)
            steps = _kept(position_ids, _positions, batch)      # a window's keys stay as many
            options["offsets"] = [santa.offset(layer, steps[b + i] + 1 if steps else last - first)
                                  for i, (first, last) in enumerate(zip(firsts, lasts))]
            options["request_ids"] = list(range(b, stop))
        r = santa.decode(query[b:stop, :, rows], key[b:stop, :, keys], value[b:stop, :, keys],
                         out=out.transpose(1, 2)[b:stop, :, rows], q_layout="HND", kv_layout="HND",
                         seq_lens=[last - base for last in lasts], kv_start=starts, causal=run.causal,
                         window=run.window, sm_scale=scaling or 0.0, soft_cap=softcap or 0.0,
                         sinks=sinks, stats=sampled and not query.is_cuda, **options)
        if r.stats is not None:
            _counts = Counts(*(x + getattr(r.stats, name) for name, x in _counts._asdict().items()))
    return out, None


def _positions(ids: Optional[torch.Tensor], batch: int) -> Optional[List[int]]:
    """Of a step's query tokens."""
    if ids is None or ids.dim() != 2 or ids.shape[0] not in (1, batch) or ids.shape[1] != 1:
        return None
    return ids[:, 0].expand(batch).tolist()


def _threads() -> int:
    return 1 if santa.build_info()["threads"] == "none" else torch.get_num_threads()


def _asks_interface(config: Any) -> bool:
    """Whether models of this configuration know other attentions than eager. Those that do not take the
    mask, and attend by themselves."""
    if config not in _known:
        models = MODEL_MAPPING[config] if config in MODEL_MAPPING else ()
        models = models if isinstance(models, (tuple, list)) else (models,)
        _known[config] = not models or any(
            getattr(model, f"_supports_{name}", False) for model in models
            for name in ("attention_backend", "sdpa", "flash_attn", "flex_attn"))
    return _known[config]


def santa_mask(*args: Any, **kwargs: Any) -> Optional[torch.Tensor]:
    """The boolean mask of torch's attention. None only where it means that a whole prompt is causal."""
    config = kwargs.get("config")
    if config is not None and not _asks_interface(type(config)):
        raise ValueError(f"{config.model_type} has no attention but its own: santa cannot take its place")
    q_len, kv_len = (kwargs[name] if name in kwargs else args[i]
                     for name, i in (("q_length", 1), ("kv_length", 2)))
    if q_len != kv_len:
        kwargs["allow_is_causal_skip"] = False
    kwargs["allow_is_bidirectional_skip"] = False
    return sdpa_mask(*args, **kwargs)


AttentionInterface.register("santa", santa_attention)
AttentionMaskInterface.register("santa", santa_mask)


# ------------------------------------------------------------------------------- comparison

class Comparison(NamedTuple):
    """Decode steps of a model with its own attention and with santa, fed with the same tokens."""
    exact: List[int]                        # greedy tokens of its own attention
    drawn: List[int]                        # what santa would have taken for each
    kl: List[float]                         # KL(own || santa) of each step's distribution, nats
    exact_ms: List[float]
    drawn_ms: List[float]
    prompt_ms: List[float]                  # of its own and of santa, once each
    counts: Counts


@torch.no_grad()
def compare(model: Any, input_ids: torch.Tensor, steps: int, baseline: str = "eager") -> Comparison:
    """Prompt [1, len], then steps tokens in turns: one step of the baseline, one of santa."""
    before, calls = model.config._attn_implementation, _calls

    def step(name: str, ids: torch.Tensor, cache: Any) -> Tuple[torch.Tensor, Any, float]:
        model.set_attn_implementation(name)
        began = time.perf_counter()
        r = model(input_ids=ids, past_key_values=cache, use_cache=True)
        logits = torch.log_softmax(r.logits[0, -1].double(), -1)            # its copy waits for a GPU
        logits = logits.cpu()
        return logits, r.past_key_values, 1e3 * (time.perf_counter() - began)

    try:
        caches: Dict[str, Any] = {}
        prompt_ms: List[float] = []
        reset_counts()
        for name in (baseline, "santa"):
            logits, caches[name], ms = step(name, input_ids, None)
            prompt_ms.append(ms)
            if name == baseline:
                token = int(logits.argmax())
        result = Comparison([], [], [], [], [], prompt_ms, Counts())
        for _ in range(steps):
            ids = torch.tensor([[token]], device=input_ids.device)
            own, caches[baseline], own_ms = step(baseline, ids, caches[baseline])
            drawn, caches["santa"], drawn_ms = step("santa", ids, caches["santa"])
            token = int(own.argmax())
            result.exact.append(token)
            result.drawn.append(int(drawn.argmax()))
            result.kl.append(float(torch.where(own > -torch.inf, own.exp() * (own - drawn), 0.0).sum()))
            result.exact_ms.append(own_ms)
            result.drawn_ms.append(drawn_ms)
        if calls == _calls:
            raise ValueError("the model did not ask for santa's attention")
        return result._replace(counts=reset_counts())
    finally:
        model.set_attn_implementation(before)


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value
    parse.__name__ = "whole number"         # argparse names it where int() fails
    return parse


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:                  # without the usage, which hides it
        self.exit(2, f"{self.prog}: {message}\n")


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split())
    return f"{text[:300]} .." if len(text) > 300 else text or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        description="A checkpoint with its own attention and with santa.h: answers, KL, time.")
    parser.add_argument("--model", required=True, metavar="PATH",
                        help="folder of a checkpoint; nothing is downloaded")
    parser.add_argument("--prompt", default="", help="text")
    parser.add_argument("--prompt-file", metavar="FILE", help="text, for long ones")
    parser.add_argument("--prompt-tokens", type=_whole(1), metavar="N",
                        help="only the first N tokens of it")
    parser.add_argument("--steps", type=_whole(1), default=64, help="tokens to decode (64)")
    parser.add_argument("--method", default="sys", choices=methods(), help="(sys)")
    parser.add_argument("--num-samples", type=int, default=128, help="draws a head (128)")
    parser.add_argument("--dense-below", type=int,
                        help="exact for fewer keys (16 * num_samples where keys are drawn; 0: never)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--baseline", default="eager", choices=("eager", "sdpa"),
                        help="the attention to compare with (eager)")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"),
                        help="(the checkpoint's)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, .. (cpu)")
    return parser


def main() -> int:
    parser = _parser()
    args = parser.parse_args()
    text = args.prompt
    try:
        if args.prompt_file:
            with open(args.prompt_file, encoding="utf-8") as f:
                text = f.read() + text
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--prompt-file: {error}")
    below = {"dense_below": args.dense_below}
    if args.dense_below is None:
        below = santa.used_options(method=args.method, dense_below=santa.AUTO)
    try:
        configure(**{"method": args.method, "num_samples": args.num_samples, "seed": args.seed, **below})
    except (TypeError, ValueError) as error:
        parser.error(_line(error))
    try:
        if torch.empty(0, device=args.device).device.type not in ("cpu", "cuda"):
            parser.error(f"--device {args.device}: santa.h knows cpu and cuda")
    except (RuntimeError, AssertionError) as error:             # the latter of a torch without CUDA
        parser.error(f"--device {args.device}: {_line(error)}")
    if not os.path.isfile(os.path.join(args.model, "config.json")):
        parser.error(f"--model {args.model}: not a folder with a config.json")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    part = "tokenizer"
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
        part = "model"
        model = AutoModelForCausalLM.from_pretrained(args.model, local_files_only=True,
                                                     dtype=args.dtype).to(args.device).eval()
    except Exception as error:              # of many packages, by what is wrong with the files
        parser.exit(1, f"{parser.prog}: --model {args.model}: no {part} in it: {_line(error)}\n")
    ids = tokenizer(text or "Once upon a time", return_tensors="pt").input_ids.to(args.device)
    ids = ids[:, :args.prompt_tokens]
    if ids.shape[1] == 0:
        parser.error("the prompt has no tokens")
    try:
        _report(model, tokenizer, ids, args)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:  # santa or torch refuses the model
        most, wanted = getattr(model.config, "max_position_embeddings", None), ids.shape[1] + args.steps
        if isinstance(error, IndexError) and most and most < wanted:
            error = ValueError(f"the model has {most} positions, prompt and steps want {wanted}")
        parser.exit(1, f"{parser.prog}: {_line(error)}\n")
    return 0


def _report(model: Any, tokenizer: Any, ids: torch.Tensor, args: argparse.Namespace) -> None:
    c = compare(model, ids, args.steps, args.baseline)
    greedy = {}
    for name in (args.baseline, "santa"):
        model.set_attn_implementation(name)
        made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.steps,
                              do_sample=False)
        greedy[name] = tokenizer.decode(made[0, ids.shape[1]:], skip_special_tokens=True)
        print(f"{name}:\n    {greedy[name]!r}")
    same = sum(a == b for a, b in zip(c.exact, c.drawn))
    print(f"prompt of {ids.shape[1]} tokens, {args.steps} steps fed with {args.baseline}'s tokens:")
    print(f"same token first    {same} of {args.steps}")
    print(f"KL, nats            mean {statistics.fmean(c.kl):.2e}, largest {max(c.kl):.2e}")
    if c.counts.keys:
        read, dense = c.counts.v_rows_read / c.counts.keys, c.counts.dense_rows / c.counts.rows
        print(f"V rows read         {100.0 * read:.1f} %")
        what = "rows run dense" if args.method == _SPARSE else "rows of few keys"
        print(f"{what:19} {100.0 * dense:.0f} %, exact")
    for name, ms in zip((args.baseline, "santa"), c.prompt_ms):
        print(f"ms prompt, {name:8} {ms:.1f}")
    for name, ms in ((args.baseline, c.exact_ms), ("santa", c.drawn_ms)):
        print(f"ms a step, {name:8} median {statistics.median(ms):.1f}, {min(ms):.1f} to {max(ms):.1f}")


if __name__ == "__main__":
    sys.exit(main())
