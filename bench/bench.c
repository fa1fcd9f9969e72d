/* CPU benchmark: exact and sampled decode attention, a plain C loop and the time to read K
   once, in one run.
     make bench               a table per type, layout, context and threads; cost of a call;
                              where sampling starts to pay
     make bench QUICK=1       the same, less of it, in half a minute
     build/bench --sweep      how the cost grows with context, draws and group
     build/bench --by-type    dense and sys of all types of K and V in turns, with scales of rows, too
     build/bench --prefill    as many query rows as keys: exact, and sparse on planted heads
     build/bench --help       all options
   One decode step, batch 1, 32 query heads, 8 KV heads, head_dim 128, Gaussian data, 128 draws,
   if not said otherwise. Every timed call works on the next window of an arena several times
   the last-level cache, so K and V come from memory. The methods of a cell take turns, so that
   what else the machine does hits all alike. Times are medians over the rounds; dense/x
   compares the least times, with 10 and 90 % of what single rounds say, and is left out where
   times spread too much for a verdict. error: of a head's output against exact attention, over
   the length of a row of V, one call. Tables have 100 columns, 80 where COLUMNS is less than
   100. */
#define _DEFAULT_SOURCE
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "bench.h"
#include "program.h"
#include "products.h"

enum { HEADS = 32, KV_HEADS = 8, MOST_HEADS = 64, SAMPLES = 128 };
enum { MAX_ROUNDS = 201, MIN_ROUNDS = 5, MAX_ROWS = 32 };

/* ------------------------------------------------------------ settings */

static struct settings {
    int quick, sweep, prefill, by_type;
    unsigned types, layouts, methods;                 /* bit i: entry i of the table                  */
    const isa_name *isa;
    int64_t n[MAX_LIST], threads[MAX_LIST];           /* ascending                                    */
    int64_t d[MAX_LIST];                              /* --prefill only */
    int64_t heads, kv_heads;
    int n_count, thread_count, d_count;
    FILE *csv;
} set;

static int bits(unsigned x) { return x ? (int)(x & 1) + bits(x >> 1) : 0; }

static size_t window_bytes(const element *e, int64_t n, int64_t kv_heads) {
    return 2 * (size_t)bytes_of(e, n * kv_heads * DIM);
}

/* A window of the longest context at least, and K halves of 1.5 times the last-level cache in
   all. */
static void fill_windows(const element *e, int64_t longest) {
    const size_t window = window_bytes(e, longest, KV_HEADS), cold = 3 * last_level_cache();
    fill_arena(e, window > cold ? window : cold);
}

/* ------------------------------------------------------------ what is timed */

/* One problem. All methods of a cell are timed in turns. */
typedef struct cell {
    const char *section;
    const element *type;
    const layout *place;
    int64_t n, threads, heads, kv_heads;
    double seconds;                                  /* to spend, at least MIN_ROUNDS rounds */
    int warm;                                        /* one window for all calls */
    int repeat;                                      /* calls per timing */
    const float *scales;                             /* of the arena's windows: [2, n, kv_heads] each */
} cell;

typedef enum kind { READ_K, READ_ROWS, READ_COPY, PLAIN_C, DECODE, ASSIGN, PRODUCTS, ENCODE } kind;
typedef struct method {
    const char *name;
    kind what;
    santa_method method;
    int layouts, quick;                              /* layouts: how K may be stored */
    void (*more)(santa_options *o, int64_t n);       /* further options, or NULL */
} method;

typedef struct row {
    const method *m;
    int64_t samples;
    santa_options o;
    santa_stats stats;
    void *workspace;
    size_t workspace_bytes;
    int runs;
    double t[MAX_ROUNDS], median, low, high, bytes;  /* t: in the order of the rounds */
    double error;                                    /* of a head's output, over a row of V; -1: none */
} row;

/* A predictor that costs nothing and tells nothing: keys at equal distances, the same ones for
   every head. */
static int64_t every_nth(void *user, int64_t batch, int64_t q_index, int64_t head, const float *q,
                         int64_t begin, int64_t end, int64_t count, int32_t *index) {
    (void)user; (void)batch; (void)q_index; (void)head; (void)q;
    if (count > end - begin) count = end - begin;
    for (int64_t i = 0; i < count; i++) index[i] = (int32_t)(begin + i * (end - begin) / count);
    return count;
}

/* 10 % of the keys per head from 64k on: 256 fixed, 2.5 % predicted, the rest as base sample.
   Below, the fixed ones and the budget for the default (epsilon, delta), which do not shrink
   with n, make it more. */
static void ten_percent(santa_options *o, int64_t n) {
    o->vattention.heavy = every_nth;
    o->vattention.base_samples = n * 3 / 40 > 288 ? n * 3 / 40 - 256 : 32;
}

/* Buckets that suit a context. */
static int64_t buckets_for(int64_t n) { return n >= 65536 ? 1024 : n >= 16384 ? 256 : 64; }

/* One draw per feature and group: about half of K's features are read. */
static void one_draw(santa_options *o, int64_t n) {
    (void)n;
    o->scores = SANTA_SCORES_GROUP_STRAT;
    o->bernoulli_draws = 1;
}

/* q rounded to 8 bits as K is, products in integers. */
static void eight_bits(santa_options *o, int64_t n) {
    (void)n;
    o->scores = SANTA_SCORES_Q8;
}

/* Draws from a copy of K in 4 bits. */
static void from_copy(santa_options *o, int64_t n) {
    (void)n;
    o->scores = SANTA_SCORES_PROXY;
}

/* Buckets of keys as published: a 32nd of them read whole, beside a window of 2047. */
static void by_buckets(santa_options *o, int64_t n) {
    (void)n;
    o->num_samples = SANTA_NONE;
    o->saap.num_probes = buckets_for(n) / 32;
}

/* Nothing read whole but the first 4 and the last 64, 512 of the others drawn for each
   group. */
static void by_draws(santa_options *o, int64_t n) {
    (void)n;
    o->num_samples = 512;
    o->saap.num_probes = SANTA_NONE;
}

/* A quarter of the buckets by the copy, 512 keys drawn from these and from the others. */
static void by_both(santa_options *o, int64_t n) {
    from_copy(o, n);
    o->num_samples = 512;
    o->saap.num_probes = buckets_for(n) / 4;
}

