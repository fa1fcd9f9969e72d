/* problem.h - random valid calls of the whole API: every method, type, layout, paging and
   option, in memory between guard pages, where all that a call must not read is NaN or a wild
   number.

   A fuzz_spec says what the call computes and, apart from that, how its numbers lie in memory
   and who works on them. fuzz_build makes the arrays; the same spec with another place, page
   size or thread count must give the same bits. */
#ifndef SANTA_FUZZ_PROBLEM_H
#define SANTA_FUZZ_PROBLEM_H

#include "fuzz.h"
#include "../reference.h"

enum { FUZZ_Q, FUZZ_K, FUZZ_V, FUZZ_OUT, FUZZ_LSE, FUZZ_ERROR, FUZZ_AUDIT, FUZZ_LENS, FUZZ_TABLE,
       FUZZ_SINKS, FUZZ_SLOPES, FUZZ_SEEDS, FUZZ_OFFSETS, FUZZ_REQUESTS, FUZZ_WORK, FUZZ_SCORES,
       FUZZ_INDEX, FUZZ_COUNT, FUZZ_WEIGHT, FUZZ_ROW, FUZZ_CONTEXT, FUZZ_COPY, FUZZ_COPIED,
       FUZZ_CENTROIDS, FUZZ_W1, FUZZ_B1, FUZZ_W2, FUZZ_B2, FUZZ_BUCKETS, FUZZ_SLOTS, FUZZ_ROUTE,
       FUZZ_MASK, FUZZ_MASK_OUT, FUZZ_SAMPLED, FUZZ_ROW_MASS, FUZZ_STARTS, FUZZ_LIST, FUZZ_LIST_LENS,
       FUZZ_LIST_WEIGHTS, FUZZ_K_SCALES, FUZZ_V_SCALES };

typedef enum fuzz_layout {
    FUZZ_NHD, FUZZ_HND,
    FUZZ_PADDED,                   /* NHD with gaps behind heads, tokens and sequences     */
    FUZZ_BACKWARDS,                /* tokens and heads with negative strides               */
    FUZZ_BATCH_INSIDE,             /* [len, batch, heads, dim]                             */
    FUZZ_ADJACENT,                 /* the layouts above have features side by side         */
    FUZZ_STRIDED = FUZZ_ADJACENT,  /* features three elements apart                        */
    FUZZ_FEATURE_MAJOR,            /* [batch, heads, dim, len]                             */
    FUZZ_LAYOUTS
} fuzz_layout;

typedef enum fuzz_values {
    FUZZ_PLAIN,
    FUZZ_TIES,                     /* many equal scores                                    */
    FUZZ_EQUAL,                    /* all keys of a head the same                          */
    FUZZ_PEAKS,                    /* a few keys hold nearly all the mass                  */
    FUZZ_CLIFFS,                   /* whole blocks without mass                            */
    FUZZ_VALUES
} fuzz_values;

/* Copies of K: none; as encoded; of the first half of the keys only; with codes turned over;
   anything in codes and centre; anything at all. */
typedef enum fuzz_copy {
    FUZZ_NO_COPY, FUZZ_RIGHT, FUZZ_SHORT, FUZZ_STALE, FUZZ_SANE_BYTES, FUZZ_ANY_BYTES, FUZZ_COPIES
} fuzz_copy;

typedef struct fuzz_spec {
    int64_t batch, q_len, kv_heads, group, n, dim, dim_v, window;
    santa_dtype q_type, k_type, v_type, out_type;
    fuzz_values values;
    uint64_t value_seed;
    float    gain, soft_cap, sm_scale, k_scale, v_scale;
    int      q_power;                              /* q is 2^q_power as long, sm_scale as much less */
    int      v_power;                              /* v is 2^v_power as long                 */
    int      ragged, sinks, alibi, causal, one_sequence;
    int      poke;                                 /* a NaN or infinity somewhere          */
    int      own_seeds, own_offsets, own_requests; /* one for each sequence                */
    int      predictor;                            /* 0 none, else which                   */
    int      context;                              /* k and v are a part of a longer context: */
    int64_t  first_key, later_keys;                /* that begins before and ends after it */
    int64_t  first_tokens;                         /* beside a window                      */
    int      copy, bits;                           /* of K: FUZZ_NO_COPY or how right; proxy_bits */
    int64_t  buckets, hidden;                      /* of a router: for SANTA_SAAP           */
    santa_dtype router_type;
    int      own_route;                            /* queries of its own to route by        */
    int      own_mask;                             /* of SANTA_SAMPLE_ATTENTION             */
    int      starts;                               /* sequences begin behind their first key */
    int      list, list_rows, list_weights;        /* the caller's keys, for SANTA_DENSE    */
    int      k_scales, v_scales;                   /* for each row                          */
    santa_dtype scale_type;                        /* of these                              */
    int64_t  max_list;
    santa_options o;                               /* arrays and callbacks are put in later */
    /* from here on: what must not matter */
    fuzz_layout q_layout, k_layout, v_layout, out_layout, scale_layout;
    int64_t  first;                                /* number of the batch's first sequence */
    int64_t  page_size;                            /* 0 = not paged                        */
    uint64_t shuffle;                              /* of pages and of tasks                */
    int64_t  chunk, spare_slots;                   /* keys assigned at a time; slots not used */
    int64_t  list_gap;                             /* between lists                        */
    int      broadcast, at_end, wide_table, no_lse, no_error, no_audit;
} fuzz_spec;

typedef struct fuzz_problem {
    fuzz_spec       s;
    santa_attention a;
    santa_options   o;
    santa_buckets   router;
    uint64_t        order;         /* of tasks                                             */
} fuzz_problem;

/* ------------------------------------------------------------ choices */

static inline int fuzz_has_draws(santa_method m) { return (santa_method_traits(m) & SANTA_DRAWS) != 0; }

static inline int64_t fuzz_least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline fuzz_layout fuzz_some_layout(fuzz_source *s, santa_dtype type) {
    const int all = ref_is_blocks(type) ? FUZZ_ADJACENT : FUZZ_LAYOUTS;
    return fuzz_chance(s, 2) ? FUZZ_NHD : (fuzz_layout)fuzz_below(s, all);
}

