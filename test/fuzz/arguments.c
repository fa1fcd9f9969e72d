/* Wild calls: valid ones of which a few fields got random or extreme values. Whatever the
   library says, it must not crash, hang, write outside of its outputs, or accept what it then
   cannot do. */
#include "fuzz.h"
#include "../reference.h"

/* ------------------------------------------------------------ the memory */

enum { ELEMENTS = 1 << 14, ORIGIN = ELEMENTS / 4, ENTRIES = 1 << 10, SLOTS = 1 << 10, CANARY = 0xa5 };

/* Each element is a finite number whatever type it is read as: a 16-bit half in [0x3c00,
   0x3fff] is in [1, 2) as f16 and below 2 as bf16 or as the upper half of an f32. Of its bytes
   as e4m3 only 0x7f and 0xff would be NaN. */
static union { float f[ELEMENTS]; uint16_t h[2 * ELEMENTS]; } q_data, k_data, v_data;

static struct outputs {
    unsigned char out[ELEMENTS * sizeof(float)];
    float         lse[SLOTS], std_error[SLOTS];
    santa_audit   audit[SLOTS];
    santa_sample_audit sampled[SLOTS];
    float         row_mass[SLOTS];
    uint8_t       mask[1 << 14];
    santa_stats   stats;
} got;

static unsigned char copy_data[1 << 17];                      /* a copy of K with anything in it */
enum { CENTROIDS = 5, UNITS = 6 };                            /* of the router, at most */
static int32_t  index_data[1 << 14];
static float    weights[4096];                                /* whichever of its arrays */
static int32_t  slots[ENTRIES];
static uint8_t  mask_data[1 << 14];                           /* blocks to read */
static santa_buckets router;
static int32_t  copied_lens[ENTRIES];
static float    sinks[ENTRIES], slopes[ENTRIES];
static int32_t  lens[ENTRIES], table[ENTRIES];
static uint64_t words[ENTRIES];                               /* seeds, offsets, request ids */

static void fill_memory(void) {
    test_rng r = test_rng_make(77);
    uint16_t *const arenas[] = {q_data.h, k_data.h, v_data.h};
    if (q_data.h[0]) return;
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < 2 * ELEMENTS; i++) {
            const uint16_t half = (uint16_t)(0x3c00u + (test_next(&r) & 0x83ffu)); /* and a random sign */
            /* no NaN of e4m3 and e5m2, no number of theirs that leaves f16 */
            arenas[a][i] = (half & 0x7c) > 0x50 ? half ^ 0x40 : half;
        }
    for (int i = 0; i < ENTRIES; i++) words[i] = test_next(&r);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        weights[i] = (float)(test_uniform(&r) - 0.5);
    for (size_t i = 0; i < sizeof mask_data; i++) mask_data[i] = test_next(&r) % 3 != 0;
    for (size_t i = 0; i < sizeof copy_data; i++) copy_data[i] = (unsigned char)test_next(&r);
}

/* Of n elements; of q8_0 whole blocks, whose scale is a half of the arena. */
static int64_t bytes_of(santa_dtype t, int64_t n) {
    return ref_bytes(t, n);
}
static int64_t size_of(santa_dtype t) { return bytes_of(t, 1); }                 /* of q or out */

/* Whether a view lies inside its arena. */
static int inside(const santa_tensor *t, const void *arena) {
    const int64_t origin = (const char *)t->data - (const char *)arena;
    int64_t low = 0, high = 0;
    for (int d = 0; d < 4; d++) {
        if (t->shape[d] < 1) return 0;
        if (t->shape[d] == 1 || t->stride[d] == 0) continue;
        if (t->shape[d] > ELEMENTS || t->stride[d] > ELEMENTS || t->stride[d] < -ELEMENTS) return 0;
        const int64_t way = (t->shape[d] - 1) * t->stride[d];
        if (way < 0) low += way;
        else         high += way;
    }
    return origin + bytes_of(t->dtype, low) >= 0 && origin + bytes_of(t->dtype, high + 1) <= ELEMENTS * 4;
}

static int64_t offset_of(const santa_tensor *t, int64_t i, int64_t j, int64_t h, int64_t e) { /* in bytes */
    const int64_t at[4] = {i, j, h, e};
    int64_t sum = 0;
    for (int d = 0; d < 4; d++)
        if (t->shape[d] > 1) sum += at[d] * t->stride[d]; /* the stride of a size of 1 may be anything */
    return (const char *)t->data - (const char *)got.out + sum * size_of(t->dtype);
}

/* Marks the bytes of the view in a copy of the arena, so that what differs outside of them
   shows. */
static int outside_untouched(const santa_tensor *t) {
    static unsigned char mine[sizeof got.out];
    memset(mine, 0, sizeof mine);
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t e = 0; e < t->shape[3]; e++)
                    memset(mine + offset_of(t, i, j, h, e), 1, (size_t)size_of(t->dtype));
    for (size_t i = 0; i < sizeof mine; i++)
        if (!mine[i] && got.out[i] != CANARY) return 0;
    return 1;
}

static float loaded(const unsigned char *p, santa_dtype t) {
    float    f;
    uint16_t h;
    if (t == SANTA_F32) { memcpy(&f, p, 4); return f; }
    memcpy(&h, p, 2);
    return t == SANTA_F16 ? santa_f16_to_f32(h) : santa_bf16_to_f32(h);
}

