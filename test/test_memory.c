/* Memory: what a call may read and write, to the byte. Inputs end (or begin) where the next
   page is unmapped, so that one element too many is a fault; outputs and workspace stand
   between canaries. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS and sigsetjmp under -std=c99 */
#define HAVE_MMAP 1
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
#endif
#include "harness.h"
#include <stdlib.h>

/* ------------------------------------------------------------ one problem */

typedef enum layout { NHD, HND, FEATURE_MAJOR, PAGED, LAYOUTS } layout;
static const char *const layout_names[] = {"NHD", "HND", "feature-major", "paged"};

enum { MAX_BATCH = 3, METHODS = SANTA_METHOD_COUNT };

/* Shapes of one call; the memory of its tensors is allocated by whoever tests it. */
typedef struct problem {
    /* capacity: keys the shapes speak of */
    int64_t     batch, q_len, heads, kv_heads, capacity, dim, dim_v, page;
    int64_t     len[MAX_BATCH];
    santa_dtype dtype;
    layout      kv_layout;
} problem;

static problem small_problem(void) {
    problem p;
    memset(&p, 0, sizeof p);
    p.batch    = 1;
    p.q_len    = 1;
    p.heads    = 6;
    p.kv_heads = 2;
    p.capacity = p.len[0] = p.len[1] = p.len[2] = 150;
    p.dim      = 40;
    p.dim_v    = 24;
    p.page     = 16;
    return p;
}

/* Types of blocks of 32 numbers. */
static int is_blocks(santa_dtype t) { return t == SANTA_Q8_0 || t == SANTA_Q4_0; }

/* Of n elements, or whole blocks. */
static size_t bytes_of(santa_dtype t, int64_t n) {
    return (size_t)(t == SANTA_F32                        ? 4 * n
                    : t == SANTA_E4M3 || t == SANTA_E5M2  ? n
                    : is_blocks(t)                        ? n / 32 * (t == SANTA_Q8_0 ? 34 : 18)
                                                          : 2 * n);
}
static size_t size_of(santa_dtype t) { return bytes_of(t, 1); }            /* of q and out */
static int64_t unit_of(santa_dtype t) { return is_blocks(t) ? 32 : 1; }      /* dims are multiples of it */

/* dtype is that of K and V, and of q and out where they can have it. */
static santa_dtype q_type(santa_dtype t) { return t >= SANTA_E4M3 ? SANTA_F32 : t; }

/* Head dims that the type can have, not smaller. */
static void round_dims(problem *p) {
    const int64_t unit = unit_of(p->dtype);
    p->dim   = (p->dim + unit - 1) / unit * unit;
    p->dim_v = (p->dim_v + unit - 1) / unit * unit;
}

/* In blocks x becomes the scale of element i's block. */
static void store(void *data, santa_dtype t, int64_t i, double x) {
    const float f = (float)x;
    if (t == SANTA_F32) {
        memcpy((char *)data + i * 4, &f, 4);
    } else if (t == SANTA_E4M3 || t == SANTA_E5M2) {
        ((uint8_t *)data)[i] = t == SANTA_E4M3 ? santa_f32_to_e4m3(f) : santa_f32_to_e5m2(f);
    } else {
        const uint16_t h = t == SANTA_BF16 ? santa_f32_to_bf16(f) : santa_f32_to_f16(f);
        memcpy((char *)data + bytes_of(t, i), &h, 2);
    }
}

/* Mean 0, variance 1, of two 32-bit uniforms: as good here as a normal one, and cheap. */
static double bell(test_rng *r) {
    const uint64_t w = test_next(r);
    return ((double)(w >> 32) - (double)(w & 0xffffffffu)) * (2.449489742783178 / 4294967296.0);
}

static void fill(void *data, santa_dtype t, int64_t n, uint64_t stream) {
    test_rng r = test_rng_make(stream);
    float block[32];
    for (int64_t i = 0; i < n; i += unit_of(t)) {
        for (int64_t e = 0; e < unit_of(t); e++) block[e] = (float)bell(&r);
        if (t == SANTA_Q8_0) santa_f32_to_q8_0(block, 32, (char *)data + bytes_of(t, i));
        else if (t == SANTA_Q4_0) santa_f32_to_q4_0(block, 32, (char *)data + bytes_of(t, i));
        else store(data, t, i, (double)block[0]);
    }
}

/* K or V with its first element at data, in the problem's layout, for rows of dim elements. */
static santa_tensor kv_view(const problem *p, void *data, int64_t dim) {
    const int64_t n = p->capacity;
    santa_tensor  t = santa_view(data, p->dtype, p->batch, n, p->kv_heads, dim);
    if (p->kv_layout == HND) t = santa_view_hnd(data, p->dtype, p->batch, n, p->kv_heads, dim);
    if (p->kv_layout == PAGED)
        t = santa_view(data, p->dtype, p->batch * ((n + p->page - 1) / p->page), p->page, p->kv_heads, dim);
    if (p->kv_layout == FEATURE_MAJOR) {
        t.stride[0] = p->kv_heads * dim * n;
        t.stride[1] = 1;
        t.stride[2] = dim * n;
        t.stride[3] = n;
    }
    return t;
}

static santa_options options_of(int method, int scores, int isa) {
    santa_options o;
    memset(&o, 0, sizeof o);
    o.method      = (santa_method)method;
    o.scores      = (santa_scores_method)scores;
    o.isa         = (santa_isa)isa;
    o.num_samples = 24;
    o.seed        = 11;
    o.vattention.sink_tokens = o.vattention.local_tokens = 8;
    santa_clear_unused_options(&o);
    return o;
}

static int has_std_error(santa_method m) { return !(santa_method_traits(m) & SANTA_BIASED); }

static int is_finite(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) < 0x7f800000u;
}

static float loaded(const void *data, santa_dtype t, int64_t i) {                /* of out: never e4m3 */
    float    f;
    uint16_t h;
    if (t == SANTA_F32) { memcpy(&f, (const char *)data + i * 4, 4); return f; }
    memcpy(&h, (const char *)data + i * 2, 2);
    return t == SANTA_F16 ? santa_f16_to_f32(h) : santa_bf16_to_f32(h);
}

static int all_finite(const void *data, santa_dtype t, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!is_finite(loaded(data, t, i))) return 0;
    return 1;
}

/* ------------------------------------------------------------ guard pages */

#ifdef HAVE_MMAP