/* Sizes of one of a few kinds, small enough that thousands of them run in a second. */
static inline void fuzz_choose_sizes(fuzz_source *s, fuzz_spec *p) {
    const int64_t unit = ref_is_blocks(p->k_type) || ref_is_blocks(p->v_type) ? 32 : 1;
    int64_t most = 400000;
    static const int64_t dims[] = {16, 24, 32, 48, 64, 80, 96, 128, 160, 192};
    p->batch    = fuzz_between(s, 1, 3);
    p->q_len    = fuzz_chance(s, 3) ? fuzz_between(s, 2, 4) : 1;
    p->kv_heads = fuzz_between(s, 1, 4);
    p->group    = fuzz_between(s, 1, 5);
    p->n        = fuzz_between(s, 1, 200);
    p->dim      = fuzz_between(s, 1, 20);
    p->dim_v    = fuzz_between(s, 1, 20);
    switch (fuzz_below(s, 6)) {
    case 0:                                                   /* rows that threads share */
        p->n = fuzz_between(s, 1000, 2600);
        p->batch = fuzz_between(s, 1, 2);
        p->kv_heads = fuzz_between(s, 1, 3);
        p->group = fuzz_between(s, 1, 2);
        p->dim = p->dim_v = fuzz_between(s, 1, 8);
        break;
    case 1:
        p->dim   = dims[fuzz_below(s, (int64_t)(sizeof dims / sizeof *dims))];
        p->dim_v = dims[fuzz_below(s, (int64_t)(sizeof dims / sizeof *dims))];
        p->n     = fuzz_between(s, 1, 140);
        break;
    case 2:                                                   /* more heads than one pass takes */
        p->kv_heads = fuzz_between(s, 1, 10);
        p->group = fuzz_between(s, 1, 19);
        p->n = fuzz_between(s, 1, 100);
        p->dim = fuzz_between(s, 1, 4);
        p->dim_v = fuzz_between(s, 1, 4);
        break;
    case 3: p->n = fuzz_between(s, 60, 700); break;           /* many blocks */
    default: break;
    }
    if (fuzz_chance(s, 8)) {                                  /* prefill */
        p->q_len = fuzz_between(s, 30, 80);
        if (fuzz_chance(s, 4)) p->q_len = fuzz_between(s, 100, 300);
        p->batch = fuzz_between(s, 1, 2);
        p->kv_heads = fuzz_between(s, 1, 2);
        p->group = fuzz_between(s, 1, 3);
        if (fuzz_chance(s, 8)) p->group = fuzz_between(s, 30, 60);
        p->n = fuzz_between(s, 1, 400);
        while (p->q_len > 1 && p->batch * p->kv_heads * p->group * p->q_len > (p->dim_v > 64 ? 600 : 1300))
            p->q_len -= p->q_len / 4 + 1;
        most = 4000000;
    }
    p->dim   = (p->dim + unit - 1) / unit * unit;
    p->dim_v = (p->dim_v + unit - 1) / unit * unit;
    while (p->batch * p->kv_heads * p->group * p->q_len * p->n * (p->dim + p->dim_v) > most &&
           p->group > 1)
        p->group--;
    while (p->batch * p->kv_heads * p->group * p->q_len * p->n * (p->dim + p->dim_v) > most &&
           p->kv_heads > 1)
        p->kv_heads--;
    while (p->batch * p->kv_heads * p->group * p->q_len * p->n * (p->dim + p->dim_v) > most &&
           p->q_len > 1)
        p->q_len--;
}

static inline void fuzz_choose_options(fuzz_source *s, fuzz_spec *p) {
    santa_options *o = &p->o;
    santa_vattention_options *v = &o->vattention;
    o->method = (santa_method)fuzz_below(s, SANTA_METHOD_COUNT);
    if (fuzz_chance(s, 3)) o->scores = (santa_scores_method)fuzz_below(s, p->k_type == SANTA_Q8_0 ? 6 : 5);
    if (p->k_type == SANTA_Q8_0 && fuzz_chance(s, 2)) o->scores = SANTA_SCORES_Q8;
    if (fuzz_chance(s, 2)) o->bernoulli_draws = fuzz_between(s, 1, 12);
    o->num_samples = fuzz_chance(s, 4) ? fuzz_between(s, 0, 700) : fuzz_between(s, 1, 64);
    o->stash = (santa_stash)(fuzz_chance(s, 2) ? fuzz_below(s, 4) : 0);
    if (fuzz_chance(s, 4)) o->dense_below = fuzz_between(s, -1, fuzz_chance(s, 3) ? 3000 : 300);
    if (o->method == SANTA_PROP && fuzz_chance(s, 2)) o->tile_size = 64 * fuzz_between(s, 1, 5);
    if (o->method == SANTA_FLASH && fuzz_chance(s, 2))
        o->tile_size = fuzz_chance(s, 2) ? 8 << fuzz_below(s, 3) : 64 * fuzz_between(s, 1, 5);
    if (o->method >= SANTA_SYS && o->method <= SANTA_FLASH && fuzz_chance(s, 3)) {
        o->num_combs   = fuzz_between(s, 1, SANTA_MAX_COMBS);
        o->num_samples = o->num_combs * fuzz_between(s, 1, 24);
    }
    if (o->method == SANTA_TOP_P && fuzz_chance(s, 2)) o->top_p = (double)fuzz_between(s, 1, 100) / 100.0;
    o->seed   = fuzz_take(s, 2);
    o->offset = fuzz_take(s, 1);
    o->isa    = SANTA_ISA_AUTO;
    if (fuzz_chance(s, 2)) {
        o->isa = test_isa_from((int)fuzz_below(s, SANTA_ISA_COUNT));
        if (o->isa == SANTA_ISA_COUNT) o->isa = SANTA_ISA_SCALAR;
    }
    if (fuzz_chance(s, 3)) o->num_threads = fuzz_between(s, 0, 7);
    v->sink_tokens  = fuzz_chance(s, 4) ? 0 : fuzz_between(s, -1, 20);
    v->local_tokens = fuzz_chance(s, 4) ? 0 : fuzz_between(s, -1, 20);
    v->heavy_tokens = fuzz_chance(s, 4) ? 0 : fuzz_between(s, -1, 30);
    v->base_samples = fuzz_chance(s, 2) ? 0 : fuzz_between(s, 2, 60);
    v->epsilon      = fuzz_chance(s, 4) ? 0.0 : (double)fuzz_between(s, 1, 99) / 100.0;
    v->delta        = fuzz_chance(s, 4) ? 0.0 : (double)fuzz_between(s, 1, 99) / 100.0;
    v->guarantee    = (santa_guarantee)fuzz_below(s, 2);
    v->bound        = (santa_bound)fuzz_below(s, 2);
    p->predictor    = fuzz_chance(s, 2) ? (int)fuzz_between(s, 1, 4) : 0;
}

/* A method that draws from a copy of K, for shapes that can have one. */
static inline void fuzz_choose_copy(fuzz_source *s, fuzz_spec *p) {
    static const santa_method methods[] = {SANTA_SYS, SANTA_PROP, SANTA_PPS, SANTA_TOP_K, SANTA_TOP_P,
                                           SANTA_VATTENTION, SANTA_SAAP};
    static const int64_t pages[] = {16, 32, 48, 64, 96, 128};
    static const double  limits[] = {0.0, 0.0, (double)SANTA_NONE, 1e-6, 0.05};
    santa_options *o = &p->o;
    p->copy = (int)fuzz_between(s, FUZZ_RIGHT, FUZZ_COPIES - 1);
    p->bits = 2 * (int)fuzz_below(s, 3);
    p->dim  = (p->dim + 7) / 8 * 8;
    if (p->page_size) p->page_size = pages[fuzz_below(s, 6)];
    o->scores   = SANTA_SCORES_PROXY;
    o->method   = methods[fuzz_below(s, 7)];
    o->num_combs = fuzz_below(s, 2);
    if (o->method != SANTA_PROP) o->tile_size = 0;
    else o->tile_size = (o->tile_size + 63) / 64 * 64;
    if (fuzz_chance(s, 2)) {
        o->proxy.sink_tokens  = fuzz_between(s, -1, 80);
        o->proxy.local_tokens = fuzz_between(s, -1, 80);
        o->proxy.rescue_keys  = fuzz_between(s, -1, 80);
    }
    o->proxy.rescue_above = limits[fuzz_below(s, 5)];
    o->proxy.exact_above  = limits[fuzz_below(s, 5)];
    p->no_error |= (santa_method_traits(o->method) & SANTA_BIASED) != 0;
}

