/* What the machine can do: products in tiles of registers. Include santa.h and program.h
   first. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H

/* A product of floats as large as one tile of registers, again and again: [ROWS, DEPTH] times
   [DEPTH, columns] with everything in the first cache and every sum in a register. No kernel
   with operands in memory does better with plain multiply-adds. */
enum { DEPTH = 128, TILE_ROWS = 8 };
typedef struct tile { float a[TILE_ROWS * DEPTH], b[DEPTH * 48], c[TILE_ROWS * 48]; } tile;

#define PRODUCT(name, target, LANES, ROWS)                                                        \
    target static void product_##name(tile *t) {                                                  \
        typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));      \
        vector sum[ROWS][3];                                                                      \
        memset(sum, 0, sizeof sum);                                                               \
        for (int i = 0; i < DEPTH; i++) {                                                         \
            const vector *b = (const vector *)(t->b + i * 3 * LANES);                             \
            const vector b0 = b[0], b1 = b[1], b2 = b[2];                                         \
            _Pragma("GCC unroll 8")                                                               \
            for (int r = 0; r < ROWS; r++) {                                                      \
                const float a = t->a[r * DEPTH + i];                                              \
                sum[r][0] += b0 * a;                                                              \
                sum[r][1] += b1 * a;                                                              \
                sum[r][2] += b2 * a;                                                              \
            }                                                                                     \
        }                                                                                         \
        memcpy(t->c, sum, sizeof sum);                                                            \
    }

#define NO_TARGET
PRODUCT(plain, NO_TARGET, 4, 4)
#if defined(__x86_64__)
PRODUCT(avx2, __attribute__((target("avx2,fma"))), 8, 4)
PRODUCT(avx512, __attribute__((target("avx512f,fma"))), 16, 8)
#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10
/* The same of pairs of bf16 in place of floats. */
#include <immintrin.h>
__attribute__((target("avx512f,avx512bf16"))) static void product_bf16(tile *t) {
    __m512 sum[TILE_ROWS][3];
    memset(sum, 0, sizeof sum);
    for (int i = 0; i < DEPTH; i++) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_ps(t->b + i * 48),
                       b1 = (__m512bh)_mm512_loadu_ps(t->b + i * 48 + 16),
                       b2 = (__m512bh)_mm512_loadu_ps(t->b + i * 48 + 32);
        _Pragma("GCC unroll 8")
        for (int r = 0; r < TILE_ROWS; r++) {
            const __m512bh a = (__m512bh)_mm512_set1_ps(t->a[r * DEPTH + i]);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], b0, a);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], b1, a);
            sum[r][2] = _mm512_dpbf16_ps(sum[r][2], b2, a);
        }
    }
    memcpy(t->c, sum, sizeof sum);
}
#define HAS_PRODUCT_BF16
#endif
#endif

typedef struct product { void (*run)(tile *t); double operations; const char *name; } product;

/* The one with the instruction set that santa.h takes. */
static product product_of(santa_isa isa, santa_dtype type) {
    if (isa == SANTA_ISA_AUTO) isa = santa_best_isa();
    if (isa == SANTA_ISA_AMX) isa = SANTA_ISA_AVX512;                    /* all but scores of decoding */
    (void)type;
#ifdef HAS_PRODUCT_BF16
    if (isa == SANTA_ISA_AVX512 && type == SANTA_BF16 && __builtin_cpu_supports("avx512bf16")
        && !__builtin_cpu_is("intel"))
        return (product){ product_bf16, 4.0 * DEPTH * 8 * 48, "8 x 48" };
#endif
#if defined(__x86_64__)
    if (isa == SANTA_ISA_AVX512) return (product){ product_avx512, 2.0 * DEPTH * 8 * 48, "8 x 48" };
    if (isa == SANTA_ISA_AVX2) return (product){ product_avx2, 2.0 * DEPTH * 4 * 24, "4 x 24" };
#endif
    return (product){ product_plain, 2.0 * DEPTH * 4 * 12, "4 x 12" };
}

typedef struct products { product what; int64_t repeat; tile *tiles; } products;
static void product_task(void *context, int64_t i) {
    const products *x = (const products *)context;
    for (int64_t r = 0; r < x->repeat; r++) x->what.run(x->tiles + i);
}

/* Some `operations` a thread; free tiles. */
static products products_make(santa_isa isa, santa_dtype type, double operations, int64_t threads) {
    products x = { product_of(isa, type), 1, NULL };
    x.tiles = (tile *)allocate((size_t)threads * sizeof *x.tiles);
    memset(x.tiles, 0, (size_t)threads * sizeof *x.tiles);
    for (int64_t t = 0; t < threads; t++) {
        for (int i = 0; i < TILE_ROWS * DEPTH; i++) x.tiles[t].a[i] = 1.0f;
        for (int i = 0; i < DEPTH * 48; i++) x.tiles[t].b[i] = 0.5f;
    }
    x.repeat = (int64_t)(operations / x.what.operations);
    return x;
}

#endif
