/* The same bits whatever the batch, layout, page size, threads, item ranges, workspace and tile size of prop; and what
   another instruction set may change. */
#include "reference.h"

#if !defined(_WIN32)
#include <pthread.h>
#define HAVE_PTHREADS 1
#endif

/* One sequence's share of a result: out, lse and std_error. */
typedef struct result { int64_t numbers; float *bits; santa_stats stats; int ok; } result;

static result take(const ref_problem *p) {
    const ref_spec *s = &p->spec;
    const int64_t rows = s->batch * s->q_len * s->heads;
    result r;
    memset(&r, 0, sizeof r);
    r.numbers = rows * (s->head_dim_v + 2);
    r.bits    = ref_floats(r.numbers);
    r.ok      = 1;
    float *at = r.bits;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < s->head_dim_v; c++)
            *at++ = (float)ref_get(&p->a.out, i / (s->q_len * s->heads), i / s->heads % s->q_len, i % s->heads, c);
        *at++ = p->a.lse[i];
        *at++ = p->a.std_error ? p->a.std_error[i] : 0.0f;
    }
    return r;
}

/* The problem of the last call stays built: most of these cases run every method on one problem. */
static ref_problem built;
static int         is_built;

static ref_problem *build(const ref_spec *spec) {
    if (!is_built || memcmp(&built.spec, spec, sizeof *spec)) {
        if (is_built) ref_free(&built);
        ref_build(&built, spec);
        is_built = 1;
    }
    const int64_t rows = spec->batch * spec->q_len * spec->heads;
    for (int64_t i = 0; i < rows; i++) built.lse[i] = built.std_error[i] = test_nan();
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < spec->head_dim_v; c++)
            ref_set(&built.a.out, i / (spec->q_len * spec->heads), i / spec->heads % spec->q_len, i % spec->heads, c,
                    1e30);
    return &built;
}

static int has_std_error(santa_method method) { return method != SANTA_TOP_K && method != SANTA_TOP_P; }

static result decode(const ref_spec *spec, const santa_options *o) {
    result r;
    memset(&r, 0, sizeof r);
    ref_problem *p = build(spec);
    p->a.std_error = has_std_error(o->method) ? p->std_error : NULL;
    santa_stats stats;
    if (ref_run(p, o, &stats)) {
        r = take(p);
        r.stats = stats;
    }
    return r;
}

/* Is `part` the same bits as `whole` from number `from` on? */
static int same(const result *whole, int64_t from, const result *part, const char *what, santa_method method) {
    int64_t i = 0;
    if (!part->ok) return 0;
    while (i < part->numbers && !memcmp(&whole->bits[from + i], &part->bits[i], sizeof(float))) i++;
    if (i == part->numbers) return 1;
    return CHECK_MSG(0, "%s, %s: number %d is %.9g, was %.9g", santa_method_name(method), what, (int)i,
                     (double)part->bits[i], (double)whole->bits[from + i]);
}

static int same_stats(const santa_stats *a, const santa_stats *b) {
    return a->rows == b->rows && a->keys == b->keys && a->k_rows_read == b->k_rows_read &&
           a->k_features_read == b->k_features_read && a->k_features_head == b->k_features_head &&
           a->v_rows_read == b->v_rows_read && a->v_rows_head == b->v_rows_head && a->draws == b->draws &&
           a->tiles == b->tiles && a->tiles_skipped == b->tiles_skipped && a->exact_rows == b->exact_rows;
}

enum { PLAIN, CAUSAL, BF16, BERNOULLI, GROUP_SCORES, SHAPES };

/* Six ragged sequences, and the options for a method. */
static ref_spec shape_spec(int shape, santa_method method, santa_options *o) {
    ref_spec s = ref_spec_make(6, 2, 333, 24);
    s.batch  = 6;
    s.ragged = 1;
    s.gain   = 2.0;
    *o = ref_options(method, 24, 5);
    o->offset = 99;
    o->vattention.sink_tokens = o->vattention.local_tokens = 16;
    o->vattention.epsilon = 0.1;
    switch (shape) {
        case CAUSAL:       s.q_len = 3; s.causal = 1; s.window = 150; s.alibi = s.sinks = 1; s.head_dim = 33; break;
        case BF16:         s.k_type = s.v_type = SANTA_BF16; s.heads = 8; s.head_dim_v = 65; s.soft_cap = 5.0f; break;
        case BERNOULLI:    o->scores = SANTA_SCORES_BERNOULLI_IID; break;
        case GROUP_SCORES: o->scores = SANTA_SCORES_GROUP_STRAT; s.k_type = SANTA_F16; break;
        default: break;
    }
    if (method == SANTA_FLASH) o->tile_size = 32;
    return s;
}