enum { ROWS = TOKENS | TURNED_V, EVERY = ROWS | FEATURES | PAGES };
static const method methods[] = {
    { "read K",     READ_K,  SANTA_DENSE,      EVERY,             1, NULL        },
    { "read copy",  READ_COPY, SANTA_DENSE,    TOKENS,            1, from_copy   },
    { "encode",     ENCODE,  SANTA_DENSE,      TOKENS,            0, from_copy   },
    { "read 10 %",  READ_ROWS, SANTA_DENSE,    TOKENS,            0, NULL        },
    { "plain C",    PLAIN_C, SANTA_DENSE,      TOKENS,            1, NULL        },
    { "dense",      DECODE,  SANTA_DENSE,      EVERY,             1, NULL        },
    { "sys",        DECODE,  SANTA_SYS,        EVERY,             1, NULL        },
    { "prop",       DECODE,  SANTA_PROP,       ROWS,              1, NULL        },
    { "flash",      DECODE,  SANTA_FLASH,      TOKENS,            1, NULL        },
    { "pps",        DECODE,  SANTA_PPS,        ROWS,              1, NULL        },
    { "pps copy",   DECODE,  SANTA_PPS,        ROWS | PAGES,      1, from_copy   },
    { "sys copy",   DECODE,  SANTA_SYS,        TOKENS,            0, from_copy   },
    { "strat",      DECODE,  SANTA_STRAT,      TOKENS,            0, NULL        },
    { "iid",        DECODE,  SANTA_IID,        TOKENS,            0, NULL        },
    { "top-k",      DECODE,  SANTA_TOP_K,      TOKENS,            0, NULL        },
    { "top-k copy", DECODE,  SANTA_TOP_K,      TOKENS,            0, from_copy   },
    { "top-p copy", DECODE,  SANTA_TOP_P,      TOKENS,            0, from_copy   },
    { "top-p",      DECODE,  SANTA_TOP_P,      TOKENS,            0, NULL        },
    { "vattention", DECODE,  SANTA_VATTENTION, TOKENS | PAGES,    1, ten_percent },
    { "vatt copy",  DECODE,  SANTA_VATTENTION, TOKENS,            0, from_copy   },
    { "saap",       DECODE,  SANTA_SAAP,       TOKENS | PAGES,    1, by_buckets  },
    { "saap draws", DECODE,  SANTA_SAAP,       TOKENS | PAGES,    1, by_draws    },
    { "saap copy",  DECODE,  SANTA_SAAP,       TOKENS | PAGES,    0, by_both     },
    { "assign 1k",  ASSIGN,  SANTA_SAAP,       TOKENS,            1, by_buckets  },
    { "products",   PRODUCTS, SANTA_DENSE,     TOKENS,            1, NULL        },
    { "bernoulli",  DECODE,  SANTA_SYS,        FEATURES,          0, one_draw    },
    { "dense q8",   DECODE,  SANTA_DENSE,      TOKENS,            1, eight_bits  },
    { "sys q8",     DECODE,  SANTA_SYS,        TOKENS,            1, eight_bits  },
};
enum { METHODS = sizeof methods / sizeof *methods };

typedef struct reader {
    const char *data;
    size_t bytes;
    int64_t parts;
    uint64_t sum[MAX_THREADS][8];
} reader;
static void read_task(void *context, int64_t i) {
    reader *r = (reader *)context;
    r->sum[i][0] = read_part(r->data, r->bytes, r->parts, i);
}
static void on_threads(int64_t threads, santa_task task, void *context) {
    if (threads > 1) run_tasks(NULL, threads, task, context);
    else task(context, 0);
}

static void read_once(const char *data, size_t bytes, int64_t threads) {
    static reader r;
    r.data = data;
    r.bytes = bytes;
    r.parts = threads;
    on_threads(threads, read_task, &r);
}

/* A tenth of the rows of K and V, each KV head's own ones, ascending: what vattention would
   have to wait for at 10 %. */
typedef struct row_reader {
    const cell *c;
    santa_tensor k, v;
    const int32_t *index;                            /* [kv_heads, n / 10] */
    uint64_t sum[MAX_THREADS][8];
} row_reader;

static int64_t tenth_of(const cell *c) { return c->n / 10; }         /* rows of a KV head */

static int32_t *tenth(const cell *c) {
    const int64_t count = tenth_of(c);
    int32_t *index = (int32_t *)allocate((size_t)(count * c->kv_heads) * sizeof *index);
    uint32_t x = 1;
    for (int64_t i = 0; i < count * c->kv_heads; i++) {
        x = x * 1664525u + 1013904223u;
        index[i] = (int32_t)(i % count * 10 + (x >> 16) % 10);
    }
    return index;
}

static void read_rows_task(void *context, int64_t i) {
    row_reader *r = (row_reader *)context;
    const element *e = r->c->type;
    const int64_t heads = r->c->kv_heads, threads = r->c->threads, count = tenth_of(r->c);
    for (int64_t h = heads * i / threads; h < heads * (i + 1) / threads; h++)
        for (int v = 0; v < 2; v++) {
            const santa_tensor *t = v ? &r->v : &r->k;
            r->sum[i][0] +=
                read_rows((const char *)t->data + bytes_of(e, h * t->stride[2]), r->index + h * count,
                          count, (size_t)bytes_of(e, t->stride[1]), (size_t)bytes_of(e, DIM));
        }
}

static void read_tenth(const cell *c, const santa_attention *a, const int32_t *index) {
    static row_reader r;
    r.c = c;
    r.k = a->k;
    r.v = a->v;
    r.index = index;
    on_threads(c->threads, read_rows_task, &r);
}

/* Pages in no order, for every context its table. */
static const int32_t *block_table(int64_t pages) {
    static int32_t *table;
    static int64_t made;
    if (made == pages) return table;
    free(table);
    table = (int32_t *)allocate((size_t)pages * sizeof *table);
    made = pages;
    uint64_t x = 1;
    for (int64_t i = 0; i < pages; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        const int64_t j = (int64_t)((x >> 33) % (uint64_t)(i + 1));
        table[i] = table[j];
        table[j] = (int32_t)i;
    }
    return table;
}

static float query[MOST_HEADS * DIM], output[MOST_HEADS * DIM];
static uint16_t query_bf16[MOST_HEADS * DIM];

/* What one writes first: three loops per head, softmax in between. One thread, f32, NHD. */
static void plain_c(const cell *c, const float *k, const float *v, float *p) {
    const int64_t group = c->heads / c->kv_heads, step = c->kv_heads * DIM;
    for (int64_t h = 0; h < c->heads; h++) {
        const float *kh = k + h / group * DIM, *vh = v + h / group * DIM;
        float max = -1e30f, sum = 0.0f;
        for (int64_t j = 0; j < c->n; j++) {
            float s = 0.0f;
            for (int64_t i = 0; i < DIM; i++) s += query[h * DIM + i] * kh[j * step + i];
            p[j] = s * 0.08838834764f;
            if (p[j] > max) max = p[j];
        }
        for (int64_t j = 0; j < c->n; j++) sum += p[j] = expf(p[j] - max);
        for (int64_t i = 0; i < DIM; i++) output[h * DIM + i] = 0.0f;
        for (int64_t j = 0; j < c->n; j++)
            for (int64_t i = 0; i < DIM; i++) output[h * DIM + i] += p[j] / sum * vh[j * step + i];
    }
}

static santa_attention attention(const cell *c, const char *window) {
    santa_attention a;
    memset(&a, 0, sizeof a);
    const int bf16 = c->type->dtype == SANTA_BF16; /* a model in bf16 has such queries, too */
    a.q = bf16 ? santa_view(query_bf16, SANTA_BF16, 1, 1, c->heads, DIM)
               : santa_view(query, SANTA_F32, 1, 1, c->heads, DIM);
    a.k = c->place->k(window, c->type->dtype, c->n, c->kv_heads);
    a.v = c->place->v(window + window_bytes(c->type, c->n, c->kv_heads) / 2, c->type->dtype, c->n,
                      c->kv_heads);
    a.out = santa_view(output, SANTA_F32, 1, 1, c->heads, DIM);
    if (c->scales) {
        const size_t size = window_bytes(c->type, c->n, c->kv_heads);
        const int64_t all = c->n * c->kv_heads, before = (window - arena.data) / (int64_t)size * 2 * all;
        a.k_scales = santa_view(c->scales + before, SANTA_F32, 1, c->n, c->kv_heads, 1);
        a.v_scales = santa_view(c->scales + before + all, SANTA_F32, 1, c->n, c->kv_heads, 1);
    }
    if (c->place->stored == PAGES) {
        a.max_pages = c->n / PAGE;
        a.block_table = block_table(a.max_pages);
    }
    return a;
}

/* Copies of K of this cell's windows: as many as do not fit in the cache together, so that
   they, too, come from memory. */
static struct { char *data; size_t bytes, size; int64_t count, next; } copies;

static int has_copy(const method *m) { return m->more == from_copy || m->more == by_both; }

