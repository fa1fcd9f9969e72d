#!/usr/bin/env python3
"""Tests of santa.py and hf_attention.py against float64 NumPy.

    python3 -m pytest test_santa.py
    python3 test_santa.py [words of test names] [-words of those to leave out]     without pytest

What needs torch or transformers is skipped, by name, where they are not.
"""
import contextlib
import importlib.util
import inspect
import io
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest

try:
    import numpy as np
except ImportError:
    if __name__ == "__main__":
        sys.exit("skipped: no numpy (pip install numpy)")
    raise unittest.SkipTest("no numpy")

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import santa  # noqa: E402

METHODS = ("dense", "iid", "strat", "sys", "prop", "flash", "top-k", "top-p", "vattention", "pps", "saap",
           "sample-attention")
DRAWING = ("iid", "strat", "sys", "prop", "flash", "pps")


# ---------------------------------------------------------------------------------- reference

def problem(batch=2, q_len=1, n=300, heads=4, kv_heads=2, d=16, dv=12, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((batch, q_len, heads, d)).astype(dtype),
            rng.standard_normal((batch, n, kv_heads, d)).astype(dtype),
            rng.standard_normal((batch, n, kv_heads, dv)).astype(dtype))


def scores(q, k, b, i, h, length, position, sm_scale, k_scale=1.0, soft_cap=0.0, causal=False, window=0,
           slopes=None, first_key=0, first_tokens=0, start=0):
    """Of query row i and head h, -inf where masked; float64."""
    s = sm_scale * k_scale * (
        k[b, :length, h // (q.shape[2] // k.shape[2])].astype(np.float64) @ q[b, i, h].astype(np.float64))
    if soft_cap:
        s = soft_cap * np.tanh(s / soft_cap)
    j = first_key + np.arange(length)
    if slopes is not None:
        s = s + float(slopes[h]) * (j - position)
    seen = np.ones(length, bool)
    if causal:
        seen &= j <= position
    if window:
        seen &= (j > position - window) | (j < start + first_tokens)
    return np.where(seen, s, -np.inf)


def reference(q, k, v, seq_lens=None, sm_scale=0.0, k_scale=1.0, v_scale=1.0, sinks=None, context_lens=None,
              first_key=0, keep=None, kv_start=None, **rest):
    """out and lse in float64. keep: a function of a row's scores that says which keys stay."""
    batch, q_len, heads, d = q.shape
    out = np.zeros((batch, q_len, heads, v.shape[3]))
    lse = np.full((batch, q_len, heads), -np.inf)
    for b in range(batch):
        length = k.shape[1] if seq_lens is None else int(seq_lens[b])
        end = first_key + length if context_lens is None else int(context_lens[b])
        for i in range(q_len):
            for h in range(heads):
                s = scores(q, k, b, i, h, length, end - q_len + i, sm_scale or d ** -0.5, k_scale,
                           first_key=first_key, start=0 if kv_start is None else kv_start[b], **rest)
                if kv_start is not None:
                    s[:kv_start[b]] = -np.inf
                if keep is not None:
                    s = np.where(keep(s), s, -np.inf)
                sink = -np.inf if sinks is None else float(sinks[h])
                top = max(s.max(initial=-np.inf), sink)
                if top == -np.inf:
                    continue
                w = np.exp(s - top)
                total = w.sum() + np.exp(sink - top)
                lse[b, i, h] = top + np.log(total)
                out[b, i, h] = v_scale * (w @ v[b, :length, h //
                                                (heads // k.shape[2])].astype(np.float64)) / total
    return out, lse


def near(got, want, tolerance=2e-5):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"shape {got.shape}, want {want.shape}"
    with np.errstate(invalid="ignore"):                                         # -inf - -inf
        same = (got == want) | (np.abs(got - want) <= tolerance * (1.0 + np.abs(want)))
    assert same.all(), (f"{(~same).sum()} of {same.size} off, worst {np.abs(got - want)[~same].max()}, "
                        f"at {np.argwhere(~same)[0]}")


def same_bits(x, y):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), "bits differ"


def raises(error, function, *args, name=None, text=None, **kwargs):
    try:
        function(*args, **kwargs)
    except error as e:
        assert name is None or e.name == "SANTA_ERR_" + name, f"got {e}, want {name}"
        assert text is None or text in str(e), f"{text!r} is not in {str(e)!r}"
        return e
    raise AssertionError(f"no {error}: {kwargs}")


def torch_or_skip():
    try:
        import torch
    except ImportError:
        raise unittest.SkipTest("no torch")
    return torch


# ---------------------------------------------------------------------------------- exact attention

def test_dense_is_the_formula():
    for q_len, heads, kv_heads, d, dv in ((1, 4, 2, 16, 12), (3, 6, 1, 20, 20), (1, 8, 8, 64, 64), (5, 5, 5,
                                                                                                    7, 1)):
        q, k, v = problem(2, q_len, 130, heads, kv_heads, d, dv)
        r = santa.decode(q, k, v, lse=True)
        want = reference(q, k, v)
        assert r.out.dtype == np.float32 and r.out.shape == (2, q_len, heads, dv)
        assert r.std_error is None and r.stats is None and r.audit is None
        near(r.out, want[0])
        near(r.lse, want[1])


def test_score_extras():
    q, k, v = problem(2, 3, 90)
    slopes, sinks = np.array([0.1, 0.02, -0.05, 0.0], "f"), np.array([0.5, -np.inf, 2.0, -3.0], "f")
    for extra in ({"causal": True}, {"window": 17}, {"kv_start": [0, 60]},
                  {"window": 17, "first_tokens": 4, "kv_start": [0, 60], "causal": True},
                  {"window": 9, "first_tokens": 14, "context_lens": [120, 101], "first_key": 10},
                  {"window": 9, "first_tokens": 14, "first_key": 10, "causal": True},
                  {"kv_start": np.array([7, 40], np.int32), "causal": True, "window": 25,
                   "seq_lens": [90, 41]},
                  {"causal": 1, "window": 5}, {"soft_cap": 1.5},
                  {"sm_scale": 0.7}, {"k_scale": 0.5}, {"v_scale": 3.0}, {"sinks": sinks},
                  {"alibi_slopes": slopes}, {"seq_lens": [90, 40]}, {"seq_lens": np.array([2, 0])},
                  {"causal": True, "context_lens": [120, 101], "first_key": 10
                   }, {"window": 20, "context_lens": np.array([101, 100], np.int32), "first_key": 10}, {
                       "alibi_slopes": slopes.tolist(), "sinks": sinks.tolist(), "causal": True,
                       "window": 30, "soft_cap": 4.0, "seq_lens": np.array([80, 33],
                                                                           np.int32), "sm_scale": 0.3
                   }):
        r = santa.decode(q, k, v, lse=True, **extra)
        known = {("slopes" if name == "alibi_slopes" else name): x for name, x in extra.items()}
        want = reference(q, k, v, **known)
        near(r.out, want[0])
        near(r.lse, want[1])


def test_strides():
    q, k, v = problem(2, 3, 70)
    want = reference(q, k, v)[0]

    def swap(x):
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    near(santa.decode(swap(q), k, v, q_layout="HND").out, swap(want))
    near(santa.decode(q, swap(k), swap(v), kv_layout="HND").out, want)
    near(santa.decode(swap(q), swap(k), swap(v), q_layout="HND", kv_layout="HND").out, swap(want))
    near(santa.decode(q, swap(k).transpose(0, 2, 1, 3), np.asfortranarray(v)).out, want)
    wide = np.zeros((2, 70, 2, 50), "f")
    wide[..., 3:19], wide[..., 30:42] = k, v
    near(santa.decode(q, wide[..., 3:19], wide[..., 30:42]).out, want)
    near(santa.decode(q, k[:, ::-1], v[:, ::-1]).out, want)                     # negative strides
    near(
        santa.decode(np.broadcast_to(q[:1], q.shape), k, v).out,
        reference(np.broadcast_to(q[:1], q.shape), k, v)[0])
    room = np.full((2, 3, 4, 20), 9.0, "f")
    r = santa.decode(q, k, v, out=room[..., 4:16])
    near(room[..., 4:16], want)
    assert (room[..., :4] == 9).all() and (room[..., 16:] == 9).all() and np.shares_memory(r.out, room)
    flat = santa.decode(q[:, 0], k, v, lse=True)                                # [batch, heads, head_dim]
    assert flat.out.shape == (2, 4, 12) and flat.lse.shape == (2, 4)
    near(flat.out, reference(q[:, :1], k, v)[0][:, 0])


def test_types():
    q, k, v = problem(2, 1, 100, d=32, dv=32)
    half = [x.astype(np.float16) for x in (q, k, v)]
    r = santa.decode(*half, lse=True)
    assert r.out.dtype == np.float16 and r.lse.dtype == np.float32
    near(r.out, reference(*half)[0], 1e-3)
    near(santa.decode(q, *half[1:]).out, reference(q, *half[1:])[0])

    def bf16(x):                                                                # cut, and what is left
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    bits, cut = zip(*(bf16(x) for x in (q, k, v)))
    r = santa.decode(q, *(santa.View(x, "bf16") for x in bits[1:]))
    near(r.out, reference(q, *cut[1:])[0])
    r = santa.decode(*(santa.View(x, "bf16") for x in bits))
    assert r.out.dtype == np.uint16
    near((r.out.astype(np.uint32) << 16).view(np.float32), reference(*cut)[0], 8e-3)

    e4m3 = np.random.default_rng(1).integers(0, 256, (2, *k.shape)).astype(np.uint8)
    e4m3[(e4m3 & 0x78) > 0x48] &= 0x87                                          # below 8, and no NaN
    exponent, fraction = (e4m3 >> 3 & 15).astype(int), (e4m3 & 7) / 8
    value = np.where(e4m3 >> 7, -1, 1) * np.where(exponent,
                                                  (1 + fraction) * 2.0**(exponent - 7), fraction * 2.0**-6)
    near(santa.decode(q, *(santa.View(x, "e4m3") for x in e4m3), k_scale=0.5, v_scale=2.0).out,
         reference(q, *value, k_scale=0.5, v_scale=2.0)[0])

    def q8_0(x):  # blocks of an f16 scale and 32 int8
        rows = x.reshape(*x.shape[:-1], -1, 32)
        scale = (np.abs(rows).max(-1, keepdims=True) / 127).astype(np.float16)
        codes = np.clip(np.round(rows / scale.astype("f")), -127, 127).astype(np.int8)
        blocks = np.concatenate((scale.view(np.uint8), codes.view(np.uint8)), -1)
        return blocks.reshape(*x.shape[:-1], -1), (codes * scale.astype("f")).reshape(x.shape)
    (kb, k8), (vb, v8) = q8_0(k), q8_0(v)
    near(santa.decode(q, santa.View(kb, "q8_0"), santa.View(vb, "q8_0")).out, reference(q, k8, v8)[0])
    near(
        santa.decode(q, santa.View(kb[:, 10:], "q8_0"), v[:, 10:]).out,
        reference(q, k8[:, 10:], v[:, 10:])[0])
    r = santa.decode(q, santa.View(kb, "q8_0"), santa.View(vb, "q8_0"), scores="q8")
    near(r.out, reference(q, k8, v8)[0], 0.03)
    raises(santa.SantaError, santa.decode, q, k, v, scores="q8", name="SCORES_Q8")


def test_e5m2_and_q4_0():
    q, k, v = problem(2, 1, 60, d=64, dv=32)
    halves = [x.astype(np.float16).view(np.uint16) & 0xff00 for x in (k, v)]
    value = [x.view(np.float16).astype("f") for x in halves]
    e5m2 = [(x >> 8).astype(np.uint8) for x in halves]
    near(santa.decode(q, *(santa.View(x, "e5m2") for x in e5m2)).out, reference(q, *value)[0])
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        near(santa.decode(q, *(x.view(ml_dtypes.float8_e5m2) for x in e5m2)).out, reference(q, *value)[0])

    def q4_0(x):  # blocks of an f16 scale and 16 bytes: low halves first
        rows = x.reshape(*x.shape[:-1], -1, 32)
        scale = (np.abs(rows).max(-1, keepdims=True) / 8).astype(np.float16)
        codes = np.clip(np.round(rows / scale.astype("f")) + 8, 0, 15).astype(np.uint8)
        packed = codes[..., :16] | codes[..., 16:] << 4
        blocks = np.concatenate((scale.view(np.uint8), packed), -1)
        return blocks.reshape(*x.shape[:-1], -1), ((codes - 8.0) * scale.astype("f")).reshape(x.shape)
    (kb, k4), (vb, v4) = q4_0(k), q4_0(v)
    near(santa.decode(q, santa.View(kb, "q4_0"), santa.View(vb, "q4_0")).out, reference(q, k4, v4)[0])
    near(santa.decode(q, santa.View(kb[:, 10:], "q4_0"), v[:, 10:]).out,
         reference(q, k4[:, 10:], v[:, 10:])[0])
    raises(ValueError, santa.decode, q, santa.View(kb[..., 1:], "q4_0"), v)
    raises(santa.SantaError, santa.decode, santa.View(e5m2[0][:, :1], "e5m2"), k, v, name="DTYPE")


def test_row_scales():
    q, k, v = problem(2, 1, 96)
    rng = np.random.default_rng(5)
    ks, vs = (rng.uniform(0.25, 1.25, (2, 96, 2)).astype("f") for _ in range(2))
    want = reference(q, k * ks[..., None], v * vs[..., None])[0]
    near(santa.decode(q, k, v, k_scales=ks, v_scales=vs).out, want)
    hnd = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k, v, ks, vs)]
    near(santa.decode(q, *hnd[:2], k_scales=hnd[2], v_scales=hnd[3], kv_layout="HND").out, want)
    half = ks.astype(np.float16)
    near(santa.decode(q, k, v, k_scales=half).out, reference(q, k * half.astype("f")[..., None], v)[0])
    shared = np.lib.stride_tricks.as_strided(ks, ks.shape, (0, 0, ks.strides[2]))          # of a head
    near(santa.decode(q, k, v, v_scales=shared).out, reference(q, k, v * shared[..., None])[0])
    proxy = santa.Proxy(k, k_scales=ks)
    proxy.encode()
    whole = santa.Proxy(k * ks[..., None])
    whole.encode()
    options = {"method": "sys", "scores": "proxy", "num_samples": 32, "seed": 4}
    near(santa.decode(q, k, v, k_scales=ks, proxy=proxy, **options).out,
         santa.decode(q, k * ks[..., None], v, proxy=whole, **options).out)
    raises(ValueError, santa.decode, q, k, v, k_scales=ks[0])


def test_pages():
    q, k, v = problem(2, 1, 96)
    pages = np.array([[5, 0, 7], [2, 9, 1]], np.int32)
    kp, vp = (np.full((10, 32, 2, x.shape[3]), np.nan, "f") for x in (k, v))
    for b in range(2):
        for i in range(3):
            kp[pages[b, i]], vp[pages[b, i]] = k[b, 32 * i:32 * i + 32], v[b, 32 * i:32 * i + 32]
    want = reference(q, k, v, seq_lens=[96, 40])[0]
    wide = np.full((2, 8), -1, np.int32)
    wide[:, 2:5] = pages
    for table in (pages, pages.tolist(), pages.astype(np.int64), wide[:, 2:5], np.asfortranarray(pages)):
        near(santa.decode(q, kp, vp, block_table=table, seq_lens=[96, 40]).out, want)
    near(santa.decode(q, kp, vp, block_table=[row for row in pages], seq_lens=[96, 40]).out, want)
    hnd = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (kp, vp)]
    near(santa.decode(q, *hnd, kv_layout="HND", block_table=pages, seq_lens=[96, 40]).out, want)
    # rows in the same memory, one upon the other, backwards
    line = np.array([5, 0, 7, 2], np.int32)
    for table in (np.broadcast_to(pages[:1], (2, 3)), pages[::-1],
                  np.lib.stride_tricks.sliding_window_view(line, 3)):
        same_bits(santa.decode(q, np.nan_to_num(kp), vp, block_table=table, seq_lens=[96, 40]).out,
                  santa.decode(q, np.nan_to_num(kp), vp, block_table=table.copy(), seq_lens=[96, 40]).out)
    raises(santa.SantaError, santa.decode, q, kp, vp, block_table=pages + 5, name="BLOCK_TABLE")
    raises(ValueError, santa.decode, q, kp, vp, block_table=pages[:1])
    raises(ValueError, santa.decode, q, kp, vp, block_table=[[0, 1], [2]])


# ---------------------------------------------------------------------------------- methods

def index_of_keys(k, buckets=8):
    centroids = np.stack([santa.kmeans(k[0, :, h], buckets, seed=1) for h in range(k.shape[2])])
    index = santa.Buckets(k, centroids, key_norm=4.0)
    index.assign(k)
    return index


def test_every_method():
    """With more draws than keys each is near exact attention, or is exact; top-p leaves out its tenth."""
    assert tuple(santa.methods()) == METHODS
    q, k, v = problem(1, 1, 200)
    want, lse = reference(q, k, v)
    index = index_of_keys(k)
    for method in METHODS:
        r = santa.decode(q, k, v, method=method, num_samples=8192, lse=True, stats=True, seed=3,
                         buckets=index if method == "saap" else None)
        near(r.out, want, 0.12 if method == "top-p" else 0.05 if method in DRAWING else 0.03)
        near(r.lse, lse, 0.02 if method == "vattention" else 1e-4)
        assert r.stats.rows == 4 and r.stats.keys == 400, r.stats


def test_top_k_and_top_p():
    q, k, v = problem(2, 1, 150)
    want = reference(q, k, v, keep=lambda s: s >= np.sort(s)[-20])
    near(santa.decode(q, k, v, method="top-k", num_samples=20).out, want[0])
    near(santa.decode(q, k, v, method="top_k", num_samples=20).out, want[0])
    near(santa.decode(q, k, v, method=6, num_samples=20).out, want[0])

    def nucleus(s, top=0.6):
        p = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        order = np.argsort(-p)
        return np.isin(np.arange(len(p)), order[:np.searchsorted(np.cumsum(p[order]), top) + 1])
    near(santa.decode(q, k, v, method="top-p", top_p=0.6).out, reference(q, k, v, keep=nucleus)[0])


def test_draws_are_unbiased():
    """Means over seeds, in standard errors; and those of a method that is biased are not."""
    q, k, v = problem(1, 1, 400, d=32, seed=5)
    q *= 2
    want = reference(q, k, v)[0]
    runs = 400

    def z(**options):
        got = np.stack([santa.decode(q, k, v, num_samples=16, seed=s, **options).out
                        for s in range(runs)]).astype(np.float64)
        return np.abs(got.mean(0) - want) / (got.std(0) / runs ** 0.5 + 1e-6)
    for method in DRAWING:
        assert z(method=method).max() < 5.0, (method, z(method=method).max())
    assert z(method="sys", num_combs=4).max() < 5.0
    biased = z(method="top-k", dense_below=0)
    assert biased.max() > 50.0, biased.max()


def test_seeds_offsets_requests():
    q, k, v = problem(1, 1, 500)
    q, k, v = (np.concatenate((x, x)) for x in (q, k, v))

    def run(**options):
        return santa.decode(q, k, v, method="sys", num_samples=16, **options).out
    a = run(seed=1, offset=5)
    same_bits(a, run(seed=1, offset=5))
    assert (a[0] != a[1]).any()                                                 # of different requests
    for other in (run(seed=2, offset=5), run(seed=1, offset=6), run(seed=1, offset=5, request_ids=[7, 8])):
        assert (a != other).any()
    same_bits(*run(seed=1, request_ids=[3, 3]))
    same_bits(run(seeds=[1, 1], offsets=[5, 5]), a)
    same_bits(run(seed=9, seeds=np.array([1, 1], np.uint64), offset=5), a)
    same_bits(run(seeds=[2 ** 64 - 1] * 2), run(seed=2 ** 64 - 1))
    assert (run(offsets=np.array([5, 6]), request_ids=[1, 1])[0] != run(offsets=[5, 6],
                                                                        request_ids=[1, 1])[1]).any()
    assert santa.offset(3, 5) == 5 * 65536 + 3


def test_std_error_and_combs():
    q, k, v = problem(1, 1, 800, seed=2)
    want = reference(q, k, v)[0]
    for options in ({"method": "iid"}, {"method": "sys", "num_combs": 4},
                    {"method": "prop", "num_combs": 8, "tile_size": 64}):
        errors, said = 0.0, 0.0
        for seed in range(100):
            r = santa.decode(q, k, v, num_samples=64, seed=seed, std_error=True, **options)
            errors += ((r.out - want) ** 2).sum() / 100
            said += (r.std_error.astype(np.float64) ** 2).sum() / 100
        assert r.std_error.shape == (1, 1, 4) and 0.7 < said / errors < 1.4, (options, said / errors)
    raises(santa.SantaError, santa.decode, q, k, v, method="top-k", std_error=True, name="STD_ERROR")


def test_options_change_what_they_should():
    q, k, v = problem(1, 1, 2000, d=32)

    def stats(**options):
        return santa.decode(q, k, v, stats=True, seed=1, **options).stats

    assert stats(method="sys", num_samples=8).draws == 32 and stats(method="sys",
                                                                    num_samples=32).draws == 128
    assert stats(method="prop", tile_size=64).tiles > stats(method="prop", tile_size=512).tiles
    assert stats(method="sys", num_samples=64, dense_below=santa.AUTO).dense_rows == 0
    assert stats(method="sys", num_samples=128, dense_below=santa.AUTO).dense_rows == 4
    assert stats(scores="bernoulli_strat", bernoulli_draws=2).k_features_head < stats(
        scores="bernoulli_strat", bernoulli_draws=9).k_features_head < stats().k_features_head
    seen = {
        santa.decode(q, k, v, scores=s, seed=4).out.tobytes()
        for s in ("exact", "bernoulli_iid", "bernoulli_strat", "group_iid", "group_strat")
    }
    assert len(seen) == 5
    f32, f16, u8 = (santa.decode(q, k, v, method="iid", stash=s, seed=4).out for s in ("f32", "f16", "u8"))
    same_bits(f32, santa.decode(q, k, v, method="iid", seed=4).out)
    assert (u8 != f32).any() and np.abs(f16 - f32).max() < 0.5 and np.abs(u8 - f32).max() < 0.5
    near(santa.decode(q, k, v, isa="scalar").out, reference(q, k, v)[0])
    first = santa.decode(q, k, v, item_begin=0, item_end=1, out=np.full((1, 1, 4, 12), 7, "f"))
    assert (first.out[:, :, 2:] == 7).all()
    near(first.out[:, :, :2], reference(q, k, v)[0][:, :, :2])


def test_vattention():
    q, k, v = problem(2, 1, 3000, seed=3)
    r = santa.decode(
        q, k, v, method="vattention", stats=True, std_error=True, vattention={
            "sink_tokens": 10, "local_tokens": 20, "heavy_tokens": 30, "base_samples": 50, "epsilon": 0.1,
            "delta": 0.1, "guarantee": "full", "bound": "hoeffding", "audit": True
        })
    audit = np.frombuffer(r.audit, santa.Audit)
    assert audit.shape == (8,) and (audit["num_keys"] == 3000).all() and (audit["num_base"] >= 50).all()
    assert (audit["num_fixed"] >= 60).all() and (audit["num_fixed"] <= 90).all() and (audit["trace"]
                                                                                      > 0).all()
    loose, tight = (santa.decode(q, k, v, method="vattention", stats=True,
                                 vattention={"epsilon": e}).stats.draws for e in (0.3, 0.05))
    assert loose < tight
    asked = []

    def heavy(batch, row, head, query, begin, end, count):
        asked.append((batch, row, head))
        assert np.allclose(query, q[batch, row, head]) and len(query) == 16
        s = k[batch, begin:end, head // 2] @ q[batch, row, head]
        return begin + np.argsort(-s)[:count]

    r = santa.decode(q, k, v, method="vattention",
                     vattention={"heavy": heavy, "heavy_tokens": 100, "epsilon": 0.01})
    assert sorted(set(asked)) == [(b, 0, h) for b in range(2) for h in range(4)]
    near(r.out, reference(q, k, v)[0], 0.02)

    def broken(*_):
        raise KeyError("no such key")
    raises(KeyError, santa.decode, q, k, v, method="vattention", vattention={"heavy": broken})
    raises(ValueError, santa.decode, q, k, v, method="vattention", vattention={"heavy": lambda *_: [2**40]})
    raises(TypeError, santa.decode, q, k, v, method="vattention", vattention={"heavy": 5})
    index = np.full((*q.shape[:-1], 100), -1, "i4")
    index[..., :50] = np.arange(200, 250)
    given, called = (santa.decode(q, k, v, method="vattention", vattention={"heavy_tokens": 100, **x})
                     for x in ({"heavy_index": index}, {"heavy": lambda *_: range(200, 250)}))
    same_bits(given.out, called.out)
    raises(santa.SantaError, santa.decode, q, k, v, name="HEAVY_INDEX", method="vattention",
           vattention={"heavy_tokens": 100, "heavy_index": index, "heavy": heavy})

    def nested(*args):  # the outer call's workspace stays its own
        near(santa.decode(q[:, :, :2], k, v).out, reference(q[:, :, :2], k, v)[0])
        return heavy(*args)
    same_bits(santa.decode(q, k, v, method="vattention", vattention={"heavy": nested}).out,
              santa.decode(q, k, v, method="vattention", vattention={"heavy": heavy}).out)


def test_proxy():
    q, k, v = problem(2, 1, 1200, d=64, seed=4)
    want = reference(q, k, v, seq_lens=[1200, 1000])[0]
    p = santa.Proxy(k)
    assert p.bits == 4 and p.size == len(p.data) and p.size < k.nbytes / 4
    p.encode(seq_lens=[1200, 1000])
    for method in ("sys", "prop", "pps", "top-k", "vattention"):
        r = santa.decode(q, k, v, proxy=p, seq_lens=[1200, 1000], stats=True, method=method, scores="proxy",
                         num_samples=512)
        near(r.out, want, 0.25)
        assert r.stats.proxy_rows_read > 0 and r.stats.k_rows_read < r.stats.keys
    steps = santa.Proxy(k)
    steps.encode(0, 900, seq_lens=[1100, 900])
    for n in range(100):
        steps.append(seq_lens=[1101 + n, 901 + n])
    steps.encode(900, seq_lens=[1200, 1000])
    same_bits(p.data[:p.size // 2], steps.data[:p.size // 2])
    bits = santa.Proxy(k, bits=2)
    assert bits.size < 0.6 * p.size
    bits.encode()
    near(
        santa.decode(q, k, v, method="sys", scores="proxy", proxy=bits, num_samples=512).out,
        reference(q, k, v)[0], 0.3)
    raw = santa.decode(q, k, v, method="sys", scores="proxy", proxy=bits.data, proxy_bits=2,
                       num_samples=512)
    same_bits(raw.out, santa.decode(q, k, v, method="sys", scores="proxy", proxy=bits, num_samples=512).out)

    def stats(**options):
        return santa.decode(q, k, v, method="sys", scores="proxy", proxy=p, stats=True,
                            seq_lens=[1200, 1000], **options).stats
    assert stats(proxy_lens=[0, 0]).proxy_rows_read == 0 < stats(proxy_lens=[640, 0]).proxy_rows_read
    assert stats(proxy_options={"sink_tokens": 300, "local_tokens": 500}).k_rows_read > stats().k_rows_read
    assert stats(proxy_options={"rescue_above": 1e-9, "rescue_keys": 40}).rescued_rows == 8
    assert stats(proxy_options={"rescue_above": santa.NONE, "exact_above": 1e-9}).redone_rows == 8
    hnd = np.ascontiguousarray(k.transpose(0, 2, 1, 3))
    other = santa.Proxy(hnd, kv_layout="HND")
    other.encode(seq_lens=[1200, 1000])
    same_bits(other.data, p.data) if (other.data == p.data).all() else near(other.size, p.size)

    pages = np.arange(38, dtype=np.int32).reshape(2, 19)[:, ::-1].copy()
    kp, vp = (np.zeros((38, 64, 2, x.shape[3]), "f") for x in (k, v))
    for b in range(2):
        for i in range(19):
            n = min(64, 1200 - 64 * i)
            kp[pages[b, i], :n], vp[pages[b, i], :n] = k[b, 64 * i:64 * i + n], v[b, 64 * i:64 * i + n]
    paged = santa.Proxy(kp, paged=True)
    paged.encode(block_table=pages, seq_lens=[1200, 1000])
    same_bits(
        santa.decode(q, kp, vp, method="sys", scores="proxy", proxy=paged, block_table=pages,
                     seq_lens=[1200, 1000]).out,
        santa.decode(q, k, v, method="sys", scores="proxy", proxy=p, seq_lens=[1200, 1000]).out)

    few = santa.Proxy(k[:, :50])
    few.append(3)
    assert few.size == 64
    same_bits(
        santa.decode(q, k[:, :50], v[:, :50], method="sys", scores="proxy", proxy=few).out,
        santa.decode(q, k[:, :50], v[:, :50], method="sys", scores="proxy", proxy=few, num_samples=7).out)

    raises(santa.SantaError, santa.Proxy, k, bits=3, name="PROXY_BITS")
    raises(santa.SantaError, santa.Proxy, k[..., :12], name="PROXY_HEAD_DIM")
    raises(santa.SantaError, santa.Proxy, kp[:, :24], paged=True, name="PROXY_PAGE")
    raises(santa.SantaError, p.encode, 5, 2, name="PROXY_RANGE")
    raises(santa.SantaError, p.append, -1, name="PROXY_RANGE")
    raises(santa.SantaError, p.encode, seq_lens=[5000, 0], name="SEQ_LEN")
    raises(ValueError, p.encode, block_table=pages)
    raises(ValueError, paged.encode)
    raises(ValueError, santa.Proxy, k, data=np.zeros(8, np.uint8))
    frozen = np.array(p.data)
    frozen.flags.writeable = False
    kept = santa.Proxy(k, data=frozen)                          # may be read
    same_bits(santa.decode(q, k, v, method="sys", scores="proxy", proxy=kept).out,
              santa.decode(q, k, v, method="sys", scores="proxy", proxy=p).out)
    raises(ValueError, kept.encode, text="read-only")
    raises(ValueError, kept.append, text="read-only")
    raises(ValueError, santa.decode, q, k, v, method="sys", scores="proxy", proxy=p.data[:100])
    raises(santa.SantaError, santa.decode, q, k, v, method="sys", scores="proxy", name="PROXY_NULL")
    raises(santa.SantaError, santa.decode, q, k, v, method="iid", scores="proxy", proxy=p,
           name="PROXY_METHOD")


def test_saap():
    q, k, v = problem(2, 1, 2000, seed=6)
    index = index_of_keys(k[:, :1500], 16)
    r = santa.decode(q, k[:, :1500], v[:, :1500], method="saap", buckets=index, num_samples=santa.NONE,
                     stats=True,
                     saap={"num_probes": 2, "sink_tokens": 8, "local_tokens": 100, "measure_mass": 1})
    assert 0 < r.stats.visited_rows < r.stats.far_rows and 0.05 < r.stats.covered_mass < 1
    more = santa.decode(q, k[:, :1500], v[:, :1500], method="saap", buckets=index, num_samples=santa.NONE,
                        stats=True, saap={"num_probes": 9, "local_tokens": 100}).stats
    assert more.visited_rows > r.stats.visited_rows and more.covered_mass == 0
    same = santa.decode(q, k[:, :1500], v[:, :1500], method="saap", buckets=index, num_samples=100, seed=1)
    other = santa.decode(q, k[:, :1500], v[:, :1500], method="saap", buckets=index, num_samples=100, seed=1,
                         saap={"uniform_share": 0.9})
    assert (same.out != other.out).any()

    centroids = np.stack([santa.kmeans(k[0, :, h], 16) for h in range(2)])
    whole = santa.Buckets(k, centroids, key_norm=4.0, num_slots=3, slots=[2, 0])
    whole.assign(k[:, :1999], seq_lens=[1999, 1999])
    whole.assign(k[:, 1999:], -1, num_threads=2)
    assert 0 <= whole.find(2, 1, 1999) < 16 and whole.find(2, 1, 2000) == -1
    nearest = np.argmax(centroids[0] @ k[0, 5, 0])
    assert whole.find(2, 0, 5) == nearest and whole.find(1, 0, 5) == -1
    near(
        santa.decode(q, k, v, method="saap", buckets=whole, num_samples=1 << 20).out,
        reference(q, k, v)[0])

    rng = np.random.default_rng(0)
    w1, b1, w2, b2 = (rng.standard_normal(s).astype("f")
                      for s in ((2, 24, 16), (2, 24), (2, 16, 24), (2, 16)))
    routed = santa.Buckets(k, centroids, w1=w1, b1=b1, w2=w2, b2=b2)
    routed.assign(k)
    hidden = np.maximum(np.einsum("ghd,bgnd->bgnh", w1, q.reshape(2, 2, 2, 16)) + b1[:, None], 0)
    f = np.einsum("gch,bgnh->bgnc", w2, hidden) + b2[:, None]
    f = (np.exp(f) / np.exp(f).sum(-1, keepdims=True)).sum(2)                   # [batch, kv_heads, buckets]

    def best(b, s):  # keys that a row of KV head s sees
        far = np.arange(2000 - 2000 % 64 - 64)[4:]
        read = np.ones(2000, bool)
        read[far] = [routed.find(b, s, int(j)) == f[b, s].argmax() for j in far]
        return read
    one = {"num_probes": 1, "sink_tokens": 4, "local_tokens": 64}

    def probed(buckets):
        return santa.decode(q, k, v, method="saap", buckets=buckets, num_samples=santa.NONE, saap=one).out
    plain = probed(routed)
    for b in range(2):
        for s in range(2):
            read = best(b, s)
            assert 100 < read.sum() < 1000
            near(
                plain[b, :, 2 * s:2 * s + 2],
                reference(q[b:b + 1, :, 2 * s:2 * s + 2], k[b:b + 1, read, s:s + 1], v[b:b + 1, read,
                                                                                       s:s + 1])[0][0])
    routed.q = -3 * q  # the router asks with other queries
    assert (plain != probed(routed)).any()
    routed.q = q
    same_bits(plain, probed(routed))

    raises(santa.SantaError, santa.decode, q, k, v, method="saap", name="BUCKETS_NULL")
    raises(TypeError, santa.decode, q, k, v, method="saap", buckets=centroids)
    raises(santa.SantaError, routed.assign, k[:, :5], -2, name="BUCKETS_RANGE")
    raises(ValueError, santa.Buckets, k, centroids[:, :, :8])
    raises(ValueError, santa.Buckets, k, centroids, w1=w1)
    raises(ValueError, santa.Buckets, k, centroids, w1=w1, b1=b1, w2=w2.astype(np.float16), b2=b2)
    raises(TypeError, santa.kmeans, k[0, :, 0].astype(np.float16), 4)
    raises(santa.SantaError, santa.kmeans, k[0, :, 0], 4, iterations=-1, name="KMEANS")


# ---------------------------------------------------------------------------------- lists of keys

def test_lists_of_keys():
    q, k, v = problem(2, 3, 120)
    rng = np.random.default_rng(7)
    keys = rng.integers(-3, 120, (2, 2, 50)).astype(np.int32)
    weights = rng.random((2, 2, 50)).astype(np.float32)
    lens = [[50, 20], [0, 49]]

    def want(b, i, h, keys, weights=None, lens=None):
        at, = np.nonzero(keys >= 0)
        at = at[at < (50 if lens is None else lens)]
        w = np.ones(len(at)) if weights is None else weights[at].astype(np.float64)
        s = k[b, keys[at], h // 2].astype(np.float64) @ q[b, i, h].astype(np.float64) * q.shape[3] ** -0.5
        w = w * np.exp(s)
        return (w @ v[b, keys[at], h // 2] / w.sum() if len(at) else np.zeros(v.shape[3])), w.sum()

    for r, x in ((santa.decode(q, k, v, lse=True, key_list=keys), {}),
                 (santa.decode(q, k, v, lse=True, key_list=keys.tolist(), key_weights=weights, key_list_lens=lens),
                  {"weights": weights, "lens": lens})):
        for b in range(2):
            for i in range(3):
                for h in range(4):
                    out, mass = want(b, i, h, keys[b][h // 2], **{n: y[b][h // 2] for n, y in x.items()})
                    near(r.out[b, i, h], out)
                    near(np.exp(r.lse[b, i, h]), mass)
    rows = rng.integers(0, 120, (2, 3, 2, 9)).astype(np.int32)
    r = santa.decode(q, k, v, key_list=rows, stats=True)
    assert r.stats.k_rows_read == rows.size
    near(r.out[1, 2, 3], want(1, 2, 3, rows[1, 2, 1])[0])
    raises(ValueError, santa.decode, q, k, v, key_list=keys[0])
    raises(ValueError, santa.decode, q, k, v, key_weights=weights)
    raises(santa.SantaError, santa.decode, q, k, v, key_list=keys, method="sys", name="KEY_LIST_METHOD")


# ---------------------------------------------------------------------------------- options refused

REFUSED = {  # option: a wrong value, the status, and what else the call needs
    "seq_lens": ([1, 999], "SEQ_LEN", {}), "kv_start": ([0, 301], "KV_START", {}),
    "block_table": ([[0], [7]], "BLOCK_TABLE", {}),
    "sm_scale": (float("nan"), "SM_SCALE", {}), "k_scale": (-1.0, "SCALE", {}),
    "v_scale": (float("inf"), "SCALE", {}),
    "k_scales": (np.ones((2, 299, 2), "f"), "ROW_SCALES", {}),
    "v_scales": (np.ones((2, 300, 3), "f"), "ROW_SCALES", {}),
    "soft_cap": (-1.0, "SOFT_CAP", {}), "causal": (2, "CAUSAL", {}), "window": (-1, "WINDOW", {}),
    "first_tokens": (4, "FIRST_TOKENS", {}),
    "sinks": ([0, 0, float("nan"), 0], "SINKS", {}), "alibi_slopes": ([0, 0, 0, float("inf")], "ALIBI", {}),
    "first_key": (-1, "FIRST_KEY", {}), "context_lens": ([300, 10], "CONTEXT_LEN", {}),
    "proxy": (None, "PROXY_NULL", {"method": "sys", "scores": "proxy"}),
    "proxy_bits": (3, "PROXY_BITS", {"method": "sys", "scores": "proxy"}),
    "proxy_lens": ([0, -1], "PROXY_LEN", {"method": "sys", "scores": "proxy", "proxy": "make"}),
    "key_list": ([[[0], [300]]] * 2, "KEY_LIST", {}),
    "key_list_lens": ([[1, 2]] * 2, "KEY_LIST", {"key_list": [[[0], [1]]] * 2}),
    "key_weights": ([[[1], [-1]]] * 2, "KEY_WEIGHT", {"key_list": [[[0], [1]]] * 2}),
    "buckets": (None, "BUCKETS_NULL", {"method": "saap"}), "method": (99, "METHOD", {}),
    "num_samples": (-5, "NUM_SAMPLES", {"method": "sys"}), "top_p": (2.0, "TOP_P", {"method": "top-p"}),
    "tile_size": (7, "TILE_SIZE", {"method": "flash"}), "stash": (9, "STASH", {"method": "iid"}),
    "num_combs": (3, "COMBS", {"method": "sys"}), "dense_below": (-2, "DENSE_BELOW", {"method": "sys"}),
    "scores": (9, "SCORES", {}), "bernoulli_draws": (-1, "BERNOULLI_DRAWS", {"scores": "group_iid"}),
    "isa": (77, "ISA", {}), "num_threads": (-1, "THREADS", {}), "item_begin": (3, "ITEMS", {}),
    "item_end": (99, "ITEMS", {}),
}
REFUSED_IN = {
    "vattention": {
        "sink_tokens": (-2, "VATTENTION_TOKENS"), "local_tokens": (-2, "VATTENTION_TOKENS"),
        "heavy_tokens": (-2, "VATTENTION_TOKENS"), "base_samples": (1, "BASE_SAMPLES"),
        "epsilon": (1.5, "EPSILON"), "delta": (1.5, "DELTA"), "guarantee": (5, "GUARANTEE"),
        "bound": (5, "BOUND"), "heavy_stride": (-1, "HEAVY_INDEX")
    }, "proxy_options": {
        name: (-2, "PROXY_OPTIONS")
        for name in ("sink_tokens", "local_tokens", "rescue_keys", "rescue_above", "exact_above")
    }, "saap": {
        name: (value, "SAAP_OPTIONS")
        for name, value in (("num_probes", -2), ("sink_tokens", -2), ("local_tokens", -2),
                            ("uniform_share", 1.5), ("measure_mass", 2))
    }, "sample_attention": {
        name: (value, "SAMPLE_ATTENTION")
        for name, value in (("alpha_columns", 1.5), ("alpha_slashes", -0.5), ("num_chunks", 65),
                            ("block_size", 32), ("per_head", 2), ("dense_above", -0.5))
    }, "ranks": {"count": (-1, "RANKS"), "rank": (1, "RANKS")},
}
# These have no wrong value, or one that santa.py itself finds; each has a test of its own above or below.
FREE = {
    "q", "k", "v", "out", "lse", "std_error", "stats", "q_layout", "kv_layout", "seed", "offset", "seeds",
    "offsets", "request_ids", "parallel_for", "stream", "workspace"
} | set(REFUSED_IN)


def test_options_that_a_method_does_not_read():
    """They are refused by name, and used_options leaves them out and nothing else."""
    q, k, v = problem(1, 1, 200)
    for options, unused in (({"method": "sys", "top_p": 0.5}, "top_p"),
                            ({"method": "top_k", "tile_size": 512}, "tile_size"),
                            ({"method": "top-p", "stash": "u8"}, "stash"),
                            ({"method": "iid", "num_combs": 2}, "num_combs"),
                            ({"method": "vattention", "dense_below": 9}, "dense_below"),
                            ({"method": "sys", "bernoulli_draws": 9}, "bernoulli_draws"),
                            ({"method": "sys", "vattention": {"audit": True}}, "vattention.audit"),
                            ({"vattention": {"epsilon": 0.1, "bound": "hoeffding"}}, "vattention.epsilon"),
                            ({"vattention": {"heavy": lambda *_: []}}, "vattention.heavy"),
                            ({"method": "sys", "proxy_options": {"rescue_keys": 3}}, "proxy.rescue_keys"),
                            ({"saap": {"num_probes": 3}}, "saap.num_probes"),
                            ({"sample_attention": {"per_head": 1}}, "sample_attention.per_head")):
        raises(santa.SantaError, santa.decode, q, k, v, **options, name="OPTION_UNUSED", text=f"({unused})")
        raises(santa.SantaError, santa.workspace_size, q, k, v, **options, name="OPTION_UNUSED")
        used = santa.used_options(**options, seed=3)
        section, _, key = unused.replace("proxy.", "proxy_options.").rpartition(".")
        assert key not in (used[section] if section else used) and used["seed"] == 3, (options, used)
        santa.decode(q, k, v, **used)
    every = {"method": "sys", "num_samples": 32, "num_combs": 2, "stash": "f16", "dense_below": santa.AUTO,
             "scores": "group_iid", "bernoulli_draws": 2, "vattention": {}, "lse": True}
    assert santa.used_options(**every) == every
    options = {"method": "vattention", "vattention": {"guarantee": "full", "epsilon": 0.1, "audit": True}}
    assert santa.used_options(**options, saap={"measure_mass": 1}) == {**options, "saap": {}}
    santa.decode(q, k, v, num_samples=64, top_p=0.9, tile_size=256, stash="f32")  # defaults; a budget of any method
    raises(TypeError, santa.used_options, vattention={"epsilons": 1}, text="epsilons")


def test_every_option_is_checked_by_the_library():
    assert set(inspect.signature(santa.decode).parameters) == set(REFUSED) | FREE
    q, k, v = problem(2, 1, 300)
    proxy = santa.Proxy(k)
    proxy.encode()
    index = index_of_keys(k)
    data = ("seq_lens", "kv_start", "block_table", "context_lens", "proxy_lens", "sinks", "alibi_slopes",
            "proxy", "key_list", "key_list_lens", "key_weights")  # what they hold does not matter for a size
    for option, (value, name, also) in REFUSED.items():
        also = {**also, **({"proxy": proxy} if "proxy" in also else {})}
        e = raises(santa.SantaError, santa.decode, q, k, v, name=name, **{**also, option: value})
        assert isinstance(e, ValueError) and e.status > 0 and str(e).startswith(f"SANTA_ERR_{name}: "), e
        if option not in data:
            raises(santa.SantaError, santa.workspace_size, q, k, v, name=name, **{**also, option: value})
    needs = {
        "vattention": {"method": "vattention"},
        "proxy_options": {"method": "sys", "scores": "proxy",
                          "proxy": proxy}, "saap": {"method": "saap", "buckets": index},
        "sample_attention": {"method": "sample-attention"}, "ranks": {}
    }
    for group, options in REFUSED_IN.items():
        santa.decode(q, k, v, **needs[group])
        for option, (value, name) in options.items():
            raises(santa.SantaError, santa.decode, q, k, v, name=name, **needs[group],
                   **{group: {option: value}})
        raises(TypeError, santa.decode, q, k, v, **needs[group], **{group: {"epsilons": 1}},
               text="epsilons")
    fields = {
        "vattention": santa._VAttentionOptions, "proxy_options": santa._ProxyOptions,
        "saap": santa._SaapOptions, "sample_attention": santa._SampleAttentionOptions,
        "ranks": santa._RanksOptions
    }
    for group, struct in fields.items():
        assert {f[0] for f in struct._fields_} - {"heavy", "heavy_user", "heavy_index", "audit", "mask", "mask_out",
                                                  "row_mass", "all_gather", "user"} == set(
                                                      REFUSED_IN[group])


def over_ranks(q, k, v, cuts, **options):
    """decode() on as many threads, which meet in all_gather; every rank's output."""
    count, n = len(cuts) - 1, k.shape[1]
    barrier, said, results = threading.Barrier(count), [None] * count, [None] * count

    def run(rank):
        def gather(mine, everything):
            said[rank] = bytes(mine)
            barrier.wait()
            everything[:] = b"".join(said)
            barrier.wait()
        keys = slice(cuts[rank], cuts[rank + 1])
        results[rank] = santa.decode(q, k[:, keys], v[:, keys], first_key=cuts[rank], context_lens=[n],
                                     ranks={"count": count, "rank": rank, "all_gather": gather}, **options)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks():
    q, k, v = problem(1, 1, 300)
    for method, options in (("dense", {}), ("sys", {"num_samples": 16, "seed": 3}),
                            ("flash", {"num_samples": 16, "seed": 3, "tile_size": 32}),
                            ("top-k", {"num_samples": 16}), ("top-p", {"top_p": 0.5}),
                            ("pps", {"num_samples": 16, "seed": 3}),
                            ("vattention", {"vattention": {"sink_tokens": 8, "local_tokens": 8,
                                                           "epsilon": 0.4, "heavy_tokens": 8}})):
        whole = santa.decode(q, k, v, method=method, causal=True, lse=True, **options)
        for r in over_ranks(q, k, v, (0, 64, 65, 300), method=method, causal=True, lse=True, **options):
            near(r.out, whole.out)
            near(r.lse, whole.lse)

    def fails(mine, everything):
        raise KeyError("no transport")
    raises(KeyError, santa.decode, q, k, v, ranks={"count": 2, "rank": 0, "all_gather": fails})
    raises(TypeError, santa.decode, q, k, v, ranks={"count": 2, "rank": 0, "all_gather": 3})
    raises(santa.SantaError, santa.decode, q, k, v, name="RANKS", ranks={"count": 2})
    raises(santa.SantaError, santa.decode, q, k, v, name="RANKS_METHOD", method="sys", dense_below=9,
           ranks={"count": 2, "all_gather": fails})


def test_sparse_prefill():
    r = np.random.default_rng(5)
    q, k, v = (r.standard_normal((2, n, h, 16)).astype("f") for n, h in ((200, 4), (900, 2), (900, 2)))
    dense = santa.decode(q, k, v, causal=True, lse=True)
    some = {"alpha_columns": 0.1, "alpha_slashes": 0.1, "dense_above": santa.NONE}
    shape = santa.mask_shape(q, k, v, causal=True, method="sample-attention")
    assert shape == (2, 4, 5, 15)
    mask, mass = np.zeros(shape, "u1"), np.zeros((2, 200, 4), "f")
    sparse = santa.decode(q, k, v, causal=True, method="sample-attention", lse=True, sample_attention={
        **some, "mask_out": mask, "row_mass": mass, "audit": True})
    np.testing.assert_allclose(np.exp(sparse.lse - dense.lse), mass, rtol=1e-4)
    assert len(sparse.audit) == 8 and 0 < sparse.audit[3].kept_share < 1 and mask[1, 3].any()
    given = santa.decode(q, k, v, causal=True, method="sample-attention", sample_attention={"mask": mask})
    np.testing.assert_array_equal(given.out, sparse.out)
    whole = santa.decode(q, k, v, causal=True, method="sample-attention", sample_attention={
        "mask": np.ones(shape, "u1")})
    np.testing.assert_array_equal(whole.out, dense.out)
    raises(ValueError, santa.decode, q, k, v, causal=True, method="sample-attention", sample_attention={
        "mask": mask[:1]}, text="mask has shape")
    raises(ValueError, santa.decode, q, k, v, causal=True, method="sample-attention", sample_attention={
        "row_mass": mass[:, :, ::2]}, text="row_mass is not")
    raises(santa.SantaError, santa.decode, q, k, v, method="sample-attention", name="SAMPLE_CAUSAL")


def test_every_field_has_an_argument():
    """Fields of the C structs that no argument sets would be options that cannot be reached."""
    arguments = set(inspect.signature(santa.decode).parameters)
    made = {"max_pages", "block_table_stride", "parallel_user",  # from block_table; the callback has it
            "max_list", "key_list_stride", "key_list_rows"}      # from key_list
    fields = {f[0] for f in santa._Attention._fields_ + santa._Options._fields_}
    assert fields - made <= arguments, fields - made - arguments


def test_flags():
    q, k, v = problem(2, 1, 50)
    for yes in (True, 1, np.True_, np.array(1)):
        r = santa.decode(q, k, v, method="sys", lse=yes, std_error=yes)
        assert r.lse.shape == r.std_error.shape == (2, 1, 4)
    for no in (None, False, 0, np.False_):
        assert santa.decode(q, k, v, lse=no).lse is None
    raises(ValueError, santa.decode, q, k, v, lse=2, text="lse")


def test_wrong_arguments():
    q, k, v = problem(2, 1, 50)
    for name, args in (("BATCH", (q[:1], k, v)), ("KV_HEADS", (q, k, v[:, :, :1])),
                       ("HEAD_DIM", (q[..., :8], k, v)), ("KV_LEN", (q, k, v[:, :9])),
                       ("GROUP", (q[:, :, :3], k, v)), ("SHAPE", (q[:, :0], k, v))):
        raises(santa.SantaError, santa.decode, *args, name=name)
    raises(santa.SantaError, santa.decode, q, k, v, method="topk", name="METHOD", text="top-k")
    raises(santa.SantaError, santa.decode, q, k, v, out=np.zeros((2, 1, 4, 5), "f"), name="HEAD_DIM_V")
    raises(santa.SantaError, santa.decode, q, k, v, out=np.broadcast_to(np.zeros(
        (1, 1, 1, 12), "f"), (2, 1, 4, 12)).view(), name="OUT_STRIDE") if np.broadcast_to(
            q, q.shape).flags.writeable else None
    raises(ValueError, santa.decode, q[:1], k[:1, 0], v[:1, 0], text="k has 3 dimensions")
    raises(ValueError, santa.decode, q, k, v, out=np.zeros((2, 4, 12), "f"), text="out has 3 dimensions")
    for bad in (q[0, 0], q.astype(np.float64), q.astype(">f4"), q.tolist(), "q", None, q.astype(np.int32)):
        raises((TypeError, ValueError), santa.decode, bad, k, v)
    frozen = np.zeros((2, 1, 4, 12), "f")
    frozen.flags.writeable = False
    raises(ValueError, santa.decode, q, k, v, out=frozen, text="read-only")
    before = np.full((2, 1, 4, 12), 3, "f")
    raises(santa.SantaError, santa.decode, q, k, v, out=before, soft_cap=-1.0)
    assert (before == 3).all()
    for option, value in (("seq_lens", [1]), ("seq_lens", [[1], [2, 3]]), ("seq_lens", [1, 2**40]),
                          ("seq_lens", np.zeros((2, 2), "i")), ("seeds", [1, -1]), ("seed", -1),
                          ("seed", 2**64), ("num_samples", 2**63), ("window", 1.5), ("sinks", [0.0] * 3),
                          ("sinks", np.zeros(5, "f")), ("scores", "exactly"), ("isa", "sse"),
                          ("stash", "f64"), ("q_layout", "HDN"), ("kv_layout", "nhd"), ("method", 1.5),
                          ("parallel_for", 3), ("lse", np.zeros((2, 1, 4))), ("lse", np.zeros(
                              (2, 4), "f")), ("std_error", np.zeros(
                                  (2, 1, 8), "f")[..., ::2]), ("workspace", np.zeros(10, "u1")[::2]),
                          ("workspace", np.zeros(10,
                                                 "u1").view("S1")), ("proxy", np.zeros((1 << 16, 2),
                                                                                       "u1")[:, 0])):
        raises((TypeError, ValueError), santa.decode, q, k, v, **{option: value})
    for option, value in (("num_samples", "12"), ("method", None), ("window", 1.5), ("seq_lens", [1.0, 2]),
                          ("sm_scale", None), ("sinks", ["a"] * 4)):
        raises(TypeError, santa.decode, q, k, v, **{option: value}, text=f"{option} = ")
    raises(ValueError, santa.decode, q, k, v, block_table=[0, 1], text="block_table has shape (2,)")
    raises(ValueError, santa.View, k, None)
    raises(TypeError, santa.decode, santa.View(np.zeros((2, 1, 4, 34), np.uint8), "q8_0"), k, v,
           text="q is of q8_0")
    raises(TypeError, santa.Buckets, k, np.zeros((2, 4, 16)), text="float64")
    raises(ValueError, santa.kmeans, np.zeros((9, 4), "f")[::-1], 2, text="backwards")
    raises(santa.SantaError, santa.kmeans, np.zeros((9, 4), "f"), 10**9, name="BUCKETS_SHAPE")
    raises(TypeError, santa.decode, q, k, v, num_sample=5)
    raises(ValueError, santa.View, k, "f64")
    raises(TypeError, santa.decode, q, santa.View(k, "e4m3"), v)
    raises(ValueError, santa.decode, q, santa.View(np.zeros((2, 50, 2, 33), np.uint8), "q8_0"), v)
    raises(TypeError, santa.decode, q, bytes(100), v)
    byte_steps = np.zeros((2, 50, 2, 16), np.dtype([("a", "u1"), ("x", "<f4")]))["x"]
    raises(ValueError, santa.decode, q, byte_steps, v, text="multiples")


def test_arguments_of_any_kind():
    """Whatever an argument of decode() is: taken, or a TypeError or ValueError that names it."""
    q, k, v = problem(2, 1, 50)
    kinds = [None, "abc", [1, 2], [[1, [2]], [3]], [], {}, 1.5, math.nan, math.inf, -1, -2**70,
             np.int64(-3), np.float32(0.5), np.bool_(True), object(), np.array(3), np.zeros((2, 1, 4, 16)),
             1j, b"ab", (1, 2),
             np.array([None, 1]), lambda *_: 1, {1, 2}, ["a", "b"], int, np.array(["a", "b"]), [1, None],
             np.zeros(2, [("a", "i4")])]
    try:
        import torch
        kinds += [torch.zeros(2), torch.zeros(2, device="meta"), torch.zeros(2, 4).to_sparse(),
                  torch.zeros(2, dtype=torch.complex64)]
    except ImportError:
        pass
    for name in inspect.signature(santa.decode).parameters:
        refused = 0
        for kind in kinds:
            arguments = {"q": q, "k": k, "v": v, name: kind}
            try:
                santa.decode(**arguments)
            except (TypeError, ValueError) as error:
                refused += 1
                assert name in str(error), (name, kind, error)
        assert refused >= 15, (name, refused)
    for name, values in (("stats", (2, "yes", [1], object())), ("vattention", ([], 0, "", False)),
                         ("ranks", ([], "count", 2)), ("saap", (0, [("num_probes", 3)])),
                         ("sample_attention", (False, "mask")), ("proxy_options", (0, [])),
                         ("q_layout", (None, "nhd", ["NHD"])), ("kv_layout", (0, "HDN", ("HND",))),
                         ("stream", (-1, 1.0, "0", object())), ("sm_scale", ("0.5", b"1", 10**400)),
                         ("proxy_bits", (2,)), ("proxy_lens", ([5, 5],))):
        for value in values:
            raises((TypeError, ValueError), santa.decode, q, k, v, **{name: value}, text=name)
    raises(ValueError, santa.decode, q, k, v, ranks={"all_gather": lambda *_: None}, text="count")
    raises(ValueError, santa.decode, q, k, v, method="vattention", vattention={"audit": 2}, text="audit")
    raises(santa.SantaError, santa.decode, q[:0], k[:0], v[:0], name="SHAPE", text="q [0, 1, 4, 16]")
    raises(santa.SantaError, santa.decode, q, k, v[:, :9], name="KV_LEN", text="v [2, 9, 2, 12]")
    raises(santa.SantaError, santa.decode, q, k, v, causal=True, method="sample-attention",
           sample_attention={"alpha_slashes": 1.5}, name="SAMPLE_ATTENTION", text="alpha_slashes = 1.5")
    for run, text in ((lambda n, task: None, "0 calls"),
                      (lambda n, task: [task(i) for i in range(n - 1)], "once"),
                      (lambda n, task: [task(0) for _ in range(n)], "of 1 tasks"),
                      (lambda n, task: [task(i) for i in range(n + 1)], "task("),
                      (lambda n, task: task("0"), "'0'")):
        raises((TypeError, ValueError), santa.decode, q, k, v, num_threads=2, parallel_for=run, text=text)
    for name, lists in (("sinks", [[0, 0], [0, 0]]), ("seq_lens", [[9], [9]]), ("seeds", [1, [2]]),
                        ("key_list", [[[0, 1], [0, 1, 2]], [[1], [2, 4]]]),
                        ("block_table", [[0, 1], [0, 1, 0]])):
        raises(ValueError, santa.decode, q, k, v, **{name: lists}, text=name)
    square, one = k[:, :1].repeat(2, 2), np.zeros((2, 1, 4), "f")
    raises(ValueError, santa.decode, square, k, k, out=square, text="out lies in the memory of q")
    raises(ValueError, santa.decode, q[:, :, :2], k, k, out=k[:, :1], text="out lies in the memory of k")
    raises(ValueError, santa.decode, square, k, k, lse=one, std_error=one, method="sys",
           text="std_error lies in the memory of lse")
    fused = np.zeros((2, 1, 8, 12), "f")                        # parts of one array are apart
    fused[:, :, :4] = q[..., :12]
    near(santa.decode(fused[:, :, :4], k[..., :12], v, out=fused[:, :, 4:]).out,
         santa.decode(q[..., :12].copy(), k[..., :12], v).out)
    for function, arguments in ((santa.offset, (-1, 0)), (santa.offset, (65536, 0)),
                                (santa.offset, (0, -1)),
                                (santa.offset, (0, 2**48)), (santa.offset, ("0", 1))):
        raises((TypeError, ValueError), function, *arguments, text="layer")
    raises(santa.SantaError, santa.used_options, method="topk", name="METHOD")
    raises(TypeError, santa.used_options, saap=[], text="saap")
    raises(ValueError, santa.Proxy, k, kv_layout="nhd", text="kv_layout")
    raises(ValueError, santa.Proxy, k, paged=2, text="paged")
    centroids = np.zeros((2, 4, 16), "f")
    for name, value in (("batch", -1), ("batch", 0), ("max_pages", -1), ("num_slots", -1), ("num_slots", 1),
                        ("key_norm", -1), ("key_norm", math.nan), ("key_norm", "8"), ("kv_layout", "nhd")):
        raises((TypeError, ValueError), santa.Buckets, k, centroids, **{name: value}, text=name)
    flat = np.zeros(4, "f")
    raises(ValueError, santa.Buckets, k, centroids, w1=flat, b1=flat, w2=flat, b2=flat, text="w1")


def test_nan_shows():
    q, k, v = problem(1, 1, 50)
    k[0, 7, 1, 3] = np.nan
    for method in ("dense", "sys"):
        out = santa.decode(q, k, v, method=method).out
        assert np.isnan(out[:, :, 2:]).all() and np.isfinite(out[:, :, :2]).all()


# ---------------------------------------------------------------------------------- memory and threads

def test_workspace_and_results_in_place():
    q, k, v = problem(1, 1, 3000)
    size = santa.workspace_size(q, k, v, method="sys", num_threads=1)
    mine, lse, out = np.full(size + 64, 0xA5, np.uint8), np.zeros((1, 1, 4), "f"), np.zeros((1, 1, 4, 12),
                                                                                            "f")
    r = santa.decode(q, k, v, method="sys", workspace=mine[:size], lse=lse, out=out)
    assert r.out is out and r.lse is lse and (mine[size:] == 0xA5).all() and (mine[:size] != 0xA5).any()
    same_bits(out, santa.decode(q, k, v, method="sys").out)
    near(lse, reference(q, k, v)[1])
    raises(santa.SantaError, santa.decode, q, k, v, method="sys", workspace=mine[:size - 1],
           name="WORKSPACE_SIZE")
    for other, options in (("k", {"workspace": k}), ("out", {"workspace": out, "out": out})):
        raises(ValueError, santa.decode, q, k, v, method="sys", text=f"in the memory of {other}", **options)
    santa.free_workspaces()
    same_bits(out, santa.decode(q, k, v, method="sys").out)


def test_threads():
    q, k, v = problem(1, 2, 20000, seed=8)
    want = santa.decode(q, k, v, method="sys").out
    if santa.build_info()["threads"] == "none":
        raises(santa.SantaError, santa.decode, q, k, v, num_threads=2, name="THREADS")
    else:
        for threads in (2, 5):
            same_bits(want, santa.decode(q, k, v, method="sys", num_threads=threads).out)
    ran = []

    def in_python(count, task):
        threads = [threading.Thread(target=task, args=(i,)) for i in range(count)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        ran.append(count)
    same_bits(want, santa.decode(q, k, v, method="sys", num_threads=3, parallel_for=in_python).out)
    assert ran and max(ran) == 3 and min(ran) == 2              # fewer where there are fewer pieces

    def broken(count, task):
        raise RuntimeError("no threads today")
    raises(RuntimeError, santa.decode, q, k, v, num_threads=2, parallel_for=broken)

    got = [None] * 6

    def call(i):
        for _ in range(5):
            got[i] = santa.decode(q, k, v, method="sys",
                                  num_threads=1 + i % 2 * (santa.build_info()["threads"] != "none")).out
    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x in got:
        same_bits(want, x)


def test_a_forked_child():
    if not hasattr(os, "fork"):
        raise unittest.SkipTest("no fork")
    code = f"""
import os, signal, sys
sys.path.insert(0, {HERE!r})
import numpy as np, santa
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, n, h, 16)).astype("f") for n, h in ((1, 4), (9000, 2), (9000, 2)))
threads = 1 if santa.build_info()["threads"] == "none" else 2
want = santa.decode(q, k, v, method="sys", num_threads=threads).out
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    os._exit(0 if (santa.decode(q, k, v, method="sys", num_threads=threads).out == want).all() else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-B", "-c", code], timeout=120).returncode == 0


class OnlyDLPack:
    """An array that shows nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    q, k, v = problem(1, 1, 60)
    want = reference(q, k, v)[0]
    count = sys.getrefcount(k)
    for _ in range(3):
        r = santa.decode(*(OnlyDLPack(x) for x in (q, k, v)), seq_lens=OnlyDLPack(np.array([60], np.int32)))
        near(r.out, want)
        del r
    assert sys.getrefcount(k) == count, "a capsule was kept"
    out = np.zeros_like(want, np.float32)
    santa.decode(q, OnlyDLPack(k.transpose(0, 2, 1, 3)), OnlyDLPack(v.transpose(0, 2, 1, 3)),
                 kv_layout="HND", out=OnlyDLPack(out))
    near(out, want)
    near(santa.decode(q, k, v, seq_lens=OnlyDLPack(np.array([60]))).out, want)      # of 64 bits: converted
    raises(TypeError, santa.decode, OnlyDLPack(q.astype(np.float64)), k, v)

    class Elsewhere(OnlyDLPack):
        def __dlpack_device__(self):
            return 7, 0
    raises(TypeError, santa.decode, Elsewhere(q), k, v, text="device 7")


def test_buffers():
    q, k, v = problem(1, 1, 60)

    def buffer(x):
        return memoryview(bytearray(x.tobytes())).cast({4: "f", 2: "e"}[x.itemsize], x.shape)
    near(np.asarray(santa.decode(buffer(q), buffer(k), buffer(v)).out), reference(q, k, v)[0])
    raises(TypeError, santa.decode, memoryview(q.tobytes()).cast("f", q.shape), k, v)


# ---------------------------------------------------------------------------------- torch

RANK = """
import sys
sys.path.insert(0, {here!r})
import torch, torch.distributed as dist, santa
rank, count, n = int(sys.argv[1]), 3, 3000
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=count)
torch.manual_seed(1)
q, k, v = torch.randn(2, 1, 8, 32), torch.randn(2, n, 2, 32), torch.randn(2, n, 2, 32)
cuts = (0, 1000, 1000, n)                       # the second has no keys, but takes part
for method in ("dense", "sys"):
    begin, end = cuts[rank], cuts[rank + 1]
    lens, keys = [end - begin] * 2, slice(min(begin, n - 1), max(end, begin + 1))
    r = santa.decode(q, k[:, keys], v[:, keys], seq_lens=lens, first_key=begin, context_lens=[n] * 2,
                     causal=True, method=method, seed=4, ranks=santa.torch_ranks())
    whole = santa.decode(q, k, v, causal=True, method=method, seed=4)
    assert (r.out - whole.out).abs().max() < 1e-5, method
dist.destroy_process_group()
"""


def test_torch_distributed():
    torch = torch_or_skip()
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise unittest.SkipTest("torch without gloo")
    with tempfile.TemporaryDirectory() as folder:
        program, meet = RANK.format(here=HERE), os.path.join(folder, "meet")
        runs = [subprocess.Popen([sys.executable, "-c", program, str(rank), meet], stderr=subprocess.PIPE,
                                 text=True) for rank in range(3)]
        for run in runs:
            _, errors = run.communicate(timeout=300)
            assert run.returncode == 0, errors


def test_torch_tensors():
    torch = torch_or_skip()
    arrays = problem(2, 3, 300, d=32, dv=32)
    q, k, v = (torch.from_numpy(x) for x in arrays)
    r = santa.decode(q, k, v, lse=True, causal=True)
    assert isinstance(r.out, torch.Tensor) and r.out.dtype == torch.float32 and r.lse.dtype == torch.float32
    want = reference(*arrays, causal=True)
    near(r.out, want[0])
    near(r.lse, want[1])
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        low = [x.to(dtype) for x in (q, k, v)]
        got = santa.decode(*low)
        assert got.out.dtype == dtype
        near(got.out.float(), reference(*(x.float().numpy() for x in low))[0], tolerance)
    e4m3 = [x.to(torch.float8_e4m3fn) for x in (k, v)]
    near(santa.decode(q, *e4m3).out, reference(arrays[0], *(x.float().numpy() for x in e4m3))[0])
    hnd = santa.decode(q.transpose(1, 2), k.transpose(1, 2),
                       v.transpose(1, 2).contiguous(), q_layout="HND", kv_layout="HND")
    near(hnd.out, reference(*arrays)[0].transpose(0, 2, 1, 3))
    for lens in (torch.tensor([300, 100]), torch.tensor([300, 100], dtype=torch.int32),
                 torch.tensor([[300, 0], [100, 0]])[:, 0]):
        near(santa.decode(q, k, v, seq_lens=lens).out, reference(*arrays, seq_lens=[300, 100])[0])
    sinks = torch.tensor([0.5, 1.0, 2.0, -1.0])
    near(santa.decode(q, k, v, sinks=sinks.double(), alibi_slopes=sinks / 100).out,
         reference(*arrays, sinks=sinks.numpy(), slopes=sinks.numpy() / 100)[0])
    out = torch.zeros(2, 4, 3, 32).transpose(1, 2)
    assert santa.decode(q, k, v, out=out, method="sys").out is out
    same_bits(out.contiguous().numpy(), santa.decode(*arrays, method="sys").out)
    p = santa.Proxy(k)
    p.encode()
    assert p.data.dtype == torch.uint8
    near(
        santa.decode(q, k, v, method="sys", scores="proxy", proxy=p, num_samples=512).out,
        reference(*arrays)[0], 0.25)
    parameter = torch.nn.Parameter(q)
    same_bits(santa.decode(parameter, k, v).out.numpy(), santa.decode(q, k, v).out.numpy())
    raises(TypeError, santa.decode, q.double(), k, v)
    raises(TypeError, santa.decode, q.to("meta"), k, v, text="meta")
    minus = torch.complex(k, q[:, :1, :1].expand_as(k)).conj().imag     # its memory has the other sign
    assert minus.is_neg()
    raises(TypeError, santa.decode, q, minus, v, text="k.resolve_neg()")
    near(santa.decode(q, minus.resolve_neg(), v).out,
         reference(arrays[0], minus.numpy(force=True), arrays[2])[0])
    rows = torch.randn(1, 64, 4, 32)
    sparse = {"method": "sample-attention", "causal": True, "sample_attention": {"block_size": 64}}
    heads = torch.randn(1, 64, 2, 32)
    mask = torch.ones(santa.mask_shape(rows, heads, heads, **sparse), dtype=torch.bool)
    sparse["sample_attention"]["mask"] = mask
    near(santa.decode(rows, heads, heads, **sparse).out,
         santa.decode(rows, heads, heads, causal=np.bool_(True)).out)
    raises(santa.SantaError, santa.decode, q, k, v, num_samples=-1, method="sys", name="NUM_SAMPLES")


def test_nothing_is_copied():
    """K and V as large as a quarter of a gigabyte would show in the process' peak."""
    import resource
    k = np.zeros((1, 1 << 20, 1, 64), "f")
    k[:, ::64] = 1
    q = np.ones((1, 1, 1, 64), "f")
    santa.decode(q, k, k)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    santa.decode(q, k, k)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16       # KB


# ---------------------------------------------------------------------------------- the build

def python(code, **environment):
    return subprocess.run([sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {HERE!r})\n{code}"],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
                          env={**os.environ, **environment})


CHECK = "import santa; sys.exit(santa._self_check())"
FAST_BUILD = "-O0 -DSANTA_NO_SIMD"                              # the compiler is most of these tests' time


def test_self_check_without_packages():
    code = "sys.modules['numpy'] = None; " + CHECK
    done = python(code)
    assert done.returncode == 0 and "all is well" in done.stdout, done.stdout


def test_programs_in_the_texts():
    """Those of README.md and of santa.py's first lines run as they are."""
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        program = f.read().split("```python\n")[1].split("```")[0]
    done = python(program)
    assert done.returncode == 0 and done.stdout.startswith("(1, 1, 8, 64) [[["), done.stdout
    lines = santa.__doc__.split("\n")
    begin, end = (next(i for i, line in enumerate(lines) if line.startswith(x))
                  for x in ("    import ", "    out = "))
    lines = [line[4:] for line in lines[begin:end + 1]]
    done = python("\n".join(lines) + "\nprint(out.shape)")
    assert done.returncode == 0 and "(1, 1, 8, 64)" in done.stdout, done.stdout


def test_pthread_and_no_threads():
    for kind in ("pthread", "none"):
        code = (f"import santa, test_santa as t; assert santa.build_info()['threads'] == {kind!r}\n"
                "t.test_threads()")
        done = python(code, SANTA_THREADS=kind, SANTA_CFLAGS=FAST_BUILD)
        assert done.returncode == 0, done.stdout
    done = python("import santa", SANTA_THREADS="many")
    assert done.returncode != 0 and "SANTA_THREADS=many" in done.stdout, done.stdout


def test_two_processes_at_once():
    """Each finds nothing, both compile, both work, one library is left."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "SANTA_CFLAGS": FAST_BUILD}
        both = [
            subprocess.Popen([sys.executable, "-B", os.path.join(HERE, "santa.py")], env=environment,
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)
        ]
        for p in both:
            said = p.communicate(timeout=600)[0]
            assert p.returncode == 0 and "compiling" in said, said
        left = os.listdir(os.path.join(cache, "santa"))
        assert len(left) == 1 and left[0].endswith(".so"), left
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "santa.py")], env=environment,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0 and "compiling" not in done.stdout, done.stdout


def test_a_changed_header_is_refused():
    """Two fields in another order, a new field, another version: each is an ImportError that says what."""
    with open(os.path.join(santa._source_folder(), "santa.h"), encoding="utf-8") as f:
        header = f.read()
    epsilon, delta = (line for line in header.split("\n")
                      if line.startswith(("    double  epsilon;", "    double  delta;")))
    assert epsilon + "\n" + delta in header
    for old, new, said in ((epsilon + "\n" + delta, delta + "\n" + epsilon,
                            "offset of santa_vattention_options.epsilon is"),
                           ("    int64_t      num_threads;", "    int64_t      more, num_threads;",
                            "sizeof(santa_options) is"), ("#define SANTA_VERSION_PATCH 0",
                                                          "#define SANTA_VERSION_PATCH 7",
                                                          "SANTA_VERSION is 207"),
                           ("    SANTA_SCORES_Q8, ", "    SANTA_SCORES_NEW, SANTA_SCORES_Q8, ",
                            "SANTA_SCORES_Q8 is 6"), ("    int64_t      window; ",
                                                      "    int64_t      windows; ", "window")):
        assert header.count(old) == 1, (old, header.count(old))
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "santa.h"), "w", encoding="utf-8") as f:
                # declarations are enough to compile: the check comes before any call
                f.write(header.replace(old, new).split("/* ====")[0])
            done = python("import santa", SANTA_DIR=folder, XDG_CACHE_HOME=folder, SANTA_CFLAGS=FAST_BUILD)
            assert done.returncode != 0 and "ImportError" in done.stdout, done.stdout
            assert said in done.stdout, done.stdout


def test_no_header_no_compiler_no_cache():
    with tempfile.TemporaryDirectory() as folder:
        done = python("import santa", SANTA_DIR=folder)
        assert done.returncode != 0 and "set SANTA_DIR" in done.stdout, done.stdout
        done = python("import santa", CC=os.path.join(folder, "no-such-cc"))
        assert done.returncode != 0 and "cannot run" in done.stdout, done.stdout
        done = python("import santa", CC="false", XDG_CACHE_HOME=folder)
        assert done.returncode != 0 and "ImportError" in done.stdout, done.stdout
        with open(os.path.join(folder, "file"), "w"):
            pass                                                # where a folder should be
        done = python(CHECK, XDG_CACHE_HOME=os.path.join(folder, "file"), SANTA_CFLAGS=FAST_BUILD)
        assert done.returncode == 0 and "not kept" in done.stdout, done.stdout


def cuda_or_skip(devices=1):
    torch = torch_or_skip()
    if not torch.cuda.is_available() or torch.cuda.device_count() < devices:
        raise unittest.SkipTest(f"fewer than {devices} GPUs")
    return torch


def test_cuda_tensors():
    torch = cuda_or_skip()
    arrays = problem(2, 1, 3000, heads=8, d=64, dv=64)
    q, k, v = (torch.from_numpy(x) for x in arrays)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        host = [x.to(dtype) for x in (q, k, v)]
        card = [x.cuda() for x in host]
        for method in ("dense", "sys", "prop", "strat", "iid", "flash"):
            options = {"method": method, "seed": 5, "lse": True, "stats": True, "causal": True,
                       "seq_lens": [3000, 1234]}
            want, got = santa.decode(*host, **options), santa.decode(*card, **options)
            assert got.out.is_cuda and got.out.dtype == dtype and got.lse.is_cuda
            near(got.lse.cpu(), want.lse, 1e-3)
            apart = (got.out.cpu().float() - want.out.float()).norm(dim=-1) / want.out.float().norm(dim=-1)
            assert apart.median() < 1e-2, f"{method} {dtype}: {apart}"              # a draw may move
            assert (got.stats.draws, got.stats.keys) == (want.stats.draws, want.stats.keys)
    card = [x.cuda().to(torch.bfloat16) for x in (q, k, v)]
    want = santa.decode(*card, method="sys", seed=1).out
    for stream in (torch.cuda.Stream(), torch.cuda.Stream().cuda_stream):
        torch.cuda.synchronize()
        out = torch.empty_like(want)
        santa.decode(*card, method="sys", seed=1, out=out, stream=stream)
        torch.cuda.synchronize()
        assert torch.equal(out, want)
    graph = torch.cuda.CUDAGraph()
    out.zero_()
    with torch.cuda.graph(graph):
        santa.decode(*card, method="sys", seed=1, out=out)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)
    raises(santa.SantaError, santa.decode, *card, method="sys", num_samples=-1, name="NUM_SAMPLES")
    raises(santa.SantaError, santa.decode, *card, scores="bernoulli_iid", method="sys",
           name="BACKEND_SCORES")


def test_cuda_copy_of_k():
    torch = cuda_or_skip()
    q, k, v = (torch.from_numpy(x).cuda().to(torch.bfloat16)
               for x in problem(1, 1, 5000, heads=8, d=64, dv=64))
    proxy = santa.Proxy(k)
    proxy.encode()
    on_cpu = santa.Proxy(k.cpu())
    on_cpu.encode()
    options = {"method": "sys", "scores": "proxy", "num_samples": 64, "seed": 3}
    want = santa.decode(q.cpu(), k.cpu(), v.cpu(), proxy=on_cpu, **options).out.float()
    got = santa.decode(q, k, v, proxy=proxy, **options).out.float().cpu()
    apart = (got - want).norm(dim=-1) / want.norm(dim=-1)
    assert apart.median() < 1e-2, apart                                         # a draw may move


def test_cuda_buckets():
    torch = cuda_or_skip()
    q, k, v = (torch.from_numpy(x).to(torch.bfloat16) for x in problem(2, 1, 3000, heads=8, d=64, dv=64))
    centroids = torch.from_numpy(
        np.stack([santa.kmeans(k[0, :, h].float().numpy(), 16) for h in range(2)])).to(torch.bfloat16)
    on_cpu = santa.Buckets(k, centroids, key_norm=4.0)
    on_gpu = santa.Buckets(k.cuda(), centroids.cuda(), key_norm=4.0)
    side = torch.cuda.Stream()
    for index, keys in ((on_cpu, k), (on_gpu, k.cuda())):
        stream = side if keys.is_cuda else None
        torch.cuda.synchronize()
        for begin, end in ((0, 2900), (2900, 3000)):
            index.assign(keys[:, begin:end], begin, seq_lens=[end, end],
                         **({"stream": stream} if stream else {}))
    side.synchronize()
    found = [[x.find(1, 1, j) for j in range(0, 3000, 97)] for x in (on_cpu, on_gpu)]
    assert found[0] == found[1] and len(set(found[0])) > 4 and on_gpu.find(1, 1, 3000) == -1
    options = {"method": "saap", "num_samples": 64, "seed": 3, "stats": True,
               "saap": {"num_probes": 2, "sink_tokens": 8, "local_tokens": 100}}
    want = santa.decode(q, k, v, buckets=on_cpu, **options)
    got = santa.decode(q.cuda(), k.cuda(), v.cuda(), buckets=on_gpu, **options)
    assert got.stats.far_rows == want.stats.far_rows
    apart = (got.out.cpu().float() - want.out.float()).norm(dim=-1) / want.out.float().norm(dim=-1)
    assert apart.median() < 1e-2, apart                                         # a draw may move
    raises(ValueError, santa.decode, q, k, v, buckets=on_gpu, **options)
    raises(ValueError, santa.Buckets, k.cuda(), centroids, key_norm=4.0)
    raises(ValueError, on_gpu.assign, k.cuda()[:, :1], 0, num_threads=2)
    raises(santa.SantaError, on_gpu.assign, k.cuda()[:, :5], -2, name="BUCKETS_RANGE")


CUDA_RANK = """
import sys
sys.path.insert(0, {here!r})
import torch, torch.distributed as dist, santa
rank, n = int(sys.argv[1]), 30000
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(1)
q, k, v = (torch.randn(2, i, h, 64).cuda().bfloat16() for i, h in ((1, 8), (n, 2), (n, 2)))
cuts = (0, 10000, n)
for method in ("dense", "sys", "pps", "top-k", "top-p"):
    keys = slice(cuts[rank], cuts[rank + 1])
    r = santa.decode(q, k[:, keys], v[:, keys], first_key=cuts[rank], context_lens=[n] * 2, causal=True,
                     method=method, seed=4, ranks=santa.torch_ranks())
    whole = santa.decode(q, k, v, causal=True, method=method, seed=4)
    apart = (r.out - whole.out).float().norm() / whole.out.float().norm()
    assert apart < (0.1 if method in ("sys", "pps") else 0.01), (method, apart)
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_cuda_distributed():
    cuda_or_skip(2)
    with tempfile.TemporaryDirectory() as folder:
        program, meet = CUDA_RANK.format(here=HERE), os.path.join(folder, "meet")
        runs = [subprocess.Popen([sys.executable, "-c", program, str(rank), meet], stderr=subprocess.PIPE,
                                 text=True) for rank in range(2)]
        for run in runs:
            _, errors = run.communicate(timeout=600)
            assert run.returncode == 0, errors


def test_cuda_architecture():
    with tempfile.TemporaryDirectory() as folder:
        tool = os.path.join(folder, "nvidia-smi")
        for cards, asked, want in (("9.0", "", "-gencode=arch=compute_90a,code=sm_90a"),
                                   ("9.0 9.0", "", "-gencode=arch=compute_90a,code=sm_90a"),
                                   ("9.0 8.0", "", "-arch=native"), ("8.9", "", "-arch=native"),
                                   ("9.0", "sm_90", "-arch=sm_90")):
            with open(tool, "w") as f:
                f.write(f"#!/bin/sh\nprintf '%s\\n' {cards}\n")
            os.chmod(tool, 0o755)
            done = python("import santa; print(santa._cuda_arch())", SANTA_CUDA_ARCH=asked,
                          PATH=folder + os.pathsep + os.environ["PATH"])
            assert done.returncode == 0 and done.stdout.split()[-1] == want, (cards, asked, done.stdout)


def test_cuda_is_asked_for_without_nvcc():
    done = python("import santa", SANTA_CUDA="1", PATH="/usr/bin:/bin")
    if os.path.exists("/usr/bin/nvcc"):
        raise unittest.SkipTest("nvcc in /usr/bin")
    assert done.returncode != 0 and "nvcc" in done.stdout, done.stdout


# ---------------------------------------------------------------------------------- programs

def program(main, *arguments):
    """Exit status, stdout and stderr of a program's main(), in this process: imports take seconds."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = [main.__module__ + ".py", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = argv
    if isinstance(status, str):             # as sys.exit() does it
        status = print(status, file=err) or 1
    return status or 0, out.getvalue(), err.getvalue()


def refuses(main, *arguments, text):
    """One line on stderr that has the text, nothing else, and no success."""
    status, out, err = program(main, *arguments)
    assert status in (1, 2) and not out, (arguments, status, out)
    assert err.count("\n") == 1 and text in err, (arguments, text, err)


def test_checkpoint_wrong_arguments():
    """hf_checkpoint.py, of a model of version 0 with 4 numbers a head: what is wrong is one line."""
    import hf_checkpoint
    with tempfile.TemporaryDirectory() as folder:
        def at(name):
            return os.path.join(folder, name)

        def write(name, data):
            with open(at(name), "wb") as f:
                f.write(data)

        def model(dim=8, hidden=8, layers=1, heads=2, kv_heads=1, vocabulary=5, length=4):
            kv = kv_heads * (dim // heads)
            layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * hidden
            count = vocabulary * dim + layers * layer + dim
            return struct.pack("<7i", dim, hidden, layers, heads, kv_heads, vocabulary, length) + bytes(
                4 * (count + length * (dim // heads)))
        for name, data in (("good", model()), ("empty", b""), ("cut", model()[:-4]),
                           ("header", model()[:20]),
                           ("odd", model(dim=6)), ("group", model(dim=12, heads=3, kv_heads=2)),
                           ("few", model(vocabulary=2)), ("words", b"a\nb\nc\nd\ne"),
                           ("same", b"a\nb\na\nd\ne"),
                           ("theta", b"SANTA-LM" + struct.pack("<10I", 1, 64, *[2] * 8) + struct.pack(
                               "<IffI", 0, math.nan, 1e-5, 1)), ("bytes", b"\xff\xfe")):
            write(name, data)
        for arguments, text in (
            (("none",), "No such file"), (("",), "Is a directory"), (("empty",), "shorter than its header"),
            (("header",), "shorter than its header"), (("cut",), "not as long"), (("odd",), "sizes"),
            (("group",), "sizes"), (("theta",), "theta"),
            (("good", "--tokenizer", at("none")), "No such file"),
            (("good", "--tokenizer", ""), "No such file"), (("good", "--words", ""), "No such file"),
            (("good", "--tokenizer", at("empty")), "not a tokenizer"),
            (("good", "--words", at("empty")), "words"),
            (("good", "--words", at("same")), "words"), (("good", "--words", at("bytes")), "bytes"),
            (("few", "--words", at("words")), "3 words"),
            (("few", "--tokenizer", at("empty")), "3 special"),
            (("good", "--words", at("words"), "--tokenizer", at("words")), "not allowed with")):
            refuses(hf_checkpoint.main, at(arguments[0]), at("made"), *arguments[1:], text=text)
        assert not os.path.exists(at("made")), "something was written before all was read"
        refuses(hf_checkpoint.main, at("good"), at("good"), text="File exists")
        refuses(hf_checkpoint.main, at("good"), at("good/made"), text="Not a directory")
        refuses(hf_checkpoint.main, at("good"), text="folder")
        assert program(hf_checkpoint.main, at("good"), at("made"), "--words", at("words")) == (0, "", "")
        assert sorted(os.listdir(at("made"))) == ["config.json", "model.safetensors", "tokenizer.json",
                                                  "tokenizer_config.json"]


def test_torch_trainer_wrong_arguments():
    """examples/saap/train.py: what is wrong with files and numbers is one line."""
    torch_or_skip()
    spec = importlib.util.spec_from_file_location("train", os.path.join(HERE, "../saap/train.py"))
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    rng = np.random.default_rng(0)
    sizes = [1, 2, 1, 4, 0, 0, 60, 6]       # layers, heads, kv_heads, head_dim, f32, no lse, tokens, rows
    arrays = {name: rng.standard_normal(shape).astype("f") for name, _, shape in train.dump_arrays(*sizes)}
    arrays["position"], arrays["kind"] = [3, 20, 30, 40, 50, 59], [0, 0, 0, 0, 0, 0]
    with tempfile.TemporaryDirectory() as folder:
        def at(name):
            return os.path.join(folder, name)

        def dump(name, scale=0.0, **changed):
            sized = [changed.get(key, x)
                     for key, x in zip(("layers", "heads", "kv_heads"), sizes)] + sizes[3:]
            with open(at("good.dump"), "rb") as f:
                data = f.read()
            with open(at(name), "wb") as f:
                f.write(train.DUMP_HEADER.pack(train.DUMP_MAGIC, 1, *sized, scale) + data[64:])
        good, out, model = at("good.dump"), at("model.saap"), ("--buckets", "4", "--window", "8")
        train.write_dump(good, sizes, arrays)
        train.write_dump(at("far.dump"), sizes, {**arrays, "position": [3, 20, 30, 40, 50, 60]})
        train.write_dump(at("rowless.dump"), [*sizes[:7], 0], {
            name: [] if name in ("position", "kind") or name[0] == "q" else x
            for name, x in arrays.items()})
        open(at("empty.dump"), "w").close()
        dump("divided.dump", heads=2, kv_heads=0)
        dump("groups.dump", heads=3, kv_heads=2)
        dump("layers.dump", layers=2**31)
        dump("scale.dump", scale=math.nan)
        for name, text in (("nofile", "No such file"), ("", "Is a directory"), ("empty.dump", "not a dump"),
                           ("divided.dump", "sizes"), ("groups.dump", "sizes"), ("layers.dump", "ends in"),
                           ("scale.dump", "scale"), ("far.dump", "position")):
            refuses(train.main, "--dumps", at(name), "--out", out, text=text)
            refuses(train.main, "--dumps", at(name), "--evaluate", out, text=text)
        for arguments, text in (
            (("--threads", "-1"), "--threads"), (("--rate", "nan"), "--rate"), (("--rate", "-1"), "--rate"),
            (("--seed", "-1"), "--seed"), (("--seed", str(2**63)), "--seed"),
            (("--window", str(2**32)), "--window"),
            (("--buckets", "0"), "--buckets"), (("--batch", "1"), "--batch"),
            (("--epochs", "0"), "--epochs"),
            (("--hidden", "-3"), "--hidden"), (("--layers", "-1"), "--layers"),
            (("--layers", "1"), "--layers"),
            (("--device", "nowhere"), "--device"), (("--out", folder), "--out"),
            (("--csv", at("x")), "--csv"),
            (("--out", at("good.dump/x")), "Not a directory"), (("--curves", folder), "Is a directory"),
            (("--evaluate", at("none")), "No such file"), (("--evaluate", at("empty.dump")), "not a .saap"),
            (("--evaluate", at("none"), "--curves", at("x")), "--curves: not for --evaluate")):
            more = () if "--evaluate" in arguments else ("--out", out)
            refuses(train.main, "--dumps", good, *more, *arguments, text=text)

        def learn(*more, dumps=good):
            return program(train.main, "--dumps", dumps, "--out", out, "--epochs", "1", *model, *more)
        for arguments, dumps, text in ((("--rows", "question"), good, "--rows question"),
                                       ((), at("rowless.dump"), "--rows all"),
                                       (("--window", "99"), good, "beyond --window 99")):
            status, _, err = learn(*arguments, dumps=dumps)
            assert status == 1 and text in err and err.count("\n") == 1, (arguments, err)
        status, said, err = learn()
        assert (status, err) == (0, "") and os.path.exists(out), err
        refuses(train.main, "--dumps", at("rowless.dump"), "--evaluate", out, "--csv", folder,
                text="Is a directory")
        for dumps, window, text in ((at("rowless.dump"), "8", "no query rows"),
                                    (good, "99", "beyond --window 99")):
            status, _, err = program(train.main, "--dumps", dumps, "--evaluate", out, "--window", window)
            assert status == 1 and text in err and err.count("\n") == 1, err
        assert program(train.main, "--dumps", good, "--evaluate", out, "--csv", at("csv"))[0] == 0
        with open(at("csv")) as f:
            assert len(f.read().split("\n")) > 10
        open(at("model.saap.heads/0-0.npz"), "w").close()
        status, _, err = learn("--resume")
        assert status == 1 and "not a head" in err and err.count("\n") == 1, err


# ---------------------------------------------------------------------------------- transformers

def hf_or_skip():
    torch = torch_or_skip()
    try:
        import transformers
    except ImportError:
        raise unittest.SkipTest("no transformers")
    if int(transformers.__version__.split(".")[0]) < 5:
        raise unittest.SkipTest(f"transformers {transformers.__version__} is older than 5")
    transformers.logging.set_verbosity_error()
    import hf_attention
    return torch, transformers, hf_attention


def hf_models(torch, transformers):
    """Tiny random ones whose attention matters: weights are larger than those that training begins with."""
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 97, "head_dim": 16, "max_position_embeddings": 4096,
        "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.25
    }
    configs = {
        "llama": transformers.LlamaConfig(**sizes),
        "gemma2": transformers.Gemma2Config(**sizes, sliding_window=8, attn_logit_softcapping=5.0,
                                            query_pre_attn_scalar=16),
        "gpt-oss": transformers.GptOssConfig(**sizes, sliding_window=8, num_local_experts=4,
                                             num_experts_per_tok=2)
    }
    for name, config in configs.items():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        if name == "gpt-oss":
            for layer in model.model.layers:
                torch.nn.init.normal_(layer.self_attn.sinks)
        yield name, model


def hf_ids(torch, length=21):
    ids = torch.randint(2, 97, (3, length), generator=torch.Generator().manual_seed(2))
    left, right = torch.ones_like(ids), torch.ones_like(ids)
    left[0, :6] = left[2, :1] = right[1, 17:] = right[2, 9:] = 0
    return ids, left, right


def both(torch, hf, model, function, **options):
    """function() with eager and with santa."""
    got = []
    before = hf.configure(**options)
    try:
        with torch.no_grad():
            for name in ("eager", "santa"):
                model.set_attn_implementation(name)
                got.append(function())
    finally:
        hf.configure(**before)
    return got


def test_hf_dense_is_eager():
    """Prefill, whole and in pieces, decode with both caches; padding on either side and none."""
    torch, transformers, hf = hf_or_skip()
    for name, model in hf_models(torch, transformers):
        ids, left, right = hf_ids(torch)

        def close(x, y, what):
            off = float((x - y).abs().max() / y.abs().max())
            assert off < 1e-5, (name, what, off)

        for what, mask in (("left padding", left), ("right padding", right),
                           ("no padding", torch.ones_like(ids)), ("no mask", None)):
            eager, santas = both(torch, hf, model, lambda: model(ids, attention_mask=mask).logits)
            seen = slice(None) if mask is None else mask.bool()
            close(santas[seen], eager[seen], what)
        with torch.no_grad():
            plain, padded = model(ids).logits, model(ids, attention_mask=left).logits
        assert float(
            (plain - padded)[left.bool()].abs().max()) > 1e-2, "padding does not matter to this model"

        def pieces():
            first = model(ids[:, :13], attention_mask=left[:, :13], use_cache=True)
            return model(ids[:, 13:], attention_mask=left, past_key_values=first.past_key_values).logits
        eager, santas = both(torch, hf, model, pieces)
        close(santas, eager, "pieces")
        with torch.inference_mode():
            eager, santas = both(torch, hf, model, pieces)
            close(santas, eager, "inference mode")
        for cache in ("dynamic", "static"):
            def generate():
                r = model.generate(ids, attention_mask=left, max_new_tokens=12, do_sample=False,
                                   return_dict_in_generate=True, output_logits=True,
                                   cache_implementation=cache)
                return torch.stack(r.logits), r.sequences
            eager, santas = both(torch, hf, model, generate, method="dense")
            close(santas[0], eager[0], cache)
            assert (santas[1] == eager[1]).all(), (name, cache)
        half = model.to(torch.bfloat16)
        eager, santas = both(torch, hf, half, lambda: half(ids, attention_mask=left).logits.float())
        off = float((santas - eager)[left.bool()].abs().mean() / eager[left.bool()].abs().mean())
        assert off < 0.05, (name, "bfloat16", off)


def test_hf_own_attention_is_refused():
    """A model that knows no attention but eager takes the mask, and would attend by itself."""
    torch, transformers, hf = hf_or_skip()
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=2)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="santa").eval()
    ids = hf_ids(torch)[0]
    with torch.no_grad():
        raises(ValueError, model, ids, text="santa cannot take its place")
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    raises(ValueError, hf.compare, model, ids[:1], 2, text="santa")


def test_hf_window_draws_anew():
    """The keys in a full window stay as many, the draws of its steps do not stay the same ones."""
    torch, transformers, hf = hf_or_skip()
    config = transformers.MistralConfig(vocab_size=97, hidden_size=64, intermediate_size=64,
                                        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                        sliding_window=16)
    torch.manual_seed(1)
    model = transformers.MistralForCausalLM(config).eval()
    model.set_attn_implementation("santa")
    ids, left, _ = hf_ids(torch, 40)
    decode, offsets = santa.decode, []

    def spy(*args, **options):
        offsets.extend(options.get("offsets", []))
        return decode(*args, **options)
    before = hf.configure(method="sys", num_samples=4)
    try:
        santa.decode = spy
        for cache in ("dynamic", "static"):
            offsets.clear()
            model.generate(ids, attention_mask=left, max_new_tokens=9, do_sample=False,
                           cache_implementation=cache)
            assert len(offsets) == 2 * 8 * len(ids) and len(set(offsets)) >= 2 * 8, (cache, offsets)
    finally:
        santa.decode = decode
        hf.configure(**before)


def test_hf_sinks_window_and_cap_are_seen():
    """Without them eager's logits are other ones, so that the test above would notice."""
    torch, transformers, hf = hf_or_skip()
    ids = hf_ids(torch)[0]
    for name, model in hf_models(torch, transformers):
        with torch.no_grad():
            want = model(ids).logits
            if name == "gemma2":
                for layer in model.model.layers:
                    layer.self_attn.attn_logit_softcapping = None
            elif name == "gpt-oss":
                for layer in model.model.layers:
                    layer.self_attn.sinks.fill_(-1e4)
            else:
                model.config.num_key_value_heads = 2
                for layer in model.model.layers:
                    layer.self_attn.scaling *= 1.5
            assert float((model(ids).logits - want).abs().max() / want.abs().max()) > 1e-3, name


def test_hf_generate_samples():
    """Drawn, deterministic by seed, near exact attention with many draws."""
    torch, transformers, hf = hf_or_skip()
    for name, model in hf_models(torch, transformers):
        ids, left, _ = hf_ids(torch, 200)
        model.set_attn_implementation("santa")

        def generate(**options):
            before = hf.configure(**options)
            r = model.generate(ids, attention_mask=left, max_new_tokens=8, do_sample=False,
                               return_dict_in_generate=True, output_logits=True)
            hf.configure(**before)
            return torch.stack(r.logits)
        hf.reset_counts()
        one = generate(method="sys", num_samples=8, seed=1)
        counts = hf.reset_counts()
        assert 0 < counts.v_rows_read < 0.6 * counts.keys and counts.dense_rows == 0, (name, counts)
        assert (one == generate(method="sys", num_samples=8, seed=1)).all(), name
        assert (one != generate(method="sys", num_samples=8, seed=2)).any(), name
        exact = generate(method="dense")
        assert (one[0] == exact[0]).all(), "the prompt is exact"
        hf.reset_counts()
        assert (exact == generate(method="sys", num_samples=32, dense_below=santa.AUTO)).all(), name
        counts = hf.reset_counts()
        assert counts.dense_rows == counts.rows > 0, (name, counts)
        off = [
            float((generate(method="sys", num_samples=n, seed=3)[1] - exact[1]).abs().max() /
                  exact[1].abs().max()) for n in (8, 1024)
        ]
        assert off[1] < 0.3 * off[0] and off[1] < 0.05, (name, off)


def hf_local_model(torch, transformers):
    """A llama whose heads look at near tokens: all tokens have a part in common, and keys are what queries
    are, so that scores are large where RoPE turns little. Heads of a group differ in how sharply."""
    model = next(hf_models(torch, transformers))[1]
    with torch.no_grad():
        seeded = torch.Generator().manual_seed(3)
        model.model.embed_tokens.weight += 0.75 * torch.randn(64, generator=seeded)
        for layer in model.model.layers:
            k, sharp = layer.self_attn.k_proj.weight.view(2, 1, 16, 64), torch.tensor([1.0, 3.0])
            layer.self_attn.q_proj.weight.copy_((sharp[None, :, None, None] * k).reshape(64, 64))
    return model


def test_hf_sparse_prefill():
    """sample-attention is for prefill: all read is dense, less is near it; steps and short runs are
    dense."""
    torch, transformers, hf = hf_or_skip()
    ids = torch.randint(2, 97, (2, 1000), generator=torch.Generator().manual_seed(2))
    left = torch.ones_like(ids)
    left[0, :70] = 0

    def share(alpha, **more):
        return {"alpha_columns": alpha, "alpha_slashes": alpha, **more}

    def run(function, **options):
        model.set_attn_implementation("santa")
        before = hf.configure(**options)
        hf.reset_counts()
        try:
            with torch.no_grad():
                return function(), hf.reset_counts()
        finally:
            hf.configure(**before)
    for name, model in hf_models(torch, transformers):          # windows, sinks and soft cap, too
        for mask in (None, left):
            seen = slice(None) if mask is None else mask.bool()

            def prompt():
                return model(ids, attention_mask=mask).logits[seen]
            dense, counts = run(prompt, method="dense")
            assert counts == hf.Counts(), "an exact prompt is not counted"
            for more in ({}, {"dense_above": santa.NONE}):
                whole, counts = run(prompt, method="sample-attention", sample_attention=share(1, **more))
                assert float((whole - dense).abs().max() / dense.abs().max()) < 1e-5, name
                assert counts.v_rows_read == counts.keys > 0, counts
                assert (counts.dense_rows == 0) == bool(more), counts
            some, counts = run(prompt, method="sample_attention",
                               sample_attention=share(0.2, dense_above=santa.NONE))
            assert 0 < counts.v_rows_read < 0.9 * counts.keys and counts.dense_rows == 0, (name, counts)
            assert bool(torch.isfinite(some).all()) and (some != dense).any(), name

    model = hf_local_model(torch, transformers)

    def prompt():
        return model(ids).logits
    dense, _ = run(prompt, method="dense")
    sparse, counts = run(prompt, method="sample-attention", sample_attention=share(0.9))
    off = float((sparse - dense).norm() / dense.norm())
    assert 0 < counts.v_rows_read < 0.7 * counts.keys and counts.dense_rows < counts.rows, counts
    assert bool(torch.isfinite(sparse).all()) and 0 < off < 0.1, off
    assert (sparse == run(prompt, method=santa.methods().index("sample-attention"),
                          sample_attention=share(0.9))[0]).all(), "the same call, other bits"
    shared, together = run(prompt, method="sample-attention", sample_attention=share(0.9, per_head=0))
    assert (shared != sparse).any(), "heads of a group share their blocks unless told"

    def pieces():
        """A prompt in two pieces, then a few tokens, then one: only the pieces are sparse."""
        cache, counts, logits = None, [], []
        for begin, end in ((0, 700), (700, 960), (960, 990), (990, 991)):
            hf.reset_counts()
            r = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
            cache, _ = r.past_key_values, counts.append(hf.reset_counts())
            logits.append(r.logits)
        return torch.cat(logits, 1), counts
    (dense, _), (sparse, counts) = (run(pieces, **options)[0] for options in (
        {"method": "dense"}, {"method": "sample-attention", "sample_attention": share(0.9)}))
    assert all(0 < x.v_rows_read < 0.7 * x.keys for x in counts[:2]), counts
    assert counts[2] == counts[3] == hf.Counts(), counts
    assert 0 < float((sparse - dense).norm() / dense.norm()) < 0.1
    both_ways = torch.ones(2, 1, 1000, 1000, dtype=torch.bool)  # not causal: exact
    everything, counts = run(lambda: model(ids, attention_mask=both_ways).logits, method="sample-attention")
    assert counts == hf.Counts() and float(
        (everything - run(lambda: model(ids, attention_mask=both_ways).logits,
                          method="dense")[0]).abs().max()) == 0


def test_hf_configure_checks():
    """What is wrong is refused at once, as santa.decode() does it, and what was set before stays."""
    torch, transformers, hf = hf_or_skip()
    before = hf.configure(method="sys", num_samples=32)
    for name, options in (("METHOD", {"method": "nope"}), ("METHOD", {"method": 99}),
                          ("NUM_SAMPLES", {"num_samples": -7}),
                          ("OPTION_UNUSED", {"method": "dense", "top_p": 0.3}),
                          ("OPTION_UNUSED", {"method": "sys", "sample_attention": {"per_head": 1}}),
                          ("OPTION_UNUSED", {"method": "sample-attention", "dense_below": 9}),
                          ("SAMPLE_ATTENTION", {"method": "sample-attention",
                                                "sample_attention": {"alpha_columns": 1.5}}),
                          ("TOP_P", {"method": "top-p", "top_p": 2}), ("THREADS", {"num_threads": -1}),
                          ("EPSILON", {"method": "vattention", "vattention": {"epsilon": 2}}),
                          ("SCORES_Q8", {"scores": "q8"}),
                          ("DENSE_BELOW", {"method": "sys", "dense_below": -3})):
        raises(santa.SantaError, hf.configure, **options, name=name)
    for options, text in (({"method": None}, "method = None"), ({"num_samples": "9"}, "num_samples = '9'"),
                          ({"method": "vattention", "vattention": {"epsilons": 1}}, "epsilons"),
                          ({"method": "vattention", "vattention": {"audit": True}}, "vattention['audit']"),
                          ({"sample_attention": {"mask": None}}, "sample_attention['mask']"),
                          ({"scores": "Proxy"}, "copy or an index"), ({"method": "SAAP"}, "none of"),
                          ({"method": santa.methods().index("saap")}, "copy or an index")):
        raises((TypeError, ValueError), hf.configure, **options, text=text)
    raises(ValueError, hf.configure, stash="f64", text="stash = 'f64'")
    raises(ValueError, hf.configure, seed=-1, text="seed = -1")
    mine = {"epsilon": 0.1}
    assert hf.configure(method="vattention", vattention=mine) == {"method": "sys", "num_samples": 32}
    mine["epsilon"] = 7.0                                       # what was checked is what is used
    for method in hf.methods():
        hf.configure(method=method)
    assert "saap" not in hf.methods() and len(hf.methods()) == len(santa.methods()) - 1
    hf.configure(**before)


def test_hf_wrong_command_lines():
    torch, transformers, hf = hf_or_skip()
    before = hf.configure(method="dense")
    with tempfile.TemporaryDirectory() as folder:
        broken = os.path.join(folder, "config.json")
        open(broken, "w").close()
        for arguments, text in (("--method saap", "'saap'"), ("--dense-below -3", "dense_below"),
                                ("--steps 0", "--steps: 0 is less than 1"),
                                ("--steps two", "--steps: invalid"),
                                ("--baseline foo", "'foo'"), ("--num-samples -7", "num_samples"),
                                ("--dtype int3", "'int3'"), ("--device nowhere", "--device nowhere"),
                                ("--device meta", "--device meta"),
                                ("--prompt-tokens 0", "--prompt-tokens"),
                                (f"--prompt-file {folder}", "--prompt-file"),
                                (f"--model {folder}/none", "config.json"), ("", "no tokenizer in it")):
            refuses(hf.main, "--model", folder, *arguments.split(), text=text)
    hf.configure(**before)
    status, shown, _ = program(hf.main, "--help")
    assert status == 0 and "sample-attention" in shown and "saap" not in shown, shown


def test_hf_masks():
    """What the calls of a plan let rows see is the mask again, for many kinds; others are refused."""
    torch, transformers, hf = hf_or_skip()
    rng = np.random.default_rng(0)
    row = np.arange(40)

    def causal(first=0, window=99):
        return (row[None] <= row[:, None]) & (row[None] > row[:, None] - window) & (row[None] >= first)

    def expand(plan, batch, q_len, kv_len):
        seen = np.zeros((batch, q_len, kv_len), bool)
        for b, stop, run, firsts, lasts in plan:
            assert len(firsts) == len(lasts) == stop - b
            for x, first, end in zip(range(b, stop), firsts, lasts):
                for i in range(run.begin, run.end):
                    last = max(end - (run.end - 1 - i) if run.causal else end, 0)
                    seen[x, i, max(first, last - run.window if run.window else 0):last] = True
        return seen
    segments = (row[None] // 12 == row[:, None] // 12) & causal()
    prefix = causal() | (row[None] < 9)
    padded_right = causal() & (row[None] < 31)
    kinds = {
        "causal": [causal()], "window": [causal(window=7)],
        "left": [causal(), causal(5), causal(5),
                 causal(39)], "left and window": [causal(3, 7), causal(0, 7),
                                                  causal(33, 7)], "segments": [segments],
        "prefix": [prefix], "right": [padded_right, causal(4)], "all": [np.ones(
            (40, 40), bool)], "none": [np.zeros((40, 40), bool),
                                       causal()], "pieces": [causal()[25:], causal(8)[25:]],
        "step": [causal()[-1:], causal(11)[-1:],
                 causal(0, 9)[-1:]], "static": [np.pad(causal(3), ((0, 0), (0, 10)))]
    }
    for _ in range(50):
        a = np.sort(rng.integers(0, 41, (3, 8, 2)), -1)
        kinds[f"random {_}"] = list((row >= a[..., :1]) & (row < a[..., 1:]))
    for kind, masks in kinds.items():
        mask = torch.from_numpy(np.stack(masks)[:, None])
        sizes = (len(masks), *mask.shape[2:])
        plan = hf._plan(mask, *sizes, True, 0)
        assert (expand(plan, *sizes) == mask[:, 0].numpy()).all(), kind
        additive = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        assert hf._plan(additive, *sizes, True, 0) == plan
        assert hf._plan(torch.where(mask, 0.0, -torch.inf).expand(-1, 4, -1, -1), *sizes, True, 0) == plan
        if len(masks) == 1:
            assert (expand(hf._plan(mask, 3, *sizes[1:], True, 0), 3,
                           *sizes[1:]) == mask[:, 0].numpy()).all(), kind
    for kind, calls in (("causal", 1), ("window", 1), ("left", 1), ("left and window", 1), ("segments", 4),
                        ("right", 3), ("all", 1), ("step", 1)):
        mask = torch.from_numpy(np.stack(kinds[kind])[:, None])
        assert len(hf._plan(mask, *mask[:, 0].shape, True,
                            0)) == calls, (kind, hf._plan(mask, *mask[:, 0].shape, True, 0))
    assert (expand(hf._plan(None, 1, 40, 40, True, 0), 1, 40, 40) == causal()).all()
    assert (expand(hf._plan(None, 1, 40, 40, True, 6), 1, 40, 40) == causal(window=6)).all()
    assert expand(hf._plan(None, 1, 5, 40, False, 0), 1, 5, 40).all()
    assert expand(hf._plan(None, 2, 1, 40, True, 0), 2, 1, 40).all()
    good = torch.from_numpy(causal()[None, None])
    gap, bias, heads = good.clone(), torch.where(good, 0.0, -torch.inf), good.repeat(1, 2, 1, 1)
    gap[0, 0, 20, 7] = False
    bias[0, 0, 20, 7] = -1.0
    heads[0, 1, 20, 20] = False
    for wrong, said in ((gap, "gaps"), (bias, "bias"), (heads, "heads"), (good.int(), "neither"),
                        (good[0], "shape"), (good[..., 1:], "shape"), (bias.nan_to_num(nan=0) * torch.nan,
                                                                       "bias")):
        raises(ValueError, hf._plan, wrong, 1, 40, 40, True, 0, text=said)
    raises(ValueError, hf._plan, None, 1, 5, 40, True, 0, text="not known")

    model = next(hf_models(torch, transformers))[1]
    ids = hf_ids(torch, 40)[0]
    for mask in (good, segments[None, None], prefix[None, None]):
        mask = torch.as_tensor(mask).expand(3, 1, 40, 40)
        own, drawn = both(torch, hf, model,
                          lambda: model(ids, attention_mask=torch.where(mask, 0.0, -1e38 * 3)).logits)
        assert float((own - drawn).abs().max() / own.abs().max()) < 1e-5
    with torch.no_grad():
        raises(ValueError, model, ids, attention_mask=gap.expand(3, 1, 40, 40), text="gaps")
        kept = good.clone()
        model(ids, attention_mask=kept)
        kept[0, 0, 20, 7] = False                               # what was found in it before is not used
        raises(ValueError, model, ids, attention_mask=kept, text="gaps")
    raises(ValueError, model, ids, text="gradients")
    raises(TypeError, hf.configure, num_sample=5)
    raises(TypeError, hf.configure, scores="proxy")
    raises(TypeError, hf.configure, method="saap")


def test_hf_comparison_of_a_checkpoint():
    torch, transformers, hf = hf_or_skip()
    model = next(hf_models(torch, transformers))[1]
    tokens = {"<unk>": 0, "<s>": 1, **{f"w{i}": i for i in range(2, 97)}}
    ids = hf_ids(torch, 300)[0][:1]
    before = hf.configure(method="dense")
    c = hf.compare(model, ids, 4)
    hf.configure(method="sys", num_samples=16)
    drawn = hf.compare(model, ids, 4)
    hf.configure(**before)
    assert c.exact == c.drawn == drawn.exact and max(c.kl) < 1e-9 < 1e-6 < max(drawn.kl), (c, drawn)
    assert min(drawn.kl) > -1e-12 and 0 < drawn.counts.v_rows_read < drawn.counts.keys
    assert model.config._attn_implementation == "eager"
    with tempfile.TemporaryDirectory() as folder:
        import tokenizers
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(tokens, unk_token="<unk>"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        words = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>",
                                                     pad_token="<unk>")
        words.save_pretrained(folder)
        model.save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="santa")
        with torch.no_grad():
            assert float((loaded(ids).logits - model(ids).logits).abs().max() /
                         loaded(ids).logits.abs().max()) < 1e-5
        with open(os.path.join(folder, "text"), "w") as f:
            f.write(" ".join(f"w{i}" for i in ids[0].tolist()))
        done = subprocess.run([
            sys.executable, "-B",
            os.path.join(HERE, "hf_attention.py"), "--model", folder, "--prompt-file",
            os.path.join(folder, "text"), "--steps", "5", "--num-samples", "8"
        ], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)
        assert done.returncode == 0, done.stderr
        for line in ("prompt of 300 tokens, 5 steps", "same token first", "KL, nats", "V rows read",
                     "ms a step, santa"):
            assert line in done.stdout, done.stdout


# Tokens of a text, or the numbers in it as tokens, then the logits behind the last one.
DECODER = r"""
#define SANTA_IMPLEMENTATION
#include "../../santa.h"
#include "../llama.h"
int main(int argc, char **argv) {
    llama_model m; llama_tokenizer t; llama_state s; llama_error e;
    int32_t *token = (int32_t *)malloc(1 << 20);
    size_t bytes, count = 0;
    char *text = llama_read_file(argv[2], &bytes, &e);
    if (!text || llama_load(&m, argv[1], &e)) { puts(e.text); return 1; }
    if (argc > 3) {
        if (llama_load_tokenizer(&t, argv[3], m.vocab_size, &e)
            || !(token = llama_encode(&t, text, bytes, &count, &e))) { puts(e.text); return 1; }
    } else for (char *p = text; *p;) token[count++] = (int32_t)strtol(p, &p, 10);
    if (llama_state_init(&s, &m, (int64_t)count, &e)
        || llama_prefill(&s, token, (int64_t)count - 1, 0, &e)
        || llama_forward(&s, token[count - 1], (int64_t)count - 1, 1, &e)) { puts(e.text); return 1; }
    for (size_t i = 0; i < count; i++) printf("%d ", (int)token[i]);
    puts("");
    for (int i = 0; i < m.vocab_size; i++) printf("%.9g ", (double)s.logits[i]);
    return 0;
}
"""


def test_hf_trained_checkpoints():
    """The models of this repository: tokens and logits of transformers are those of the toy decoder."""
    torch, transformers, hf = hf_or_skip()
    model, vocabulary, book = (os.path.join(HERE, "../model", name)
                               for name in ("model.bin", "tokenizer.bin", "heldout.txt"))
    tasks = os.path.join(HERE, "../../bench/accuracy")
    longctx = os.path.join(tasks, "longctx.bin")
    if not (os.path.exists(model) and os.path.exists(longctx) and shutil.which("cc")):
        raise unittest.SkipTest("no shipped models or no cc")

    def run(*command, **more):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=600, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def compiled(name, *arguments, **more):
        run("cc", "-w", "-O1", "-o", os.path.join(folder, name), *arguments, "-lm", **more)
        return os.path.join(folder, name)

    def file(name, text):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
        return f.name

    with tempfile.TemporaryDirectory() as folder, open(book, encoding="utf-8") as f:
        library = santa.build_info()["path"]
        decoder = compiled("decoder", "-DSANTA_IMPLEMENTATION_DONE", "-I", HERE, "-x", "c", "-",
                           "-x", "none", library, "-Wl,-rpath," + os.path.dirname(library), input=DECODER)
        tasks_text = compiled("tasks_text", os.path.join(tasks, "tasks_text.c"))
        words, question = run(tasks_text, "words"), run(tasks_text, "1024", "1", "3")
        numbers = " ".join(str(words.split("\n").index(word)) for word in question.split())
        text = f.read(2000) + " caf\u00e9 \u20ac"
        for path, text, options, arguments in (
            (model, text, ("--tokenizer", vocabulary), (file("text", text), vocabulary)),
            (longctx, question, ("--words", file("words", words)), (file("numbers", numbers),))):
            ids, logits = run(decoder, path, *arguments).split("\n")
            ids, want = [int(x) for x in ids.split()], torch.tensor([float(x) for x in logits.split()])
            made = os.path.join(folder, "of_" + os.path.basename(path))
            run(sys.executable, "-B", os.path.join(HERE, "hf_checkpoint.py"), path, made, *options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(made)
            assert tokenizer(text).input_ids == ids
            assert tokenizer.decode(ids, skip_special_tokens=path == model) == text.rstrip(" "), path
            loaded = transformers.AutoModelForCausalLM.from_pretrained(made, attn_implementation="eager")
            before = hf.configure(method="dense")
            for attention in ("eager", "santa"):
                loaded.eval().set_attn_implementation(attention)
                with torch.no_grad():
                    cache = loaded(torch.tensor([ids[:-1]]), use_cache=True).past_key_values
                    got = loaded(torch.tensor([ids[-1:]]), past_key_values=cache).logits[0, -1]
                assert float((got - want).abs().max() / want.abs().max()) < 1e-4, (path, attention)
            c = hf.compare(loaded, torch.tensor([ids]), 4)
            assert c.exact == c.drawn and max(c.kl) < 1e-6, c
            hf.configure(method="sys", num_samples=64)
            c = hf.compare(loaded, torch.tensor([ids]), 4)
            assert 1e-9 < max(c.kl) < 1.0 and c.counts.v_rows_read < c.counts.keys, c
            hf.configure(**before)


# ---------------------------------------------------------------------------------- without pytest

def main(words):
    """Runs the tests whose names hold every word, and none of those behind a minus."""
    passed = failed = skipped = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or not all(
            (word.lstrip("-") in name) == (word[0] != "-") for word in words):
            continue
        try:
            test()
            print(f"ok      {name}", flush=True)
            passed += 1
        except unittest.SkipTest as reason:
            print(f"skipped {name}: {reason}", flush=True)
            skipped += 1
        except Exception:
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
            failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