static int out_is_finite(const santa_tensor *t) {
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t e = 0; e < t->shape[3]; e++)
                    if (!fuzz_is_finite(loaded(got.out + offset_of(t, i, j, h, e), t->dtype))) return 0;
    return 1;
}

/* ------------------------------------------------------------ a call */

typedef struct fuzz_call {
    santa_attention a;
    santa_options   o;
    int             tame;                                     /* no value that may overflow a score */
} fuzz_call;

static void serial_for(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    for (int64_t i = 0; i < count; i++) task(context, i);
}

/* Picks whatever indices it likes, some of them outside of the range and twice. */
static int64_t some_keys(void *user, int64_t batch, int64_t q_index, int64_t head, const float *q,
                         int64_t begin, int64_t end, int64_t count, int32_t *index) {
    (void)user;
    (void)batch;
    (void)q_index;
    (void)q;
    for (int64_t i = 0; i < count; i++)
        index[i] = (int32_t)(begin - 2 + (i * 7 + head) % (end - begin + 4));
    return count > 3 ? count - 1 : count;
}

static santa_tensor arena_view(void *arena, santa_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                               int64_t n3, int hnd) {
    char *data = (char *)arena + bytes_of(dtype, ORIGIN);
    return hnd ? santa_view_hnd(data, dtype, n0, n1, n2, n3) : santa_view(data, dtype, n0, n1, n2, n3);
}

/* What sparse prefill has to itself. */
static void valid_sparse(fuzz_source *s, fuzz_call *c) {
    santa_sample_attention_options *x = &c->o.sample_attention;
    c->o.scores = SANTA_SCORES_EXACT;
    c->a.causal = 1;
    c->a.context_lens = NULL;
    x->alpha_columns = (double)fuzz_between(s, 0, 20) / 20.0;
    x->alpha_slashes = (double)fuzz_between(s, -1, 0) + (double)fuzz_below(s, 2);
    x->num_chunks    = fuzz_below(s, 5);
    x->block_size    = 64 * fuzz_below(s, 3);
    x->per_head      = fuzz_chance(s, 2);
    x->dense_above   = fuzz_chance(s, 2) ? (double)SANTA_NONE : 0.0;
    if (fuzz_chance(s, 3)) x->mask = mask_data;
    if (fuzz_chance(s, 2)) x->mask_out = got.mask;
    if (fuzz_chance(s, 2)) x->audit = got.sampled;
    if (fuzz_chance(s, 2)) x->row_mass = got.row_mass;
}

/* A router, and random keys in its index. */
static void valid_router(fuzz_source *s, fuzz_call *c) {
    const santa_attention *a = &c->a;
    const int64_t batch = a->q.shape[0], heads = a->k.shape[2], dim = a->k.shape[3];
    memset(&router, 0, sizeof router);
    router.num_buckets = fuzz_between(s, 1, CENTROIDS);
    router.hidden      = fuzz_chance(s, 2) ? fuzz_between(s, 1, UNITS) : 0;
    router.centroids = router.w1 = router.w2 = weights;
    router.b1 = router.b2 = weights;
    router.index = index_data;
    for (int i = 0; i < ENTRIES; i++) slots[i] = (int32_t)(i % batch);
    if (fuzz_chance(s, 3)) router.slots = slots;
    if (fuzz_chance(s, 3)) router.q = a->q;
    c->a.buckets = &router;
    c->o.saap.num_probes   = fuzz_between(s, -1, 6);
    c->o.saap.sink_tokens  = fuzz_between(s, -1, 70);
    c->o.saap.local_tokens = fuzz_between(s, -1, 70);
    c->o.saap.measure_mass = fuzz_chance(s, 4);
    if (fuzz_chance(s, 3) && c->o.scores != SANTA_SCORES_PROXY) c->o.num_samples = SANTA_NONE;
    memset(index_data, 0xa5, sizeof index_data);
    const santa_tensor keys = santa_view(weights, SANTA_F16, batch, 1, heads, dim);
    const int64_t n = a->k.shape[1] * (a->block_table ? a->max_pages : 1);
    for (int64_t j = 0; j < n; j++) CHECK_STATUS(santa_buckets_assign(a, &keys, j, NULL), SANTA_OK);
}

