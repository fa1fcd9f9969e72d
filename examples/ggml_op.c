/* santa as an operation of ggml, on ggml's own cache, and tried against ggml_flash_attn_ext.
   Wants ggml's headers and libraries, as libggml-dev or an installed build of ggml has them.
   Build: make build/ggml_op, which also tells the program where an installed ggml's libraries
   are, or cc -O2 examples/ggml_op.c $(pkg-config --cflags --libs ggml) -lggml-base -lm
   With --bench: times at 32k keys, minutes. */
#define _POSIX_C_SOURCE 200809L
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <ggml-backend.h>
#include <ggml.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------ the operation: take this part */

/* ggml runs a custom operation once on each of its threads. Thread 0 makes the call of santa;
   the others are its team and take tasks that it hands out. One team and one workspace serve
   all layers of a graph, as these run one after the other. */
typedef struct santa_team {
    int            threads;            /* the most that ggml will use: set this */
    void          *workspace;          /* grows as layers are made; free it at the end */
    size_t         workspace_bytes;
    santa_task     task;
    void          *context;
    atomic_ullong  open;               /* number of the round << 32 | its tasks that nobody has taken */
    atomic_llong   undone;             /* its tasks that are not done */
    atomic_int     over, gone;         /* no more rounds in this operation; helpers that know */
} santa_team;

/* One layer. a: what is to hold beside q, k, v and out: causal, seq_lens, window, soft_cap,
   ... */
typedef struct santa_layer {
    santa_attention a;
    santa_options   o;
    santa_team     *team;
    santa_status    status;            /* of the last run */
} santa_layer;

/* Spins for a short while, as ggml's own barriers do, then lets others have the core. */
static void team_wait(int spins) {
    if (spins > 2000) sched_yield();
}

/* Runs a task, if there is one. While it is not done its round is not over: task and context
   are those of the round. */
static int team_take(santa_team *t) {
    unsigned long long open = atomic_load(&t->open);
    while (open & 0xffffffff)
        if (atomic_compare_exchange_weak(&t->open, &open, open - 1)) {
            t->task(t->context, (int64_t)(open & 0xffffffff) - 1);
            atomic_fetch_sub(&t->undone, 1);
            return 1;
        }
    return 0;
}

/* santa_options.parallel_for */
static void team_run(void *user, int64_t count, santa_task task, void *context) {
    santa_team *t = (santa_team *)user;
    t->task = task;
    t->context = context;
    atomic_store(&t->undone, count);
    atomic_store(&t->open, ((atomic_load(&t->open) >> 32) + 1) << 32 | (unsigned long long)count);
    while (team_take(t)) { }
    for (int spins = 0; atomic_load(&t->undone) > 0; spins++) team_wait(spins);
}

static void team_help(santa_team *t) {
    for (int spins = 0; !atomic_load(&t->over);) {
        if (team_take(t)) spins = 0;
        else team_wait(spins++);
    }
    atomic_fetch_add(&t->gone, 1);
}

/* Returns when no helper is left: the next operation may begin. */
static void team_dismiss(santa_team *t, int helpers) {
    atomic_store(&t->over, 1);
    for (int spins = 0; atomic_load(&t->gone) < helpers; spins++) team_wait(spins);
    atomic_store(&t->gone, 0);
    atomic_store(&t->over, 0);
}

/* ggml counts from the innermost dimension, and strides in bytes: of blocks, where there are
   any. */
static santa_tensor santa_from_ggml(const struct ggml_tensor *t, int batch, int rows, int heads) {
    const int   from[4] = { batch, rows, heads, 0 };
    const int64_t block = ggml_blck_size(t->type);
    santa_tensor view;
    view.data = t->data;
    view.device = SANTA_CPU;
    view.dtype = t->type == GGML_TYPE_F32 ? SANTA_F32 : t->type == GGML_TYPE_F16 ? SANTA_F16 :
                 t->type == GGML_TYPE_BF16 ? SANTA_BF16 : t->type == GGML_TYPE_Q8_0 ? SANTA_Q8_0 :
                 t->type == GGML_TYPE_Q4_0 ? SANTA_Q4_0 :
                 (santa_dtype)99;                                              /* santa_check refuses it */
    for (int i = 0; i < 4; i++) {
        view.shape[i] = t->ne[from[i]];
        view.stride[i] = (int64_t)(t->nb[from[i]] / ggml_type_size(t->type)) * (i == 3 ? 1 : block);
    }
    return view;
}

