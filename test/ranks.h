/* One context over ranks, for the tests on the CPU and on the GPU. The ranks of a test run one
   after the other: a call that comes to an exchange which not all have reached gives up, and
   runs again from the start once all have. */
#ifndef SANTA_TEST_RANKS_H
#define SANTA_TEST_RANKS_H
#include "reference.h"

enum { MOST_RANKS = 7, MOST_EXCHANGES = 256 };

/* What the ranks said: message[exchange] holds that of each rank, side by side. */
typedef struct talk {
    int64_t ranks, rank, exchange;                   /* whose turn, and which exchange it is at */
    int64_t known, broken;                           /* exchanges all have reached; one that fails, or -1 */
    size_t  bytes[MOST_EXCHANGES];
    char   *message[MOST_EXCHANGES];
    int (*copy)(void *to, const void *from, size_t bytes); /* from or to a device; NULL: memcpy */
} talk;

static inline int talk_copy(const talk *t, void *to, const void *from, size_t bytes) {
    if (t->copy) return t->copy(to, from, bytes);
    memcpy(to, from, bytes);
    return 0;
}

static inline void talk_free(talk *t) { for (int i = 0; i < MOST_EXCHANGES; i++) free(t->message[i]); }

static inline int talk_all_gather(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    talk *t = (talk *)user;
    const int64_t i = t->exchange++;
    (void)stream;
    if (!CHECK(i < MOST_EXCHANGES) || i == t->broken) return 7;
    if (!t->message[i]) {
        t->message[i] = (char *)test_alloc(bytes * (size_t)t->ranks);
        t->bytes[i] = bytes;
    }
    if (!CHECK_INT(bytes, t->bytes[i])) return 1;
    if (talk_copy(t, t->message[i] + bytes * (size_t)t->rank, mine, bytes)) return 2;
    return i >= t->known ? 1 : talk_copy(t, all, t->message[i], bytes * (size_t)t->ranks);
}

/* Rank r of p has the keys cuts[r] .. cuts[r + 1] - 1 of each sequence, as far as these have
   them. */
typedef struct shard { santa_attention a; int32_t lens[8], context[8]; void *copy; } shard;

static inline void cut(const ref_problem *p, const int64_t *cuts, int64_t r, shard *x) {
    const int64_t from = ref_min(cuts[r], p->spec.len - 1);
    memset(x, 0, sizeof *x);
    x->a = p->a;
    x->a.std_error = NULL;
    for (int64_t b = 0; b < p->spec.batch; b++) {
        const int64_t n = p->a.seq_lens ? p->a.seq_lens[b] : p->spec.len;
        x->context[b] = (int32_t)n;
        x->lens[b] = (int32_t)ref_max(ref_min(n, cuts[r + 1]) - cuts[r], 0);
    }
    /* an empty range still points at memory */
    x->a.k.shape[1] = x->a.v.shape[1] = ref_max(cuts[r + 1] - from, 1);
    x->a.k.data = (char *)p->a.k.data + ref_bytes(p->a.k.dtype, from * p->a.k.stride[1]);
    x->a.v.data = (char *)p->a.v.data + ref_bytes(p->a.v.dtype, from * p->a.v.stride[1]);
    for (int i = 0; i < 2 && p->spec.row_scales; i++) {
        santa_tensor *t = i ? &x->a.v_scales : &x->a.k_scales;
        t->shape[1] = x->a.k.shape[1];
        t->data = (char *)t->data + ref_bytes(t->dtype, from * t->stride[1]);
    }
    x->a.first_key = from;
    x->a.seq_lens = x->lens;
    x->a.context_lens = x->context;
}

/* A copy of the K of a rank, to be freed. */
static inline void cut_copy(shard *x) {
    const size_t bytes = santa_proxy_size(&x->a);
    x->copy = test_alloc(bytes);
    memset(x->copy, 0xff, bytes);
    x->a.proxy = x->copy;
    CHECK_STATUS(santa_proxy_encode(&x->a, 0, x->a.k.shape[1], NULL), SANTA_OK);
}

/* Some of what a call may have. */
static inline void vary(ref_spec *s, int turn) {
    s->batch  = 1 + turn % 3;
    s->q_len  = turn % 4 == 1 ? 3 : 1;
    s->causal = turn % 2;
    s->gain   = 4.0;
    s->sinks  = turn % 3 == 1;
    s->alibi  = turn % 5 == 2;
    s->window = turn % 7 == 3 ? 90 : turn % 7 == 5 ? INT64_MAX : 0;      /* the latter is none */
    s->ragged = turn % 3 == 2;
}

/* Where the context is cut: evenly, by chance, with empty ranges and ranges of one key. */
static inline void make_cuts(test_rng *r, int kind, int64_t len, int64_t ranks, int64_t *cuts) {
    cuts[0] = 0;
    for (int64_t i = 1; i < ranks; i++) {
        const int64_t even = len * i / ranks;
        cuts[i] = kind == 0 ? even : kind == 1 ? test_below(r, len + 1)
                : kind == 2 ? ref_min(cuts[i - 1] + (i & 1), len) : len;
        cuts[i] = ref_max(cuts[i], cuts[i - 1]);
    }
    cuts[ranks] = len;
}

#endif