static fuzz_call valid_call(fuzz_source *s) {
    fuzz_call c;
    memset(&c, 0, sizeof c);
    const int     many = fuzz_chance(s, 6);                   /* query rows */
    const int64_t batch = fuzz_between(s, 1, 3),
                  q_len = many ? fuzz_between(s, 32, 80) : fuzz_between(s, 1, 3);
    const int64_t kv_heads = fuzz_between(s, 1, many ? 1 : 3), group = fuzz_between(s, 1, many ? 2 : 5);
    const santa_dtype kv = (santa_dtype)fuzz_below(s, 7), other = (santa_dtype)fuzz_below(s, 3);
    const int64_t blocks = ref_is_blocks(kv), n = fuzz_between(s, 1, blocks ? 40 : 200),
                  page = fuzz_chance(s, 4) ? 16 * fuzz_between(s, 1, 3) : fuzz_between(s, 1, 20);
    const int64_t dim = blocks ? 32 * fuzz_between(s, 1, 2)
                               : fuzz_chance(s, 4) ? 8 : fuzz_between(s, 1, 9),
                  dim_v = blocks ? 32 : fuzz_between(s, 1, 9);
    const int     paged = fuzz_chance(s, 3), hnd = fuzz_chance(s, 3);
    const int64_t pages = (n + page - 1) / page;
    const int64_t k0 = paged ? pages : batch, k1 = paged ? page : n;
    c.tame  = 1;
    c.a.q   = arena_view(&q_data, other, batch, q_len, kv_heads * group, dim, 0);
    c.a.k   = arena_view(&k_data, kv, k0, k1, kv_heads, dim, hnd);
    c.a.v   = arena_view(&v_data, kv, k0, k1, kv_heads, dim_v, hnd);
    c.a.out = arena_view(got.out, other, batch, q_len, kv_heads * group, dim_v, 0);
    if (paged) {
        c.a.block_table = table;
        c.a.max_pages   = pages;
        for (int64_t i = 0; i < batch * pages; i++) table[i] = (int32_t)fuzz_below(s, pages);
    }
    for (int i = 0; i < ENTRIES; i++) {
        lens[i]   = (int32_t)(n - i % 3 * (n / 3));
        sinks[i]  = (float)(i % 5) - 2.0f;
        slopes[i] = 0.01f * (float)(i % 7);
    }
    for (int i = 0; i < ENTRIES; i++) copied_lens[i] = lens[i] / 2;
    if (fuzz_chance(s, 2)) c.a.seq_lens = lens;
    if (fuzz_chance(s, 2)) c.a.lse = got.lse;
    if (fuzz_chance(s, 4)) c.a.sinks = sinks;
    if (fuzz_chance(s, 4)) c.a.alibi_slopes = slopes;
    if (fuzz_chance(s, 4)) c.a.soft_cap = 5.0f;
    if (fuzz_chance(s, 4)) c.a.window = fuzz_between(s, 1, 100);
    if (c.a.window && fuzz_chance(s, 2)) c.a.first_tokens = fuzz_between(s, 1, 100);
    if (fuzz_chance(s, 4)) c.a.sm_scale = 0.3f;
    if (fuzz_chance(s, 4)) c.a.k_scale = c.a.v_scale = 0.7f;
    if (fuzz_chance(s, 4)) c.a.k_scales = arena_view(&k_data, other, k0, k1, kv_heads, 1, hnd);
    if (fuzz_chance(s, 4)) c.a.v_scales = arena_view(&v_data, other, k0, k1, kv_heads, 1, !hnd);
    c.a.causal = fuzz_chance(s, 2);

    c.o.method      = (santa_method)fuzz_below(s, SANTA_METHOD_COUNT);
    c.o.scores      = (santa_scores_method)(fuzz_chance(s, 3) ? fuzz_below(s, 6) : 0);
    c.o.num_samples = fuzz_between(s, 0, 300);
    c.o.isa         = test_isa_from((int)fuzz_below(s, SANTA_ISA_COUNT));
    if (c.o.isa == SANTA_ISA_COUNT) c.o.isa = SANTA_ISA_AUTO;
    if (fuzz_chance(s, 3)) c.o.dense_below = fuzz_between(s, -1, 200);
    c.o.stash       = (santa_stash)fuzz_below(s, 4);
    c.o.seed        = fuzz_take(s, 1);
    if (c.o.method == SANTA_PROP || c.o.method == SANTA_FLASH) c.o.tile_size = 64 * fuzz_below(s, 3);
    if (c.o.method == SANTA_FLASH && fuzz_chance(s, 2)) c.o.tile_size = 8 << fuzz_below(s, 3);
    if (c.o.method == SANTA_SYS) c.o.num_combs = fuzz_below(s, 2);
    if (c.o.method == SANTA_TOP_P) c.o.top_p = (double)fuzz_between(s, 0, 10) / 10.0;
    if (dim % 8 == 0 && (!paged || page % 16 == 0) && fuzz_chance(s, 2)) {
        static const santa_method methods[] = {SANTA_SYS, SANTA_PROP, SANTA_PPS, SANTA_TOP_K,
                                               SANTA_TOP_P, SANTA_VATTENTION, SANTA_SAAP};
        c.o.scores = SANTA_SCORES_PROXY;
        c.o.method = methods[fuzz_below(s, 7)];
        c.o.tile_size = c.o.num_combs = 0;
        c.o.proxy.sink_tokens  = fuzz_between(s, -1, 70);
        c.o.proxy.local_tokens = fuzz_between(s, -1, 70);
        c.o.proxy.rescue_keys  = fuzz_between(s, -1, 70);
        if (fuzz_chance(s, 2)) c.o.proxy.rescue_above = c.o.proxy.exact_above = SANTA_NONE;
        if (fuzz_chance(s, 2)) c.a.proxy_lens = copied_lens;
        c.a.proxy = copy_data + fuzz_below(s, 2);
        c.a.proxy_bits = 2 * (int)fuzz_below(s, 3);
    }
    if (c.o.method == SANTA_SAAP) valid_router(s, &c);
    if (c.o.method == SANTA_SAMPLE_ATTENTION) valid_sparse(s, &c);
    if (!(santa_method_traits(c.o.method) & SANTA_BIASED) && c.o.num_samples >= 0 && fuzz_chance(s, 2))
        c.a.std_error = got.std_error;
    if (fuzz_chance(s, 4)) c.o.seeds = words;
    if (fuzz_chance(s, 4)) c.o.offsets = words + 3;
    if (fuzz_chance(s, 4)) c.o.request_ids = words + 6;
    if (fuzz_chance(s, 2)) c.o.parallel_for = serial_for;
    if (c.o.parallel_for) c.o.num_threads = fuzz_below(s, 5);
    if (fuzz_chance(s, 4)) {
        c.o.item_begin = fuzz_below(s, batch * kv_heads);
        c.o.item_end   = fuzz_between(s, c.o.item_begin, batch * kv_heads);
    }
    santa_vattention_options *v = &c.o.vattention;
    v->sink_tokens  = fuzz_between(s, -1, 20);
    v->local_tokens = fuzz_between(s, -1, 20);
    v->heavy_tokens = fuzz_between(s, -1, 20);
    v->base_samples = fuzz_chance(s, 2) ? 0 : fuzz_between(s, 2, 40);
    v->epsilon      = (double)fuzz_below(s, 10) / 10.0;
    v->delta        = (double)fuzz_below(s, 10) / 10.0;
    v->guarantee    = (santa_guarantee)fuzz_below(s, 2);
    v->bound        = (santa_bound)fuzz_below(s, 2);
    if (fuzz_chance(s, 3)) v->heavy = some_keys;
    if (fuzz_chance(s, 2)) v->audit = got.audit;
    santa_clear_unused_options(&c.o);
    return c;
}