static inline void fuzz_choose_router(fuzz_source *s, fuzz_spec *p) {
    santa_saap_options *x = &p->o.saap;
    p->buckets     = fuzz_chance(s, 4) ? fuzz_between(s, 60, 140) : fuzz_between(s, 1, 12);
    p->hidden      = fuzz_chance(s, 2) ? fuzz_between(s, 1, 40) : 0;
    p->router_type = (santa_dtype)fuzz_below(s, 3);
    p->own_route   = fuzz_chance(s, 3);
    p->chunk       = fuzz_chance(s, 2) ? p->n : fuzz_between(s, 1, 150);
    p->spare_slots = fuzz_chance(s, 3) ? fuzz_between(s, 0, 2) : 0;
    x->num_probes    = fuzz_chance(s, 2) ? 0 : fuzz_between(s, -1, p->buckets + 3);
    x->sink_tokens   = fuzz_chance(s, 2) ? 0 : fuzz_between(s, -1, 80);
    x->local_tokens  = fuzz_chance(s, 3) ? 0 : fuzz_between(s, -1, 80);
    x->uniform_share = fuzz_chance(s, 2) ? 0.0 : (double)fuzz_between(s, 1, 100) / 100.0;
    x->measure_mass  = fuzz_chance(s, 4);
    if (fuzz_chance(s, 3) && !p->copy) {
        p->o.num_samples = SANTA_NONE;
        p->no_error = 1;
    }
}

static inline void fuzz_choose_sparse(fuzz_source *s, fuzz_spec *p) {
    santa_sample_attention_options *x = &p->o.sample_attention;
    p->o.scores = SANTA_SCORES_EXACT;
    p->own_mask = fuzz_chance(s, 3);
    if (!p->own_mask) { p->causal = 1; p->context = 0; }
    x->alpha_columns = fuzz_chance(s, 4) ? (double)SANTA_NONE : (double)fuzz_below(s, 101) / 100.0;
    x->alpha_slashes = fuzz_chance(s, 4) ? (double)SANTA_NONE : (double)fuzz_below(s, 101) / 100.0;
    x->num_chunks  = fuzz_chance(s, 3) ? 0 : fuzz_between(s, 1, 5);
    x->block_size  = 64 * fuzz_below(s, 3);
    x->per_head    = fuzz_chance(s, 2);
    x->dense_above = fuzz_chance(s, 2) ? (double)SANTA_NONE : (double)fuzz_below(s, 12) / 10.0;
    if (p->own_mask) {                                        /* nothing is sampled */
        const int64_t block_size = x->block_size;
        memset(x, 0, sizeof *x);
        x->block_size = block_size;
    }
}

/* Exact attention over the caller's keys. */
static inline void fuzz_choose_list(fuzz_source *s, fuzz_spec *p) {
    const santa_options any = p->o;
    memset(&p->o, 0, sizeof p->o);
    p->o.method      = SANTA_DENSE;
    p->o.isa         = any.isa;
    p->o.num_threads = any.num_threads;
    p->list         = 1;
    p->list_rows    = fuzz_chance(s, 2);
    p->list_weights = fuzz_chance(s, 2);
    p->max_list     = fuzz_between(s, 1, fuzz_chance(s, 2) ? 300 : 12);
    p->list_gap     = fuzz_chance(s, 2) ? fuzz_between(s, 0, 5) : 0;
}

/* Drawing nothing is for saap alone. */
static inline void fuzz_keep_used(santa_options *o) {
    santa_clear_unused_options(o);
    if (o->num_samples < 0 && (o->method != SANTA_SAAP || o->scores == SANTA_SCORES_PROXY))
        o->num_samples = 0;
}

static inline int64_t fuzz_len(const fuzz_spec *p, int64_t b);
static inline int64_t fuzz_start(const fuzz_spec *p, int64_t b);

static inline void fuzz_choose(fuzz_source *s, fuzz_spec *p) {
    memset(p, 0, sizeof *p);
    p->q_type   = (santa_dtype)fuzz_below(s, 3);
    p->out_type = (santa_dtype)(fuzz_chance(s, 2) ? fuzz_below(s, 3) : 0);
    p->k_type   = (santa_dtype)fuzz_below(s, 7);
    p->v_type   = fuzz_chance(s, 4) ? (santa_dtype)fuzz_below(s, 7) : p->k_type;
    fuzz_choose_sizes(s, p);
    fuzz_choose_options(s, p);
    p->values     = (fuzz_values)(fuzz_chance(s, 2) ? fuzz_below(s, FUZZ_VALUES) : 0);
    p->value_seed = fuzz_take(s, 2);
    p->gain       = 0.5f * (float)fuzz_between(s, 1, 8);
    p->ragged     = fuzz_chance(s, 2);
    p->sinks      = fuzz_chance(s, 4);
    p->alibi      = fuzz_chance(s, 4);
    p->causal     = fuzz_chance(s, 2);
    p->soft_cap   = fuzz_chance(s, 4) ? (float)fuzz_between(s, 1, 30) : 0.0f;
    p->window     = fuzz_chance(s, 4) ? fuzz_between(s, 1, 2 * p->n) : 0;
    p->sm_scale   = fuzz_chance(s, 4) ? 0.01f * (float)fuzz_between(s, -50, 50) : 0.0f;
    p->k_scale    = fuzz_chance(s, 4) ? 0.25f * (float)fuzz_between(s, 1, 7) : 0.0f;
    p->v_scale    = fuzz_chance(s, 4) ? 0.25f * (float)fuzz_between(s, 1, 7) : 0.0f;
    p->own_seeds    = fuzz_chance(s, 4);
    p->own_offsets  = fuzz_chance(s, 4);
    p->own_requests = fuzz_chance(s, 4);
    p->poke         = fuzz_chance(s, 16) ? (int)fuzz_between(s, 1, 255) : 0;
    p->context      = fuzz_chance(s, 4);
    p->first_key    = fuzz_chance(s, 2) ? fuzz_between(s, 0, 3000) : 0;
    p->later_keys   = fuzz_chance(s, 2) ? fuzz_between(s, 0, 300) : 0;
    p->one_sequence = fuzz_chance(s, 16) && !p->poke;
    p->starts       = fuzz_chance(s, 6);
    p->k_scales     = fuzz_chance(s, 6);
    p->v_scales     = fuzz_chance(s, 6);
    p->scale_type   = (santa_dtype)fuzz_below(s, 3);

    p->q_layout   = fuzz_some_layout(s, p->q_type);
    p->k_layout   = fuzz_some_layout(s, p->k_type);
    p->v_layout   = fuzz_some_layout(s, p->v_type);
    p->out_layout = fuzz_some_layout(s, p->out_type);
    p->scale_layout = fuzz_some_layout(s, p->scale_type);
    p->page_size  = fuzz_chance(s, 3) ? fuzz_chance(s, 4) ? 64 : fuzz_between(s, 1, 30) : 0;
    p->shuffle    = fuzz_take(s, 2);
    p->broadcast  = p->one_sequence;
    p->at_end     = !fuzz_chance(s, 3);
    p->q_power    = p->q_type != SANTA_F16 && fuzz_chance(s, 6) ? (int)fuzz_between(s, -100, 100) : 0;
    p->v_power    = (p->v_type == SANTA_F32 || p->v_type == SANTA_BF16) && p->out_type != SANTA_F16
                 && fuzz_chance(s, 6) ? (int)fuzz_between(s, -60, 60) : 0;
    p->wide_table = fuzz_chance(s, 2);
    p->no_lse     = fuzz_chance(s, 8);
    p->no_error   = (santa_method_traits(p->o.method) & SANTA_BIASED) || fuzz_chance(s, 3);
    p->no_audit   = fuzz_chance(s, 3);
    if (p->window && fuzz_chance(s, 2))
        p->first_tokens = fuzz_between(s, 1, fuzz_chance(s, 2) ? p->n : 6);
    if (fuzz_chance(s, 8))      fuzz_choose_list(s, p);
    else if (fuzz_chance(s, 4)) fuzz_choose_copy(s, p);
    if (p->o.method == SANTA_SAAP) fuzz_choose_router(s, p);
    if (p->o.method == SANTA_SAMPLE_ATTENTION) fuzz_choose_sparse(s, p);
    if (p->copy || p->o.method == SANTA_SAAP || p->o.method == SANTA_VATTENTION
        || p->o.method == SANTA_SAMPLE_ATTENTION)
        p->first_tokens = 0;
    /* left padding and first tokens end in the part that has key 0 */
    for (int64_t b = 0; p->first_tokens && p->starts && b < p->batch; b++)
        if (fuzz_start(p, b)
            && (p->first_key || (p->context && p->later_keys
                                 && fuzz_start(p, b) + p->first_tokens > fuzz_len(p, b))))
            p->first_tokens = 0;
    if (p->copy || p->o.method != SANTA_VATTENTION) p->predictor = 0;
    if (p->copy && p->o.vattention.heavy_tokens == SANTA_NONE) p->o.vattention.heavy_tokens = 0;
    fuzz_keep_used(&p->o);
}