static int64_t windows_of(const cell *c) {
    return (int64_t)(arena.bytes / window_bytes(c->type, c->n, c->kv_heads));
}
static const char *window_of_copy(const cell *c, int64_t i) {
    return arena.data + (size_t)(i % windows_of(c)) * window_bytes(c->type, c->n, c->kv_heads);
}

typedef struct encoder { const cell *c; santa_status s; } encoder;
static void encode_copy(void *context, int64_t i) {
    encoder *e = (encoder *)context;
    santa_attention a = attention(e->c, window_of_copy(e->c, i));
    a.proxy = copies.data + copies.size * (size_t)i;
    const santa_status s = santa_proxy_encode(&a, 0, e->c->n, NULL);
    if (s != SANTA_OK) e->s = s;
}

/* Blocks that a range of keys ends are that range's, so that threads each take one. */
typedef struct part_encoder {
    const cell *c;
    const santa_attention *a;
    santa_status s[MAX_THREADS];
} part_encoder;
static void encode_part(void *context, int64_t i) {
    part_encoder *e = (part_encoder *)context;
    const int64_t n = e->c->n, parts = e->c->threads;
    e->s[i] = santa_proxy_encode(e->a, n * i / parts, n * (i + 1) / parts, NULL);
}
static santa_status encode_in_parts(const cell *c, const santa_attention *a) {
    part_encoder e = { c, a, { SANTA_OK } };
    on_threads(c->threads, encode_part, &e);
    for (int i = 0; i < c->threads; i++) if (e.s[i] != SANTA_OK) return e.s[i];
    return SANTA_OK;
}

static santa_status make_copies(const cell *c) {
    santa_attention a = attention(c, arena.data);
    encoder e = { c, SANTA_OK };
    const size_t size = santa_proxy_size(&a);
    if (size == 0) return SANTA_ERR_PROXY_PAGE;
    if (copies.count) return SANTA_OK;
    copies.size = size;
    copies.count = (int64_t)(3 * last_level_cache() / 2 / size + 1);
    if (c->warm) copies.count = 1;
    if (copies.bytes < size * (size_t)copies.count) {
        free(copies.data);
        copies.bytes = size * (size_t)copies.count;
        copies.data = (char *)allocate(copies.bytes);
    }
    run_tasks(NULL, copies.count, encode_copy, &e);
    return e.s;
}

/* A router of random weights with 128 hidden units, and an index of random keys: buckets of
   about equal size. All KV heads have the same ones, since assigning 128k keys takes
   seconds. */
enum { HIDDEN = 128, ASSIGNED = 1024 };
static struct {
    santa_buckets r;
    uint16_t *weights;                               /* [numbers], for whatever array */
    float *biases, *keys;                            /* keys: [ASSIGNED, kv_heads, DIM] */
    void *small;                                     /* index of ASSIGNED keys */
    int64_t n, kv_heads;
    int paged;
} router;

static int has_router(const method *m) { return m->method == SANTA_SAAP; }

/* What "assign 1k" multiplies and adds. */
static double multiplied(const cell *c) {
    return 2.0 * (double)(ASSIGNED * c->kv_heads * buckets_for(c->n) * DIM);
}

static santa_status assign(const santa_attention *a, const santa_options *o) {
    const santa_tensor keys = santa_view(router.keys, SANTA_F32, 1, ASSIGNED, a->k.shape[2], DIM);
    santa_attention b;
    santa_buckets small = router.r;
    memset(&b, 0, sizeof b);
    b.k = keys;
    b.buckets = &small;
    small.index = router.small;
    return santa_buckets_assign(&b, &keys, 0, o);
}

static santa_attention *with_router(santa_attention *a) {
    a->buckets = &router.r;
    return a;
}

static santa_status make_router(const cell *c) {
    santa_attention a = attention(c, arena.data), one;
    const int64_t buckets = buckets_for(c->n), weights = c->kv_heads * buckets * (DIM + HIDDEN);
    const int paged = a.block_table != NULL;
    uint32_t x = 1;
    if (router.n == c->n && router.kv_heads == c->kv_heads && router.paged == paged) return SANTA_OK;
    free(router.weights); free(router.biases); free(router.keys); free(router.r.index); free(router.small);
    memset(&router, 0, sizeof router);
    router.n = c->n;
    router.kv_heads = c->kv_heads;
    router.paged = paged;
    router.weights = (uint16_t *)allocate((size_t)weights * sizeof *router.weights);
    router.biases = (float *)allocate((size_t)(c->kv_heads * (buckets + HIDDEN)) * sizeof(float));
    router.keys = (float *)allocate((size_t)(ASSIGNED * c->kv_heads * DIM) * sizeof(float));
    for (int64_t i = 0; i < weights; i++) {
        x = x * 1664525u + 1013904223u;
        router.weights[i] = santa_f32_to_f16((float)(x >> 8) / 16777216.0f - 0.5f);
    }
    memset(router.biases, 0, (size_t)(c->kv_heads * (buckets + HIDDEN)) * sizeof(float));
    router.r.num_buckets = buckets;
    router.r.hidden = HIDDEN;
    router.r.dtype = SANTA_F16;
    router.r.centroids = router.r.w1 = router.r.w2 = router.weights;
    router.r.b1 = router.r.b2 = router.biases;
    a.buckets = &router.r;
    const size_t bytes = santa_buckets_size(&a) / (size_t)c->kv_heads;
    if (!bytes) return SANTA_ERR_BUCKETS_SHAPE;
    router.r.index = allocate(bytes * (size_t)c->kv_heads);
    one = a;
    one.k = santa_view(router.keys, SANTA_F32, 1, ASSIGNED, c->kv_heads, DIM);
    one.block_table = NULL;
    router.small = allocate(santa_buckets_size(&one));
    one = a;
    one.k.shape[2] = 1;
    for (int64_t j = 0; j < c->n; j += ASSIGNED) {
        const santa_tensor keys = santa_view(router.keys, SANTA_F32, 1, ASSIGNED, 1, DIM);
        for (int64_t i = 0; i < ASSIGNED * DIM; i++) {
            x = x * 1664525u + 1013904223u;
            router.keys[i] = (float)(x >> 8) / 16777216.0f - 0.5f;
        }
        const santa_status s = santa_buckets_assign(&one, &keys, j, NULL);
        if (s != SANTA_OK) return s;
    }
    for (int64_t h = 1; h < c->kv_heads; h++)
        memcpy((char *)router.r.index + bytes * (size_t)h, router.r.index, bytes);
    for (int64_t h = 1; h < c->kv_heads; h++)
        memcpy(router.keys + h * ASSIGNED * DIM, router.keys, ASSIGNED * DIM * sizeof *router.keys);
    return SANTA_OK;
}

/* Options and workspace of a row; not SANTA_OK: santa.h refuses it. */
static santa_status prepare(const cell *c, row *r, const method *m, int64_t samples) {
    santa_attention a = attention(c, arena.data);
    memset(r, 0, sizeof *r);
    r->m = m;
    r->samples = samples;
    if (has_copy(m)) {
        const santa_status s = make_copies(c);
        if (s != SANTA_OK) return s;
    }
    if (has_router(m)) {
        const santa_status s = make_router(c);
        if (s != SANTA_OK) return s;
    }
    if (m->what == PRODUCTS) {
        r->workspace = allocate(sizeof(products));
        *(products *)r->workspace =
            products_make(set.isa->isa, SANTA_F32, multiplied(c) / (double)c->threads, c->threads);
    }
    if (m->what == PLAIN_C) r->workspace = allocate((size_t)c->n * sizeof(float));
    if (m->what == READ_ROWS) r->workspace = tenth(c);
    if (m->what != DECODE && m->what != ASSIGN) return SANTA_OK;
    r->o.method = m->method;
    r->o.num_samples = samples;
    r->o.isa = set.isa->isa;
    r->o.num_threads = c->threads;
    r->o.parallel_for = c->threads > 1 ? run_tasks : NULL;
    if (m->more) m->more(&r->o, c->n);
    santa_clear_unused_options(&r->o);
    if (m->what == ASSIGN) return SANTA_OK;
    r->workspace_bytes = santa_workspace_size(has_router(m) ? with_router(&a) : &a, &r->o);
    if (!r->workspace_bytes) return santa_check(&a, &r->o);
    r->workspace = allocate(r->workspace_bytes);
    return SANTA_OK;
}

