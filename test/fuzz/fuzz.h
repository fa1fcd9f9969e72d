/* fuzz.h - what the fuzz targets share: bytes as a source of choices, memory between guard
   pages, seeds, and a driver.

   A target is a function from a byte string to 1 when all was right, else 0. It lives three
   lives:
   - in the test program (test_fuzz.c includes every target), for a moment;
   - as a program of its own, anywhere; files are run, one by one:
         cc -O1 test/fuzz/api.c test/impl.c -lm -o api
         api [--seconds N] [--seed N] [--write-seeds DIRECTORY] [file ...]
   - as a libFuzzer target, see .ci/run:
         clang -DSANTA_LIBFUZZER -fsanitize=fuzzer,address,undefined test/fuzz/api.c test/impl.c
         -lm
   Without the test program's harness a failed check prints where and why and aborts. */
#ifndef SANTA_FUZZ_H
#define SANTA_FUZZ_H

#if (defined(__unix__) || defined(__APPLE__)) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE                                       /* getpid and MAP_ANONYMOUS under -std=c99 */
#endif
#include "../harness.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#define FUZZ_PROCESS ((long)getpid())
#else
#define FUZZ_PROCESS 0L
#endif

#if defined(__SANITIZE_ADDRESS__)
#define FUZZ_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_ASAN
#endif
#endif
#ifdef FUZZ_ASAN
#include <sanitizer/asan_interface.h>
#endif

typedef struct fuzz_target {
    const char *name;
    int    (*run)(const uint8_t *data, size_t size);
    size_t (*seed)(int number, uint8_t *data, size_t capacity); /* bytes of seed 0, 1, ..; 0: no more */
} fuzz_target;

enum { FUZZ_MAX_INPUT = 1 << 16 };

/* ------------------------------------------------------------ bytes to values */

typedef struct fuzz_source { const uint8_t *data; size_t left; } fuzz_source;

static inline uint64_t fuzz_take(fuzz_source *s, int bytes) { /* zeros after the end */
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++)
        if (s->left) {
            x = x << 8 | *s->data++;
            s->left--;
        }
    return x;
}
static inline int64_t fuzz_below(fuzz_source *s, int64_t n) {
    return (int64_t)(fuzz_take(s, n > 65536 ? 4 : n > 256 ? 2 : 1) % (uint64_t)n);
}
static inline int64_t fuzz_between(fuzz_source *s, int64_t a, int64_t b) {
    return a + fuzz_below(s, b - a + 1);
}
static inline int fuzz_chance(fuzz_source *s, int one_in) { return fuzz_below(s, one_in) == one_in - 1; }

