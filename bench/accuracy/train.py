#!/usr/bin/env python3
"""Makes longctx.bin, the model that the accuracy tables are measured on. Needs torch, numpy, a C compiler and a GPU.

    python3 train.py train --out run --minutes 9      start, or go on where the folder's checkpoint ends
    python3 train.py eval run/longctx.bin             every task at every length, greedy, from one prefilled cache a body
    python3 train.py logits run/longctx.bin           the logits behind a short prompt, to compare with another program
    python3 train.py prompts                          shapes of batches and the speed of making them; without torch

Prompts come from tasks.h, compiled here into a shared library. Batch number i is a pure function of the seed, i and
the stage; stages end by what the model has learned, so a run on another machine follows a slightly different path.
"""
import argparse, concurrent.futures, ctypes, json, math, os, struct, subprocess, sys, tempfile, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, CONTEXT, THETA, EPS = 256, 704, 4, 8, 2, 64, 8192, 5e5, 1e-5
TASKS = ("QA1", "QA2", "NIAH", "FWE", "TEXT")
WEIGHT = (0, 1, 1, 1, 1, 0.5, 0.1, 0.5)         # of each kind's mean loss: none, the tasks, text of the body, one value

# ------------------------------------------------------------------------------------------ prompts, from tasks.h
SOURCE = r"""
#include "tasks.h"
int vocab(void) { return TASKS_VOCAB; }
void defaults(tasks_config *c, int context, int evaluation) { *c = tasks_default(context, evaluation); }
int query_count(const tasks_config *c) { return tasks_query_count(c); }
int sequence_length(const tasks_config *c) { return tasks_training_length(c); }
int make(const tasks_config *c, uint64_t seed, int32_t *body, tasks_query *queries, tasks_error *e) {
    return tasks_make(c, seed, body, queries, e);
}
int limit(const tasks_query *q) { return tasks_limit(q); }
double grade(const tasks_query *q, const int32_t *output, int32_t length) { return tasks_grade(q, output, length); }
/* mean, low, high */
void confidence(const double *score, int64_t bodies, int64_t queries, double out[3]) {
    const tasks_interval r = tasks_confidence(score, bodies, queries);
    out[0] = r.mean; out[1] = r.low; out[2] = r.high;
}
/* Sequences seed, seed + 1, ...; place[i] of [rows * length] predicts the token after it, of kind kind[i]. Returns the
   number of targets, -1 and a text on failure. target: scratch of one sequence's length. */
int64_t batch(const tasks_config *c, uint64_t seed, int rows, int32_t *tokens, int64_t *place, uint8_t *kind,
              uint8_t *target, tasks_error *e) {
    const int64_t n = tasks_training_length(c);
    int64_t count = 0;
    for (int row = 0; row < rows; row++, tokens += n) {
        if (tasks_make_training(c, seed + (uint64_t)row, tokens, target, e)) return -1;
        for (int64_t i = 1; i < n; i++)
            if (target[i]) { place[count] = row * n + i - 1; kind[count++] = target[i]; }
    }
    return count;
}
"""


class Config(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in ("length", "facts", "chains", "keys", "families", "passages", "evaluation")]


class Query(ctypes.Structure):
    _fields_ = [("task", ctypes.c_int32), ("prompt_length", ctypes.c_int32), ("answer_length", ctypes.c_int32),
                ("prompt", ctypes.c_int32 * 9), ("answer", ctypes.c_int32 * 56)]


