/* Lists of keys for tests, on the CPU and on a GPU: random ones with all that a list may hold,
   what attention over them is in float64, and NaN in all rows that no list reads. */
#ifndef SANTA_TEST_LISTS_H
#define SANTA_TEST_LISTS_H

#include "reference.h"

typedef struct key_lists {
    int32_t *keys, *lens;
    float   *weights;              /* NULL: 1 */
    int64_t  count, stride;
} key_lists;

/* a: whose key_list and so on become these, or are those of a. */
static inline int64_t lists_number(const santa_attention *a, int64_t b, int64_t i, int64_t kv) {
    return ((a->key_list_rows ? b * a->q.shape[1] + i : b) * a->k.shape[2]) + kv;
}

/* Lists of up to `most` entries, the first one full and the second one empty: keys of the
   sequence, some masked, some twice, and gaps. Behind a list's end everything is wild. */
static inline key_lists lists_build(ref_problem *p, int64_t most, int per_row, int weighted, test_rng *r) {
    const ref_spec *s = &p->spec;
    key_lists x;
    x.count   = s->batch * s->kv_heads * (per_row ? s->q_len : 1);
    x.stride  = most + 3;
    x.keys    = ref_ints(x.count * x.stride);
    x.lens    = ref_ints(x.count);
    x.weights = weighted ? ref_floats(x.count * x.stride) : NULL;
    for (int64_t list = 0; list < x.count; list++) {
        const int64_t len = ref_len(p, list / (x.count / s->batch));
        const int64_t n   = list == 0 ? most : list == 1 ? 0 : test_below(r, most + 1);
        x.lens[list] = (int32_t)n;
        for (int64_t i = 0; i < x.stride; i++) {
            int32_t *key = &x.keys[list * x.stride + i];
            *key = i >= n ? INT32_MAX : len == 0 || test_below(r, 8) == 0 ? -1 - (int32_t)test_below(r, 9)
                                      : (int32_t)test_below(r, len);
            if (i > 0 && i < n && test_below(r, 8) == 0) *key = key[-1];
            if (weighted)
                x.weights[list * x.stride + i] =
                    i >= n ? test_nan() : test_below(r, 6) == 0 ? 0.0f
                                        : (float)exp(4.0 * test_uniform(r) - 1.0);
        }
    }
    p->a.key_list        = x.keys;
    p->a.key_list_lens   = x.lens;
    p->a.key_weights     = x.weights;
    p->a.max_list        = most;
    p->a.key_list_stride = x.stride;
    p->a.key_list_rows   = per_row;
    return x;
}

static inline void lists_free(key_lists *x) {
    free(x->keys);
    free(x->lens);
    free(x->weights);
}

/* Entries of one head's list that count: *key and *weight of number *at, from there on. */
static inline int lists_next(const santa_attention *a, const double *scores, int64_t list, int64_t *at,
                             int64_t *key, double *weight) {
    for (; *at < (a->key_list_lens ? a->key_list_lens[list] : a->max_list); ++*at) {
        const int64_t entry = list * (a->key_list_stride ? a->key_list_stride : a->max_list) + *at;
        *key    = a->key_list[entry];
        *weight = a->key_weights ? (double)a->key_weights[entry] : 1.0;
        if (*key >= 0 && *weight > 0.0 && scores[*key] > -REF_INF) return 1;
    }
    return 0;
}