/* Memory of exactly `bytes` bytes with an unmapped page right behind (at_end) or right in front
   of it. */
typedef struct guarded { unsigned char *map; size_t total; void *data; } guarded;

static guarded guard(size_t bytes, int at_end) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + page - 1) / page * page;
    guarded g;
    g.total = inside + 2 * page;
    void *map = mmap(NULL, g.total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) { g.map = NULL; g.data = NULL; return g; }
    g.map = (unsigned char *)map;
    mprotect(g.map, page, PROT_NONE);
    mprotect(g.map + page + inside, page, PROT_NONE);
    g.data = g.map + page + (at_end ? inside - bytes : 0);
    return g;
}

static void unguard(guarded g) {
    if (g.map) munmap(g.map, g.total);
}

/* A fault inside `santa_decode` comes back as a failed check instead of the end of the
   program. */
static sigjmp_buf fault_return;
static void on_fault(int signal_number) { siglongjmp(fault_return, signal_number); }

typedef struct guarded_call {
    const santa_attention *a;
    const santa_options   *o;
    void                  *workspace;
    size_t                 bytes;
    santa_stats           *stats;
} guarded_call;

static int decode_without_fault(guarded_call call, santa_status *status) {
    struct sigaction action, old_segv, old_bus;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
    const int fault = sigsetjmp(fault_return, 1);
    if (!fault) *status = santa_decode(call.a, call.o, call.workspace, call.bytes, call.stats);
    sigaction(SIGSEGV, &old_segv, NULL);
    sigaction(SIGBUS, &old_bus, NULL);
    return !fault;
}

/* One call on guarded memory that holds exactly what the call may touch, against the same call
   on plain memory. */
static void guarded_problem(const problem *p, santa_options o, int at_end) {
    enum { Q, K, V, OUT, LSE, STD_ERROR, LENS, TABLE, WORKSPACE, INDEX, BLOCKS };
    const int64_t rows    = p->batch * p->q_len * p->heads;
    const int64_t pages   = p->batch * ((p->capacity + p->page - 1) / p->page);
    const int64_t columns = pages / p->batch;
    const int64_t tokens  = p->kv_layout == PAGED ? pages * p->page : p->batch * p->capacity;
    const size_t  q_size  = size_of(q_type(p->dtype));
    santa_attention a, plain;
    guarded         g[BLOCKS];
    memset(&a, 0, sizeof a);

    /* Where nothing lies behind the last valid row, the memory ends with it. */
    int64_t k_elements = tokens * p->kv_heads * p->dim, v_elements = tokens * p->kv_heads * p->dim_v,
            entries = pages;
    if (p->kv_layout == NHD) {
        k_elements -= (p->capacity - p->len[p->batch - 1]) * p->kv_heads * p->dim;
        v_elements -= (p->capacity - p->len[p->batch - 1]) * p->kv_heads * p->dim_v;
    }
    if (p->kv_layout == PAGED) entries -= columns - (p->len[p->batch - 1] + p->page - 1) / p->page;

    a.q   = santa_view(&a, q_type(p->dtype), p->batch, p->q_len, p->heads, p->dim);
    a.k   = kv_view(p, &a, p->dim);
    a.v   = kv_view(p, &a, p->dim_v);
    a.out = santa_view(&a, q_type(p->dtype), p->batch, p->q_len, p->heads, p->dim_v);
    a.causal = p->q_len > 1;
    int32_t lens[MAX_BATCH];
    for (int b = 0; b < MAX_BATCH; b++) lens[b] = (int32_t)p->len[b];
    a.seq_lens = lens;
    int32_t *table = (int32_t *)test_alloc((size_t)pages * sizeof(int32_t));
    for (int64_t i = 0; i < pages; i++) table[i] = (int32_t)((i * 7 + 3) % pages);
    if (p->kv_layout == PAGED) {
        a.block_table = table;
        a.max_pages   = columns;
    }
    test_router router;
    test_route(&router, &a);
    const size_t bytes = santa_workspace_size(&a, &o), index_bytes = santa_buckets_size(&a);
    santa_buckets routed = *router.r;

    const size_t sizes[BLOCKS] = {(size_t)(rows * p->dim) * q_size,
                                  bytes_of(p->dtype, k_elements), bytes_of(p->dtype, v_elements),
                                  (size_t)(rows * p->dim_v) * q_size, (size_t)rows * 4, (size_t)rows * 4,
                                  (size_t)p->batch * 4, (size_t)entries * 4, bytes, index_bytes};
    int mapped = 1;
    for (int i = 0; i < BLOCKS; i++) {
        g[i] = guard(sizes[i], at_end);
        mapped = mapped && g[i].data;
    }
    if (!mapped) {
        test_skip("no memory to map");
    } else {
        fill(g[Q].data, q_type(p->dtype), rows * p->dim, 1);
        fill(g[K].data, p->dtype, k_elements, 2);
        fill(g[V].data, p->dtype, v_elements, 3);
        memcpy(g[LENS].data, lens, sizes[LENS]);
        memcpy(g[TABLE].data, table, sizes[TABLE]);
        memcpy(g[INDEX].data, router.r->index, index_bytes);
        routed.index = g[INDEX].data;
        a.buckets    = &routed;
        a.q.data   = g[Q].data;
        a.k.data   = g[K].data;
        a.v.data   = g[V].data;
        a.out.data = g[OUT].data;
        a.lse      = (float *)g[LSE].data;
        a.seq_lens = (const int32_t *)g[LENS].data;
        if (has_std_error(o.method)) a.std_error = (float *)g[STD_ERROR].data;
        if (a.block_table) a.block_table = (const int32_t *)g[TABLE].data;

        const guarded_call call = {&a, &o, g[WORKSPACE].data, bytes, NULL};
        santa_status status = SANTA_STATUS_COUNT;
        const int    ran    = decode_without_fault(call, &status);
        CHECK_MSG(ran, "fault: %s, %s, scores %d, isa %d, dtype %d, head_dim %d, %d, len %d, %s",
                  santa_method_name(o.method), layout_names[p->kv_layout], (int)o.scores, (int)o.isa,
                  (int)p->dtype, (int)p->dim, (int)p->dim_v, (int)p->len[p->batch - 1],
                  at_end ? "behind" : "in front");
        if (ran && CHECK_STATUS(status, SANTA_OK)) {
            CHECK_MSG(all_finite(g[OUT].data, q_type(p->dtype), rows * p->dim_v), "%s, %s: not finite",
                      santa_method_name(o.method), layout_names[p->kv_layout]);
            /* the same in plain, generously sized memory: K and V at other alignments, NaN
               where nothing may be read */
            plain = a;
            const int64_t nan_rows = (tokens + 1) * p->kv_heads;
            const size_t  size = bytes_of(p->dtype, unit_of(p->dtype));
            const size_t k_bytes = bytes_of(p->dtype, nan_rows * p->dim),
                         v_bytes = bytes_of(p->dtype, nan_rows * p->dim_v);
            unsigned char *k = (unsigned char *)test_alloc(k_bytes);
            unsigned char *v = (unsigned char *)test_alloc(v_bytes);
            unsigned char *out = (unsigned char *)test_alloc(sizes[OUT]),
                          *w = (unsigned char *)test_alloc(bytes + 64);
            memset(k, 0xff, k_bytes);
            memset(v, 0xff, v_bytes);
            memcpy(k + size, g[K].data, sizes[K]);
            memcpy(v + size, g[V].data, sizes[V]);
            plain.k.data   = k + size;
            plain.v.data   = v + size;
            plain.out.data = out;
            plain.seq_lens = lens;
            plain.lse = plain.std_error = NULL;
            if (plain.block_table) plain.block_table = table;
            memset(w, 0xff, bytes + 64);
            CHECK_STATUS(santa_decode(&plain, &o, w + 1, bytes, NULL), SANTA_OK);
            CHECK_MSG(!memcmp(out, g[OUT].data, sizes[OUT]),
                      "%s, %s, dtype %d, head_dim %d: the bits depend on the memory",
                      santa_method_name(o.method), layout_names[p->kv_layout], (int)p->dtype, (int)p->dim);
            free(k);
            free(v);
            free(out);
            free(w);
        }
    }
    for (int i = 0; i < BLOCKS; i++) unguard(g[i]);
    free(table);
    test_unroute(&router);
}