class Tasks:
    def __init__(self):
        with tempfile.TemporaryDirectory() as d:
            open(f"{d}/tasks.c", "w").write(SOURCE)
            subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-I", HERE, "-o", f"{d}/tasks.so",
                            f"{d}/tasks.c", "-lm"], check=True)
            self.lib = ctypes.CDLL(f"{d}/tasks.so")
        self.lib.batch.restype = ctypes.c_int64
        self.lib.grade.restype = ctypes.c_double
        self.vocab = self.lib.vocab()

    def defaults(self, context, evaluation=0):
        c = Config()
        self.lib.defaults(ctypes.byref(c), context, evaluation)
        return c

    def call(self, f, *args):
        """f(..., error), its result; an error's text is raised."""
        error = ctypes.create_string_buffer(200)
        result = f(*args, error)
        if result < 0:
            raise ValueError(error.value.decode())
        return result

    def batch(self, c, seed, rows):
        """tokens [rows, length], and for each target: where it is predicted from, its token, its kind (1 + task)."""
        n = self.lib.sequence_length(ctypes.byref(c))
        tokens, target = np.empty((rows, n), np.int32), np.empty(n, np.uint8)
        place, kind = np.empty(rows * n, np.int64), np.empty(rows * n, np.uint8)
        count = self.call(self.lib.batch, ctypes.byref(c), ctypes.c_uint64(seed), rows,
                          *(a.ctypes.data_as(ctypes.c_void_p) for a in (tokens, place, kind, target)))
        place, kind = place[:count].copy(), kind[:count].astype(np.int64)
        return tokens, place, tokens.reshape(-1)[place + 1].astype(np.int64), kind

    def make(self, c, seed):
        body = np.empty(c.length, np.int32)
        queries = (Query * self.lib.query_count(ctypes.byref(c)))()
        self.call(self.lib.make, ctypes.byref(c), ctypes.c_uint64(seed), body.ctypes.data_as(ctypes.c_void_p), queries)
        return body, queries

    def grade(self, query, output):
        return self.lib.grade(ctypes.byref(query), (ctypes.c_int32 * len(output))(*output), len(output))

    def confidence(self, scores, queries):
        out = (ctypes.c_double * 3)()
        self.lib.confidence((ctypes.c_double * len(scores))(*scores), ctypes.c_int64(len(scores)),
                            ctypes.c_int64(queries), out)
        return tuple(out)


if __name__ == "__main__" and len(sys.argv) > 1 and sys.argv[1] == "prompts":     # a look, without torch
    t = Tasks()
    for context in (1024, 8192):
        start = time.time()
        tokens, place, label, kind = t.batch(t.defaults(context), 1, 16)
        print(context, tokens.shape, np.bincount(kind), f"{tokens.size / (time.time() - start) / 1e6:.1f} M tokens/s")
    sys.exit()

import torch
import torch.nn as nn
import torch.nn.functional as F


# ---------------------------------------------------------------------------------------------------------- model
class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def rope_tables(start, n, device):
    angle = torch.outer(torch.arange(start, start + n, device=device, dtype=torch.float64),
                        THETA ** (-torch.arange(0, HEAD, 2, device=device, dtype=torch.float64) / HEAD))
    return angle.cos().float()[:, None], angle.sin().float()[:, None]


