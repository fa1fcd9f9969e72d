/* Float64 attention of many query rows over the keys that a block mask leaves, for the suites
   of prefill: what the manual says of positions, ranges and blocks, with everything that a call
   may have. Results as bits. */
#ifndef SANTA_TEST_PREFILL_H
#define SANTA_TEST_PREFILL_H
#include "reference.h"

/* Keys [begin, end) that query row i sees, and where it stands, from the first key here. */
typedef struct pf_range { int64_t begin, end, position, gap, gap_end; } pf_range;  /* gap: not seen */
static inline pf_range pf_range_of(const ref_problem *p, int64_t b, int64_t i) {
    const int64_t n = ref_len(p, b);
    pf_range r;
    r.position = (p->a.context_lens ? p->a.context_lens[b] - p->a.first_key : n) - p->spec.q_len + i;
    r.begin = p->a.window > 0 ? ref_max(r.position - p->a.window + 1, 0) : 0;
    r.end   = p->a.causal ? ref_max(ref_min(r.position + 1, n), 0) : n;
    if (p->a.kv_start) r.begin = ref_max(r.begin, p->a.kv_start[b]);
    r.begin = ref_min(r.begin, r.end);
    r.gap = r.gap_end = r.begin;
    if (p->a.first_tokens) {
        const int64_t start = p->a.kv_start ? p->a.kv_start[b] : 0,
                      first = start + p->a.first_tokens - p->a.first_key;
        if (first > start) {
            r.begin = ref_min(start, r.end);
            r.gap = ref_min(first, r.end);
            r.gap_end = ref_max(r.gap_end, r.gap);
        }
    }
    return r;
}

/* Scores of the keys that a row sees, scores[j] for begin <= j < end. */
static inline pf_range pf_scores(const ref_problem *p, int64_t b, int64_t i, int64_t h, double *scores) {
    const ref_spec *s = &p->spec;
    const pf_range r = pf_range_of(p, b, i);
    const int64_t kv = h / (s->heads / s->kv_heads), d = s->head_dim;
    const double scale = (p->a.sm_scale != 0.0f ? (double)p->a.sm_scale : 1.0 / sqrt((double)d)) *
                         (p->a.k_scale != 0.0f ? (double)p->a.k_scale : 1.0);
    const double *q = p->q + ((b * s->q_len + i) * s->heads + h) * d;
    for (int64_t j = r.begin; j < r.end; j++) {
        const double *k = p->k + ((b * s->len + j) * s->kv_heads + kv) * d;
        double x = 0.0;
        for (int64_t c = 0; c < d; c++) x += q[c] * k[c];
        x *= scale;
        if (p->a.soft_cap > 0.0f) x = (double)p->a.soft_cap * tanh(x / (double)p->a.soft_cap);
        if (p->a.alibi_slopes) x += (double)p->a.alibi_slopes[h] * (double)(j - r.position);
        scores[j] = j >= r.gap && j < r.gap_end ? -REF_INF : x;
    }
    return r;
}

/* Which blocks of keys the rows of a head read: blocks NULL = all. */
typedef struct pf_mask { const uint8_t *blocks; int64_t q_blocks, k_blocks, block; } pf_mask;