static void mutate(fuzz_source *s, fuzz_call *c) {
    santa_attention *a = &c->a;
    santa_options   *o = &c->o;
    santa_tensor *const tensors[] = {&a->q, &a->k, &a->v, &a->out, &a->k_scales, &a->v_scales};
    int64_t *const integers[] = {
        &a->max_pages, &a->block_table_stride, &a->window, &a->first_tokens, &o->num_samples, &o->tile_size,
        &o->bernoulli_draws, &o->num_threads, &o->item_begin, &o->item_end, &o->dense_below, &o->num_combs,
        &o->vattention.sink_tokens, &o->vattention.local_tokens, &o->vattention.heavy_tokens,
        &o->vattention.base_samples, &o->proxy.sink_tokens, &o->proxy.local_tokens,
        &o->proxy.rescue_keys, &o->saap.num_probes, &o->saap.sink_tokens, &o->saap.local_tokens,
        &router.num_buckets, &router.hidden, &router.num_slots,
        &o->sample_attention.num_chunks, &o->sample_attention.block_size
    };
    float *const scales[] = {&a->sm_scale, &a->k_scale, &a->v_scale};
    double *const reals[] = {&o->top_p, &o->vattention.epsilon, &o->vattention.delta,
                             &o->proxy.rescue_above, &o->proxy.exact_above, &o->saap.uniform_share,
                             &o->sample_attention.alpha_columns, &o->sample_attention.alpha_slashes,
                             &o->sample_attention.dense_above};
    santa_tensor *t = tensors[fuzz_below(s, 6)];
    switch (fuzz_below(s, 16)) {
    case 0: t->shape[fuzz_below(s, 4)] = fuzz_wild_int(s); break;
    case 1: { /* one size in all the tensors that share it */
        enum { Q = 1, K = 2, V = 4, OUT = 8 };
        static const struct { int tensors, dimension; } shared[] = {
            {Q | K | V | OUT, 0}, {K | V, 0}, {Q | OUT, 1}, {K | V, 1}, {Q | OUT, 2}, {K | V, 2},
            {Q | K, 3}, {V | OUT, 3}
        };
        const int64_t which = fuzz_below(s, 8), size = fuzz_wild_int(s);
        for (int i = 0; i < 4; i++)
            if (shared[which].tensors >> i & 1) tensors[i]->shape[shared[which].dimension] = size;
        break;
    }
    case 2: t->stride[fuzz_below(s, 4)] = fuzz_wild_int(s); break;
    case 3: { const int64_t d = fuzz_below(s, 4); t->stride[d] = (int64_t)-(uint64_t)t->stride[d]; break; }
    case 4: t->stride[fuzz_below(s, 4)] = fuzz_below(s, 4); break;
    case 5: case 6:
        *integers[fuzz_below(s, (int64_t)(sizeof integers / sizeof *integers))] = fuzz_wild_int(s);
        break;
    case 7: *reals[fuzz_below(s, (int64_t)(sizeof reals / sizeof *reals))] = fuzz_wild_double(s); break;
    case 8: *scales[fuzz_below(s, 3)] = fuzz_wild_float(s); c->tame = 0; break;
    case 9: a->soft_cap = fuzz_wild_float(s); c->tame = 0; break;
    case 10:
        switch (fuzz_below(s, 8)) {
        case 0: fuzz_wild_enum(s, &t->dtype, 7); break;
        case 1: fuzz_wild_enum(s, &t->device, 2); break;
        case 2: fuzz_wild_enum(s, &o->method, SANTA_METHOD_COUNT); break;
        case 3: fuzz_wild_enum(s, &o->scores, 7); break;
        case 4: fuzz_wild_enum(s, &o->isa, SANTA_ISA_COUNT); break;
        case 5: fuzz_wild_enum(s, &o->stash, 4); break;
        case 6: fuzz_wild_enum(s, &o->vattention.bound, 2); break;
        default: fuzz_wild_enum(s, &o->vattention.guarantee, 2); break;
        }
        break;
    case 11:
        switch (fuzz_below(s, 14)) {
        case 9: a->buckets = NULL; break;
        case 10: router.index = NULL; break;
        case 11: fuzz_wild_enum(s, &router.dtype, 5); c->tame = 0; break; /* half an f32 may be NaN */
        case 12: slots[fuzz_below(s, 3)] = fuzz_wild_int32(s); break;
        case 13: index_data[fuzz_below(s, 64)] = fuzz_wild_int32(s); c->tame = 0; break;
        case 6: a->proxy = NULL; break;
        case 7: fuzz_wild_enum(s, &a->proxy_bits, 5); break;
        case 8: copied_lens[fuzz_below(s, 3)] = fuzz_wild_int32(s); break;
        case 0: t->data = NULL; break;
        case 1: a->seq_lens = NULL; break;
        case 2: a->block_table = fuzz_chance(s, 2) ? NULL : table; break;
        case 3: o->parallel_for = NULL; break;
        case 4: a->std_error = got.std_error; break;
        default: a->lse = NULL; break;
        }
        break;
    case 12: lens[fuzz_below(s, 3)] = fuzz_wild_int32(s); break;
    case 13: table[fuzz_below(s, 64)] = fuzz_wild_int32(s); break;
    case 14:
        (fuzz_chance(s, 2) ? sinks : slopes)[fuzz_below(s, 8)] = fuzz_wild_float(s);
        c->tame = 0;
        break;
    default: fuzz_wild_enum(s, &a->causal, 2); break;
    }
}

