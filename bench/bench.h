/* What bench.c and peers_cpu.c share: the clock, element types, layouts, Gaussian data, the
   read that is the floor. Include santa.h first. gcc or clang. */
#ifndef BENCH_H
#define BENCH_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "gain.h"

#ifndef BENCH_DIM
#define BENCH_DIM 128
#endif
enum { DIM = BENCH_DIM };

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------ element types */

static void encode_f32 (void *to, const float *from) { memcpy(to, from, sizeof *from); }
static void encode_f16(void *to, const float *from) {
    const uint16_t h = santa_f32_to_f16(*from);
    memcpy(to, &h, sizeof h);
}
static void encode_bf16(void *to, const float *from) {
    const uint16_t h = santa_f32_to_bf16(*from);
    memcpy(to, &h, sizeof h);
}
static void encode_e4m3(void *to, const float *from) {
    const uint8_t e = santa_f32_to_e4m3(*from);
    memcpy(to, &e, sizeof e);
}

#if SANTA_VERSION >= 200                              /* compare.c also has 0.1.0 */
static void encode_e5m2(void *to, const float *from) {
    const uint8_t e = santa_f32_to_e5m2(*from);
    memcpy(to, &e, sizeof e);
}

static void encode_q4_0(void *to, const float *from) { santa_f32_to_q4_0(from, 32, to); }
#endif
static void encode_q8_0(void *to, const float *from) { santa_f32_to_q8_0(from, 32, to); }

/* block elements, a divisor of DIM, take bytes bytes. */
typedef struct element {
    const char *name;
    santa_dtype dtype;
    int64_t block, bytes;
    void (*encode)(void *to, const float *from);
} element;
static const element elements[] = {
    { "f32",  SANTA_F32,  1,  4,  encode_f32  }, { "f16",  SANTA_F16,  1, 2, encode_f16  },
    { "bf16", SANTA_BF16, 1,  2,  encode_bf16 }, { "e4m3", SANTA_E4M3, 1, 1, encode_e4m3 },
    { "q8_0", SANTA_Q8_0, 32, 34, encode_q8_0 },
#if SANTA_VERSION >= 200
    { "e5m2", SANTA_E5M2, 1, 1, encode_e5m2 }, { "q4_0", SANTA_Q4_0, 32, 18, encode_q4_0 },
#endif
};
enum { ELEMENTS = sizeof elements / sizeof *elements };

static inline int64_t bytes_of(const element *e, int64_t count) { return count / e->block * e->bytes; }

/* ------------------------------------------------------------ layouts */

/* HDN: K feature by feature, as santa_keys_feature_major makes it; V as in HND. P16: pages of
   16 tokens, each NHD. */
enum { PAGE = 16 };
static santa_tensor view_nhd(const void *p, santa_dtype t, int64_t n, int64_t kv_heads) {
    return santa_view(p, t, 1, n, kv_heads, DIM);
}
static santa_tensor view_hnd(const void *p, santa_dtype t, int64_t n, int64_t kv_heads) {
    return santa_view_hnd(p, t, 1, n, kv_heads, DIM);
}
static santa_tensor view_hdn(const void *p, santa_dtype t, int64_t n, int64_t kv_heads) {
    santa_tensor k = santa_view_hnd(p, t, 1, n, kv_heads, DIM);
    k.stride[1] = 1;
    k.stride[3] = n;
    return k;
}

static santa_tensor view_paged(const void *p, santa_dtype t, int64_t n, int64_t kv_heads) {
    return santa_view(p, t, n / PAGE, PAGE, kv_heads, DIM);
}

/* K stored token by token; feature by feature; in pages. V feature by feature beside K by
   token: llama.cpp's cache without flash attention. */
enum { TOKENS = 1, FEATURES = 2, PAGES = 4, TURNED_V = 8 };
typedef struct layout {
    const char *name;
    santa_tensor (*k)(const void *p, santa_dtype t, int64_t n, int64_t kv_heads);
    santa_tensor (*v)(const void *p, santa_dtype t, int64_t n, int64_t kv_heads);
    int stored;
} layout;
static const layout layouts[] = {
    { "NHD", view_nhd, view_nhd, TOKENS }, { "HND", view_hnd, view_hnd, TOKENS },
    { "HDN", view_hdn, view_hnd, FEATURES },
    { "P16", view_paged, view_paged, PAGES },
    { "V^T", view_nhd, view_hdn, TURNED_V },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* Of names that are there. */
static inline const element *element_named(const char *name) {
    const element *e = elements;
    while (strcmp(e->name, name)) e++;
    return e;
}

static inline const layout *layout_named(const char *name) {
    const layout *l = layouts;
    while (strcmp(l->name, name)) l++;
    return l;
}

/* ------------------------------------------------------------ the floor */

/* What a pass over K costs at best: sum part i of parts in the memory's order. 16-byte vectors
   and a prefetch 8 KB ahead into the second level were the fastest of twelve variants on a Zen
   5 (33 GB/s; 8-byte loads without prefetch: 23). */
typedef uint64_t bench_vector __attribute__((vector_size(16), aligned(1), may_alias));
static inline uint64_t read_part(const void *data, size_t bytes, int64_t parts, int64_t i) {
    enum { LANES = 8, STEP = LANES * sizeof(bench_vector), LINE = 64, AHEAD = 8192 };
    const size_t size = bytes / (size_t)parts & ~(size_t)(STEP - 1);
    const bench_vector *p = (const bench_vector *)((const char *)data + size * (size_t)i),
                       *const end = p + size / sizeof *p;
    bench_vector a = {0}, b = {0}, c = {0}, d = {0};
    for (; p < end; p += LANES) {
        for (int l = 0; l < STEP; l += LINE) __builtin_prefetch((const char *)p + AHEAD + l, 0, 2);
        a += p[0] + p[4]; b += p[1] + p[5]; c += p[2] + p[6]; d += p[3] + p[7];
    }
    a += b + c + d;
    return a[0] + a[1];
}

/* What single rows cost at best: of the rows at data + index[i] * step, each `bytes` long, a
   sum. */
static inline uint64_t read_rows(const char *data, const int32_t *index, int64_t count, size_t step,
                                 size_t bytes) {
    enum { LINE = 64, AHEAD = 32 };
    bench_vector sum = {0};
    for (int64_t i = 0; i < count; i++) {
        const char *row = data + step * (size_t)index[i];
        const char *coming = data + step * (size_t)index[i + AHEAD < count ? i + AHEAD : i];
        for (size_t b = 0; b < bytes; b += LINE) __builtin_prefetch(coming + b, 0, 2);
        for (size_t b = 0; b + sizeof sum <= bytes; b += sizeof sum)
            sum += *(const bench_vector *)(row + b);
    }
    return sum[0] + sum[1];
}

#endif