static inline int64_t fuzz_wild_int(fuzz_source *s) {
    static const int64_t values[] = {
        0, 1, -1, 2, -2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 192, 255,
        256, 257, 512, 1000, 1024, 4096, 65535, 65536, 65537, SANTA_MAX_SAMPLES, SANTA_MAX_SAMPLES + 1,
        INT32_MAX - 1, INT32_MAX, INT32_MIN, (int64_t)INT32_MAX + 1, (int64_t)1 << 32, (int64_t)1 << 33,
        (int64_t)1 << 40, (int64_t)1 << 61, (int64_t)1 << 62, INT64_MAX / 8, INT64_MAX / 4, INT64_MAX / 2,
        INT64_MAX - 63, INT64_MAX - 1, INT64_MAX, INT64_MIN / 2, INT64_MIN + 1, INT64_MIN
    };
    if (fuzz_chance(s, 4)) {
        const uint64_t bits = fuzz_take(s, 8);
        int64_t x;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    return values[fuzz_below(s, (int64_t)(sizeof values / sizeof *values))];
}

static inline int32_t fuzz_wild_int32(fuzz_source *s) {
    const int64_t x = fuzz_wild_int(s);
    return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : (int32_t)x;
}

static inline double fuzz_wild_double(fuzz_source *s) {
    static const double values[] = {
        0.0, -0.0, 1.0, -1.0, 0.5, 0.05, 0.215, 0.999999999, 1.0000001, 2.0, 100.0, -100.0, 1e-9, 1e-38,
        1e-300, 4.9e-324, 3e38, 1e300, -1e300
    };
    const int64_t n = (int64_t)(sizeof values / sizeof *values), i = fuzz_below(s, n + 4);
    if (i < n) return values[i];
    uint64_t bits = 0x7ff0000000000000u;                      /* infinity, its negative, NaN, anything */
    if (i == n + 1) bits |= 0x8000000000000000u;
    if (i == n + 2) bits |= 0x0008000000000000u;
    if (i == n + 3) bits = fuzz_take(s, 8);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A float or NaN or infinity; the cast of a double past FLT_MAX would be undefined. */
static inline float fuzz_wild_float(fuzz_source *s) {
    const double x = fuzz_wild_double(s);
    if (fabs(x) <= 3.4e38) return (float)x;
    const uint32_t bits = (x > 0.0 ? 0x7f800000u : x < 0.0 ? 0xff800000u : 0x7fc00000u);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline void fuzz_wild_enum(fuzz_source *s, void *field, int count) {
    const int value = fuzz_chance(s, 3) ? fuzz_wild_int32(s) : (int)fuzz_below(s, count);
    memcpy(field, &value, sizeof value);
}

static inline int fuzz_is_finite(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) < 0x7f800000u;
}

/* ------------------------------------------------------------ guarded memory */

/* A few areas, each between unreadable pages, lie ready: mapping afresh for every input would
   be most of the time. */
#ifndef FUZZ_AREA_BITS
#define FUZZ_AREA_BITS 22
#endif
enum {
    FUZZ_AREAS = 41, FUZZ_AREA = 1 << FUZZ_AREA_BITS, FUZZ_GUARD = 1 << 16, FUZZ_MARGIN = 256,
    FUZZ_CANARY = 0xc5
};

typedef struct fuzz_area { unsigned char *memory; size_t at, bytes; int mapped; } fuzz_area;

static fuzz_area fuzz_areas[FUZZ_AREAS];

/* bytes <= FUZZ_AREA of area i, filled with poison: they end at the guard behind the area, or
   begin at the one before it. Beyond their other end lie canaries; under ASan nothing beside
   them may be touched at all. */
static inline void *fuzz_memory(int i, size_t bytes, int at_end, int poison) {
    fuzz_area *a = &fuzz_areas[i];
    if (!a->memory) {
#if defined(__unix__) || defined(__APPLE__)
        void *map = mmap(NULL, FUZZ_AREA + 2 * FUZZ_GUARD, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) { printf("no memory to map\n"); exit(2); }
        a->memory = (unsigned char *)map + FUZZ_GUARD;
        if (mprotect(map, FUZZ_GUARD, PROT_NONE) != 0 ||
            mprotect(a->memory + FUZZ_AREA, FUZZ_GUARD, PROT_NONE) != 0) {
            printf("cannot protect memory\n");
            exit(2);
        }
#else
        a->memory = (unsigned char *)test_alloc(FUZZ_AREA + 2 * FUZZ_GUARD) + FUZZ_GUARD;
#endif
    }
    if (bytes > FUZZ_AREA) { printf("area %d: %lu bytes asked for\n", i, (unsigned long)bytes); exit(2); }
#ifdef FUZZ_ASAN
    if (!a->mapped) __asan_poison_memory_region(a->memory, FUZZ_AREA);
    else            __asan_poison_memory_region(a->memory + a->at, a->bytes);
    a->mapped = 1;
    a->at     = at_end ? FUZZ_AREA - bytes : 0;
    __asan_unpoison_memory_region(a->memory + a->at, bytes);
#else
    a->at = at_end ? FUZZ_AREA - bytes : 0;
    const size_t before = a->at < FUZZ_MARGIN ? a->at : (size_t)FUZZ_MARGIN,
                 behind = FUZZ_AREA - a->at - bytes;
    memset(a->memory + a->at - before, FUZZ_CANARY, before);
    memset(a->memory + a->at + bytes, FUZZ_CANARY, behind < FUZZ_MARGIN ? behind : (size_t)FUZZ_MARGIN);
#endif
    a->bytes = bytes;
    memset(a->memory + a->at, poison, bytes);
    return a->memory + a->at;
}

/* Whether the canaries beside area i are whole. */
static inline int fuzz_memory_whole(int i) {
    const fuzz_area *a = &fuzz_areas[i];
    int whole = 1;
#ifndef FUZZ_ASAN
    for (size_t k = 1; k <= FUZZ_MARGIN && k <= a->at; k++) whole &= a->memory[a->at - k] == FUZZ_CANARY;
    for (size_t k = a->at + a->bytes; k < a->at + a->bytes + FUZZ_MARGIN && k < FUZZ_AREA; k++)
        whole &= a->memory[k] == FUZZ_CANARY;
#else
    (void)a;
#endif
    return whole;
}

/* ------------------------------------------------------------ files */

/* A file of this process's own that holds these bytes; its name, until the next call. */
static inline const char *fuzz_file(const void *data, size_t size) {
    static char path[300];
    const char *directory = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/santa_fuzz_%ld", directory ? directory : "/tmp", FUZZ_PROCESS);
    FILE *f = fopen(path, "wb");
    if (!f) {                                                 /* no /tmp: here, then */
        snprintf(path, sizeof path, "santa_fuzz_%ld", FUZZ_PROCESS);
        f = fopen(path, "wb");
    }
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        printf("cannot write %s\n", path);
        exit(2);
    }
    return path;
}

/* Little-endian, whatever the machine is. */
typedef struct fuzz_bytes { uint8_t *data; size_t size, capacity; } fuzz_bytes;

static inline void fuzz_put(fuzz_bytes *b, const void *data, size_t n) {
    if (b->size + n > b->capacity) n = b->capacity - b->size;
    memcpy(b->data + b->size, data, n);
    b->size += n;
}
static inline void fuzz_put_u32(fuzz_bytes *b, uint32_t x) {
    const uint8_t bytes[4] = {(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
    fuzz_put(b, bytes, 4);
}
static inline void fuzz_put_f32(fuzz_bytes *b, float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    fuzz_put_u32(b, x);
}

/* ------------------------------------------------------------ inputs */

/* Changes to a seed, as fuzzers make them: bytes, words of extreme value, parts taken out,
   copied or put in, an end cut off. */
static inline size_t fuzz_change(test_rng *r, uint8_t *data, size_t size, size_t capacity) {
    for (int64_t turn = test_below(r, 6); turn > 0 && size > 0; turn--) {
        const size_t at = (size_t)test_below(r, (int64_t)size), left = size - at;
        uint8_t noise[24];
        for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)test_next(r);
        fuzz_source s = {noise, sizeof noise};
        size_t n = 1 + (size_t)test_below(r, test_below(r, 2) ? 16 : (int64_t)size);
        if (n > left) n = left;
        switch (test_below(r, 8)) {
        case 0: data[at] = noise[0]; break;
        case 1: data[at] = (uint8_t)(data[at] ^ 1u << noise[0] % 8); break;
        case 2: case 3: {
            fuzz_bytes b = {data, at - at % 4, size};
            fuzz_put_u32(&b, (uint32_t)fuzz_wild_int32(&s));
            break;
        }
        case 4: size = at; break;
        case 5: memmove(data + at, data + at + n, left - n); size -= n; break;
        case 6:
            if (size + n > capacity) break;
            memmove(data + at + n, data + at, left);
            size += n;
            break;
        default: memmove(data + test_below(r, (int64_t)(size - n + 1)), data + at, n); break;
        }
    }
    return size;
}

/* Input i of a seed of the random numbers: the target's own seeds, then changes of them. */
static inline size_t fuzz_input(const fuzz_target *t, uint64_t i, uint8_t *data, size_t capacity) {
    static const fuzz_target *counted;
    static int seeds;
    if (counted != t) {
        counted = t;
        for (seeds = 0; t->seed(seeds, data, capacity);) seeds++;
    }
    if (i < (uint64_t)seeds) return t->seed((int)i, data, capacity);
    test_rng r = test_rng_make(1000 + i);
    const size_t size = t->seed((int)test_below(&r, seeds), data, capacity);
    return fuzz_change(&r, data, size, capacity);
}

/* Inputs for so many seconds of the processor, at least 20 in any case. 0 when one failed. */
static inline int fuzz_inputs(const fuzz_target *t, double seconds) {
    static uint8_t input[FUZZ_MAX_INPUT];
    const clock_t start = clock();
    uint64_t i;
    for (i = 0; i < 20 || (double)(clock() - start) < seconds * CLOCKS_PER_SEC; i++) {
        const size_t size = fuzz_input(t, i, input, sizeof input);
        if (!t->run(input, size))
            return CHECK_MSG(0, "%s: input %llu with seed %llu", t->name, (unsigned long long)i,
                             (unsigned long long)test_seed);
    }
    printf("    %s: %llu inputs\n", t->name, (unsigned long long)i);
    return 1;
}

/* Bytes that a random generator gives, for targets whose input is a list of choices. */
static inline size_t fuzz_random_seed(int number, int numbers, uint8_t *data, size_t size) {
    test_rng r = test_rng_make(77 + (uint64_t)number);
    for (size_t i = 0; i < size; i++) data[i] = (uint8_t)test_next(&r);
    return number < numbers ? size : 0;
}

/* ------------------------------------------------------------ programs */

#ifdef FUZZ_IN_SUITE

#define FUZZ_TARGET(target, one, seeds) static const fuzz_target target = {#target, one, seeds}

#else

#ifdef __cplusplus
#define FUZZ_C extern "C"
#else
#define FUZZ_C
#endif

int      test_quick = 0;
uint64_t test_seed  = 1;

int test_check(int ok, const char *file, int line, const char *fmt, ...) {
    if (ok) return 1;
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}
int test_check_int(long long got, long long want, const char *expr, const char *file, int line) {
    return test_check(got == want, file, line, "%s: got %lld, want %lld", expr, got, want);
}
int test_check_near(double got, double want, double abs_tol, double rel_tol, const char *expr,
                    const char *file, int line) {
    return test_check(got == want || fabs(got - want) <= abs_tol + rel_tol * fabs(want), file, line,
                      "%s: got %.9g, want %.9g, tolerance %g + %g relative", expr, got, want, abs_tol,
                      rel_tol);
}
int test_check_status(santa_status got, santa_status want, const char *expr, const char *file, int line) {
    return test_check(got == want, file, line, "%s: got \"%s\", want \"%s\"", expr,
                      santa_status_string(got), santa_status_string(want));
}
void *test_alloc(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

static int fuzz_write_seeds(const fuzz_target *t, const char *directory) {
    static uint8_t input[FUZZ_MAX_INPUT];
    size_t size;
    for (int i = 0; (size = t->seed(i, input, sizeof input)) != 0; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s%d", directory, t->name, i);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(input, 1, size, f) != size || fclose(f) != 0) { perror(path); return 1; }
    }
    return 0;
}

#ifdef SANTA_LIBFUZZER

/* libFuzzer's main; `--write-seeds DIRECTORY` first of all arguments is ours. */
#define FUZZ_TARGET(target, one, seeds)                                                                    \
    static const fuzz_target target = {#target, one, seeds};                                               \
    FUZZ_C int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);                                   \
    FUZZ_C int LLVMFuzzerInitialize(int *argc, char ***argv);                                              \
    FUZZ_C int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {                                  \
        target.run(data, size);                                                                            \
        return 0;                                                                                          \
    }                                                                                                      \
    FUZZ_C int LLVMFuzzerInitialize(int *argc, char ***argv) {                                             \
        if (*argc == 3 && !strcmp((*argv)[1], "--write-seeds"))                                            \
            exit(fuzz_write_seeds(&target, (*argv)[2]));                                                   \
        return 0;                                                                                          \
    }                                                                                                      \
    typedef int fuzz_semicolon

#else

static int fuzz_main(const fuzz_target *t, int argc, char **argv) {
    static uint8_t input[FUZZ_MAX_INPUT];
    double seconds = 5.0;
    int    files   = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc)          seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc) test_seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--write-seeds") && i + 1 < argc) return fuzz_write_seeds(t, argv[++i]);
        else if (argv[i][0] == '-') {
            printf("%s [--seconds N] [--seed N] [--write-seeds DIRECTORY] [file ...]\n", argv[0]);
            return !!strcmp(argv[i], "--help");
        } else {
            FILE *f = fopen(argv[i], "rb");
            if (!f) { perror(argv[i]); return 1; }
            const size_t size = fread(input, 1, sizeof input, f);
            fclose(f);
            t->run(input, size);
            files++;
        }
    }
    if (!files) fuzz_inputs(t, seconds);
    return 0;
}

#define FUZZ_TARGET(target, one, seeds)                                                                   \
    static const fuzz_target target = {#target, one, seeds};                                              \
    int main(int argc, char **argv) { return fuzz_main(&target, argc, argv); }                            \
    typedef int fuzz_semicolon

#endif
#endif
#endif