static void guard_shapes(void) {
    static const int64_t dims[] = {1, 3, 7, 8, 15, 17, 33, 64, 65, 80, 127, 128};
    static const int64_t lens[] = {1, 2, 63, 64, 65, 129};
    const int step = test_quick ? 7 : 5;                              /* neither divides what turns */
    int shape = 0;
    for (int t = SANTA_F32; t <= SANTA_Q4_0; t++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (size_t n = 0; n < sizeof lens / sizeof *lens; n++)
                for (int kv_layout = 0; kv_layout < LAYOUTS; kv_layout++, shape++) {
                    if (is_blocks((santa_dtype)t) && (kv_layout == FEATURE_MAJOR || d > 8)) continue;
                    const int turn = shape / step, round = turn / METHODS;
                    if (shape % step) continue;
                    problem p = small_problem();
                    p.dtype     = (santa_dtype)t;
                    p.dim       = dims[d];
                    p.dim_v     = dims[(d + n) % (sizeof dims / sizeof *dims)];
                    p.len[0]    = lens[n];
                    p.kv_layout = (layout)kv_layout;
                    /* eight heads together, then one */
                    if (turn % 5 == 0) { p.heads = 18; p.kv_heads = 9; }
                    round_dims(&p);
                    FOR_EACH_ISA (isa) {
                        santa_options o = options_of(turn % METHODS, SANTA_SCORES_EXACT, (int)isa);
                        if (round % 2) o.dense_below = 64;
                        santa_clear_unused_options(&o);
                        guarded_problem(&p, o, round % 3 != 0);
                    }
                }
}

static void guard_methods(void) {
    for (int m = 0; m < METHODS; m++)
        for (int scores = SANTA_SCORES_EXACT; scores <= SANTA_SCORES_GROUP_STRAT; scores++)
            for (int kv_layout = 0; kv_layout < LAYOUTS; kv_layout++)
                for (int at_end = 0; at_end < 2; at_end++) {
                    const int has_scores = !(santa_method_traits((santa_method)m) & SANTA_SPARSE);
                    problem p = small_problem();
                    if (scores != SANTA_SCORES_EXACT && !has_scores) continue;
                    p.dtype     = (santa_dtype)((m + scores + kv_layout) % 7);
                    if (is_blocks(p.dtype) && kv_layout == FEATURE_MAJOR) p.dtype = SANTA_E4M3;
                    p.kv_layout = (layout)kv_layout;
                    p.batch     = 2;
                    p.q_len     = 1 + (m + scores) % 2;
                    if ((m == SANTA_DENSE || !has_scores) && kv_layout % 2 == at_end) p.q_len = 40;
                    p.len[0]    = 70;
                    p.len[1]    = 133;
                    round_dims(&p);
                    if (test_quick && (m + scores + kv_layout) % 4) continue;
                    santa_options o = options_of(m, scores, SANTA_ISA_AUTO);
                    o.stash = (santa_stash)((scores + kv_layout) % 4);
                    santa_clear_unused_options(&o);
                    guarded_problem(&p, o, at_end);
                }
}

/* A sequence without a key: K and V are not looked at, wherever they point. */
static void empty_sequence(void) {
    for (int m = 0; m < METHODS; m++) {
        problem p = small_problem();
        p.len[0] = 0;
        santa_options o = options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
        santa_attention a;
        memset(&a, 0, sizeof a);
        guarded unmapped = guard(0, 1);
        if (!unmapped.map) SKIP("no memory to map");
        static float  q[6 * 40], out[6 * 24], lse[6];
        const int32_t len = 0;
        memset(out, 0xa5, sizeof out);
        memset(lse, 0xa5, sizeof lse);
        a.q   = santa_view(q, SANTA_F32, 1, 1, p.heads, p.dim);
        a.k   = kv_view(&p, unmapped.data, p.dim);
        a.v   = kv_view(&p, unmapped.data, p.dim_v);
        a.out = santa_view(out, SANTA_F32, 1, 1, p.heads, p.dim_v);
        a.lse = lse;
        a.seq_lens = &len;
        test_router router;
        test_route(&router, &a);
        const size_t bytes = santa_workspace_size(&a, &o);
        void *w = test_alloc(bytes);
        const guarded_call call = {&a, &o, w, bytes, NULL};
        santa_status status = SANTA_STATUS_COUNT;
        CHECK_MSG(decode_without_fault(call, &status), "%s read a key of an empty sequence",
                  santa_method_name(o.method));
        CHECK_STATUS(status, SANTA_OK);
        for (int i = 0; i < 6 * 24; i++) CHECK(out[i] == 0.0f);
        for (int i = 0; i < 6; i++) CHECK(lse[i] < 0.0f && !is_finite(lse[i]) && !test_is_nan(lse[i]));
        free(w);
        test_unroute(&router);
        unguard(unmapped);
    }
}

/* scores, sample, gather, merge and the feature-major copy on arrays of exactly the documented
   size. */
static void guard_steps(void) {
    enum { N = 133, HEADS = 6, KV = 2, GROUP = 3, DIM = 37, DIM_V = 13 };
    for (int at_end = 0; at_end < 2; at_end++)
        for (int m = 0; m < METHODS; m++) {
            if (santa_method_traits((santa_method)m) & SANTA_ADAPTS) continue;
            santa_options o = options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
            const int64_t capacity = santa_sample_capacity(N, &o);
            const size_t  need     = santa_sample_workspace_size(N, &o);
            static float  q[HEADS * DIM], k[N * KV * DIM], out[HEADS * DIM_V];
            santa_attention a;
            memset(&a, 0, sizeof a);
            fill(q, SANTA_F32, HEADS * DIM, 1);
            fill(k, SANTA_F32, N * KV * DIM, 2);
            guarded v = guard(sizeof(float) * N * KV * DIM_V, at_end), columns = guard(sizeof k, at_end);
            guarded scores = guard(sizeof(float) * GROUP * N, at_end);
            guarded index  = guard(sizeof(int32_t) * (size_t)capacity, at_end);
            guarded count  = guard(sizeof(int32_t) * (size_t)capacity, at_end);
            guarded weight = guard(sizeof(float) * (size_t)capacity, at_end);
            guarded row    = guard(sizeof(float) * DIM_V, at_end);
            if (!v.data || !columns.data || !scores.data || !index.data || !count.data || !weight.data ||
                !row.data)
                SKIP("no memory to map");
            fill(v.data, SANTA_F32, N * KV * DIM_V, 3);
            a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, DIM);
            a.k   = santa_view(k, SANTA_F32, 1, N, KV, DIM);
            a.v   = santa_view(v.data, SANTA_F32, 1, N, KV, DIM_V);
            a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, DIM_V);
            a.k   = santa_keys_feature_major(&a.k, columns.data);
            const size_t bytes = santa_workspace_size(&a, &o);
            guarded w = guard(bytes, at_end), sample_w = guard(need, at_end);
            CHECK_STATUS(santa_scores(&a, &o, 0, 0, 1, (float *)scores.data, N, w.data, bytes), SANTA_OK);
            santa_draws d;
            memset(&d, 0, sizeof d);
            d.index    = (int32_t *)index.data;
            d.count    = (int32_t *)count.data;
            d.weight   = (float *)weight.data;
            d.capacity = capacity;
            const santa_stream_id id = {0, GROUP, 0};
            /* ends where the memory ends */
            const float *last = (const float *)scores.data + (GROUP - 1) * N;
            if (CHECK_STATUS(santa_sample(last, N, &o, id, &d, sample_w.data, need), SANTA_OK)) {
                CHECK(d.rows > 0 && d.rows <= capacity);
                CHECK_STATUS(santa_gather(&a, 0, 1, d.index, d.weight, d.rows, (float *)row.data),
                             SANTA_OK);
                CHECK(all_finite(row.data, SANTA_F32, DIM_V));
                float lse = 0.0f;
                CHECK_STATUS(santa_merge(1, DIM_V, (float *)row.data, &lse, (const float *)row.data, &lse),
                             SANTA_OK);
            }
            const guarded all[] = {v, columns, scores, index, count, weight, row, w, sample_w};
            for (size_t i = 0; i < sizeof all / sizeof *all; i++) unguard(all[i]);
        }
}

