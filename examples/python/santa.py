"""santa.h from Python: sampled sparse attention for NumPy arrays, torch tensors and whatever has DLPack.

One file and ctypes, no package. It looks for santa.h beside itself, two folders up, or in the folder
SANTA_DIR, compiles it once (seconds) into a cache folder, and checks version, structs and enums of
what it has compiled against its own.

    import numpy as np, santa
    q = np.random.randn(1, 1, 8, 64).astype("f")        # [batch, q_len, heads, head_dim]
    k = np.random.randn(1, 4096, 2, 64).astype("f")     # [batch, len, kv_heads, head_dim]
    v = np.random.randn(1, 4096, 2, 64).astype("f")
    out = santa.decode(q, k, v, method="sys", num_samples=128, seed=7).out

decode() takes every option of the C API by its name; santa.h documents them. Nothing is copied but
small arrays of numbers, q, k and v may have any strides. Errors are SantaError, with the status of
the C API; what ctypes could not pass on is TypeError or ValueError.

    Result, Stats, SantaError      what comes back
    decode, workspace_size         the call
    mask_shape, SampleAudit        method="sample-attention"
    View                           memory in a type that its owner does not know: q8_0, q4_0, e4m3, bf16
    Proxy                          a copy of K in 4 or 2 bits to draw from, scores="proxy"
    Buckets, kmeans                keys in buckets, method="saap"
    torch_ranks                    one context over the processes of torch.distributed
    offset, methods, build_info    small things
    python3 santa.py               checks itself and says what it has built

THREADS   num_threads=t uses t threads: OpenMP's where the compiler has -fopenmp, else POSIX threads
          that are started for each call, else (build_info()["threads"] says "none") t > 1 is an error,
          unless parallel_for is given. The GIL is released during a call, and calls from several
          Python threads may run at once. In a forked child OpenMP's threads are gone: there a
          call runs on one thread, which gives the same bits.
CUDA      Tensors on a GPU are computed there: santa_cuda.cu is compiled by nvcc (minutes, once) when
          the first one arrives, or at import with SANTA_CUDA=1. A call is enqueued on torch's current
          stream, or on stream=; the workspace is kept per thread, device and stream. Arrays of other
          packages need out= and workspace= there.
MEMORY    The workspace is kept per thread and grows; free_workspaces() lets go of that of the
          calling thread.
GRADIENTS None: results are not part of torch's graph.

Environment: SANTA_DIR; CC and SANTA_CFLAGS ("-O2"); SANTA_THREADS=openmp, pthread or none; SANTA_CUDA=1;
SANTA_CUDA_ARCH ("native"; sm_90a where all cards are of 9.0); XDG_CACHE_HOME ("~/.cache"), where the
libraries lie in santa/. Linux was tried; macOS should do; Windows was not tried.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes as C
import hashlib
import math
import operator
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import (Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple,
                    Union)

__all__ = ["AUTO", "Audit", "Buckets", "NONE", "Proxy", "Result", "SampleAudit", "SantaError", "Stats",
           "VERSION", "View", "build_info", "decode", "free_workspaces", "kmeans", "mask_shape", "methods",
           "offset", "torch_ranks", "used_options", "workspace_size"]

VERSION = 200           # SANTA_VERSION that this file is written for
NONE = -1               # "none" where zero means a default
AUTO = -1               # "you choose" where zero means none

# ------------------------------------------------------------------------------- what santa.h declares

_DTYPES = ("F32", "F16", "BF16", "E4M3", "Q8_0", "E5M2", "Q4_0")
_ENUMS = {                                  # prefix of the enumerators, their names from 0 on
    "SANTA_": _DTYPES,
    "SANTA_SCORES_": ("EXACT", "BERNOULLI_IID", "BERNOULLI_STRAT", "GROUP_IID", "GROUP_STRAT", "Q8",
                      "PROXY"),
    "SANTA_STASH_": ("DEFAULT", "F32", "F16", "U8"),
    "SANTA_BOUND_": ("CLT", "HOEFFDING"),
    "SANTA_GUARANTEE_": ("DENOMINATOR", "FULL"),
    "SANTA_ISA_": ("AUTO", "SCALAR", "AVX2", "AVX512", "NEON", "AMX"),
}
_CPU, _CUDA = 0, 1
_i32, _i64, _u64, _f32, _f64, _ptr = C.c_int, C.c_int64, C.c_uint64, C.c_float, C.c_double, C.c_void_p
_Task = C.CFUNCTYPE(None, _ptr, _i64)
_ParallelFor = C.CFUNCTYPE(None, _ptr, _i64, _ptr, _ptr)
_AllGather = C.CFUNCTYPE(C.c_int, _ptr, _ptr, C.c_size_t, _ptr, _ptr)
_Heavy = C.CFUNCTYPE(_i64, _ptr, _i64, _i64, _i64, C.POINTER(_f32), _i64, _i64, _i64, C.POINTER(C.c_int32))


class _Struct(C.Structure):
    def __repr__(self) -> str:
        fields = (f"{f[0]}={getattr(self, f[0])!r}" for f in self._fields_)
        return f"{type(self).__name__}({', '.join(fields)})"


def _fields(*groups: Any) -> List[Tuple[str, Any]]:
    """Types, each followed by a string of names."""
    return [(name, kind) for kind, names in zip(groups[::2], groups[1::2]) for name in names.split()]


class _Tensor(_Struct):
    _fields_ = _fields(_ptr, "data", _i64 * 4, "shape stride", _i32, "dtype device")


class _Buckets(_Struct):
    _fields_ = _fields(_i64, "num_buckets hidden", _i32, "dtype", _ptr, "centroids w1 b1 w2 b2 index",
                       _Tensor, "q", _f32, "key_norm", _ptr, "slots", _i64, "num_slots")


class _Attention(_Struct):
    _fields_ = _fields(_Tensor, "q k v out", _ptr, "lse std_error seq_lens kv_start block_table",
                       _i64, "max_pages block_table_stride",
                       _f32, "sm_scale k_scale v_scale", _Tensor, "k_scales v_scales", _f32, "soft_cap",
                       _i32, "causal", _i64, "window first_tokens",
                       _ptr, "sinks alibi_slopes", _i64, "first_key", _ptr, "context_lens proxy",
                       _i32, "proxy_bits", _ptr, "proxy_lens", C.POINTER(_Buckets), "buckets",
                       _ptr, "key_list key_list_lens key_weights", _i64, "max_list key_list_stride",
                       _i32, "key_list_rows")


class Audit(_Struct):
    """Where one vAttention head's budget came from: santa_audit of santa.h."""
    _fields_ = _fields(_i64, "num_keys num_fixed num_residual num_base needed budget", _i32, "exact",
                       _f64, "sigma denominator trace norm max_score density")


class _VAttentionOptions(_Struct):
    _fields_ = _fields(_i64, "sink_tokens local_tokens heavy_tokens base_samples", _f64, "epsilon delta",
                       _i32, "guarantee bound", _Heavy, "heavy", _ptr, "heavy_user audit heavy_index",
                       _i64, "heavy_stride")


class _ProxyOptions(_Struct):
    _fields_ = _fields(_i64, "sink_tokens local_tokens rescue_keys", _f64, "rescue_above exact_above")


class _SaapOptions(_Struct):
    _fields_ = _fields(_i64, "num_probes sink_tokens local_tokens", _f64, "uniform_share",
                       _i32, "measure_mass")


class SampleAudit(_Struct):
    """What sparse prefill did for one head: santa_sample_audit of santa.h."""
    _fields_ = _fields(_f64, "kept_share cost sampled_mass sampled_low cra low_mass",
                       _i64, "columns slashes", _i32, "is_dense")


class _SampleAttentionOptions(_Struct):
    _fields_ = _fields(_f64, "alpha_columns alpha_slashes", _i64, "num_chunks block_size", _i32, "per_head",
                       _f64, "dense_above", _ptr, "mask mask_out audit row_mass")


class _RanksOptions(_Struct):
    _fields_ = _fields(_i64, "count rank", _AllGather, "all_gather", _ptr, "user")


class _Options(_Struct):
    _fields_ = _fields(_i64, "num_samples", _i32, "method", _f64, "top_p", _i64, "tile_size", _i32, "stash",
                       _i64, "num_combs dense_below", _i32, "scores", _i64, "bernoulli_draws",
                       _u64, "seed offset", _ptr, "seeds offsets request_ids",
                       _VAttentionOptions, "vattention", _ProxyOptions, "proxy", _SaapOptions, "saap",
                       _SampleAttentionOptions, "sample_attention", _RanksOptions, "ranks", _i32, "isa",
                       _i64, "num_threads", _ParallelFor, "parallel_for", _ptr, "parallel_user",
                       _i64, "item_begin item_end", _ptr, "stream")


class Stats(_Struct):
    """What a call did: santa_stats of santa.h."""
    _fields_ = _fields(_i64, "rows keys k_rows_read k_features_read k_features_head v_rows_read "
                       "v_rows_head draws tiles tiles_skipped exact_rows dense_rows proxy_rows_read "
                       "rescued_rows redone_rows far_rows visited_rows visited_buckets",
                       _f64, "expected_variance expected_variance_max found_variance "
                       "found_variance_max imbalance largest_bucket covered_mass")


_STRUCTS = {"tensor": _Tensor, "buckets": _Buckets, "attention": _Attention, "audit": Audit,
            "vattention_options": _VAttentionOptions, "proxy_options": _ProxyOptions,
            "saap_options": _SaapOptions, "sample_audit": SampleAudit,
            "sample_attention_options": _SampleAttentionOptions, "options": _Options, "stats": Stats}

_FUNCTIONS = {                                                   # name: result, arguments
    "santa_version": (_i32,), "santa_struct_size": (C.c_size_t, C.c_char_p),
    "santa_status_name": (C.c_char_p, _i32), "santa_status_string": (C.c_char_p, _i32),
    "santa_method_name": (C.c_char_p, _i32), "santa_method_from_name": (_i32, C.c_char_p),
    "santa_method_traits": (C.c_uint, _i32),
    "santa_best_isa": (_i32,), "santa_isa_name": (C.c_char_p, _i32), "santa_offset": (_u64, _i64, _i64),
    "santa_check": (_i32, _ptr, _ptr), "santa_workspace_size": (C.c_size_t, _ptr, _ptr),
    "santa_decode": (_i32, _ptr, _ptr, _ptr, C.c_size_t, _ptr),
    "santa_mask_shape": (_i32, _ptr, _ptr, _ptr, _ptr), "santa_unused_option": (C.c_char_p, _ptr),
    "santa_proxy_size": (C.c_size_t, _ptr), "santa_proxy_encode": (_i32, _ptr, _i64, _i64, _ptr),
    "santa_proxy_append": (_i32, _ptr, _i64, _ptr),
    "santa_buckets_size": (C.c_size_t, _ptr), "santa_buckets_assign": (_i32, _ptr, _ptr, _i64, _ptr),
    "santa_buckets_find": (_i64, _ptr, _i64, _i64, _i64),
    "santa_kmeans": (_i32, _ptr, _i64, _i64, _i64, _i64, _i64, _u64, _ptr, _ptr, _ptr, C.c_size_t),
    "santa_kmeans_workspace_size": (C.c_size_t, _i64, _i64, _i64),
}