/* ------------------------------------------------------------ numbers */

static inline uint64_t fuzz_hash(uint64_t a, uint64_t b) {
    uint64_t z = (a + 0x9e3779b97f4a7c15u) ^ b * 0xd1342543de82ef95u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1), a function of the spec's seed and the place. */
static inline float fuzz_unit(const fuzz_spec *p, int tensor, int64_t b, int64_t j, int64_t h, int64_t c) {
    const int64_t  sequence = p->one_sequence && tensor != FUZZ_Q ? 0 : p->first + b;
    const uint64_t place = ((uint64_t)sequence * 4099u + (uint64_t)j) * 67u * 199u + (uint64_t)h * 199u +
                           (uint64_t)c;
    return (float)(int32_t)(fuzz_hash(p->value_seed * 4u + (uint64_t)tensor, place) >> 40) / 8388608.0f -
           1.0f;
}

/* The numbers of one row of q, k or v. */
static inline void fuzz_numbers(const fuzz_spec *p, int tensor, int64_t b, int64_t j, int64_t h, float *x) {
    const int64_t dim = tensor == FUZZ_V ? p->dim_v : p->dim;
    for (int64_t c = 0; c < dim; c++) {
        float u = fuzz_unit(p, tensor, b, tensor == FUZZ_K && p->values == FUZZ_EQUAL ? 0 : j, h, c);
        if (tensor == FUZZ_Q) { x[c] = ldexpf(1.7f * p->gain * u, p->q_power); continue; }
        if (tensor == FUZZ_V) { x[c] = ldexpf(u + 0.5f, p->v_power); continue; }
        if (p->values == FUZZ_TIES) u = u < -0.4f ? -1.0f : u > 0.4f ? 1.0f : 0.0f;
        if (p->values == FUZZ_PEAKS && fuzz_hash(p->value_seed, (uint64_t)j) % 19 == 0) u *= 25.0f;
        if (p->values == FUZZ_CLIFFS && j / 64 % 2 == 0) u *= 60.0f;
        x[c] = 1.7f * u;
    }
}

static inline int64_t fuzz_byte_count(santa_dtype t, int64_t n) {
    return ref_bytes(t, n);
}

static inline int64_t fuzz_at(const santa_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + i3 * t->stride[3];
}

static inline void fuzz_store_row(const santa_tensor *t, int64_t i0, int64_t i1, int64_t i2,
                                  const float *x) {
    char *row = (char *)t->data + fuzz_byte_count(t->dtype, fuzz_at(t, i0, i1, i2, 0));
    if (t->dtype == SANTA_Q4_0) { santa_f32_to_q4_0(x, t->shape[3], row); return; }
    if (t->dtype == SANTA_Q8_0) { santa_f32_to_q8_0(x, t->shape[3], row); return; }
    for (int64_t c = 0; c < t->shape[3]; c++) {
        char *p = row + fuzz_byte_count(t->dtype, c * t->stride[3]);
        if (t->dtype == SANTA_F32) memcpy(p, &x[c], 4);
        else if (t->dtype == SANTA_E4M3) *(uint8_t *)p = santa_f32_to_e4m3(x[c]);
        else if (t->dtype == SANTA_E5M2) *(uint8_t *)p = santa_f32_to_e5m2(x[c]);
        else {
            const uint16_t half = t->dtype == SANTA_F16 ? santa_f32_to_f16(x[c]) : santa_f32_to_bf16(x[c]);
            memcpy(p, &half, 2);
        }
    }
}

/* ------------------------------------------------------------ memory */

static inline santa_tensor fuzz_tensor(int area, santa_dtype type, fuzz_layout layout, int at_end,
                                       int broadcast, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    const int64_t gap = layout == FUZZ_PADDED ? ref_is_blocks(type) ? 96 : 3 : 0;
    santa_tensor  t;
    memset(&t, 0, sizeof t);
    t.dtype = type;
    t.shape[0] = n0; t.shape[1] = n1; t.shape[2] = n2; t.shape[3] = n3;
    t.stride[3] = layout == FUZZ_STRIDED ? 3 : 1;
    t.stride[2] = n3 * t.stride[3] + gap;
    t.stride[1] = n2 * t.stride[2] + gap;
    t.stride[0] = n1 * t.stride[1] + gap;
    if (layout == FUZZ_HND) {
        t.stride[1] = n3;
        t.stride[2] = n1 * n3;
    } else if (layout == FUZZ_FEATURE_MAJOR) {
        t.stride[1] = 1;
        t.stride[3] = n1;
        t.stride[2] = n1 * n3;
    } else if (layout == FUZZ_BATCH_INSIDE) {
        t.stride[0] = n2 * n3;
        t.stride[1] = n0 * t.stride[0];
    } else if (layout == FUZZ_BACKWARDS) {
        t.stride[1] = -t.stride[1];
        t.stride[2] = -t.stride[2];
    }
    if (broadcast) t.stride[0] = 0;
    int64_t low = 0, high = 0;
    for (int d = 0; d < 4; d++) {
        const int64_t way = (t.shape[d] - 1) * t.stride[d];
        if (way < 0) low += way;
        else         high += way;
    }
    if (ref_is_blocks(type)) high += 31;                       /* to the end of a block */
    const int64_t bytes = fuzz_byte_count(type, high - low + 1);
    t.data = (char *)fuzz_memory(area, (size_t)bytes, at_end, 0xff) -
             fuzz_byte_count(type, low); /* 0xff: NaN in any type */
    return t;
}

