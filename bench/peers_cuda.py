#!/usr/bin/env python3
"""Exact decode attention of others and santa_decode on one GPU, in one table from one run.

    python3 bench/peers_cuda.py [--csv FILE] [--quick | --short] [--arch sm_90] [--lib FILE]   needs torch and nvcc
    python3 bench/peers_cuda.py --check                               the same calls on the CPU; needs NumPy
    python3 bench/peers_cuda.py --prefill build/bench_cuda [--csv FILE] [--quick]      needs torch

Our methods are called by examples/python/santa.py, which builds the library. The kernel that only reads is built on
the first run and when its source is newer (or give a built one with --lib):
    nvcc -std=c++17 -O3 -arch=native -shared -Xcompiler -fPIC -o build/libsanta_floor.so bench/floor.cu

Peers: torch's scaled_dot_product_attention with FlashAttention-2 and with cuDNN, each as it is (enable_gqa) and with
the query heads of a KV head packed as query rows, the faster of the two in the table; FlashInfer's batch decode, page
16, the faster of its CUDA-core and tensor-core kernels, if the optional package flashinfer-python is installed.

Protocol: the same bf16 tensors in the same memory for every method, 32 query heads, 8 KV heads, head_dim 128, NHD.
Before each sample a 512 MB buffer is read and written (cold, dirty L2); 10 warm-up and 40 timed replays of a CUDA
graph between two events, all methods in turns. Times are medians; ratios are of the least times, with 10 and 90 % of
what single rounds say, and "?" where p90 / p10 of either one's times is above 1.5: the machine is too busy for a
verdict. The floor reads K once and computes nothing.

Inputs: 'gauss' is all standard normal: attention is nearly uniform, the exact output nearly zero, and the relative
error of any sampler large. 'peaked' is closer to real heads: 256 keys share a direction with the group's queries and
hold about 85 % of the mass, the first key (sink) about 5 %, the rest is spread over the context; V has a mean of half
its spread. The effective number of keys, 1 / sum p^2, is measured and printed: about 100 when peaked. Errors are |out
- exact| / |exact|, median over batch x heads, exact in f64; for the sampled methods of the draw of one seed.
"""
import argparse
import csv
import ctypes as C
import datetime
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile

from peers import write_csv

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
SHAPES = [(1, 8192), (1, 32768), (1, 131072), (8, 8192), (8, 32768), (32, 32768), (8, 131072)]
QUICK_SHAPES = [(1, 32768), (8, 32768)]
SHORT_SHAPES = [(1, 1024), (1, 4096), (64, 2048), (1, 8192), (8, 8192)]      # where sampling may not pay
HOT_KEYS, HOT_MASS, SINK_MASS, QUERY_SHARED, QUERY_OWN, V_MEAN = 256, 0.85, 0.05, 8.0, 0.7, 0.5
EXACT_TOLERANCE = 0.02                        # an exact method in bf16 beyond this is wrong, whatever its speed

TOO_BUSY = 1.5                                # as bench/gain.h has it
LISTED = 16                                   # one key in so many is in a caller's own list

# ---------------------------------------------------------------------------------------------- our methods

# name, what santa.decode() is given, bits of a copy of K (0: none)
OURS = [("santa dense", {}, 0)] + [
    (f"santa {method} S={samples}" + (f" {stash}" if stash else "") + (f", copy of {bits} bits" if bits else ""),
     {"method": method, "num_samples": samples, **({"stash": stash} if stash else {}),
      **({"scores": "proxy"} if bits else {})}, bits)
    for method, samples, stash, bits in (
        ("prop", 128, "f32", 0), ("prop", 128, "u8", 0), ("pps", 128, "u8", 0), ("flash", 2048, "u8", 0),
        ("top-k", 128, "", 0), ("prop", 128, "u8", 4), ("prop", 512, "u8", 4), ("pps", 128, "u8", 4),
        ("top-k", 128, "", 4), ("top-k", 2048, "", 4), ("prop", 128, "u8", 2))
] + [("santa vattention, copy of 4 bits", {"method": "vattention", "scores": "proxy"}, 4),
     (f"santa list, 1 key in {LISTED}", {"key_list": "make"}, 0),
     ("santa prop S=128 u8, dense_below AUTO",
      {"method": "prop", "num_samples": 128, "stash": "u8", "dense_below": -1}, 0)]


