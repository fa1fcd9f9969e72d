/* The same bits whatever the batch, layout, page size, threads, item ranges, workspace and tile
   size of prop; and what another instruction set may change. */
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
            *at++ = (float)ref_get(&p->a.out, i / (s->q_len * s->heads), i / s->heads % s->q_len,
                                   i % s->heads, c);
        *at++ = p->a.lse[i];
        *at++ = p->a.std_error ? p->a.std_error[i] : 0.0f;
    }
    return r;
}

/* The problem of the last call stays built: most of these cases run every method on one
   problem. */
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
            ref_set(&built.a.out, i / (spec->q_len * spec->heads), i / spec->heads % spec->q_len,
                    i % spec->heads, c, 1e30);
    return &built;
}

static result decode(const ref_spec *spec, const santa_options *o) {
    result r;
    memset(&r, 0, sizeof r);
    ref_problem *p = build(spec);
    p->a.std_error = ref_has_error(o->method) ? p->std_error : NULL;
    santa_stats stats;
    if (ref_run(p, o, &stats)) {
        r = take(p);
        r.stats = stats;
    }
    return r;
}

/* Is `part` the same bits as `whole` from number `from` on? */
static int same(const result *whole, int64_t from, const result *part, const char *what,
                santa_method method) {
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
           a->tiles == b->tiles && a->tiles_skipped == b->tiles_skipped && a->exact_rows == b->exact_rows &&
           a->dense_rows == b->dense_rows;
}

enum { PLAIN, CAUSAL, BF16, MANY_HEADS, BERNOULLI, GROUP_SCORES, SOME_DENSE, SHAPES };

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
        case CAUSAL:
            s.q_len = 3; s.causal = 1; s.window = 150; s.alibi = s.sinks = 1; s.head_dim = 33; break;
        case BF16:
            s.k_type = s.v_type = SANTA_BF16; s.heads = 8; s.head_dim_v = 65; s.soft_cap = 5.0f; break;
        case MANY_HEADS: s.k_type = SANTA_BF16; s.heads = 14; s.head_dim = 64; break;     /* AMX's */
        case BERNOULLI:    o->scores = SANTA_SCORES_BERNOULLI_IID; break;
        case SOME_DENSE:
            o->dense_below = 168; s.k_type = SANTA_E4M3; s.heads = 9; s.kv_heads = 9; s.head_dim = 8; break;
        case GROUP_SCORES: o->scores = SANTA_SCORES_GROUP_STRAT; s.k_type = SANTA_F16; break;
        default: break;
    }
    if (method == SANTA_FLASH) o->tile_size = 32;
    if (!ref_has_scores(method)) o->scores = SANTA_SCORES_EXACT;
    santa_clear_unused_options(o);
    return s;
}

/* Each shape and every method once; then body makes its variations and compares. */
typedef struct setup {
    ref_spec spec;
    santa_options o[SANTA_METHOD_COUNT];
    result want[SANTA_METHOD_COUNT];
} setup;
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
                CHECK_MSG(same_stats(&got.stats, &u->want[m].stats), "%s, %s: stats",
                          santa_method_name(u->o[m].method), what);
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
        p->a.std_error = ref_has_error(u->o[m].method) ? p->std_error : NULL;
        /* from the last to the first */
        for (int64_t first = items, step = 1; first > 0; step = step % 4 + 1) {
            santa_options o = u->o[m];
            o.item_end   = first;
            o.item_begin = first = ref_max(0, first - step);
            if (!ref_run(p, &o, &part)) break;
            total.rows += part.rows;                       total.keys += part.keys;
            total.k_rows_read += part.k_rows_read;         total.k_features_read += part.k_features_read;
            total.k_features_head += part.k_features_head; total.v_rows_read += part.v_rows_read;
            total.v_rows_head += part.v_rows_head;         total.draws += part.draws;
            total.tiles += part.tiles;                     total.tiles_skipped += part.tiles_skipped;
            total.exact_rows += part.exact_rows;           total.dense_rows += part.dense_rows;
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
enum { POOL = 7 };                            /* and the caller makes eight */
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
    pthread_t thread[POOL];
    int       running[POOL];
    pool p;
    (void)user;
    memset(&p, 0, sizeof p);
    pthread_mutex_init(&p.lock, NULL);
    p.count   = count;
    p.task    = task;
    p.context = context;
    for (int i = 0; i < POOL; i++) running[i] = pthread_create(&thread[i], NULL, work, &p) == 0;
    work(&p);
    for (int i = 0; i < POOL; i++) if (running[i]) pthread_join(thread[i], NULL);
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
                snprintf(what, sizeof what, "%d threads, %s", (int)threads,
                         real ? "pthreads" : "shuffled tasks");
                result got = decode(&u->spec, &o);
                same(&u->want[m], 0, &got, what, o.method);
                CHECK_MSG(same_stats(&got.stats, &u->want[m].stats), "%s, %s: stats",
                          santa_method_name(o.method), what);
                free(got.bits);
            }
}
static void threads(void) { for_every_shape(threads_body); }