static inline int64_t fuzz_len(const fuzz_spec *p, int64_t b) {
    if (!p->ragged) return p->n;
    switch ((p->value_seed + (uint64_t)(p->first + b)) % 6) {
    case 0:  return p->n;
    case 1:  return 0;
    case 2:  return 1;
    case 3:  return p->n / 2 + 1 < p->n ? p->n / 2 + 1 : p->n;
    case 4:  return p->n - 1;
    default: return p->n < 65 ? p->n : 65;
    }
}

static inline int64_t fuzz_start(const fuzz_spec *p, int64_t b) {
    const uint64_t word = fuzz_hash(p->value_seed + 11u, (uint64_t)(p->first + b));
    return p->starts ? (int64_t)(word % (uint64_t)(fuzz_len(p, b) / (word >> 32 & 1 ? 1 : 4) + 1)) : 0;
}

/* The first keys that stay visible beside a window: those before the one that this returns. */
static inline int64_t fuzz_firsts_end(const fuzz_spec *p, int64_t b) {
    const int64_t end = fuzz_start(p, b) + p->first_tokens - p->first_key;
    return p->first_tokens == 0 ? 0 : end < 0 ? 0 : fuzz_least(end, fuzz_len(p, b));
}

/* Valid keys of a query row: from *begin on, but for those that fuzz_is_hidden names. */
static inline void fuzz_range(const fuzz_spec *p, int64_t b, int64_t i, int64_t *begin, int64_t *end,
                              int64_t *position) {
    const int64_t len = fuzz_len(p, b), start = fuzz_start(p, b);
    *position = len + (p->context ? p->later_keys : 0) - p->q_len + i;
    *end   = p->causal ? fuzz_least(*position + 1 > 0 ? *position + 1 : 0, len) : len;
    *begin = p->window > 0 && *position >= p->window ? *position - p->window + 1 : 0;
    if (*begin < start || fuzz_firsts_end(p, b) > start) *begin = start;
    if (*begin > *end) *begin = *end;
}

/* Whether key j lies between the first tokens and the window. */
static inline int fuzz_is_hidden(const fuzz_spec *p, int64_t b, int64_t i, int64_t j) {
    const int64_t position = fuzz_len(p, b) + (p->context ? p->later_keys : 0) - p->q_len + i;
    return p->first_tokens > 0 && j >= fuzz_firsts_end(p, b) && j <= position - p->window;
}

static inline int64_t fuzz_num_keys(const fuzz_spec *p, int64_t b, int64_t i) {
    int64_t begin, end, position, n = 0;
    fuzz_range(p, b, i, &begin, &end, &position);
    for (int64_t j = begin; j < end; j++) n += !fuzz_is_hidden(p, b, i, j);
    return n;
}

/* Where key j of sequence b lies: first two indices of k and v. */
static inline void fuzz_place(const fuzz_problem *p, int64_t b, int64_t j, int64_t *i0, int64_t *i1) {
    const int64_t stride = p->a.block_table_stride ? p->a.block_table_stride : p->a.max_pages;
    *i0 = p->s.page_size ? p->a.block_table[b * stride + j / p->s.page_size] : b;
    *i1 = p->s.page_size ? j % p->s.page_size : j;
}

static inline void fuzz_tasks(void *user, int64_t count, santa_task task, void *context) {
    const uint64_t order = *(const uint64_t *)user;
    for (int64_t i = 0; i < count; i++) {
        const int64_t turn = (i + (int64_t)(order / 2 % 16)) % count;
        task(context, order % 2 ? count - 1 - turn : turn);
    }
}

/* Pure functions of their arguments; some indices outside of the range, some twice; the fourth
   kind says that it wrote more than it did. */
static inline int64_t fuzz_predict(void *user, int64_t batch, int64_t q_index, int64_t head, const float *q,
                                   int64_t begin, int64_t end, int64_t count, int32_t *index) {
    const int which = *(const int *)user;
    (void)batch;
    for (int64_t i = 0; i < (which == 4 ? count / 2 : count); i++)
        index[i] = (int32_t)(begin - 2 + (i * 7 + head + q_index + (q[0] > 0.0f)) % (end - begin + 4));
    return which == 2 ? count / 2 : which == 3 ? -1 : count;
}

static inline int64_t fuzz_copied_keys(const fuzz_spec *s) { /* of a block */
    int64_t keys = 64;
    while (s->page_size && s->page_size % keys) keys /= 2;
    return keys;
}

/* A block of a copy is made from all of its keys. */
static inline int64_t fuzz_least_key(const fuzz_spec *s, int64_t begin) {
    return s->copy ? begin / fuzz_copied_keys(s) * fuzz_copied_keys(s) : begin;
}

static inline void fuzz_build_table(fuzz_problem *p) {
    const fuzz_spec *s = &p->s;
    const int64_t columns = (s->n + s->page_size - 1) / s->page_size,
                  stride = s->wide_table ? columns + 3 : columns;
    int32_t *table = (int32_t *)fuzz_memory(FUZZ_TABLE, (size_t)(s->batch * stride) * sizeof *table,
                                            s->at_end, 0x7f);
    int32_t *page  = (int32_t *)test_alloc((size_t)(s->batch * columns + 1) * sizeof *page);
    for (int64_t i = 0; i < s->batch * columns; i++) {        /* a shuffle */
        const int64_t other = (int64_t)(fuzz_hash(s->shuffle, (uint64_t)i) % (uint64_t)(i + 1));
        page[i] = page[other];
        page[other] = (int32_t)i + 1;
    }
    for (int64_t b = 0; b < s->batch; b++) {
        int64_t begin, end, position;
        fuzz_range(s, b, 0, &begin, &end, &position);
        const int64_t least = fuzz_least_key(s, begin);
        for (int64_t i = 0; i < columns; i++) {               /* wild where no row looks */
            const int64_t next = fuzz_least((i + 1) * s->page_size, fuzz_len(s, b));
            int is_read = 0;
            for (int64_t j = i * s->page_size; j < next; j++)
                is_read |= j >= least && !fuzz_is_hidden(s, b, 0, j);
            table[b * stride + i] = is_read ? page[b * columns + i] : i % 2 ? INT32_MAX : -7;
        }
    }
    free(page);
    p->a.block_table        = table;
    p->a.max_pages          = columns;
    p->a.block_table_stride = s->wide_table ? stride : 0;
}

static inline uint64_t *fuzz_words(int area, const fuzz_spec *s, uint64_t stream) {
    uint64_t *word = (uint64_t *)fuzz_memory(area, (size_t)s->batch * sizeof *word, s->at_end, 0);
    for (int64_t b = 0; b < s->batch; b++)
        word[b] = stream ? fuzz_hash(s->value_seed + stream, (uint64_t)(s->first + b))
                         : (uint64_t)(s->first + b);
    return word;
}