/* Rows that lie gigabytes apart, forwards and backwards: an offset held in 32 bits lands on the
   wrong row. */
static void wide_strides(void) {
    if (sizeof(void *) < 8) SKIP("needs a 64-bit address space");
    enum { N = 5, DIM = 16, HEADS = 2 };
    const int64_t stride = (int64_t)1 << 30; /* elements; row 4 is 16 GiB away */
    const size_t  total  = (size_t)(N - 1) * (size_t)stride * 4 + 4096;
    void *map =
        mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) SKIP("no 16 GiB of address space");
    static float q[HEADS * DIM], k[N * DIM], v[N * DIM], want[HEADS * DIM];
    float *far_rows = (float *)map;
    fill(q, SANTA_F32, HEADS * DIM, 1);
    fill(k, SANTA_F32, N * DIM, 2);
    fill(v, SANTA_F32, N * DIM, 3);
    for (int m = 0; m < METHODS; m++)
        for (int backwards = 0; backwards < 2; backwards++) {
            santa_options o = options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
            santa_attention a;
            memset(&a, 0, sizeof a);
            a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, DIM);
            a.k   = santa_view(k, SANTA_F32, 1, N, 1, DIM);
            a.v   = santa_view(v, SANTA_F32, 1, N, 1, DIM);
            a.out = santa_view(want, SANTA_F32, 1, 1, HEADS, DIM);
            test_router router;
            test_route(&router, &a);
            const size_t bytes = santa_workspace_size(&a, &o);
            void *w = test_alloc(bytes);
            CHECK_STATUS(santa_decode(&a, &o, w, bytes, NULL), SANTA_OK);
            for (int j = 0; j < N; j++) {
                float *at = far_rows + (backwards ? N - 1 - j : j) * stride;
                memcpy(at, k + j * DIM, DIM * sizeof(float));
                memcpy(at + DIM, v + j * DIM, DIM * sizeof(float));
            }
            a.k.data = far_rows + (backwards ? (N - 1) * stride : 0);
            a.v.data = (float *)a.k.data + DIM;
            a.k.stride[1] = a.v.stride[1] = backwards ? -stride : stride;
            float *out = far_rows + 2 * DIM;                                     /* and heads of out, too */
            a.out.data      = out;
            a.out.stride[2] = (N - 1) * stride;
            CHECK_INT(santa_workspace_size(&a, &o), bytes);
            CHECK_STATUS(santa_decode(&a, &o, w, bytes, NULL), SANTA_OK);
            const size_t row = DIM * sizeof(float);
            CHECK_MSG(!memcmp(out, want, row) && !memcmp(out + (N - 1) * stride, want + DIM, row), "%s %s",
                      santa_method_name(o.method), backwards ? "backwards" : "forwards");
            test_unroute(&router);
            free(w);
        }
    munmap(map, total);
}

