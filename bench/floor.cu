/* What bench/peers_cuda.py needs beside santa_cuda.cu in one shared library: the CPU side of santa.h, a kernel that
   reads memory and does nothing else, and a table of the layout of every struct that the script mirrors in ctypes. */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include <cuda_runtime.h>

/* The floor of any method with exact scores: K is read once. data: bytes / 65536 blocks of 64 KB, any rest is not
   read; one CTA per block, 16 loads of 16 bytes in flight per thread, evict-first. The store keeps the loads alive and
   hardly ever runs. */
__global__ void __launch_bounds__(256) bench_k_read(const uint4 *data, unsigned *sink) {
    const uint4 *p = data + (size_t)blockIdx.x * 4096 + threadIdx.x;
    uint4 v[16];
    unsigned a = 0;
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = __ldcs(p + j * 256);
#pragma unroll
    for (int j = 0; j < 16; j++) a ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    if (a == 0x12345) *sink = a;
}

extern "C" int bench_read(const void *data, size_t bytes, void *sink, void *stream) {
    bench_k_read<<<(unsigned)(bytes / 65536), 256, 0, (cudaStream_t)stream>>>((const uint4 *)data, (unsigned *)sink);
    return (int)cudaGetLastError();
}

/* A field, or a struct with offset 0, or an enumerator: its value and size 0. */
struct bench_entry { const char *name; size_t offset, size; };

#define STRUCT(s)   { #s, 0, sizeof(s) }
#define FIELD(s, f) { #s "." #f, offsetof(s, f), sizeof(((s *)0)->f) }
#define VALUE(e)    { #e, (size_t)(e), 0 }
static const bench_entry entries[] = {
    STRUCT(santa_tensor),
#define T(f) FIELD(santa_tensor, f)
    T(data), T(shape), T(stride), T(dtype), T(device),
    STRUCT(santa_attention),
#define A(f) FIELD(santa_attention, f)
    A(q), A(k), A(v), A(out), A(lse), A(std_error), A(seq_lens), A(block_table), A(max_pages), A(block_table_stride),
    A(sm_scale), A(k_scale), A(v_scale), A(soft_cap), A(causal), A(window), A(sinks), A(alibi_slopes),
    STRUCT(santa_vattention_options),
#define V(f) FIELD(santa_vattention_options, f)
    V(sink_tokens), V(local_tokens), V(heavy_tokens), V(base_samples), V(epsilon), V(delta), V(guarantee), V(bound),
    V(heavy), V(heavy_user), V(audit),
    STRUCT(santa_options),
#define O(f) FIELD(santa_options, f)
    O(num_samples), O(method), O(top_p), O(tile_size), O(stash), O(dense_below), O(scores), O(bernoulli_draws), O(seed), O(offset),
    O(seeds), O(offsets), O(request_ids), O(vattention), O(isa), O(num_threads), O(parallel_for), O(parallel_user),
    O(item_begin), O(item_end), O(stream),
    STRUCT(santa_stats),
#define S(f) FIELD(santa_stats, f)
    S(rows), S(keys), S(k_rows_read), S(k_features_read), S(k_features_head), S(v_rows_read), S(v_rows_head), S(draws),
    S(tiles), S(tiles_skipped), S(exact_rows), S(dense_rows),
    VALUE(SANTA_F32), VALUE(SANTA_BF16), VALUE(SANTA_CPU), VALUE(SANTA_CUDA), VALUE(SANTA_DENSE), VALUE(SANTA_SYS),
    VALUE(SANTA_PROP), VALUE(SANTA_FLASH), VALUE(SANTA_STASH_DEFAULT), VALUE(SANTA_STASH_F32), VALUE(SANTA_STASH_U8)
};

extern "C" const bench_entry *bench_layout(size_t *count) {
    *count = sizeof entries / sizeof entries[0];
    return entries;
}