/* What the caller vouches for: arrays as long as the shapes say. Shapes beyond the arrays lose
   the array instead. */
static void honest_arrays(santa_attention *a, santa_options *o) {
    const int64_t batch = a->q.shape[0], heads = a->q.shape[2];
    if (heads > ENTRIES) a->sinks = a->alibi_slopes = NULL;
    if (batch > ENTRIES) a->seq_lens = a->proxy_lens = NULL;
    if (batch > ENTRIES) router.slots = NULL;
    if (a->buckets && (router.num_buckets > CENTROIDS || router.hidden > UNITS || heads > 15
                       || a->k.shape[2] > 3 || a->k.shape[3] > 64))
        router.centroids = NULL;
    if (santa_buckets_size(a) > sizeof index_data) router.index = NULL;
    santa_sample_attention_options *x = &o->sample_attention;
    int64_t q_blocks = 0, k_blocks = 0;
    if ((x->mask || x->mask_out) && santa_mask_shape(a, o, &q_blocks, &k_blocks) == SANTA_OK &&
        (double)batch * (double)heads * (double)q_blocks * (double)k_blocks > (double)sizeof mask_data)
        x->mask = x->mask_out = NULL;
    if ((double)batch * (double)heads > (double)SLOTS) x->audit = NULL;
    if (batch > ENTRIES - 8) o->seeds = o->offsets = o->request_ids = NULL;
    if (a->block_table && a->max_pages > 0 && batch > 0) {
        const int64_t stride = a->block_table_stride ? a->block_table_stride : a->max_pages;
        const int wraps = batch > 1 && stride > INT64_MAX / 4 / (batch - 1); /* must be refused unseen */
        if (stride >= a->max_pages && !wraps &&
            (batch > ENTRIES || stride > ENTRIES || batch * stride > ENTRIES))
            a->block_table = NULL;
    }
}

/* Small enough to run, and inside the arenas? Otherwise only the checks are exercised. */
static int affordable(const fuzz_call *c, size_t bytes) {
    const santa_attention *a = &c->a;
    if (!inside(&a->q, &q_data) || !inside(&a->k, &k_data) || !inside(&a->v, &v_data) ||
        !inside(&a->out, got.out) || (a->k_scales.data && !inside(&a->k_scales, &k_data)) ||
        (a->v_scales.data && !inside(&a->v_scales, &v_data)))
        return 0;
    if (c->o.scores == SANTA_SCORES_PROXY && santa_proxy_size(a) >= sizeof copy_data) return 0;
    const double rows = (double)a->q.shape[0] * (double)a->q.shape[1] * (double)a->q.shape[2];
    const double keys = (double)a->k.shape[1] * (double)(a->block_table ? a->max_pages : 1);
    const double dims = (double)a->q.shape[3] + (double)a->v.shape[3] + 4.0;
    const double draws = (double)c->o.num_samples + (double)c->o.bernoulli_draws * (double)a->q.shape[3];
    return rows <= (double)SLOTS && rows * (keys * dims + draws) <= 3e6 && bytes <= (size_t)1 << 24;
}