#else
static void no_mmap(void) { SKIP("needs mmap"); }
#define guard_shapes   no_mmap
#define guard_methods  no_mmap
#define empty_sequence no_mmap
#define guard_steps    no_mmap
#define wide_strides   no_mmap
#endif

/* ------------------------------------------------------------ everywhere */

enum { CANARY = 0xa5, MARGIN = 256 };

static int is_canary(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != CANARY) return 0;
    return 1;
}

/* K and V of a small problem on the heap, and a call on them. */
typedef struct call {
    problem         p;
    santa_attention a;
    santa_options   o;
    void           *q, *k, *v, *out;
    float          *lse, *std_error;
    test_router     router;
    size_t          bytes;
} call;

static call make_call(problem p, santa_options o) {
    call c;
    const int64_t rows = p.batch * p.q_len * p.heads, tokens = p.batch * p.capacity * p.kv_heads;
    const size_t  q_size = size_of(q_type(p.dtype));
    memset(&c, 0, sizeof c);
    c.p         = p;
    c.o         = o;
    c.q         = test_alloc((size_t)(rows * p.dim) * q_size);
    c.k         = test_alloc(bytes_of(p.dtype, tokens * p.dim));
    c.v         = test_alloc(bytes_of(p.dtype, tokens * p.dim_v));
    c.out       = test_alloc((size_t)(rows * p.dim_v) * q_size);
    c.lse       = (float *)test_alloc((size_t)rows * sizeof(float));
    c.std_error = (float *)test_alloc((size_t)rows * sizeof(float));
    fill(c.q, q_type(p.dtype), rows * p.dim, 1);
    fill(c.k, p.dtype, tokens * p.dim, 2);
    fill(c.v, p.dtype, tokens * p.dim_v, 3);
    c.a.q   = santa_view(c.q, q_type(p.dtype), p.batch, p.q_len, p.heads, p.dim);
    c.a.k   = kv_view(&p, c.k, p.dim);
    c.a.v   = kv_view(&p, c.v, p.dim_v);
    c.a.out = santa_view(c.out, q_type(p.dtype), p.batch, p.q_len, p.heads, p.dim_v);
    c.a.lse = c.lse;
    if (has_std_error(o.method)) c.a.std_error = c.std_error;
    test_route(&c.router, &c.a);
    c.bytes = santa_workspace_size(&c.a, &c.o);
    return c;
}

static void free_call(call *c) {
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->out);
    free(c->lse);
    free(c->std_error);
    test_unroute(&c->router);
}

/* out with gaps between its rows, lse, std_error and stats: only the elements of the views
   change. */
static void canaries(void) {
    for (int m = 0; m < METHODS; m++)
        for (int t = SANTA_F32; t <= SANTA_Q4_0; t++) {
            problem p = small_problem();
            p.dtype = (santa_dtype)t;
            p.batch = 2;
            p.q_len = 2;
            p.dim_v = 13 + m;
            round_dims(&p);
            call c = make_call(p, options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO));
            const int64_t rows = p.batch * p.q_len * p.heads, pitch = p.dim_v + 5;
            const size_t  size = size_of(q_type(p.dtype)), bytes = (size_t)(rows * pitch) * size;
            unsigned char *out = (unsigned char *)test_alloc(bytes + 2 * MARGIN);
            struct {
                unsigned char before[MARGIN];
                float lse[64], std_error[64];
                unsigned char after[MARGIN];
            } side;
            struct {
                unsigned char before[MARGIN];
                santa_stats stats;
                unsigned char after[MARGIN];
            } numbers;
            memset(out, CANARY, bytes + 2 * MARGIN);
            memset(&side, CANARY, sizeof side);
            memset(&numbers, CANARY, sizeof numbers);
            c.a.out.data      = out + MARGIN;
            c.a.out.stride[2] = pitch;
            c.a.out.stride[1] = p.heads * pitch;
            c.a.out.stride[0] = p.q_len * p.heads * pitch;
            c.a.lse           = side.lse;
            if (c.a.std_error) c.a.std_error = side.std_error;
            void *w = test_alloc(c.bytes);
            CHECK_STATUS(santa_decode(&c.a, &c.o, w, c.bytes, &numbers.stats), SANTA_OK);
            int gaps = is_canary(out, MARGIN) && is_canary(out + MARGIN + bytes, MARGIN);
            for (int64_t r = 0; r < rows; r++) {
                const unsigned char *row = out + MARGIN + (size_t)(r * pitch) * size;
                gaps = gaps && is_canary(row + (size_t)p.dim_v * size, 5 * size);
                CHECK(all_finite(row, q_type(p.dtype), p.dim_v));
            }
            CHECK_MSG(gaps, "%s wrote beside out", santa_method_name(c.o.method));
            CHECK(is_canary(side.before, MARGIN) && is_canary(side.after, MARGIN));
            CHECK(is_canary((unsigned char *)(side.lse + rows), (size_t)(64 - rows) * 4));
            CHECK(is_canary((unsigned char *)(side.std_error + rows), (size_t)(64 - rows) * 4));
            CHECK(is_canary(numbers.before, MARGIN) && is_canary(numbers.after, MARGIN));
            free(w);
            free(out);
            free_call(&c);
        }
}

static void serial_for(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    for (int64_t i = 0; i < count; i++) task(context, i);
}

/* The first task may take all the work: *user says which one is first. */
static void rotated_for(void *user, int64_t count, santa_task task, void *context) {
    for (int64_t i = 0; i < count; i++) task(context, (i + *(const int *)user) % count);
}

/* The bytes of the workspace that calls on every key of the capacity write, seen by poisoning
   it twice: the last of them lies within 512 bytes of the end (alignment, and a few rows that
   not every option needs), none lies outside, and three quarters of it and more are used. */