static void santa_layer_bind(santa_layer *layer, const struct ggml_tensor *out, const struct ggml_tensor *q,
                             const struct ggml_tensor *k, const struct ggml_tensor *v) {
    layer->a.q = santa_from_ggml(q, 3, 1, 2);
    layer->a.k = santa_from_ggml(k, 3, 1, 2);
    layer->a.v = santa_from_ggml(v, 3, 1, 2);
    layer->a.out = santa_from_ggml(out, 3, 2, 1);
    layer->o.parallel_for = team_run;
    layer->o.parallel_user = layer->team;
}

static void santa_layer_run(struct ggml_tensor *out, int thread, int threads, void *user) {
    santa_layer *layer = (santa_layer *)user;
    santa_team  *t = layer->team;
    if (thread > 0) { team_help(t); return; }
    santa_layer_bind(layer, out, out->src[0], out->src[1], out->src[2]);
    layer->o.num_threads = threads;
    layer->status = santa_decode(&layer->a, &layer->o, t->workspace, t->workspace_bytes, NULL);
    /* an operation returns no error: NaN */
    if (layer->status != SANTA_OK) memset(out->data, 0xff, ggml_nbytes(out));
    team_dismiss(t, threads - 1);
}

/* Takes the place of ggml_flash_attn_ext(ctx, q, k, v, mask, ..): q [head_dim, q_len, heads,
   batch], k and v [head_dim, keys, kv_heads, batch], as views with any strides; result
   [head_dim, heads, q_len, batch]. For the mask set layer->a.seq_lens and .causal. layer must
   live as long as the graph. */
static struct ggml_tensor *santa_ggml(struct ggml_context *ctx, struct ggml_tensor *q,
                                      struct ggml_tensor *k, struct ggml_tensor *v, santa_layer *layer) {
    struct ggml_tensor *args[3] = { q, k, v };
    struct ggml_tensor *out = ggml_custom_4d(ctx, GGML_TYPE_F32, v->ne[0], q->ne[2], q->ne[1], q->ne[3],
                                             args, 3, santa_layer_run, GGML_N_TASKS_MAX, layer);
    santa_layer_bind(layer, out, q, k, v);
    for (layer->o.num_threads = 1; layer->o.num_threads <= layer->team->threads; layer->o.num_threads++) {
        const size_t bytes = santa_workspace_size(&layer->a, &layer->o);
        if (bytes <= layer->team->workspace_bytes) continue;
        free(layer->team->workspace);
        layer->team->workspace = malloc(bytes);
        layer->team->workspace_bytes = layer->team->workspace ? bytes : 0;
    }
    return out;
}

/* ------------------------------------------------------------ the trial */

enum { DIM = 128, HEADS = 32, KV_HEADS = 8, GROUP = HEADS / KV_HEADS, MAX_ROWS = 2, MASK_ROWS = 64 };

static void fail(const char *what) { fprintf(stderr, "%s\n", what); exit(1); }

/* A cache of one layer, token by token, with two graphs: ggml's attention and ours. */
typedef struct trial {
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *q, *k, *v, *mask, *ours, *theirs;
    struct ggml_cgraph *our_graph, *their_graph;
    santa_layer layer;
    santa_team *team;
} trial;

static ggml_backend_t            backend;
static ggml_backend_set_n_threads_t set_threads;

static struct ggml_tensor *heads_outside(struct ggml_context *ctx, struct ggml_tensor *t) {
    return ggml_permute(ctx, t, 0, 2, 1, 3);
}

static struct ggml_cgraph *graph_of(struct ggml_context *ctx, struct ggml_tensor *result) {
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, result);
    return graph;
}

