#!/usr/bin/env python3
"""Exact decode attention of others, and santa_decode on one GPU, for every type of K and V, in one table.

    python3 bench/peers_types.py [--csv FILE] [--ggml DIR] [--types q8_0,e4m3] [--rounds 15]   needs torch and nvcc

Peers: torch's scaled_dot_product_attention with FlashAttention-2 and with cuDNN (16 bits), FlashInfer's batch decode
(16 bits and 8-bit floats; pip install flashinfer-python), and ggml's flash attention for CUDA, from the shared
libraries of a build of ggml or llama.cpp in DIR (libggml-base and libggml-cuda: cmake -DGGML_CUDA=ON
-DBUILD_SHARED_LIBS=ON), called as llama.cpp does, with a mask of f16 and without one. Where query heads can be packed
as query rows of their KV head, both ways are measured, and the faster is shown.

Protocol: 8 KV heads, NHD, the same memory for every method. In a round each method computes the same step CALLS times,
one behind the other, in a CUDA graph (ggml: in one graph of its own, which it may replay); us is the wall time until
all are done, over CALLS. K and V are larger than L2, so each call reads them from memory. Medians of the rounds, ratios
of the least times with 10 and 90 % of single rounds, see peers_cuda.py. The floor reads K and V once and computes
nothing. 'difference': of out from that of santa dense, |difference| / |out|, median over batch x heads; ggml rounds a
query to 8 bits for K of q8_0 and q4_0, santa does not.
"""
import argparse
import ctypes as C
import datetime
import glob
import math
import os
import statistics
import sys
import time

import peers_cuda
from peers import InitParams, bind_ggml, write_csv
from peers_cuda import cause, gain, shown

KV_HEADS, CALLS, PAGE, V_MEAN = 8, 6, 16, 0.5
SHAPES = [(1, 131072), (8, 32768)]
# type of K and V, head_dim, query heads of a KV head
CASES = [(t, d, group) for t, shapes in (
    ("bf16", ((64, 4), (128, 1), (128, 4), (128, 8), (128, 16), (256, 4), (256, 16))),
    ("f16", ((128, 4), (256, 4))),
    ("e4m3", ((64, 4), (128, 4), (128, 8), (128, 16), (256, 4))),
    ("e5m2", ((128, 4),)),
    ("f32", ((64, 4), (128, 1), (128, 4), (128, 16), (256, 4))),
    ("q8_0", ((64, 4), (128, 1), (128, 4), (128, 8))),
    ("q4_0", ((64, 4), (128, 4), (128, 8)))) for d, group in shapes]
TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
OURS = [("santa dense", {}), ("santa prop, 128 draws", {"method": "prop", "num_samples": 128, "seed": 7})]
BLOCK = {"q8_0": 34, "q4_0": 18}                      # bytes of 32 numbers
GGML_TYPE = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}


def row_bytes(kind, d):
    return d // 32 * BLOCK[kind] if kind in BLOCK else d * {"f32": 4, "e4m3": 1, "e5m2": 1}.get(kind, 2)


# ---------------------------------------------------------------------------------------------- ggml

PROTOTYPES = """
    ptr ggml_init InitParams; void ggml_free ptr; ptr ggml_new_tensor_4d ptr int i64 i64 i64 i64; ptr ggml_get_data ptr
    ptr ggml_permute ptr ptr int int int int; ptr ggml_flash_attn_ext ptr ptr ptr ptr ptr f32 f32 f32
    ptr ggml_new_graph ptr; void ggml_build_forward_expand ptr ptr; bool ggml_backend_supports_op ptr ptr
    ptr ggml_backend_alloc_ctx_tensors ptr ptr; void ggml_backend_buffer_free ptr
    ptr ggml_backend_cuda_init int; int ggml_backend_graph_compute ptr ptr
"""


class Ggml:
    """The functions of PROTOTYPES, without their prefix."""

    def __init__(self, folder):
        paths = [glob.glob(os.path.join(folder, "**", f"libggml-{part}.so"), recursive=True)
                 for part in ("base", "cuda")]
        if not all(paths):
            sys.exit(f"no libggml-base.so and libggml-cuda.so in {folder}")
        libs = [C.CDLL(os.path.abspath(found[0])) for found in paths]
        bind_ggml(self, libs, PROTOTYPES)
        self.backend = self.backend_cuda_init(0)


class Memory:
    """Of ggml's, as torch takes it."""

    def __init__(self, pointer, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 2}