static void workspace_is_used_up(void) {
    for (int m = 0; m < METHODS; m++)
        for (int turn = 0; turn < 4; turn++) {
            const int threads = turn % 2 ? 3 : 1, together = turn / 2; /* one KV head or eight at a time */
            problem p = small_problem();
            p.capacity = p.len[0] = together ? 640 : 2048;
            p.batch    = together ? 1 : 3;
            p.kv_heads = together ? 12 : 1;
            p.heads    = 4 * p.kv_heads;
            santa_options o = options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
            o.num_samples = together ? 128 : 512;
            o.saap.num_probes = 4;                             /* many are visited, many drawn */
            santa_clear_unused_options(&o);
            int first       = 0;
            o.num_threads   = threads;
            o.parallel_for  = rotated_for;
            o.parallel_user = &first;
            call c = make_call(p, o);
            unsigned char *w    = (unsigned char *)test_alloc(c.bytes + 2 * MARGIN);
            unsigned char *used = (unsigned char *)test_alloc(c.bytes);
            memset(used, 0, c.bytes);
            for (int run = 0; run < 2 * threads; run++) {
                const int poison = run % 2;
                first = run / 2;
                memset(w, poison ? 0x5a : CANARY, c.bytes + 2 * MARGIN);
                memset(w, CANARY, MARGIN);
                memset(w + MARGIN + c.bytes, CANARY, MARGIN);
                CHECK_STATUS(santa_decode(&c.a, &c.o, w + MARGIN, c.bytes, NULL), SANTA_OK);
                CHECK_MSG(is_canary(w, MARGIN) && is_canary(w + MARGIN + c.bytes, MARGIN),
                          "%s wrote beside the workspace", santa_method_name(o.method));
                for (size_t i = 0; i < c.bytes; i++) used[i] |= w[MARGIN + i] != (poison ? 0x5a : CANARY);
            }
            size_t last = 0, count = 0;
            for (size_t i = 0; i < c.bytes; i++)
                if (used[i]) { last = i + 1; count++; }
            CHECK_MSG(c.bytes - last <= 512, "%s: %lu of %lu bytes are behind the last one used",
                      santa_method_name(o.method), (unsigned long)(c.bytes - last), (unsigned long)c.bytes);
            /* heads that share rows have room for lists without a key in common */
            const size_t least = o.method == SANTA_PPS ? 10 : together ? 15 : 16;
            CHECK_MSG(count * 20 >= c.bytes * least, "%s: only %lu of %lu bytes are used",
                      santa_method_name(o.method), (unsigned long)count, (unsigned long)c.bytes);
            free(w);
            free(used);
            free_call(&c);
        }
}

/* The documented bytes are enough at every address, and none of them is to spare where
   alignment takes most: the last part of the workspace is used to its end here, and one byte
   less is refused. */
static void workspace_to_the_byte(void) {
    for (int m = 0; m < METHODS; m++)
        for (int threads = 1; threads <= 2; threads++) {
            problem p = small_problem();
            p.dim_v = 16;                                                /* whole parts of 64 bytes */
            santa_options o = options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
            o.num_threads  = threads;
            o.parallel_for = serial_for;
            call c = make_call(p, o);
            unsigned char *w = (unsigned char *)test_alloc(c.bytes + 64 + 2 * MARGIN);
            for (size_t at = 0; at < 64; at++) {
                unsigned char *here = w + MARGIN;
                while ((uintptr_t)here % 64 != at) here++;
                memset(w, CANARY, c.bytes + 64 + 2 * MARGIN);
                CHECK_STATUS(santa_decode(&c.a, &c.o, here, c.bytes - 1, NULL), SANTA_ERR_WORKSPACE_SIZE);
                CHECK(is_canary(w, c.bytes + 64 + 2 * MARGIN));
                CHECK_STATUS(santa_decode(&c.a, &c.o, here, c.bytes, NULL), SANTA_OK);
                CHECK_MSG(is_canary(w, (size_t)(here - w)) && is_canary(here + c.bytes, MARGIN),
                          "%s, %d threads: wrote beside a workspace at %lu mod 64",
                          santa_method_name(o.method), threads, (unsigned long)at);
            }
            free(w);
            free_call(&c);
        }
}

/* The same of a sampler and of the measures. */
static void step_workspaces_to_the_byte(void) {
    enum { N = 128, DV = 8 };
    static float p[N], v[N * DV];
    for (int j = 0; j < N; j++) p[j] = 1.0f / N;
    fill(v, SANTA_F32, N * DV, 3);
    for (int m = 0; m < METHODS + 3; m++) {
        if (santa_method_traits((santa_method)m) & SANTA_ADAPTS) continue;
        santa_options o = options_of(m < METHODS ? m : 0, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
        o.num_samples = N;
        int32_t index[N];
        float   weight[N];
        santa_draws d = {index, NULL, weight, N, 0, 0, 0.0f};
        const santa_stream_id id = {0, 0, 0};
        const size_t bytes = m < METHODS ? santa_sample_workspace_size(N, &o)
                                         : santa_variance_workspace_size(N, DV);
        unsigned char *w = (unsigned char *)test_alloc(bytes + 64 + 2 * MARGIN);
        for (size_t at = 0; at < 64; at++) {
            unsigned char *here = w + MARGIN;
            while ((uintptr_t)here % 64 != at) here++;
            for (size_t less = 0; less < 2; less++) {
                double variance;
                santa_status status;
                memset(w, CANARY, bytes + 64 + 2 * MARGIN);
                const size_t given = bytes - less;
                if (m == METHODS) status = santa_variance_iid(p, N, v, DV, DV, 9, &variance, here, given);
                else if (m == METHODS + 1)
                    status = santa_variance_strat(p, N, v, DV, DV, 9, &variance, here, given);
                else if (m == METHODS + 2)
                    status = santa_variance_sys(p, N, v, DV, DV, 9, &variance, here, given);
                else                       status = santa_sample(p, N, &o, id, &d, here, given);
                CHECK_STATUS(status, less ? SANTA_ERR_WORKSPACE_SIZE : SANTA_OK);
                CHECK_MSG(is_canary(w, (size_t)(here - w)) && is_canary(here + bytes, MARGIN),
                          "%d: wrote beside a workspace at %lu mod 64", m, (unsigned long)at);
            }
        }
        free(w);
    }
}

/* Without causal, the first row of a window of w keys sees q_len - 1 keys more than w. */
static void workspace_of_a_window(void) {
    for (int m = 0; m < METHODS; m++)
        for (int causal = santa_method_traits((santa_method)m) & SANTA_SPARSE ? 1 : 0; causal < 2;
             causal++) {
            problem p = small_problem();
            p.capacity = p.len[0] = 1024;
            p.q_len    = 300;
            p.kv_heads = 1;
            p.heads    = 2;
            p.dim      = p.dim_v = 4;
            call c = make_call(p, options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO));
            c.a.causal = causal;
            c.a.window = 4;
            c.bytes    = santa_workspace_size(&c.a, &c.o);
            const size_t   behind = (size_t)1 << 16;
            unsigned char *w = (unsigned char *)test_alloc(c.bytes + behind);
            memset(w, CANARY, c.bytes + behind);
            CHECK_STATUS(santa_decode(&c.a, &c.o, w, c.bytes, NULL), SANTA_OK);
            CHECK_MSG(is_canary(w + c.bytes, behind),
                      "%s, causal %d: wrote behind a workspace of %lu bytes", santa_method_name(c.o.method),
                      causal, (unsigned long)c.bytes);
            CHECK(all_finite(c.out, SANTA_F32, p.q_len * p.heads * p.dim_v));
            free(w);
            free_call(&c);
        }
}