/* A NaN or infinity in one number of q, k or v that some row may read. */
static inline void fuzz_poke(fuzz_problem *p) {
    const fuzz_spec *s = &p->s;
    const santa_tensor *t = s->poke % 3 == 0 ? &p->a.q : s->poke % 3 == 1 ? &p->a.k : &p->a.v;
    const int64_t len = fuzz_len(s, 0);
    int64_t begin, end, position, i0 = 0, i1 = 0;
    fuzz_range(s, 0, s->q_len - 1, &begin, &end, &position);
    if (s->first > 0 || len == 0 || begin == end || t->dtype >= SANTA_E4M3) return;
    if (fuzz_is_hidden(s, 0, s->q_len - 1, begin + s->poke / 3 % (end - begin))) return;
    if (t != &p->a.q) fuzz_place(p, 0, begin + s->poke / 3 % (end - begin), &i0, &i1);
    const uint16_t half = s->poke & 4 ? 0x7fff : t->dtype == SANTA_F16 ? 0x7c00 : 0x7f80;
    const uint32_t word = (uint32_t)half << 16;
    char *at = (char *)t->data +
               fuzz_byte_count(t->dtype, fuzz_at(t, i0, i1, s->poke % t->shape[2], s->poke % t->shape[3]));
    if (t->dtype == SANTA_F32) memcpy(at, &word, 4);
    else                       memcpy(at, &half, 2);
}

/* The copy of K, sequence by sequence, of the keys that some row sees. What is not right in it
   depends on the sequence and the keys, and not on where they lie. */
static inline void fuzz_build_copy(fuzz_problem *p) {
    const fuzz_spec *s = &p->s;
    santa_attention *a = &p->a;
    a->proxy_bits = s->bits;
    const size_t bytes = santa_proxy_size(a);
    const int64_t pages = a->k.shape[0], units = s->bits == 2 ? 64 : 32,
                  chunks = (s->dim + units - 1) / units;
    const int64_t keys = fuzz_copied_keys(s);
    const int64_t centre = 16 * chunks * keys + 2 * keys,
                  block = (centre + chunks * units + 4 + 63) / 64 * 64;
    a->proxy = fuzz_memory(FUZZ_COPY, bytes ? bytes : 1, s->at_end, 0xff);
    if (s->copy == FUZZ_SHORT) {
        int32_t *lens = (int32_t *)fuzz_memory(FUZZ_COPIED, (size_t)s->batch * sizeof *lens, s->at_end, 0);
        for (int64_t b = 0; b < s->batch; b++) lens[b] = (int32_t)(fuzz_len(s, b) / 2);
        a->proxy_lens = lens;
    }
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t stride = a->block_table_stride ? a->block_table_stride : a->max_pages,
                      len = a->proxy_lens ? a->proxy_lens[b] : fuzz_len(s, b);
        int64_t begin, end, position;
        int32_t mine = (int32_t)len;
        santa_attention one = *a;
        fuzz_range(s, b, 0, &begin, &end, &position);
        one.q.shape[0] = 1;
        one.seq_lens   = &mine;
        if (a->block_table) {
            one.block_table += b * stride;
        } else {
            one.k.shape[0] = 1;
            one.k.data     = (char *)a->k.data + fuzz_byte_count(s->k_type, b * a->k.stride[0]);
            one.k_scales.shape[0] = 1;
            if (s->k_scales)
                one.k_scales.data = (char *)a->k_scales.data
                                  + fuzz_byte_count(s->scale_type, b * a->k_scales.stride[0]);
            one.proxy      = (char *)a->proxy + (int64_t)bytes / pages * b;
        }
        if (begin < len) CHECK_STATUS(santa_proxy_encode(&one, begin, len, NULL), SANTA_OK);
        for (int64_t j = begin / keys * keys; s->copy >= FUZZ_STALE && j + keys <= len; j += keys)
            for (int64_t h = 0; h < s->kv_heads; h++) {
                int64_t i0, i1;
                fuzz_place(p, b, j, &i0, &i1);
                unsigned char *at = (unsigned char *)a->proxy
                                  + ((i0 * s->kv_heads + h) * (a->k.shape[1] / keys) + i1 / keys) * block;
                const int64_t until = s->copy == FUZZ_ANY_BYTES ? block : centre + chunks * units;
                const uint64_t place =
                    ((uint64_t)(s->first + b) * 97u + (uint64_t)h) * 1009u + (uint64_t)(j / keys);
                for (int64_t i = 0; i < until; i++)
                    if (s->copy == FUZZ_STALE)
                        at[i] = (unsigned char)(i < centre - 2 * keys ? ~at[i] : at[i]);
                    else
                        at[i] = (unsigned char)(fuzz_hash(s->value_seed + place * 77u, (uint64_t)i) >> 40);
                for (int64_t i = centre - 2 * keys; i < centre && s->copy == FUZZ_SANE_BYTES; i += 2)
                    at[i + 1] = (unsigned char)(0x30 + at[i + 1] % 8);       /* gains of 1/8 to 1 */
            }
    }
}

/* n numbers of a router, of its type. */
static inline void *fuzz_weights(int area, const fuzz_spec *s, santa_dtype type, int64_t n) {
    char *x = (char *)fuzz_memory(area, (size_t)fuzz_byte_count(type, n), s->at_end, 0);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t word = fuzz_hash(s->value_seed + (uint64_t)area, (uint64_t)i);
        const float    f = (float)((double)(word >> 40) / 16777216.0 - 0.5);
        const uint16_t h = type == SANTA_F16 ? santa_f32_to_f16(f) : santa_f32_to_bf16(f);
        if (type == SANTA_F32) memcpy(x + i * 4, &f, 4);
        else                   memcpy(x + i * 2, &h, 2);
    }
    return x;
}

/* The router of SANTA_SAAP and its index, into which keys come in chunks, sequence by
   sequence. */
static inline void fuzz_build_router(fuzz_problem *p) {
    const fuzz_spec *s = &p->s;
    santa_buckets *r = &p->router;
    const int64_t heads = s->kv_heads, slots = s->batch + s->spare_slots;
    float *keys = (float *)test_alloc((size_t)(s->chunk * heads * s->dim) * sizeof *keys);
    r->num_buckets = s->buckets;
    r->hidden      = s->hidden;
    r->dtype       = s->router_type;
    r->key_norm    = 2.0f;
    r->centroids = fuzz_weights(FUZZ_CENTROIDS, s, s->router_type, heads * s->buckets * s->dim);
    if (s->hidden) {
        r->w1 = fuzz_weights(FUZZ_W1, s, s->router_type, heads * s->hidden * s->dim);
        r->b1 = (const float *)fuzz_weights(FUZZ_B1, s, SANTA_F32, heads * s->hidden);
        r->w2 = fuzz_weights(FUZZ_W2, s, s->router_type, heads * s->buckets * s->hidden);
        r->b2 = (const float *)fuzz_weights(FUZZ_B2, s, SANTA_F32, heads * s->buckets);
    }
    if (s->own_route) {
        r->q = p->a.q;
        r->q.data = fuzz_weights(FUZZ_ROUTE, s, SANTA_F32, s->batch * s->q_len * heads * s->group * s->dim);
        r->q = santa_view(r->q.data, SANTA_F32, s->batch, s->q_len, heads * s->group, s->dim);
        for (int64_t i = 0; i < s->batch * s->q_len * heads * s->group; i++) {
            const int64_t b = i / (s->q_len * heads * s->group);
            fuzz_numbers(s, FUZZ_ROUTE, b, i / (heads * s->group) % s->q_len, i % (heads * s->group),
                         (float *)r->q.data + i * s->dim);
        }
    }
    int32_t *slot = (int32_t *)fuzz_memory(FUZZ_SLOTS, (size_t)s->batch * sizeof *slot, s->at_end, 0);
    for (int64_t b = 0; b < s->batch; b++) slot[b] = (int32_t)(slots - 1 - b);
    p->a.buckets = r;
    if (s->spare_slots) { r->slots = slot; r->num_slots = slots; }
    r->index = fuzz_memory(FUZZ_BUCKETS, santa_buckets_size(&p->a), s->at_end, 0xff);
    for (int64_t b = 0; b < s->batch; b++) {
        santa_attention one = p->a;
        santa_buckets   mine = *r;
        const int64_t len = fuzz_len(s, b);
        const int32_t length = (int32_t)len;
        const int32_t at = (int32_t)(s->spare_slots ? slot[b] : b);
        one.buckets = &mine;
        one.q.shape[0] = 1;
        one.seq_lens = &length;
        if (!one.block_table) one.k.shape[0] = 1;
        mine.slots = &at;
        mine.num_slots = slots;
        for (int64_t j = 0; j < len || j == 0; j += s->chunk) {
            const santa_tensor view = santa_view(keys, SANTA_F32, 1, s->chunk, heads, s->dim);
            for (int64_t i = 0; i < s->chunk * heads; i++)
                if (j + i / heads < len)
                    fuzz_numbers(s, FUZZ_K, b, j + i / heads, i % heads, keys + i * s->dim);
                else memset(keys + i * s->dim, 0xff, (size_t)s->dim * sizeof *keys);
            CHECK_STATUS(santa_buckets_assign(&one, &view, j, NULL), SANTA_OK);
        }
    }
    free(keys);
}

