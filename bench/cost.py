#!/usr/bin/env python3
"""What a decode step of one layer costs over ranks: a model, its constants, how far it is from what was
measured, and what it says of more ranks and longer contexts, beside tensor parallelism over KV heads.

    python3 bench/cost.py [--keys 1M,10M] [--ranks 1,2,4] [--method 'dense,prop, copy'] [--latency US] ..
    python3 bench/cost.py --check 15        status 1 if the model is off by more than 15 %

    T(n, r) = fixed + bytes(n, r) / rate + sum over exchanges of (latency + sent * (r - 1) / link)

bytes: of K, V and the copy of K that a rank reads. fixed and rate: a method's, fitted to one card's times.
latency: of one exchange in a CUDA graph, from the two cards' times of dense. sent: the bytes of each rank.
What two cards take with any other method is predicted, not fitted. All measurements are read from the raw
files of bench/results.
k and M are 1024 and 1048576, as in the other benchmarks.
"""
import argparse
import math
import os
import re
import sys
from collections import namedtuple

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
RANKS_FILE = "2026-11-25-h200x2-ranks.txt"          # sharded_nccl: warm L2, fastest of 20
BENCH_FILE = "2026-11-26-h200-bench.txt"            # bench_cuda: cold L2, median; later kernels
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128              # of both files
ELEMENT = 2                                         # bytes of a bf16
SAMPLES, TILE = 128, 256                            # what santa.h takes for num_samples and tile_size of 0
RESCUED = 2 * SAMPLES                               # likewise for rescue_keys
ALWAYS = 4 + 64                                     # keys that are read beside the draws from a copy
NOMINAL_LINK = 450.0                                # GB/s each way, NVLink of an H200 by its data sheet
METHODS = ("dense", "sys", "prop", "flash", "pps", "top-k", "prop, copy", "pps, copy", "top-k, copy")
SHOWN = ("dense", "prop", "prop, copy")             # what is projected by default
NOT_COVERED, ITS_EXCHANGES = "vattention, copy", 12  # ranks choose its keys by other kernels than one card
BYTES_BOUND = 10.0                                  # %, of the bytes; of pps they depend on how heads agree
FASTEST = 1.05                                      # rate of a method against reading alone