/* Each shape and every method once; then body makes its variations and compares. */
typedef struct setup { ref_spec spec; santa_options o[SANTA_METHOD_COUNT]; result want[SANTA_METHOD_COUNT]; } setup;
typedef void (*body)(const setup *u);
static void for_every_shape(body run) {
    for (int shape = 0; shape < SHAPES; shape++) {
        setup u;
        int ok = 1;
        for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
            u.spec    = shape_spec(shape, (santa_method)m, &u.o[m]);
            u.want[m] = decode(&u.spec, &u.o[m]);
            ok &= u.want[m].ok;
        }
        if (ok) run(&u);
        for (int m = 0; m < SANTA_METHOD_COUNT; m++) free(u.want[m].bits);
    }
    ref_free(&built);
    is_built = 0;
}

static void layouts_body(const setup *u) {
    static const int64_t pages[] = {0, 1, 16, 64, 100};
    char what[64];
    for (int layout = 0; layout < REF_STRIDED; layout++)
        for (int page = 0; page < 5; page++) {
            if (test_quick && (layout + page) % 3) continue;
            ref_spec s = u->spec;
            s.layout    = (ref_layout)layout;
            s.page_size = pages[page];
            snprintf(what, sizeof what, "layout %d, page size %d", layout, (int)pages[page]);
            for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
                result got = decode(&s, &u->o[m]);
                same(&u->want[m], 0, &got, what, u->o[m].method);
                CHECK_MSG(same_stats(&got.stats, &u->want[m].stats), "%s, %s: stats", santa_method_name(u->o[m].method),
                          what);
                free(got.bits);
            }
        }
}
static void layouts(void) { for_every_shape(layouts_body); }

/* Sequences alone and in pairs, with the request ids they had. */
static void batch_body(const setup *u) {
    char what[64];
    for (int64_t first = 0; first < u->spec.batch; first++)
        for (int64_t count = 1; count <= 2 && first + count <= u->spec.batch; count++) {
            const uint64_t ids[2] = {(uint64_t)first, (uint64_t)first + 1};
            ref_spec s = u->spec;
            s.first_sequence = first;
            s.batch          = count;
            snprintf(what, sizeof what, "sequences %d to %d alone", (int)first, (int)(first + count - 1));
            for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
                santa_options o = u->o[m];
                o.request_ids = ids;
                result got = decode(&s, &o);
                same(&u->want[m], first * (u->want[m].numbers / u->spec.batch), &got, what, o.method);
                free(got.bits);
            }
        }
}
static void batches(void) { for_every_shape(batch_body); }

static void tile_body(const setup *u) {
    static const int64_t sizes[] = {64, 128, 192, 256, 320, 1024};
    const result *want = &u->want[SANTA_PROP];
    for (int i = 0; i < 6; i++) {
        santa_options o = u->o[SANTA_PROP];
        o.tile_size = sizes[i];
        result got = decode(&u->spec, &o);
        same(want, 0, &got, "tile size", SANTA_PROP);
        free(got.bits);
    }
    same(want, 0, &u->want[SANTA_SYS], "against prop", SANTA_SYS);
}
static void tiles(void) { for_every_shape(tile_body); }