static inline int64_t pf_floor(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

/* The row of the mask that query row i has. */
static inline const uint8_t *pf_mask_row(const ref_problem *p, const pf_mask *m, int64_t b, int64_t i,
                                         int64_t h) {
    const int64_t r = pf_floor(pf_range_of(p, b, i).position, m->block) -
                      pf_floor(pf_range_of(p, b, 0).position, m->block);
    return m->blocks + ((b * p->spec.heads + h) * m->q_blocks + r) * m->k_blocks;
}

/* One row: out, its lse, and the share of the softmax over all keys seen, without the sink, in
   those that were read. */
static inline double pf_row(const ref_problem *p, const pf_mask *m, int64_t b, int64_t i, int64_t h,
                            double *out, double *share) {
    const ref_spec *s = &p->spec;
    double *scores = ref_doubles(s->len), sink = p->a.sinks ? (double)p->a.sinks[h] : -REF_INF;
    const pf_range r = pf_scores(p, b, i, h, scores);
    const uint8_t *read = m && m->blocks ? pf_mask_row(p, m, b, i, h) : NULL;
    const int64_t kv = h / (s->heads / s->kv_heads);
    double max = sink, all = 0.0, kept = 0.0, top = -REF_INF;
    for (int64_t j = r.begin; j < r.end; j++) top = fmax(top, scores[j]);
    for (int64_t j = r.begin; j < r.end; j++) {
        const int keep = !read || read[j / m->block];
        all += exp(scores[j] - top);
        if (!keep) { scores[j] = -REF_INF; continue; }
        kept += exp(scores[j] - top);
        max = fmax(max, scores[j]);
    }
    if (share) *share = all > 0.0 ? kept / all : 1.0;
    for (int64_t c = 0; c < s->head_dim_v; c++) out[c] = 0.0;
    double total = max > -REF_INF ? exp(sink - max) : 0.0;
    for (int64_t j = r.begin; j < r.end; j++) {
        if (scores[j] == -REF_INF) continue;
        const double w = exp(scores[j] - max),
                     *v = p->v + ((b * s->len + j) * s->kv_heads + kv) * s->head_dim_v;
        total += w;
        for (int64_t c = 0; c < s->head_dim_v; c++) out[c] += w * v[c];
    }
    const double scale = p->a.v_scale != 0.0f ? (double)p->a.v_scale : 1.0;
    for (int64_t c = 0; c < s->head_dim_v && total > 0.0; c++) out[c] *= scale / total;
    free(scores);
    return max > -REF_INF ? max + log(total) : max;
}

/* out and lse of every step-th row and head against float64. abs_tol is for scores of a few
   units. */
static inline int pf_compare(const ref_problem *p, const pf_mask *m, int64_t step, const char *what,
                             double abs_tol) {
    const ref_spec *s = &p->spec;
    double *want = ref_doubles(s->head_dim_v), *got = ref_doubles(s->head_dim_v);
    const double rel = ref_epsilon(s->out_type);
    int good = 1;
    for (int64_t x = 0; x < s->batch * s->q_len * s->heads && good; x += step) {
        const int64_t b = x / s->heads / s->q_len, i = x / s->heads % s->q_len, h = x % s->heads;
        const double lse = pf_row(p, m, b, i, h, want, NULL), mine = (double)p->lse[x];
        ref_out(p, b, i, h, got);
        good = CHECK_MSG(lse == -REF_INF ? mine == lse : fabs(mine - lse) <= abs_tol + 1e-6 * fabs(lse),
                         "%s: lse of batch %d row %d head %d: got %.9g, want %.9g", what, (int)b, (int)i,
                         (int)h, mine, lse);
        for (int64_t c = 0; c < s->head_dim_v && good; c++)
            good = CHECK_MSG(fabs(got[c] - want[c]) <= abs_tol + rel * fabs(want[c]),
                             "%s: out of batch %d row %d head %d, element %d: got %.9g, want %.9g", what,
                             (int)b, (int)i, (int)h, (int)c, got[c], want[c]);
    }
    free(want);
    free(got);
    return good;
}

/* out and lse of all rows, [batch, q_len, heads, head_dim_v + 1]. */
typedef struct pf_bits { int64_t count; float *number; santa_stats stats; } pf_bits;
static inline pf_bits pf_take(const ref_problem *p) {
    const ref_spec *s = &p->spec;
    const int64_t rows = s->batch * s->q_len * s->heads;
    pf_bits r;
    memset(&r, 0, sizeof r);
    r.count  = rows * (s->head_dim_v + 1);
    r.number = ref_floats(r.count);
    float *at = r.number;
    for (int64_t x = 0; x < rows; x++) {
        for (int64_t c = 0; c < s->head_dim_v; c++)
            *at++ = (float)ref_get(&p->a.out, x / s->heads / s->q_len, x / s->heads % s->q_len,
                                   x % s->heads, c);
        *at++ = p->lse[x];
    }
    return r;
}

/* Poison in out and lse, so that what is not written shows. */
static inline void pf_poison(ref_problem *p) {
    const ref_spec *s = &p->spec;
    for (int64_t x = 0; x < s->batch * s->q_len * s->heads; x++) {
        p->lse[x] = 1e30f;
        for (int64_t c = 0; c < s->head_dim_v; c++)
            ref_set(&p->a.out, x / s->heads / s->q_len, x / s->heads % s->q_len, x % s->heads, c, 1e30);
    }
}

static inline pf_bits pf_run(ref_problem *p, const santa_options *o) {
    pf_bits r;
    santa_stats stats;
    memset(&stats, 0, sizeof stats);
    pf_poison(p);
    p->a.std_error = NULL;
    ref_run(p, o, &stats);
    r = pf_take(p);
    r.stats = stats;
    return r;
}

/* count numbers of a from number `from` on are those of b from `at` on. */
static inline int pf_same(const pf_bits *a, int64_t from, const pf_bits *b, int64_t at, int64_t count,
                          const char *what) {
    int64_t i = 0;
    while (i < count && !memcmp(a->number + from + i, b->number + at + i, sizeof(float))) i++;
    return CHECK_MSG(i == count, "%s: number %d is %.9g, was %.9g", what, (int)i,
                     i < count ? (double)b->number[at + i] : 0.0,
                     i < count ? (double)a->number[from + i] : 0.0);
}
static inline int pf_same_all(const pf_bits *a, const pf_bits *b, const char *what) {
    return CHECK_INT(a->count, b->count) && pf_same(a, 0, b, 0, a->count, what);
}

static inline int pf_same_stats(const santa_stats *a, const santa_stats *b) {
    return a->rows == b->rows && a->keys == b->keys && a->k_rows_read == b->k_rows_read &&
           a->k_features_read == b->k_features_read && a->k_features_head == b->k_features_head &&
           a->v_rows_read == b->v_rows_read && a->v_rows_head == b->v_rows_head &&
           a->dense_rows == b->dense_rows && a->draws == b->draws;
}

/* Tasks in an order of their own. */
static inline void pf_shuffled(void *user, int64_t count, santa_task task, void *context) {
    test_rng r = test_rng_make((uint64_t)count);
    int64_t order[64];
    (void)user;
    for (int64_t i = 0; i < count && i < 64; i++) {
        const int64_t other = test_below(&r, i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    for (int64_t i = 0; i < count && i < 64; i++) task(context, order[i]);
}

#endif