/* A mask of the caller's own, a function of the sequence and the block; where the one that
   was used goes. */
static inline void fuzz_build_masks(fuzz_problem *p) {
    const fuzz_spec *s = &p->s;
    const int64_t heads = s->kv_heads * s->group, rows = s->batch * s->q_len * heads;
    santa_sample_attention_options *x = &p->o.sample_attention;
    int64_t q_blocks = 0, k_blocks = 0;
    CHECK_STATUS(santa_mask_shape(&p->a, &p->o, &q_blocks, &k_blocks), SANTA_OK);
    const int64_t bytes = s->batch * heads * q_blocks * k_blocks;
    if (s->own_mask) {
        uint8_t *mask = (uint8_t *)fuzz_memory(FUZZ_MASK, (size_t)bytes, s->at_end, 0);
        for (int64_t i = 0; i < bytes; i++) {
            const int64_t b = i / k_blocks / q_blocks / heads, block = i / k_blocks % (q_blocks * heads);
            const uint64_t at = (uint64_t)(((s->first + b) * heads * q_blocks + block) * 4099 +
                                           i % k_blocks);
            mask[i] = fuzz_hash(s->value_seed + 5u, at) % 3 != 0;
        }
        x->mask = mask;
    }
    x->mask_out = (uint8_t *)fuzz_memory(FUZZ_MASK_OUT, (size_t)bytes, s->at_end, 0xff);
    if (s->no_audit) return;
    x->audit = (santa_sample_audit *)fuzz_memory(FUZZ_SAMPLED,
                                                 (size_t)(s->batch * heads) * sizeof *x->audit,
                                                 s->at_end, 0xff);
    x->row_mass = (float *)fuzz_memory(FUZZ_ROW_MASS, (size_t)rows * sizeof(float), s->at_end, 0xff);
}

/* Keys of the sequence, some twice, and gaps; behind a list's end everything is wild. */
static inline void fuzz_build_list(fuzz_problem *p) {
    const fuzz_spec *s = &p->s;
    const int64_t rows = s->list_rows ? s->q_len : 1, count = s->batch * rows * s->kv_heads,
                  stride = s->max_list + s->list_gap, size = (count - 1) * stride + s->max_list;
    int32_t *lens = (int32_t *)fuzz_memory(FUZZ_LIST_LENS, (size_t)count * 4, s->at_end, 0);
    int32_t *list = (int32_t *)fuzz_memory(FUZZ_LIST, (size_t)size * 4, s->at_end, 0x7f);
    float *weight = !s->list_weights ? NULL
                  : (float *)fuzz_memory(FUZZ_LIST_WEIGHTS, (size_t)size * 4, s->at_end, 0xff);
    for (int64_t x = 0; x < count; x++) {
        const int64_t  b = x / rows / s->kv_heads, len = fuzz_len(s, b);
        const uint64_t seed = s->value_seed + (uint64_t)(s->first + b) * 131u;
        lens[x] =
            (int32_t)(fuzz_hash(seed, (uint64_t)(x % (rows * s->kv_heads))) % (uint64_t)(s->max_list + 1));
        for (int64_t i = 0; i < lens[x]; i++) {
            const uint64_t word = fuzz_hash(seed + 1u, (uint64_t)(x % (rows * s->kv_heads) * 4099 + i));
            list[x * stride + i] = len == 0 || word % 8 == 0 ? -1 - (int32_t)(word >> 40)
                                                             : (int32_t)(word / 8 % (uint64_t)len);
            if (weight) weight[x * stride + i] = word >> 60 < 3 ? 0.0f : 0.25f * (float)(word >> 50 & 31);
        }
    }
    p->a.key_list        = list;
    p->a.key_list_lens   = lens;
    p->a.key_weights     = weight;
    p->a.max_list        = s->max_list;
    p->a.key_list_stride = s->list_gap ? stride : 0;
    p->a.key_list_rows   = s->list_rows;
}

/* What the caller's list says that key j counts in a row, over all entries. */
static inline double fuzz_listed(const fuzz_problem *p, int64_t b, int64_t i, int64_t kv, int64_t j) {
    const santa_attention *a = &p->a;
    const int64_t x = (p->s.list_rows ? b * p->s.q_len + i : b) * p->s.kv_heads + kv;
    const int64_t stride = p->s.max_list + p->s.list_gap;
    double sum = 0.0;
    for (int64_t k = 0; k < a->key_list_lens[x]; k++)
        if (a->key_list[x * stride + k] == j)
            sum += a->key_weights ? (double)a->key_weights[x * stride + k] : 1.0;
    return sum;
}

/* A scale for the row of k or v with key j of sequence b. */
static inline void fuzz_store_scale(const fuzz_spec *s, int area, const santa_tensor *t, int64_t b,
                                    int64_t j, int64_t h, int64_t i0, int64_t i1) {
    const float scale = 0.75f + 0.5f * fuzz_unit(s, area, b, j, h, 0);
    if (t->data) fuzz_store_row(t, i0, i1, h, &scale);
}

/* What that row is multiplied with. */
static inline double fuzz_row_scale(const santa_tensor *t, int64_t i0, int64_t i1, int64_t h) {
    const char *p = (const char *)t->data;
    float    f;
    uint16_t half;
    if (!p) return 1.0;
    p += fuzz_byte_count(t->dtype, fuzz_at(t, i0, i1, h, 0));
    memcpy(&half, p, 2);
    if (t->dtype == SANTA_F32) memcpy(&f, p, 4);
    else f = t->dtype == SANTA_F16 ? santa_f16_to_f32(half) : santa_bf16_to_f32(half);
    return (double)f;
}