class SantaError(ValueError):
    """A call was refused. status: the santa_status; name: its name in C, "SANTA_ERR_SHAPE" for one."""

    def __init__(self, status: int, detail: str = "", lib: Any = None) -> None:
        lib = lib or _library(False)
        self.status = int(status)
        self.name: str = lib.santa_status_name(self.status).decode()
        text = lib.santa_status_string(self.status).decode()
        if self.name == "SANTA_ERR_CUDA":
            detail = f"cudaError_t {self.status - _status(self.name)}"
        super().__init__(f"{self.name}: {text}" + (f" ({detail})" if detail else ""))


# ------------------------------------------------------------------------------- the library

_SHIM = """\
#define SANTA_IMPLEMENTATION
#include "santa.h"

#define SIZE(type)         (int64_t)sizeof(type)
#define FIELD(type, field) (int64_t)offsetof(type, field), (int64_t)sizeof(((type *)0)->field)
const int64_t santa_python_layout[] = {
    %s
};

#ifdef _OPENMP
const int santa_python_threads = 1;
#elif defined(SANTA_PYTHON_PTHREAD)
const int santa_python_threads = 2;
#else
const int santa_python_threads = 0;
#endif

#ifdef SANTA_PYTHON_PTHREAD
#include <pthread.h>

typedef struct santa_python_job { santa_task task; void *context; int64_t i; } santa_python_job;

static void *santa_python_thread(void *argument) {
    const santa_python_job *job = (const santa_python_job *)argument;
    job->task(job->context, job->i);
    return NULL;
}

/* A thread for each task but the last, which is the caller's, as are those that get no thread. */
void santa_python_parallel_for(void *user, int64_t count, santa_task task, void *context) {
    enum { AT_ONCE = 64 };
    (void)user;
    for (int64_t begin = 0; begin < count; begin += AT_ONCE) {
        santa_python_job jobs[AT_ONCE];
        pthread_t threads[AT_ONCE];
        int started[AT_ONCE];
        const int n = (int)(count - begin < AT_ONCE ? count - begin : AT_ONCE);
        for (int i = 0; i < n; i++) {
            jobs[i].task = task; jobs[i].context = context; jobs[i].i = begin + i;
            started[i] = i < n - 1 && pthread_create(&threads[i], NULL, santa_python_thread, &jobs[i]) == 0;
        }
        for (int i = n - 1; i >= 0; i--)
            if (started[i]) pthread_join(threads[i], NULL);
            else task(context, begin + i);
    }
}
#endif
"""


def _layout() -> List[Tuple[str, str, int]]:
    """What the compiled code must agree to: C expression, what it is, value. FIELD gives two values."""
    entries = [("SANTA_VERSION", "SANTA_VERSION", VERSION)]
    for name, struct in _STRUCTS.items():
        entries.append((f"SIZE(santa_{name})", f"sizeof(santa_{name})", C.sizeof(struct)))
        for field in (f[0] for f in struct._fields_):
            where = getattr(struct, field)
            entries.append((f"FIELD(santa_{name}, {field})", f"offset of santa_{name}.{field}",
                            where.offset))
            entries.append(("", f"size of santa_{name}.{field}", where.size))
    for prefix, names in _ENUMS.items():
        entries += [(prefix + name, prefix + name, i) for i, name in enumerate(names)]
    return entries + [("SANTA_CPU", "SANTA_CPU", _CPU), ("SANTA_CUDA", "SANTA_CUDA", _CUDA),
                      ("SANTA_ISA_COUNT", "SANTA_ISA_COUNT", len(_ENUMS["SANTA_ISA_"]))]


def _source_folder() -> str:
    here = os.path.dirname(os.path.abspath(__file__))
    chosen = os.environ.get("SANTA_DIR")
    places = [chosen] if chosen else [here, os.path.dirname(os.path.dirname(here))]
    for place in places:
        if os.path.isfile(os.path.join(place, "santa.h")):
            return place
    raise ImportError(f"no santa.h in {' or '.join(places)}: set SANTA_DIR to its folder")


def _compiler() -> List[str]:
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise ImportError("no C compiler: install gcc or clang, or set CC")


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace").stdout
    except OSError as error:
        raise ImportError(f"cannot run {command[0]}: {error}") from None


def _run(command: Sequence[str]) -> Optional[str]:
    """None, or what the command said when it failed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace")
    return None if done.returncode == 0 else f"{' '.join(command)}\n{done.stdout}"


_THREAD_FLAGS = {"openmp": ["-fopenmp"], "pthread": ["-pthread", "-DSANTA_PYTHON_PTHREAD"], "none": []}
_THREAD_PROBES = {
    "openmp": "#include <omp.h>\nint f(void) { return omp_get_max_threads(); }\n",
    "pthread": "#include <pthread.h>\nint f(void) { return pthread_self() == pthread_self(); }\n",
    "none": "int f(void) { return 0; }\n"
}


def _thread_flags(work: str) -> List[str]:
    """Flags for the first kind of threads that makes a shared library here, or that of SANTA_THREADS."""
    wish, failure = os.environ.get("SANTA_THREADS") or "", None
    if wish and wish not in _THREAD_FLAGS:
        raise ImportError(f"SANTA_THREADS={wish}: not one of {', '.join(_THREAD_FLAGS)}")
    for kind in [wish] if wish else list(_THREAD_FLAGS):
        probe = os.path.join(work, "probe.c")
        with open(probe, "w") as f:
            f.write(_THREAD_PROBES[kind])
        failure = _run([*_compiler(), "-shared", "-fPIC", *_THREAD_FLAGS[kind], probe, "-o",
                        os.path.join(work, "probe")])
        if not failure:
            return _THREAD_FLAGS[kind]
    raise ImportError(f"the compiler makes no shared library:\n{failure}")


def _build(folder: str, target: str, shim: str, cuda: bool) -> None:
    """Compiles into a folder of its own beside the target, and moves the result there in one step."""
    nvcc = shutil.which("nvcc")
    if cuda and not nvcc:
        raise ImportError("tensors on a GPU want nvcc, to compile santa_cuda.cu")
    work = tempfile.mkdtemp(dir=os.path.dirname(target))
    try:
        source, made = os.path.join(work, "shim.c"), os.path.join(work, "library")
        with open(source, "w") as f:
            f.write(shim)
        threads = _thread_flags(work)
        compile_c = [*_compiler(), *shlex.split(os.environ.get("SANTA_CFLAGS", "-O2")), "-std=gnu99",
                     "-fPIC", "-I", folder, *threads]
        print(f"santa: compiling {'santa_cuda.cu (minutes)' if cuda else 'santa.h'}, once ...",
              file=sys.stderr)
        if not cuda:
            failure = _run([*compile_c, "-shared", source, "-o", made, "-lm"])
        else:
            arch = _cuda_arch()
            objects = [os.path.join(work, "shim.o"), os.path.join(work, "cuda.o")]
            failure = (_run([*compile_c, "-c", source, "-o", objects[0]]) or
                       _run([str(nvcc), "-std=c++17", "-O3", arch, "-Xcompiler", "-fPIC", "-c",
                             os.path.join(folder, "santa_cuda.cu"), "-o", objects[1]]) or
                       _run([str(nvcc), arch, "-shared", *objects, "-o", made, "-lm",
                             *(flag for t in threads for flag in ("-Xcompiler", t))]))
        if failure:
            raise ImportError(f"the library was not compiled; is {__file__} of another version than "
                              f"santa.h?\n{failure}")
        os.replace(made, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _cuda_arch() -> str:
    """nvcc's option; cards of 9.0 have kernels that want the a of sm_90a, which "native" is not."""
    arch, query = os.environ.get("SANTA_CUDA_ARCH") or "native", ("nvidia-smi", "--query-gpu=compute_cap")
    if arch == "native" and shutil.which(query[0]):
        if set(_output([*query, "--format=csv,noheader"]).split()) == {"9.0"}:
            arch = "sm_90a"
    return "-gencode=arch=compute_90a,code=sm_90a" if arch == "sm_90a" else f"-arch={arch}"


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or ""
    folder = os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "santa")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    folder = tempfile.mkdtemp(prefix="santa-")                   # for this process only
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    print(f"santa: cannot write to {base or '~/.cache'}, so what is compiled now is not kept",
          file=sys.stderr)
    return folder


def _cache_path(cuda: bool, folder: str, shim: str) -> str:
    """Named after everything that the library is made from."""
    key = hashlib.sha256()
    for name in ["santa.h"] + (["santa_cuda.cu", "santa_cuda.h"] if cuda else []):
        try:
            with open(os.path.join(folder, name), "rb") as f:
                text = f.read()
        except OSError as error:
            raise ImportError(f"tensors on a GPU want santa_cuda.cu beside santa.h: {error}") from None
        key.update(f"{name} {len(text)}\n".encode() + text)
    settings = [shim, platform.system(), platform.machine(), str(C.sizeof(_ptr)), *_compiler(),
                _output([*_compiler(), "--version"]),
                *(os.environ.get(name, "") for name in ("SANTA_CFLAGS", "SANTA_THREADS"))]
    if cuda:
        tools = [tool for tool in (("nvidia-smi", "-L"), ("nvcc", "--version")) if shutil.which(tool[0])]
        settings += [_cuda_arch(), *(_output(tool) for tool in tools)]
    key.update("\0".join(settings).encode())
    return os.path.join(_cache_folder(), f"{'santa_cuda' if cuda else 'santa'}-{key.hexdigest()[:32]}.so")


def _load(cuda: bool) -> Any:
    folder, layout = _source_folder(), _layout()
    shim = _SHIM % ",\n    ".join(expression for expression, _, _ in layout if expression)
    path = _cache_path(cuda, folder, shim)
    if not os.path.exists(path):
        _build(folder, path, shim, cuda)
    lib: Any = C.CDLL(path)
    _check_layout(lib, layout)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    if lib.santa_version() != VERSION:
        raise ImportError(f"santa.h has version {lib.santa_version()}, this file is for {VERSION}")
    for name, struct in _STRUCTS.items():
        size = lib.santa_struct_size(f"santa_{name}".encode())
        if size != C.sizeof(struct):
            raise ImportError(f"santa_{name} has {size} bytes in the library, {C.sizeof(struct)} here")
    lib.threads = ("none", "openmp", "pthread")[_i32.in_dll(lib, "santa_python_threads").value]
    lib.parallel_for = _ParallelFor()
    if lib.threads == "pthread":
        lib.parallel_for = C.cast(lib.santa_python_parallel_for, _ParallelFor)
    lib.path, lib.cuda = path, cuda
    return lib