/* Workspace at every alignment, clean and dirty; several calls in one workspace. */
static void workspace_body(const setup *u) {
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        ref_problem *p = build(&u->spec);
        p->a.std_error = ref_has_error(u->o[m].method) ? p->std_error : NULL;
        const size_t bytes = santa_workspace_size(&p->a, &u->o[m]);
        char *memory = (char *)test_alloc(bytes + 64);
        for (size_t shift = 0; shift < 64; shift += test_quick ? 21 : shift < 9 ? 1 : 11)
            for (int fill = 0; fill < 3; fill++) {
                /* the third keeps the last call's */
                if (fill < 2) memset(memory, fill ? 0xff : 0, bytes + 64);
                if (!CHECK_STATUS(santa_decode(&p->a, &u->o[m], memory + shift, bytes, NULL), SANTA_OK))
                    break;
                result got = take(p);
                same(&u->want[m], 0, &got, "workspace", u->o[m].method);
                free(got.bits);
            }
        free(memory);
    }
}
static void workspaces(void) { for_every_shape(workspace_body); }

/* A NaN in the query of a group's first head, which then gathers nothing: the counters of the
   others do not come from what the workspace held before. */
static void rubbish_beside_nan(void) {
    for (int m = SANTA_IID; m < SANTA_VATTENTION; m++) {
        ref_spec s = ref_spec_make(6, 2, 150, 8);
        ref_problem p;
        santa_stats stats[2];
        santa_options o = ref_options((santa_method)m, 24, 6);
        ref_build(&p, &s);
        p.q[0] = p.q[3 * 8] = (double)test_nan();
        ref_write(&p);
        if (!ref_has_error(o.method)) p.a.std_error = NULL;
        const size_t bytes = santa_workspace_size(&p.a, &o);
        void *w = test_alloc(bytes);
        for (int fill = 0; fill < 2; fill++) {
            memset(w, fill ? 0xff : 0, bytes);
            CHECK_STATUS(santa_decode(&p.a, &o, w, bytes, &stats[fill]), SANTA_OK);
        }
        CHECK_INT(stats[1].v_rows_read, stats[0].v_rows_read);
        CHECK_MSG(same_stats(&stats[0], &stats[1]), "%s: stats", santa_method_name(o.method));
        free(w);
        ref_free(&p);
    }
}

/* Rows that run dense behind one that draws, whose keys threads share: there is room for a
   chunk. */
