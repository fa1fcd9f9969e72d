#!/usr/bin/env python3
"""MLA's decode step of FlashInfer and of santa_decode on one GPU, in one table.

    python3 bench/peers_latent.py [--csv FILE] [--rounds 15]     needs torch and nvcc;
                                                                 pip install flashinfer-python

One KV head, whose row is a latent of 512 numbers, which is V, and 64 for RoPE, bf16; all keys, or a list of
2,048 for each sequence. Peers: FlashInfer's BatchMLAPagedAttentionWrapper by "fa3" (warpgroups) and by
"fa2", of pages of 64 tokens and, for lists, of 1. Protocol of peers_types.py: CALLS times the same step in
a CUDA graph, wall time over CALLS, methods in turns. 'difference': of out from that of santa dense,
|difference| / |out|, median over batch x heads.
"""
import argparse
import datetime
import math
import statistics
import sys
import warnings

import peers_cuda
import peers_types
from peers import write_csv
from peers_cuda import cause, gain, shown

LATENT, ROPE, PAGE = 512, 64, 64
# batch, keys, heads, keys of a list
SHAPES = [(1, 32768, 128, 0), (1, 131072, 128, 0), (8, 32768, 128, 0), (32, 8192, 128, 0),
          (8, 32768, 64, 0), (8, 32768, 16, 0), (8, 32768, 128, 2048), (32, 32768, 128, 2048)]


def flashinfer_call(torch, backend, q, rows, keys):
    """keys: [batch, most], or None: all of rows, [batch, n, LATENT + ROPE]."""
    import flashinfer
    batch, n, row = rows.shape
    heads, page = q.shape[1], 1 if keys is not None else PAGE
    pages = keys.shape[1] if keys is not None else n // PAGE
    cache = rows.reshape(batch * n // page, page, row)
    parts = q[..., :LATENT].contiguous(), q[..., LATENT:].contiguous()
    indices = torch.arange(batch * pages, dtype=torch.int32, device="cuda")
    if keys is not None:
        begin = torch.arange(batch, dtype=torch.int32, device="cuda")[:, None] * n
        indices = (keys + begin).flatten().int()
    scratch = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    warnings.simplefilter("ignore", DeprecationWarning)  # of plan's arguments, which older versions want
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(scratch, backend=backend)
    wrapper.plan(torch.arange(batch + 1, dtype=torch.int32, device="cuda"),
                 torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages, indices,
                 torch.full((batch,), pages * page, dtype=torch.int32, device="cuda"), heads, LATENT, ROPE,
                 page, False, 1.0 / math.sqrt(row), q.dtype, rows.dtype)

    def call():
        return wrapper.run(*parts, cache[..., :LATENT], cache[..., LATENT:])
    call.keeps = wrapper, scratch, indices
    return call


def run_shape(torch, lib, batch, n, heads, most, rounds, csv_rows):
    row = LATENT + ROPE
    g = torch.Generator("cuda").manual_seed(1)
    rows = torch.randn(batch, n, row, generator=g, device="cuda").add_(0.5).bfloat16()
    q = torch.randn(batch, heads, row, generator=g, device="cuda").bfloat16()
    keys = None
    if most:                                             # one from each most'th part of the context
        at = torch.arange(most, device="cuda") * n // most
        keys = (at + torch.randint(0, n // most, (batch, most), generator=g, device="cuda")).int()
    santa, size = peers_cuda.python_santa(), batch * (most or n) * row * 2
    out = torch.empty(batch, 1, heads, LATENT, dtype=torch.bfloat16, device="cuda")
    k = rows.view(batch, n, 1, row)
    options = {"key_list": keys.view(batch, 1, most)} if most else {}
    ours = q.view(batch, 1, heads, row), k, k[..., :LATENT]
    need = santa.workspace_size(*ours, out=out, **options)
    workspace = torch.empty(need, dtype=torch.uint8, device="cuda")

    def dense():
        santa.decode(*ours, out=out, workspace=workspace, **options)
        return out
    shape = batch, heads, LATENT
    methods = [peers_types.captured(torch, "floor", "floor: as many bytes read once",
                                    peers_cuda.reader(torch, lib, [rows], size)),
               peers_types.captured(torch, "santa dense", "santa dense", dense, shape)]
    for backend in ("fa3", "fa2"):
        try:
            import flashinfer
            call = flashinfer_call(torch, backend, q, rows, keys)
            variant = f"FlashInfer {flashinfer.__version__}, {backend}"
            methods.append(peers_types.captured(torch, f"FlashInfer {backend}", variant, call, shape))
        except Exception as e:                           # a peer that cannot run here is said, not fatal
            print(f"# FlashInfer, {backend}: {cause(e)}", flush=True)
            torch.cuda.synchronize()
    peers_types.time_in_turns(torch, methods, rounds)
    want = methods[1].out().double()
    flops = 2.0 * batch * (most or n) * heads * (row + LATENT)
    label = f"{batch} x {n}, {heads}" + (f", {most}" if most else "")
    for m in methods:
        exact = m is not methods[0]
        off = peers_cuda.relative_error(m.out(), want) if exact else 0.0
        over_floor, over_ours = gain(m.times, methods[0].times), gain(methods[1].times, m.times)
        print(f"{label:<24} {m.variant:<34} {statistics.median(m.times):9.1f} "
              f"{flops / min(m.times) * 1e-6 if exact else 0.0:8.0f} {shown(over_floor):>20} "
              f"{shown(over_ours) if exact else '':>20} {off:10.1e}"
              f"{'  WRONG' if off > peers_cuda.EXACT_TOLERANCE else ''}", flush=True)
        csv_rows.append({"batch": batch, "context": n, "heads": heads, "list": most, "method": m.name,
                         "variant": m.variant, "us": f"{statistics.median(m.times):.2f}", "bytes": size,
                         "over_floor": f"{over_floor[0]:.3f}", "santa_over_method": f"{over_ours[0]:.3f}",
                         "busy": f"{max(over_floor[3], over_ours[3]):.2f}", "difference": f"{off:.3e}"})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--arch", default="native", help="nvcc's -arch (default: native)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds is 1 or more")
    torch = peers_cuda.torch_with_device()
    if not torch:
        return 0
    lib = peers_cuda.load(peers_cuda.build(args.arch))
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"{datetime.date.today()}")
    print(f"# python3 {' '.join(sys.argv)}")
    calls = peers_types.CALLS
    print(f"# MLA {LATENT + ROPE} / {LATENT}, bf16, one KV head; us: wall time of {calls} calls over "
          f"{calls}, medians of {args.rounds} rounds in turns;\n# santa/this: how many times as fast as santa")
    print(f"{'shape, heads, list':<24} {'method':<34} {'us':>9} {'TFLOP/s':>8} {'x floor':>20} "
          f"{'santa/this':>20} {'difference':>10}", flush=True)
    rows = []
    for batch, n, heads, most in SHAPES:
        with torch.inference_mode():
            run_shape(torch, lib, batch, n, heads, most, args.rounds, rows)
        torch.cuda.empty_cache()
    write_csv(args.csv, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
