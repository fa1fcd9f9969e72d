#!/usr/bin/env python3
"""Learns buckets for SAAP, per layer and KV head: centroids of keys and a classifier of queries.
Needs torch and numpy.

    train.py --dumps train-*.dump --buckets 64 --out model.saap     learn; --resume goes on
    train.py --evaluate model.saap --dumps heldout-*.dump           far mass against keys visited
    train.py --self-test                                            checks of its own, seconds

Dumps hold queries and keys of some prompts before and behind RoPE; any model can write them. Both
formats, and what was measured, are in README.md beside this file. The method is that of SAAP
(Mazare et al., 2025), sections 3 and 4: keys are clustered before RoPE, queries go to buckets by a
classifier that predicts where their attention mass lies. "Far" are keys more than --window tokens
before the query, and not the first one; the rest is attended to densely.
"""
import argparse, csv, json, math, os, struct, sys, tempfile, time, zipfile
import numpy as np
import torch
from torch import nn

CONTEXT, QUESTION = 0, 1                            # kinds of query rows
CHUNK = 512                                         # query rows times heads whose scores are held at once


# ---------------------------------------------------------------------------------------- dumps
DUMP_HEADER = struct.Struct("<8s9If16x")
DUMP_MAGIC = b"SAAPDUMP"
assert DUMP_HEADER.size == 64


def dump_arrays(layers, heads, kv_heads, head_dim, dtype, flags, tokens, rows):
    """Name, type and shape of what lies behind the header, in order."""
    number = np.dtype("<f2" if dtype else "<f4")
    yield "position", np.dtype("<i4"), (rows,)
    yield "kind", np.dtype("<i4"), (rows,)
    for i in range(layers):
        yield f"q_plain{i}", number, (rows, heads, head_dim)
        yield f"q{i}", number, (rows, heads, head_dim)
        yield f"k_plain{i}", number, (tokens, kv_heads, head_dim)
        yield f"k{i}", number, (tokens, kv_heads, head_dim)
        if flags & 1:
            yield f"lse{i}", np.dtype("<f4"), (rows, heads)


class Dump:
    """One prompt. Arrays are mapped, so that layers are read when they are needed."""
    def __init__(self, path):
        with open(path, "rb") as f:
            header = f.read(DUMP_HEADER.size)
        if len(header) < DUMP_HEADER.size or header[:8] != DUMP_MAGIC:
            raise SystemExit(f"{path}: not a dump of queries and keys")
        version, *sizes, scale = DUMP_HEADER.unpack(header)[1:]
        if version != 1 or sizes[4] > 1 or sizes[5] > 1:
            raise SystemExit(f"{path}: only version 1, f32 or f16 and flag 1 are known")
        if min(sizes[:4] + sizes[6:7]) < 1 or sizes[1] % sizes[2] or not math.isfinite(scale):
            raise SystemExit(f"{path}: its header has sizes, or a scale, that no model has")
        self.path, self.sizes, self.array, at = path, sizes, {}, DUMP_HEADER.size
        self.layers, self.heads, self.kv_heads, self.head_dim, _, _, self.tokens, self.rows = sizes
        self.group, self.scale = self.heads // self.kv_heads, scale or self.head_dim ** -0.5
        for name, dtype, shape in dump_arrays(*sizes):
            size = math.prod(shape)
            if at + size * dtype.itemsize > os.path.getsize(path):
                raise SystemExit(f"{path}: ends in {name}")
            self.array[name] = np.memmap(path, dtype, "r", at, shape) if size else np.zeros(shape, dtype)
            at += size * dtype.itemsize
        if at != os.path.getsize(path):
            raise SystemExit(f"{path}: longer than its header says")
        self.position, self.kind = (torch.from_numpy(np.array(self.array[n])).long()
                                    for n in ("position", "kind"))
        most = self.position.max() if "lse0" in self.array else self.tokens - 1
        if not bool(((self.position >= 0) & (self.position <= most)).all()):
            raise SystemExit(f"{path}: a row's position is not one of its {self.tokens} tokens, and no lse "
                             "tells of what it saw behind them")

    def get(self, name, layer, head, rows=None):
        """f32; head: of queries for q, of keys for k."""
        x = self.array[f"{name}{layer}"]
        return torch.from_numpy(np.array(x[:, head] if rows is None else x[rows, head], np.float32))