/* Items in ranges, each with its own workspace and stats. */
static void items_body(const setup *u) {
    const int64_t items = u->spec.batch * u->spec.kv_heads;
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        ref_problem *p = build(&u->spec);
        santa_stats total, part;
        memset(&total, 0, sizeof total);
        p->a.std_error = has_std_error(u->o[m].method) ? p->std_error : NULL;
        for (int64_t first = items, step = 1; first > 0; step = step % 4 + 1) {  /* from the last to the first */
            santa_options o = u->o[m];
            o.item_end   = first;
            o.item_begin = first = ref_max(0, first - step);
            if (!ref_run(p, &o, &part)) break;
            total.rows += part.rows;                       total.keys += part.keys;
            total.k_rows_read += part.k_rows_read;         total.k_features_read += part.k_features_read;
            total.k_features_head += part.k_features_head; total.v_rows_read += part.v_rows_read;
            total.v_rows_head += part.v_rows_head;         total.draws += part.draws;
            total.tiles += part.tiles;                     total.tiles_skipped += part.tiles_skipped;
            total.exact_rows += part.exact_rows;
        }
        result got = take(p);
        same(&u->want[m], 0, &got, "item ranges", u->o[m].method);
        CHECK_MSG(same_stats(&total, &u->want[m].stats), "%s: stats of item ranges do not add up",
                  santa_method_name(u->o[m].method));
        free(got.bits);
    }
}
static void item_ranges(void) { for_every_shape(items_body); }

/* A pool that runs tasks in an order of its own. */
static void shuffled(void *user, int64_t count, santa_task task, void *context) {
    test_rng *r = (test_rng *)user;
    int64_t  *order = (int64_t *)test_alloc((size_t)ref_max(count, 1) * sizeof *order);
    for (int64_t i = 0; i < count; i++) {
        const int64_t other = test_below(r, i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    for (int64_t i = 0; i < count; i++) task(context, order[i]);
    free(order);
}

#ifdef HAVE_PTHREADS
typedef struct pool { pthread_mutex_t lock; int64_t next, count; santa_task task; void *context; } pool;

static void *work(void *argument) {
    pool *p = (pool *)argument;
    for (;;) {
        pthread_mutex_lock(&p->lock);
        const int64_t i = p->next++;
        pthread_mutex_unlock(&p->lock);
        if (i >= p->count) return NULL;
        p->task(p->context, i);
    }
}

static void threaded(void *user, int64_t count, santa_task task, void *context) {
    pthread_t thread[4];
    int       running[4];
    pool p;
    (void)user;
    memset(&p, 0, sizeof p);
    pthread_mutex_init(&p.lock, NULL);
    p.count   = count;
    p.task    = task;
    p.context = context;
    for (int i = 0; i < 4; i++) running[i] = pthread_create(&thread[i], NULL, work, &p) == 0;
    work(&p);
    for (int i = 0; i < 4; i++) if (running[i]) pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&p.lock);
}
#endif

static void threads_body(const setup *u) {
    char what[64];
    for (int64_t threads = 1; threads <= 16; threads += threads < 5 && !test_quick ? 1 : 11)
        for (int real = 0; real < 2; real++)
            for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
                santa_options o = u->o[m];
                test_rng r = test_rng_make((uint64_t)threads);
                o.num_threads   = threads;
                o.parallel_for  = shuffled;
                o.parallel_user = &r;
#ifdef HAVE_PTHREADS
                if (real) o.parallel_for = threaded;
#endif
                snprintf(what, sizeof what, "%d threads, %s", (int)threads, real ? "pthreads" : "shuffled tasks");
                result got = decode(&u->spec, &o);
                same(&u->want[m], 0, &got, what, o.method);
                CHECK_MSG(same_stats(&got.stats, &u->want[m].stats), "%s, %s: stats", santa_method_name(o.method),
                          what);
                free(got.bits);
            }
}
static void threads(void) { for_every_shape(threads_body); }

/* Workspace at every alignment, clean and dirty; several calls in one workspace. */
static void workspace_body(const setup *u) {
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        ref_problem *p = build(&u->spec);
        p->a.std_error = has_std_error(u->o[m].method) ? p->std_error : NULL;
        const size_t bytes = santa_workspace_size(&p->a, &u->o[m]);
        char *memory = (char *)test_alloc(bytes + 64);
        for (size_t shift = 0; shift < 64; shift += test_quick ? 21 : shift < 9 ? 1 : 11)
            for (int fill = 0; fill < 3; fill++) {
                if (fill < 2) memset(memory, fill ? 0xff : 0, bytes + 64);       /* the third keeps the last call's */
                if (!CHECK_STATUS(santa_decode(&p->a, &u->o[m], memory + shift, bytes, NULL), SANTA_OK)) break;
                result got = take(p);
                same(&u->want[m], 0, &got, "workspace", u->o[m].method);
                free(got.bits);
            }
        free(memory);
    }
}
static void workspaces(void) { for_every_shape(workspace_body); }