/* 32 heads over 8 KV heads of 128 at 131072 keys: the promise of the documentation, about 4
   group bytes a key, times the KV heads worked on at a time. */
static void workspace_size_of_a_long_context(void) {
    static float nothing[1];
    for (int kv_heads = 1; kv_heads <= 16; kv_heads *= 2)
        for (int turn = 0; turn < 4; turn++)
            for (int m = SANTA_IID; m <= SANTA_FLASH; m++) {
                const int threads = turn % 2 ? 2 : 1, hnd = turn / 2,
                          each = (kv_heads + threads - 1) / threads;
                const int shared = threads > 1 && (!hnd || kv_heads < 2 * threads);
                const int most = shared ? kv_heads : hnd ? 1 : each;
                const int jobs = (shared ? 1 : threads) * (most < 8 ? most : 8);
                santa_options o = options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
                santa_attention a;
                memset(&a, 0, sizeof a);
                a.q   = santa_view(nothing, SANTA_F32, 1, 1, 4 * kv_heads, 128);
                a.k   = hnd ? santa_view_hnd(nothing, SANTA_BF16, 1, 131072, kv_heads, 128)
                            : santa_view(nothing, SANTA_BF16, 1, 131072, kv_heads, 128);
                a.v   = a.k;
                a.out = santa_view(nothing, SANTA_F32, 1, 1, 4 * kv_heads, 128);
                o.num_samples  = 128;
                o.num_threads  = threads;
                o.parallel_for = serial_for;
                const double bytes = (double)santa_workspace_size(&a, &o),
                             want = (double)jobs * 4 * 4 * 131072;
                CHECK_MSG(bytes >= want && bytes < 1.125 * want,
                          "%s, %d KV heads, HND %d, %d threads: %.0f bytes, documented %.0f",
                          santa_method_name(o.method), kv_heads, hnd, threads, bytes, want);
            }
}

/* Rows too short for threads to share: a thread's share of the KV heads each, up to 8, where
   they are token-major, else one. */
static void workspace_of_short_rows(void) {
    static float nothing[1];
    for (int kv_heads = 1; kv_heads <= 16; kv_heads++)
        for (int threads = 1; threads <= 9; threads++) {
            santa_options o = options_of(SANTA_SYS, SANTA_SCORES_EXACT, SANTA_ISA_AUTO);
            santa_attention a;
            memset(&a, 0, sizeof a);
            a.q   = santa_view(nothing, SANTA_F32, 1, 1, 4 * kv_heads, 128);
            a.v   = santa_view_hnd(nothing, SANTA_BF16, 1, 1000, kv_heads, 128);
            a.out = santa_view(nothing, SANTA_F32, 1, 1, 4 * kv_heads, 128);
            a.k   = a.v;
            const double one = (double)santa_workspace_size(&a, &o);
            o.num_threads  = threads;
            o.parallel_for = serial_for;
            for (int nhd = 0; nhd <= (kv_heads > 1); nhd++) {
                const int share = nhd ? (kv_heads + threads - 1) / threads : 1,
                          jobs = threads * (share < 8 ? share : 8);
                if (nhd) a.k = santa_view(nothing, SANTA_BF16, 1, 1000, kv_heads, 128);
                const double bytes = (double)santa_workspace_size(&a, &o);
                CHECK_MSG(bytes <= jobs * one && bytes > (jobs - 0.5) * one,
                          "%d KV heads, NHD %d, %d threads: %.0f bytes, %d times %.0f expected", kv_heads,
                          nhd, threads, bytes, jobs, one);
            }
        }
}

/* The same bits whatever the workspace held before and wherever it begins, and with every
   pointer at an address that is a multiple of its element size only. */
static void alignment_and_dirt(void) {
    for (int m = 0; m < METHODS; m++)
        for (int t = SANTA_F32; t <= SANTA_Q4_0; t++) {
            problem p = small_problem();
            p.dtype = (santa_dtype)t;
            round_dims(&p);
            call c = make_call(p, options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO));
            const int64_t rows = p.batch * p.q_len * p.heads;
            const size_t size = is_blocks(p.dtype) ? 2 : size_of(p.dtype),
                         q_size = size_of(q_type(p.dtype));
            const size_t  out_bytes = (size_t)(rows * p.dim_v) * q_size;
            unsigned char *w    = (unsigned char *)test_alloc(c.bytes + 64);
            unsigned char *want = (unsigned char *)test_alloc(out_bytes);
            memset(w, 0, c.bytes + 64);
            CHECK_STATUS(santa_decode(&c.a, &c.o, w, c.bytes, NULL), SANTA_OK);
            memcpy(want, c.out, out_bytes);
            test_rng r = test_rng_make(9);
            for (size_t at = 0; at < 64; at += test_quick ? 7 : 1) {
                for (size_t i = 0; i < c.bytes + 64; i++)
                    w[i] = at % 3 == 0 ? 0xff : (unsigned char)test_next(&r);
                memset(c.out, CANARY, out_bytes);
                CHECK_STATUS(santa_decode(&c.a, &c.o, w + at, c.bytes, NULL), SANTA_OK);
                CHECK_MSG(!memcmp(c.out, want, out_bytes),
                          "%s, dtype %d: workspace at +%lu changes the result",
                          santa_method_name(c.o.method), t, (unsigned long)at);
            }
            const size_t   k_bytes = bytes_of(p.dtype, p.capacity * p.kv_heads * p.dim);
            const size_t   v_bytes = bytes_of(p.dtype, p.capacity * p.kv_heads * p.dim_v);
            const size_t   q_bytes = (size_t)(rows * p.dim) * q_size;
            unsigned char *q   = (unsigned char *)test_alloc(q_bytes + 64);
            unsigned char *k   = (unsigned char *)test_alloc(k_bytes + 64);
            unsigned char *v   = (unsigned char *)test_alloc(v_bytes + 64);
            unsigned char *out = (unsigned char *)test_alloc(out_bytes + 64);
            for (size_t at = q_size; at < 64; at += q_size * (test_quick ? 5 : 1)) {
                c.a.q.data   = memcpy(q + at, c.q, q_bytes);
                c.a.k.data   = memcpy(k + 64 - at / q_size * size, c.k, k_bytes);
                c.a.v.data   = memcpy(v + at / q_size * size, c.v, v_bytes);
                c.a.out.data = out + at;
                CHECK_STATUS(santa_decode(&c.a, &c.o, w, c.bytes, NULL), SANTA_OK);
                CHECK_MSG(!memcmp(out + at, want, out_bytes),
                          "%s, dtype %d: data at +%lu changes the result", santa_method_name(c.o.method), t,
                          (unsigned long)at);
            }
            free(q);
            free(k);
            free(v);
            free(out);
            free(w);
            free(want);
            free_call(&c);
        }
}