/* What a row's call gets: a window, the copy of its K, the router. */
static santa_attention input_of(const cell *c, const row *r, const char *window, int64_t copy) {
    santa_attention a = attention(c, window);
    if (has_copy(r->m)) a.proxy = copies.data + copies.size * (size_t)copy;
    if (has_router(r->m)) with_router(&a);
    return a;
}

static double once(const cell *c, row *r) {
    const size_t bytes = window_bytes(c->type, c->n, c->kv_heads);
    const int64_t copy = has_copy(r->m) ? copies.next++ % copies.count : 0;
    const char *window = has_copy(r->m) ? window_of_copy(c, copy)
                         : c->warm      ? arena.data
                                        : next_window(bytes);
    santa_attention a = input_of(c, r, window, copy);
    const double start = now();
    for (int i = 0; i < c->repeat; i++) {
        santa_status s = SANTA_OK;
        switch (r->m->what) {
            case READ_K:  read_once(window, bytes / 2, c->threads); break;
            case ASSIGN: s = assign(&a, &r->o); break;
            case PRODUCTS: on_threads(c->threads, product_task, r->workspace); break;
            case READ_COPY: read_once((const char *)a.proxy, copies.size, c->threads); break;
            case ENCODE:  s = encode_in_parts(c, &a); break;
            case READ_ROWS: read_tenth(c, &a, (const int32_t *)r->workspace); break;
            case PLAIN_C:
                plain_c(c, (const float *)a.k.data, (const float *)a.v.data, (float *)r->workspace); break;
            case DECODE:  s = santa_decode(&a, &r->o, r->workspace, r->workspace_bytes, &r->stats); break;
        }
        if (s != SANTA_OK) fail(santa_status_string(s));
        r->o.offset++;
    }
    return (now() - start) / c->repeat;
}

/* rms length of the rows of V that a cell's first window begins with. */
static double length_of_v(const cell *c) {
    const santa_attention a = attention(c, arena.data);
    double squares = 0.0;
    int32_t j;
    for (j = 0; j < 64 && j < c->n; j++) {
        const float one = 1.0f;
        float v[DIM];
        if (santa_gather(&a, 0, 0, &j, &one, 1, v) != SANTA_OK) fail("santa_gather");
        for (int i = 0; i < DIM; i++) squares += (double)v[i] * (double)v[i];
    }
    return sqrt(squares / (double)j);
}

/* One more call of each row, on the first window, beside exact attention: rms over heads. */
static void find_errors(const cell *c, row *rows, int count) {
    static float exact[MOST_HEADS * DIM];
    santa_attention a = attention(c, arena.data);
    santa_options o;
    memset(&o, 0, sizeof o);
    o.isa = set.isa->isa;
    const size_t bytes = santa_workspace_size(&a, &o);
    void *workspace = allocate(bytes);
    if (santa_decode(&a, &o, workspace, bytes, NULL) != SANTA_OK) fail("exact attention");
    memcpy(exact, output, sizeof exact);
    free(workspace);
    const double length = length_of_v(c);
    for (int i = 0; i < count; i++) {
        row *r = rows + i;
        double squares = 0.0;
        if (r->m->what != DECODE) continue;
        a = input_of(c, r, arena.data, 0);
        const santa_status status = santa_decode(&a, &r->o, r->workspace, r->workspace_bytes, NULL);
        if (status != SANTA_OK) fail(santa_status_string(status));
        for (int64_t k = 0; k < c->heads * DIM; k++)
            squares += ((double)output[k] - (double)exact[k]) * ((double)output[k] - (double)exact[k]);
        r->error = sqrt(squares / (double)c->heads) / length;
    }
}

static void summarise(const cell *c, row *r) {
    const double size = (double)c->type->bytes / (double)c->type->block,
                 all = (double)(c->n * c->kv_heads * DIM);
    static double sorted[MAX_ROUNDS];
    memcpy(sorted, r->t, (size_t)r->runs * sizeof *sorted);
    qsort(sorted, (size_t)r->runs, sizeof *sorted, by_value);
    r->median = sorted[r->runs / 2];
    r->low = sorted[r->runs / 10];
    r->high = sorted[r->runs - 1 - r->runs / 10];
    switch (r->m->what) {
        case READ_K:    r->bytes = size * all; break;
        case READ_COPY: r->bytes = (double)copies.size; break;
        case ENCODE:    r->bytes = size * all + (double)copies.size; break;
        case PRODUCTS:  free(((products *)r->workspace)->tiles); break;
        case ASSIGN:    r->bytes = 4.0 * (double)(ASSIGNED * c->kv_heads * DIM); break;
        case READ_ROWS: r->bytes = size * 2.0 * (double)(tenth_of(c) * c->kv_heads * DIM); break;
        case PLAIN_C:   r->bytes = size * 2.0 * all; break;
        case DECODE:
            r->bytes = size * ((double)r->stats.k_features_read + (double)(r->stats.v_rows_read * DIM));
            if (has_copy(r->m))
                r->bytes +=
                    (double)copies.size * (double)r->stats.proxy_rows_read / (double)(c->n * c->kv_heads);
            break;
    }
    free(r->workspace);
}

/* Rounds over all rows until the time is spent; the first round warms up. The plain loop is
   slow and steady: three runs do. */
static void measure(const cell *c, row *rows, int count) {
    const double start = now();
    for (int round = -1; round < MIN_ROUNDS || (round < MAX_ROUNDS && now() - start < c->seconds); round++)
        for (int i = 0; i < count; i++) {
            row *r = rows + i;
            if (r->m->what == PLAIN_C && (round < 0 || r->runs == 3)) continue;
            const double t = once(c, r);
            if (round >= 0) r->t[r->runs++] = t;
        }
    for (int i = 0; i < count; i++) rows[i].error = -1.0;
    if (!c->warm) find_errors(c, rows, count);
    for (int i = 0; i < count; i++) summarise(c, rows + i);
    copies.count = 0;
}

/* ------------------------------------------------------------ output */

/* On a terminal, in one line. */
static struct { int done, all; double start; } progress;
static void end_progress(void) { if (isatty(2)) fprintf(stderr, "\r\033[K"); }
static void announce(const cell *c) {
    const double spent = now() - progress.start;
    if (!isatty(2)) return;
    end_progress();
    fprintf(stderr, "%3d %%  %s: %s %s, n %lld, %lld thread%s", 100 * progress.done / progress.all,
            c->section, c->type->name, c->place->name, (long long)c->n, (long long)c->threads,
            c->threads == 1 ? "" : "s");
    if (progress.done)
        fprintf(stderr, "   about %.0f s left", spent / progress.done * (progress.all - progress.done));
    progress.done++;
}

static int64_t threads_of(const cell *c, const row *r) { return r->m->what == PLAIN_C ? 1 : c->threads; }

static double rate(const row *r) { return r->bytes / r->median * 1e-9; }        /* GB/s */

static const row *find(const row *rows, int count, const char *name) {
    for (int i = 0; i < count; i++) if (!strcmp(rows[i].m->name, name)) return rows + i;
    return NULL;
}