def python_santa():
    sys.path.insert(0, os.path.join(ROOT, "examples", "python"))
    sys.dont_write_bytecode = True
    import santa
    return santa


def list_of_keys(batch, n):
    """[batch, KV_HEADS, n / LISTED] of different keys, in ascending order."""
    rng = random.Random(n)
    return [[sorted(rng.sample(range(n), n // LISTED)) for _ in range(KV_HEADS)] for _ in range(batch)]


def build(arch="native"):
    """Compiles the kernel that reads if it is missing, of another arch, or older than its source; returns its path."""
    out = os.path.join(ROOT, "build", "libsanta_floor.so" if arch == "native" else f"libsanta_floor_{arch}.so")
    source = os.path.join(ROOT, "bench", "floor.cu")
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(source):
        os.makedirs(os.path.dirname(out), exist_ok=True)
        command = ["nvcc", "-std=c++17", "-O3", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", "-o", out, source]
        print("#", " ".join(command), file=sys.stderr, flush=True)
        subprocess.run(command, check=True)
    return out


def load(path):
    lib = C.CDLL(path)
    lib.bench_read.argtypes = [C.c_void_p, C.c_size_t, C.c_void_p, C.c_void_p]
    return lib


def reader(torch, lib, tensors, count=None):
    """A call that reads all bytes of some tensors, or the first `count` of each, on torch's stream."""
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")

    def read():
        for t in tensors:
            code = lib.bench_read(t.data_ptr(), t.nbytes if count is None else count, sink.data_ptr(),
                                  torch.cuda.current_stream().cuda_stream)
            if code:
                sys.exit(f"floor: CUDA error {code}")
        return sink
    return read


def check():
    """Every row of OURS on the CPU, in NumPy: exact ones against a softmax, the others within what draws are off."""
    import numpy as np
    santa, batch, n = python_santa(), 2, 2048
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((batch, rows, heads, DIM), np.float32)
               for rows, heads in ((1, HEADS), (n, KV_HEADS), (n, KV_HEADS)))
    v += 1.0
    keys = np.array(list_of_keys(batch, n), np.int32)
    for name, options, bits in OURS:
        options = dict(options)
        seen = np.ones((batch, KV_HEADS, n), bool)
        if options.pop("key_list", None):
            options["key_list"] = keys
            seen[:] = False
            np.put_along_axis(seen, keys.astype(np.int64), True, -1)
        if bits:
            options["proxy"] = santa.Proxy(k, bits=bits)
            options["proxy"].encode()
        group = q[:, 0].reshape(batch, KV_HEADS, HEADS // KV_HEADS, DIM)
        s = np.einsum("bhgd,bnhd->bhgn", group, k) / math.sqrt(DIM)
        s = np.where(seen[:, :, None], s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        want = np.einsum("bhgn,bnhd->bhgd", p / p.sum(-1, keepdims=True), v).reshape(batch, HEADS, DIM)
        r = santa.decode(q, k, v, seed=7, stats=True, **options)
        off = float(np.median(np.linalg.norm(r.out[:, 0] - want, axis=-1) / np.linalg.norm(want, axis=-1)))
        exact = options.get("method", "dense") == "dense"
        if not off < (1e-5 if exact else 0.5) or r.stats.k_rows_read + r.stats.proxy_rows_read == 0:
            sys.exit(f"{name} on the CPU: off by {off:g}")
        print(f"ok: {name:<42} off by {off:.1e}, {r.stats.k_rows_read} rows of K, {r.stats.v_rows_read} of V")
    return 0


# ---------------------------------------------------------------------------------------------- inputs and reference

def fill_gauss(torch, q, k, v, seed):
    g = torch.Generator(q.device).manual_seed(seed)
    for t in (q, k, v):
        t.normal_(generator=g)


def fill_peaked(torch, q, k, v, seed):
    """See the head of the file. Per unit along u, a KV head's direction, a score gains QUERY_SHARED / sqrt(DIM)."""
    batch, n, group = k.shape[0], k.shape[1], HEADS // KV_HEADS
    g = torch.Generator(q.device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, device=q.device)
    u = torch.nn.functional.normalize(normal(batch, KV_HEADS, DIM), dim=-1)
    own = normal(batch, KV_HEADS, group, DIM) * QUERY_OWN
    own -= (own * u[:, :, None]).sum(-1, keepdim=True) * u[:, :, None]
    q.copy_((own + QUERY_SHARED * u[:, :, None]).reshape(batch, 1, HEADS, DIM))
    k.normal_(generator=g)
    per_score = math.sqrt(DIM) / QUERY_SHARED
    variance = (QUERY_OWN ** 2 * (DIM - 1) + QUERY_SHARED ** 2) / DIM              # of a score of a normal key
    rest = 1.0 - HOT_MASS - SINK_MASS
    b = torch.arange(batch, device=q.device)[:, None, None].expand(batch, KV_HEADS, HOT_KEYS)
    h = torch.arange(KV_HEADS, device=q.device)[None, :, None].expand_as(b)
    j = torch.randint(1, n, b.shape, generator=g, device=q.device)
    k[b, j, h] += (u * per_score * math.log(HOT_MASS / rest * n / HOT_KEYS))[:, :, None].to(k.dtype)
    k[:, 0] = (u * per_score * (math.log(SINK_MASS / rest * n) + variance / 2)).to(k.dtype)
    v.normal_(generator=g)
    v += (V_MEAN * normal(batch, 1, KV_HEADS, DIM)).to(v.dtype)


def reference(torch, q, k, v):
    """(out [batch, HEADS, DIM] in f64, median effective number of keys)"""
    out, effective = [], []
    for b in range(q.shape[0]):
        group = q[b, 0].double().reshape(KV_HEADS, HEADS // KV_HEADS, DIM)
        p = torch.softmax(torch.matmul(group, k[b].double().permute(1, 2, 0)) / math.sqrt(DIM), -1)
        out.append(torch.matmul(p, v[b].double().transpose(0, 1)).reshape(HEADS, DIM))
        effective.append(1.0 / p.square().sum(-1).flatten())
    return torch.stack(out), torch.cat(effective).median().item()


def relative_error(got, want):
    return ((got.double().reshape(want.shape) - want).norm(dim=-1) / want.norm(dim=-1)).median().item()


# ---------------------------------------------------------------------------------------------- methods

class Method:
    """call(): one decode, returns out; kv_bytes(): what it needs of K and V; the rest are labels."""

    def __init__(self, name, call, kv_bytes, exact=False, samples=0, stash="", prepare=lambda: None):
        self.name, self.call, self.kv_bytes, self.prepare = name, call, kv_bytes, prepare
        self.exact, self.samples, self.stash = exact, samples, stash
        self.variant = name                              # methods of one name compete: the fastest is shown
        self.us, self.error, self.times = {}, {}, {}

    def capture(self, torch):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):                    # compilation, autotuning and first allocations happen here
            for _ in range(3):
                self.call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.call()


def sdpa_methods(torch, q, k, v):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attend, batch = torch.nn.functional.scaled_dot_product_attention, q.shape[0]
    kt, vt = k.transpose(1, 2), v.transpose(1, 2)
    packed = q.reshape(batch, KV_HEADS, HEADS // KV_HEADS, DIM)          # a decode step has no mask between query rows
    methods = []
    for name, backend in (("FlashAttention-2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        def plain(backend=backend):
            with sdpa_kernel(backend):
                return attend(q.transpose(1, 2), kt, vt, enable_gqa=True)

        def as_rows(backend=backend):
            with sdpa_kernel(backend):
                return attend(packed, kt, vt)
        for variant, call in ((f"{name}, gqa", plain), (f"{name}, packed", as_rows)):
            methods.append(Method(name, call, lambda: k.nbytes + v.nbytes, exact=True))
            methods[-1].variant = variant
    return methods


def flashinfer_methods(torch, q, k, v):
    """The pages are views of the same K and V, in order."""
    import flashinfer
    batch, n = k.shape[:2]
    pages, methods = n // PAGE, []
    indptr = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * pages
    indices = torch.arange(batch * pages, dtype=torch.int32, device=q.device)
    last = torch.full((batch,), PAGE, dtype=torch.int32, device=q.device)
    cache = tuple(t.view(batch * pages, PAGE, KV_HEADS, DIM) for t in (k, v))
    for tensor_cores in (False, True):
        scratch = torch.zeros(256 << 20, dtype=torch.uint8, device=q.device)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch, "NHD", use_tensor_cores=tensor_cores)
        wrapper.plan(indptr, indices, last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=q.dtype, kv_data_type=k.dtype)
        methods.append(Method("FlashInfer", lambda w=wrapper: w.run(q.view(batch, HEADS, DIM), cache),
                              lambda: k.nbytes + v.nbytes, exact=True))
        cores = "tensor" if tensor_cores else "CUDA"
        methods[-1].variant = f"FlashInfer {flashinfer.__version__}, page {PAGE}, {cores} cores"
    return methods


def santa_methods(torch, q, k, v):
    """prepare() makes the copies of K anew, which is not timed here: bench_cuda does."""
    santa, methods, copies = python_santa(), [], {}
    for name, options, bits in OURS:
        options = dict(options)
        out = torch.empty_like(q)
        if options.pop("key_list", None):
            options["key_list"] = torch.tensor(list_of_keys(q.shape[0], k.shape[1]), dtype=torch.int32, device=q.device)
        if bits:
            copies.setdefault(bits, santa.Proxy(k, bits=bits))
            options["proxy"] = copies[bits]
        workspace = torch.empty(santa.workspace_size(q, k, v, out=out, **options), dtype=torch.uint8, device=q.device)

        def call(stats=False, options=options, workspace=workspace, out=out):
            r = santa.decode(q, k, v, out=out, workspace=workspace, seed=7, stats=stats, **options)
            return r.stats if stats else out

        def kv_bytes(call=call, bits=bits):
            stats = call(True)
            return (stats.k_rows_read + stats.v_rows_read) * DIM * k.element_size() + (copies[bits].size if bits else 0)
        methods.append(Method(name, call, kv_bytes, not options, options.get("num_samples", 0),
                              options.get("stash", ""), copies[bits].encode if bits else lambda: None))
    return methods


# ---------------------------------------------------------------------------------------------- the run

def cause(e):
    return f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[0]}"


def in_turns(torch, graphs, thrash, runs):
    """us of each graph in each round"""
    times = [[] for _ in graphs]
    for i in range(-(runs // 4), runs):
        for graph, t in zip(graphs, times):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            thrash.add_(1.0)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            if i >= 0:
                t.append(1e3 * start.elapsed_time(stop))
    return times


def gain(slow, fast):
    """How many times as fast the second is, of times taken in turns: by the least ones, 10 and 90 % of single rounds,
    and how far the times of either spread. gain_of of bench/gain.h."""
    tenth = len(slow) // 10

    def ends(x):
        x = sorted(x)
        return x[tenth], x[len(x) - 1 - tenth]
    low, high = ends([a / b for a, b in zip(slow, fast)])
    return min(slow) / min(fast), low, high, max(b / a for a, b in (ends(slow), ends(fast)))


def shown(g):
    """A gain in the table."""
    return f"{'?' if g[3] > TOO_BUSY else format(g[0], '.2f'):>5} ({g[1]:.2f} .. {g[2]:.2f})"


def run_shape(torch, lib, batch, n, runs, thrash, peers):
    """All methods at one shape: (floor's Method, methods in order, effective keys by input)."""
    device, dtype = "cuda", torch.bfloat16
    q = torch.empty(batch, 1, HEADS, DIM, device=device, dtype=dtype)
    k, v = (torch.empty(batch, n, KV_HEADS, DIM, device=device, dtype=dtype) for _ in range(2))
    fill_gauss(torch, q, k, v, 1)

    floor, ready, effective = Method("floor", reader(torch, lib, [k]), lambda: k.nbytes), [], {}
    floor.capture(torch)
    candidates = []
    for make in peers:
        try:
            candidates += make(torch, q, k, v)
        except Exception as e:                           # a peer that cannot run here is said, not fatal
            print(f"# {batch} x {n}: {make.__name__}: {cause(e)}", flush=True)
    ours = santa_methods(torch, q, k, v)
    for m in ours:
        m.prepare()                                      # a copy that is rubbish is no error, but others are timed
    for m in candidates + ours:
        try:
            m.capture(torch)
            ready.append(m)
        except Exception as e:
            if m.name.startswith("santa"):
                raise
            print(f"# {batch} x {n}: {m.variant} does not run: {cause(e)}", flush=True)
            torch.cuda.synchronize()

    for name, fill in (("gauss", fill_gauss), ("peaked", fill_peaked)):
        fill(torch, q, k, v, 1)
        want, effective[name] = reference(torch, q, k, v)
        for m in ready:
            m.prepare()
        torch.cuda.synchronize()
        all_times = in_turns(torch, [m.graph for m in [floor] + ready], thrash, runs)
        for m, times in zip([floor] + ready, all_times):
            m.times[name], m.us[name] = times, statistics.median(times)
            m.error[name] = relative_error(m.out, want) if m is not floor else 0.0
            if name == "gauss":
                m.bytes = m.kv_bytes()
    best = {}
    for m in ready:                                      # of the variants of a peer the fastest that is right
        key = m.name if not m.name.startswith("santa") else m.variant
        rank = (max(m.error.values()) > EXACT_TOLERANCE if m.exact else False, m.us["gauss"])
        if key not in best or rank < best[key][0]:
            best[key] = (rank, m)
    return floor, [m for _, m in best.values()], effective


# ---------------------------------------------------------------------------------------------- prefill

def prefill(torch, program, quick, path):
    """Prefill of torch's backends and, in turns with them, of the program, bench_cuda: causal, batch 1, bf16. Each
    round has both, and takes the medians of its runs; times are the rounds' medians."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attend, times = torch.nn.functional.scaled_dot_product_attention, {}
    thrash = torch.zeros(512 << 18, device="cuda")
    table = os.path.join(tempfile.mkdtemp(), "prefill.csv")
    for _ in range(1 if quick else 3):
        for n in (8192, 32768, 131072):
            q = torch.randn(1, n, HEADS, DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
            k, v = (torch.randn(1, n, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in "kv")
            for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION)):
                ms, runs = [], max(2, 2 ** 18 // n)
                try:
                    for i in range(-1, runs):
                        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                        thrash.add_(1.0)
                        start.record()
                        with sdpa_kernel(backend):
                            attend(q, k, v, is_causal=True, enable_gqa=True)
                        stop.record()
                        stop.synchronize()
                        if i >= 0:
                            ms.append(start.elapsed_time(stop))
                except Exception as e:                   # said, not fatal
                    print(f"# {name} at {n} does not run: {cause(e)}", flush=True)
                    continue
                times.setdefault((n, name), []).append((statistics.median(ms), 1.0, 0.0))
            del q, k, v
        torch.cuda.empty_cache()
        subprocess.run([program, "--prefill", "--csv", table] + ["--quick"] * quick, check=True,
                       stdout=subprocess.DEVNULL)
        with open(table, newline="") as f:
            seen = 0
            for row in csv.DictReader(f):
                seen = seen + 1 if row["method"] == "sparse" else 0
                method = f"sample-attention, {(10, 5)[seen - 1]} % wanted" if seen else row["method"]
                name = "santa " + method
                times.setdefault((int(row["n"]), name), []).append(
                    (float(row["ms"]), float(row["kept_share"]), float(row["stages_1_2_ms"])))
    rows = []
    print("# ratios: of the least rounds, in brackets their range over the rounds")
    print(f"{'n':>7} {'method':<40} {'ms':>9} {'TFLOP/s':>8} {'x cuDNN':>20} {'best/this':>20} {'kept %':>7} {'stages 1+2':>10}")
    for (n, name), rounds in sorted(times.items(), key=lambda x: x[0][0]):
        ms, kept, before = (statistics.median(x) for x in zip(*rounds))
        mine, cudnn = [r[0] for r in rounds], times.get((n, "cuDNN"))
        best = min(([r[0] for r in times[key]] for key in times if key[0] == n and "sample" not in key[1]), key=min)
        rate = 2.0 * DIM * HEADS * n * (n + 1) / ms * 1e-9 if "sample" not in name else math.nan
        over_best = gain(best, mine)
        over_cudnn = gain([r[0] for r in cudnn], mine) if cudnn else (math.nan, math.nan, math.nan, 1.0)
        print(f"{n:>7} {name:<40} {ms:9.3f} {rate:8.0f} {shown(over_cudnn):>20} {shown(over_best):>20} "
              f"{100 * kept:7.2f} {before:10.3f}")
        rows.append({"n": n, "method": name, "ms": f"{ms:.4f}", "tflops": f"{rate:.1f}",
                     "cudnn_over_method": f"{over_cudnn[0]:.3f}", "best_exact_over_method": f"{over_best[0]:.3f}",
                     "busy": f"{max(over_best[3], over_cudnn[3]):.2f}", "kept_share": f"{kept:.4f}",
                     "stages_1_2_ms": f"{before:.4f}"})
    write_csv(path, rows)


def torch_with_device():
    """torch, or None, having said why."""
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed")
        return None
    if torch.cuda.is_available():
        return torch
    print("skipped: no CUDA device")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="the two shapes 1 x 32k and 8 x 32k, 20 timed runs")
    parser.add_argument("--short", action="store_true", help="contexts of 1k to 8k keys")
    parser.add_argument("--arch", default="native", help="nvcc's -arch (default: native)")
    parser.add_argument("--lib", metavar="FILE", help="the kernel that reads, built before")
    parser.add_argument("--check", action="store_true", help="our methods' calls on the CPU, then stop")
    parser.add_argument("--prefill", metavar="PROGRAM", help="prefill instead: torch's in turns with bench_cuda's")
    args = parser.parse_args()
    if args.prefill:
        torch = torch_with_device()
        if not torch:
            return 0
        print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
              f"{datetime.date.today()}\n# python3 {' '.join(sys.argv)}")
        prefill(torch, args.prefill, args.quick, args.csv)
        return 0
    if args.check:
        return check()
    torch = torch_with_device()
    if not torch:
        return 0
    lib = load(args.lib or build(args.arch))
    try:
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    runs = 20 if args.quick else 40
    print(f"# {torch.cuda.get_device_name()}, driver {driver}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}, {datetime.date.today()}")
    print(f"# python3 {' '.join(sys.argv)}")
    print(f"# bf16, {HEADS} query heads, {KV_HEADS} KV heads, head_dim {DIM}, NHD; "
          f"{runs // 4} warm-up and {runs} timed CUDA-graph replays in turns, each after a 512 MB read and write")
    peers = [sdpa_methods]
    try:
        import flashinfer  # noqa: F401                    may also fail for want of a compiler or a driver
        peers.append(flashinfer_methods)
    except Exception as e:
        print(f"# FlashInfer is not in the table: import flashinfer: {cause(e)} (pip install flashinfer-python)")
    print("# us: medians, gauss and peaked inputs; TB/s: K and V bytes needed per time (gauss); x floor: over reading K "
          "once (gauss);\n# best/this: fastest exact row over this one (gauss, peaked), least times, 10 .. 90 % of rounds; "
          "error: median relative L2 (gauss, peaked)")
    print(f"{'batch x context':<16} {'method':<42} {'us':>9} {'peaked':>9} {'TB/s':>6} {'x floor':>20} "
          f"{'best/this':>20} {'peaked':>20} {'error':>9} {'peaked':>9}", flush=True)
    rows, failed = [], False
    thrash = torch.zeros(512 << 18, device="cuda")       # f32: 512 MB
    for batch, n in QUICK_SHAPES if args.quick else SHORT_SHAPES if args.short else SHAPES:
        with torch.inference_mode():
            floor, methods, effective = run_shape(torch, lib, batch, n, runs, thrash, peers)
        wrong = {m.variant for m in methods if m.exact and not max(m.error.values()) <= EXACT_TOLERANCE}
        failed |= any(w.startswith("santa") for w in wrong)
        right = [m for m in methods if m.exact and m.variant not in wrong]
        best = {i: min(right, key=lambda m: min(m.times[i])).times[i] for i in ("gauss", "peaked")}
        busy = 1.0
        shape = f"{batch} x {n}"
        print(f"{shape:<16} {'floor: K read once':<42} {floor.us['gauss']:9.1f} {floor.us['peaked']:9.1f} "
              f"{floor.bytes / floor.us['gauss'] * 1e-6:6.2f}   effective keys: "
              f"gauss {effective['gauss']:.0f}, peaked {effective['peaked']:.0f}")
        for m in methods:
            us, peaked = m.us["gauss"], m.us["peaked"]
            ratio = {i: gain(best[i], m.times[i]) for i in best}
            over_floor = gain(m.times["gauss"], floor.times["gauss"])
            busy = max(busy, over_floor[3], *(g[3] for g in ratio.values()))
            print(f"{shape:<16} {m.variant:<42} {us:9.1f} {peaked:9.1f} {m.bytes / us * 1e-6:6.2f} "
                  f"{shown(over_floor):>20} {shown(ratio['gauss']):>20} {shown(ratio['peaked']):>20} "
                  f"{m.error['gauss']:9.2e} {m.error['peaked']:9.2e}"
                  f"{'  WRONG' if m.variant in wrong else ''}")
            rows.append({"type": "bf16", "batch": batch, "context": n, "layout": "NHD", "method": m.name,
                         "variant": m.variant, "num_samples": m.samples, "stash": m.stash, "exact": int(m.exact),
                         "us": f"{us:.2f}",
                         "us_peaked": f"{peaked:.2f}", "floor_us": f"{floor.us['gauss']:.2f}", "bytes": m.bytes,
                         "tb_per_s": f"{m.bytes / us * 1e-6:.3f}", "over_floor": f"{over_floor[0]:.3f}",
                         "best_exact_over_method": f"{ratio['gauss'][0]:.3f}",
                         "best_exact_over_method_peaked": f"{ratio['peaked'][0]:.3f}",
                         "busy": f"{max(over_floor[3], ratio['gauss'][3], ratio['peaked'][3]):.2f}",
                         "error": f"{m.error['gauss']:.3e}", "error_peaked": f"{m.error['peaked']:.3e}",
                         "effective_keys": f"{effective['gauss']:.1f}",
                         "effective_keys_peaked": f"{effective['peaked']:.1f}"})
        if busy > TOO_BUSY:
            print(f"?: no verdict (machine too busy: p90/p10 = {busy:.2f})")
        sys.stdout.flush()
        del floor, methods, m, right                            # the graphs hold this shape's tensors
        torch.cuda.empty_cache()
    write_csv(args.csv, rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