static void shared_before_dense(void) {
    static const santa_method methods[] = {SANTA_STRAT, SANTA_SYS, SANTA_PPS};
    for (int i = 0; i < 3; i++) {
        ref_spec s = ref_spec_make(2, 1, 4000, 16);
        santa_options o = ref_options(methods[i], 16, 6);
        s.q_len  = 4;
        s.window = 2000;
        o.dense_below = 2002;
        result want = decode(&s, &o);
        CHECK(want.stats.dense_rows > 0 && want.stats.dense_rows < want.stats.rows);
        for (int64_t threads = 2; threads <= 4; threads += 2) {
            test_rng r = test_rng_make((uint64_t)threads);
            o.num_threads   = threads;
            o.parallel_for  = shuffled;
            o.parallel_user = &r;
            result got = decode(&s, &o);
            same(&want, 0, &got, "dense rows behind others", o.method);
            free(got.bits);
        }
        free(want.bits);
    }
}

/* Two query rows that see 2^14 keys and one more, which exact attention cuts into chunks of
   other sizes; rows too short for the threads' even shares; a sampled call whose rows are all
   run dense. */
static void shared_sizes(void) {
    static const struct { int64_t len, kv_heads, q_len, dense_below; santa_method method; } calls[] = {
        {16385, 4, 2, 0, SANTA_DENSE}, {16385, 4, 2, 0, SANTA_SYS}, {1100, 4, 1, 0, SANTA_DENSE},
        {1100, 1, 1, 1200, SANTA_SYS}, {1100, 4, 1, 1200, SANTA_FLASH}
    };
    for (int i = 0; i < 5; i++) {
        ref_spec s = ref_spec_make(calls[i].kv_heads, calls[i].kv_heads, calls[i].len, 4);
        santa_options o = ref_options(calls[i].method, 40, 6);
        s.q_len  = calls[i].q_len;
        s.causal = s.q_len > 1;
        o.dense_below = calls[i].dense_below;
        result want = decode(&s, &o);
        CHECK_INT(want.stats.dense_rows, o.dense_below ? want.stats.rows : 0);
        for (int64_t threads = 2; threads <= 4; threads += 2) {
            test_rng r = test_rng_make((uint64_t)threads);
            char what[64];
            o.num_threads   = threads;
            o.parallel_for  = shuffled;
            o.parallel_user = &r;
            snprintf(what, sizeof what, "call %d, %d threads", i, (int)threads);
            result got = decode(&s, &o);
            same(&want, 0, &got, what, o.method);
            CHECK_MSG(same_stats(&got.stats, &want.stats), "%s: stats", what);
            free(got.bits);
        }
        free(want.bits);
    }
}

/* ------------------------------------------------------------ many KV heads */

/* The library visits the KV heads of a token together, up to eight, where they lie side by
   side, as many as a task has: the same bits and counts for every split, and for heads apart,
   which go one by one. */
static void many_kv_heads(void) {
    static const int64_t kv_heads[] = {1, 3, 9};
    static const santa_dtype types[] = {SANTA_E5M2, SANTA_Q8_0, SANTA_BF16, SANTA_Q4_0, SANTA_F16};
    for (int k = 0; k < 3; k++)
        for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
            if (test_quick && (k + m) % 3) continue;
            ref_spec s = ref_spec_make(2 * kv_heads[k], kv_heads[k], 150, 32);
            char what[64];
            s.batch  = 2;
            s.gain   = 2.0;
            s.k_type = s.v_type = types[(k + m) % 5];
            santa_options o = ref_options((santa_method)m, 24, 6);
            o.vattention.sink_tokens = o.vattention.local_tokens = 16;
            santa_clear_unused_options(&o);
            o.parallel_for = shuffled;
            s.layout = REF_HND;
            result want = decode(&s, &o);
            /* NHD; NHD on 2, 3, 4 and 8 threads; pages, one per token */
            for (int variant = 0; variant < 9; variant++) {
                if (variant > 3 && variant < 7) continue;
                test_rng r = test_rng_make((uint64_t)variant);
                s.layout        = REF_NHD;
                s.page_size     = variant == 8;
                o.num_threads   = variant < 8 ? variant + 1 : 3;
                o.parallel_user = &r;
                snprintf(what, sizeof what, "%d KV heads, variant %d", (int)kv_heads[k], variant);
                result got = decode(&s, &o);
                same(&want, 0, &got, what, o.method);
                CHECK_MSG(same_stats(&got.stats, &want.stats), "%s, %s: stats", santa_method_name(o.method),
                          what);
                free(got.bits);
            }
            free(want.bits);
        }
}