def rotate(x, cos, sin):                        # [..., n, heads, HEAD], neighbouring pairs
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).type_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.att_norm, self.ffn_norm = RMSNorm(DIM), RMSNorm(DIM)
        self.wq, self.wk, self.wv = linear(DIM, HEADS * HEAD), linear(DIM, KV_HEADS * HEAD), linear(DIM, KV_HEADS * HEAD)
        self.wo = linear(HEADS * HEAD, DIM)
        self.w1, self.w2, self.w3 = linear(DIM, HIDDEN), linear(HIDDEN, DIM), linear(DIM, HIDDEN)

    def qkv(self, x, cos, sin):
        """q, k, v as [batch, heads, n, HEAD]."""
        h = self.att_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, HEAD)) for w in (self.wq, self.wk, self.wv))
        return tuple(t.transpose(1, 2) for t in (rotate(q, cos, sin), rotate(k, cos, sin), v))

    def rest(self, x, attended):
        x = x + self.wo(attended.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(x, cos, sin)
        return self.rest(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embedding = nn.Embedding(vocab, DIM)                    # also the classifier
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm(DIM)
        for w in self.parameters():
            if w.dim() == 2:
                nn.init.normal_(w, 0.0, 0.02)

    def forward(self, ids, block=Block.forward):
        """The hidden states before the classifier; block: Block.forward or a compiled one."""
        tables = rope_tables(0, ids.shape[1], ids.device)
        x = self.embedding(ids)
        for b in self.blocks:
            x = block(b, x, *tables)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden.type_as(self.embedding.weight), self.embedding.weight)

    def extend(self, ids, cache):
        """Appends ids [batch, n] behind cache, a list of (k, v) a layer that may be []; hidden states, the new cache.
        The cache may have batch 1: it is shared."""
        past = cache[0][0].shape[2] if cache else 0
        n = ids.shape[1]
        tables = rope_tables(past, n, ids.device)
        mask = torch.ones(n, past + n, dtype=torch.bool, device=ids.device).tril(past) if past and n > 1 else None
        x, grown = self.embedding(ids), []
        for i, b in enumerate(self.blocks):
            q, k, v = b.qkv(x, *tables)
            if cache:
                k, v = (torch.cat((c.expand(len(ids), -1, -1, -1), t), 2) for c, t in zip(cache[i], (k, v)))
            grown.append((k, v))
            x = b.rest(x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not past, enable_gqa=True))
        return self.norm(x), grown

    def ordered(self):
        """All tensors in the file's order."""
        yield self.embedding.weight
        for name in ("att_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w2", "w3"):
            yield from (getattr(b, name).weight for b in self.blocks)
        yield self.norm.weight

    def save(self, path):
        with open(path, "wb") as f:                                  # type 1: f16; flag 1: shared classifier
            f.write(struct.pack("<8sII8iIffI", b"SANTA-LM", 1, 64, DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD,
                                self.embedding.num_embeddings, CONTEXT, 1, THETA, EPS, 1))
            for t in self.ordered():
                f.write(t.detach().cpu().numpy().astype("<f2").tobytes())

    def load(self, path):
        raw = np.fromfile(path, "<f2", offset=64).astype(np.float32)
        with torch.no_grad():
            for t in self.ordered():
                t.copy_(torch.from_numpy(raw[:t.numel()]).view_as(t))
                raw = raw[t.numel():]
        assert raw.size == 0
        return self


# ------------------------------------------------------------------------------------------------------- training
def stages(tasks):
    """Short and easy first: the circuit that recalls forms within a minute there, and at full length never. Then the
    mixture, to the end. Each: configurations with their shares."""
    tiny, small = Config(96, 8, 1, 1, 0, 0, 0), Config(448, 16, 2, 3, 1, 4, 0)
    one = lambda c: [(1.0, c)]
    mixture = [(share, tasks.defaults(context))
               for share, context in ((0.05, 512), (0.15, 1024), (0.15, 2048), (0.25, 4096), (0.4, 8192))]
    return [one(tiny), one(small), one(tasks.defaults(1024)), one(tasks.defaults(2048)), one(tasks.defaults(4096)), mixture]