/* Attention of one row over its list: out and lse; the entries that count. */
static inline double lists_dense(const ref_problem *p, int64_t b, int64_t i, int64_t h, double *out,
                                 int64_t *count) {
    const ref_spec *s = &p->spec;
    const int64_t kv = h / (s->heads / s->kv_heads), list = lists_number(&p->a, b, i, kv);
    double *scores = ref_doubles(s->len), top = ref_sink(p, h), sum, weight;
    int64_t at, key;
    ref_scores(p, b, i, h, scores);
    for (at = *count = 0; lists_next(&p->a, scores, list, &at, &key, &weight); at++, ++*count)
        if (scores[key] > top) top = scores[key];
    sum = top > -REF_INF ? exp(ref_sink(p, h) - top) : 0.0;
    for (int64_t c = 0; c < s->head_dim_v; c++) out[c] = 0.0;
    for (at = 0; lists_next(&p->a, scores, list, &at, &key, &weight); at++) {
        const double e = weight * exp(scores[key] - top);
        const double *v = p->v + ((b * s->len + key) * s->kv_heads + kv) * s->head_dim_v;
        sum += e;
        for (int64_t c = 0; c < s->head_dim_v; c++) out[c] += e * v[c];
    }
    for (int64_t c = 0; c < s->head_dim_v && sum > 0.0; c++) out[c] /= sum;
    free(scores);
    return sum > 0.0 ? top + log(sum) : -REF_INF;
}

/* NaN in the rows of K and V that no list reads. */
static inline void lists_poison(ref_problem *p) {
    const ref_spec *s = &p->spec;
    double *scores = ref_doubles(s->len), weight;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t kv = 0; kv < s->kv_heads; kv++) {
            unsigned char *used = (unsigned char *)test_alloc((size_t)s->len + 1);
            memset(used, 0, (size_t)s->len);
            for (int64_t i = 0; i < s->q_len; i++) {
                int64_t at, key;
                ref_scores(p, b, i, kv * (s->heads / s->kv_heads), scores);
                for (at = 0; lists_next(&p->a, scores, lists_number(&p->a, b, i, kv), &at, &key, &weight);
                     at++)
                    used[key] = 1;
            }
            for (int64_t j = 0; j < ref_len(p, b); j++) {
                int64_t i0, i1;
                if (used[j]) continue;
                ref_place(p, b, j, &i0, &i1);
                for (int64_t c = 0; c < s->head_dim; c++)
                    ref_set(&p->a.k, i0, i1, kv, c, (double)test_nan());
                for (int64_t c = 0; c < s->head_dim_v; c++)
                    ref_set(&p->a.v, i0, i1, kv, c, (double)test_nan());
            }
            free(used);
        }
    free(scores);
}

/* A random problem; pieces: strides and sizes that tensor cores take, too. */
static inline ref_spec lists_spec(test_rng *r, int64_t number, int64_t most_len) {
    static const int64_t dims[] = {64, 128, 8, 256, 40, 96, 128, 33};
    static const santa_dtype types[] = {SANTA_F32, SANTA_BF16, SANTA_F16, SANTA_E4M3, SANTA_BF16};
    const int64_t kv_heads = 1 + test_below(r, 3), group = number % 5 == 0 ? 9 : 1 + test_below(r, 6);
    ref_spec s = ref_spec_make(kv_heads * group, kv_heads, 1 + test_below(r, most_len), dims[number % 8]);
    s.batch      = 1 + test_below(r, 3);
    s.q_len      = 1 + test_below(r, 3);
    s.head_dim_v = test_below(r, 3) ? s.head_dim : dims[test_below(r, 8)];
    s.page_size  = test_below(r, 2) ? 0 : 1 + test_below(r, 20);
    s.layout     = (ref_layout)(test_below(r, 3) ? (int)test_below(r, 2) : (int)test_below(r, REF_LAYOUTS));
    s.k_type     = types[test_below(r, 5)];
    s.v_type     = test_below(r, 6) ? s.k_type : types[test_below(r, 5)];
    s.q_type     = s.k_type == SANTA_E4M3 || test_below(r, 4) == 0 ? types[test_below(r, 3)] : s.k_type;
    s.out_type   = SANTA_F32;
    s.ragged     = (int)test_below(r, 2);
    s.causal     = (int)test_below(r, 2);
    s.window     = test_below(r, 3) ? 0 : 1 + test_below(r, s.len);
    s.sinks      = (int)test_below(r, 2);
    s.alibi      = test_below(r, 4) == 0;
    s.soft_cap   = test_below(r, 4) ? 0.0f : 3.0f;
    s.gain       = 2.0;
    s.stream     = (uint64_t)(1000 + number);
    return s;
}

#endif