/* ------------------------------------------------------------ threads that share keys */

static int rounds;                            /* calls of parallel_for */
static void counted(void *user, int64_t count, santa_task task, void *context) {
    rounds++;
    shuffled(user, count, task, context);
}

/* More threads than (sequence, KV head) pairs: long contexts are gone through by parts of their
   keys. One thread's bits and counts, for every layout, ragged lengths down to an empty
   sequence, windows, several query rows, and rows that run dense. */
static void shared_keys(void) {
    for (int turn = 0; turn < (test_quick ? 6 : 24); turn++) {
        const int64_t kv = 1 + turn % 3, batch = 1 + turn / 3 % 2,
                      length = turn % 4 ? 1100 + turn % 5 * 2000 : 1000;
        ref_spec s = ref_spec_make(3 * kv, kv, length, 32);
        s.batch     = batch;
        s.ragged    = turn % 2;
        s.q_len     = 1 + turn % 5 / 3;
        s.causal    = s.q_len > 1;
        s.window    = turn % 7 == 3 ? 1050 : 0;
        s.page_size = turn % 6 == 5 ? 48 : 0;
        s.sinks     = turn % 4 == 2;
        s.gain      = 2.0;
        s.k_type    = s.v_type = turn % 2 ? SANTA_F32 : SANTA_Q8_0;
        for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
            santa_options o = ref_options((santa_method)m, 40, 6);
            o.vattention.sink_tokens = o.vattention.local_tokens = 16;
            o.stash       = (santa_stash)(turn % 4);
            o.scores      = s.k_type == SANTA_Q8_0 && turn % 3 == 0 && ref_has_scores(o.method)
                              ? SANTA_SCORES_Q8 : SANTA_SCORES_EXACT;
            o.dense_below = turn % 8 == 7 ? 1200 : 0;
            santa_clear_unused_options(&o);
            s.layout      = turn / 2 % 2 ? REF_HND : REF_NHD;
            result want = decode(&s, &o);
            /* turn 5: also so few that each has items enough, which token-major rows share all
               the same */
            for (int64_t threads = turn % 6 == 5 ? 2 : batch * kv - 1; threads <= 13;
                 threads += threads < 7 ? 1 : 3) {
                test_rng r = test_rng_make((uint64_t)threads);
                char what[64];
                if (threads < 2) continue;
                o.num_threads   = threads;
                o.parallel_for  = counted;
                o.parallel_user = &r;
                snprintf(what, sizeof what, "turn %d, %d threads", turn, (int)threads);
                rounds = 0;
                result got = decode(&s, &o);
                const unsigned traits = santa_method_traits(o.method);
                const int token_major =
                    s.layout == REF_NHD && kv > 1 &&
                    (!(traits & (SANTA_EXACT | SANTA_SPARSE)) ||
                     (s.window ? s.window : length) >= 2048 * threads);
                const int share =
                    (2 * threads > batch * kv || (token_major && !(traits & SANTA_ROUTES))) && length > 1024
                    && (!(traits & SANTA_ADAPTS) || (traits & SANTA_ROUTES));
                CHECK_MSG(o.dense_below || (rounds > 1) == share,
                          "%s, %s: parallel_for was called %d times", santa_method_name(o.method), what,
                          rounds);
                same(&want, 0, &got, what, o.method);
                CHECK_MSG(same_stats(&got.stats, &want.stats), "%s, %s: stats", santa_method_name(o.method),
                          what);
                free(got.bits);
#ifdef HAVE_PTHREADS
                if (threads % 4) continue;
                o.parallel_for = threaded;
                got = decode(&s, &o);
                same(&want, 0, &got, what, o.method);
                free(got.bits);
#endif
            }
            free(want.bits);
        }
    }
}