class Shape:
    """Heads are a GPU's own."""
    def __init__(self, heads, kv_heads, head_dim, batch):
        self.heads, self.kv_heads, self.head_dim, self.batch = heads, kv_heads, head_dim, batch

    def cut(self, gpus):
        """What the GPU with most KV heads has of them."""
        kv_heads = -(-self.kv_heads // gpus)
        return Shape(self.heads // self.kv_heads * kv_heads, kv_heads, self.head_dim, self.batch)


def copy_bytes(head_dim):
    """Of a key in 4 bits, see >>proxy of santa.h: blocks of 64 keys, chunks of 32 features."""
    chunks = -(-head_dim // 32)
    block = 64 * 16 * chunks + 64 * 2 + 32 * chunks + 4
    return -(-block // 64)                          # whole lines of 64 bytes a block, for 64 keys


def bytes_read(method, shape, keys, ranks):
    """Of one rank with so many keys. Each has its share of the draws, each head rows of its own: those of
    pps share."""
    row = shape.head_dim * ELEMENT
    every = keys * shape.kv_heads
    draws = max(SAMPLES, keys * ranks / TILE) if method == "flash" else SAMPLES
    drawn = shape.heads * min(draws / ranks, keys)
    if method == "dense":
        total = 2 * every * row
    elif "copy" in method:
        total = every * copy_bytes(shape.head_dim) + 2 * row * (drawn + shape.kv_heads * min(ALWAYS, keys))
    else:
        total = every * row + drawn * row
    return total * shape.batch


def exchanges(method, shape):
    """Bytes that each rank sends in each of them, see >>ranks of santa.h: on a GPU, one query row."""
    heads, kv_heads, d = shape.heads, shape.kv_heads, shape.head_dim
    sums = 4 * (d + 1) * heads
    sent = {"dense": [sums],
            "sys": [16 * heads, sums],
            "prop": [16 * heads, sums],
            "flash": [64 * heads, 8 * heads, sums],
            "pps": [16 * heads, 8 * kv_heads, (8 * d + 12) * heads],
            "top-k": [4 * SAMPLES * heads, sums + 4 * heads],
            "prop, copy": [40 * heads, 4 * RESCUED * heads, 40 * heads, 16 * heads, sums],
            "pps, copy": [40 * heads, 4 * RESCUED * heads, 40 * heads, 8 * kv_heads, 16 * heads, sums],
            "top-k, copy": [4 * SAMPLES * heads, sums + 4 * heads]}
    return [shape.batch * b for b in sent[method]]


# A row of sharded_nccl: us of one card, of the keys of one of the two cards alone, of both cards.
Measured = namedtuple("Measured", "run keys method one own over")
# A row of bench_cuda. megabytes: what it counted, or None.
Other = namedtuple("Other", "kv_heads batch keys method megabytes us")


def lines_of(name):
    path = os.path.join(RESULTS, name)
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        sys.exit(f"cost.py: {path}: {getattr(e, 'strerror', None) or 'not a text'}")


def read_ranks():
    rows, run, keys = [], "", 0
    for line in lines_of(RANKS_FILE):
        if line.startswith("== before"):            # an older version's
            break
        if line.startswith("sharded_nccl"):
            run = "processes" if "--processes" in line else "threads"
        elif found := re.match(r"(\d+) keys over 2 GPUs, 32 query heads, 8 KV heads, bf16$", line):
            keys = int(found[1])
        elif found := re.match(r"(\S.*?)\s+([\d.]+) us\s+([\d.]+) us\s+([\d.]+) us ", line):
            rows.append(Measured(run, keys, found[1], *map(float, found.groups()[1:])))
    for method in METHODS + (NOT_COVERED,):
        for keys in (1 << 17, 1 << 20):
            if not any((r.method, r.keys) == (method, keys) and min(r[3:]) > 0.0 for r in rows):
                sys.exit(f"cost.py: {RANKS_FILE}: no times of {method} at {keys} keys")
    return rows


def read_bench():
    """Rows of one card, and the TB/s at which it reads."""
    names = {"dense S=0": "dense", "prop S=128 stash u8": "prop", "prop u4 S=128 stash u8": "prop, copy",
             "pps S=128 stash u8": "pps", "pps u4 S=128 stash u8": "pps, copy", "top-k S=128": "top-k"}
    rows, read, at = [], 0.0, None
    for line in lines_of(BENCH_FILE):
        if found := re.match(r"bf16, batch (\d+) x (\d+), NHD: read K once .* us, ([\d.]+) TB/s", line):
            at, read = (int(found[1]), int(found[2])), max(read, float(found[3]))
        elif found := re.match(r"  saap, 1 KV heads, batch 1 x (\d+), hidden 128, S=0: "
                               r".* dense ([\d.]+) us;", line):
            rows.append(Other(1, 1, int(found[1]), "dense", None, float(found[2])))
        elif not line:
            at = None
        elif at and (found := re.match(r"  (\S.*?)\s+([\d.]+) us\s+([\d.]+) MB", line)):
            method = names.get(" ".join(found[1].split()))
            if method:
                rows.append(Other(KV_HEADS, *at, method, float(found[3]), float(found[2])))
    if not rows or not read:
        sys.exit(f"cost.py: {BENCH_FILE}: no rows of bench_cuda")
    return sorted(rows, key=lambda r: (-r.kv_heads, r.batch, r.keys, METHODS.index(r.method))), read


def line_through(points):
    """Intercept and slope with the least squares of relative errors."""
    a = [(1.0 / y, x / y) for x, y in points]
    pp, pq, qq = (sum(u[i] * u[j] for u in a) for i, j in ((0, 0), (0, 1), (1, 1)))
    p, q = sum(u[0] for u in a), sum(u[1] for u in a)
    det = pp * qq - pq * pq
    return (p * qq - q * pq) / det, (pp * q - pq * p) / det


class Model:
    def __init__(self, rows, bandwidth):
        """From measurements. Times in us, rates in bytes per us; bandwidth in TB/s, what the card reads at
        most."""
        shape = Shape(HEADS, KV_HEADS, HEAD_DIM, 1)
        self.link, self.bandwidth, self.fixed, self.rate = NOMINAL_LINK, bandwidth, {}, {}
        for method in METHODS:
            own = [(bytes_read(method, shape, n, 1), us) for r in rows if r.method == method
                   for n, us in ((r.keys, r.one), (r.keys / 2, r.own))]
            self.fixed[method], slope = line_through(own)
            self.rate[method] = 1.0 / slope
        sent = sum(exchanges("dense", shape)) / (1e3 * NOMINAL_LINK)
        added = [r.over - r.own - sent for r in rows if r.method == "dense"]
        self.latency = sum(added) / len(added)

    def read_at(self, bandwidth):
        """As on a card that reads so much faster or slower, with the same share of it for each method."""
        self.rate = {method: rate * bandwidth / self.bandwidth for method, rate in self.rate.items()}
        self.bandwidth = bandwidth

    def sending(self, method, shape, ranks):
        """What the bytes of all exchanges take on the link."""
        return sum(exchanges(method, shape)) * (ranks - 1) / (1e3 * self.link)

    def own(self, method, shape, keys, ranks=1):
        return self.fixed[method] + bytes_read(method, shape, keys, ranks) / self.rate[method]

    def step(self, method, shape, keys, ranges, heads=1):
        """With the KV heads cut into `heads` parts and the context into so many ranges, a GPU for each
        pair."""
        part = shape.cut(heads)
        us = self.own(method, part, -(-keys // ranges) if ranges > 1 else keys, ranges)
        if ranges > 1:
            us += len(exchanges(method, part)) * self.latency + self.sending(method, part, ranges)
        return us

    def best(self, method, shape, keys, gpus):
        """(us, parts of the KV heads, ranges): the fastest way to cut; of equal ones the one with fewest
        ranges."""
        ways = [(self.step(method, shape, keys, gpus // t, t), t, gpus // t)
                for t in range(min(gpus, shape.kv_heads), 0, -1) if gpus % t == 0]
        return min(ways, key=lambda way: way[0])

    def pays_from(self, method, shape, ranks):
        """Keys from which ranges over so many ranks are faster than one card; None: never below 2^31."""
        low, high = ranks, 1 << 31
        if self.step(method, shape, high, ranks) >= self.step(method, shape, high, 1):
            return None
        while low < high:
            n = (low + high) // 2
            if self.step(method, shape, n, ranks) < self.step(method, shape, n, 1):
                high = n
            else:
                low = n + 1
        return low


def off(model, measured):
    return 100.0 * (model / measured - 1.0)


def count(n):
    return f"{n / (1 << 20):.3g}M" if n >= 1 << 20 else f"{n / 1024:.3g}k" if n >= 1024 else str(n)


def print_constants(model, given):
    shape = Shape(HEADS, KV_HEADS, HEAD_DIM, 1)

    def source(name, text):
        return "given" if name in given else text
    print("1. Constants (us; TB/s; bytes that each rank sends, 32 query and 8 KV heads, head_dim 128, "
          "bf16)")
    print(f"reading      {model.bandwidth:6.2f} TB/s   {source('bandwidth', f'K read once, {BENCH_FILE}')}")
    print(f"latency      {model.latency:6.1f} us     "
          + source("latency", f"of an exchange, from dense over two cards, {RANKS_FILE}"))
    print(f"link         {model.link:6.0f} GB/s   "
          + source("link", "nominal, each way, NVLink of an H200; not measured here"))
    print(f"fixed, rate: fitted to one card's times, {RANKS_FILE}")
    print("method         fixed    rate   of reading   exchanges: bytes             on the link, 2 ranks   "
          "64 ranks")
    for method in METHODS:
        sent = exchanges(method, shape)
        print(f"{method:13} {model.fixed[method]:6.1f} {1e-6 * model.rate[method]:7.2f} "
              f"{1e-4 * model.rate[method] / model.bandwidth:10.0f} %   "
              f"{len(sent)}: {' '.join(map(str, sent)):28} "
              f"{model.sending(method, shape, 2):14.2f} us {model.sending(method, shape, 64):7.1f} us")


def print_measured(model, rows):
    """Returns (what, off by %) of each number."""
    shape, errors = Shape(HEADS, KV_HEADS, HEAD_DIM, 1), []
    print(f"\n2. Measured and modelled, us ({RANKS_FILE}); one card: fitted; two cards: predicted, but for "
          "dense")
    print("keys      run        method            one card               half of the keys       two cards")
    for r in rows:
        if r.method not in METHODS:
            continue
        text = f"{r.keys:<9} {r.run:10} {r.method:12}"
        for what, us, told in (("one card", r.one, model.own(r.method, shape, r.keys)),
                               ("half of the keys", r.own, model.own(r.method, shape, r.keys / 2)),
                               ("two cards", r.over, model.step(r.method, shape, r.keys, 2))):
            text += f" {us:7.1f} {told:7.1f} {off(told, us):+5.1f} %"
            errors.append((f"{r.method}, {r.keys} keys, {what}", off(told, us)))
        print(text)
    for r in rows:
        if r.method == NOT_COVERED and r.run == "threads":
            print(f"{r.keys:<9} {r.method}: not covered. Two cards add {r.over - r.own:.0f} us to "
                  f"{r.own:.0f}; {ITS_EXCHANGES} exchanges are {ITS_EXCHANGES * model.latency:.0f}, "
                  "kernels of ranks the rest.")
    low, high = (f([e for e in errors if e[0].endswith("two cards")], key=lambda e: e[1])
                 for f in (min, max))
    def beyond(keys):
        return "  " + ", ".join(f"{r.method}: {r.over - model.step(r.method, shape, keys, 2):+.0f}"
                                for r in rows
                                if (r.run, r.keys) == ("threads", keys) and r.method in METHODS)
    print(f"""Two cards: from {low[1]:+.1f} % ({low[0]}) to {high[1]:+.1f} % ({high[0]}).
What it misses: on one card kernels overlap, and an exchange ends that. What that costs grows with a rank's
keys. The model has no term for it. Over two cards a step takes so many us more than it says, at 1M keys:
{beyond(1 << 20)}
At 128k keys it is less; exchanges of few bytes seem to take less than the one of dense:
{beyond(1 << 17)}""")
    return errors


def print_others(model, rows):
    """The same of rows that nothing was fitted to. Returns (what, off by %) of the bytes."""
    print(f"""
Rows that nothing was fitted to ({BENCH_FILE}: cold L2, median, each step alone, later kernels)
batch x keys    KV heads   method        MB read    model              us     model""")
    errors, late, batches = [], {"dense": [], "prop": [], "one KV head": []}, []
    for r in rows:
        if r.keys < 1 << 15:
            continue
        shape = Shape(HEADS // KV_HEADS * r.kv_heads, r.kv_heads, HEAD_DIM, r.batch)
        told, read = model.own(r.method, shape, r.keys), 1e-6 * bytes_read(r.method, shape, r.keys, 1)
        text = ""
        if r.megabytes:
            text = f"{r.megabytes:9.1f}{read:9.1f} {off(read, r.megabytes):+3.0f} %"
            errors.append((f"{r.method}, bytes of {r.batch} x {r.keys} keys", off(read, r.megabytes)))
        if r.batch > 1:
            batches.append((off(told, r.us), r.method))
        elif r.method in late and r.keys < 1 << 20:
            late[r.method if r.kv_heads == KV_HEADS else "one KV head"].append(f"{r.us - told:.0f}")
        at = f"{r.batch} x {r.keys}"
        print(f"{at:15} {r.kv_heads:8}   {r.method:11} {text:24} {r.us:9.1f} {told:9.1f} "
              f"{off(told, r.us):+5.0f} %")
    cold, prop, one_head = (" and ".join(late[name]) for name in ("dense", "prop", "one KV head"))
    print(f"""A cold L2 and a launch of its own add {cold} us to dense at 32k and 128k keys, {prop} to prop.
Between the layers of a language model the L2 is cold: add that to any number of ranks. To one KV head it
adds {one_head}: time goes by bytes, whatever the heads, on which section 4 rests. A batch keeps the card
busier than one long row does: there the model is too slow by up to {max(batches)[0]:.0f} %
({max(batches)[1]}). It is a model of one long context.""")
    return errors


def print_ranges(model, shape, keys, ranks, methods):
    print(f"\n3. The context in ranges: us a step and layer, and how many times as fast as one card\n"
          f"{shape.heads} query heads, {shape.kv_heads} KV heads, head_dim {shape.head_dim}, bf16, "
          f"batch {shape.batch}")
    if (shape.head_dim, shape.heads // shape.kv_heads) != (HEAD_DIM, HEADS // KV_HEADS):
        print(f"Rates and fixed times are those of head_dim {HEAD_DIM} and groups of {HEADS // KV_HEADS}.")
    for n in keys:
        print(f"{n} keys\nranks     keys each   K, V a layer" + "".join(f"{m:>20}" for m in methods))
        for r in ranks:
            here = -(-n // r)
            text = f"{r:<7} {here:11} {1e-9 * bytes_read('dense', shape, here, 1):11.2f} GB"
            for m in methods:
                us = model.step(m, shape, n, r)
                text += f"{us:12.1f} {model.step(m, shape, n, 1) / us:5.1f} x"
            print(text)
    for m in methods:
        least = [(r, model.pays_from(m, shape, r)) for r in ranks if r > 1]
        if least:
            print(f"{m}: faster than one card, ranks: keys from which on: " +
                  ", ".join(f"{r}: {'none' if n is None else count(n)}" for r, n in least))
    print("""The latency is that of two cards of one host, by NVLink. Over hosts give --latency and --link,
of nccl-tests there. With many keys a rank, prop, flash and what draws from a copy take longer, as told
above.""")


def print_heads(model, shape, keys, ranks, methods):
    group = shape.heads // shape.kv_heads
    print(f"""
4. Beside tensor parallelism, us: ranges of the context alone; KV heads alone, {group} query heads with
each; the best, parts of the heads x ranges. KV heads need no exchange in attention. GPUs beyond their
number gain nothing by them.""")
    for n in keys:
        print(f"{n} keys\n{'':7}" + "".join(f"{m:>37}" for m in methods))
        print(f"{'GPUs':7}" + f"{'ranges':>11}{'heads':>9}{'best':>17}" * len(methods))
        won = {m: {} for m in methods}
        for r in ranks:
            text = f"{r:<7}"
            for m in methods:
                us, t, s = model.best(m, shape, n, r)
                heads = model.step(m, shape, n, 1, min(r, shape.kv_heads))
                if heads <= us:
                    us, t, s = heads, min(r, shape.kv_heads), 1
                way = ("one card" if t * s == 1 else "heads" if s == 1 else
                       "ranges" if t == 1 else "heads x ranges")
                if r > 1:
                    won[m].setdefault(way, []).append(str(r))
                text += f"{model.step(m, shape, n, r):11.1f}{heads:9.1f}{us:9.1f}{f'{t} x {s}':>8}"
            print(text)
        for m in methods if max(ranks) > 1 else []:
            print(f"{m}: " + "; ".join(f"{way} best on {', '.join(gpus)}" for way, gpus in won[m].items()))
    print("""Heads first, where GPUs divide them: a cut saves the same bytes, and heads need no exchange.
Ranges are for GPUs that are left. Not counted: ranges want q of all their heads on each of their GPUs, one
more exchange where the weights are cut over the same GPUs. The all-reduce behind the output projection is
there either way. Ranges of the same heads belong in one host, where the latency is this one; parts of the
heads may lie apart.""")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"cost.py: {message}\n")


def whole(most):
    def convert(text):
        found = re.fullmatch(r"(\d{1,12})([kM]?)", text)
        n = int(found[1]) * {"": 1, "k": 1024, "M": 1 << 20}[found[2]] if found else 0
        if not 1 <= n <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {most}")
        return n
    return convert


def wholes(most):
    return lambda text: [whole(most)(part) for part in text.split(",")]


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and below 1e9")
    return value


def methods(text):
    """Separated by commas; ", copy" belongs to the name before it."""
    names = [name.strip() for name in re.split(r",(?!\s*copy\b)", text)]
    names = [re.sub(r"\s*,\s*", ", ", name) for name in names]
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {'; '.join(METHODS)}")
    return list(dict.fromkeys(names))


def main(argv=None):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=wholes((1 << 31) - 1), default=[1 << 20, 10 << 20], help="1M,10M")
    parser.add_argument("--ranks", type=wholes(65536), default=[1 << i for i in range(7)],
                        help="1,2,4,8,16,32,64")
    parser.add_argument("--method", type=methods, default=list(SHOWN), metavar="NAMES",
                        help="dense,prop,prop, copy; also sys, flash, pps, top-k and the last two from a "
                             "copy")
    parser.add_argument("--latency", type=positive, metavar="US", help="of an exchange")
    parser.add_argument("--link", type=positive, metavar="GB/S", help=f"each way, {NOMINAL_LINK:g}")
    parser.add_argument("--bandwidth", type=positive, metavar="TB/S",
                        help="that a card reads at; rates follow it")
    parser.add_argument("--heads", type=whole(1 << 16), default=HEADS, help=f"query heads, {HEADS}")
    parser.add_argument("--kv-heads", type=whole(1 << 16), default=KV_HEADS, help=f"{KV_HEADS}")
    parser.add_argument("--head-dim", type=whole(1024), default=HEAD_DIM,
                        help=f"{HEAD_DIM}; rates are those of 128")
    parser.add_argument("--batch", type=whole(1 << 16), default=1, help="rows of as many keys, 1")
    parser.add_argument("--check", type=positive, metavar="PERCENT", help="fail if a row is off by more")
    args = parser.parse_args(argv)
    if args.heads % args.kv_heads:
        parser.error(f"--heads {args.heads} is no multiple of --kv-heads {args.kv_heads}")
    if args.head_dim % 8:
        parser.error(f"--head-dim {args.head_dim} is no multiple of 8")
    rows, (others, read) = read_ranks(), read_bench()
    model, shape = Model(rows, read), Shape(args.heads, args.kv_heads, args.head_dim, args.batch)
    too_fast = [(f"{m}, its rate against {read} TB/s", off(1e-6 * rate, read))
                for m, rate in model.rate.items()
                if 1e-6 * rate > FASTEST * read]
    given = {name for name in ("latency", "link", "bandwidth") if getattr(args, name)}
    if args.bandwidth:
        model.read_at(args.bandwidth)
    model.latency, model.link = args.latency or model.latency, args.link or model.link
    print_constants(model, given)
    errors = print_measured(model, rows)
    errors_of_bytes = print_others(model, others)
    print_ranges(model, shape, args.keys, args.ranks, args.method)
    print_heads(model, shape, args.keys, args.ranks, args.method)
    if args.check:
        wrong = too_fast + [e for e in errors if abs(e[1]) > args.check]
        wrong += [e for e in errors_of_bytes if abs(e[1]) > BYTES_BOUND]
        if wrong:
            worst = max(wrong, key=lambda e: abs(e[1]))
            sys.exit(f"cost.py: {worst[0]}: {worst[1]:+.1f} %, and {len(wrong) - 1} more beyond their "
                     "bounds")
        print(f"\n{len(errors)} times within {args.check:g} %, "
              f"{len(errors_of_bytes)} counts of bytes within {BYTES_BOUND:g} %")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:                         # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