static int check_decode(fuzz_call *c) {
    const santa_status status = santa_check(&c->a, &c->o);
    const size_t       bytes  = santa_workspace_size(&c->a, &c->o);
    int ok = CHECK_MSG((int)status >= 0 && status < SANTA_STATUS_COUNT, "status %d", (int)status);
    /* the size query looks at shapes and options only */
    const int contents = status == SANTA_ERR_NULL_DATA || status == SANTA_ERR_SEQ_LEN ||
                         status == SANTA_ERR_SINKS || status == SANTA_ERR_ALIBI ||
                         status == SANTA_ERR_BLOCK_TABLE || status == SANTA_ERR_PROXY_NULL ||
                         status == SANTA_ERR_PROXY_LEN || status == SANTA_ERR_BUCKETS_INDEX ||
                         (status == SANTA_ERR_BUCKETS_NULL && c->a.buckets) ||
                         (status == SANTA_ERR_BUCKETS_SLOT && bytes);
    ok &= CHECK_MSG((status == SANTA_OK || contents) == (bytes != 0),
                    "\"%s\", but a workspace of %lu bytes", santa_status_string(status),
                    (unsigned long)bytes);
    memset(&got, CANARY, sizeof got);
    const santa_status without = santa_decode(&c->a, &c->o, NULL, 0, &got.stats);
    ok &= CHECK_STATUS(without, status == SANTA_OK ? SANTA_ERR_WORKSPACE_NULL : status);
    if (status == SANTA_OK && affordable(c, bytes)) {
        unsigned char *w = (unsigned char *)test_alloc(bytes + 16);
        memset(w, 0xff, bytes + 16);
        ok &= CHECK_STATUS(santa_decode(&c->a, &c->o, w, bytes, &got.stats), SANTA_OK);
        for (int i = 0; i < 16; i++)
            ok &= CHECK_MSG(w[bytes + (size_t)i] == 0xff, "wrote behind the workspace");
        free(w);
        ok &= CHECK_MSG(outside_untouched(&c->a.out), "wrote beside out");
        const santa_stats *x = &got.stats;
        ok &= CHECK(x->rows >= 0 && x->keys >= 0 && x->k_rows_read >= 0 && x->draws >= 0);
        ok &= CHECK(x->tiles_skipped >= 0 && x->tiles_skipped <= x->tiles);
        ok &= CHECK_MSG(x->v_rows_read >= 0 && x->v_rows_read <= x->keys &&
                            x->v_rows_read <= x->v_rows_head,
                        "V rows read %lld, per head %lld, keys %lld", (long long)x->v_rows_read,
                        (long long)x->v_rows_head, (long long)x->keys);
        const int whole = c->o.item_begin == 0 && c->o.item_end == 0;
        if (c->tame && whole) ok &= CHECK_MSG(out_is_finite(&c->a.out), "out is not finite");
    } else {
        const unsigned char *all = (const unsigned char *)&got;
        size_t touched = 0;
        for (size_t i = 0; i < sizeof got; i++) touched += all[i] != CANARY;
        ok &= CHECK_MSG(touched == 0, "an error wrote %lu bytes", (unsigned long)touched);
    }
    return ok;
}

/* Wild ranges of a copy of K: only what its size says is written, and only with a status of
   ok. */
static int check_encode(fuzz_source *s, fuzz_call *c) {
    static unsigned char mine[sizeof copy_data];
    santa_attention a = c->a;
    const size_t  bytes = santa_proxy_size(&a);
    const int64_t from = fuzz_chance(s, 2) ? fuzz_wild_int(s) : fuzz_below(s, 100),
                  more = fuzz_below(s, 200),
                  to = fuzz_chance(s, 2) ? fuzz_wild_int(s) : from < INT64_MAX - more ? from + more : from;
    const int append = fuzz_chance(s, 3);
    int ok = 1;
    if (!inside(&a.k, &k_data) || bytes >= sizeof mine || a.q.shape[0] > ENTRIES) return 1;
    if (a.k_scales.data && !inside(&a.k_scales, &k_data)) return 1;
    memset(mine, CANARY, sizeof mine);
    if (a.proxy) a.proxy = mine;
    const santa_status status = append ? santa_proxy_append(&a, from, NULL)
                                       : santa_proxy_encode(&a, from, to, NULL);
    ok &= CHECK_MSG((int)status >= 0 && status < SANTA_STATUS_COUNT, "status %d", (int)status);
    for (size_t i = status == SANTA_OK ? bytes : 0; ok && i < sizeof mine; i++)
        ok &= CHECK_MSG(mine[i] == CANARY, "byte %lu of a copy of %lu, status %d", (unsigned long)i,
                        (unsigned long)bytes, (int)status);
    return ok;
}

/* Wild starts, and keys of other shapes: nothing behind the index is written, with any
   status. */
static int check_assign(fuzz_source *s, fuzz_call *c) {
    static int32_t before[sizeof index_data / sizeof *index_data];
    const santa_attention *a = &c->a;
    const size_t  bytes = santa_buckets_size(a);
    const int64_t from = fuzz_chance(s, 2) ? fuzz_wild_int(s) : fuzz_below(s, 100);
    santa_tensor keys = santa_view(weights, (santa_dtype)fuzz_below(s, 3), a->q.shape[0],
                                   fuzz_between(s, 1, 20), a->k.shape[2], a->k.shape[3]);
    if (fuzz_chance(s, 4)) keys.shape[fuzz_below(s, 4)] = fuzz_wild_int(s);
    if (keys.shape[0] > 3 || keys.shape[2] > 3 || keys.shape[3] > 64) keys.data = NULL;
    if (keys.shape[1] > 1) keys.stride[1] = 0;
    keys.stride[0] = keys.stride[2] = 1;
    memcpy(before, index_data, sizeof before);
    const santa_status status = santa_buckets_assign(a, &keys, from, NULL);
    int ok = CHECK_MSG((int)status >= 0 && status < SANTA_STATUS_COUNT, "status %d", (int)status);
    return ok & CHECK(!memcmp((char *)index_data + (status == SANTA_OK ? bytes : 0),
                              (char *)before + (status == SANTA_OK ? bytes : 0),
                              sizeof before - (status == SANTA_OK ? bytes : 0)));
}