/* How many times as fast as dense; all 0 without it. */
static gain over_dense(const row *r, const row *dense) {
    const gain none = { 0.0, 0.0, 0.0, 0.0 };
    return dense ? gain_of(dense->t, r->t, r->runs < dense->runs ? r->runs : dense->runs) : none;
}

/* floor and dense are the cell's rows, or NULL: the columns that need them are then 0. */
static void csv_row(const cell *c, const row *r, const row *floor, const row *dense) {
    static int started;
    if (!set.csv) return;
    if (!started++)
        fprintf(set.csv, "section,method,type,layout,n,threads,heads,kv_heads,num_samples,isa,"
                "median_ms,low_ms,high_ms,bytes,gb_per_s,read_gb_per_s,over_read_k,dense_over_method,"
                "gain_low,gain_high,p90_over_p10,error\n");
    const gain g = over_dense(r, dense);
    fprintf(set.csv, "%s,%s,%s,%s,%lld,%lld,%lld,%lld,%lld,%s,%.6f,%.6f,%.6f,%.0f,%.3f,%.3f,%.3f,"
            "%.3f,%.3f,%.3f,%.3f,%.3g\n",
            c->section, r->m->name, c->type->name, c->place->name, (long long)c->n,
            (long long)threads_of(c, r), (long long)c->heads, (long long)c->kv_heads, (long long)r->samples,
            set.isa->name, r->median * 1e3, r->low * 1e3, r->high * 1e3, r->bytes, rate(r),
            floor ? rate(floor) : 0.0, floor ? r->median / floor->median : 0.0,
            g.best, g.low, g.high, g.busy, r->error);
}

/* 100 columns, or 80: then without the spread of times. */
static int is_wide(void) {
    const char *columns = getenv("COLUMNS");
    const int given = columns ? atoi(columns) : 0;
    return given <= 0 || given >= 100;
}

/* The rows of a cell: to stdout and to the CSV file. */
static void print(const cell *c, const row *rows, int count) {
    const row *floor = find(rows, count, "read K"), *dense = find(rows, count, "dense");
    double busy = 0.0;
    end_progress();
    printf("\n%s %s, %lld keys, %lld heads on %lld, %lld thread%s\n", c->type->name, c->place->name,
           (long long)c->n, (long long)c->heads, (long long)c->kv_heads, (long long)c->threads,
           c->threads == 1 ? "" : "s");
    printf("%-10s %4s %9s%-*s %7s %6s %5s %6s %6s\n", "method", "S", "ms", is_wide() ? 21 : 0,
           is_wide() ? "  (10 .. 90 %)" : "", "MB", "error", "%read", "/readK", "dense/x (10 .. 90 %)");
    for (int i = 0; i < count; i++) {
        const row *r = rows + i;
        const gain g = over_dense(r, dense);
        char range[32] = "", draws[16] = "-", error[16] = "-";
        if (is_wide()) snprintf(range, sizeof range, "  (%.3f .. %.3f)", r->low * 1e3, r->high * 1e3);
        if (r->samples) snprintf(draws, sizeof draws, "%lld", (long long)r->samples);
        if (r->error > 0.0 && r->error < 1e-3) snprintf(error, sizeof error, "%.0e", r->error);
        else if (r->error >= 0.0) snprintf(error, sizeof error, "%.3f", r->error);
        printf("%-10s %4s %9.3f%-*s %7.1f %6s", r->m->name, draws, r->median * 1e3, is_wide() ? 21 : 0,
               range, r->bytes * 1e-6, error);
        if (floor) printf(" %5.1f %6.2f", 100.0 * rate(r) / rate(floor), r->median / floor->median);
        else printf(" %5s %6s", "-", "-");
        if (!dense || r == dense) printf(" %6s\n", "-");
        else if (g.busy > TOO_BUSY) printf(" %6s (%.2f .. %.2f)\n", "?", g.low, g.high);
        else printf(" %6.2f (%.2f .. %.2f)\n", g.best, g.low, g.high);
        if (g.busy > busy) busy = g.busy;
        csv_row(c, r, floor, dense);
    }
    if (busy > TOO_BUSY) printf("?: no verdict (machine too busy: p90/p10 = %.2f)\n", busy);
    fflush(stdout);
}

static int has_budget(const method *m) {
    return m->what == DECODE && m->method != SANTA_DENSE && m->method != SANTA_VATTENTION
           && m->method != SANTA_TOP_P && m->method != SANTA_SAAP;
}

/* What the loop is written for; once per context will do. */
static int plain_c_fits(const cell *c) {
    return c->type->dtype == SANTA_F32 && c->place->k == view_nhd && c->threads == set.threads[0];
}

/* The rows of the cell that santa.h takes and --methods wants; what it refuses is said. */
static int select_rows(const cell *c, row *rows, int64_t samples) {
    int count = 0;
    copies.count = 0;
    for (int i = 0; i < METHODS; i++) {
        const method *m = methods + i;
        if (!(set.methods >> i & 1) || !(m->layouts & c->place->stored) || (set.quick && !m->quick))
            continue;
        if (m->what == PLAIN_C && !plain_c_fits(c)) continue;
        if (m->more == eight_bits && c->type->dtype != SANTA_Q8_0) continue;
        const santa_status s = prepare(c, rows + count, m, has_budget(m) ? samples : 0);
        if (s == SANTA_OK) count++;
        else printf("# %s, %s %s: %s\n", m->name, c->type->name, c->place->name, santa_status_string(s));
    }
    return count;
}

/* ------------------------------------------------------------ the sections */

static cell new_cell(const char *section, const element *e, const layout *l, int64_t n, int64_t threads,
                     double seconds) {
    const cell c = { section, e, l, n, threads, set.heads, set.kv_heads, seconds, 0, 1, NULL };
    return c;
}

static void run_table_cell(cell *c) {
    static row rows[MAX_ROWS];
    announce(c);
    const int count = select_rows(c, rows, SAMPLES);
    measure(c, rows, count);
    print(c, rows, count);
}

/* K stored feature by feature is for one method only, and slow for the others; pages are like
   NHD but for the table: one context, most threads. */
static int in_table(int l, int n, int t) {
    const int stored = layouts[l].stored;
    if (!(set.layouts >> l & 1) || (stored == PAGES && set.n[n] % PAGE)) return 0;
    return stored == TOKENS || (n == set.n_count / 2 && t == set.thread_count - 1);
}

static int table_cells(void) {
    int cells = 0;
    for (int l = 0; l < LAYOUTS; l++)
        for (int n = 0; n < set.n_count; n++)
            for (int t = 0; t < set.thread_count; t++) cells += in_table(l, n, t);
    return cells;
}

static void table(const element *e) {
    for (int n = 0; n < set.n_count; n++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int t = 0; t < set.thread_count; t++) {
                cell c = new_cell("table", e, layouts + l, set.n[n], set.threads[t], set.quick ? 0.7 : 1.5);
                if (in_table(l, n, t)) run_table_cell(&c);
            }
}

static const method *method_named(const char *name) {
    const method *m = methods;
    while (strcmp(m->name, name)) m++;
    return m;
}

/* The named methods, whatever --methods says. */
static int prepare_rows(const cell *c, row *rows, const char *const *names, int count, int64_t samples) {
    for (int i = 0; i < count; i++) {
        const method *m = method_named(names[i]);
        const santa_status s = prepare(c, rows + i, m, has_budget(m) ? samples : 0);
        if (s != SANTA_OK) fail(santa_status_string(s));
    }
    return count;
}

static const char *const exact_and_sampled[] = { "dense", "sys", "read K" };

/* What a call costs beside its work: one thread, one head, K and V of 256 keys in the cache;
   n = 1 has next to no work. */