/* Every area is filled anew; out, lse, std_error and audit hold 0xff. */
static inline void fuzz_build(fuzz_problem *p, const fuzz_spec *spec) {
    memset(p, 0, sizeof *p);
    p->s = *spec;
    const fuzz_spec *s = &p->s;
    const int64_t heads = s->kv_heads * s->group, rows = s->batch * s->q_len * heads;
    const int64_t pages = s->page_size ? s->batch * ((s->n + s->page_size - 1) / s->page_size) + 2 : 0;
    const int64_t n0 = pages ? pages : s->batch, n1 = pages ? s->page_size : s->n;
    const int     broadcast = s->broadcast && !pages;
    float         row[512];
    santa_attention *a = &p->a;
#ifdef FUZZ_NO_CONTEXT
    p->s.context = 0;
#endif
    a->q   = fuzz_tensor(FUZZ_Q, s->q_type, s->q_layout, s->at_end, 0, s->batch, s->q_len, heads, s->dim);
    a->k   = fuzz_tensor(FUZZ_K, s->k_type, s->k_layout, s->at_end, broadcast, n0, n1, s->kv_heads, s->dim);
    a->v = fuzz_tensor(FUZZ_V, s->v_type, s->v_layout, s->at_end, broadcast, n0, n1, s->kv_heads, s->dim_v);
    if (s->k_scales)
        a->k_scales = fuzz_tensor(FUZZ_K_SCALES, s->scale_type, s->scale_layout, s->at_end, broadcast, n0,
                                  n1, s->kv_heads, 1);
    if (s->v_scales)
        a->v_scales = fuzz_tensor(FUZZ_V_SCALES, s->scale_type, s->scale_layout, s->at_end, broadcast, n0,
                                  n1, s->kv_heads, 1);
    a->out = fuzz_tensor(FUZZ_OUT, s->out_type, s->out_layout, s->at_end, 0, s->batch, s->q_len, heads,
                         s->dim_v);
    if (!s->no_lse) a->lse = (float *)fuzz_memory(FUZZ_LSE, (size_t)rows * sizeof(float), s->at_end, 0xff);
    if (!s->no_error)
        a->std_error = (float *)fuzz_memory(FUZZ_ERROR, (size_t)rows * sizeof(float), s->at_end, 0xff);
    if (s->ragged || s->page_size) {                          /* the last page may be partial */
        int32_t *lens = (int32_t *)fuzz_memory(FUZZ_LENS, (size_t)s->batch * sizeof *lens, s->at_end, 0);
        for (int64_t b = 0; b < s->batch; b++) lens[b] = (int32_t)fuzz_len(s, b);
        a->seq_lens = lens;
    }
    if (s->page_size) fuzz_build_table(p);
    if (s->starts) {
        int32_t *starts =
            (int32_t *)fuzz_memory(FUZZ_STARTS, (size_t)s->batch * sizeof *starts, s->at_end, 0);
        for (int64_t b = 0; b < s->batch; b++) starts[b] = (int32_t)fuzz_start(s, b);
        a->kv_start = starts;
    }
    if (s->list) fuzz_build_list(p);
    if (s->sinks) {
        float *sinks = (float *)fuzz_memory(FUZZ_SINKS, (size_t)heads * sizeof *sinks, s->at_end, 0);
        for (int64_t h = 0; h < heads; h++)
            sinks[h] = h % 3 == 2 ? -INFINITY : h % 3 == 1 ? 0.0f : 2.0f + 0.25f * (float)h;
        a->sinks = sinks;
    }
    if (s->alibi) {
        float *slopes = (float *)fuzz_memory(FUZZ_SLOPES, (size_t)heads * sizeof *slopes, s->at_end, 0);
        for (int64_t h = 0; h < heads; h++) slopes[h] = 0.01f * (float)(h % 4);
        a->alibi_slopes = slopes;
    }
    a->sm_scale = s->sm_scale; a->k_scale = s->k_scale; a->v_scale = s->v_scale; a->soft_cap = s->soft_cap;
    if (s->q_power)
        a->sm_scale = ldexpf(s->sm_scale != 0.0f ? s->sm_scale : 1.0f / sqrtf((float)s->dim), -s->q_power);
    a->causal = s->causal; a->window = s->window; a->first_tokens = s->first_tokens;
#ifndef FUZZ_NO_CONTEXT                            /* for a header that has no parts of a context */
    a->first_key = s->first_key;
    if (s->context) {
        int32_t *context = (int32_t *)fuzz_memory(FUZZ_CONTEXT, (size_t)s->batch * sizeof *context,
                                                  s->at_end, 0);
        for (int64_t b = 0; b < s->batch; b++)
            context[b] = (int32_t)(s->first_key + fuzz_len(s, b) + s->later_keys);
        a->context_lens = context;
    }
#endif

    for (int64_t b = 0; b < s->batch; b++) {
        int64_t begin, end, position;
        fuzz_range(s, b, 0, &begin, &end, &position);
        for (int64_t i = 0; i < s->q_len; i++)
            for (int64_t h = 0; h < heads; h++) {
                fuzz_numbers(s, FUZZ_Q, b, i, h, row);
                fuzz_store_row(&a->q, b, i, h, row);
            }
        const int64_t least = fuzz_least_key(s, begin);
        for (int64_t j = least; j < fuzz_len(s, b); j++) {
            int64_t i0, i1;
            if (fuzz_is_hidden(s, b, 0, j)) continue;
            fuzz_place(p, b, j, &i0, &i1);
            for (int64_t h = 0; h < s->kv_heads; h++) {
                fuzz_numbers(s, FUZZ_K, b, j, h, row);
                fuzz_store_row(&a->k, i0, i1, h, row);
                fuzz_store_scale(s, FUZZ_K_SCALES, &a->k_scales, b, j, h, i0, i1);
                if (j < begin) continue;
                fuzz_numbers(s, FUZZ_V, b, j, h, row);
                fuzz_store_row(&a->v, i0, i1, h, row);
                fuzz_store_scale(s, FUZZ_V_SCALES, &a->v_scales, b, j, h, i0, i1);
            }
        }
    }
    if (s->poke) fuzz_poke(p);
    if (s->copy) fuzz_build_copy(p);
    if (s->o.method == SANTA_SAAP) fuzz_build_router(p);

    p->o = s->o;
    p->order = s->shuffle;
    if (s->own_seeds)    p->o.seeds       = fuzz_words(FUZZ_SEEDS, s, 1);
    if (s->own_offsets)  p->o.offsets     = fuzz_words(FUZZ_OFFSETS, s, 2);
    if (s->own_requests) p->o.request_ids = fuzz_words(FUZZ_REQUESTS, s, 3);
    else if (s->first)   p->o.request_ids = fuzz_words(FUZZ_REQUESTS, s, 0);
    if (p->o.num_threads > 1) {
        p->o.parallel_for  = fuzz_tasks;
        p->o.parallel_user = &p->order;
    }
    if (s->predictor && p->o.vattention.heavy_tokens != SANTA_NONE) {
        p->o.vattention.heavy      = fuzz_predict;
        p->o.vattention.heavy_user = &p->s.predictor;
    }
    if (s->o.method == SANTA_SAMPLE_ATTENTION) fuzz_build_masks(p);
    if (s->o.method == SANTA_VATTENTION && !s->no_audit)
        p->o.vattention.audit = (santa_audit *)fuzz_memory(FUZZ_AUDIT, (size_t)rows * sizeof(santa_audit),
                                                           s->at_end, 0xff);
}

#endif