/* Scores of the two instruction sets differ by rounding; dense results too; a draw may move by a key, rarely. */
static void instruction_sets(void) {
    if (santa_best_isa() == SANTA_ISA_SCALAR) SKIP("this machine has one instruction set only");
    enum { N = 3000, S = 256 };
    int64_t moved = 0, draws = 0;
    for (int type = 0; type < 3; type++)
        for (int64_t dim = test_quick ? 31 : 1; dim < 300; dim = dim * (test_quick ? 4 : 2) + 1) {
            ref_spec s = ref_spec_make(3, 1, N, dim);
            s.k_type = s.v_type = (santa_dtype)type;
            s.head_dim_v = 300 - dim;
            ref_problem p;
            ref_build(&p, &s);
            static float scores[2][3 * N];
            float *out[2];
            for (int isa = 0; isa < 2; isa++) {
                santa_options o = ref_options(SANTA_DENSE, 0, 0);
                o.isa = isa ? santa_best_isa() : SANTA_ISA_SCALAR;
                const size_t bytes = santa_workspace_size(&p.a, &o);
                void *workspace = test_alloc(bytes);
                CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores[isa], N, workspace, bytes), SANTA_OK);
                CHECK_STATUS(santa_decode(&p.a, &o, workspace, bytes, NULL), SANTA_OK);
                out[isa] = ref_floats(3 * s.head_dim_v);
                memcpy(out[isa], p.a.out.data, (size_t)(3 * s.head_dim_v) * sizeof(float));
                free(workspace);
            }
            for (int64_t i = 0; i < 3 * N; i++)
                if (!CHECK_NEAR(scores[0][i], scores[1][i], 4e-6, 1e-6)) break;
            for (int64_t i = 0; i < 3 * s.head_dim_v; i++)
                if (!CHECK_NEAR(out[0][i], out[1][i], 4e-6, 4e-6)) break;
            for (int m = SANTA_IID; m <= SANTA_PROP; m++)
                for (int64_t h = 0; h < 3; h++) {
                    ref_drawn d[2];
                    int64_t weight[2] = {0, 0}, i[2] = {0, 0};
                    for (int isa = 0; isa < 2; isa++) {
                        santa_options o = ref_options((santa_method)m, S, 9);
                        o.isa = isa ? santa_best_isa() : SANTA_ISA_SCALAR;
                        d[isa] = ref_sample(scores[isa] + h * N, N, &o, ref_stream(0, h, 0));
                        CHECK_STATUS(d[isa].status, SANTA_OK);
                    }
                    /* sum over keys of the difference of counts, halved: draws that went elsewhere */
                    int64_t apart = 0;
                    while (i[0] < d[0].d.rows || i[1] < d[1].d.rows) {
                        const int32_t a = i[0] < d[0].d.rows ? d[0].index[i[0]] : INT32_MAX;
                        const int32_t b = i[1] < d[1].d.rows ? d[1].index[i[1]] : INT32_MAX;
                        weight[0] = a <= b ? d[0].count[i[0]++] : 0;
                        weight[1] = b <= a ? d[1].count[i[1]++] : 0;
                        apart += weight[0] > weight[1] ? weight[0] - weight[1] : weight[1] - weight[0];
                    }
                    moved += apart / 2;
                    draws += S;
                    ref_drawn_free(&d[0]);
                    ref_drawn_free(&d[1]);
                }
            free(out[0]);
            free(out[1]);
            ref_free(&p);
        }
    /* Scores differ by about 1e-6, so prefix masses do by less, and a key's share is about 3e-4. */
    CHECK_MSG(moved * 200 <= draws, "%d of %d draws moved", (int)moved, (int)draws);
}

const test_case suite_determinism[] = {
    {"layout and page size", layouts},
    {"batch composition, with request ids", batches},
    {"tile size of prop; sys", tiles},
    {"item ranges, stats add up", item_ranges},
    {"number of threads, order of tasks", threads},
    {"workspace: alignment, rubbish, reuse", workspaces},
    {"scalar against AVX2: scores close, few draws move", instruction_sets},
    {0, 0},
};