def _check_layout(lib: Any, layout: Sequence[Tuple[str, str, int]]) -> None:
    """Every size, offset and enumerator as the compiler saw it, so that fields in another order show."""
    there = (_i64 * len(layout)).in_dll(lib, "santa_python_layout")
    wrong = [f"{what} is {got} in the library, {want} here"
             for (_, what, want), got in zip(layout, there) if want != got]
    if wrong:
        raise ImportError(f"{__file__} is not for this santa.h: " + "; ".join(wrong[:5]))


_libraries: Dict[bool, Any] = {}
_loading = threading.Lock()


def _library(cuda: bool) -> Any:
    lib = _libraries.get(cuda)
    if lib is None:
        with _loading:
            lib = _libraries.get(cuda)
            if lib is None:
                lib = _libraries[cuda] = _load(cuda)
    return lib


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def build_info() -> Dict[str, str]:
    """Path, threads, version and instruction set of the libraries in use."""
    lib = _library(False)
    info = {
        "path": lib.path, "threads": lib.threads, "isa": lib.santa_isa_name(lib.santa_best_isa()).decode(),
        "version": f"{VERSION // 10000}.{VERSION // 100 % 100}.{VERSION % 100}"
    }
    if True in _libraries:
        info["cuda_path"] = _libraries[True].path
    return info


def methods() -> List[str]:
    """The names that method= takes."""
    lib, names = _library(False), []                            # type: Any, List[str]
    while lib.santa_method_traits(len(names)):
        names.append(lib.santa_method_name(len(names)).decode())
    return names


def offset(layer: int, step: int) -> int:
    """An offset that differs for every layer (below 65536) and step: equal arguments give equal draws."""
    layer, step = _integer(layer, "layer"), _integer(step, "step")
    if not 0 <= layer < 65536 or not 0 <= step < 2**48:
        raise ValueError(f"layer = {layer} is not below 65536, or step = {step} not below 2^48, or one is "
                         "negative")
    return _library(False).santa_offset(layer, step)


# ------------------------------------------------------------------------------- arrays

_ITEM = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "uint8": 1, "int8": 1, "uint16": 2,
    "int16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float64": 8,
    "F32": 4, "F16": 2, "BF16": 2, "E4M3": 1, "Q8_0": 1, "E5M2": 1, "Q4_0": 1, # of Views; of blocks bytes
    "float8_e5m2": 1, "bool": 1
}
_NUMBER = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "E4M3",
           "float8_e5m2": "E5M2"}
_BLOCK = {"Q8_0": 34, "Q4_0": 18}           # bytes of 32 numbers
_DLPACK = {(2, 32): "float32", (2, 16): "float16", (2, 64): "float64", (4, 16): "bfloat16",
           (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2", (6, 8): "bool",
           **{(0, 8 * n): f"int{8 * n}" for n in (1, 2, 4, 8)},
           **{(1, 8 * n): f"uint{8 * n}" for n in (1, 2, 4, 8)}}
_TYPESTR = {
    "f4": "float32", "f2": "float16", "f8": "float64", "b1": "bool",
    **{f"i{n}": f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{f"u{n}": f"uint{8 * n}" for n in (1, 2, 4, 8)}
}
_FORMAT = {
    "f": "float32", "e": "float16", "d": "float64", "B": "uint8", "b": "int8", "H": "uint16", "h": "int16",
    "i": "int32", "I": "uint32", "q": "int64", "Q": "uint64", "c": "uint8", "?": "bool",
    "l": f"int{8 * C.sizeof(C.c_long)}", "L": f"uint{8 * C.sizeof(C.c_long)}"
}
_ORDER = "<" if sys.byteorder == "little" else ">"


class _DLTensor(C.Structure):
    _fields_ = _fields(_ptr, "data", C.c_int32, "device_type device_id ndim", C.c_uint8, "code bits",
                       C.c_uint16, "lanes", C.POINTER(_i64), "shape strides", _u64, "byte_offset")


class _Array(NamedTuple):
    """Memory as its owner describes it; strides in elements."""
    pointer: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: str                              # a key of _ITEM, or a value of _DTYPES for a View
    device: int                             # _CPU or _CUDA
    gpu: int                                # its number
    writable: bool
    owner: Any                              # keeps the memory

    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM[self.dtype]

    def shares(self, other: "_Array") -> bool:
        """Whether memory is surely of both: of arrays with gaps only the first element is looked at."""
        if 0 in self.shape or 0 in other.shape or (self.device, self.gpu) != (other.device, other.gpu):
            return False
        if not self.dense() or not other.dense():
            return self.pointer == other.pointer
        return (self.pointer < other.pointer + other.nbytes()
                and other.pointer < self.pointer + self.nbytes())

    def dense(self) -> bool:
        size = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides)):
            if n != 1 and stride != size:
                return False
            size *= n
        return True