class Loader:
    """Batches prepared ahead by threads: the C code runs without Python's lock."""
    def __init__(self, tasks, args, stage, step, device):
        self.tasks, self.args, self.stage, self.step, self.device = tasks, args, stages(tasks)[stage], step, device
        self.pool = concurrent.futures.ThreadPoolExecutor(args.workers)
        self.waiting = []

    def build(self, step):
        """Seeds are below 2^63 and no two steps share one."""
        dice = np.random.default_rng((self.args.seed, step)).random()
        for share, config in self.stage:
            dice -= share
            if dice < 0:
                break
        rows = max(1, self.args.tokens // self.tasks.lib.sequence_length(ctypes.byref(config)))
        return config, [torch.from_numpy(a) for a in
                        self.tasks.batch(config, (self.args.seed << 44) + (step << 12), rows)]

    def next(self):
        while len(self.waiting) < 2 * self.args.workers:
            self.waiting.append(self.pool.submit(self.build, self.step))
            self.step += 1
        config, arrays = self.waiting.pop(0).result()
        if self.device == "cuda":
            arrays = [a.pin_memory().to(self.device, non_blocking=True) for a in arrays]
        return config, arrays

    def close(self):
        self.pool.shutdown(cancel_futures=True)


def losses(model, batch, block=Block.forward):
    """Mean loss and share of right tokens per kind: two vectors of len(WEIGHT)."""
    tokens, place, label, kind = batch
    with torch.autocast(tokens.device.type, torch.bfloat16):
        hidden = model(tokens.int(), block)
        logits = model.logits(hidden.flatten(0, 1)[place]).float()
    add = lambda x: torch.zeros(len(WEIGHT), device=x.device).index_add(0, kind, x)
    mean = lambda x: add(x) / add(torch.ones_like(x)).clamp(min=1)
    loss = mean(F.cross_entropy(logits, label, reduction="none"))
    with torch.no_grad():
        right = mean((logits.argmax(-1) == label).float())
    return loss, right


@torch.no_grad()
def curve_point(model, tasks, context, device, rows):
    """Accuracy on evaluation prompts, token by token with the right answer so far given: for the curve only."""
    batch = [torch.from_numpy(a).to(device) for a in tasks.batch(tasks.defaults(context, 1), 1 << 40, rows)]
    loss, right = losses(model, batch)
    return right[1:5].tolist() + [loss[5].item()]


def save_checkpoint(model, optimizer, state, folder):
    """Weights f32, moments bf16, each its own file; replaced only when whole."""
    parts = {"weights": lambda w: w.detach().float(),
             "moment1": lambda w: optimizer.state[w]["exp_avg"].bfloat16(),
             "moment2": lambda w: optimizer.state[w]["exp_avg_sq"].bfloat16()}
    for name, get in parts.items():
        torch.save(torch.cat([get(w).flatten() for w in model.ordered()]).cpu(), f"{folder}/{name}.new")
    json.dump(state, open(f"{folder}/state.new", "w"))
    for name in (*parts, "state"):
        os.replace(f"{folder}/{name}.new", f"{folder}/{name}.pt" if name != "state" else f"{folder}/state.json")


def load_checkpoint(model, optimizer, folder, device):
    parts = [torch.load(f"{folder}/{n}.pt", map_location=device) for n in ("weights", "moment1", "moment2")]
    state, at = json.load(open(f"{folder}/state.json")), 0
    with torch.no_grad():
        for w in model.ordered():
            w_, m, v = (p[at:at + w.numel()].float().view_as(w).clone() for p in parts)
            w.copy_(w_)
            optimizer.state[w] = dict(step=torch.tensor(float(state["step"]), device=device), exp_avg=m, exp_avg_sq=v)
            at += w.numel()
    return state


def train(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start, tasks = time.time(), Tasks()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = Model(tasks.vocab).to(device)
    decay = [w for w in model.parameters() if w.dim() == 2]
    other = [w for w in model.parameters() if w.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=args.decay), dict(params=other, weight_decay=0.0)],
                                  lr=args.rate, betas=(0.9, 0.95), fused=device == "cuda")
    os.makedirs(args.out, exist_ok=True)
    state = dict(step=0, stage=0, stage_step=0, seconds=0.0)
    if os.path.exists(f"{args.out}/state.json"):
        state = load_checkpoint(model, optimizer, args.out, device)
    before = state["seconds"]
    log, curve = open(f"{args.out}/train.log", "a"), open(f"{args.out}/curve.csv", "a")
    if curve.tell() == 0:
        print("seconds,step,stage,context,rate,train_loss,QA1,QA2,NIAH,FWE,TEXT_nats", file=curve)

    def say(text):
        print(text, flush=True)
        print(text, file=log, flush=True)
    say(f"{sum(w.numel() for w in model.parameters())} parameters, from step {state['step']}, stage {state['stage']}; "
        f"{vars(args)}; {torch.cuda.get_device_name() if device == 'cuda' else device}, torch {torch.__version__}")

    torch._dynamo.config.recompile_limit = 64
    block = torch.compile(Block.forward, dynamic=False) if args.compile else Block.forward
    weight = torch.tensor(WEIGHT, device=device, dtype=torch.float32)
    last = len(stages(tasks)) - 1
    loader = Loader(tasks, args, state["stage"], state["step"], device)
    total = right = None                                             # sums since the last look

    def finish():
        state["seconds"] = before + time.time() - start
        save_checkpoint(model, optimizer, state, args.out)
        model.save(f"{args.out}/longctx.bin")

    while not (state["stage"] == last and state["stage_step"] >= args.steps):
        if time.time() - start > args.minutes * 60:
            break
        # Warm-up, half the rate in the first two stages (recall does not form at more), cosine to 2 % over the mixture.
        phase = state["stage_step"] / args.steps if state["stage"] == last else 0.0
        rate = args.rate * (0.5 if state["stage"] < 2 else 1.0) * min(1.0, (state["step"] + 1) / 300)
        rate *= 0.02 + 0.49 * (1 + math.cos(math.pi * phase))
        for group in optimizer.param_groups:
            group["lr"] = rate
        config, batch = loader.next()
        loss, ok = losses(model, batch, block)
        present = torch.tensor([k > 0 and f > 0 for k, f in enumerate(
            (0, config.facts, config.chains, config.keys, config.families, config.passages, config.passages,
             config.keys))],
            device=device).float()
        mean_loss = (loss * weight * present).sum() / (weight * present).sum()
        optimizer.zero_grad(set_to_none=True)
        mean_loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total = mean_loss.detach() if total is None else total + mean_loss.detach()
        right = ok if right is None else right + ok
        state["step"] += 1
        state["stage_step"] += 1

        if state["stage_step"] % args.look == 0:
            train_loss, r = total.item() / args.look, (right / args.look).tolist()
            total = right = None
            seconds = before + time.time() - start
            contexts = (1024, 2048, 4096, 8192) if state["stage_step"] % (4 * args.look) == 0 else ()
            say(f"{seconds:6.0f} s  step {state['step']:6d}  stage {state['stage']}  rate {rate:.1e}  loss {train_loss:.4f}  "
                + "  ".join(f"{t} {100 * a:.1f}" for t, a in zip((*TASKS, "body text", "one value"), r[1:])))
            for context in contexts:
                point = curve_point(model, tasks, context, device, args.rows)
                print(f"{seconds:.0f},{state['step']},{state['stage']},{context},{rate:.2e},{train_loss:.4f},"
                      + ",".join(f"{x:.4f}" for x in point), file=curve, flush=True)
                if state["stage"] >= 2:
                    say(f"    at {context:5d}: " + "  ".join(f"{t} {x:.4f}" for t, x in zip(TASKS, point)))
            learned = r[1] > 0.95 and r[2] > 0.9 and r[3] > 0.8 and r[7] > 0.9 and (config.families == 0 or r[4] > 0.8)
            if state["stage"] < last and (learned or state["stage_step"] >= args.patience[state["stage"]]):
                say(f"stage {state['stage']} ends after {state['stage_step']} steps" + ("" if learned else ", not learned"))
                if state["stage"] < 2 and min(r[1], r[7]) < 0.9:
                    sys.exit("recall has not formed: another seed or rate may do")
                loader.close()
                state["stage"] += 1
                state["stage_step"] = 0
                loader = Loader(tasks, args, state["stage"], state["step"], device)
    loader.close()
    finish()
    say(f"stopped at step {state['step']}, stage {state['stage']}, {state['stage_step']} steps in it; "
        f"{state['seconds']:.0f} s in all")