static int64_t most_tasks;
static void measured(void *user, int64_t count, santa_task task, void *context) {
    most_tasks = count > most_tasks ? count : most_tasks;
    shuffled(user, count, task, context);
}

/* More threads than there is work for get no tasks. */
static void idle_threads(void) {
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)
        for (int turn = 0; turn < 4; turn++) {
            const int64_t kv = turn % 2 ? 3 : 1, length = turn / 2 ? 3000 : 100;
            const ref_spec s = ref_spec_make(2 * kv, kv, length, 16);
            santa_options o = ref_options((santa_method)m, 20, 6);
            test_rng r = test_rng_make((uint64_t)turn);
            result want = decode(&s, &o);
            o.num_threads   = 500;
            o.parallel_for  = measured;
            o.parallel_user = &r;
            most_tasks = 0;
            result got = decode(&s, &o);
            CHECK_MSG(most_tasks >= 2 && most_tasks <= kv * ((length + 63) / 64), "%s, %d keys: %d tasks",
                      santa_method_name(o.method), (int)length, (int)most_tasks);
            same(&want, 0, &got, "idle threads", o.method);
            free(got.bits);
            free(want.bits);
        }
}

/* A window that begins within a chunk of exact attention lies in one chunk more than its length
   needs: each has its place. */
static void shared_windows(void) {
    static const int64_t windows[] = {1024, 1025, 1087, 1300, 1536, 1537, 1800, 2047, 2048};
    int turn = 0;
    for (int w = 0; w < 9; w++)
        for (int64_t length = 2100; length <= 3000; length += test_quick ? 449 : 123 - w, turn++)
            for (int hnd = 0; hnd < 2; hnd++) {
                ref_spec s = ref_spec_make(turn % 4 ? 3 : 4, turn % 4 ? 1 : 2, length, 16);
                s.causal = 1;
                s.q_len  = 1 + turn % 3;
                s.window = windows[w];
                s.layout = hnd ? REF_HND : REF_NHD;
                s.gain   = 2.0;
                santa_options o = ref_options(SANTA_DENSE, 0, 0);
                result want = decode(&s, &o);
                double exact[16];
                for (int64_t h = 0; h < s.heads; h++) {
                    const double lse = ref_dense(&built, 0, turn % s.q_len, h, exact, NULL);
                    const float *row = want.bits + (turn % s.q_len * s.heads + h) * (16 + 2);
                    check_array_near("one thread", row, exact, 16, 2e-5, 1e-5);
                    CHECK_NEAR(row[16], lse, 2e-5, 0.0);
                }
                test_rng r = test_rng_make((uint64_t)turn);
                char what[64];
                o.num_threads   = 2;
                o.parallel_for  = counted;
                o.parallel_user = &r;
                rounds = 0;
                result got = decode(&s, &o);
                snprintf(what, sizeof what, "window %d of %d, HND %d", (int)windows[w], (int)length, hnd);
                /* all rows together */
                CHECK_MSG(rounds == 2, "%s: parallel_for was called %d times", what, rounds);
                same(&want, 0, &got, what, o.method);
                CHECK_MSG(same_stats(&got.stats, &want.stats), "%s: stats", what);
                free(got.bits);
                free(want.bits);
            }
    ref_free(&built);
    is_built = 0;
}

/* ------------------------------------------------------------ dense_below */

/* Keys that row i of sequence b sees. */
static int64_t row_keys(const ref_problem *p, int64_t b, int64_t i) {
    double *scores = ref_doubles(p->spec.len);
    int64_t keys = 0;
    const int64_t n = ref_scores(p, b, i, 0, scores);
    for (int64_t j = 0; j < n; j++) keys += scores[j] > -REF_INF;
    free(scores);
    return keys;
}