/* keys: room in the cache, a multiple of 256; used of them have been written. */
static void trial_make(trial *t, santa_team *team, enum ggml_type type, int64_t keys, int64_t rows) {
    const struct ggml_init_params memory = { (size_t)1 << 20, NULL, true };
    struct ggml_context *ctx = t->ctx = ggml_init(memory);
    t->q    = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, DIM, HEADS, rows);
    t->k    = ggml_new_tensor_3d(ctx, type, DIM, KV_HEADS, keys);
    t->v    = ggml_new_tensor_3d(ctx, type, DIM, KV_HEADS, keys);
    t->mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, keys, MASK_ROWS);
    {
        struct ggml_tensor *q = heads_outside(ctx, t->q), *k = heads_outside(ctx, t->k),
                           *v = heads_outside(ctx, t->v);
        memset(&t->layer, 0, sizeof t->layer);
        t->layer.team = team;
        t->layer.a.causal = 1;
        t->theirs = ggml_flash_attn_ext(ctx, q, k, v, t->mask, 1.0f / sqrtf((float)DIM), 0.0f, 0.0f);
        t->ours   = santa_ggml(ctx, q, k, v, &t->layer);
        t->layer.o.method = SANTA_SYS;                       /* which wants more workspace than dense */
        t->ours   = santa_ggml(ctx, q, k, v, &t->layer);
    }
    t->our_graph   = graph_of(ctx, t->ours);
    t->their_graph = graph_of(ctx, t->theirs);
    t->buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (!t->buffer) fail("out of memory");
}

static void trial_free(trial *t) {
    ggml_backend_buffer_free(t->buffer);
    ggml_free(t->ctx);
}

/* Fills the cache and the mask, for rows of which the last sees all used keys. */
static void trial_fill(trial *t, int64_t used, uint64_t seed) {
    const int64_t keys = t->mask->ne[0], rows = t->q->ne[2];
    const size_t  bytes = sizeof(float) * (size_t)(keys * KV_HEADS * DIM);
    float *q = (float *)t->q->data, *k = malloc(bytes), *v = malloc(bytes);
    ggml_fp16_t *mask = (ggml_fp16_t *)t->mask->data;
    if (!k || !v) fail("out of memory");
    for (int64_t i = 0; i < rows; i++)
        data_sequence(q + i * HEADS * DIM, k, v, keys, HEADS, KV_HEADS, DIM, seed + (uint64_t)i);
    ggml_quantize_chunk(t->k->type, k, t->k->data, 0, keys * KV_HEADS, DIM, NULL);
    ggml_quantize_chunk(t->v->type, v, t->v->data, 0, keys * KV_HEADS, DIM, NULL);
    for (int64_t i = 0; i < MASK_ROWS; i++)
        for (int64_t j = 0; j < keys; j++)
            mask[i * keys + j] = ggml_fp32_to_fp16(j < used - rows + 1 + i ? 0.0f : -INFINITY);
    free(k);
    free(v);
}

static void compute(struct ggml_cgraph *graph, int threads) {
    set_threads(backend, threads);
    const enum ggml_status status = ggml_backend_graph_compute(backend, graph);
    if (status != GGML_STATUS_SUCCESS) fail("ggml cannot compute the graph");
}

/* Numbers of one key or value in f32. */
static void row_of(const struct ggml_tensor *t, int64_t key, int64_t kv_head, float *x) {
    const char *row = (const char *)t->data + (size_t)key * t->nb[2] + (size_t)kv_head * t->nb[1];
    ggml_get_type_traits(t->type)->to_float(row, x, DIM);
}

/* Softmax attention of one query row and head in double, over the first n numbers as stored. */
static void reference_row(const trial *t, int64_t row, int64_t head, int64_t n, double *out) {
    const float *q = (const float *)t->q->data + (row * HEADS + head) * DIM;
    double largest = -INFINITY, sum = 0, *p = malloc(sizeof *p * (size_t)n);
    float x[DIM];
    if (!p) fail("out of memory");
    for (int64_t j = 0; j < n; j++) {
        row_of(t->k, j, head / GROUP, x);
        p[j] = 0;
        for (int f = 0; f < DIM; f++) p[j] += (double)q[f] * (double)x[f];
        p[j] /= sqrt((double)DIM);
        if (p[j] > largest) largest = p[j];
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - largest);
    memset(out, 0, sizeof *out * DIM);
    for (int64_t j = 0; j < n; j++) {
        row_of(t->v, j, head / GROUP, x);
        for (int f = 0; f < DIM; f++) out[f] += p[j] / sum * (double)x[f];
    }
    free(p);
}