# ----------------------------------------------------------------------------------------------------- evaluation
@torch.no_grad()
def answer(model, cache, queries, limit):
    """Greedy answers of queries of equal prompt length, side by side behind one cache; TEXT: of the given text."""
    device = cache[0][0].device
    given = queries[0].task == TASKS.index("TEXT")
    ids = torch.tensor([list(q.prompt[:q.prompt_length]) + (list(q.answer[:q.answer_length]) if given else [])
                        for q in queries], device=device)
    hidden, grown = model.extend(ids, cache)
    if given:
        log_p = F.log_softmax(model.logits(hidden[:, queries[0].prompt_length - 1:-1]).float(), -1)
        nats = -log_p.gather(2, ids[:, queries[0].prompt_length:, None].long()).mean((1, 2))
        return log_p.argmax(-1).tolist(), nats.tolist()
    out = [model.logits(hidden[:, -1]).argmax(-1)]
    while len(out) < limit:
        hidden, grown = model.extend(out[-1][:, None], grown)
        out.append(model.logits(hidden[:, -1]).argmax(-1))
    stop = 2                                                         # TASKS_STOP
    rows = torch.stack(out, 1).tolist()
    return [r[:r.index(stop)] if stop in r else r for r in rows], None


def evaluate(args):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tasks = Tasks()
    model = Model(tasks.vocab).load(args.model).to(device)
    print(f"{args.model}, f32, {args.bodies} bodies a length, seeds from {args.seed}; "
          f"{torch.cuda.get_device_name() if device == 'cuda' else device}, torch {torch.__version__}")
    print("context " + "".join(f"{t + ' % (95 %)':>24s}" for t in TASKS) + f"{'TEXT nats':>12s}")
    for context in args.contexts:
        scores, counts, nats = {t: [] for t in TASKS}, {}, []
        for i in range(args.bodies):
            body, queries = tasks.make(tasks.defaults(context, 1), args.seed + i)
            cache = []
            for piece in torch.from_numpy(body)[None].to(device).split(2048, 1):
                _, cache = model.extend(piece, cache)
            for t, name in enumerate(TASKS):
                mine = [q for q in queries if q.task == t]
                outputs, loss = answer(model, cache, mine, tasks.lib.limit(ctypes.byref(mine[0])))
                scores[name].append(sum(tasks.grade(q, o) for q, o in zip(mine, outputs)) / len(mine))
                counts[name] = len(mine)
                nats += loss or []
        cells = []
        for name in TASKS:
            mean, low, high = (100 * x for x in tasks.confidence(scores[name], counts[name]))
            cells.append(f"{mean:7.2f} ({low:6.2f} - {high:6.2f})")
        print(f"{context:7d} " + "".join(cells) + f"{sum(nats) / len(nats):12.4f}", flush=True)