static void cost_of_a_call(const element *e) {
    for (int64_t n = 1; n <= 256; n += 255) {
        static row rows[2];
        cell c = new_cell("call", e, layouts, n, 1, 0.1);
        c.heads = c.kv_heads = 1;
        c.warm = 1;
        c.repeat = 1000;
        announce(&c);
        measure(&c, rows, prepare_rows(&c, rows, exact_and_sampled, 2, SAMPLES));
        end_progress();
        printf("# a call, %s, one head, %lld key%s in the cache: dense %.2f us, sys %.2f us\n",
               e->name, (long long)n, n == 1 ? "" : "s", rows[0].median * 1e6, rows[1].median * 1e6);
        for (int i = 0; i < 2; i++) csv_row(&c, rows + i, NULL, rows);
    }
}

/* Where sampling starts to pay: dense / sys over n / S, by the least times of each. */
enum { CROSS_FIRST = 1, CROSS_LAST = 64, CROSS_STEPS = 7 };
static const int64_t cross_samples[] = { 32, 128, 512 };
static void crossover(const element *e) {
    const int64_t threads = set.threads[set.thread_count - 1];
    for (int i = 0; i < 3; i++) {
        const int64_t samples = cross_samples[i];
        int64_t pays = 0;
        double busy = 0.0;
        char line[128];
        int length = 0;
        for (int64_t r = CROSS_FIRST; r <= CROSS_LAST; r *= 2) {
            static row rows[2];
            cell c = new_cell("crossover", e, layouts, r * samples, threads, set.quick ? 0.03 : 0.15);
            announce(&c);
            measure(&c, rows, prepare_rows(&c, rows, exact_and_sampled, 2, samples));
            const gain g = over_dense(rows + 1, rows);
            for (int m = 0; m < 2; m++) csv_row(&c, rows + m, NULL, rows);
            length += snprintf(line + length, sizeof line - (size_t)length, " %5.2f", g.best);
            pays = g.best <= 1.0 ? 0 : pays ? pays : r;        /* from here on, as far as was looked  */
            if (g.busy > busy) busy = g.busy;
        }
        end_progress();
        printf("# dense / sys, %s, S = %lld, n / S = %d, %d, %d .. %d:\n#  %s\n#   ", e->name,
               (long long)samples, CROSS_FIRST, 2 * CROSS_FIRST, 4 * CROSS_FIRST, CROSS_LAST, line);
        if (busy > TOO_BUSY) printf("no verdict (machine too busy: p90/p10 = %.2f)\n", busy);
        else if (pays) printf("sampling pays from n = %lld S\n", (long long)pays);
        else printf("sampling does not pay\n");
    }
    fflush(stdout);
}

/* One axis at a time around n = 32k, S = 128, group 4. */
static const int64_t sweep_n[] = { 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20 };
static const int64_t sweep_samples[] = { 16, 64, 256, 1024, 4096 };
static const int64_t sweep_group[] = { 1, 4, 8 };
enum {
    SWEEP_CONTEXTS = sizeof sweep_n / sizeof *sweep_n,
    SWEEP_SAMPLES = sizeof sweep_samples / sizeof *sweep_samples,
    SWEEP_GROUPS = sizeof sweep_group / sizeof *sweep_group,
    SWEEP_CELLS = SWEEP_CONTEXTS + SWEEP_SAMPLES + SWEEP_GROUPS,
    SWEEP_MIDDLE = 32768
};

/* of sys, and the rate at which K was read beside it */
typedef struct cost { double ms, mb, mb_per_ms; } cost;

/* all zero: left out */
static cost sweep_cell(const cell *c, int64_t samples) {
    static row rows[3];
    const size_t window = window_bytes(c->type, c->n, c->kv_heads);
    cost sys = { 0.0, 0.0, 0.0 };
    announce(c);
    if (window > (size_t)sysconf(_SC_PHYS_PAGES) / 2 * (size_t)sysconf(_SC_PAGESIZE)) {
        printf("# %s, n %lld: left out, K and V are %.1f GB, more than half of this machine's memory\n",
               c->type->name, (long long)c->n, (double)window * 1e-9);
        return sys;
    }
    fill_windows(c->type, c->n);
    measure(c, rows, prepare_rows(c, rows, exact_and_sampled, 3, samples));
    print(c, rows, 3);
    sys.ms = rows[1].median * 1e3;
    sys.mb = rows[1].bytes * 1e-6;
    sys.mb_per_ms = rate(rows + 2);
    return sys;
}

/* One axis, named by the section's second word; then what the bytes explain. */
static void sweep_axis(const char *section, const char *note, const cell *base, const int64_t *values,
                       int count) {
    cell c = *base;
    cost first = { 0.0, 0.0, 0.0 }, last = first;
    const char axis = section[strlen("sweep ")];
    c.section = section;
    printf("\n# %s\n", note);
    for (int i = 0; i < count; i++) {
        if (axis == 'n') c.n = values[i];
        if (axis == 'g') c.heads = values[i] * c.kv_heads;
        const cost here = sweep_cell(&c, axis == 'S' ? values[i] : SAMPLES);
        if (here.ms > 0.0) last = here;
        if (i == 0) first = here;
    }
    printf(
        "# from end to end sys needs %.1f MB more, %.3f ms at the rate of read K; it takes %.3f ms more\n",
        last.mb - first.mb, (last.mb - first.mb) / last.mb_per_ms, last.ms - first.ms);
}

static void sweep(const element *e) {
    for (int l = 0; l < LAYOUTS; l++) {
        const cell base =
            new_cell("", e, layouts + l, SWEEP_MIDDLE, set.threads[set.thread_count - 1], 1.0);
        if (!(set.layouts >> l & 1)) continue;
        sweep_axis("sweep S",
                   "draws: K is read whatever S is. The V rows drawn are S per query head at most,\n"
                   "# fewer where rows are drawn more than once or by several heads of a group.",
                   &base, sweep_samples, SWEEP_SAMPLES);
        sweep_axis("sweep group",
                   "group: K is read once per group, so dense and read K move the same bytes whatever\n"
                   "# the group is; what grows is the arithmetic of the scores and the V rows drawn.",
                   &base, sweep_group, SWEEP_GROUPS);
        sweep_axis("sweep n", 
                   "context: the bytes of K grow with n, those of the V rows drawn do not: dense / sys\n"
                   "# tends to 2 by bytes.", &base, sweep_n, SWEEP_CONTEXTS);
    }
}

#include "prefill.h"

/* Dense and sys on each type, in turns; of the types of a byte also with a scale for each row.
   Between two calls on a window come those on the other types' windows, which push it out of
   the cache: all together are as large as one type's arena elsewhere. */
typedef struct kind_of_rows {
    char name[16];
    memory memory;
    cell c;
    row rows[2];
} kind_of_rows;
static kind_of_rows kinds[2 * ELEMENTS];

static int add_kind(int count, const element *e, int64_t n, int64_t threads, int scaled) {
    kind_of_rows *k = kinds + count;
    if (!scaled) {                                   /* else the data of the kind before */
        const size_t window = window_bytes(e, n, set.kv_heads),
                     cold = 3 * last_level_cache() / (size_t)bits(set.types);
        memset(&arena, 0, sizeof arena);
        fill_arena(e, window > cold ? window : cold);
    }
    snprintf(k->name, sizeof k->name, "%s%s", e->name, scaled ? ", scales" : "");
    k->c = new_cell("type", e, layouts, n, threads, 0.0);
    if (scaled) {
        const int64_t of = 2 * n * set.kv_heads * (int64_t)(arena.bytes / window_bytes(e, n, set.kv_heads));
        float *scales = (float *)allocate((size_t)of * sizeof *scales);
        for (int64_t i = 0; i < of; i++) scales[i] = 0.875f + 0.03125f * (float)(i % 8);
        k->c.scales = scales;
    }
    prepare_rows(&k->c, k->rows, exact_and_sampled, 2, SAMPLES);
    k->memory = arena;
    return count + 1;
}