class Step:
    """One decode step in ggml's tensors: K and V, the query in f32, and graphs of CALLS steps each."""

    def __init__(self, g, torch, kind, d, group, batch, n):
        self.g, self.ctx, self.torch = g, g.init(InitParams(64 << 20, None, True)), torch
        size = batch * n * KV_HEADS * row_bytes(kind, d)

        def tensor(t, *shape):
            return g.new_tensor_4d(self.ctx, GGML_TYPE[t], *shape)

        def heads_outside(t):                            # [d, heads, tokens, batch] -> [d, tokens, heads, batch]
            return g.permute(self.ctx, t, 0, 2, 1, 3)
        k, v = (tensor(kind, d, KV_HEADS, n, batch) for _ in "kv")
        q, mask = tensor("f32", d, KV_HEADS * group, 1, batch), tensor("f16", n, 1, 1, 1)
        masks = tensor("f16", n, group, 1, 1)
        rows = tensor("f32", d, group, KV_HEADS, batch)  # the same memory as q has, copied
        self.graphs, outs = {}, {}
        for name, query, m in (("ggml, no mask", heads_outside(q), None), ("ggml", heads_outside(q), mask),
                               ("ggml, packed", rows, masks)):
            steps = [g.flash_attn_ext(self.ctx, query, heads_outside(k), heads_outside(v), m, 1.0 / math.sqrt(d), 0.0,
                                      0.0) for _ in range(CALLS)]
            if not all(g.backend_supports_op(g.backend, s) for s in steps):
                continue
            graph = g.new_graph(self.ctx)
            for s in steps:
                g.build_forward_expand(graph, s)
            self.graphs[name], outs[name] = graph, steps[-1]
        self.buffer = g.backend_alloc_ctx_tensors(self.ctx, g.backend)
        if not self.buffer:
            sys.exit("ggml has no memory for K and V")

        def bytes_of(t, count):
            return torch.as_tensor(Memory(g.get_data(t), count), device="cuda")
        heads = batch * KV_HEADS * group * d
        self.k, self.v = bytes_of(k, size), bytes_of(v, size)
        self.q, self.rows = (bytes_of(t, 4 * heads).view(torch.float32) for t in (q, rows))
        for t, count in ((mask, 2 * n), (masks, 2 * n * group)):
            bytes_of(t, count).zero_()
        self.outs = {name: bytes_of(t, 4 * heads).view(torch.float32) for name, t in outs.items()}
        self.shape = (batch, KV_HEADS, group, d)

    def set_query(self, q):
        self.q.copy_(q.float().flatten())
        self.rows.copy_(q.float().flatten())             # [batch, heads, d] is [batch, KV heads, group, d]

    def methods(self):
        def run(graph):
            if self.g.backend_graph_compute(self.g.backend, graph):
                sys.exit("ggml_backend_graph_compute failed")

        def out_of(name):
            out = self.outs[name].view(self.shape)
            if name == "ggml, packed":                   # [batch, row, KV head, d]
                batch, kv_heads, group, d = self.shape
                out = self.outs[name].view(batch, group, kv_heads, d).transpose(1, 2)
            return out
        return [Method("ggml", name, lambda graph=graph: run(graph), lambda name=name: out_of(name))
                for name, graph in self.graphs.items()]

    def free(self):
        self.g.backend_buffer_free(self.buffer)
        self.g.free(self.ctx)


# ---------------------------------------------------------------------------------------------- the others

class Method:
    """run(): CALLS steps, on the way when it returns; out(): the last one's, [batch, KV heads, group, d]."""

    def __init__(self, name, variant, run, out):
        self.name, self.variant, self.run, self.out, self.times = name, variant, run, out, []