@torch.no_grad()
def logits(args):
    """ids and logits of the last position, one a line."""
    tasks = Tasks()
    model = Model(tasks.vocab).load(args.model)
    body, queries = tasks.make(tasks.defaults(512, 1), args.seed)
    ids = body.tolist() + list(queries[0].prompt[:queries[0].prompt_length])
    print("ids " + " ".join(map(str, ids)))
    for x in model.logits(model(torch.tensor([ids]))[0, -1]).tolist():
        print(f"{x:.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("train")
    p.add_argument("--out", default="run")
    p.add_argument("--minutes", type=float, default=9.0)
    p.add_argument("--steps", type=int, default=12000, help="of the mixture, the last stage")
    p.add_argument("--patience", type=int, nargs=5, default=[4000, 4000, 1500, 1500, 1500],
                   help="most steps of each earlier stage")
    p.add_argument("--tokens", type=int, default=131072, help="a step")
    p.add_argument("--rate", type=float, default=1e-3)
    p.add_argument("--decay", type=float, default=0.05)
    p.add_argument("--look", type=int, default=100, help="steps between looks at the accuracy")
    p.add_argument("--rows", type=int, default=16, help="evaluation prompts a point of the curve")
    p.add_argument("--workers", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--compile", type=int, default=1)
    p = commands.add_parser("eval")
    p.add_argument("model")
    p.add_argument("--contexts", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    p.add_argument("--bodies", type=int, default=64)
    p.add_argument("--seed", type=int, default=1000)
    p = commands.add_parser("logits")
    p.add_argument("model")
    p.add_argument("--seed", type=int, default=1000)
    args = parser.parse_args()
    dict(train=train, eval=evaluate, logits=logits)[args.command](args)