def write_dump(path, sizes, arrays, scale=0.0):
    """sizes: layers, heads, kv_heads, head_dim, dtype, flags, tokens, rows; arrays by the names of
    dump_arrays."""
    with open(path, "wb") as f:
        f.write(DUMP_HEADER.pack(DUMP_MAGIC, 1, *sizes, scale))
        for name, dtype, shape in dump_arrays(*sizes):
            f.write(np.ascontiguousarray(arrays[name], dtype).reshape(shape).tobytes())


def open_dumps(paths):
    dumps = [Dump(p) for p in paths]
    for d in dumps[1:]:
        if (d.sizes[:4], d.scale) != (dumps[0].sizes[:4], dumps[0].scale):
            raise SystemExit(f"{d.path}: of another model than {dumps[0].path}")
    return dumps


# ----------------------------------------------------------------------------------- .saap file
FILE_HEADER = struct.Struct("<4s11IQ8x")
FILE_HASHED = 48                                    # bytes of the header in front of the hash
assert FILE_HEADER.size == 64
TYPES = {"f32": 0, "f16": 1, "bf16": 2}


def fnv1a(data, h=0xCBF29CE484222325):
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def to_type(x, dtype):
    """f32 to the bytes' type, as an array; bf16 as u16, rounded to nearest even."""
    x = np.ascontiguousarray(x, "<f4")
    if dtype == "f32":
        return x
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return x.astype("<f2")
    u = x.view("<u4")
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2")


def from_type(x, dtype):
    return (x.astype("<u4") << 16).view("<f4") if dtype == "bf16" else x.astype("<f4")


def rounded(x, dtype):
    return from_type(to_type(x, dtype), dtype)