/* Rows of fewer keys have the dense call's bits, the others the sampled call's; stats count
   both kinds for what they are. */
static void dense_below_body(const setup *u) {
    static const int64_t limits[] = {1, 2, 66, 150, 168, 333, 334, SANTA_AUTO};
    const ref_spec *s = &u->spec;
    const int64_t row = s->head_dim_v + 2, group = s->heads / s->kv_heads;
    for (int m = SANTA_IID; m <= SANTA_FLASH; m++)
        for (int l = 0; l < 8; l++)
            for (int tile = 0; tile < (m == SANTA_FLASH && !test_quick ? 4 : 1); tile++) {
                santa_options o = u->o[m], exact = u->o[SANTA_DENSE];
                if (m == SANTA_FLASH) o.tile_size = tile == 3 ? 64 : 8 << tile;
                exact.scores = o.scores;
                o.dense_below = exact.dense_below = 0;
                result sampled = decode(s, &o);
                o.dense_below = limits[l];
                result got = decode(s, &o), dense = decode(s, &exact);
                const int64_t below = limits[l] == SANTA_AUTO ? 16 * o.num_samples : limits[l];
                int64_t rows = 0, keys = 0, draws = 0, keys_above = 0;
                for (int64_t r = 0; r < s->batch * s->q_len; r++) {
                    const int64_t n = row_keys(&built, r / s->q_len, r % s->q_len);
                    const result *want = n < below ? &dense : &sampled;
                    if (n < below) { rows += n > 0 ? s->heads : 0; keys += n; }
                    else { draws += n > 0 ? o.num_samples * s->heads : 0; keys_above += n; }
                    CHECK_MSG(!memcmp(got.bits + r * s->heads * row, want->bits + r * s->heads * row,
                                      (size_t)(s->heads * row) * sizeof(float)),
                              "%s, tile %d, below %d: row %d of %d keys", santa_method_name(o.method),
                              (int)o.tile_size, (int)below, (int)r, (int)n);
                }
                CHECK_INT(got.stats.dense_rows, rows);
                CHECK_INT(got.stats.rows, sampled.stats.rows);
                CHECK_INT(got.stats.keys, sampled.stats.keys);
                CHECK_INT(got.stats.k_rows_read, sampled.stats.k_rows_read);
                CHECK_INT(sampled.stats.dense_rows, 0);
                CHECK_INT(dense.stats.dense_rows, 0);
                if (m != SANTA_FLASH) CHECK_INT(got.stats.draws, draws);
                CHECK(got.stats.v_rows_read >= keys * s->kv_heads &&
                      got.stats.v_rows_read <= (keys + keys_above) * s->kv_heads);
                if (keys_above == 0) CHECK_INT(got.stats.v_rows_head, keys * s->kv_heads * group);
                free(sampled.bits);
                free(got.bits);
                free(dense.bits);
            }
}
static void dense_below(void) { for_every_shape(dense_below_body); }

/* Fewer keys than a block of dense, in a workspace made for small tiles. */
static void dense_below_short(void) {
    for (int64_t n = 1; n <= 70; n += n < 9 ? 1 : 7)
        for (int64_t tile = 8; tile <= 64; tile *= 2) {
            ref_spec s = ref_spec_make(10, 2, n, 8);
            santa_options o = ref_options(SANTA_DENSE, 0, 0);
            result want = decode(&s, &o);
            o = ref_options(SANTA_FLASH, 20, 1);
            o.tile_size   = tile;
            o.dense_below = n + 1;
            result got = decode(&s, &o);
            same(&want, 0, &got, "dense_below", SANTA_FLASH);
            CHECK_INT(got.stats.dense_rows, 10);
            free(got.bits);
            free(want.bits);
        }
}

/* SANTA_AUTO is 16 num_samples to the key, also of the default num_samples; other methods do
   not look at it. */