/* What kind i is to be compared with: floats of as many bytes, blocks with blocks, scales with
   none. */
static const kind_of_rows *beside(int i, int count) {
    const santa_dtype t = kinds[i].c.type->dtype,
                      like = kinds[i].c.scales ? t : t == SANTA_E5M2 ? SANTA_E4M3 : SANTA_Q8_0;
    for (int k = 0; k < count; k++)
        if (k != i && !kinds[k].c.scales && kinds[k].c.type->dtype == like
            && (kinds[i].c.scales || t == SANTA_E5M2 || t == SANTA_Q4_0)) return kinds + k;
    return NULL;
}

static void print_gain(const kind_of_rows *base, const row *r, int m, double *busy) {
    const gain none = { 0.0, 0.0, 0.0, 0.0 };
    const gain g = base ? gain_of(base->rows[m].t, r->t, r->runs) : none;
    if (!base || &base->rows[m] == r) printf(" %-21s", "");
    else if (g.busy > TOO_BUSY) printf("     ? (%.2f .. %.2f)", g.low, g.high);
    else printf(" %5.2f (%.2f .. %.2f)", g.best, g.low, g.high);
    if (g.busy > *busy) *busy = g.busy;
}

static void by_type(int64_t n, int64_t threads) {
    double busy = 0.0;
    int count = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        if (!(set.types >> i & 1)) continue;
        count = add_kind(count, elements + i, n, threads, 0);
        if (elements[i].bytes == 1) count = add_kind(count, elements + i, n, threads, 1);
    }
    const double start = now(), seconds = (set.quick ? 0.5 : 2.0) * count;
    for (int round = -1; round < MIN_ROUNDS || (round < MAX_ROUNDS && now() - start < seconds); round++)
        for (int i = 0; i < count; i++) {
            kind_of_rows *k = kinds + i;
            arena = k->memory;
            for (int m = 0; m < 2; m++) {
                const double from = cpu_seconds();
                once(&k->c, k->rows + m);
                if (round >= 0)
                    k->rows[m].t[k->rows[m].runs++] = (cpu_seconds() - from) / (double)threads;
            }
            k->memory.next = arena.next;
        }
    end_progress();
    printf("\n%lld keys, NHD, %lld heads on %lld, %lld thread%s, %d rounds; processor time over threads\n",
           (long long)n,
           (long long)set.heads, (long long)set.kv_heads, (long long)threads, threads == 1 ? "" : "s",
           kinds[0].rows[0].runs);
    printf("%-7s %-13s %9s %7s %6s  %-21s %s\n", "method", "K and V", "ms", "MB", "GB/s",
           "f16/x (10 .. 90 %)", "times as fast as");
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < count; i++) {
            const kind_of_rows *k = kinds + i, *like = beside(i, count), *f16 = NULL;
            row *r = &kinds[i].rows[m];
            for (int b = 0; b < count; b++) if (kinds[b].c.type->dtype == SANTA_F16) f16 = kinds + b;
            summarise(&k->c, r);
            printf("%-7s %-13s %9.3f %7.1f %6.2f ", r->m->name, k->name, r->median * 1e3, r->bytes * 1e-6,
                   rate(r));
            print_gain(f16, r, m, &busy);
            if (like) { print_gain(like, r, m, &busy); printf(" %s", like->name); }
            printf("\n");
            csv_row(&k->c, r, NULL, &k->rows[0]);
        }
    if (busy > TOO_BUSY) printf("?: no verdict (machine too busy: p90/p10 = %.2f)\n", busy);
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        if (!kinds[i].c.scales) free(kinds[i].memory.data);
        free((void *)(uintptr_t)kinds[i].c.scales);
    }
    memset(&arena, 0, sizeof arena);
}

static void prefill(const element *e) {
    prefill_header();
    for (int n = 0; n < set.n_count; n++)
        for (int d = 0; d < set.d_count; d++)
            for (int t = 0; t < set.thread_count; t++) {
                fprintf(stderr, "\r\033[K%3d %%  prefill: %s, head_dim %lld, n %lld, %lld threads",
                        100 * progress.done++ / progress.all, e->name, (long long)set.d[d],
                        (long long)set.n[n], (long long)set.threads[t]);
                prefill_cell(e, set.n[n], set.d[d], set.heads, set.kv_heads, set.threads[t],
                             set.isa->isa, set.quick ? 1.0 : 12.0, set.csv);
            }
}

/* ------------------------------------------------------------ options */

static void usage(void) {
    printf("  --quick         fewer cells, shorter\n"
           "  --sweep         cost against n (1k .. 1M), S (16 .. 4096) and group (1, 4, 8)\n"
           "                  instead of the table; f16, NHD\n"
           "  --by-type       dense and sys of all types in turns, fp8 with scales of rows, too\n"
           "  --prefill       attention of n query rows to n keys instead; f32,f16,bf16,\n"
           "                  4/1 heads\n"
           "  --head-dims LIST  of --prefill, multiples of 32: 64,128  [128]\n"
           "  --csv FILE      the rows as CSV\n"
           "  --n LIST        contexts: 4096,32k,1M\n"
           "  --threads LIST  1,2\n"
           "  --heads H/KV    query and KV heads, to 64/8  [32/8]\n"
           "  --huge-pages    ask the system for 2 MB pages for K and V\n"
           "and, of lists one or more, of isa one for all:\n");
    print_names("--types LIST", elements, sizeof *elements, ELEMENTS);
    print_names("--layouts LIST", layouts, sizeof *layouts, LAYOUTS);
    print_names("--methods LIST", methods, sizeof *methods, METHODS);
    print_names("--isa NAME", isas, sizeof *isas, ISAS);
}

/* "32/8" */
static void heads_in(const char *text, int64_t *heads, int64_t *kv_heads) {
    char *end;
    *heads = strtoll(text, &end, 10);
    *kv_heads = *end == '/' ? strtoll(end + 1, &end, 10) : 0;
    if (*end || *kv_heads < 1 || *kv_heads > KV_HEADS || *heads < 1 || *heads > MOST_HEADS
        || *heads % *kv_heads) {
        fprintf(stderr, "%s: not heads/KV heads, at most %d/%d, the first a multiple of the second\n", text,
                MOST_HEADS, KV_HEADS);
        refuse("--heads");
    }
}

