/* Two versions of santa.h, timed in one process and in turns, so that what else the machine
   does hits both alike.
     make bench-compare OLD=path/to/santa.h    that one against this folder's: 80 cells, 5 minutes
     make bench-compare OLD=8008b0f QUICK=1    that of a git revision; 10 seconds
     make bench-compare ISA=avx2               OLD is HEAD if not given
     make bench-compare NEW=HEAD OLD=HEAD      one against itself: what is noise
     make bench-compare DIM=80                 of another head_dim, 128 if not given
     build/compare/compare --heads 64/8        of other heads
     build/compare/compare --samples 2048      of more draws, or top keys
     build/compare/compare --cpu-time          of one thread on a busy machine
     make bench-compare COPY=1                 what can score by a copy of K in 4 bits, so
     build/compare/compare --help              all options
   Prints CSV: medians of the times, the median over the rounds of new / old with its quartiles,
   and whether both gave the same bits. One decode step, batch 1, 32 query heads on 8 KV heads,
   Gaussian data; the query is f32, to bf16 K bf16. Every timed call works on the
   next window of an arena several times the last-level cache, so K and V come from memory;
   with --quick there is one window. */
#define _DEFAULT_SOURCE
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include <inttypes.h>
#include "bench.h"
#include "program.h"
#include "compare.h"

enum { MOST_HEADS = 64, MIN_ROUNDS = 7, MAX_ROUNDS = 10000, MAX_CELLS = 10000 };

typedef struct method { const char *name; } method;
static const method methods[] = {
#define METHOD(id, name, traits, capacity, needs, draw, phases) { name },
    SANTA_METHOD_LIST(METHOD)
#undef METHOD
};
enum { METHODS = sizeof methods / sizeof *methods };

static struct settings {
    int quick, copy, cpu_time;                       /* copy: score by copies of K */
    int64_t heads, kv_heads, samples;
    unsigned types, layouts, methods;                /* bit i: entry i of the table */
    const isa_name *isa;
    int64_t n[MAX_LIST], threads[MAX_LIST];          /* ascending */
    int n_count, thread_count;
    double seconds;                                  /* for each cell, at least MIN_ROUNDS rounds */
    const char *origin[2];                           /* where the old and the new one come from */
} set;

static const compare_side *const side[2] = { &old_side, &new_side };
static const char *const side_name[2] = { "old", "new" };

static float query[MOST_HEADS * DIM], output[2][MOST_HEADS * DIM], lse[2][MOST_HEADS];
static uint16_t query_bf16[MOST_HEADS * DIM];

/* ------------------------------------------------------------ one cell */

static struct { char *data; size_t size, count; } copies;                /* of K, one for each window */

static void make_copies(const element *e, const layout *l, int64_t n, size_t window) {
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.k = l->k(arena.data, e->dtype, n, set.kv_heads);
    copies.count = arena.bytes / window;
    copies.size = santa_proxy_size(&a);
    if (!copies.size) fail("no copies of this K");
    free(copies.data);
    copies.data = (char *)allocate(copies.size * copies.count);
    for (size_t i = 0; i < copies.count; i++) {
        a.k = l->k(arena.data + i * window, e->dtype, n, set.kv_heads);
        a.proxy = copies.data + i * copies.size;
        if (santa_proxy_encode(&a, 0, n, NULL) != SANTA_OK) fail("no copies of this K");
    }
}

/* K and V: a window. */
static void at_window(compare_call *c, const char *window, size_t bytes) {
    c->k = window;
    c->v = window + bytes / 2;
    if (set.copy) c->copy = copies.data + (size_t)(window - arena.data) / bytes * copies.size;
}

static void decode(const compare_call *c, int s) {
    const char *error = side[s]->decode(c);
    if (error) fail(error);
}

typedef struct result {
    int rounds, same;                                /* same: out and lse have the same bits */
    double off;                                      /* |new - old| / |old| of out */
    double time[2], ratio, low, high;                /* medians; ratio's quartiles */
} result;

/* Both on the same numbers, which also warms up. */
static void check(compare_call *c, result *r) {
    for (int s = 0; s < 2; s++) {
        c->out = output[s];
        c->lse = lse[s];
        decode(c, s);
    }
    r->same = !memcmp(output[0], output[1], sizeof output[0]) && !memcmp(lse[0], lse[1], sizeof lse[0]);
    r->off = santa_relative_l2(output[1], output[0], c->heads * DIM);
}