static void dense_below_auto(void) {
    for (int64_t samples = 0; samples <= 25; samples += 25)
        for (int64_t more = -1; more <= 0; more++) {
            ref_spec s = ref_spec_make(2, 1, 16 * (samples ? samples : 128) + more, 4);
            santa_options o = ref_options(SANTA_SYS, samples, 1);
            o.dense_below = SANTA_AUTO;
            result got = decode(&s, &o);
            CHECK_INT(got.stats.dense_rows, more ? 2 : 0);
            free(got.bits);
        }
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        if (santa_method_traits((santa_method)m) & SANTA_DRAWS) continue;
        ref_spec s = ref_spec_make(2, 1, 100, 4);
        santa_options o = ref_options((santa_method)m, 20, 1);
        result want = decode(&s, &o);
        o.dense_below = 1000;
        CHECK(santa_unused_option(&o) && !strcmp(santa_unused_option(&o), "dense_below"));
        santa_clear_unused_options(&o);
        result got = decode(&s, &o);
        same(&want, 0, &got, "dense_below", o.method);
        CHECK_INT(got.stats.dense_rows, want.stats.dense_rows);
        CHECK_INT(got.stats.dense_rows, santa_method_traits(o.method) & SANTA_SPARSE ? 2 : 0);
        free(got.bits);
        free(want.bits);
    }
}

/* ------------------------------------------------------------ instruction sets */

/* Draws that two lists do not share. Draws are compared in ascending order: one that differs
   went to the next key, up or down, that has mass. */
static int64_t moved_draws(const ref_drawn *a, const ref_drawn *b, const float *scores, float limit) {
    int64_t moved = 0, i = 0, j = 0, left = 0, right = 0;
    CHECK_INT(a->d.draws, b->d.draws);
    for (;;) {
        if (left == 0)  { if (i == a->d.rows) break; left = a->count[i++]; }
        if (right == 0) { if (j == b->d.rows) break; right = b->count[j++]; }
        const int64_t pairs = ref_min(left, right);
        const int32_t from = a->index[i - 1], to = b->index[j - 1];
        left  -= pairs;
        right -= pairs;
        if (from == to) continue;
        moved += pairs;
        CHECK(scores[from] >= limit && scores[to] >= limit);
        for (int32_t key = (from < to ? from : to) + 1; key < (from < to ? to : from); key++)
            CHECK_MSG(scores[key] < limit, "a draw moved from key %d to %d, over key %d with score %g",
                      (int)from, (int)to, (int)key, (double)scores[key]);
    }
    return moved;
}

/* Scores of two instruction sets differ by rounding; dense results too; a draw may move to a
   neighbour, rarely. */