/* |got - exact| / |exact| over all heads. */
static double distance(const float *got, const double *exact, int64_t count) {
    double off = 0, all = 0;
    for (int64_t i = 0; i < count; i++) {
        const double difference = (double)got[i] - exact[i];
        off += difference * difference;
        all += exact[i] * exact[i];
    }
    return sqrt(off / all);
}

static int wrong;
static void expect(int ok, const char *what) {
    printf("  %s: %s\n", ok ? "ok" : "WRONG", what);
    wrong += !ok;
}

/* Ours and theirs against the reference, and our bits for each number of threads. */
static void try_type(santa_team *team, enum ggml_type type, int64_t rows) {
    enum { KEYS = 1024, USED = 1000, COUNT = MAX_ROWS * HEADS * DIM, SEEDS = 64 };
    static double exact[COUNT];
    static float first[COUNT], mean[COUNT];
    const int64_t count = rows * HEADS * DIM;
    const int32_t used = USED;
    trial t;
    trial_make(&t, team, type, KEYS, rows);
    trial_fill(&t, USED, 3);
    for (int64_t i = 0; i < rows * HEADS; i++)
        reference_row(&t, i / HEADS, i % HEADS, USED - rows + 1 + i / HEADS, exact + i * DIM);
    t.layer.a.seq_lens = &used;
    printf("%s, %d of %d keys, %d query rows; distance to attention in float64:\n",
           ggml_type_name(type), USED, KEYS, (int)rows);
    compute(t.their_graph, 2);
    const double theirs = distance((const float *)t.theirs->data, exact, count);
    t.layer.o.method = SANTA_DENSE;
    compute(t.our_graph, 2);
    const double dense = distance((const float *)t.ours->data, exact, count);
    printf("  ggml_flash_attn_ext %.2g, dense %.2g\n", theirs, dense);
    expect(t.layer.status == SANTA_OK && dense < 1e-5, "dense is exact");
    expect(theirs < 2e-2, "both read the same cache");

    t.layer.o.method = SANTA_SYS;
    int same = 1;
    for (int threads = 1; threads <= team->threads; threads++) {
        compute(t.our_graph, threads);
        if (threads == 1) memcpy(first, t.ours->data, sizeof *first * (size_t)count);
        else same &= memcmp(first, t.ours->data, sizeof *first * (size_t)count) == 0;
        if (t.layer.status != SANTA_OK) fail(santa_status_string(t.layer.status));
    }
    const double once = distance(first, exact, count);
    for (t.layer.o.seed = 0; t.layer.o.seed < SEEDS; t.layer.o.seed++) {
        compute(t.our_graph, 2);
        for (int64_t i = 0; i < count; i++)
            mean[i] = (t.layer.o.seed ? mean[i] : 0.0f) + ((const float *)t.ours->data)[i] / (float)SEEDS;
    }
    printf("  sys, 128 draws: %.2g, mean of %d calls %.2g\n", once, SEEDS, distance(mean, exact, count));
    expect(same, "sys has the same bits on any number of ggml's threads");
    expect(distance(mean, exact, count) < once / 4, "sys is unbiased");

    t.layer.o.num_samples = -5;
    compute(t.our_graph, 2);
    expect(t.layer.status == SANTA_ERR_NUM_SAMPLES && isnan(((const float *)t.ours->data)[0]),
           "an error is NaN, and has a status");
    trial_free(&t);
}

/* ------------------------------------------------------------ --bench */