/* Keys past seq_lens and pages outside the table are NaN: were one of them read, it would
   show. */
static void poison(void) {
    for (int m = 0; m < METHODS; m++)
        for (int turn = 0; turn < 2 * LAYOUTS; turn++) {
            const int kv_layout = turn % LAYOUTS;
            if (test_quick && turn >= LAYOUTS && (m + turn) % 4) continue;
            problem p = small_problem();
            if (turn >= LAYOUTS) { p.heads = p.kv_heads = 10; }                  /* heads together in NHD */
            if (turn >= LAYOUTS && kv_layout != FEATURE_MAJOR) p.dtype = m % 2 ? SANTA_Q8_0 : SANTA_Q4_0;
            if (turn >= LAYOUTS && kv_layout == FEATURE_MAJOR) p.dtype = SANTA_E5M2;
            round_dims(&p);
            p.batch     = 3;
            p.q_len     = 2;
            p.kv_layout = (layout)kv_layout;
            p.capacity  = 160;
            p.len[0]    = 2;
            p.len[1]    = 65;
            p.len[2]    = 160;
            call c = make_call(p, options_of(m, SANTA_SCORES_EXACT, SANTA_ISA_AUTO));
            const int64_t pages = p.capacity / p.page;                           /* of one sequence */
            int32_t lens[MAX_BATCH], table[30];
            for (int b = 0; b < MAX_BATCH; b++) lens[b] = (int32_t)p.len[b];
            for (int i = 0; i < 30; i++) table[i] = i;
            c.a.seq_lens = lens;
            c.a.causal   = 1;
            if (kv_layout == PAGED) {
                c.a.block_table = table;
                c.a.max_pages   = pages;
                test_unroute(&c.router);
            }
            if (kv_layout == PAGED) test_route(&c.router, &c.a);
            c.bytes = santa_workspace_size(&c.a, &c.o);
            for (int64_t b = 0; b < p.batch; b++)
                for (int64_t j = p.len[b]; j < p.capacity; j++)
                    for (int64_t h = 0; h < p.kv_heads; h++) {
                        const santa_tensor *const kv[] = {&c.a.k, &c.a.v};
                        for (int i = 0; i < 2; i++) {
                            const santa_tensor *x = kv[i];
                            const int paged = kv_layout == PAGED;
                            const int64_t page = paged ? b * pages + j / p.page : b;
                            const int64_t at = page * x->stride[0] + h * x->stride[2] +
                                               (paged ? j % p.page : j) * x->stride[1];
                            for (int64_t e = 0; e < x->shape[3]; e += unit_of(p.dtype))
                                store(x->data, p.dtype, at + e * x->stride[3], (double)test_nan());
                        }
                    }
            void *w = test_alloc(c.bytes);
            CHECK_STATUS(santa_decode(&c.a, &c.o, w, c.bytes, NULL), SANTA_OK);
            CHECK_MSG(all_finite(c.out, q_type(p.dtype), p.batch * p.q_len * p.heads * p.dim_v),
                      "%s, %s: read past seq_lens", santa_method_name(c.o.method), layout_names[kv_layout]);
            free(w);
            free_call(&c);
        }
}

static void one_after_another(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    for (int64_t i = 0; i < count; i++) task(context, i);
}

/* A call of no items has a workspace, too: santa_scores works in it, though santa_decode would
   not. */
static void scores_of_an_empty_range(void) {
    problem p = small_problem();
    p.capacity = p.len[0] = 1024;
    p.kv_layout = HND;
    call c = make_call(p, options_of(SANTA_SYS, SANTA_SCORES_EXACT, SANTA_ISA_AUTO));
    c.o.num_threads  = 2;
    c.o.parallel_for = one_after_another;
    c.o.item_begin = c.o.item_end = 1;
    const size_t bytes = santa_workspace_size(&c.a, &c.o);
    float *scores = (float *)test_alloc(3 * 1024 * sizeof *scores);
    unsigned char *workspace = (unsigned char *)test_alloc(bytes + (1 << 20));
    memset(workspace, 0xa5, bytes + (1 << 20));
    CHECK_STATUS(santa_scores(&c.a, &c.o, 0, 0, 1, scores, 1024, workspace, bytes), SANTA_OK);
    CHECK(is_canary(workspace + bytes, 1 << 20));
    CHECK_STATUS(santa_decode(&c.a, &c.o, workspace, bytes, NULL), SANTA_OK);
    CHECK(is_canary(workspace + bytes, 1 << 20));
    free(scores); free(workspace);
    free_call(&c);
}

const test_case suite_memory[] = {
    {"guard pages around every shape", guard_shapes},
    {"guard pages around every method and score", guard_methods},
    {"guard pages around the steps", guard_steps},
    {"an empty sequence reads no key", empty_sequence},
    {"rows gigabytes apart", wide_strides},
    {"canaries around the outputs", canaries},
    {"NaN past seq_lens", poison},
    {"alignment and dirty workspace", alignment_and_dirt},
    {"workspace is used up and not overrun", workspace_is_used_up},
    {"workspace to the byte, at every address", workspace_to_the_byte},
    {"workspace of the steps to the byte, at every address", step_workspaces_to_the_byte},
    {"workspace of a window", workspace_of_a_window},
    {"workspace of 131072 keys", workspace_size_of_a_long_context},
    {"workspace of short rows", workspace_of_short_rows},
    {"santa_scores where the range of items is empty", scores_of_an_empty_range},
    {0, 0}
};
