#!/usr/bin/env python3
"""Exact decode attention of others and santa_decode on one GPU, in one table from one run.

    python3 bench/peers_cuda.py [--csv FILE] [--quick] [--arch sm_90] [--lib FILE]     needs torch and nvcc
    python3 bench/peers_cuda.py --check                               needs nvcc (or --lib), no torch, no GPU
    python3 bench/peers_cuda.py --prefill build/bench_cuda [--csv FILE] [--quick]      needs torch

The shared library is built on the first run and when a source is newer (or give a built one with --lib):
    nvcc -std=c++17 -O3 -arch=native -shared -Xcompiler -fPIC -o build/libsanta_cuda.so santa_cuda.cu bench/floor.cu

Peers: torch's scaled_dot_product_attention with FlashAttention-2 and with cuDNN, each as it is (enable_gqa) and with
the query heads of a KV head packed as query rows, the faster of the two in the table; FlashInfer's batch decode, page
16, the faster of its CUDA-core and tensor-core kernels, if the optional package flashinfer-python is installed.

Protocol: the same bf16 tensors in the same memory for every method, 32 query heads, 8 KV heads, head_dim 128, NHD.
Before each sample a 512 MB buffer is read and written (cold, dirty L2); 10 warm-up and 40 timed replays of a CUDA
graph between two events; the median. The floor reads K once and computes nothing.

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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
SHAPES = [(1, 8192), (1, 32768), (1, 131072), (8, 8192), (8, 32768), (32, 32768)]
HOT_KEYS, HOT_MASS, SINK_MASS, QUERY_SHARED, QUERY_OWN, V_MEAN = 256, 0.85, 0.05, 8.0, 0.7, 0.5
EXACT_TOLERANCE = 0.02                        # an exact method in bf16 beyond this is wrong, whatever its speed

# ---------------------------------------------------------------------------------------------- santa.h in ctypes

F32, BF16 = 0, 2
CPU, CUDA = 0, 1
DENSE, SYS, PROP, FLASH = 0, 3, 4, 5
STASH = {"default": 0, "f32": 1, "u8": 3}
ENUMERATORS = {"SANTA_F32": F32, "SANTA_BF16": BF16, "SANTA_CPU": CPU, "SANTA_CUDA": CUDA, "SANTA_DENSE": DENSE,
               "SANTA_SYS": SYS, "SANTA_PROP": PROP, "SANTA_FLASH": FLASH, "SANTA_STASH_DEFAULT": STASH["default"],
               "SANTA_STASH_F32": STASH["f32"], "SANTA_STASH_U8": STASH["u8"]}


def fields(**types):
    """C.Structure fields: type -> names, in the order given; a trailing _ lets a type come back."""
    kinds = {"ptr": C.c_void_p, "i64": C.c_int64, "u64": C.c_uint64, "f32": C.c_float, "f64": C.c_double,
             "enum": C.c_int}
    return [(name, kinds[t.rstrip("_")]) for t, names in types.items() for name in names.split()]


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("shape", C.c_int64 * 4), ("stride", C.c_int64 * 4)] + fields(enum="dtype device")


class Attention(C.Structure):
    _fields_ = [(name, Tensor) for name in ("q", "k", "v", "out")] + fields(
        ptr="lse std_error seq_lens block_table", i64="max_pages block_table_stride",
        f32="sm_scale k_scale v_scale soft_cap", enum="causal", i64_="window", ptr_="sinks alibi_slopes")


class VAttentionOptions(C.Structure):
    _fields_ = fields(i64="sink_tokens local_tokens heavy_tokens base_samples", f64="epsilon delta",
                      enum="guarantee bound", ptr="heavy heavy_user audit")


class Options(C.Structure):
    _fields_ = fields(i64="num_samples", enum="method", f64="top_p", i64_="tile_size", enum_="stash",
                      i64__="dense_below", enum__="scores", i64___="bernoulli_draws", u64="seed offset",
                      ptr="seeds offsets request_ids") + [
        ("vattention", VAttentionOptions)] + fields(enum="isa", i64="num_threads", ptr="parallel_for parallel_user",
                                                    i64_="item_begin item_end", ptr_="stream")


class Stats(C.Structure):
    _fields_ = fields(i64="rows keys k_rows_read k_features_read k_features_head v_rows_read v_rows_head draws tiles "
                          "tiles_skipped exact_rows dense_rows")


MIRRORS = {"santa_tensor": Tensor, "santa_attention": Attention, "santa_vattention_options": VAttentionOptions,
           "santa_options": Options, "santa_stats": Stats}


def build(arch="native"):
    """Compiles the shared library if it is missing, of another arch, or older than a source; returns its path."""
    out = os.path.join(ROOT, "build", "libsanta_cuda.so" if arch == "native" else f"libsanta_cuda_{arch}.so")
    sources = [os.path.join(ROOT, f) for f in ("santa_cuda.cu", "bench/floor.cu", "santa_cuda.h", "santa.h")]
    if not os.path.exists(out) or os.path.getmtime(out) < max(map(os.path.getmtime, sources)):
        os.makedirs(os.path.dirname(out), exist_ok=True)
        command = ["nvcc", "-std=c++17", "-O3", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", "-o", out]
        command += sources[:2]
        print("#", " ".join(command), file=sys.stderr, flush=True)
        subprocess.run(command, check=True)
    return out


def load(path):
    """The library, its prototypes declared and every mirrored field compared with what the C++ compiler laid out."""
    lib = C.CDLL(path)
    lib.santa_workspace_size.restype = C.c_size_t
    lib.santa_status_string.restype = C.c_char_p
    lib.santa_workspace_size.argtypes = lib.santa_check.argtypes = [C.POINTER(Attention), C.POINTER(Options)]
    lib.santa_decode.argtypes = [C.POINTER(Attention), C.POINTER(Options), C.c_void_p, C.c_size_t, C.c_void_p]
    lib.bench_read.argtypes = [C.c_void_p, C.c_size_t, C.c_void_p, C.c_void_p]

    class Entry(C.Structure):
        _fields_ = [("name", C.c_char_p), ("offset", C.c_size_t), ("size", C.c_size_t)]
    lib.bench_layout.restype = C.POINTER(Entry)
    count = C.c_size_t()
    table = lib.bench_layout(C.byref(count))
    theirs = {table[i].name.decode(): (table[i].offset, table[i].size) for i in range(count.value)}
    ours = {name: (value, 0) for name, value in ENUMERATORS.items()}
    for name, mirror in MIRRORS.items():
        ours[name] = (0, C.sizeof(mirror))
        for field in mirror._fields_:
            ours[f"{name}.{field[0]}"] = (getattr(mirror, field[0]).offset, getattr(mirror, field[0]).size)
    wrong = [f"{n}: {ours.get(n)} here, {theirs.get(n)} in C" for n in sorted({*ours, *theirs})
             if ours.get(n) != theirs.get(n)]
    if wrong:
        sys.exit("the structs of this script are not those of santa.h (offset, size):\n  " + "\n  ".join(wrong))
    return lib


def require(lib, status, what):
    if status:
        sys.exit(f"{what}: {lib.santa_status_string(status).decode()} ({status})")


def view(data, shape, stride, dtype, device):
    return Tensor(data, (C.c_int64 * 4)(*shape), (C.c_int64 * 4)(*stride), dtype, device)


def check(lib):
    """On the CPU: dense against a softmax in plain Python, prop against sys bit for bit, and a bad argument."""
    n, heads, kv_heads, dim = 200, 6, 2, 16
    rng = random.Random(1)

    def tensor(*shape):
        a = (C.c_float * math.prod(shape))(*(rng.gauss(0, 1) for _ in range(math.prod(shape))))
        return a, view(C.addressof(a), shape, [math.prod(shape[i + 1:]) for i in range(4)], F32, CPU)
    shapes = (1, heads), (n, kv_heads), (n, kv_heads), (1, heads)
    (q, qt), (k, kt), (v, vt), (out, ot) = (tensor(1, rows, h, dim) for rows, h in shapes)

    def decode(method, samples=0, **more):
        a, stats = Attention(q=qt, k=kt, v=vt, out=ot, **more), Stats()
        o = Options(method=method, num_samples=samples, seed=7)
        bytes_ = lib.santa_workspace_size(a, o)
        if not bytes_:
            return lib.santa_check(a, o), None, stats
        workspace = C.create_string_buffer(bytes_)
        return lib.santa_decode(a, o, workspace, bytes_, C.byref(stats)), list(out), stats

    status, got, stats = decode(DENSE)
    require(lib, status, "dense")
    worst = 0.0
    for h in range(heads):
        g = h // (heads // kv_heads)
        rows = [(j * kv_heads + g) * dim for j in range(n)]
        s = [sum(q[h * dim + c] * k[r + c] for c in range(dim)) / math.sqrt(dim) for r in rows]
        w = [math.exp(x - max(s)) for x in s]
        for c in range(dim):
            want = sum(wi * v[r + c] for wi, r in zip(w, rows)) / sum(w)
            worst = max(worst, abs(got[h * dim + c] - want))
    if worst > 1e-5 or (stats.keys, stats.k_rows_read, stats.v_rows_read) != (n * kv_heads,) * 3:
        sys.exit(f"dense on the CPU: off by {worst:g}, {stats.k_rows_read} rows of K and {stats.v_rows_read} of V read")
    (s1, comb, st), (s2, cut, _) = decode(SYS, 32), decode(PROP, 32)
    if s1 or s2 or comb != cut or comb == got or not 0 < st.v_rows_read < n * kv_heads:
        sys.exit("sys and prop on the CPU do not agree")
    window = decode(DENSE, window=-1)[0]
    if b"window" not in lib.santa_status_string(window):
        sys.exit(f"a negative window gave status {window}")
    return worst


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

    def __init__(self, name, call, kv_bytes, exact=False, samples=0, stash=""):
        self.name, self.call, self.kv_bytes = name, call, kv_bytes
        self.exact, self.samples, self.stash = exact, samples, stash
        self.variant = name                              # methods of one name compete: the fastest is shown
        self.us, self.error = {}, {}

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


def santa_methods(torch, lib, q, k, v):
    def tensor(t):
        return view(t.data_ptr(), t.shape, t.stride(), BF16, CUDA)
    methods = []
    for name, method, samples, stash in (("santa dense", DENSE, 0, ""), ("santa prop", PROP, 128, "f32"),
                                         ("santa prop", PROP, 128, "u8"), ("santa flash", FLASH, 2048, "u8")):
        out = torch.empty_like(q)
        a = Attention(q=tensor(q), k=tensor(k), v=tensor(v), out=tensor(out))
        o = Options(method=method, num_samples=samples, stash=STASH[stash or "default"], seed=7)
        need = lib.santa_workspace_size(a, o)
        if not need:
            require(lib, lib.santa_check(a, o), name)
        workspace = torch.empty(need, dtype=torch.uint8, device=q.device)

        def call(stats=None, a=a, o=o, workspace=workspace, out=out, name=name):
            o.stream = torch.cuda.current_stream().cuda_stream
            require(lib, lib.santa_decode(a, o, workspace.data_ptr(), workspace.numel(), stats), name)
            return out

        def kv_bytes(call=call):
            stats = torch.zeros(C.sizeof(Stats), dtype=torch.uint8, device=q.device)
            call(stats.data_ptr())
            s = Stats.from_buffer_copy(bytes(stats.cpu().tolist()))
            return (s.k_rows_read + s.v_rows_read) * DIM * k.element_size()
        methods.append(Method(name, call, kv_bytes, method == DENSE, samples, stash))
        methods[-1].variant = name + (f" S={samples} {stash}" if samples else "")
    return methods


# ---------------------------------------------------------------------------------------------- the run

def cause(e):
    return f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[0]}"


def median_us(torch, graph, thrash, runs):
    times = []
    for i in range(-(runs // 4), runs):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        thrash.add_(1.0)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if i >= 0:
            times.append(1e3 * start.elapsed_time(stop))
    return statistics.median(times)


def run_shape(torch, lib, batch, n, runs, thrash, peers):
    """All methods at one shape: (floor's Method, methods in order, effective keys by input)."""
    device, dtype = "cuda", torch.bfloat16
    q = torch.empty(batch, 1, HEADS, DIM, device=device, dtype=dtype)
    k, v = (torch.empty(batch, n, KV_HEADS, DIM, device=device, dtype=dtype) for _ in range(2))
    sink = torch.zeros(1, dtype=torch.int32, device=device)
    fill_gauss(torch, q, k, v, 1)

    def read():
        code = lib.bench_read(k.data_ptr(), k.nbytes, sink.data_ptr(), torch.cuda.current_stream().cuda_stream)
        if code:
            sys.exit(f"floor: CUDA error {code}")

    floor, ready, effective = Method("floor", read, lambda: k.nbytes), [], {}
    floor.capture(torch)
    candidates = []
    for make in peers:
        try:
            candidates += make(torch, q, k, v)
        except Exception as e:                           # a peer that cannot run here is said, not fatal
            print(f"# {batch} x {n}: {make.__name__}: {cause(e)}", flush=True)
    for m in candidates + santa_methods(torch, lib, q, k, v):
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
        torch.cuda.synchronize()
        for m in [floor] + ready:
            m.us[name] = median_us(torch, m.graph, thrash, runs)
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
    round has both; the medians of the rounds' medians."""
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
                seen = 0 if row["method"] == "dense" else seen + 1
                name = "santa dense" if not seen else f"santa sample-attention, {(10, 5)[seen - 1]} % wanted"
                times.setdefault((int(row["n"]), name), []).append(
                    (float(row["ms"]), float(row["kept_share"]), float(row["stages_1_2_ms"])))
    rows = []
    print(f"{'n':>7} {'method':<40} {'ms':>9} {'TFLOP/s':>8} {'x cuDNN':>8} {'best/this':>9} {'kept %':>7} {'stages 1+2':>10}")
    for (n, name), rounds in sorted(times.items(), key=lambda x: x[0][0]):
        ms, kept, before = (statistics.median(x) for x in zip(*rounds))
        best = min(statistics.median(r[0] for r in times[key]) for key in times
                   if key[0] == n and "sample" not in key[1])
        flops, cudnn = 2.0 * DIM * HEADS * n * (n + 1), times.get((n, "cuDNN"))
        rate = flops / ms * 1e-9 if "sample" not in name else math.nan
        over = statistics.median(r[0] for r in cudnn) / ms if cudnn else math.nan
        print(f"{n:>7} {name:<40} {ms:9.3f} {rate:8.0f} {over:8.2f} {best / ms:9.2f} {100 * kept:7.2f} {before:10.3f}")
        rows.append({"n": n, "method": name, "ms": f"{ms:.4f}", "tflops": f"{rate:.1f}", "cudnn_over_method": f"{over:.3f}",
                     "best_exact_over_method": f"{best / ms:.3f}", "kept_share": f"{kept:.4f}",
                     "stages_1_2_ms": f"{before:.4f}"})
    if path:
        with open(path, "w", newline="") as f:
            writer = csv.DictWriter(f, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


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
    parser.add_argument("--arch", default="native", help="nvcc's -arch (default: native)")
    parser.add_argument("--lib", metavar="FILE", help="a library built before; nothing is compiled")
    parser.add_argument("--check", action="store_true", help="compare structs and decode on the CPU, then stop")
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
    lib = load(args.lib or build(args.arch))
    worst = check(lib)
    if args.check:
        print(f"ok: {len(MIRRORS)} structs agree with santa.h; dense on the CPU within {worst:.1e} of a softmax; "
              "prop draws as sys")
        return 0

    torch = torch_with_device()
    if not torch:
        return 0
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
          f"{runs // 4} warm-up and {runs} timed CUDA-graph replays, each after a 512 MB read and write; median")
    peers = [sdpa_methods]
    try:
        import flashinfer  # noqa: F401                    may also fail for want of a compiler or a driver
        peers.append(flashinfer_methods)
    except Exception as e:
        print(f"# FlashInfer is not in the table: import flashinfer: {cause(e)} (pip install flashinfer-python)")
    print("# us: gauss and peaked inputs; TB/s: K and V bytes needed per time (gauss); x floor: over reading K once "
          "(gauss);\n# best/this: fastest exact row over this one (gauss, peaked); "
          "error: median relative L2 (gauss, peaked)")
    print(f"{'batch x context':<16} {'method':<42} {'us':>9} {'peaked':>9} {'TB/s':>6} {'x floor':>8} {'best/this':>9} "
          f"{'peaked':>7} {'error':>9} {'peaked':>9}", flush=True)
    rows, failed = [], False
    thrash = torch.zeros(512 << 18, device="cuda")       # f32: 512 MB
    for batch, n in [(1, 32768), (8, 32768)] if args.quick else SHAPES:
        with torch.inference_mode():
            floor, methods, effective = run_shape(torch, lib, batch, n, runs, thrash, peers)
        wrong = {m.variant for m in methods if m.exact and not max(m.error.values()) <= EXACT_TOLERANCE}
        failed |= any(w.startswith("santa") for w in wrong)
        best = {i: min(m.us[i] for m in methods if m.exact and m.variant not in wrong) for i in ("gauss", "peaked")}
        shape = f"{batch} x {n}"
        print(f"{shape:<16} {'floor: K read once':<42} {floor.us['gauss']:9.1f} {floor.us['peaked']:9.1f} "
              f"{floor.bytes / floor.us['gauss'] * 1e-6:6.2f} {1:8.2f}   effective keys: "
              f"gauss {effective['gauss']:.0f}, peaked {effective['peaked']:.0f}")
        for m in methods:
            us, peaked = m.us["gauss"], m.us["peaked"]
            ratio = {i: best[i] / m.us[i] for i in best}
            print(f"{shape:<16} {m.variant:<42} {us:9.1f} {peaked:9.1f} {m.bytes / us * 1e-6:6.2f} "
                  f"{us / floor.us['gauss']:8.2f} {ratio['gauss']:9.2f} "
                  f"{ratio['peaked']:7.2f} {m.error['gauss']:9.2e} {m.error['peaked']:9.2e}"
                  f"{'  WRONG' if m.variant in wrong else ''}")
            rows.append({"type": "bf16", "batch": batch, "context": n, "layout": "NHD", "method": m.name,
                         "variant": m.variant, "num_samples": m.samples, "stash": m.stash, "exact": int(m.exact),
                         "us": f"{us:.2f}",
                         "us_peaked": f"{peaked:.2f}", "floor_us": f"{floor.us['gauss']:.2f}", "bytes": m.bytes,
                         "tb_per_s": f"{m.bytes / us * 1e-6:.3f}", "over_floor": f"{us / floor.us['gauss']:.3f}",
                         "best_exact_over_method": f"{ratio['gauss']:.3f}",
                         "best_exact_over_method_peaked": f"{ratio['peaked']:.3f}",
                         "error": f"{m.error['gauss']:.3e}", "error_peaked": f"{m.error['peaked']:.3e}",
                         "effective_keys": f"{effective['gauss']:.1f}",
                         "effective_keys_peaked": f"{effective['peaked']:.1f}"})
        sys.stdout.flush()
        del floor, methods, m                            # the graphs hold this shape's tensors
        torch.cuda.empty_cache()
    if args.csv:
        with open(args.csv, "w", newline="") as f:
            writer = csv.DictWriter(f, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