/* One row of scores through santa_scores, with wild indices. */
static int check_scores(fuzz_source *s, fuzz_call *c) {
    const size_t bytes = santa_workspace_size(&c->a, &c->o);
    if (!bytes || santa_check(&c->a, &c->o) != SANTA_OK || !affordable(c, bytes)) return 1;
    const int64_t batch   = fuzz_chance(s, 4) ? fuzz_wild_int(s) : 0;
    const int64_t q_index = fuzz_chance(s, 4) ? fuzz_wild_int(s) : 0;
    const int64_t kv      = fuzz_chance(s, 4) ? fuzz_wild_int(s) : 0;
    const int64_t n = c->a.k.shape[1] * (c->a.block_table ? c->a.max_pages : 1);
    const int64_t group = c->a.q.shape[2] / c->a.k.shape[2],
                  stride = fuzz_between(s, n > 4 ? n - 2 : n, n + 5);
    float *scores = (float *)test_alloc((size_t)(group * stride) * sizeof(float));
    void  *w = test_alloc(bytes);
    memset(w, 0xff, bytes);
    const santa_status status = santa_scores(&c->a, &c->o, batch, q_index, kv, scores, stride, w, bytes);
    int ok = CHECK_MSG((int)status >= 0 && status < SANTA_STATUS_COUNT, "status %d", (int)status);
    if (status == SANTA_OK && c->tame) {
        const int64_t len = c->a.seq_lens ? c->a.seq_lens[batch] : n;
        for (int64_t g = 0; g < group; g++)
            for (int64_t j = 0; j < len; j++) {
                const float x = scores[g * stride + j];
                ok &= CHECK_MSG(fuzz_is_finite(x) || x < 0.0f || c->o.scores == SANTA_SCORES_PROXY,
                                "score %g", (double)x);
            }
    }
    free(scores);
    free(w);
    return ok;
}

/* A draw list is ascending, inside, with mass; its counts add up and its weights to 1. */
static int check_sample(fuzz_source *s, santa_options o) {
    enum { MAX_N = 400 };
    float         scores[MAX_N];
    const int64_t n = fuzz_chance(s, 8) ? fuzz_wild_int(s) : fuzz_between(s, 1, MAX_N);
    int           tame = 1, ok = 1;
    if (fuzz_chance(s, 2)) o.isa = SANTA_ISA_AUTO;
    for (int i = 0; i < MAX_N; i++) scores[i] = (float)((i * 37) % 50) * 0.1f;
    for (int64_t i = fuzz_below(s, 12); i > 0; i--) {
        scores[fuzz_below(s, MAX_N)] = fuzz_wild_float(s);
        tame = 0;
    }
    const int64_t capacity = santa_sample_capacity(n, &o);
    const size_t  bytes    = santa_sample_workspace_size(n, &o);
    ok &= CHECK_MSG(capacity >= 0 && (capacity == 0) == (bytes == 0),
                    "n %lld: capacity %lld, workspace %lu", (long long)n, (long long)capacity,
                    (unsigned long)bytes);
    if (n > MAX_N || capacity > 1 << 16 || bytes > (size_t)1 << 22) return ok;
    int32_t *index  = (int32_t *)test_alloc((size_t)capacity * sizeof(int32_t));
    int32_t *count  = (int32_t *)test_alloc((size_t)capacity * sizeof(int32_t));
    float   *weight = (float *)test_alloc((size_t)capacity * sizeof(float));
    void    *w      = test_alloc(bytes);
    santa_draws d;
    memset(&d, 0, sizeof d);
    d.index    = index;
    d.count    = fuzz_chance(s, 3) ? NULL : count;
    d.weight   = weight;
    d.capacity = capacity;
    santa_stream_id id;
    id.request_id = fuzz_take(s, 8);
    id.head       = fuzz_chance(s, 8) ? fuzz_wild_int(s) : 1;
    id.q_index    = fuzz_chance(s, 8) ? fuzz_wild_int(s) : 0;
    const santa_status status = santa_sample(scores, n, &o, id, &d, w, bytes);
    if (status == SANTA_OK) {
        int64_t draws = 0;
        double  sum   = 0.0;
        ok &= CHECK_MSG(d.rows >= 0 && d.rows <= capacity, "%lld rows of %lld", (long long)d.rows,
                        (long long)capacity);
        for (int64_t i = 0; ok && i < d.rows; i++) {
            const int32_t before = i ? index[i - 1] : -1;
            ok &= CHECK_MSG(index[i] > before && index[i] < n, "index %d after %d", (int)index[i],
                            (int)before);
            if (!ok) break;
            ok &= CHECK_MSG(scores[index[i]] > -3.4e38f, "drew a masked key");
            ok &= CHECK_MSG(fuzz_is_finite(weight[i]) && weight[i] >= 0.0f, "weight %g", (double)weight[i]);
            if (d.count) {
                ok &= CHECK_MSG(count[i] > 0, "count %d", (int)count[i]);
                draws += count[i];
            }
            sum += (double)weight[i];
        }
        if (d.count) ok &= CHECK_INT(draws, d.draws);
        if (d.rows)
            ok &= CHECK_MSG(fabs(sum - 1.0) < (o.method == SANTA_PPS ? 1.0 : 1e-4),
                            "%s: weights add up to %.9g", santa_method_name(o.method), sum);
        if (tame) ok &= CHECK(d.rows > 0 && fuzz_is_finite(d.lse));
    }
    free(index);
    free(count);
    free(weight);
    free(w);
    return ok;
}