static void parse(int argc, char **argv) {
    const char *types = NULL, *places = NULL, *n = NULL, *threads = NULL, *names = NULL, *isa = "auto",
               *csv = NULL;
    const char *heads = NULL, *head_dims = NULL;
    const struct { const char *name; const char **value; } texts[] = {
        { "--types", &types }, { "--layouts", &places }, { "--n", &n }, { "--threads", &threads },
        { "--methods", &names },
        { "--isa", &isa }, { "--csv", &csv }, { "--heads", &heads }, { "--head-dims", &head_dims },
    };
    const struct { const char *name; int *value; } flags[] = {
        { "--quick", &set.quick }, { "--sweep", &set.sweep }, { "--prefill", &set.prefill },
        { "--by-type", &set.by_type },
        { "--huge-pages", &huge_pages },
    };
    char processors[32];
    for (int i = 1; i < argc; i++) {
        int known = 0;
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
            if (!strcmp(argv[i], flags[f].name)) known = *flags[f].value = 1;
        for (size_t t = 0; t < sizeof texts / sizeof *texts && !known; t++)
            if (!strcmp(argv[i], texts[t].name) && i + 1 < argc) { *texts[t].value = argv[++i]; known = 1; }
        if (!known && !strcmp(argv[i], "--help")) { usage(); exit(0); }
        if (!known) {
            fprintf(stderr, "%s: ", argv[i]);
            refuse("not an option, or its value is missing");
        }
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const int all = set.quick || set.sweep;
    snprintf(processors, sizeof processors, all || set.by_type || online < 2 ? "%ld" : "1,%ld",
             set.by_type || online < 1 ? 1 : online);
    if (set.prefill + set.sweep + set.by_type > 1) refuse("--sweep, --by-type or --prefill, one of them");
    if ((set.prefill || set.by_type) && (names || places))
        refuse("--prefill and --by-type have methods and layouts of their own");
    if (set.sweep && (names || n)) refuse("--sweep has methods and contexts of its own");
    if (!set.prefill && head_dims) refuse("--head-dims is for --prefill");
    if (set.prefill && !types) types = "f32,f16,bf16";
    if (set.by_type && !types) types = "f16,e4m3,q8_0,e5m2,q4_0";
    if (set.by_type && !n) n = set.quick ? "4k" : "4k,32k";
    if (set.prefill && !n) n = set.quick ? "2k" : "2k,8k,32k";
    set.d_count = numbers_in(head_dims ? head_dims : "128", 1024, set.d);
    for (int i = 0; i < set.d_count; i++) if (set.d[i] % 32) refuse("--head-dims: multiples of 32");
    if (!types) types = set.sweep ? "f16" : set.quick ? "f32,f16,q8_0" : "f32,f16,bf16,e4m3,q8_0";
    set.types = NAMES_IN(types, elements, ELEMENTS);
    if (!places) places = set.sweep || set.quick ? "NHD" : "NHD,HND,HDN,P16";
    set.layouts = NAMES_IN(places, layouts, LAYOUTS);
    set.methods = names ? NAMES_IN(names, methods, METHODS) : ~0u;
    set.n_count = numbers_in(n ? n : set.quick ? "4k,32k" : "1k,4k,16k,32k,128k", INT32_MAX, set.n);
    set.thread_count = numbers_in(threads ? threads : processors, MAX_THREADS, set.threads);
    set.heads = set.prefill ? 4 : HEADS;
    set.kv_heads = set.prefill ? 1 : KV_HEADS;
    if (heads) heads_in(heads, &set.heads, &set.kv_heads);
    set.isa = isa_in(isa);
    if (!set.types || !set.layouts || !set.methods || !set.n_count || !set.thread_count)
        refuse("a list is empty");
    if (csv && !(set.csv = fopen(csv, "w"))) { perror(csv); exit(1); }
}

/* ------------------------------------------------------------ the run */

/* How fast this machine reads; the cells measure it again, beside their methods. */
static void print_bandwidth(const element *e) {
    static double t[21];
    fill_windows(e, 0);
    for (int i = 0; i < set.thread_count; i++) {
        for (int r = 0; r < 21; r++) {
            const double start = now();
            read_once(arena.data, arena.bytes, set.threads[i]);
            t[r] = (double)arena.bytes * 1e-9 / (now() - start);
        }
        qsort(t, 21, sizeof *t, by_value);
        printf("# read bandwidth, %lld thread%s: %.1f GB/s (%.1f .. %.1f)\n", (long long)set.threads[i],
               set.threads[i] == 1 ? "" : "s", t[10], t[2], t[18]);
    }
}

/* santa.h must take the type and the instruction set at all; a method or layout that it refuses
   is said in its cell. */
static int usable(const element *e) {
    cell c = new_cell("", e, layouts, 1, 1, 0.0);
    const santa_attention a = attention(&c, arena.data);
    santa_options o;
    memset(&o, 0, sizeof o);
    o.isa = set.isa->isa;
    const santa_status s = santa_check(&a, &o);
    if (s == SANTA_OK) return 1;
    printf("# %s with instruction set %s is left out: %s\n", e->name, set.isa->name,
           santa_status_string(s));
    return 0;
}

static void end_csv(void) {
    end_progress();
    if (set.csv && fclose(set.csv)) { perror("--csv"); exit(1); }
}

static void run_prefill(void) {
    printf("# Prefill: n query rows, n keys, causal, batch 1. product: f32, or bf16 where santa.h\n"
           "# multiplies that, tiles of %s in registers, operands in the first cache, each thread its\n"
           "# own. Times: processor time over threads, the\n"
           "# least of turns that all rows of a cell take; wall: elapsed, the least. "
           "GFLOP/s of dense: 4 d\n"
           "# operations for each query and key that it sees. sparse: "
           "SampleAttention, defaults, all stages,\n"
           "# on heads with planted columns and a slash; dense/x: dense over its time; kept, cost, mass:\n"
           "# santa_sample_audit, means over heads.\n",
           product_of(set.isa->isa, SANTA_F32).name);
    progress.all = bits(set.types) * set.n_count * set.d_count * set.thread_count;
    for (int i = 0; i < ELEMENTS; i++) if (set.types >> i & 1) prefill(elements + i);
    end_csv();
}

int main(int argc, char **argv) {
    uint64_t state = 1;
    parse(argc, argv);
    start_workers(set.threads[set.thread_count - 1] - 1);
    for (int i = 0; i < MOST_HEADS * DIM; i++) query_bf16[i] = santa_f32_to_bf16(query[i] = gauss(&state));
    print_machine(set.isa->isa);
    print_bandwidth(elements);
    for (int i = 0; i < ELEMENTS; i++)
        if ((set.types >> i & 1) && !usable(elements + i)) set.types &= ~(1u << i);
    if (!set.types) return 1;
    if (set.prefill) {
        run_prefill();
        return 0;
    }
    if (set.by_type) {
        printf("# One decode step, batch 1, head_dim %d, %d draws: types of K and V in turns,"
               " from memory.\n"
               "# scales: with a scale for each row of K and V, f32. MB: of K and V that the method\n"
               "# needs; f16/x: times faster than with f16; by the least times.\n", DIM, SAMPLES);
        for (int i = 0; i < set.n_count; i++)
            for (int t = 0; t < set.thread_count; t++) by_type(set.n[i], set.threads[t]);
        end_csv();
        return 0;
    }
    printf("# One decode step, batch 1, head_dim %d, K and V from memory. MB: of K and V that\n"
           "# the method needs; error: of a head's output, over the length of a row of V;\n"
           "# %%read: share of the rate at which K is read once in the same rounds by as many\n"
           "# threads; /readK: time over that read's; dense/x: times faster than dense, by\n"
           "# the least times. vattention: 10 %% of the keys per head (more below 64k),\n"
           "# predictor without cost; read 10 %%: as many rows of K and V, as single rows can\n"
           "# be read at best. products: as many as assign 1k has, in registers. bernoulli: sys,\n"
           "# one draw per K feature and group. P16: pages of 16 tokens, in no order. dense q8,\n"
           "# sys q8: SANTA_SCORES_Q8. The query is f32, to bf16 K bf16.\n", DIM);
    progress.all = bits(set.types)
                   * (set.sweep ? SWEEP_CELLS * bits(set.layouts) : table_cells() + 2 + 3 * CROSS_STEPS);
    progress.start = now();
    for (int i = 0; i < ELEMENTS; i++) {
        if (!(set.types >> i & 1)) continue;
        fill_windows(elements + i, set.sweep ? SWEEP_MIDDLE : set.n[set.n_count - 1]);
        if (set.sweep) { sweep(elements + i); continue; }
        table(elements + i);
        cost_of_a_call(elements + i);
        crossover(elements + i);
    }
    end_csv();
    return 0;
}
