#!/usr/bin/env python3
"""ggml's exact decode attention and santa.h on this CPU, in one table from one run. Optional; needs a C compiler and

    pip install llama-cpp-python numpy                 # CMAKE_ARGS=-DGGML_NATIVE=ON builds ggml for this machine
    python3 bench/peers_cpu.py [--csv FILE] [--quick] [--n 4096,32768] [--types f16,q8_0] [--layouts NHD,HND]
                               [--threads 1,2] [--rounds 9] [--ggml DIR] [--peer NAME]

Peers: the ggml that llama-cpp-python brings, or the shared libraries of a build of llama.cpp or ik_llama.cpp in DIR,
called as llama.cpp does: "ggml FA" is one ggml_flash_attn_ext with an f16 mask; "ggml -fa off" is mul_mat,
soft_max_ext, mul_mat with V stored feature by feature, which llama.cpp does not offer for q8_0. Each is tried in a
process of its own first: what aborts there has no row (ik_llama.cpp's FA of f32). Ours is santa.h, compiled here:
    cc -O3 -fopenmp -shared -fPIC -o build/libsanta_peers.so bench/peers_cpu.c -lm
"santa pps 128, copy" draws from copies of K in 4 bits, made once for each K, before the timing.

With --prefill: as many query rows as keys, causal, 4 query heads and one KV head, exact: one ggml_flash_attn_ext with
a causal f16 mask against ours; of bf16 our q and output are bf16, too, theirs f32. Times are processor time over
threads, which counts ggml's waiting at its barriers, and wall time.

One decode step, batch 1, 32 query heads, 8 KV heads, head_dim 128. NHD (token-major) is the layout of llama.cpp's
cache, HND is head-major. All read the same bytes in memory: several copies of K and V in turn, together larger than
the last-level cache. All run on the same OpenMP team where ggml uses OpenMP. In every round each method runs once with
each number of threads; the first round warms up; the table has the median of the others, and ratios of the least times,
unless times spread too much for a verdict. The floor reads K once.

Inputs: 'gauss' is all standard normal: attention is nearly uniform, the exact output nearly zero, and the relative
error of any sampler large. 'peaked' is closer to real heads: 256 keys share a direction with the group's queries and
hold about 85 % of the mass, the first key (sink) about 5 %, the rest is spread over the context; V has a mean of half
its spread. Errors are |out - exact| / |exact|, median over heads; exact is a softmax in float64 on the numbers as
stored, so what storing them in fewer bits costs is in no row. Times are of the Gaussian input.
"""
import argparse
import ctypes as C
import datetime
import glob
import importlib.util
import math
import os
import platform
import statistics
import subprocess
import sys
import time

from peers import InitParams, bind_ggml, write_csv

try:
    import numpy as np
except ImportError:
    sys.exit("skipped: numpy is not installed (pip install llama-cpp-python numpy)")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS, KV_HEADS, DIM, SAMPLES = 32, 8, 128, 128