static int check_numbers(fuzz_source *s) {
    santa_budget in;
    int64_t b[3] = {0, 0, 0};
    double  x;
    int     ok = 1;
    memset(&in, 0, sizeof in);
    in.epsilon     = fuzz_chance(s, 2) ? 0.05 : fuzz_wild_double(s);
    in.delta       = fuzz_chance(s, 2) ? 0.05 : fuzz_wild_double(s);
    in.population  = fuzz_chance(s, 2) ? 1000 : fuzz_wild_int(s);
    in.sigma       = fuzz_wild_double(s);
    in.denominator = fuzz_wild_double(s);
    in.trace       = fuzz_wild_double(s);
    in.norm        = fuzz_wild_double(s);
    fuzz_wild_enum(s, &in.bound, 2);
    const santa_status status[3] = {santa_budget_denominator(&in, &b[0]),
                                    santa_budget_numerator(&in, &b[1]), santa_budget_full(&in, &b[2])};
    for (int i = 0; i < 3; i++)
        ok &= CHECK_MSG(status[i] == SANTA_OK ? b[i] >= 0 && b[i] <= in.population : b[i] == 0,
                        "budget %d: \"%s\", %lld of %lld", i, santa_status_string(status[i]),
                        (long long)b[i], (long long)in.population);
    x = fuzz_wild_double(s);
    const double z = santa_normal_quantile(x);
    ok &= CHECK_MSG(!(x > 0.0 && x < 1.0) || fabs(z) < 40.0, "quantile(%g) = %g", x, z);

    enum { N = 24, DIM = 3 };
    float p[N], rows[N * DIM];
    for (int i = 0; i < N; i++) p[i] = 1.0f / (float)N;
    for (int i = 0; i < N * DIM; i++) rows[i] = (float)(i % 5);
    if (fuzz_chance(s, 2)) p[fuzz_below(s, N)] = fuzz_wild_float(s);
    const int64_t draws = fuzz_chance(s, 2) ? fuzz_wild_int(s) : fuzz_between(s, 1, 60),
                  n = fuzz_between(s, fuzz_chance(s, 3) ? -1 : N, N);
    if (draws <= 4096) {
        const size_t bytes = santa_variance_workspace_size(n, DIM);
        void  *w = test_alloc(bytes);
        double result = 0.0, v[3] = {0.0, 0.0, 0.0};         /* left as they are by an error */
        santa_variance_iid  (p, n, rows, DIM, DIM, draws, &v[0], w, bytes);
        santa_variance_strat(p, n, rows, DIM, DIM, draws, &v[1], w, bytes);
        santa_variance_sys  (p, n, rows, DIM, DIM, draws, &v[2], w, bytes);
        ok &= CHECK_MSG(v[0] >= 0.0 && v[1] >= 0.0 && v[2] >= 0.0, "variances %g, %g, %g", v[0], v[1],
                        v[2]);
        if (santa_expected_distinct((santa_method)fuzz_below(s, SANTA_METHOD_COUNT), p, n, draws,
                                    &result) == SANTA_OK)
            ok &= CHECK_MSG(result >= 0.0 && result <= (double)n + 1e-6, "%g distinct of %lld", result,
                            (long long)n);
        free(w);
    }
    return ok;
}

static int arguments_one(const uint8_t *data, size_t size) {
    fuzz_source s = {data, size};
    fill_memory();
    fuzz_call c = valid_call(&s);
    for (int64_t i = fuzz_below(&s, 4); i > 0; i--) mutate(&s, &c);
    if (fuzz_chance(&s, 2)) santa_clear_unused_options(&c.o);  /* else many are refused for that alone */
    honest_arrays(&c.a, &c.o);
    /* now and then a NaN or an infinity in the data (as any of the types), taken back
       afterwards */
    uint16_t *const arenas[] = {q_data.h, k_data.h, v_data.h};
    uint16_t *spot = fuzz_chance(&s, 8) ? arenas[fuzz_below(&s, 3)] + ORIGIN + fuzz_below(&s, 256) : NULL,
             old = 0;
    if (spot) {
        old   = *spot;
        *spot = fuzz_chance(&s, 2) ? 0x7fc0 : 0xfc00;
        c.tame = 0;
    }
    int ok = check_decode(&c);
    ok &= check_scores(&s, &c);
    ok &= check_encode(&s, &c);
    ok &= check_assign(&s, &c);
    ok &= check_sample(&s, c.o);
    ok &= check_numbers(&s);
    if (spot) *spot = old;
    return ok;
}

static size_t arguments_seed(int number, uint8_t *data, size_t capacity) {
    return fuzz_random_seed(number, 64, data, capacity < 512 ? capacity : 512);
}

FUZZ_TARGET(arguments, arguments_one, arguments_seed);