class View:
    """An array's memory as numbers of another type: decode(q, View(bytes_of_k, "q8_0"), ..).

    dtype: "f32", "f16", "bf16", "e4m3" or "e5m2" for elements of as many bytes; "q8_0" ("q4_0") for arrays
    of bytes whose last dimension is rows of head_dim / 32 blocks of 34 (18) bytes, side by side.
    """

    def __init__(self, array: Any, dtype: str) -> None:
        if not isinstance(dtype, str) or dtype.upper() not in _DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(_DTYPES).lower()}")
        self.array, self.dtype = array, dtype.upper()

    def _look(self, name: str) -> _Array:
        a = _look(self.array, name)
        if _ITEM[a.dtype] != _ITEM[self.dtype]:
            raise TypeError(f"{name}: elements of {_ITEM[a.dtype]} bytes are not {self.dtype.lower()}")
        if self.dtype not in _BLOCK:
            return a._replace(dtype=self.dtype)
        *sizes, row = a.shape
        block = _BLOCK[self.dtype]
        if row % block or a.strides[-1] != 1 or any(s % block for n, s in zip(sizes, a.strides) if n > 1):
            raise ValueError(f"{name}: rows of {self.dtype.lower()} are whole blocks of {block} bytes, "
                             "side by side and blocks apart")
        strides = [s // block * 32 for s in a.strides[:-1]]
        return a._replace(dtype=self.dtype, shape=(*sizes, row // block * 32), strides=(*strides, 1))


def _is_torch(x: Any) -> bool:
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)


def _look(x: Any, name: str, stream: Optional[int] = None) -> _Array:
    """Where x has its numbers. Nothing is copied."""
    if isinstance(x, View):
        return x._look(name)
    if _is_torch(x):
        if x.device.type not in ("cpu", "cuda"):
            raise TypeError(f"{name} is on {x.device}: santa.h knows cpu and cuda")
        dtype = str(x.dtype).replace("torch.", "")
        if dtype not in _ITEM:
            raise TypeError(f"{name}: no numbers of {x.dtype} here")
        if str(x.layout) != "torch.strided":
            raise TypeError(f"{name} is {x.layout}: santa.h reads dense memory in strides")
        if x.is_neg():                      # its memory holds the numbers with the other sign
            raise TypeError(f"{name} is a view with torch's negative bit: give {name}.resolve_neg()")
        return _Array(x.data_ptr(), tuple(x.shape), tuple(x.stride()), dtype, _CUDA if x.is_cuda else _CPU,
                      x.device.index or 0, True, x)
    interface = getattr(x, "__array_interface__", None)
    if interface is not None:
        order, kind = interface["typestr"][0], interface["typestr"][1:]
        # bfloat16 and float8 of ml_dtypes have a name only
        dtype = _TYPESTR.get(kind) or str(getattr(x, "dtype", ""))
        if dtype not in _ITEM or order not in ("|", _ORDER):
            raise TypeError(f"{name}: no numbers of {getattr(x, 'dtype', interface['typestr'])} here")
        return _strided(name, interface["data"][0], interface["shape"], interface.get("strides"), dtype,
                        not interface["data"][1], x)
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x, name, stream)
    try:
        buffer = memoryview(x)
    except TypeError:
        raise TypeError(f"{name}: {type(x).__name__} is neither array nor tensor nor buffer") from None
    fmt = buffer.format[1:] if buffer.format[0] in ("@", "=", _ORDER) else buffer.format
    if buffer.readonly or not buffer.c_contiguous or fmt not in _FORMAT:
        raise TypeError(f"{name}: a buffer must be writable, dense, and of numbers")
    pointer = C.addressof((C.c_char * buffer.nbytes).from_buffer(buffer)) if buffer.nbytes else 0
    return _strided(name, pointer, buffer.shape or (), buffer.strides, _FORMAT[fmt], True, buffer)


def _strided(name: str, pointer: int, shape: Sequence[int], strides: Optional[Sequence[int]], dtype: str,
             writable: bool, owner: Any) -> _Array:
    """From strides in bytes, None for dense."""
    item = _ITEM[dtype]
    if strides is None:
        strides = [item * math.prod(shape[i + 1:]) for i in range(len(shape))]
    if any(s % item for n, s in zip(shape, strides) if n > 1):
        raise ValueError(f"{name}: strides are not multiples of an element's {item} bytes")
    return _Array(pointer, tuple(shape), tuple(s // item for s in strides), dtype, _CPU, 0, writable, owner)


def _from_dlpack(x: Any, name: str, stream: Optional[int]) -> _Array:
    """Looks into the capsule without taking what it holds: it goes back to x's package with the capsule."""
    kind, index = x.__dlpack_device__()
    if int(kind) not in (1, 2, 3, 13):                          # CPU, CUDA, pinned, managed
        raise TypeError(f"{name} is on DLPack device {int(kind)}: santa.h knows CPU and CUDA")
    capsule = x.__dlpack__(stream=stream or 1) if int(kind) in (2, 13) else x.__dlpack__()
    get = C.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = _ptr, [C.py_object, C.c_char_p]
    t = _DLTensor.from_address(get(capsule, b"dltensor"))
    shape = tuple(t.shape[i] for i in range(t.ndim))
    dtype = _DLPACK.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"{name}: no numbers of DLPack type {t.code} with {t.bits} bits here")
    strides = (tuple(t.strides[i] for i in range(t.ndim)) if t.strides else
               tuple(math.prod(shape[i + 1:]) for i in range(t.ndim)))
    return _Array((t.data or 0) + t.byte_offset, shape, strides, dtype,
                  _CPU if int(kind) in (1, 3) else _CUDA, int(index), True, (x, capsule))


def _tensor(x: Any, name: str, layout: str = "NHD", out: bool = False, stream: Optional[int] = None,
            dims: Sequence[int] = (4,)) -> Tuple[_Tensor, _Array]:
    """A view [n0, n1, heads, features]; of three dimensions, if dims has them, [n0, heads, features]."""
    a = _look(x, name, stream)
    dtype = a.dtype if a.dtype in _DTYPES else _NUMBER.get(a.dtype)
    if dtype is None:
        raise TypeError(f"{name}: {a.dtype} is no type of santa.h; see View")
    _layout_of(layout, f"layout of {name}")
    if len(a.shape) not in dims:
        raise ValueError(f"{name} has {len(a.shape)} dimensions, not {' or '.join(map(str, dims))}")
    if out and not a.writable:
        raise ValueError(f"{name} is read-only")
    order = (0, None, 1, 2) if len(a.shape) == 3 else (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
    t = _Tensor(data=a.pointer or None, dtype=_DTYPES.index(dtype), device=a.device)
    for i, at in enumerate(order):
        t.shape[i], t.stride[i] = (1, 1) if at is None else (a.shape[at], a.strides[at])
    return t, a


def _layout_of(x: Any, name: str) -> str:
    if not isinstance(x, str) or x not in ("NHD", "HND"):
        raise ValueError(f"{name} = {x!r} is neither 'NHD' nor 'HND'")
    return x


def _scales(x: Any, name: str, layout: str, stream: Optional[int] = None) -> Tuple[_Tensor, _Array]:
    """A number for each row of k or v: their shape without the features."""
    a = _look(x, name, stream)
    dtype = a.dtype if a.dtype in _DTYPES else _NUMBER.get(a.dtype)
    if dtype is None or len(a.shape) != 3:
        raise ValueError(f"{name} are not numbers of santa.h in three dimensions")
    order = (0, 1, 2) if layout == "NHD" else (0, 2, 1)
    t = _Tensor(data=a.pointer or None, dtype=_DTYPES.index(dtype), device=a.device)
    t.shape[:] = [*(a.shape[i] for i in order), 1]
    t.stride[:] = [*(a.strides[i] for i in order), 1]
    return t, a


def _integer(x: Any, name: str, kind: Any = _i64) -> int:
    """As ctypes would cut it silently. NumPy's and torch's truth values are integers, too."""
    try:
        value = operator.index(bool(x) if str(getattr(x, "dtype", "")) in ("bool", "torch.bool") else x)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} = {x!r} is not an integer") from None
    if kind(value).value != value:
        raise ValueError(f"{name} = {value} has no room in {8 * C.sizeof(kind)} bits")
    return value


def _number(x: Any, name: str) -> float:
    try:
        return float(None if isinstance(x, (str, bytes)) else x)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise TypeError(f"{name} = {x!r} is not a number") from None


def _flag(x: Any, name: str) -> bool:
    """None is no."""
    value = 0 if x is None else _integer(x, name)
    if value not in (0, 1):
        raise ValueError(f"{name} = {value} is neither True nor False")
    return bool(value)


def _dict(x: Any, name: str) -> Dict[str, Any]:
    """None is an empty one."""
    if x is not None and not isinstance(x, Mapping):
        raise TypeError(f"{name} = {x!r} is not a dict")
    return dict(x or {})


def _nested(x: Any, name: str) -> Tuple[int, ...]:
    """The shape of lists in lists, or of arrays in them."""
    x = _plain(x)
    if not isinstance(x, (list, tuple)):
        return ()
    shapes = {_nested(row, name) for row in x}
    if len(shapes) > 1:                     # numbers would get into the places of others
        raise ValueError(f"{name} has lists of different lengths side by side")
    return (len(x), *shapes.pop()) if shapes else (0,)


def _flat(x: Any) -> List[Any]:
    x = _plain(x)
    return [y for row in x for y in _flat(row)] if isinstance(x, (list, tuple)) else [x]


def _plain(x: Any) -> Any:
    """Arrays as lists: by their own method, or by NumPy's reading of DLPack."""
    if hasattr(x, "__dlpack__") and not hasattr(x, "tolist"):
        import numpy
        x = numpy.from_dlpack(x)
    return x.tolist() if hasattr(x, "tolist") else x


_C_NAME = {C.c_int32: "int32", _i64: "int64", _u64: "uint64", _f32: "float32", C.c_uint8: "uint8"}


def _array(x: Any, kind: Any, shape: Tuple[int, ...], name: str, device: int, like: Any,
           keep: List[Any]) -> Optional[int]:
    """Address of a dense array of numbers; others, lists too, are converted where that is small work."""
    if x is None:
        return None
    if isinstance(x, (list, tuple)) and _nested(x, name) != shape:
        raise ValueError(f"{name} has shape {_nested(x, name)}, not {shape}")
    is_array = hasattr(x, "__array_interface__") or hasattr(x, "__dlpack__") or _is_torch(x)
    size = math.prod(shape)
    if is_array:
        a = _look(x, name)
        if a.shape != shape:
            raise ValueError(f"{name} has shape {a.shape}, not {shape}")
        if a.device == device and a.dense() and (a.dtype == _C_NAME[kind] or
                                                 kind is C.c_uint8 and a.dtype == "bool" or
                                                 device == _CUDA and kind is _u64 and a.dtype == "int64"):
            keep.append(a.owner)
            return a.pointer or None
    if device == _CUDA:
        if not _is_torch(like):
            raise TypeError(f"{name} must be a dense array of {_C_NAME[kind]} on the GPU")
        torch = sys.modules["torch"]
        dtype = getattr(torch, "int64" if kind is _u64 else _C_NAME[kind])
        moved = x.detach() if _is_torch(x) else torch.tensor(x)
        moved = moved.to(device=like.device, dtype=dtype).contiguous()
        if tuple(moved.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(moved.shape)}, not {shape}")
        keep.append(moved)
        return moved.data_ptr()
    if is_array and a.device == _CUDA:
        raise ValueError(f"{name} is on a GPU, q is not")
    numbers = _flat(x)
    if len(numbers) != size:
        raise ValueError(f"{name} has {len(numbers)} numbers, not {size}")
    numbers = [_number(n, name) if kind is _f32 else _integer(n, name, kind) for n in numbers]
    made = (kind * max(size, 1))(*numbers)
    keep.append(made)
    return C.addressof(made)


def _empty(like: Any, shape: Tuple[int, ...], dtype: Optional[str] = None) -> Any:
    """A new dense array of the same kind and device; dtype None: like's own."""
    like = like.array if isinstance(like, View) else like
    if _is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)
    a = _look(like, "q")
    if a.device == _CUDA:
        raise TypeError(
            "on a GPU arrays that are not torch's need out=, workspace=, and lse= where it is asked for")
    try:
        import numpy
    except ImportError:
        number = dtype or a.dtype
        fmt: Any = {"float32": "f", "float16": "e"}.get(number) or {1: "B", 2: "H"}[_ITEM[number]]
        return memoryview(bytearray(math.prod(shape) * _ITEM[number])).cast(fmt, shape)
    if dtype is None and hasattr(like, "__array_interface__"):
        return numpy.empty(shape, like.dtype)
    number = dtype or a.dtype
    return numpy.empty(shape, {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}.get(number, number))


# ------------------------------------------------------------------------------- the call

Array = Any             # a NumPy array, a torch tensor, an object with __dlpack__, a buffer or a View
Numbers = Any           # the same or a list
HeavyPredictor = Callable[[int, int, int, List[float], int, int, int], Sequence[int]]
ParallelFor = Callable[[int, Callable[[int], None]], None]


class Result(NamedTuple):
    """What decode() returns. Arrays are of the kind of q; what was not asked for is None."""
    out: Any                                # [batch, q_len, heads, head_dim_v] in q's layout and type
    lse: Any = None                         # [batch, q_len, heads], float32
    std_error: Any = None                   # likewise
    stats: Optional[Stats] = None
    # vattention: an Audit for each [batch, q_len, heads]; numpy.frombuffer(audit, Audit) reads them.
    # sample-attention: a SampleAudit for each [batch, heads]
    audit: Optional[C.Array] = None


_local = threading.local()


def free_workspaces() -> None:
    """Frees the workspaces that calls of this thread have left."""
    _local.workspaces = {}


@contextlib.contextmanager
def _workspace(key: Any, size: int, make: Callable[[int], Any]) -> Iterator[Any]:
    """Taken out while it is in use: a callback may call decode(), too."""
    kept = _local.__dict__.setdefault("workspaces", {})
    have, memory = kept.pop(key, (0, None))
    if have < size:
        memory = None                                           # freed before the larger one is made
        have, memory = size, make(size)
    try:
        yield memory
    finally:
        kept[key] = (have, memory)


def _enum(prefix: str, value: Union[str, int], name: str) -> int:
    if not isinstance(value, str):
        return _integer(value, name, _i32)
    names = _ENUMS[prefix]
    wanted = value.upper().replace("-", "_")
    if wanted not in names:
        raise ValueError(f"{name} = {value!r} is not one of {', '.join(names).lower()}")
    return names.index(wanted)


def _fill(struct: C.Structure, values: Mapping[str, Any], what: str, but: Sequence[str] = ()) -> None:
    """Numbers into the fields of their names."""
    kinds = {f[0]: f[1] for f in struct._fields_ if f[0] not in but}
    for name, value in values.items():
        if name not in kinds:
            raise TypeError(f"{what} has no {name!r}, but {', '.join(kinds)}")
        kind = kinds[name]
        setattr(struct, name, _number(value, name) if kind in (_f32, _f64) else _integer(value, name, kind))


def _stream(x: Any) -> Optional[int]:
    """The address of torch's stream, or of one that is given as that."""
    return None if x is None else _integer(getattr(x, "cuda_stream", x), "stream", _u64)


def _stream_of(x: Any, like: Any) -> Optional[int]:
    """The same; None: torch's current one on like's GPU."""
    like = like.array if isinstance(like, View) else like
    if x is None and _is_torch(like) and like.is_cuda:
        return int(sys.modules["torch"].cuda.current_stream(like.device).cuda_stream)
    return _stream(x)


def _keep_until_done(owners: List[Any], stream: Optional[int]) -> None:
    """torch gives no memory of theirs away before what the stream has by now is done."""
    for owner in owners:
        if _is_torch(owner) and owner.is_cuda:
            torch = sys.modules["torch"]
            owner.record_stream(torch.cuda.ExternalStream(stream or 0, owner.device))


class _DeviceBytes:
    """Bytes on a GPU, for torch.as_tensor and others."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False),
                                         "version": 2}


# Statuses whose texts say more with the sizes, which are [n0, n1, heads, features] here.
_OF_SHAPES = ("SHAPE", "BATCH", "Q_LEN", "HEADS", "KV_HEADS", "GROUP", "HEAD_DIM", "HEAD_DIM_V", "KV_LEN")
# Those of several options of one argument.
_OF_OPTIONS = {"VATTENTION_TOKENS": "vattention", "PROXY_OPTIONS": "proxy_options", "SAAP_OPTIONS": "saap",
               "SAMPLE_ATTENTION": "sample_attention"}


class _Call:
    """The C structs of a call, and what must live as long as it runs. x: the arguments of decode()."""

    def __init__(self, x: Dict[str, Any], sizes_only: bool = False) -> None:
        self.x: Dict[str, Any] = x
        self.keep: List[Any] = []
        self.error: Optional[BaseException] = None                # of a callback
        a = self.a = _Attention()
        self.o = _Options()
        self.stream = _stream(x["stream"])
        for name in ("q_layout", "kv_layout"):
            _layout_of(x[name], name)
        x["stats"] = _flag(x["stats"], "stats")
        a.q, q = _tensor(x["q"], "q", x["q_layout"], stream=self.stream, dims=(3, 4))
        a.k, k = _tensor(x["k"], "k", x["kv_layout"], stream=self.stream)
        a.v, v = _tensor(x["v"], "v", x["kv_layout"], stream=self.stream)
        self.keep += [q.owner, k.owner, v.owner]
        self.like, self.flat, self.device, self.gpu = x["q"], len(q.shape) == 3, q.device, q.gpu
        for name, t in (("k", k), ("v", v)):
            self._same_device(name, t)
        self.lib = _library(self.device == _CUDA)
        batch, q_len, heads = a.q.shape[:3]
        self.rows = (batch, heads) if self.flat else (batch, q_len, heads)
        for name in ("k_scales", "v_scales"):
            if x[name] is not None:
                scales, found = _scales(x[name], name, x["kv_layout"], self.stream)
                setattr(a, name, scales)
                self.keep.append(found.owner)
                self._same_device(name, found)
        self._attention(batch, heads)
        self._options(batch)
        self.results: Dict[str, Any] = {"lse": None, "std_error": None}
        if sizes_only:
            a.out = _Tensor(dtype=a.q.dtype, device=self.device)
            stride = 1
            for i, n in reversed(list(enumerate((batch, q_len, heads, a.v.shape[3])))):
                a.out.shape[i], a.out.stride[i], stride = n, stride, stride * n
            self._masks()
            return
        out = x["out"]
        if out is None:
            hnd = x["q_layout"] == "HND"
            sizes = (batch, heads) if self.flat else (batch, heads, q_len) if hnd else (batch, q_len, heads)
            out = _empty(self.like, (*sizes, a.v.shape[3]))
            if isinstance(self.like, View):
                if self.like.dtype in _BLOCK:
                    raise TypeError(f"q is of {self.like.dtype.lower()}, which only k and v may be")
                out = View(out, self.like.dtype)
        a.out, found = _tensor(out, "out", x["q_layout"], out=True, stream=self.stream,
                               dims=(len(q.shape),))
        self._same_device("out", found)
        self.keep.append(found.owner)
        self.taken = taken = {"q": q, "k": k, "v": v}
        self._apart("out", found, taken)
        self.results["out"] = out.array if isinstance(out, View) else out
        for name in ("lse", "std_error"):
            wanted = x[name]
            if wanted is None or isinstance(wanted, int) or getattr(wanted, "shape", None) == ():
                wanted = _flag(wanted, name)                    # not an array
            if wanted is not False:
                made = _empty(self.like, self.rows, "float32") if wanted is True else wanted
                found = _look(made, name, self.stream)
                if (found.shape, found.dtype, found.device, found.dense(), found.writable) != (
                        self.rows, "float32", self.device, True, True):
                    raise ValueError(
                        f"{name} is not a dense writable float32 array of shape {self.rows} where q is")
                self._apart(name, found, taken)
                self.keep.append(found.owner)
                setattr(a, name, found.pointer or None)
                self.results[name] = made
        self._masks()

    @staticmethod
    def _apart(name: str, found: _Array, taken: Dict[str, _Array]) -> None:
        """What is written must not be what is read, or written, too."""
        for other, there in taken.items():
            if found.shares(there):
                raise ValueError(f"{name} lies in the memory of {other}")
        taken[name] = found

    def _same_device(self, name: str, found: _Array) -> None:
        if (found.device, found.gpu) != (self.device, self.gpu):
            here, there = (f"cuda:{gpu}" if device == _CUDA else "cpu"
                           for device, gpu in ((found.device, found.gpu), (self.device, self.gpu)))
            raise SantaError(_status("SANTA_ERR_DEVICE_MISMATCH"), f"{name} is on {here}, q on {there}")

    def _pointer(self, x: Any, kind: Any, shape: Tuple[int, ...], name: str) -> Optional[int]:
        return _array(x, kind, shape, name, self.device, self.like, self.keep)

    def _attention(self, batch: int, heads: int) -> None:
        x, a = self.x, self.a
        names = ("sm_scale", "k_scale", "v_scale", "soft_cap", "causal", "window", "first_tokens", "first_key")
        _fill(a, {name: x[name] for name in names}, "decode")
        for name in ("seq_lens", "kv_start", "context_lens", "proxy_lens"):
            setattr(a, name, self._pointer(x[name], C.c_int32, (batch,), name))
        for name in ("sinks", "alibi_slopes"):
            setattr(a, name, self._pointer(x[name], _f32, (heads,), name))
        _set_pages(a, x["block_table"], batch, self.device, self.like, self.keep)
        proxy = x["proxy"]
        if isinstance(proxy, Proxy):
            a.proxy_bits = _integer(x["proxy_bits"], "proxy_bits", _i32) or proxy.bits
            proxy = proxy.data
        else:
            a.proxy_bits = _integer(x["proxy_bits"], "proxy_bits", _i32)
        if proxy is not None:
            found = _look(proxy, "proxy", self.stream)
            size = self.lib.santa_proxy_size(C.byref(a))
            if found.device != self.device or not found.dense() or found.nbytes() < size:
                raise ValueError(f"proxy is not a dense array of {size} bytes where q is")
            self.keep.append(found.owner)
            a.proxy = found.pointer
        if x["buckets"] is not None:
            if not isinstance(x["buckets"], Buckets):
                raise TypeError("buckets must be a santa.Buckets")
            if x["buckets"]._device != self.device:
                raise ValueError("buckets are not where q is")
            self.keep.append(x["buckets"])
            a.buckets = C.pointer(x["buckets"]._struct(batch, self.keep))
        self._lists(batch)

    def _lists(self, batch: int) -> None:
        x, a = self.x, self.a
        if x["key_list"] is not None:
            found = _look(x["key_list"], "key_list") if hasattr(x["key_list"], "shape") else None
            shape = found.shape if found else _nested(x["key_list"], "key_list")
            if len(shape) not in (3, 4):
                raise ValueError("key_list is not [batch, kv_heads, max_list] or [batch, q_len, kv_heads, max_list]")
            a.key_list_rows, a.max_list = len(shape) - 3, shape[-1]
            lists = (batch, a.q.shape[1], a.k.shape[2])[::1 if a.key_list_rows else 2]
            a.key_list = self._pointer(x["key_list"], C.c_int32, (*lists, shape[-1]), "key_list")
            a.key_list_lens = self._pointer(x["key_list_lens"], C.c_int32, lists, "key_list_lens")
            a.key_weights = self._pointer(x["key_weights"], _f32, (*lists, shape[-1]), "key_weights")
        elif x["key_list_lens"] is not None or x["key_weights"] is not None:
            raise ValueError("key_list_lens and key_weights go with key_list")

    def _options(self, batch: int) -> None:
        x, o = self.x, self.o
        names = ("num_samples", "top_p", "tile_size", "num_combs", "dense_below", "bernoulli_draws", "seed",
                 "offset", "num_threads", "item_begin", "item_end")
        _fill(o, {name: x[name] for name in names}, "decode")
        method = x["method"]
        if isinstance(method, str):
            o.method = self.lib.santa_method_from_name(method.replace("_", "-").encode())
            if not self.lib.santa_method_traits(o.method):
                raise SantaError(_status("SANTA_ERR_METHOD"),
                                 f"{method!r} is none of {', '.join(methods())}")
        else:
            o.method = _integer(method, "method", _i32)
        o.scores = _enum("SANTA_SCORES_", x["scores"], "scores")
        if x["proxy"] is None and o.scores != _ENUMS["SANTA_SCORES_"].index("PROXY"):
            for name, given in (("proxy_bits", self.a.proxy_bits), ("proxy_lens", self.a.proxy_lens)):
                if given:
                    raise ValueError(f"{name} goes with proxy")
        o.stash = _enum("SANTA_STASH_", x["stash"], "stash")
        o.isa = _enum("SANTA_ISA_", x["isa"], "isa")
        for name in ("seeds", "offsets", "request_ids"):
            setattr(o, name, self._pointer(x[name], _u64, (batch,), name))
        _fill(o.proxy, _dict(x["proxy_options"], "proxy_options"), "proxy_options")
        _fill(o.saap, _dict(x["saap"], "saap"), "saap")
        self._vattention(_dict(x["vattention"], "vattention"))
        self._threads()
        self._sample_attention(_dict(x["sample_attention"], "sample_attention"))
        self._ranks(_dict(x["ranks"], "ranks"))

    def _vattention(self, values: Dict[str, Any]) -> None:
        v = self.o.vattention
        heavy, audit = values.pop("heavy", None), _flag(values.pop("audit", False), "audit")
        self.audit = None
        index = values.pop("heavy_index", None)
        for name, prefix in (("guarantee", "SANTA_GUARANTEE_"), ("bound", "SANTA_BOUND_")):
            if name in values:
                values[name] = _enum(prefix, values[name], name)
        _fill(v, values, "vattention", ("heavy", "heavy_user", "audit", "heavy_index"))
        if audit and self.device == _CUDA:
            if not _is_torch(self.like):
                raise TypeError("on a GPU an audit wants torch's arrays")
            torch = sys.modules["torch"]
            self.audit = torch.zeros(math.prod(self.rows) * C.sizeof(Audit), dtype=torch.uint8,
                                     device=self.like.device)
            v.audit = self.audit.data_ptr()
        elif audit:
            self.audit = (Audit * math.prod(self.rows))()
            v.audit = C.addressof(self.audit)
        if index is not None:
            v.heavy_index = self._pointer(index, C.c_int32, (*self.rows, v.heavy_stride or v.heavy_tokens),
                                          "heavy_index")
        if heavy is None:
            return
        if isinstance(heavy, _Heavy):
            v.heavy = heavy
        elif callable(heavy):
            head_dim = self.a.q.shape[3]

            def predict(_user: Any, batch: int, row: int, head: int, q: Any, begin: int, end: int,
                        count: int, index: Any) -> int:
                try:
                    keys = [_integer(key, "a heavy key", C.c_int32)
                            for key in heavy(batch, row, head, q[:head_dim], begin, end, count)][:count]
                    for i, key in enumerate(keys):
                        index[i] = key
                    return len(keys)
                except BaseException as error:  # cannot pass through C: raised behind the call
                    self.error = self.error or error
                    return 0
            v.heavy = _Heavy(predict)
        else:
            raise TypeError("heavy is not callable")
        self.keep.append(v.heavy)

    def _ranks(self, values: Dict[str, Any]) -> None:
        r, given = self.o.ranks, values.pop("all_gather", None)
        _fill(r, values, "ranks", ("all_gather", "user"))
        if given is None:
            return
        if "count" not in values:
            raise ValueError("ranks has all_gather, but no count of ranks")
        if isinstance(given, _AllGather):
            r.all_gather = given
        elif callable(given):
            def gather(_user: Any, mine: int, size: int, everything: int, _stream: Any) -> int:
                try:
                    given(self._bytes(mine, size), self._bytes(everything, size * r.count))
                    return 0
                except BaseException as error:
                    self.error = self.error or error
                    return 1
            r.all_gather = _AllGather(gather)
        else:
            raise TypeError("all_gather is not callable")
        self.keep.append(r.all_gather)

    def _bytes(self, pointer: int, size: int) -> Any:
        """Memory of the library while a callback runs."""
        return _DeviceBytes(pointer, size) if self.device == _CUDA else memoryview(
            (C.c_ubyte * size).from_address(pointer)).cast("B")

    def mask_shape(self) -> Tuple[int, int, int, int]:
        blocks = (_i64 * 2)()
        status = self.lib.santa_mask_shape(C.byref(self.a), C.byref(self.o), C.byref(blocks),
                                           C.byref(blocks, C.sizeof(_i64)))
        if status:
            raise self.refused(status)
        return (self.a.q.shape[0], self.a.q.shape[2], blocks[0], blocks[1])

    def _sample_attention(self, values: Dict[str, Any]) -> None:
        s = self.o.sample_attention
        mask, audit = values.pop("mask", None), _flag(values.pop("audit", False), "audit")
        outs = [(name, dtype, values.pop(name, None)) for name, dtype in (("mask_out", "uint8"),
                                                                          ("row_mass", "float32"))]
        _fill(s, values, "sample_attention", ("mask", "mask_out", "audit", "row_mass"))
        self.wants = (mask, [x for x in outs if x[2] is not None])
        if audit and self.device == _CUDA:
            if not _is_torch(self.like):
                raise TypeError("on a GPU an audit wants torch's arrays")
            torch = sys.modules["torch"]
            self.audit = torch.zeros(self.a.q.shape[0] * self.a.q.shape[2] * C.sizeof(SampleAudit),
                                     dtype=torch.uint8, device=self.like.device)
            s.audit = self.audit.data_ptr()
        elif audit:
            self.audit = (SampleAudit * (self.a.q.shape[0] * self.a.q.shape[2]))()
            s.audit = C.addressof(self.audit)

    def _masks(self) -> None:
        """What has the shape of a mask, which the library tells when it knows out."""
        s, (mask, outs) = self.o.sample_attention, self.wants
        if mask is None and not outs:
            return
        shape = self.mask_shape()
        s.mask = self._pointer(mask, C.c_uint8, shape, "mask")
        for name, dtype, array in outs:
            want = shape if name == "mask_out" else tuple(self.a.q.shape[:3])
            found = _look(array, name)
            if (found.shape, "uint8" if found.dtype == "bool" else found.dtype, found.device, found.dense(),
                    found.writable) != (want, dtype, self.device, True, True):
                raise ValueError(f"{name} is not a dense writable {dtype} array of shape {want} where q is")
            self.keep.append(found.owner)
            setattr(s, name, found.pointer)

    def _threads(self) -> None:
        o, given = self.o, self.x["parallel_for"]
        if given is None:
            if self.lib.threads == "pthread":
                o.parallel_for = self.lib.parallel_for
            elif self.lib.threads == "openmp" and _forked and o.num_threads > 1:
                o.num_threads = 1
        elif isinstance(given, _ParallelFor):
            o.parallel_for = given
        elif callable(given):
            def run(_user: Any, count: int, task: int, context: int) -> None:
                function, done = _Task(task), []                # type: Any, List[int]

                def one(i: Any) -> None:
                    i = _integer(i, "a task of parallel_for")
                    if not 0 <= i < count:
                        raise ValueError(f"parallel_for called task({i}), of {count}")
                    function(context, i)
                    done.append(i)
                try:
                    given(count, one)
                    if sorted(done) != list(range(count)):      # what is left out is not written
                        raise ValueError("parallel_for did not call task(i) once for each i below "
                                         f"{count}: {len(done)} calls, of {len(set(done))} tasks")
                except BaseException as error:
                    self.error = self.error or error
            o.parallel_for = _ParallelFor(run)
        else:
            raise TypeError("parallel_for is not callable")
        self.keep.append(o.parallel_for)

    def refused(self, status: int) -> SantaError:
        detail = ""
        name = self.lib.santa_status_name(status).decode().replace("SANTA_ERR_", "")
        if name == "OPTION_UNUSED":
            detail = (self.lib.santa_unused_option(C.byref(self.o)) or b"").decode()
        elif name in _OF_OPTIONS:
            given = _dict(self.x[_OF_OPTIONS[name]], _OF_OPTIONS[name])
            detail = ", ".join(f"{key} = {x!r}" for key, x in given.items()
                               if getattr(x, "shape", ()) == () and not callable(x))
        elif name in _OF_SHAPES:
            detail = ", ".join(f"{x} {[*getattr(self.a, x).shape]}" for x in ("q", "k", "v", "out"))
        return SantaError(status, detail, lib=self.lib)

    def size(self) -> int:
        size = self.lib.santa_workspace_size(C.byref(self.a), C.byref(self.o))
        if not size:
            status = self.lib.santa_check(C.byref(self.a), C.byref(self.o))
            raise self.refused(status or _status("SANTA_ERR_WORKSPACE_SIZE"))
        return size

    def run(self) -> Result:
        if self.device == _CUDA:
            return self._run_cuda()
        size, stats = self.size(), Stats()
        if self.x["workspace"] is None:
            with _workspace("cpu", size, lambda n: (C.c_char * n)()) as memory:
                status = self._decode(C.addressof(memory), size, C.byref(stats))
        else:
            status = self._decode(*self._given_workspace(), C.byref(stats))
        if self.error is not None:
            raise self.error
        if status:
            raise self.refused(status)
        return Result(stats=stats if self.x["stats"] else None, audit=self.audit, **self.results)

    def _decode(self, workspace: int, size: int, stats: Any) -> int:
        return self.lib.santa_decode(C.byref(self.a), C.byref(self.o), workspace, size, stats)

    def _given_workspace(self) -> Tuple[int, int]:
        found = _look(self.x["workspace"], "workspace", self.stream)
        if found.device != self.device or not found.dense() or not found.writable:
            raise ValueError("workspace is not a dense writable array where q is")
        self._apart("workspace", found, self.taken)
        self.keep.append(found.owner)
        return found.pointer, found.nbytes()

    def _run_cuda(self) -> Result:
        """Enqueues the call; waits for it only where stats are wanted."""
        if not _is_torch(self.like):
            if self.x["workspace"] is None or self.x["stats"]:
                raise TypeError("on a GPU arrays that are not torch's need workspace=, and have no stats")
            self.o.stream = self.stream
            self.size()
            status = self._decode(*self._given_workspace(), None)
            if status:
                raise self.refused(status)
            return Result(**self.results)
        torch = sys.modules["torch"]
        device = self.like.device
        with torch.cuda.device(device):
            stream = (torch.cuda.current_stream(device) if self.stream is None else
                      torch.cuda.ExternalStream(self.stream, device))
            self.o.stream = stream.cuda_stream
            with torch.cuda.stream(stream):  # its allocator then frees in the order of this stream
                size = self.size()
                pinned = None
                if self.x["stats"]:
                    pinned = torch.empty(C.sizeof(Stats), dtype=torch.uint8, pin_memory=True)
                counts = None if pinned is None else pinned.data_ptr()
                if self.x["workspace"] is None:
                    with _workspace((str(device), stream.cuda_stream), size,
                                    lambda n: torch.empty(n, dtype=torch.uint8, device=device)) as memory:
                        status = self._decode(memory.data_ptr(), size, counts)
                else:
                    status = self._decode(*self._given_workspace(), counts)
                if self.error is not None:
                    raise self.error
                if status:
                    raise self.refused(status)
                for owner in self.keep:                          # of another stream, perhaps
                    if _is_torch(owner) and owner.is_cuda:
                        owner.record_stream(stream)
                stats = None
                if pinned is not None:
                    stream.synchronize()
                    stats = Stats.from_buffer_copy(bytes(pinned.tolist()))
        return Result(stats=stats, audit=self.audit, **self.results)


def _status(name: str) -> int:
    lib = _library(False)
    return next(i for i in range(1000) if lib.santa_status_name(i) == name.encode())


def _set_pages(a: _Attention, block_table: Any, batch: int, device: int, like: Any,
               keep: List[Any]) -> None:
    if block_table is None:
        return
    if isinstance(block_table, (list, tuple)):
        shape: Tuple[int, ...] = _nested(block_table, "block_table")
    else:
        found = _look(block_table, "block_table")
        shape = found.shape
    if len(shape) != 2 or shape[0] != batch:
        raise ValueError(f"block_table has shape {shape}, not ({batch}, pages of a sequence)")
    a.max_pages = shape[1]
    if not isinstance(block_table, (list, tuple)) and (found.dtype, found.device) == ("int32", device) and (
            shape[1] == 1 or found.strides[1] == 1) and (
            batch == 1 or found.strides[0] >= shape[1]) and found.pointer:
        keep.append(found.owner)                                # as it is, whatever lies between its rows
        a.block_table, a.block_table_stride = found.pointer, found.strides[0] if batch > 1 else 0
    else:
        a.block_table = _array(block_table, C.c_int32, shape, "block_table", device, like, keep)


def decode(q: Array, k: Array, v: Array, *, out: Optional[Array] = None, lse: Union[bool, Array] = False,
           std_error: Union[bool, Array] = False, stats: bool = False, q_layout: str = "NHD",
           kv_layout: str = "NHD", seq_lens: Optional[Numbers] = None, kv_start: Optional[Numbers] = None,
           block_table: Optional[Numbers] = None, sm_scale: float = 0.0, k_scale: float = 0.0,
           v_scale: float = 0.0, k_scales: Optional[Array] = None, v_scales: Optional[Array] = None,
           soft_cap: float = 0.0, causal: Union[bool, int] = False, window: int = 0,
           first_tokens: int = 0, sinks: Optional[Numbers] = None,
           alibi_slopes: Optional[Numbers] = None, first_key: int = 0,
           context_lens: Optional[Numbers] = None, proxy: Union["Proxy", Array, None] = None,
           proxy_bits: int = 0, proxy_lens: Optional[Numbers] = None, buckets: Optional["Buckets"] = None,
           key_list: Optional[Numbers] = None, key_list_lens: Optional[Numbers] = None,
           key_weights: Optional[Numbers] = None,
           method: Union[str, int] = "dense", num_samples: int = 0, top_p: float = 0.0, tile_size: int = 0,
           stash: Union[str, int] = "default", num_combs: int = 0, dense_below: int = 0,
           scores: Union[str, int] = "exact", bernoulli_draws: int = 0, seed: int = 0, offset: int = 0,
           seeds: Optional[Numbers] = None, offsets: Optional[Numbers] = None,
           request_ids: Optional[Numbers] = None, vattention: Optional[Mapping[str, Any]] = None,
           proxy_options: Optional[Mapping[str, Any]] = None, saap: Optional[Mapping[str, Any]] = None,
           sample_attention: Optional[Mapping[str, Any]] = None, ranks: Optional[Mapping[str, Any]] = None,
           isa: Union[str, int] = "auto", num_threads: int = 0, parallel_for: Optional[ParallelFor] = None,
           item_begin: int = 0, item_end: int = 0, stream: Any = None,
           workspace: Optional[Array] = None) -> Result:
    """Attention for every query row: santa_decode. What zero means is in santa.h; here is what differs.

    q            [batch, q_len, heads, head_dim], or [batch, heads, head_dim]: then so are the results
    k, v         [batch, len, kv_heads, head_dim]; with block_table [pages, page_size, kv_heads, head_dim].
                 float32, float16, bfloat16, k and v also float8_e4m3fn, float8_e5m2; others by View.
                 Any strides
    k_scales, v_scales   a number for each row of k and v: their shape without the features. On a GPU not
                 for sample-attention where it looks at blocks
    q_layout     "HND": q and out are [batch, heads, q_len, head_dim] instead, as in torch
    kv_layout    "HND": k and v are [batch, kv_heads, len, head_dim] (or pages so)
    out          where to write, of any strides, apart from q, k and v; None: a new array like q (other
                 packages': NumPy's)
    lse, std_error   True: make an array; an array: write there, float32 [batch, q_len, heads]
    stats        True: count what was read. On a GPU this waits for the call
    seq_lens, kv_start, context_lens, proxy_lens, seeds, offsets, request_ids: [batch];
    block_table: [batch, max_pages];  sinks, alibi_slopes: [heads]
                 lists or arrays; dense ones of the C type are not copied
    key_list     [batch, kv_heads, max_list] keys that each KV head reads, below 0 = none, or
                 [batch, q_len, kv_heads, max_list]; key_weights likewise, key_list_lens without max_list
    causal       False: a row sees all keys, also later ones
    method       a name of methods(); "top_k" is "top-k"
    scores       "exact", "bernoulli_iid", "bernoulli_strat", "group_iid", "group_strat", "q8", "proxy"
    stash        "default", "f32", "f16", "u8";    isa: "auto", "scalar", "avx2", "avx512", "amx", "neon"
    proxy        a Proxy, or the bytes of one (then proxy_bits, too); drawn from with scores="proxy"
    vattention   a dict of sink_tokens, local_tokens, heavy_tokens, base_samples, epsilon, delta,
                 guarantee ("denominator", "full"), bound ("clt", "hoeffding"), audit (True:
                 Result.audit, on a GPU its bytes there), heavy_index, int32 [batch, q_len, heads,
                 heavy_tokens], and heavy, a function (batch, row, head, query, begin, end, count)
                 that returns at most count keys
    proxy_options    a dict of sink_tokens, local_tokens, rescue_keys, rescue_above, exact_above
    saap         a dict of num_probes, sink_tokens, local_tokens, uniform_share, measure_mass
    sample_attention a dict of alpha_columns, alpha_slashes, num_chunks, block_size, per_head, dense_above,
                 audit (True: Result.audit) and arrays: mask and mask_out, uint8 of mask_shape(),
                 row_mass, float32 [batch, q_len, heads]
    ranks        a dict of count, rank and all_gather, a function (mine, all) of two writable memoryviews of
                 bytes, all as long as the mine of all ranks together (on a GPU: what torch.as_tensor
                 takes); torch_ranks() is one for torch.distributed. All methods but saap and
                 sample-attention
    parallel_for     a function (count, task) that calls task(i) for each i below count and then returns
    stream       of a GPU, torch's or its address; None: torch's current one
    workspace    None: the thread's own; else memory of at least workspace_size() bytes

    Raises SantaError for what santa.h refuses, an option that the method does not read among it (see
    used_options); what a callback raises is raised behind the call.
    """
    return _Call(dict(locals())).run()


def used_options(**options: Any) -> Dict[str, Any]:
    """Options of decode() without those that their method would not read, which decode() refuses: for
    loops over methods with one set of options. What is no option (lse, seq_lens, ..) stays."""
    lib, o, kept = _library(False), _Options(), dict(options)
    where = {"proxy_options": "proxy", "vattention": "vattention", "saap": "saap",
             "sample_attention": "sample_attention"}
    method = options.get("method", "dense")
    o.method = lib.santa_method_from_name(method.replace("_", "-").encode()) if isinstance(
        method, str) else _integer(method, "method", _i32)
    if not lib.santa_method_traits(o.method):
        raise SantaError(_status("SANTA_ERR_METHOD"), f"{method!r} is none of {', '.join(methods())}")
    for name in ("scores", "stash"):
        setattr(o, name, _enum(f"SANTA_{name.upper()}_", options.get(name, 0), name))
    for name in ("num_samples", "top_p", "tile_size", "num_combs", "dense_below", "bernoulli_draws"):
        _fill(o, {name: options.get(name, 0)}, "used_options")
    for name, field in where.items():
        struct, numbers = getattr(o, field), {}
        kinds = dict(struct._fields_)
        for key, x in _dict(options.get(name), name).items():
            if kinds.get(key) in (_ptr, _Heavy):                    # whether it is there is what matters
                setattr(struct, key, C.cast(int(x is not None and x is not False), kinds[key]))
            else:
                is_enum = key in ("guarantee", "bound")
                numbers[key] = _enum(f"SANTA_{key.upper()}_", x, key) if is_enum else x
        _fill(struct, numbers, name)
        if options.get(name):
            kept[name] = dict(options[name])
    while True:
        unused = lib.santa_unused_option(C.byref(o))
        if not unused:
            return kept
        section, _, key = unused.decode().rpartition(".")
        struct = getattr(o, section) if section else o
        (kept["proxy_options" if section == "proxy" else section] if section else kept).pop(key)
        setattr(struct, key, dict(struct._fields_)[key]())


def torch_ranks(group: Any = None) -> Dict[str, Any]:
    """ranks= of decode() for a group of torch.distributed (gloo on CPUs, NCCL on GPUs): each process
    holds a range of the keys, in the order of the ranks, and passes first_key and context_lens."""
    import torch
    import torch.distributed as dist

    def view(x: Any) -> Any:
        return torch.frombuffer(x, dtype=torch.uint8) if isinstance(x, memoryview) else torch.as_tensor(
            x, device="cuda")

    def gather(mine: Any, everything: Any) -> None:
        dist.all_gather_into_tensor(view(everything), view(mine), group=group)
    return {"count": dist.get_world_size(group), "rank": dist.get_rank(group), "all_gather": gather}


def workspace_size(q: Array, k: Array, v: Array, **options: Any) -> int:
    """Bytes of workspace that decode() with these arguments wants: santa_workspace_size."""
    import inspect
    bound = inspect.signature(decode).bind(q, k, v, **options)
    bound.apply_defaults()
    return _Call(dict(bound.arguments), sizes_only=True).size()


def mask_shape(q: Array, k: Array, v: Array, **options: Any) -> Tuple[int, int, int, int]:
    """Shape of sparse prefill's mask for such a call: santa_mask_shape."""
    import inspect
    bound = inspect.signature(decode).bind(q, k, v, **options)
    bound.apply_defaults()
    return _Call(dict(bound.arguments), sizes_only=True).mask_shape()


# ------------------------------------------------------------------------------- copies and indexes of K

class Proxy:
    """A copy of K in 4 or 2 bits that lies beside an append-only cache: >>proxy of santa.h.

        p = Proxy(k)                    # k: the whole cache, [batch, capacity, kv_heads, head_dim]
        p.encode(seq_lens=[1000])       # behind the prefill
        p.append(1, seq_lens=[1001])    # behind each step
        decode(q, k, v, seq_lens=[1001], method="sys", scores="proxy", proxy=p)

    k's memory must stay where it is, and k_scales' if it has them. size: its bytes; data: them.
    """

    def __init__(self, k: Array, *, bits: int = 4, kv_layout: str = "NHD", paged: bool = False,
                 data: Optional[Array] = None, k_scales: Optional[Array] = None) -> None:
        self.k, self.kv_layout, self.k_scales = k, _layout_of(kv_layout, "kv_layout"), k_scales
        self.paged = _flag(paged, "paged")
        self.bits = _integer(bits, "bits", _i32)
        a, self._device = self._attention()
        self._lib = _library(self._device == _CUDA)
        none = (C.c_int32 * 1)()
        if paged:                                               # one sequence of no keys
            a.block_table, a.max_pages = C.addressof(none), 1
        self.size: int = self._lib.santa_proxy_size(C.byref(a))
        a.proxy = C.addressof(none)
        status = 0 if self.size else self._lib.santa_proxy_encode(C.byref(a), 0, 0, None)
        if status:
            raise SantaError(status, lib=self._lib)
        self.data = _empty(k, (self.size,), "uint8") if data is None else data
        found = _look(self.data, "data")
        if found.device != self._device or not found.dense() or found.nbytes() < self.size:
            raise ValueError(f"data is not a dense array of {self.size} bytes where k is")

    def _attention(self) -> Tuple[_Attention, int]:
        a = _Attention(proxy_bits=self.bits)
        a.k, found = _tensor(self.k, "k", self.kv_layout)
        if self.k_scales is not None:
            a.k_scales, _ = _scales(self.k_scales, "k_scales", self.kv_layout)
        return a, found.device

    def _call(self, name: str, *numbers: int, seq_lens: Any, block_table: Any, stream: Any) -> None:
        a, _ = self._attention()
        keep: List[Any] = []
        batch = a.k.shape[0]
        if self.paged != (block_table is not None):
            raise ValueError("block_table goes with paged=True")
        if self.paged:
            batch = len(block_table)
            _set_pages(a, block_table, batch, self._device, self.k, keep)
        a.q = _Tensor(dtype=0, device=self._device, shape=(_i64 * 4)(batch, 1, a.k.shape[2], a.k.shape[3]))
        a.seq_lens = _array(seq_lens, C.c_int32, (batch,), "seq_lens", self._device, self.k, keep)
        found = _look(self.data, "data")
        if not found.writable:
            raise ValueError("data is read-only")
        a.proxy = found.pointer
        where = _stream_of(stream, self.k)
        status = getattr(self._lib, name)(C.byref(a), *numbers, where)
        if status:
            raise SantaError(status, lib=self._lib)
        _keep_until_done(keep, where)

    def encode(self, start: int = 0, stop: Optional[int] = None, *, seq_lens: Optional[Numbers] = None,
               block_table: Optional[Numbers] = None, stream: Any = None) -> None:
        """Encodes keys start .. stop - 1 (None: the last) of each sequence: santa_proxy_encode."""
        self._call("santa_proxy_encode", _integer(start, "start"),
                   2**31 - 1 if stop is None else _integer(stop, "stop"), seq_lens=seq_lens,
                   block_table=block_table, stream=stream)

    def append(self, count: int = 1, *, seq_lens: Optional[Numbers] = None,
               block_table: Optional[Numbers] = None, stream: Any = None) -> None:
        """Encodes the last count keys of each sequence, seq_lens with them: santa_proxy_append."""
        self._call("santa_proxy_append", _integer(count, "count"), seq_lens=seq_lens,
                   block_table=block_table, stream=stream)


class Buckets:
    """Keys in buckets for method="saap": >>saap of santa.h.

        b = Buckets(k, centroids, key_norm=8)   # centroids [kv_heads, num_buckets, head_dim], see kmeans()
        b.assign(k[:, :1000], seq_lens=[1000])  # keys before RoPE
        decode(q, k, v, seq_lens=[1000], method="saap", buckets=b)

    With a classifier: w1 [kv_heads, hidden, head_dim], b1 [kv_heads, hidden], w2 [kv_heads, num_buckets,
    hidden], b2 [kv_heads, num_buckets]; w1 and w2 of the centroids' type, b1 and b2 float32, all dense.
    q: None, or the queries before RoPE, to be set before each call. slots, num_slots, key_norm as in C. A
    paged k wants batch and max_pages. On a GPU all arrays lie there, and k is torch's. size: bytes of the
    index; index: them.
    """

    def __init__(self, k: Array, centroids: Array, *, w1: Optional[Array] = None,
                 b1: Optional[Array] = None, w2: Optional[Array] = None, b2: Optional[Array] = None,
                 key_norm: float = 0.0, slots: Optional[Numbers] = None, num_slots: int = 0,
                 kv_layout: str = "NHD", batch: Optional[int] = None, max_pages: int = 0) -> None:
        self.k, self.kv_layout, self.q, self.slots = k, _layout_of(kv_layout, "kv_layout"), None, slots
        self.q_layout, self._max_pages = "NHD", _integer(max_pages, "max_pages")
        t, of_k = _tensor(k, "k", kv_layout)
        self._device = of_k.device
        self._batch: int = t.shape[0] if batch is None else _integer(batch, "batch")
        num_slots = _integer(num_slots, "num_slots")
        for name, number, least in (("batch", self._batch, 1), ("max_pages", self._max_pages, 0),
                                    ("num_slots", num_slots, self._batch if num_slots else 0)):
            if number < least:
                raise ValueError(f"{name} = {number} is less than {least}")
        found = _look(centroids, "centroids")
        if len(found.shape) != 3:
            raise ValueError("centroids are not [kv_heads, num_buckets, head_dim]")
        kv_heads, count, head_dim = t.shape[2], found.shape[1], t.shape[3]
        weights = [x is not None for x in (w1, b1, w2, b2)]
        if any(weights) != all(weights):
            raise ValueError("w1, b1, w2 and b2 go together")
        hidden = 0
        if w1 is not None:
            shape = _look(w1, "w1").shape
            if len(shape) != 3:
                raise ValueError("w1 is not [kv_heads, hidden, head_dim]")
            hidden = shape[1]
        self._weights: Dict[str, int] = {
            "num_buckets": count, "hidden": hidden, "num_slots": num_slots
        }
        self._keep: List[Any] = []
        dtype = found.dtype if found.dtype in _DTYPES else _NUMBER.get(found.dtype)
        if dtype is None:
            raise TypeError(f"centroids: {found.dtype} is no type of santa.h")
        for name, array, shape, of_type in (("centroids", centroids, (kv_heads, count, head_dim), True),
                                            ("w1", w1, (kv_heads, hidden, head_dim), True),
                                            ("b1", b1, (kv_heads, hidden), False),
                                            ("w2", w2, (kv_heads, count, hidden), True),
                                            ("b2", b2, (kv_heads, count), False)):
            if array is None:
                continue
            found = _look(array, name)
            there = found.dtype if found.dtype in _DTYPES else _NUMBER.get(found.dtype)
            if (found.shape != shape or not found.dense() or there != (dtype if of_type else "F32")
                    or found.device != self._device):
                raise ValueError(f"{name} is not a dense array of shape {shape} and "
                                 f"{dtype.lower() if of_type else 'f32'} where k is")
            self._keep.append(found.owner)
            self._weights[name] = found.pointer
        self._weights["dtype"] = _DTYPES.index(dtype)
        self.key_norm = _number(key_norm, "key_norm")
        if not 0.0 <= self.key_norm < math.inf:
            raise ValueError(f"key_norm = {self.key_norm} is negative or not finite")
        self._lib = _library(self._device == _CUDA)
        a = self._attention(None, None, self._keep)
        self.size: int = self._lib.santa_buckets_size(C.byref(a))
        if not self.size:
            raise SantaError(_status("SANTA_ERR_BUCKETS_SHAPE"), "no buckets for this k")
        count = (self.size + 3) // 4
        self.index: Any = (_empty(k, (count,), "int32").zero_() if self._device == _CUDA else
                           (C.c_int32 * count)())

    def _struct(self, batch: int, keep: List[Any]) -> _Buckets:
        s = _Buckets(key_norm=self.key_norm, **self._weights)
        index = getattr(self, "index", None)
        if index is not None:
            s.index = index.data_ptr() if self._device == _CUDA else C.addressof(index)
        s.slots = _array(self.slots, C.c_int32, (batch,), "slots", self._device, self.k, keep)
        if self.q is not None:
            s.q, found = _tensor(self.q, "buckets.q", self.q_layout, dims=(3, 4))
            keep.append(found.owner)
        return s

    def _attention(self, seq_lens: Any, block_table: Any, keep: List[Any]) -> _Attention:
        a = _Attention()
        a.k = _tensor(self.k, "k", self.kv_layout)[0]
        a.q.shape[0] = self._batch
        if block_table is not None:
            _set_pages(a, block_table, self._batch, self._device, self.k, keep)
        elif self._max_pages:
            a.block_table, a.max_pages = 1, self._max_pages     # not read for the size
        a.seq_lens = _array(seq_lens, C.c_int32, (self._batch,), "seq_lens", self._device, self.k, keep)
        a.buckets = C.pointer(self._struct(self._batch, keep))
        return a

    def assign(self, keys: Array, start: int = 0, *, seq_lens: Optional[Numbers] = None,
               block_table: Optional[Numbers] = None, num_threads: int = 0, stream: Any = None) -> None:
        """Puts keys start, start + 1, .. into the index, -1: the last ones: santa_buckets_assign."""
        keep: List[Any] = []
        a = self._attention(seq_lens, block_table, keep)
        t, found = _tensor(keys, "keys", self.kv_layout)
        if self._device == _CPU:
            o = _thread_options(num_threads)
        elif num_threads:
            raise ValueError("num_threads is for a CPU")
        else:
            o = _Options(stream=_stream_of(stream, self.k))
        status = self._lib.santa_buckets_assign(C.byref(a), C.byref(t), _integer(start, "start"),
                                                C.byref(o))
        if status:
            raise SantaError(status, lib=self._lib)
        _keep_until_done([found.owner, *keep], o.stream)

    def find(self, slot: int, kv_head: int, key: int) -> int:
        """The bucket of a key of slot's sequence, -1 if it is in none: santa_buckets_find. An index on a
        GPU is fetched for it, each time."""
        keep: List[Any] = []
        a = self._attention(None, None, keep)
        if self._device == _CUDA:                               # an index has the same bytes everywhere
            fetched = self.index.cpu()
            a.k.device, a.buckets.contents.index = _CPU, fetched.data_ptr()
        return self._lib.santa_buckets_find(C.byref(a), _integer(slot, "slot"), _integer(kv_head, "kv_head"),
                                            _integer(key, "key"))


def _thread_options(num_threads: int) -> _Options:
    o, lib = _Options(num_threads=_integer(num_threads, "num_threads")), _library(False)
    if lib.threads == "pthread":
        o.parallel_for = lib.parallel_for
    elif _forked and o.num_threads > 1 and lib.threads == "openmp":
        o.num_threads = 1
    return o


def kmeans(x: Array, num_buckets: int, *, iterations: int = 0, seed: int = 0, num_threads: int = 0) -> Any:
    """Centroids [num_buckets, d] of the rows of x [n, d], float32, by spherical k-means: santa_kmeans."""
    a, lib = _look(x, "x"), _library(False)
    if (len(a.shape) != 2 or a.dtype != "float32" or a.device != _CPU
            or a.shape[1] > 1 and a.strides[1] != 1):
        raise TypeError("x is not [n, d] float32 on the CPU with adjacent features")
    (n, d), buckets = a.shape, _integer(num_buckets, "num_buckets")
    if n > 1 and a.strides[0] < d:
        raise ValueError("x has rows that overlap or follow each other backwards")
    size = lib.santa_kmeans_workspace_size(n, d, buckets)
    memory = (C.c_char * max(size, 1))()
    made = _empty(x, (buckets if size else 1, d), "float32")   # what is refused needs no more
    status = lib.santa_kmeans(a.pointer, n, a.strides[0] if n > 1 else d, d, buckets,
                              _integer(iterations, "iterations"), _integer(seed, "seed", _u64),
                              _look(made, "centroids").pointer, C.byref(_thread_options(num_threads)),
                              C.addressof(memory), size)
    if status:
        raise SantaError(status)
    return made


# ------------------------------------------------------------------------------- self-check

def _self_check() -> int:
    """Dense against the formula and sys near it, with nothing but the standard library."""
    import random
    rng, n, heads, kv_heads, d = random.Random(1), 600, 4, 2, 16

    def normal(*shape: int) -> Any:
        numbers = (C.c_float * math.prod(shape))(*(rng.gauss(0.0, 1.0) for _ in range(math.prod(shape))))
        return memoryview(numbers).cast("B").cast("f", shape)
    q, k, v = normal(1, 1, heads, d), normal(1, n, kv_heads, d), normal(1, n, kv_heads, d)
    worst, want = 0.0, []
    dense = decode(q, k, v, lse=True)
    for h in range(heads):
        g = h // (heads // kv_heads)
        s = [sum(q[0, 0, h, i] * k[0, j, g, i] for i in range(d)) / math.sqrt(d) for j in range(n)]
        p = [math.exp(x) for x in s]
        want += [sum(p[j] * v[0, j, g, i] for j in range(n)) / sum(p) for i in range(d)]
        worst = max(worst, abs(dense.lse[0, 0, h] - math.log(sum(p))))
    worst = max([worst] + [abs(dense.out[0, 0, i // d, i % d] - x) for i, x in enumerate(want)])
    print(f"dense: off by {worst:.1e} at most")
    drawn = [decode(q, k, v, method="sys", num_samples=128, seed=s, stats=True) for s in range(64)]
    stats = drawn[0].stats or Stats()
    mean = [sum(r.out[0, 0, i // d, i % d] for r in drawn) / len(drawn) for i in range(heads * d)]
    bias = max(abs(x - y) for x, y in zip(mean, want))
    print(f"sys, mean of {len(drawn)} seeds: off by {bias:.1e} at most; "
          f"V rows read {100.0 * stats.v_rows_read / stats.keys:.0f} %")
    try:
        decode(q, k, v, method="sys", num_samples=-5)
        refused = ""
    except SantaError as error:
        refused = error.name
    print(f"num_samples = -5: {refused or 'not refused'}")
    for what, is_it in build_info().items():
        print(f"{what}: {is_it}")
    good = worst < 1e-5 and bias < 0.05 and refused == "SANTA_ERR_NUM_SAMPLES"
    print("all is well" if good else "FAILED")
    return 0 if good else 1


_library(False)
if os.environ.get("SANTA_CUDA") == "1":
    _library(True)

if __name__ == "__main__":
    sys.exit(_self_check())