enum { ROUNDS = 31, LAYERS = 2, MOST = 5 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Least, median and 90 % of time, and how many times as fast as base: by the least times, and
   10 to 90 % of what single rounds say. */
static void print_row(const char *name, const double *time, const double *base) {
    double sorted[ROUNDS], ratio[ROUNDS], least = base[0];
    for (int i = 0; i < ROUNDS; i++) {
        sorted[i] = time[i];
        ratio[i] = base[i] / time[i];
        if (base[i] < least) least = base[i];
    }
    qsort(sorted, ROUNDS, sizeof *sorted, by_value);
    qsort(ratio, ROUNDS, sizeof *ratio, by_value);
    printf("%-22s %8.3f %8.3f %8.3f %7.1fx (%.1f .. %.1f)\n", name, sorted[0], sorted[ROUNDS / 2],
           sorted[ROUNDS * 9 / 10], least / sorted[0], ratio[ROUNDS / 10], ratio[ROUNDS * 9 / 10]);
}

/* One decode step over LAYERS caches in turn, each method once in every round; ms of a
   layer. */
static void bench(santa_team *team, enum ggml_type type, int64_t keys) {
    const struct { const char *name; santa_method method; santa_scores_method scores; } methods[MOST] = {
        { "ggml_flash_attn_ext",    SANTA_DENSE, SANTA_SCORES_EXACT },           /* the first is theirs */
        { "santa dense",            SANTA_DENSE, SANTA_SCORES_EXACT },
        { "santa sys 128",          SANTA_SYS,   SANTA_SCORES_EXACT },
        { "santa dense, 8-bit q",   SANTA_DENSE, SANTA_SCORES_Q8 },
        { "santa sys 128, 8-bit q", SANTA_SYS,   SANTA_SCORES_Q8 },
    };
    static double time[MOST][ROUNDS];
    const int count = type == GGML_TYPE_Q8_0 ? MOST : 3;
    trial t[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        trial_make(&t[i], team, type, keys, 1);
        trial_fill(&t[i], keys, (uint64_t)i);
    }
    for (int threads = 1; threads <= 2; threads++) {
        for (int round = -1; round < ROUNDS; round++)
            for (int m = 0; m < count; m++) {
                const double start = seconds();
                for (int i = 0; i < LAYERS; i++) {
                    t[i].layer.o.method = methods[m].method;
                    t[i].layer.o.scores = methods[m].scores;
                    compute(m ? t[i].our_graph : t[i].their_graph, threads);
                    if (m && t[i].layer.status != SANTA_OK) fail(santa_status_string(t[i].layer.status));
                }
                if (round >= 0) time[m][round] = (seconds() - start) / LAYERS * 1e3;
            }
        for (int m = 0; m < count; m++) {
            printf("%6d  %-5s %d  ", (int)keys, ggml_type_name(type), threads);
            print_row(methods[m].name, time[m], time[0]);
        }
        fflush(stdout);
    }
    for (int i = 0; i < LAYERS; i++) trial_free(&t[i]);
}

int main(int argc, char **argv) {
    santa_team team;
    memset(&team, 0, sizeof team);
    team.threads = 3;
    ggml_backend_load_all();
    backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (!backend) fail("ggml has no CPU backend");
    /* a function pointer that comes as a pointer to data */
    const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    void *found = ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (!found) fail("this ggml has no ggml_backend_set_n_threads");
    memcpy(&set_threads, &found, sizeof set_threads);
    if (argc == 2 && !strcmp(argv[1], "--bench")) {
        printf("  keys  type  T  %-22s %8s %8s %8s %8s\n", "ms, interleaved", "least", "median", "90 %",
               "times as fast as ggml");
        bench(&team, GGML_TYPE_F16, 32768);
        bench(&team, GGML_TYPE_Q8_0, 32768);
        bench(&team, GGML_TYPE_Q4_0, 32768);
    } else if (argc == 1) {
        try_type(&team, GGML_TYPE_F16, 1);
        try_type(&team, GGML_TYPE_Q8_0, 1);
        try_type(&team, GGML_TYPE_Q4_0, 1);
        try_type(&team, GGML_TYPE_F16, MAX_ROWS);
    } else {
        const int help = argc == 2 && !strcmp(argv[1], "--help");
        fprintf(help ? stdout : stderr,
                "santa as an operation of ggml, on ggml's cache and threads, against its own\n"
                "attention: errors, bits and statuses. --bench: times at 32k keys, minutes.\n");
        return !help;
    }
    free(team.workspace);
    ggml_backend_free(backend);
    return wrong ? 1 : 0;
}