HOT_KEYS, HOT_MASS, SINK_MASS, QUERY_SHARED, QUERY_OWN, V_MEAN = 256, 0.85, 0.05, 8.0, 0.7, 0.5
SCALE = 1.0 / math.sqrt(DIM)
ROW = {"f32": 4 * DIM, "f16": 2 * DIM, "bf16": 2 * DIM, "q8_0": DIM // 32 * 34}       # bytes of one K or V row
GGML_TYPE = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
GGML_PREC_F32 = 10
MASK_ROWS = 64                                        # of which one is used; older versions ask for multiples of 64 or 16
BASELINES = {"fa_over_method": "FA", "fa_off_over_method": "-fa off", "dense_over_method": "santa dense"}
TOO_BUSY = 1.5                                        # p90 / p10 of times from which on no conclusion is drawn
COLD_BYTES = 3 << 28                                  # K halves of the copies hold 384 MB and more

# ---------------------------------------------------------------------------------------------- santa.h


class Case(C.Structure):
    """peer_case of peers_cpu.c."""
    _fields_ = ([("type", C.c_char_p), ("layout", C.c_char_p)] +
                [(f, C.c_int64) for f in "n heads kv_heads num_samples threads q8 from_copy".split()] +
                [("seed", C.c_uint64)] + [(f, C.c_void_p) for f in "q k v out copy workspace".split()] +
                [("workspace_bytes", C.c_size_t)])


def load_santa():
    path = os.path.join(ROOT, "build", "libsanta_peers.so")
    sources = [os.path.join(ROOT, f) for f in ("bench/peers_cpu.c", "bench/bench.h", "bench/gain.h", "santa.h")]
    if not os.path.exists(path) or os.path.getmtime(path) < max(map(os.path.getmtime, sources)):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        command = [os.environ.get("CC", "cc"), "-O3", "-fopenmp", "-shared", "-fPIC", "-o", path, sources[0], "-lm"]
        print("#", " ".join(command), file=sys.stderr, flush=True)
        subprocess.run(command, check=True)
    lib = C.CDLL(path)
    lib.peer_check.restype = lib.peer_decode.restype = lib.peer_copy.restype = C.c_char_p
    lib.peer_prefill.restype = C.c_char_p
    lib.peer_workspace_size.restype = lib.peer_copy_size.restype = lib.peer_prefill_workspace_size.restype = C.c_size_t
    for function in (lib.peer_check, lib.peer_decode, lib.peer_copy, lib.peer_workspace_size, lib.peer_copy_size,
                     lib.peer_prefill, lib.peer_prefill_workspace_size):
        function.argtypes = [C.POINTER(Case)]
    lib.peer_read.restype = C.c_uint64
    lib.peer_read.argtypes = [C.c_void_p, C.c_size_t, C.c_int64]
    lib.peer_encode.argtypes = [C.c_char_p, C.c_void_p, C.c_void_p, C.c_int64]
    return lib


# ---------------------------------------------------------------------------------------------- ggml

PROTOTYPES = """
    ptr ggml_init InitParams; void ggml_free ptr; void ggml_set_output ptr
    ptr ggml_new_tensor_4d ptr int i64 i64 i64 i64; ptr ggml_get_data ptr; size ggml_nbytes ptr
    ptr ggml_permute ptr ptr int int int int; ptr ggml_cont ptr ptr; ptr ggml_mul_mat ptr ptr ptr
    ptr ggml_soft_max_ext ptr ptr ptr f32 f32; ptr ggml_flash_attn_ext ptr ptr ptr ptr ptr f32 f32 f32
    ptr ggml_new_graph ptr; void ggml_build_forward_expand ptr ptr
    ptr ggml_backend_alloc_ctx_tensors ptr ptr; void ggml_backend_buffer_free ptr
    ptr ggml_backend_cpu_buffer_type; ptr ggml_gallocr_new ptr; void ggml_gallocr_free ptr
    bool ggml_gallocr_alloc_graph ptr ptr
    ptr ggml_backend_cpu_init; void ggml_backend_cpu_set_n_threads ptr int; int ggml_backend_graph_compute ptr ptr
"""


class Ggml:
    """The functions of PROTOTYPES, without their prefix."""

    def __init__(self, folder):
        libs = []
        for names in (("libggml-base", "libggml-cpu"), ("libggml",)):         # older versions and ik_llama.cpp have one
            found = [glob.glob(os.path.join(folder, name + end)) for name in names for end in (".so", ".dylib")]
            found = [paths[0] for paths in found if paths]
            if len(found) == len(names):
                libs = [C.CDLL(os.path.abspath(path), mode=C.RTLD_GLOBAL) for path in found]
                break
        else:
            sys.exit(f"skipped: no libggml-base and libggml-cpu, and no libggml in {folder} (a build with its own choice "
                     "of CPU libraries? pip install --no-binary llama-cpp-python llama-cpp-python)")
        bind_ggml(self, libs, PROTOTYPES)
        self.base = libs[0]
        self.backend = self.backend_cpu_init()

    def in_f32(self, op, tensor):
        """Asks for sums in f32, as llama.cpp does. What has no version has another number for that, and needs no asking."""
        if not self.version:
            return tensor
        set_precision = getattr(self.base, "ggml_prec_set_acc", None) or getattr(self.base, f"ggml_{op}_set_prec")
        set_precision.argtypes, set_precision.restype = [C.c_void_p, C.c_int], None
        set_precision(tensor, GGML_PREC_F32)
        return tensor

    def run(self, graph, threads):
        self.backend_cpu_set_n_threads(self.backend, threads)
        if self.backend_graph_compute(self.backend, graph):
            sys.exit("ggml_backend_graph_compute failed")


def find_ggml(folder):
    if not folder:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None:
            sys.exit("skipped: llama_cpp is not installed (pip install llama-cpp-python numpy)")
        folder = os.path.join(spec.submodule_search_locations[0], "lib")
    return Ggml(folder)


class Shared:
    """What copies share: a context (there may be 64 at most), and the memory of what a graph computes, by its name, as in
    llama.cpp all layers share it."""

    def __init__(self, g, copies):
        self.g, self.ctx, self.allocators = g, g.init(InitParams(copies << 20, None, True)), {}

    def allocate(self, name, graph):
        if name not in self.allocators:
            self.allocators[name] = self.g.gallocr_new(self.g.backend_cpu_buffer_type())
        return self.g.gallocr_alloc_graph(self.allocators[name], graph)

    def free(self):
        for allocator in self.allocators.values():
            self.g.gallocr_free(allocator)
        self.g.free(self.ctx)


class Copy:
    """One copy of K and V, allocated by ggml as llama.cpp has its cache allocated, with the graphs that attend to it."""

    def __init__(self, g, shared, peer, kind, layout, n):
        self.g, self.ctx = g, shared.ctx

        def tensor(t, *shape):
            return g.new_tensor_4d(self.ctx, GGML_TYPE[t], *shape, *[1] * (4 - len(shape)))

        def heads_outside(t):                                                 # [DIM, heads, tokens] -> [DIM, tokens, heads]
            return g.permute(self.ctx, t, 0, 2, 1, 3)

        def graph(name, result):
            built = g.new_graph(self.ctx)
            g.set_output(result)
            g.build_forward_expand(built, result)
            if not shared.allocate(name, built):
                sys.exit("out of memory")
            return built
        shape = (DIM, KV_HEADS, n) if layout == "NHD" else (DIM, n, KV_HEADS)
        k, v = tensor(kind, *shape), tensor(kind, *shape)
        v_features = tensor(kind, n, DIM, KV_HEADS) if kind != "q8_0" else None
        q, mask = tensor("f32", DIM, HEADS, 1), tensor("f16", n, MASK_ROWS)
        self.buffer = g.backend_alloc_ctx_tensors(self.ctx, g.backend)
        if not self.buffer:
            sys.exit("out of memory")
        rows, kr, vr = heads_outside(q), k, v
        if layout == "NHD":
            kr, vr = heads_outside(k), heads_outside(v)
        results = {f"{peer} FA": g.in_f32("flash_attn_ext", g.flash_attn_ext(self.ctx, rows, kr, vr, mask, SCALE, 0, 0))}
        if v_features:
            p = g.soft_max_ext(self.ctx, g.in_f32("mul_mat", g.mul_mat(self.ctx, kr, rows)), mask, SCALE, 0)
            results[f"{peer} -fa off"] = g.cont(self.ctx, heads_outside(g.mul_mat(self.ctx, v_features, p)))
        self.graphs = {name: graph(name, result) for name, result in results.items()}
        self.k, self.v, self.q = map(g.get_data, (k, v, q))
        self.v_features = g.get_data(v_features) if v_features else None
        self.out = {name: g.get_data(result) for name, result in results.items()}
        C.memset(g.get_data(mask), 0, g.nbytes(mask))

    def free(self):
        self.g.backend_buffer_free(self.buffer)


# ---------------------------------------------------------------------------------------------- inputs and reference

def gauss(n, rng):
    return [rng.standard_normal(shape, np.float32) for shape in ((HEADS, DIM), (n, KV_HEADS, DIM), (n, KV_HEADS, DIM))]


def peaked(n, rng):
    """See the head of the file. Per unit along u, a KV head's direction, a score gains QUERY_SHARED / sqrt(DIM)."""
    _, k, v = gauss(n, rng)
    u = rng.standard_normal((KV_HEADS, DIM), np.float32)
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    own = rng.standard_normal((KV_HEADS, HEADS // KV_HEADS, DIM), np.float32) * QUERY_OWN
    own -= (own * u[:, None]).sum(-1, keepdims=True) * u[:, None]
    q = (own + QUERY_SHARED * u[:, None]).reshape(HEADS, DIM)
    per_score, rest = math.sqrt(DIM) / QUERY_SHARED, 1.0 - HOT_MASS - SINK_MASS
    variance = (QUERY_OWN ** 2 * (DIM - 1) + QUERY_SHARED ** 2) / DIM                 # of a score of a normal key
    for h in range(KV_HEADS):
        hot = rng.integers(1, n, HOT_KEYS)
        k[hot, h] += u[h] * per_score * math.log(HOT_MASS / rest * n / HOT_KEYS)
    k[0] = u * per_score * (math.log(SINK_MASS / rest * n) + variance / 2)
    v += V_MEAN * rng.standard_normal((1, KV_HEADS, DIM), np.float32)
    return q, k, v


def encode(lib, kind, x):
    """x's numbers in a type's bytes."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty(x.size // DIM * ROW[kind], np.uint8)
    lib.peer_encode(kind.encode(), x.ctypes.data, out.ctypes.data, x.size)
    return out


def decode(kind, data, shape):
    if kind == "q8_0":
        blocks = data.view([("scale", "<f2"), ("x", "i1", 32)])
        return (blocks["scale"].astype(np.float32)[:, None] * blocks["x"]).reshape(shape)
    if kind == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return data.view({"f32": np.float32, "f16": np.float16}[kind]).astype(np.float32).reshape(shape)


def reference(q, k, v):
    """(out [HEADS, DIM] in float64, median effective number of keys) of k and v [n, KV_HEADS, DIM]."""
    out, effective, group = np.empty((HEADS, DIM)), [], HEADS // KV_HEADS
    for h in range(KV_HEADS):
        rows = slice(h * group, (h + 1) * group)
        s = q[rows].astype(np.float64) @ k[:, h].astype(np.float64).T * SCALE
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out[rows] = p @ v[:, h].astype(np.float64)
        effective += list(1.0 / np.square(p).sum(-1))
    return out, statistics.median(effective)


def relative_error(got, want):
    return float(np.median(np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)))


def fill(lib, copies, kind, layout, q, k, v):
    """Writes the input to every copy; returns k and v as stored."""
    axes = (0, 1, 2) if layout == "NHD" else (1, 0, 2)
    kb, vb = (encode(lib, kind, x.transpose(axes)) for x in (k, v))
    features = encode(lib, kind, v.transpose(1, 2, 0)) if copies[0].v_features else None
    for c in copies:
        C.memmove(c.k, kb.ctypes.data, kb.nbytes)
        C.memmove(c.v, vb.ctypes.data, vb.nbytes)
        C.memmove(c.q, np.ascontiguousarray(q).ctypes.data, q.nbytes)
        if features is not None:
            C.memmove(c.v_features, features.ctypes.data, features.nbytes)
    shape = [k.shape[a] for a in axes]
    return (decode(kind, x, shape).transpose(axes) for x in (kb, vb))


# ---------------------------------------------------------------------------------------------- methods and the run

class Method:
    """call(copy, threads) runs once; output(copy) is [HEADS, DIM] of the last run on that copy, None for the floor;
    prepare(copy) is for a new input, and not timed."""

    def __init__(self, name, call, output, samples=0, prepare=lambda copy: None):
        self.name, self.call, self.output, self.samples, self.prepare = name, call, output, samples, prepare
        self.seconds, self.error = {}, {}


def floats(address):
    return np.ctypeslib.as_array(C.cast(address, C.POINTER(C.c_float)), (HEADS, DIM)).astype(np.float64)


def ggml_methods(g, copies, args, kind, layout):
    return [Method(name, lambda c, t, name=name: g.run(c.graphs[name], t), lambda c, name=name: floats(c.out[name]))
            for name in copies[0].graphs if runs(name, args, kind, layout)]


def runs(name, args, kind, layout):
    """Whether the peer computes that: it aborts where it cannot, so another process tries."""
    command = [sys.executable, __file__, "--probe", name, "--peer", args.peer, "--types", kind, "--layouts", layout]
    command += ["--ggml", args.ggml] if args.ggml else []
    done = subprocess.run(command, capture_output=True, env={**os.environ, "GGML_NO_BACKTRACE": "1"})
    if done.returncode:
        print(f"# {name}, {kind}, {layout}: does not run")
    return not done.returncode


def probe(g, args):
    """That try."""
    c = Copy(g, Shared(g, 1), args.peer, args.types[0], args.layouts[0], 256)
    C.memset(c.q, 0, 4 * HEADS * DIM)
    g.run(c.graphs[args.probe], 1)


def santa_methods(lib, kind, layout, n, copies, threads):
    methods = []
    kinds = [("santa dense", 0, 0, 0), (f"santa sys {SAMPLES}", SAMPLES, 0, 0)]
    if kind == "q8_0":
        kinds += [(f"{name}, 8-bit q", samples, 1, 0) for name, samples, *_ in kinds]
    kinds.append((f"santa pps {SAMPLES}, copy", SAMPLES, 0, 1))
    for name, samples, q8, from_copy in kinds:
        out = np.empty((HEADS, DIM), np.float32)
        case = Case(kind.encode(), layout.encode(), n, HEADS, KV_HEADS, samples, 1, q8, from_copy, 7, copies[0].q,
                    copies[0].k, copies[0].v, out.ctypes.data)
        four_bits = {}                                                        # by K's address
        if from_copy:
            four_bits = {c.k: aligned(lib.peer_copy_size(case)) for c in copies}
            case.copy = four_bits[case.k].ctypes.data
        refusal = lib.peer_check(case)
        if refusal:
            print(f"# {name}, {kind}: {refusal.decode()}")
            continue
        size = 0
        for case_threads in threads:                                          # more threads may need less
            case.threads = case_threads
            size = max(size, lib.peer_workspace_size(case))
        workspace = np.empty(size, np.uint8)
        case.workspace, case.workspace_bytes = workspace.ctypes.data, workspace.nbytes

        def call(c, threads, run=lib.peer_decode, case=case, four_bits=four_bits, workspace=workspace):
            case.q, case.k, case.v, case.threads = c.q, c.k, c.v, threads     # the defaults keep the memory alive
            case.copy = four_bits[c.k].ctypes.data if four_bits else None
            wrong = run(case)
            if wrong:
                sys.exit(wrong.decode())

        def prepare(c, call=call, from_copy=from_copy):
            if from_copy:
                call(c, 1, lib.peer_copy)
        methods.append(Method(name, call, lambda c, out=out: out.astype(np.float64), samples, prepare))
    return methods


def aligned(size):
    """size bytes from the start of a cache line."""
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start:start + size]


def progress(text):
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def run_shape(lib, g, args, kind, layout, n, rounds):
    """Times all methods at one shape; returns the rows of the table."""
    threads, kv_bytes = args.threads, 2 * ROW[kind] * KV_HEADS * n
    count = -(-COLD_BYTES // kv_bytes)
    shared = Shared(g, count)
    copies = [Copy(g, shared, args.peer, kind, layout, n) for _ in range(count)]
    methods = [Method("read K once", lambda c, t: lib.peer_read(c.k, kv_bytes // 2, t), None)]
    methods += ggml_methods(g, copies, args, kind, layout) + santa_methods(lib, kind, layout, n, copies, threads)
    effective, where = {}, f"{n} {kind} {layout}"
    for name, make in (("peaked", peaked), ("gauss", gauss)):                 # the timed one last
        progress(f"{where}: {name} input and its float64 reference")
        q, k, v = make(n, np.random.default_rng(1))
        want, effective[name] = reference(q, *fill(lib, copies, kind, layout, q, k, v))
        del k, v
        for m in methods:
            for c in copies:
                m.prepare(c)
            m.call(copies[0], threads[-1])
            m.error[name] = relative_error(m.output(copies[0]), want) if m.output else 0.0
    turn = 0
    for r in range(-1, rounds):
        progress(f"{where}: round {r + 1} of {rounds}")
        for t in threads:
            for m in methods:
                turn += 1
                start = time.perf_counter()
                m.call(copies[turn % len(copies)], t)
                if r >= 0:
                    m.seconds.setdefault(t, []).append(time.perf_counter() - start)
    progress("")
    for c in copies + [shared]:
        c.free()
    return [row for t in threads for row in report(args.peer, methods, effective, n, kind, layout, t)]


def busy(*times):
    """p90 / p10 of the series of times that spreads most."""
    ordered = [sorted(t) for t in times]
    return max(t[len(t) - 1 - len(t) // 10] / t[len(t) // 10] for t in ordered)


def report(peer, methods, effective, n, kind, layout, threads):
    """Prints the rows of one shape and number of threads; returns them for the CSV file."""
    times = {m.name: m.seconds[threads] for m in methods}
    worst = 0.0
    print(f"\n{n} keys, {kind}, {layout}, {threads} thread{'s' * (threads > 1)}\n"
          f"{'':<23} {'ms':>9} {'range':<17} {'/read K':>7} {'FA/x':>6} {'off/x':>6} {'dense/x':>7} {'error':>8} {'peaked':>8}")
    for m in methods:
        median, low, high = (1e3 * f(times[m.name]) for f in (statistics.median, min, max))
        ratio, shown = {}, []
        for column, of in BASELINES.items():
            baseline = of if of in times else f"{peer} {of}"
            known = baseline in times
            ratio[column] = min(times[baseline]) / min(times[m.name]) if known else math.nan
            spread = busy(times[m.name], times[baseline]) if known and baseline != m.name else 1.0
            worst = max(worst, spread)
            shown.append("-" if not known else "?" if spread > TOO_BUSY else f"{ratio[column]:.2f}")
        over = median / (1e3 * statistics.median(times["read K once"]))
        errors = f"{m.error['gauss']:8.1e} {m.error['peaked']:8.1e}" if m.output else ""
        spread = f"({low:.2f}..{high:.2f})"
        print(f"{m.name:<23} {median:9.3f} {spread:<17} {over:7.2f} {shown[0]:>6} {shown[1]:>6} {shown[2]:>7} "
              f"{errors}".rstrip(), flush=True)
        yield {"n": n, "type": kind, "layout": layout, "threads": threads, "method": m.name, "num_samples": m.samples,
               "median_ms": f"{median:.4f}", "low_ms": f"{low:.4f}", "high_ms": f"{high:.4f}", "over_read_k": f"{over:.3f}",
               **{column: f"{r:.3f}" if r == r else "" for column, r in ratio.items()},
               "error": f"{m.error['gauss']:.3e}", "error_peaked": f"{m.error['peaked']:.3e}",
               "effective_keys": f"{effective['gauss']:.1f}", "effective_keys_peaked": f"{effective['peaked']:.1f}",
               "p90_over_p10": f"{busy(times[m.name]):.3f}"}
    if worst > TOO_BUSY:
        print(f"?: no verdict (machine too busy: p90/p10 = {worst:.2f})")


# ---------------------------------------------------------------------------------------------- prefill

PREFILL_HEADS = 4


def ggml_prefill(g, kind, n, q, kb, vb):
    """(context, graph, address of the output): flash attention of n rows with a causal mask, one KV head."""
    ctx = g.init(InitParams(1 << 20, None, True))

    def tensor(t, *shape):
        return g.new_tensor_4d(ctx, GGML_TYPE[t], *shape, *[1] * (4 - len(shape)))
    k, v, rows, mask = tensor(kind, DIM, n, 1), tensor(kind, DIM, n, 1), tensor("f32", DIM, PREFILL_HEADS, n), \
        tensor("f16", n, n)
    if not g.backend_alloc_ctx_tensors(ctx, g.backend):
        sys.exit("out of memory")
    result = g.in_f32("flash_attn_ext", g.flash_attn_ext(ctx, g.permute(ctx, rows, 0, 2, 1, 3), k, v, mask, SCALE, 0, 0))
    graph = g.new_graph(ctx)
    g.set_output(result)
    g.build_forward_expand(graph, result)
    if not g.gallocr_alloc_graph(g.gallocr_new(g.backend_cpu_buffer_type()), graph):
        sys.exit("out of memory")
    hidden = np.triu(np.full((n, n), -np.inf, np.float16), 1)
    for to, data in ((k, kb), (v, vb), (rows, q), (mask, hidden)):
        C.memmove(g.get_data(to), data.ctypes.data, data.nbytes)
    return ctx, graph, g.get_data(result)


def run_prefill(lib, g, args, kind, n, rounds):
    rng = np.random.default_rng(1)
    q = rng.standard_normal((n, PREFILL_HEADS, DIM), np.float32)
    of_rows = "bf16" if kind == "bf16" else "f32"
    rows = encode(lib, of_rows, q)
    q = np.ascontiguousarray(decode(of_rows, rows, q.shape))                  # theirs: the same numbers
    k, v = (encode(lib, kind, rng.standard_normal((n, 1, DIM), np.float32)) for _ in range(2))
    ctx, graph, theirs = ggml_prefill(g, kind, n, q, k, v)
    out = np.empty_like(rows)
    case = Case(kind.encode(), b"HND", n, PREFILL_HEADS, 1, 0, max(args.threads), 0, 0, 7,
                rows.ctypes.data, k.ctypes.data, v.ctypes.data, out.ctypes.data)
    workspace = np.empty(lib.peer_prefill_workspace_size(case), np.uint8)
    case.workspace, case.workspace_bytes = workspace.ctypes.data, workspace.nbytes

    def ours(threads):
        case.threads = threads
        wrong = lib.peer_prefill(case)
        if wrong:
            sys.exit(wrong.decode())
    methods = {f"{args.peer} FA": lambda threads: g.run(graph, threads), "santa dense": ours}
    times = {(name, t): [] for name in methods for t in args.threads}
    for r in range(-1, rounds):
        progress(f"{n} {kind}: round {r + 1} of {rounds}")
        for name, t in times:
            wall, cpu = time.perf_counter(), time.process_time()
            methods[name](t)
            if r >= 0:
                times[name, t].append(((time.process_time() - cpu) / t, time.perf_counter() - wall))
    progress("")
    out = decode(of_rows, out, q.shape)
    got = np.ctypeslib.as_array(C.cast(theirs, C.POINTER(C.c_float)), out.shape)
    difference = float(np.linalg.norm(got - out) / np.linalg.norm(out))
    g.free(ctx)
    for t in args.threads:
        base = min(times[f"{args.peer} FA", t])[0]
        for name in methods:
            cpu, wall = sorted(x[0] for x in times[name, t]), min(x[1] for x in times[name, t])
            rate = 2.0 * DIM * PREFILL_HEADS * n * (n + 1) / cpu[0] * 1e-9
            print(f"{name:<15} {kind:<5} {n:>6} {t:>2} {1e3 * cpu[0]:>10.1f} {1e3 * cpu[len(cpu) // 2]:>9.1f} "
                  f"{1e3 * wall:>9.1f} {rate:>8.1f} {base / cpu[0]:>6.2f} {difference:>9.1e}", flush=True)
            yield {"n": n, "type": kind, "threads": t, "method": name, "least_cpu_ms": f"{1e3 * cpu[0]:.2f}",
                   "median_cpu_ms": f"{1e3 * cpu[len(cpu) // 2]:.2f}", "least_wall_ms": f"{1e3 * wall:.2f}",
                   "gflops": f"{rate:.1f}", "fa_over_method": f"{base / cpu[0]:.3f}", "difference": f"{difference:.2e}"}


def prefill(lib, g, args):
    print(f"# prefill: n query rows, n keys, causal, {PREFILL_HEADS} query heads, one KV head, head_dim {DIM}; ms:\n"
          "# processor time over threads, least and median, and least wall time of interleaved rounds; GFLOP/s of the\n"
          "# causal half; FA/x: times faster by the least; difference: of the two outputs, relative")
    print(f"{'':<15} {'type':<5} {'n':>6} {'T':>2} {'least':>10} {'median':>9} {'wall':>9} {'GFLOP/s':>8} {'FA/x':>6} "
          f"{'difference':>9}")
    return [row for n in args.n or [2048, 8192] for kind in args.types or ["f16"]
            for row in run_prefill(lib, g, args, kind, n, args.rounds or 3)]


def cpu_name():
    try:
        with open("/proc/cpuinfo") as f:
            says = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in f)}
        return f"CPU {says['model name']}, family {says.get('cpu family')}, model {says.get('model')}"
    except (OSError, KeyError):
        return platform.processor() or platform.machine()


def listed(cast, allowed=None):
    def parse(text):
        values = [cast(x) for x in text.split(",")]
        if any(x not in allowed if allowed else x < 1 for x in values):
            raise argparse.ArgumentTypeError(f"not in {', '.join(allowed)}" if allowed else "numbers from 1")
        return values
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="32k, NHD, f16 and q8_0, 5 rounds, where not given otherwise")
    parser.add_argument("--n", type=listed(int), help="contexts, multiples of 256 (default: 4096,32768,131072)")
    parser.add_argument("--types", type=listed(str, list(ROW)), help="default: f16,q8_0,bf16,f32")
    parser.add_argument("--layouts", type=listed(str, ["NHD", "HND"]), help="default: NHD,HND")
    parser.add_argument("--threads", type=listed(int), default=sorted({1, min(2, os.cpu_count())}), help="default: 1,2")
    parser.add_argument("--rounds", type=int, help="timed rounds (default: 9)")
    parser.add_argument("--ggml", metavar="DIR", help="where libggml-base and libggml-cpu, or libggml, are")
    parser.add_argument("--peer", metavar="NAME", default="ggml", help="the peer's name in the table (default: ggml)")
    parser.add_argument("--prefill", action="store_true", help="as many query rows as keys (default: 2048,8192, f16)")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    args = parser.parse_args()
    quick = args.quick
    contexts = args.n or ([32768] if quick else [4096, 32768, 131072])
    if any(n % 256 for n in contexts):
        parser.error("--n wants multiples of 256, as llama.cpp pads its cache")
    g = find_ggml(args.ggml)
    if args.probe:
        return probe(g, args)
    lib = load_santa()
    print(f"# {cpu_name()}, {os.cpu_count()} processors; {args.peer} {g.version or 'without a version'}; "
          f"{datetime.date.today()}")
    print(f"# python3 {' '.join(sys.argv)}")
    if args.prefill:
        write_csv(args.csv, prefill(lib, g, args))
        return 0
    print(f"# one decode step, batch 1, {HEADS} query heads, {KV_HEADS} KV heads, head_dim {DIM}; median ms of\n"
          f"# interleaved rounds (range); /read K: time over reading K once; FA/x, off/x, dense/x: times faster than\n"
          f"# {args.peer} FA, {args.peer} -fa off, our dense, by the least times; error: median relative L2 against\n"
          "# float64 on the stored numbers (gauss, peaked)", flush=True)
    rows = []
    for n in contexts:
        for kind in args.types or (["f16", "q8_0"] if quick else ["f16", "q8_0", "bf16", "f32"]):
            for layout in args.layouts or (["NHD"] if quick else ["NHD", "HND"]):
                rows += run_shape(lib, g, args, kind, layout, n, args.rounds or (5 if quick else 9))
    write_csv(args.csv, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
