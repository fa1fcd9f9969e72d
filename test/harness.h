/* The test harness. A suite is an array of named cases ended by {0, 0}; main.c lists the
   suites. A case fails when one of its checks fails; it goes on after a failed check unless it
   returns itself: if (!CHECK(p)) return; Works in C99, C++11 and CUDA. Arguments of the test
   program: see main.c or --help. */
#ifndef SANTA_TEST_HARNESS_H
#define SANTA_TEST_HARNESS_H

#include "../santa.h"
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct test_case { const char *name; void (*run)(void); } test_case;

/* Declared here so that C++ gives the arrays external linkage. */
extern const test_case suite_convert[], suite_random[], suite_dense[], suite_sampling[], suite_statistics[],
    suite_bernoulli[], suite_vattention[], suite_measures[], suite_determinism[], suite_errors[],
    suite_memory[], suite_fuzz[], suite_model[], suite_kernels[], suite_q8_0[], suite_tasks[],
    suite_budget_tool[], suite_prefill_tool[], suite_accuracy[], suite_golden[], suite_big[], suite_pps[],
    suite_proxy[], suite_saap_file[], suite_saap[], suite_kmeans[], suite_prefill[], suite_sparse[],
    suite_ranks[], suite_lists[], suite_scales[];

extern int      test_quick;                  /* --quick: fewer seeds and shapes, for valgrind and qemu */
extern uint64_t test_seed;                   /* --seed N                                               */
/* a feature by __builtin_cpu_supports that an x86 is said not to have; see impl.c */
extern const char *test_cpu_lacks;

#if defined(__GNUC__) || defined(__clang__)
#define TEST_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TEST_PRINTF(f, a)
#endif

/* Each check returns 1 when it holds, else counts a failure, prints where and why, and returns
   0. */
int  test_check(int ok, const char *file, int line, const char *fmt, ...) TEST_PRINTF(4, 5);
int  test_check_int(long long got, long long want, const char *expr, const char *file, int line);
int test_check_near(double got, double want, double abs_tol, double rel_tol, const char *expr,
                    const char *file, int line);
int  test_check_status(santa_status got, santa_status want, const char *expr, const char *file, int line);
int test_check_mean(const char *name, double sum, double sum_of_squares, double count, double expected,
                    double z_max, const char *file, int line);
int test_check_array(const char *name, const float *got, const double *want, int64_t n, double abs_tol,
                     double rel_tol, const char *file, int line);
void test_skip(const char *reason);

#define CHECK(cond)                          test_check((cond) ? 1 : 0, __FILE__, __LINE__, "%s", #cond)
#define CHECK_MSG(cond, ...)                 test_check((cond) ? 1 : 0, __FILE__, __LINE__, __VA_ARGS__)
#define CHECK_INT(got, want) \
    test_check_int((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
#define CHECK_NEAR(got, want, abs_tol, rel_tol) \
    test_check_near((double)(got), (double)(want), abs_tol, rel_tol, #got, __FILE__, __LINE__)
#define CHECK_STATUS(got, want)              test_check_status(got, want, #got, __FILE__, __LINE__)
/* The mean of count samples is within z_max standard errors of expected; the error is from the
   samples' own spread. */
#define CHECK_MEAN_Z(name, sum, sum_of_squares, count, expected, z_max) \
    test_check_mean(name, sum, sum_of_squares, (double)(count), expected, z_max, __FILE__, __LINE__)
/* |got[i] - want[i]| <= abs + rel * |want[i]|, float against double; prints the first few
   mismatches. */
#define check_array_near(name, got, want, n, abs_tol, rel_tol) \
    test_check_array(name, got, want, n, abs_tol, rel_tol, __FILE__, __LINE__)
#define SKIP(reason)                         do { test_skip(reason); return; } while (0)

/* |mean - expected| in standard errors of the mean, after an allowance for the rounding of
   float samples. */
double test_mean_z(double sum, double sum_of_squares, double count, double expected);

/* Loops over the instruction sets that this machine (or SANTA_TEST_ISA, see impl.c) has, scalar
   first. */
static inline santa_isa test_isa_from(int isa) {
    while (isa < SANTA_ISA_COUNT && !santa_isa_supported((santa_isa)isa)) isa++;
    return (santa_isa)isa;
}
#define FOR_EACH_ISA(isa) \
    for (santa_isa isa = SANTA_ISA_SCALAR; isa != SANTA_ISA_COUNT; isa = test_isa_from((int)(isa) + 1))

void *test_alloc(size_t bytes);              /* malloc that ends the program when there is no memory */

/* NaN by its bits: isnan() is folded to 0 under -Ofast. */
static inline int test_is_nan(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) > 0x7f800000u;
}
static inline float test_nan(void) {
    const uint32_t bits = 0x7fc00001u;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Random numbers of the tests themselves (splitmix64), unrelated to the library's. */
typedef struct test_rng { uint64_t state; } test_rng;
static inline test_rng test_rng_make(uint64_t stream) {
    test_rng r;
    r.state = (test_seed + stream * 0x632be59bd9b4e019u) ^ 0x5a17a5a17a5a17a5u;
    return r;
}
static inline uint64_t test_next(test_rng *r) {
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline double test_uniform(test_rng *r) {
    return (double)(test_next(r) >> 11) * (1.0 / 9007199254740992.0);
}
static inline int64_t test_below(test_rng *r, int64_t n) { return (int64_t)(test_next(r) % (uint64_t)n); }
static inline double test_normal(test_rng *r) {
    const double u = 1.0 - test_uniform(r), v = test_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* A router of a few random centroids, and an index in which random keys are, for calls of any
   method: as a.buckets. Keys and centroids depend on shapes alone. */
typedef struct test_router { santa_buckets *r; float *centroids; } test_router;
void test_route(test_router *t, santa_attention *a);
void test_unroute(test_router *t);

#ifdef __cplusplus
}
#endif
#endif