/* Of the clock, or of the CPU's time for this process. */
static double time_now(void) {
    struct timespec t;
    if (!set.cpu_time) return now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A round times each side once; who is first changes. */
static result measure(compare_call *c, size_t window) {
    static double t[2][MAX_ROUNDS], ratio[MAX_ROUNDS];
    result r;
    int rounds = 0;
    check(c, &r);
    const double start = now();
    for (; rounds < MIN_ROUNDS || (rounds < MAX_ROUNDS && now() - start < set.seconds); rounds++) {
        c->offset = (uint64_t)rounds;
        for (int i = 0; i < 2; i++) {
            const int s = (rounds + i) % 2;
            at_window(c, next_window(window), window);
            const double begin = time_now();
            decode(c, s);
            t[s][rounds] = time_now() - begin;
        }
        ratio[rounds] = t[1][rounds] / t[0][rounds];
    }
    qsort(ratio, (size_t)rounds, sizeof *ratio, by_value);
    for (int s = 0; s < 2; s++) {
        qsort(t[s], (size_t)rounds, sizeof *t[s], by_value);
        r.time[s] = t[s][rounds / 2];
    }
    r.rounds = rounds;
    r.ratio = ratio[rounds / 2];
    r.low = ratio[rounds / 4];
    r.high = ratio[rounds - 1 - rounds / 4];
    return r;
}

static double ratios[MAX_CELLS];
static int cells, same, faster, slower;          /* faster, slower: quartiles on one side of 1 */

static void run_cell(compare_call *c, size_t window) {
    size_t bytes = 0;
    at_window(c, arena.data, window);
    for (int s = 0; s < 2; s++) {
        const char *why = side[s]->refusal(c);
        if (why) {
            printf("# left out: %s %s %s, %s: %s\n", c->type, c->layout, c->method, side_name[s], why);
            return;
        }
        const size_t wanted = side[s]->workspace_size(c);
        if (wanted > bytes) bytes = wanted;
    }
    fprintf(stderr, "\r\033[K%s %s, %s, n %lld, %lld thread%s", c->type, c->layout, c->method,
            (long long)c->n, (long long)c->threads, c->threads == 1 ? "" : "s");
    c->workspace = allocate(bytes);
    c->workspace_bytes = bytes;
    const result r = measure(c, window);
    free(c->workspace);
    if (cells < MAX_CELLS) ratios[cells++] = r.ratio;
    same += r.same;
    faster += r.high < 1.0;
    slower += r.low > 1.0;
    fprintf(stderr, "\r\033[K");
    printf("%s,%s,%s,%lld,%lld,%s,%d,%.6f,%.6f,%.4f,%.4f,%.4f,%s,%.2g\n", c->type, c->layout, c->method,
           (long long)c->n, (long long)c->threads, c->isa, r.rounds, r.time[0] * 1e3, r.time[1] * 1e3,
           r.ratio, r.low, r.high, r.same ? "yes" : "no", r.off);
    fflush(stdout);
}

/* ------------------------------------------------------------ the table */

/* All cells of a type, layout and context. */
static void run_cells(const element *e, const layout *l, int64_t n) {
    const size_t window = 2 * (size_t)bytes_of(e, n * set.kv_heads * DIM);
    if (set.copy) make_copies(e, l, n, window);
    for (int m = 0; m < METHODS; m++)
        for (int t = 0; t < set.thread_count; t++) {
            compare_call c = {
                .type = e->name, .layout = l->name, .method = methods[m].name, .isa = set.isa->name,
                .n = n, .heads = set.heads, .kv_heads = set.kv_heads, .num_samples = set.samples,
                .threads = set.threads[t], .parallel_for = run_tasks,
                .q = e->dtype == SANTA_BF16 ? (const void *)query_bf16 : (const void *)query,
                .out = output[0], .lse = lse[0],
            };
            if (set.methods >> m & 1) run_cell(&c, window);
        }
}

static void run_type(const element *e) {
    const size_t longest = 2 * (size_t)bytes_of(e, set.n[set.n_count - 1] * set.kv_heads * DIM);
    const size_t cold = set.quick ? 0 : 3 * last_level_cache();
    fill_arena(e, longest > cold ? longest : cold);
    for (int l = 0; l < LAYOUTS; l++)
        for (int n = 0; n < set.n_count; n++)
            if (set.layouts >> l & 1) run_cells(e, layouts + l, set.n[n]);
}

static void print_summary(void) {
    qsort(ratios, (size_t)cells, sizeof *ratios, by_value);
    printf("# %d cells, %d with the same bits; new / old: min %.3f, median %.3f, max %.3f\n", cells, same,
           ratios[0], ratios[cells / 2], ratios[cells - 1]);
    printf("# by the quartiles of the rounds' ratios: %d faster, %d slower, %d without a verdict\n", faster,
           slower, cells - faster - slower);
}

/* ------------------------------------------------------------ options */

static void usage(void) {
    printf("  --quick         4096 keys, a fifth of a second for each cell, from one window\n"
           "  --seconds S     for each cell [3]\n"
           "  --n LIST        contexts [4096,32k]\n"
           "  --threads LIST  [1,2]\n"
           "  --heads H/KV    query and KV heads, to 64/64 [32/8]\n"
           "  --samples N     draws, or keys of top-k [128]\n"
           "  --cpu-time      the CPU's time in place of the clock's, for busy machines; one thread\n"
           "  --old TEXT, --new TEXT   where the two come from, for the first lines\n"
           "  --copy          scores by a copy of K in 4 bits; methods pps,top-k,vattention,sys\n"
           "and, of lists one or more, of isa one for all:\n");
    print_names("--types LIST", elements, sizeof *elements, ELEMENTS);
    print_names("--layouts LIST", layouts, sizeof *layouts, LAYOUTS - 1);          /* not in pages */
    print_names("--methods LIST", methods, sizeof *methods, METHODS);
    print_names("--isa NAME", isas, sizeof *isas, ISAS);
}

static void parse(int argc, char **argv) {
    const char *types = "f32,f16,bf16,e4m3,q8_0", *places = "NHD,HND", *names = NULL, *isa = "auto";
    const char *n = NULL, *threads = NULL, *seconds = NULL, *heads = "32/8", *samples = "128";
    const struct { const char *name, **value; } texts[] = {
        { "--types", &types }, { "--layouts", &places }, { "--methods", &names }, { "--isa", &isa },
        { "--n", &n }, { "--heads", &heads }, { "--threads", &threads }, { "--seconds", &seconds },
        { "--samples", &samples }, { "--old", &set.origin[0] }, { "--new", &set.origin[1] },
    };
    for (int i = 1; i < argc; i++) {
        const int quick = !strcmp(argv[i], "--quick"), copy = !strcmp(argv[i], "--copy");
        const int cpu_time = !strcmp(argv[i], "--cpu-time");
        int known = quick || copy || cpu_time;
        set.cpu_time |= cpu_time;
        set.quick |= quick;
        set.copy |= copy;
        for (size_t t = 0; t < sizeof texts / sizeof *texts && !known; t++)
            if (!strcmp(argv[i], texts[t].name) && i + 1 < argc) { *texts[t].value = argv[++i]; known = 1; }
        if (!known && !strcmp(argv[i], "--help")) { usage(); exit(0); }
        if (!known) {
            fprintf(stderr, "%s: ", argv[i]);
            refuse("not an option, or its value is missing");
        }
    }
    set.types = NAMES_IN(types, elements, ELEMENTS);
    set.layouts = NAMES_IN(places, layouts, LAYOUTS - 1);
    if (!names) names = set.copy ? "pps,top-k,vattention,sys" : "dense,sys";
    set.methods = NAMES_IN(names, methods, METHODS);
    set.n_count = numbers_in(n ? n : set.quick ? "4096" : "4096,32k", INT32_MAX, set.n);
    set.thread_count = numbers_in(threads ? threads : set.cpu_time ? "1" : "1,2", MAX_THREADS, set.threads);
    if (sscanf(heads, "%" SCNd64 "/%" SCNd64, &set.heads, &set.kv_heads) != 2 || set.kv_heads < 1
        || set.heads > MOST_HEADS || set.heads < set.kv_heads || set.heads % set.kv_heads)
        refuse("--heads wants H/KV");
    set.samples = atoll(samples);
    if (set.samples < 1 || set.samples > INT32_MAX) refuse("--samples wants a number from 1 on");
    if (set.cpu_time && set.threads[set.thread_count - 1] > 1) refuse("--cpu-time is of one thread");
    set.seconds = seconds ? atof(seconds) : set.quick ? 0.2 : 3.0;
    set.isa = isa_in(isa);
    if (!set.types || !set.layouts || !set.methods || !set.n_count || !set.thread_count)
        refuse("a list is empty");
}

int main(int argc, char **argv) {
    uint64_t state = 1;
    parse(argc, argv);
    start_workers(set.threads[set.thread_count - 1] - 1);
    for (int i = 0; i < MOST_HEADS * DIM; i++) query_bf16[i] = santa_f32_to_bf16(query[i] = gauss(&state));
    print_machine(set.isa->isa);
    printf("# head_dim %d, heads %d/%d%s%s\n", DIM, (int)set.heads, (int)set.kv_heads,
           set.copy ? ", scores by a copy of K in 4 bits" : "", set.cpu_time ? ", CPU time" : "");
    for (int s = 0; s < 2; s++)
        printf("# %s: santa.h %d.%d.%d%s%s\n", side_name[s], side[s]->version / 10000,
               side[s]->version / 100 % 100, side[s]->version % 100, set.origin[s] ? " of " : "",
               set.origin[s] ? set.origin[s] : "");
    printf("type,layout,method,n,threads,isa,rounds,old_ms,new_ms,new_over_old,quartile_1,quartile_3,"
           "same_bits,relative_difference\n");
    for (int i = 0; i < ELEMENTS; i++) if (set.types >> i & 1) run_type(elements + i);
    if (!cells) fail("no cell that both take");
    print_summary();
    return 0;
}