def file_arrays(kv_heads, head_dim, buckets, hidden, dtype):
    """Name, type and shape of a layer's arrays, in order."""
    number = np.dtype({"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[dtype])
    yield "centroids", number, (kv_heads, buckets, head_dim)
    if hidden:
        yield "w1", number, (kv_heads, hidden, head_dim)
        yield "b1", np.dtype("<f4"), (kv_heads, hidden)
        yield "w2", number, (kv_heads, buckets, hidden)
        yield "b2", np.dtype("<f4"), (kv_heads, buckets)


def write_saap(path, layers, group, window, dtype):
    """layers: for each a dict of f32 arrays of file_arrays' shapes, without w1 .. b2 where there is
    no classifier."""
    kv_heads, buckets, head_dim = layers[0]["centroids"].shape
    hidden = layers[0]["w1"].shape[1] if "w1" in layers[0] else 0
    body = bytearray()
    for i, layer in enumerate(layers):
        for name, number, shape in file_arrays(kv_heads, head_dim, buckets, hidden, dtype):
            x = layer[name] if number == np.dtype("<f4") else to_type(layer[name], dtype)
            back = x if number == np.dtype("<f4") else from_type(x, dtype)
            if x.shape != shape or not np.isfinite(back).all():
                raise SystemExit(f"layer {i}: {name} has another shape or numbers that {dtype} cannot hold")
            body += np.ascontiguousarray(x, number).tobytes()
            body += bytes(-len(body) % 64)
    sizes = (1, len(layers), kv_heads, group, head_dim, buckets, hidden, TYPES[dtype], window, 0, 0)
    head = FILE_HEADER.pack(b"SAAP", *sizes, 0)[:FILE_HASHED]
    with open(path + ".new", "wb") as f:
        f.write(FILE_HEADER.pack(b"SAAP", *sizes, fnv1a(body, fnv1a(head))) + body)
    os.replace(path + ".new", path)


def read_saap(path):
    """Sizes as a dict, layers as write_saap takes them."""
    with open(path, "rb") as f:
        data = f.read()
    if len(data) < 64 or data[:4] != b"SAAP":
        raise SystemExit(f"{path}: not a .saap file")
    names = ("version", "layers", "kv_heads", "group", "head_dim", "buckets", "hidden", "dtype", "window")
    fields = FILE_HEADER.unpack(data[:64])
    s = dict(zip(names, fields[1:10]))
    if s["version"] != 1 or s["dtype"] > 2:
        raise SystemExit(f"{path}: only version 1 with f32, f16, bf16 is known")
    if fields[12] != fnv1a(data[64:], fnv1a(data[:FILE_HASHED])):
        raise SystemExit(f"{path}: damaged: its hash is another one")
    s["dtype"], at, layers = list(TYPES)[s["dtype"]], 64, []
    for _ in range(s["layers"]):
        layers.append({})
        for name, number, shape in file_arrays(s["kv_heads"], s["head_dim"], s["buckets"], s["hidden"],
                                               s["dtype"]):
            count = math.prod(shape)
            if not 0 < count * number.itemsize <= len(data) - at:
                raise SystemExit(f"{path}: layer {len(layers) - 1} has no {name} of its header's sizes")
            x = np.frombuffer(data, number, count, at).reshape(shape)
            layers[-1][name] = x if number == np.dtype("<f4") else from_type(x, s["dtype"])
            at += x.nbytes + -x.nbytes % 64
    return s, layers


# ------------------------------------------------------------------------------------- learning
def assign(keys, centroids):
    """Bucket of each key: the largest k.c, the lower number of equals."""
    return torch.cat([(x @ centroids.T).argmax(1) for x in keys.split(8192)])


def spherical_kmeans(keys, buckets, seed, iterations=10):
    """Unit centroids [buckets, head_dim]. An empty bucket starts anew at a random key."""
    random = torch.Generator().manual_seed(seed)
    if len(keys) < buckets:
        raise SystemExit(f"{len(keys)} keys are too few for {buckets} buckets")
    unit = lambda x: x / x.norm(dim=1, keepdim=True).clamp_min(1e-20)
    c = unit(keys[torch.randperm(len(keys), generator=random)[:buckets].to(keys.device)])
    for _ in range(iterations):
        a = assign(keys, c)
        total = torch.zeros_like(c).index_add_(0, a, keys)
        empty = torch.bincount(a, minlength=buckets) == 0
        anew = torch.randint(len(keys), (int(empty.sum()),), generator=random).to(keys.device)
        total[empty] = keys[anew]
        c = unit(total)
    return c


def load_head(path):
    """A head's checkpoint of learn(), as a dict."""
    try:
        with np.load(path) as parts:
            return {name: parts[name] for name in parts.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{path}: not a head of --resume: {error}")


def far_masses(dump, layer, kv_head, bucket, buckets, window, rows, device):
    """Of the query rows and the heads of a group: far mass by bucket [rows, group, buckets], of sum 1
    (or 0 where nothing is far); the far mass itself, as a share of all [rows, group]; far keys by
    bucket [rows, buckets]."""
    keys = dump.get("k", layer, kv_head).to(device)
    place = torch.arange(dump.tokens, device=device)
    group, first = dump.group, kv_head * dump.group
    q = torch.stack([dump.get("q", layer, first + g, rows) for g in range(group)], 1).to(device)
    lse = None
    if f"lse{layer}" in dump.array:
        lse = torch.stack([dump.get("lse", layer, first + g, rows) for g in range(group)], 1).to(device)
    position, mass, share, count = dump.position[rows].to(device), [], [], []
    step = max(1, CHUNK // group)
    for a in range(0, len(q), step):
        p = position[a:a + step]
        n = len(p)
        score = (keys @ q[a:a + step].flatten(0, 1).T * dump.scale).view(-1, n, group)
        ahead = place[:, None] > p
        far = (place[:, None] < p - window) & (place[:, None] > 0)
        if lse is None:
            whole = score.masked_fill(ahead[:, :, None], -math.inf).logsumexp(0)
        else:
            whole = lse[a:a + step]
        e = (score - whole).masked_fill_(~far[:, :, None], -math.inf).exp_()
        m = torch.zeros(buckets, n, group, device=device).index_add_(0, bucket, e)
        total = m.sum(0)
        mass.append((m / total.clamp_min(1e-30)).permute(1, 2, 0))
        share.append(total.clamp_max(1.0))
        count.append(torch.zeros(buckets, n, device=device).index_add_(0, bucket, far.float()).T)
    return torch.cat(mass), torch.cat(share), torch.cat(count)


def kl_loss(logits, mass, weight):
    """Mean KL(mass || softmax(logits)) of the rows, by their weights."""
    kl = (torch.xlogy(mass, mass) - mass * logits.log_softmax(1)).sum(1)
    return (kl * weight).sum() / weight.sum().clamp_min(1e-30)


def make_net(head_dim, hidden, buckets, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(head_dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
                         nn.Linear(hidden, buckets))


@torch.no_grad()
def settle(net, x):
    """Batch norm gets the mean and variance of all rows in place of its running ones."""
    h = net[0](x)
    net[1].running_mean.copy_(h.mean(0))
    net[1].running_var.copy_(h.var(0, unbiased=False))
    net.eval()


@torch.no_grad()
def fold(net, mean, deviation):
    """w1, b1, w2, b2 of linear, ReLU, linear with the inputs' normalisation and batch norm inside."""
    first, norm, _, last = net
    s = norm.weight / (norm.running_var + norm.eps).sqrt()
    w1 = s[:, None] * first.weight / deviation
    b1 = s * (first.bias - norm.running_mean) + norm.bias - w1 @ mean
    return w1, b1, last.weight.clone(), last.bias.clone()


def train_classifier(x, mass, weight, args, seed, report):
    """x [n, head_dim], mass [n, buckets], weight [n]; folded arrays. report(epoch, KL)."""
    mean, deviation = x.mean(0), x.std(0)
    deviation = deviation.clamp_min(1e-3 * float(deviation.max()) + 1e-12)
    x = (x - mean) / deviation
    net = make_net(x.shape[1], args.hidden, mass.shape[1], seed).to(x.device)
    batch = min(args.batch, len(x))
    steps = args.epochs * (len(x) // batch)
    optimizer = torch.optim.Adam(net.parameters(), args.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random = torch.Generator().manual_seed(seed)
    for epoch in range(args.epochs):
        order, total, rows = torch.randperm(len(x), generator=random).to(x.device), 0.0, 0.0
        for i in range(len(x) // batch):
            at = order[i * batch:(i + 1) * batch]
            loss = kl_loss(net(x[at]), mass[at], weight[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total, rows = total + loss.item() * float(weight[at].sum()), rows + float(weight[at].sum())
        report(epoch, total / max(rows, 1e-30))
    settle(net, x)
    return fold(net, mean, deviation)


def wanted_rows(dump, kinds):
    rows = torch.arange(dump.rows)
    return rows if kinds is None else rows[(dump.kind == kinds)]


def learn_head(dumps, layer, kv_head, args, device, report):
    """f32 arrays of one KV head, and the seconds of the three parts."""
    start, number = time.time(), layer * dumps[0].kv_heads + kv_head
    seed = args.seed * 1000003 + number
    keys = [d.get("k_plain", layer, kv_head)[1:].to(device) for d in dumps]
    c = spherical_kmeans(torch.cat(keys), args.buckets, seed).cpu().numpy()
    c = torch.from_numpy(rounded(c, args.type)).to(device)        # the file's centroids make the buckets
    head, seconds = {"centroids": c}, [time.time() - start]
    if args.hidden:
        x, mass, weight = [], [], []
        for d in dumps:
            rows = wanted_rows(d, {"all": None, "context": CONTEXT, "question": QUESTION}[args.rows])
            if not len(rows):
                continue
            bucket = assign(d.get("k_plain", layer, kv_head).to(device), c)
            m, w, _ = far_masses(d, layer, kv_head, bucket, args.buckets, args.window, rows, device)
            for g in range(d.group):
                x.append(d.get("q_plain", layer, kv_head * d.group + g, rows).to(device))
                mass.append(m[:, g])
                weight.append(w[:, g])
        if not x:
            raise SystemExit(f"--rows {args.rows}: no dump has such query rows")
        x, mass, weight = torch.cat(x), torch.cat(mass), torch.cat(weight)
        keep = weight > 0
        if int(keep.sum()) < 2:
            raise SystemExit(f"layer {layer}, KV head {kv_head}: no row has keys beyond --window "
                             f"{args.window}")
        seconds.append(time.time() - start - sum(seconds))
        head.update(zip(("w1", "b1", "w2", "b2"),
                        train_classifier(x[keep], mass[keep], weight[keep], args, seed, report)))
        seconds.append(time.time() - start - sum(seconds))
    return {k: v.cpu().numpy() for k, v in head.items()}, seconds


def learn(args):
    dumps, device = open_dumps(args.dumps), args.device
    d, start, done = dumps[0], time.time(), 0
    layers = range(d.layers) if args.layers is None else args.layers
    if not all(0 <= i < d.layers for i in layers):
        raise SystemExit(f"--layers: the model has 0 to {d.layers - 1}")
    # Checkpoints of another run must not get into the file unseen.
    names = ("buckets", "hidden", "epochs", "window", "seed", "rows", "rate", "batch", "type")
    settings = json.dumps([{k: getattr(args, k) for k in names},
                           [[os.path.basename(x.path), x.sizes] for x in dumps]])
    folder = args.out + ".heads"
    os.makedirs(folder, exist_ok=True)
    path = lambda layer, head: f"{folder}/{layer}-{head}.npz"
    curves = None
    if args.curves:
        curves = open(args.curves, "a" if args.resume else "w")
        if curves.tell() == 0:
            print("layer,kv_head,epoch,kl,seconds", file=curves)
    print(f"{len(dumps)} prompts, {sum(x.tokens for x in dumps)} keys and {sum(x.rows for x in dumps)} "
          f"query rows a layer; {args.buckets} buckets, hidden {args.hidden}, {args.epochs} epochs, window "
          f"{args.window}, rows: {args.rows}; torch {torch.__version__}, {device}, "
          f"{torch.get_num_threads()} threads")
    heads = [(i, h) for i in layers for h in range(d.kv_heads)]
    for n, (layer, head) in enumerate(heads):
        if args.resume and os.path.exists(path(layer, head)):
            if str(load_head(path(layer, head)).get("settings")) != settings:
                raise SystemExit(f"{path(layer, head)} is of a run with other options: remove {folder}")
            continue
        loss, begin = [], time.time()

        def report(epoch, kl):
            loss.append(kl)
            if curves:
                seconds = time.time() - begin
                print(f"{layer},{head},{epoch + 1},{kl:.5f},{seconds:.2f}", file=curves, flush=True)
        arrays, seconds = learn_head(dumps, layer, head, args, device, report)
        np.savez(path(layer, head) + ".new.npz", settings=settings, **arrays)
        os.replace(path(layer, head) + ".new.npz", path(layer, head))
        done += 1
        kl = f", KL {loss[0]:.3f} -> {loss[-1]:.3f}" if loss else ""
        parts = ", ".join(f"{p} {s:.1f} s" for p, s in zip(("k-means", "masses", "training"), seconds))
        left = (time.time() - start) / done * (len(heads) - n - 1)
        print(f"layer {layer}, KV head {head}: {parts}{kl}; {n + 1} of {len(heads)}, {left:.0f} s left",
              flush=True)
    missing = [(i, h) for i in range(d.layers) for h in range(d.kv_heads) if not os.path.exists(path(i, h))]
    if missing:
        print(f"no {args.out} yet: {len(missing)} heads are left; --resume goes on")
        return
    out = []
    for layer in range(d.layers):
        parts = [load_head(path(layer, h)) for h in range(d.kv_heads)]
        if any(str(p.get("settings")) != settings for p in parts):
            raise SystemExit(f"layer {layer} in {folder} is of a run with other options")
        out.append({k: np.stack([p[k] for p in parts]) for k in parts[0] if k != "settings"})
    write_saap(args.out, out, d.group, args.window, args.type)
    print(f"{args.out}: {os.path.getsize(args.out)} bytes, {time.time() - start:.0f} s")


# ----------------------------------------------------------------------------------- evaluation
SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
ROUTERS = ("random", "inner product", "classifier", "oracle", "oracle/size")


def classify(arrays, head, x):
    """log softmax of the file's classifier."""
    w1, b1, w2, b2 = (torch.from_numpy(np.array(arrays[n][head])).to(x.device)
                      for n in ("w1", "b1", "w2", "b2"))
    return ((x @ w1.T + b1).relu() @ w2.T + b2).log_softmax(-1)


def evaluate_head(dumps, arrays, layer, head, window, device):
    """For each router: shares of far keys visited and far mass covered with the top 1, 2, ... buckets,
    over all rows; and means of the head."""
    c = torch.from_numpy(np.array(arrays[layer]["centroids"][head])).to(device)
    buckets, random = len(c), torch.Generator().manual_seed(layer * 1000 + head)
    keys_of, mass_of = ({r: torch.zeros(buckets, dtype=torch.float64) for r in ROUTERS} for _ in range(2))
    far_keys = far_mass = kl = imbalance = empty = 0.0
    for d in dumps:
        rows = wanted_rows(d, QUESTION)
        rows = rows if len(rows) else wanted_rows(d, None)
        if not len(rows):
            raise SystemExit(f"{d.path}: has no query rows")
        bucket = assign(d.get("k_plain", layer, head).to(device), c)
        mass, share, count = far_masses(d, layer, head, bucket, buckets, window, rows, device)
        x = torch.stack([d.get("q_plain", layer, head * d.group + g, rows) for g in range(d.group)], 1)
        x = x.to(device)
        of_group = (mass * share[:, :, None]).sum(1)
        score = {"random": torch.rand(len(rows), buckets, generator=random).to(device),
                 "inner product": (x @ c.T * d.scale).softmax(-1).sum(1),
                 "oracle": of_group, "oracle/size": of_group / count.clamp_min(1)}
        if "w1" in arrays[layer]:
            log_p = classify(arrays[layer], head, x)
            score["classifier"] = log_p.exp().sum(1)
            each = (torch.xlogy(mass, mass) - mass * log_p).sum(-1)
            kl += float((each * share).sum())
        for name, s in score.items():
            order = s.sort(dim=1, descending=True, stable=True).indices
            keys_of[name] += count.gather(1, order).cumsum(1).sum(0).double().cpu()
            mass_of[name] += of_group.gather(1, order).cumsum(1).sum(0).double().cpu()
        far_keys += float(count.sum())
        far_mass += float(share.sum())
        n = torch.bincount(bucket[1:], minlength=buckets).double()
        imbalance += float(buckets * (n / n.sum()).square().sum()) / len(dumps)
        empty += float((n == 0).double().mean()) / len(dumps)
    if not far_keys or not far_mass:
        raise SystemExit(f"layer {layer}, KV head {head}: no row has keys beyond --window {window}")
    curves = {r: (keys_of[r].numpy() / far_keys, mass_of[r].numpy() / far_mass) for r in score}
    rows = sum(len(wanted_rows(d, QUESTION)) or d.rows for d in dumps) * dumps[0].group
    kl = kl / far_mass if "classifier" in curves else math.nan
    return curves, {"KL": kl, "far": far_mass / rows, "I": imbalance, "empty": empty}


def covered(curve, share):
    return float(np.interp(share, np.r_[0.0, curve[0]], np.r_[0.0, curve[1]]))


def evaluate(args):
    dumps, device = open_dumps(args.dumps), args.device
    s, arrays = read_saap(args.evaluate)
    d = dumps[0]
    shape = (d.layers, d.kv_heads, d.group, d.head_dim)
    if (s["layers"], s["kv_heads"], s["group"], s["head_dim"]) != shape:
        raise SystemExit(f"{args.evaluate}: of a model of another shape than {d.path}")
    window = s["window"] if args.window is None else args.window
    file = open(args.csv, "w", newline="") if args.csv else None     # before the minutes that follow
    print(f"{os.path.basename(args.evaluate)}: {s['buckets']} buckets, hidden {s['hidden']}, {s['dtype']}; "
          f"{len(dumps)} prompts, question rows, window {window}")
    result = {(i, h): evaluate_head(dumps, arrays, i, h, window, device)
              for i in range(d.layers) for h in range(d.kv_heads)}
    routers = [r for r in ROUTERS if r in result[0, 0][0]]
    if file:
        table = csv.writer(file)
        table.writerow(["layer", "kv_head", "router", "buckets_visited", "selectivity", "far_mass_covered"])
        for (i, h), (curves, _) in result.items():
            for r in routers:
                for l, (x, y) in enumerate(zip(*curves[r]), 1):
                    if l & (l - 1) == 0:
                        table.writerow([i, h, r, l, f"{x:.5f}", f"{y:.5f}"])
        file.close()
    print("\nfar mass covered, % of all far mass, at equal shares of far keys visited")
    print("layer  router         " + "".join(f"{f'1/{round(1 / x)}':>8}" for x in SHARES))
    for name, part in [(f"{i}", [i]) for i in range(d.layers)] + [("all", range(d.layers))]:
        for r in routers:
            cells = [np.mean([covered(result[i, h][0][r], x) for i in part for h in range(d.kv_heads)])
                     for x in SHARES]
            print(f"{name:5}  {r:14}" + "".join(f"{100 * c:8.1f}" for c in cells))
    print("\nmean of all heads with the top l of C buckets: far keys visited %, far mass covered %")
    top = [l for l in (1, 2, 4, 8, 16, 32, 64) if l < s["buckets"]]
    print("router         " + "".join(f"{f'l {l}':>14}" for l in top))
    for r in routers:
        pairs = [[np.mean([c[r][k][l - 1] for c, _ in result.values()]) for k in (0, 1)] for l in top]
        print(f"{r:14} " + "".join(f"{100 * a:7.2f}{100 * b:7.1f}" for a, b in pairs))
    print("\nlayer  KV head  far mass  KL of classifier  imbalance  empty buckets %")
    line = lambda name, m: print(f"{name:14}  {m['far']:8.3f}  {m['KL']:16.3f}  {m['I']:9.2f}  "
                                 f"{100 * m['empty']:15.1f}")
    for (i, h), (_, m) in result.items():
        line(f"{i:5}  {h:7}", m)
    line(" mean", {k: np.mean([m[k] for _, m in result.values()]) for k in ("far", "KL", "I", "empty")})


# ------------------------------------------------------------------------------------ self-test
def self_test():
    failed = []

    def check(name, ok, note=""):
        print(f"{'ok    ' if ok else 'FAILED'}  {name} {note}")
        failed.extend([] if ok else [name])
    random = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=random)

    # The gradient, through batch norm in training, in f64.
    net = make_net(6, 5, 7, 3).double()
    x, weight = normal(20, 6).double(), normal(20).double().square()
    mass = normal(20, 7).double().mul(2).softmax(1)
    mass[0] = 0.0
    mass[0, 3] = 1.0                                # masses of 0 are common
    loss = lambda: kl_loss(net(x), mass, weight)
    loss().backward()
    worst = 0.0
    for p in net.parameters():
        flat, grad = p.data.view(-1), p.grad.view(-1)
        for i in range(len(flat)):
            old, h = float(flat[i]), 1e-6
            with torch.no_grad():
                flat[i] = old + h
                up = float(loss())
                flat[i] = old - h
                down = float(loss())
                flat[i] = old
            worst = max(worst, abs((up - down) / (2 * h) - float(grad[i])))
    check("gradient against finite differences", worst < 1e-7, f"({worst:.1e})")

    logits = mass[1:].log()
    at_truth = float(kl_loss(logits, mass[1:], weight[1:]))
    beside = min(float(kl_loss(logits + 0.01 * normal(19, 7).double(), mass[1:], weight[1:]))
                 for _ in range(50))
    check("KL is 0 at the true distribution, more elsewhere", abs(at_truth) < 1e-14 and beside > 1e-7,
          f"({at_truth:.1e}, {beside:.1e})")
    shifted = float(kl_loss(logits + 5.0, mass[1:], weight[1:]))
    check("logits up to a constant", abs(shifted) < 1e-13)

    net = make_net(6, 5, 7, 4)
    x = normal(300, 6) * 3 + 1
    mean, deviation = x.mean(0), x.std(0)
    for p in net[1].parameters():
        p.data.add_(normal(*p.shape) * 0.3)
    settle(net, (x - mean) / deviation)
    w1, b1, w2, b2 = fold(net, mean, deviation)
    with torch.no_grad():
        off = float(((x @ w1.T + b1).relu() @ w2.T + b2 - net((x - mean) / deviation)).abs().max())
        net.train()
        same = float((net((x - mean) / deviation) - ((x @ w1.T + b1).relu() @ w2.T + b2)).abs().max())
    check("folded batch norm equals unfolded", off < 1e-4, f"({off:.1e})")
    check("and that of a batch of all rows", same < 1e-4, f"({same:.1e})")

    keys = normal(2000, 8)
    a, b, other = (spherical_kmeans(keys, 16, s) for s in (5, 5, 6))
    check("k-means is deterministic", torch.equal(a, b) and not torch.equal(a, other))
    check("centroids have length 1", float((a.norm(dim=1) - 1).abs().max()) < 1e-5)
    near = lambda c: float((keys @ c.T).amax(1).mean())
    check("iterations help", near(a) > near(spherical_kmeans(keys, 16, 5, 0)))
    tied = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    check("ties go to the lower bucket", assign(torch.tensor([[2.0, 1.0]]), tied).item() == 0)
    twins = spherical_kmeans(torch.ones(50, 4), 8, 1)
    check("keys that are all equal", bool(torch.isfinite(twins).all()))

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/x.saap"
        for dtype in TYPES:
            for hidden in (0, 5):
                layers = [{n: rounded(normal(*shape).numpy(), dtype)
                           for n, _, shape in file_arrays(2, 6, 9, hidden, dtype)} for _ in range(3)]
                write_saap(path, layers, 4, 512, dtype)
                s, back = read_saap(path)
                equal = all(np.array_equal(x[n], y[n]) for x, y in zip(layers, back) for n in x)
                check(f".saap round trip, {dtype}, hidden {hidden}",
                      equal and s["group"] == 4 and s["window"] == 512 and os.path.getsize(path) % 64 == 0)
        data = bytearray(open(path, "rb").read())
        data[-1] ^= 1
        open(path, "wb").write(data)
        try:
            read_saap(path)
            check("a flipped bit is seen", False)
        except SystemExit:
            check("a flipped bit is seen", True)

        # Far masses against the plain formula, without lse in the dump, and with it, where a row may
        # stand behind the dump's tokens.
        sizes, window = (1, 4, 2, 6, 0, 1, 40, 5), 8
        arrays = {n: normal(*shape).numpy() for n, _, shape in dump_arrays(*sizes)}
        arrays["kind"] = [0, 0, 1, 1, 1]
        bucket, unseen = torch.arange(40) % 3, normal(5, 4).numpy()
        for flags, last in ((0, 39), (1, 44)):
            arrays["position"] = [3, 9, 10, 20, last]
            want, lse = torch.zeros(5, 4, 3), np.zeros((5, 4), np.float32)
            for r, p in enumerate(arrays["position"]):
                for h in range(4):
                    score = [arrays["q0"][r, h] @ arrays["k0"][j, h // 2] if j < 40 else unseen[j - 40, h]
                             for j in range(p + 1)]
                    e = np.exp(np.array(score) * 6 ** -0.5)
                    lse[r, h] = math.log(e.sum())
                    for j in range(1, max(p - window, 0)):
                        want[r, h, bucket[j]] += e[j] / e.sum()
            arrays["lse0"] = lse
            sizes = sizes[:5] + (flags,) + sizes[6:]
            write_dump(f"{folder}/x.dump", sizes, arrays)
            d = Dump(f"{folder}/x.dump")
            check(f"dump round trip, flags {flags}",
                  all(np.array_equal(d.array[n], np.asarray(arrays[n], t))
                      for n, t, _ in dump_arrays(*sizes)))
            parts = [far_masses(d, 0, h, bucket, 3, window, torch.arange(5), "cpu") for h in range(2)]
            got = torch.cat([m * w[:, :, None] for m, w, _ in parts], 1)
            worst = float((got - want).abs().max())
            check(f"far masses against the formula, flags {flags}", worst < 1e-6, f"({worst:.1e})")
            check("far keys", parts[0][2].sum(1).tolist() == [0, 0, 1, 11, last - window - 1])
    print(f"{len(failed)} failed")
    return bool(failed)


class Parser(argparse.ArgumentParser):
    def error(self, message):                       # without the usage, which hides it
        self.exit(2, f"{self.prog}: {message}\n")


def main():
    p = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dumps", nargs="+", default=[], metavar="FILE")
    p.add_argument("--buckets", type=int, default=64, help="per KV head [64]")
    p.add_argument("--hidden", type=int, default=128, help="of the classifier; 0: centroids alone [128]")
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--window", type=int, help="keys so far before the query are not far [512]")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--layers", type=int, nargs="+", help="learn these only, for the time being [all]")
    p.add_argument("--rows", choices=("all", "context", "question"), default="all",
                   help="kinds of query rows [all]")
    p.add_argument("--rate", type=float, default=1e-3, help="of Adam, falls to 0 by a cosine")
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--type", choices=TYPES, default="f16", help="of the file's numbers [f16]")
    p.add_argument("--out", default="model.saap", help="and a folder OUT.heads with a checkpoint a head")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--curves", metavar="CSV", help="loss by epoch")
    p.add_argument("--evaluate", metavar="FILE")
    p.add_argument("--csv", help="of --evaluate: coverage by the number of buckets")
    p.add_argument("--threads", type=int, default=0, help="of torch; 0: all cores")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--self-test", action="store_true")
    args = p.parse_args()
    if args.threads < 0:
        p.error("--threads is negative")
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        torch.empty(1, device=args.device).cpu()
    except (RuntimeError, AssertionError) as error:  # the latter of a torch without CUDA
        p.error(f"--device {args.device}: {str(error).splitlines()[0]}")
    if args.self_test:
        sys.exit(self_test())
    if not args.dumps:
        p.error("--dumps is needed")
    if args.csv and not args.evaluate:
        p.error("--csv goes with --evaluate")
    of_learning = "buckets hidden epochs seed layers rows rate batch type out resume curves".split()
    unused = [f"--{name}" for name in of_learning if getattr(args, name) != p.get_default(name)]
    if args.evaluate and unused:
        p.error(f"{', '.join(unused)}: not for --evaluate")
    if not args.out or os.path.isdir(args.out):
        p.error(f"--out {args.out}: not the name of a file")
    for name, least, most in (("buckets", 1, 65536), ("hidden", 0, 65536), ("epochs", 1, 2**31),
                              ("batch", 2, 2**31), ("seed", 0, 2**32), ("window", 0, 2**31)):
        value = getattr(args, name)
        if value is not None and not least <= value <= most:
            p.error(f"--{name} {value} is not in {least} .. {most}")
    if not 0 < args.rate < math.inf:
        p.error(f"--rate {args.rate} is not a positive number")
    try:
        if args.evaluate:
            with torch.no_grad():
                evaluate(args)
        else:
            args.window = 512 if args.window is None else args.window
            learn(args)
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}" if error.filename else f"train.py: {error}")


if __name__ == "__main__":
    main()