def captured(torch, name, variant, call, shape=None):
    """A method of a call that works on torch's stream, returning out."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):                        # compilation, autotuning and first allocations happen here
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            kept[:] = [call()]
    method = Method(name, variant, graph.replay, lambda: kept[0].reshape(shape))
    method.call = call                                   # and with it the memory that the graph works in
    return method


def time_in_turns(torch, methods, rounds):
    """Their times, in us of a step; two rounds before these do not count."""
    for i in range(-2, rounds):
        for m in methods:
            torch.cuda.synchronize()
            start = time.perf_counter()
            m.run()
            torch.cuda.synchronize()
            if i >= 0:
                m.times.append(1e6 * (time.perf_counter() - start) / CALLS)


def sdpa(torch, q, k, v, group):
    """(name, variant, call); k, v: [batch, n, KV heads, d]."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attend, (batch, _, kv_heads, d) = torch.nn.functional.scaled_dot_product_attention, k.shape
    kt, vt, packed = k.transpose(1, 2), v.transpose(1, 2), q.reshape(batch, kv_heads, group, d)
    for name, backend in (("FlashAttention-2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        def plain(backend=backend):
            with sdpa_kernel(backend):
                return attend(q.view(batch, -1, 1, d), kt, vt, enable_gqa=group > 1)

        def as_rows(backend=backend):
            with sdpa_kernel(backend):
                return attend(packed, kt, vt)
        yield name, f"{name}, gqa", plain
        yield name, f"{name}, packed", as_rows


def flashinfer_calls(torch, q, k, v, group):
    import flashinfer
    batch, n, kv_heads, d = k.shape
    pages = n // PAGE
    indptr = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    indices = torch.arange(batch * pages, dtype=torch.int32, device="cuda")
    last = torch.full((batch,), PAGE, dtype=torch.int32, device="cuda")
    cache = tuple(t.view(batch * pages, PAGE, kv_heads, d) for t in (k, v))
    for tensor_cores in (False, True):
        def call(state=[]):
            if not state:
                scratch = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
                state.append(flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch, "NHD",
                                                                           use_tensor_cores=tensor_cores))
                state[0].plan(indptr, indices, last, kv_heads * group, kv_heads, d, PAGE, q_data_type=q.dtype,
                              kv_data_type=k.dtype)
            return state[0].run(q, cache)
        cores = "tensor" if tensor_cores else "CUDA"
        yield "FlashInfer", f"FlashInfer {flashinfer.__version__}, {cores} cores", call


def fill(torch, kind, d, memory, seed):
    """Numbers as K or V would have them, into bytes."""
    g = torch.Generator("cuda").manual_seed(seed)
    count, mean = memory.numel() // row_bytes(kind, d) * d, V_MEAN if seed % 2 else 0.0
    step = 1 << 26                                       # numbers at a time
    for i in range(0, count, step):
        x = torch.randn(min(step, count - i), generator=g, device="cuda") + mean
        if kind not in BLOCK:
            size = row_bytes(kind, d) // d
            memory[i * size:(i + x.numel()) * size].copy_(x.to(getattr(torch, TORCH[kind])).view(torch.uint8))
            continue
        x = x.view(-1, 32)
        largest = 127.0 if kind == "q8_0" else 7.0
        scale = (x.abs().amax(1, keepdim=True) / largest).half()
        whole = torch.clamp(torch.round(x / scale.float()), -largest, largest).to(torch.int8)
        if kind == "q4_0":                               # of a byte the lower half is the number 16 before the upper's
            u = (whole + 8).to(torch.uint8)
            whole = u[:, :16] | u[:, 16:] << 4
        part = torch.cat((scale.view(torch.uint8), whole.view(torch.uint8)), 1)
        memory[i // 32 * BLOCK[kind]:][:part.numel()].copy_(part.flatten())


def run_case(torch, lib, ggml, kind, d, group, batch, n, rounds, csv_rows):
    shape = (batch, KV_HEADS, group, d)
    step = Step(ggml, torch, kind, d, group, batch, n) if ggml and kind in GGML_TYPE else None
    size = batch * n * KV_HEADS * row_bytes(kind, d)
    memory = (step.k, step.v) if step else tuple(torch.empty(size, dtype=torch.uint8, device="cuda") for _ in "kv")
    for i, m in enumerate(memory):
        fill(torch, kind, d, m, 2 + i)
    q_type = torch.float16 if kind == "f16" else torch.float32 if kind == "f32" else torch.bfloat16
    q = torch.randn(batch, KV_HEADS * group, d, generator=torch.Generator("cuda").manual_seed(1),
                    device="cuda").to(q_type)
    santa = peers_cuda.python_santa()
    if kind in BLOCK:
        k, v = (santa.View(m.view(batch, n, KV_HEADS, -1), kind) for m in memory)
    else:
        k, v = (m.view(getattr(torch, TORCH[kind])).view(batch, n, KV_HEADS, d) for m in memory)
    row = q.view(batch, 1, KV_HEADS * group, d)
    methods = [captured(torch, "floor", "floor: K and V read once", peers_cuda.reader(torch, lib, memory))]
    for name, options in OURS:
        out = torch.empty(batch, 1, KV_HEADS * group, d, dtype=torch.float32, device="cuda")
        workspace = torch.empty(santa.workspace_size(row, k, v, out=out, **options), dtype=torch.uint8, device="cuda")

        def call(options=options, out=out, workspace=workspace):
            santa.decode(row, k, v, out=out, workspace=workspace, **options)
            return out
        methods.append(captured(torch, name, name, call, shape))
    calls = []
    if kind in ("f16", "bf16"):
        calls += sdpa(torch, q, k, v, group)
    if kind in ("f16", "bf16", "e4m3", "e5m2"):
        try:
            calls += flashinfer_calls(torch, q, k, v, group)
        except Exception as e:                           # a peer that cannot run here is said, not fatal
            print(f"# FlashInfer: {cause(e)}", flush=True)
    for name, variant, call in calls:
        try:
            methods.append(captured(torch, name, variant, call, shape))
        except Exception as e:
            print(f"# {kind}, {d}, {group}, {batch} x {n}: {variant} does not run: {cause(e)}", flush=True)
            torch.cuda.synchronize()
    if step:
        step.set_query(q)
        methods += step.methods()
    time_in_turns(torch, methods, rounds)
    floor, ours = methods[:2]
    sampled = {name for name, options in OURS if options}
    want = ours.out()
    off = {m.variant: peers_cuda.relative_error(m.out(), want.double()) for m in methods[1:]}
    best = {}
    for m in methods[1:]:                                # of a peer's variants the fastest that is right
        key = (off[m.variant] > peers_cuda.EXACT_TOLERANCE, min(m.times))
        if m.name not in best or key < best[m.name][0]:
            best[m.name] = (key, m)
    right = [m for key, m in best.values() if not key[0] and m.name not in sampled]
    fastest = min(right, key=lambda m: min(m.times))
    label = f"{kind}, {d}, {group}"
    for m in [floor] + [m for _, m in best.values()]:
        over_floor, over_best = gain(m.times, floor.times), gain(fastest.times, m.times)
        wrong = m is not floor and m not in right and m.name not in sampled
        print(f"{label:<14} {f'{batch} x {n}':<11} {m.variant:<36} {statistics.median(m.times):9.1f} "
              f"{2 * size / min(m.times) * 1e-6:6.2f} {shown(over_floor):>20} "
              f"{shown(over_best) if m is not floor else '':>20} {off.get(m.variant, 0.0):10.1e}"
              f"{'  WRONG' if wrong else ''}", flush=True)
        csv_rows.append({"type": kind, "head_dim": d, "group": group, "batch": batch, "context": n, "method": m.name,
                         "variant": m.variant, "us": f"{statistics.median(m.times):.2f}", "bytes": 2 * size,
                         "over_floor": f"{over_floor[0]:.3f}", "best_exact_over_method": f"{over_best[0]:.3f}",
                         "busy": f"{max(over_floor[3], over_best[3]):.2f}",
                         "difference": f"{off.get(m.variant, 0.0):.3e}"})
    if step:
        torch.cuda.synchronize()
        step.free()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--ggml", metavar="DIR", help="a build of ggml or llama.cpp for CUDA")
    parser.add_argument("--types", metavar="LIST", help="of K and V; all if not given")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--arch", default="native", help="nvcc's -arch (default: native)")
    args = parser.parse_args()
    wanted = args.types.split(",") if args.types else sorted({c[0] for c in CASES})
    if args.rounds < 1 or not set(wanted) <= {c[0] for c in CASES}:
        parser.error("--rounds is 1 or more, --types are of " + ",".join(sorted({c[0] for c in CASES})))
    torch = peers_cuda.torch_with_device()
    if not torch:
        return 0
    lib = peers_cuda.load(peers_cuda.build(args.arch))
    ggml = Ggml(args.ggml) if args.ggml else None
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN "
          f"{torch.backends.cudnn.version()}, ggml {ggml.version if ggml else 'not given'}, {datetime.date.today()}")
    print(f"# python3 {' '.join(sys.argv)}")
    print(f"# {KV_HEADS} KV heads, NHD; us: wall time of {CALLS} calls over {CALLS}, medians of {args.rounds} rounds "
          "in turns; TB/s: K and V\n# once over the time; x floor; best/this: the fastest exact row over this one")
    print(f"{'type, d, group':<14} {'shape':<11} {'method':<36} {'us':>9} {'TB/s':>6} {'x floor':>20} "
          f"{'best/this':>20} {'difference':>10}", flush=True)
    rows = []
    for kind, d, group in CASES:
        if kind not in wanted:
            continue
        for batch, n in SHAPES:
            with torch.inference_mode():
                run_case(torch, lib, ggml, kind, d, group, batch, n, args.rounds, rows)
            torch.cuda.empty_cache()
    write_csv(args.csv, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