static void instruction_sets(void) {
    enum { N = 3000, S = 256 };
    static const int64_t dims[] = {1, 31, 127, 255};
    int64_t moved = 0, draws = 0;
    if (santa_best_isa() == SANTA_ISA_SCALAR) SKIP("this machine has one instruction set only");
    for (int type = SANTA_F32; type <= SANTA_Q4_0; type++)
        for (size_t of_dims = test_quick ? 1 : 0; of_dims < sizeof dims / sizeof *dims; of_dims++) {
            static float scores[SANTA_ISA_COUNT][3 * N];
            const int64_t dim = dims[of_dims];
            float *out[SANTA_ISA_COUNT];
            const int is_blocks = ref_is_blocks((santa_dtype)type);
            if (is_blocks && dim < 31) continue;                      /* rounded up they are all 32 */
            /* these become f32 first, 64 features at a time */
            if ((type == SANTA_E5M2 || type == SANTA_Q4_0) && dim != 31 && dim != 127) continue;
            ref_spec s = ref_spec_make(3, 1, N, is_blocks ? (dim + 31) / 32 * 32 : dim);
            s.k_type = s.v_type = (santa_dtype)type;
            s.head_dim_v = is_blocks ? 352 - s.head_dim : 300 - dim;
            const int has_infinity = type < SANTA_E4M3 || type == SANTA_E5M2;
            ref_problem p;
            ref_build(&p, &s);
            for (int64_t j = 0; j < N; j += 7) /* some keys without mass lie between the others */
                for (int64_t c = 0; c < s.head_dim; c++)
                    p.k[j * s.head_dim + c] = has_infinity && c == 0 ? -REF_INF : 0.0;
            for (int64_t h = 0; h < 3; h++) p.q[h * s.head_dim] = 1.0;
            ref_write(&p);
            FOR_EACH_ISA (isa) {
                santa_options o = ref_options(SANTA_DENSE, 0, 0);
                o.isa = isa;
                const size_t bytes = santa_workspace_size(&p.a, &o);
                void *workspace = test_alloc(bytes);
                CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores[isa], N, workspace, bytes), SANTA_OK);
                CHECK_STATUS(santa_decode(&p.a, &o, workspace, bytes, NULL), SANTA_OK);
                out[isa] = ref_floats(3 * s.head_dim_v);
                memcpy(out[isa], p.a.out.data, (size_t)(3 * s.head_dim_v) * sizeof(float));
                free(workspace);
            }
            FOR_EACH_ISA (isa) {
                const float *one = scores[SANTA_ISA_SCALAR], *other = scores[isa];
                for (int64_t i = 0; i < 3 * N; i++)
                    if (one[i] > -1e30f || other[i] > -1e30f)
                        if (!CHECK_NEAR(other[i], one[i], 4e-6, 1e-6)) break;
                for (int64_t i = 0; i < 3 * s.head_dim_v; i++)
                    if (!CHECK_NEAR(out[isa][i], out[SANTA_ISA_SCALAR][i], 4e-6, 4e-6)) break;
                for (int m = SANTA_IID; m <= SANTA_PROP; m++)
                    for (int64_t h = 0; h < 3; h++) {
                        santa_options o = ref_options((santa_method)m, S, 9);
                        o.isa = SANTA_ISA_SCALAR;
                        ref_drawn a = ref_sample(one + h * N, N, &o, ref_stream(0, h, 0));
                        o.isa = isa;
                        ref_drawn b = ref_sample(other + h * N, N, &o, ref_stream(0, h, 0));
                        CHECK_STATUS(a.status, SANTA_OK);
                        CHECK_STATUS(b.status, SANTA_OK);
                        moved += moved_draws(&a, &b, one + h * N, -1e30f);
                        draws += S;
                        ref_drawn_free(&a);
                        ref_drawn_free(&b);
                    }
            }
            FOR_EACH_ISA (isa) free(out[isa]);
            ref_free(&p);
        }
    /* Scores differ by about 1e-6, so prefix masses do by less, and a key's share is about
       3e-4. */
    CHECK_MSG(moved * 500 <= draws, "%d of %d draws moved", (int)moved, (int)draws);
}

const test_case suite_determinism[] = {
    {"layout and page size", layouts},
    {"batch composition, with request ids", batches},
    {"tile size of prop; sys", tiles},
    {"item ranges, stats add up", item_ranges},
    {"number of threads, order of tasks", threads},
    {"workspace: alignment, rubbish, reuse", workspaces},
    {"workspace: rubbish beside a NaN", rubbish_beside_nan},
    {"KV heads of a token together or one by one", many_kv_heads},
    {"threads of few items share the keys", shared_keys},
    {"more threads than work", idle_threads},
    {"threads share the keys of a window", shared_windows},
    {"threads share the keys: more than 2^14, and what dense_below takes", shared_sizes},
    {"dense rows behind those whose keys threads share", shared_before_dense},
    {"dense_below: dense's bits below, the method's from there on", dense_below},
    {"dense_below: short rows, small tiles", dense_below_short},
    {"dense_below: auto, other methods", dense_below_auto},
    {"instruction sets against scalar: scores close, few draws move, to neighbours", instruction_sets},
    {0, 0},
};
