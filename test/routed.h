/* Problems for SANTA_SAAP, and what must come out: router, choice of keys and attention in
   float64, written from the manual. */
#ifndef SANTA_TEST_ROUTED_H
#define SANTA_TEST_ROUTED_H

#include "copy.h"
#if !defined(_WIN32)
#include <pthread.h>
#define HAVE_PTHREADS 1
#endif

enum { MAX_LEN = 512, CANARY = 64 };

/* ------------------------------------------------------------ threads */

/* The tasks in an order that user, an rng, picks. */
static inline void shuffled(void *user, int64_t count, santa_task task, void *context) {
    const int64_t first = test_below((test_rng *)user, count);
    for (int64_t i = 0; i < count; i++) task(context, (first + i) % count);
}

#ifdef HAVE_PTHREADS
typedef struct one_task { santa_task task; void *context; int64_t i; } one_task;
static inline void *run_one(void *p) {
    const one_task *t = (const one_task *)p;
    t->task(t->context, t->i);
    return NULL;
}
static inline void threaded(void *user, int64_t count, santa_task task, void *context) {
    pthread_t thread[8];
    one_task  t[8];
    int       running[8];
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        t[i].task = task; t[i].context = context; t[i].i = i;
        running[i] = i > 0 && i < 8 && pthread_create(&thread[i], NULL, run_one, &t[i]) == 0;
    }
    for (int64_t i = 0; i < count; i++) if (!running[i]) run_one(&t[i]);
    for (int64_t i = 0; i < count; i++) if (running[i]) pthread_join(thread[i], NULL);
}
#endif

/* ------------------------------------------------------------ problems */

typedef struct shape {
    ref_spec    s;
    int64_t     buckets, hidden;   /* hidden 0: no classifier */
    santa_dtype weights, key_type, q0_type;
    ref_layout  key_layout;
    int         own_q, permuted;   /* queries before RoPE of their own; slots in another order */
    int         no_error;          /* std_error is not asked for */
    double      sharp;             /* standard deviation of the router's logits */
} shape;

typedef struct routed {
    ref_problem   p;
    shape         as;
    santa_buckets r;
    santa_tensor  keys;            /* all keys before RoPE */
    double       *pre, *q0, *centroid, *w1, *w2;
    float        *b1, *b2;
    int32_t      *slots;
    int64_t       held;            /* keys in the index at most */
    size_t        bytes;           /* of the index; CANARY more follow */
    void         *memory[7];
} routed;

static inline shape shape_make(int64_t heads, int64_t kv_heads, int64_t len, int64_t d, int64_t buckets) {
    shape as;
    memset(&as, 0, sizeof as);
    as.s       = ref_spec_make(heads, kv_heads, len, d);
    as.buckets = buckets;
    as.sharp   = 1.5;
    return as;
}

static inline santa_options plain(int64_t probes) {
    santa_options o = ref_options(SANTA_SAAP, SANTA_NONE, 0);
    o.saap.num_probes = probes;
    return o;
}

static inline santa_options drawn(int64_t samples, int64_t probes) {
    santa_options o = ref_options(SANTA_SAAP, samples, test_seed);
    o.saap.num_probes = probes;
    return o;
}

static inline double *numbers(test_rng *r, int64_t n, double scale, santa_dtype type, void **memory) {
    double *x = ref_doubles(n);
    *memory = test_alloc((size_t)ref_bytes(type, n + 1));
    for (int64_t i = 0; i < n; i++) {
        x[i] = ref_round(type, scale * ref_bell(r));
        ref_store(type, *memory, i, x[i]);
    }
    return x;
}

/* Key j of every sequence and head, as far as pre has it, to row at of t. */
static inline void put_key(const routed *x, const santa_tensor *t, int64_t b, int64_t j, int64_t at) {
    const ref_spec *s = &x->as.s;
    for (int64_t h = 0; h < s->kv_heads; h++)
        ref_set_row(t, b, at, h, x->pre + ((b * s->len + j) * s->kv_heads + h) * s->head_dim);
}

static inline void write_keys(routed *x) {
    for (int64_t b = 0; b < x->as.s.batch; b++)
        for (int64_t j = 0; j < x->as.s.len; j++) put_key(x, &x->keys, b, j, j);
}

static inline void write_q0(routed *x) {
    const ref_spec *s = &x->as.s;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->q_len; i++)
            for (int64_t h = 0; h < s->heads; h++)
                ref_set_row(&x->r.q, b, i, h, x->q0 + ((b * s->q_len + i) * s->heads + h) * s->head_dim);
}

/* A problem whose index holds rubbish: assign_all begins it. */
static inline void build(routed *x, const shape *as) {
    memset(x, 0, sizeof *x);
    ref_build(&x->p, &as->s);
    x->as = *as;
    const ref_spec *s = &x->as.s;
    const int64_t d = s->head_dim, nk = s->batch * s->len * s->kv_heads * d, units = as->hidden;
    const int64_t nq = s->batch * s->q_len * s->heads * d, buckets = as->buckets;
    test_rng r = test_rng_make(90000 + s->stream);
    x->pre = ref_doubles(nk);
    memcpy(x->pre, x->p.k, (size_t)nk * sizeof *x->pre);
    ref_round_row(as->key_type, x->pre, nk);
    x->keys = ref_tensor(as->key_type, s->batch, s->len, s->kv_heads, d, as->key_layout, &x->memory[0]);
    write_keys(x);
    x->r.num_buckets = buckets;
    x->r.hidden      = units;
    x->r.dtype       = as->weights;
    x->centroid = numbers(&r, s->kv_heads * buckets * d, 1.0 / sqrt((double)d), as->weights, &x->memory[1]);
    x->w1 = numbers(&r, s->kv_heads * units * d, 1.0 / sqrt((double)d), as->weights, &x->memory[2]);
    x->w2 = numbers(&r, s->kv_heads * buckets * units, as->sharp / sqrt((double)ref_max(units, 1)) * 1.4,
                    as->weights, &x->memory[3]);
    x->b1 = ref_floats(s->kv_heads * units);
    x->b2 = ref_floats(s->kv_heads * buckets);
    for (int64_t i = 0; i < s->kv_heads * units; i++) x->b1[i] = (float)(0.3 * ref_bell(&r));
    for (int64_t i = 0; i < s->kv_heads * buckets; i++) x->b2[i] = (float)(0.5 * ref_bell(&r));
    x->r.centroids = x->memory[1];
    if (units) { x->r.w1 = x->memory[2]; x->r.w2 = x->memory[3]; x->r.b1 = x->b1; x->r.b2 = x->b2; }
    else x->r.key_norm = (float)(as->sharp * sqrt((double)d));
    x->q0 = ref_doubles(nq);
    for (int64_t b = 0; b < s->batch; b++) {
        test_rng own = test_rng_make(70000 + s->stream * 101 + (uint64_t)(s->first_sequence + b));
        for (int64_t i = 0; i < nq / s->batch; i++)
            x->q0[b * (nq / s->batch) + i] = ref_round(as->q0_type, ref_bell(&own));
    }
    if (as->own_q) {
        x->r.q = ref_tensor(as->q0_type, s->batch, s->q_len, s->heads, d, as->key_layout, &x->memory[4]);
        write_q0(x);
    }
    if (as->permuted) {
        x->r.num_slots = s->batch + 2;
        x->r.slots = x->slots = ref_ints(s->batch);
        for (int64_t b = 0; b < s->batch; b++) x->slots[b] = (int32_t)(s->batch - b);
    }
    x->p.a.buckets = &x->r;
    x->bytes       = santa_buckets_size(&x->p.a);
    x->r.index = x->memory[5] = test_alloc(x->bytes + CANARY);
    memset(x->memory[5], 0xa5, x->bytes + CANARY);
    x->held = s->len;
    for (int64_t i = 0; i < s->batch * s->q_len * s->heads; i++) x->p.std_error[i] = 0.0f;
    if (as->no_error) x->p.a.std_error = NULL;
}

static inline int canary_lives(const routed *x) {
    const unsigned char *behind = (const unsigned char *)x->memory[5] + x->bytes;
    int alive = 1;
    for (int i = 0; i < CANARY; i++) alive &= behind[i] == 0xa5;
    return alive;
}

static inline int assign_all(routed *x) {
    return CHECK_STATUS(santa_buckets_assign(&x->p.a, &x->keys, 0, NULL), SANTA_OK)
           & CHECK_MSG(canary_lives(x), "written past the index");
}

static inline void release(routed *x) {
    for (int i = 0; i < 7; i++) free(x->memory[i]);
    free(x->pre); free(x->q0); free(x->centroid); free(x->w1); free(x->w2);
    free(x->b1); free(x->b2); free(x->slots);
    ref_free(&x->p);
}

/* A copy of K beside it. */
static inline int give_copy(routed *x, int bits) {
    x->p.a.proxy_bits = bits;
    x->p.a.proxy = x->memory[6] = test_alloc(santa_proxy_size(&x->p.a));
    memset(x->p.a.proxy, 0xff, santa_proxy_size(&x->p.a));
    return CHECK_STATUS(santa_proxy_encode(&x->p.a, 0, x->as.s.len, NULL), SANTA_OK);
}

static inline santa_options by_copy(int64_t samples, int64_t probes) {
    santa_options o = drawn(samples, probes);
    o.scores = SANTA_SCORES_PROXY;
    return o;
}

/* V = identity: needs head_dim_v = len. */
static inline void one_hot(routed *x) {
    const ref_spec *s = &x->as.s;
    for (int64_t i = 0; i < s->batch * s->len * s->kv_heads; i++)
        for (int64_t c = 0; c < s->head_dim_v; c++)
            x->p.v[i * s->head_dim_v + c] = i / s->kv_heads % s->len == c ? 1.0 : 0.0;
    ref_write(&x->p);
}
static inline double weight_of(const routed *x, int64_t h, int64_t j) {
    return ref_get(&x->p.a.out, 0, 0, h, j);
}

/* All keys by one call of this many, from as given. */
static inline santa_status assign(const routed *x, int64_t from, int64_t count, const santa_options *o) {
    santa_tensor t = x->keys;
    t.data = (char *)t.data + ref_bytes(t.dtype, from * t.stride[1]);
    t.shape[1] = count;
    return santa_buckets_assign(&x->p.a, &t, from, o);
}

/* The last count keys of each sequence, however long it is. */
static inline santa_status append(const routed *x, int64_t count) {
    void *memory;
    const ref_spec *s = &x->as.s;
    santa_tensor t =
        ref_tensor(x->as.key_type, s->batch, count, s->kv_heads, s->head_dim, REF_NHD, &memory);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < count; i++)
            if (ref_len(&x->p, b) - count + i >= 0) put_key(x, &t, b, ref_len(&x->p, b) - count + i, i);
    const santa_status status = santa_buckets_assign(&x->p.a, &t, -1, NULL);
    free(memory);
    return status;
}

static inline int64_t bucket_of(const routed *x, int64_t b, int64_t h, int64_t j) {
    return santa_buckets_find(&x->p.a, x->slots ? x->slots[b] : b, h, j);
}

/* ------------------------------------------------------------ the model */

/* f of one head's query. */
static inline void shares(const routed *x, int64_t b, int64_t i, int64_t h, double *f) {
    const ref_spec *s = &x->as.s;
    const int64_t d = s->head_dim, units = x->as.hidden, n = x->as.buckets;
    const int64_t kv = h / (s->heads / s->kv_heads);
    const double *q = (x->as.own_q ? x->q0 : x->p.q) + ((b * s->q_len + i) * s->heads + h) * d;
    const double norm = x->r.key_norm > 0.0f ? (double)x->r.key_norm : 1.0;
    const double scale = norm * (s->sm_scale != 0.0f ? (double)s->sm_scale : 1.0 / sqrt((double)d));
    double *unit = ref_doubles(units);
    for (int64_t u = 0; u < units; u++) {
        unit[u] = (double)x->b1[kv * units + u];
        for (int64_t c = 0; c < d; c++) unit[u] += x->w1[(kv * units + u) * d + c] * q[c];
        if (unit[u] < 0.0) unit[u] = 0.0;
    }
    for (int64_t k = 0; k < n; k++) {
        f[k] = units ? (double)x->b2[kv * n + k] : 0.0;
        for (int64_t u = 0; u < units; u++) f[k] += x->w2[(kv * n + k) * units + u] * unit[u];
        for (int64_t c = 0; c < d && !units; c++) f[k] += scale * x->centroid[(kv * n + k) * d + c] * q[c];
    }
    ref_softmax(f, n, -REF_INF, f);
    free(unit);
}

/* Where this part of the context begins, and a query row's position in it. */
static inline int64_t first_of(const routed *x) { return x->p.a.first_key; }
static inline int64_t position_of(const routed *x, int64_t b, int64_t i) {
    const santa_attention *a = &x->p.a;
    return (a->context_lens ? a->context_lens[b] : first_of(x) + ref_len(&x->p, b)) - x->as.s.q_len + i;
}

static inline double scale_of(float scale) { return scale > 0.0f ? (double)scale : 1.0; }

/* What comes of a score behind the product. */
static inline double finished(const routed *x, int64_t b, int64_t i, int64_t h, int64_t j, double sum) {
    const double cap = (double)x->as.s.soft_cap;
    if (cap > 0.0) sum = cap * tanh(sum / cap);
    if (x->as.s.alibi) sum += (double)x->p.slopes[h] * (double)(first_of(x) + j - position_of(x, b, i));
    return sum;
}

static inline double score(const routed *x, int64_t b, int64_t i, int64_t h, int64_t j) {
    const ref_spec *s = &x->as.s;
    const int64_t kv = h / (s->heads / s->kv_heads);
    const double *q = x->p.q + ((b * s->q_len + i) * s->heads + h) * s->head_dim;
    const double *k = x->p.k + ((b * s->len + j) * s->kv_heads + kv) * s->head_dim;
    double sum = 0.0;
    for (int64_t c = 0; c < s->head_dim; c++) sum += q[c] * k[c];
    sum *= scale_of(x->p.a.k_scale)
           * (s->sm_scale != 0.0f ? (double)s->sm_scale : 1.0 / sqrt((double)s->head_dim));
    return finished(x, b, i, h, j, sum);
}

/* Shares of the keys with a flag in one head's softmax over these, by the copy of K. Returns 1
   where a feature of the query lies between two of its 8-bit numbers. */
static inline int copied_shares(const routed *x, int64_t b, int64_t i, int64_t h, const int *flag,
                                 int64_t from, int64_t to, double *p) {
    const ref_spec *s = &x->as.s;
    const ref_copy f = ref_copy_shape(&x->p);
    const int64_t d = s->head_dim, kv = h / (s->heads / s->kv_heads);
    const double *q = x->p.q + ((b * s->q_len + i) * s->heads + h) * d;
    double *turned = ref_doubles(2 * d), *scaled = turned + d, top = -REF_INF, most = 0.0, sum = 0.0;
    int between = 0;
    for (int64_t c = 0; c < d; c++)
        scaled[c] = q[c] * scale_of(x->p.a.k_scale)
                  * (s->sm_scale != 0.0f ? (double)s->sm_scale : 1.0 / sqrt((double)d));
    ref_rotate(scaled, d, turned);
    for (int64_t c = 0; c < d; c++) most = fmax(most, fabs(turned[c]));
    for (int64_t c = 0; c < d && most > 0.0; c++) {
        const double step = fabs(turned[c]) * 127.0 / most;
        between |= fabs(step - floor(step) - 0.5) < 2e-5;
    }
    for (int64_t j = from; j < to; j++) {
        const unsigned char *block = ref_copy_block(&x->p, &f, b, kv, j);
        const int64_t at = j % f.keys;
        p[j] = 0.0;
        if (!flag[j]) continue;
        for (int64_t c = 0; c < d; c++) {
            const double code = most > 0.0 ? floor(turned[c] * 127.0 / most + 0.5) * most / 127.0 : 0.0;
            p[j] += ref_centre(&f, block, c) * turned[c]
                  + ref_gain(&f, block, at) * ((double)ref_code(&f, block, at, c) - f.middle) * code;
        }
        p[j] = finished(x, b, i, h, j, p[j]);
        top = fmax(top, p[j]);
    }
    for (int64_t j = from; j < to; j++) if (flag[j]) sum += p[j] = exp(p[j] - top);
    for (int64_t j = from; j < to; j++) if (flag[j]) p[j] /= sum;
    free(turned);
    return between;
}

/* What becomes of the keys of one query row and KV head. */
typedef struct row {
    int64_t begin, end, from, to;  /* keys that the row sees, and the far ones among them */
    int64_t whole, drawn, buckets; /* far keys of buckets read whole, drawn ones; how many buckets */
    int64_t copied;                /* keys scored by a copy of K */
    int64_t home[MAX_LEN];         /* a far key's bucket */
    int     scored[MAX_LEN];       /* by a copy of K */
    double  chance[MAX_LEN];       /* to be read */
    double  count[MAX_LEN];        /* what the key counts: 0 = not read, else one over its chance */
    double  imbalance, largest;
    int     near;                  /* a choice lies within rounding */
} row;

static inline int64_t count_of(int64_t option, int64_t zero) {
    return option == SANTA_NONE ? 0 : option ? option : zero;
}

/* tooth: where the comb begins, below 0 = what >>random says. */
static inline void model(const routed *x, const santa_options *o, int64_t b, int64_t i, int64_t kv,
                         double tooth, row *m) {
    const ref_spec *s = &x->as.s;
    const int64_t n = x->as.buckets, group = s->heads / s->kv_heads, len = ref_len(&x->p, b);
    const int64_t at = position_of(x, b, i), draws = o->num_samples == SANTA_NONE ? 0 : o->num_samples;
    const int64_t local = count_of(o->saap.local_tokens, draws ? 64 : 2047);
    const double share = o->saap.uniform_share > 0.0 ? o->saap.uniform_share : 0.1;
    const int by_the_copy = o->scores == SANTA_SCORES_PROXY;
    double *f = ref_doubles(group * n), *sum = ref_doubles(n), *size = ref_doubles(n), left = 0.0,
           mass = 0.0, odds[MAX_LEN], part_of[MAX_LEN];
    int flag[MAX_LEN];
    int64_t *keys = (int64_t *)(void *)ref_doubles(n), j;
    memset(m, 0, sizeof *m);
    m->end = len;
    while (s->causal && m->end > 0 && first_of(x) + m->end - 1 > at) m->end--;
    while (s->window > 0 && m->begin < m->end && first_of(x) + m->begin <= at - s->window) m->begin++;
    m->from = ref_min(m->begin + count_of(o->saap.sink_tokens, 4), m->end);
    m->to   = ref_max(m->from, ref_min(ref_max(m->end - local, 0), x->held) / 64 * 64);
    if (by_the_copy && x->p.a.proxy_lens)
        m->to = ref_max(m->from, ref_min(m->to, x->p.a.proxy_lens[b]) / 64 * 64);
    for (j = m->begin; j < m->end; j++) m->count[j] = m->chance[j] = 1.0;
    for (int64_t c = 0; c < n; c++) { keys[c] = 0; sum[c] = 0.0; }
    for (j = m->from; j < m->to; j++) {
        m->count[j] = m->chance[j] = 0.0;
        keys[m->home[j] = bucket_of(x, b, kv, j)]++;
    }
    for (int64_t g = 0; g < group; g++) {
        shares(x, b, i, kv * group + g, f + g * n);
        for (int64_t c = 0; c < n; c++) sum[c] += f[g * n + c];
    }
    for (int64_t c = 0; c < n; c++) {
        const double part = (double)keys[c] / (double)ref_max(m->to - m->from, 1);
        m->imbalance += (double)n * part * part;
        size[c] = keys[c] ? 0.0 : -1.0;                          /* < 0: not to be drawn from */
    }
    /* the probed buckets: size 2, and 1 for each of their keys */
    const int64_t probes = ref_max(n / (by_the_copy ? 4 : draws ? 32 : 16), 1);
    for (int64_t l = count_of(o->saap.num_probes, probes); l > 0; l--) {
        int64_t best = -1;
        for (int64_t c = 0; c < n; c++)
            if (size[c] == 0.0 && (best < 0 || sum[c] > sum[best])) best = c;
        if (best < 0) break;
        for (int64_t c = 0; c < n && l == 1; c++)
            m->near |= size[c] == 0.0 && c != best && fabs(sum[c] - sum[best]) < 2e-5 * sum[best]
                       && (sum[c] < sum[best] || sum[c] > sum[best]);
        size[best] = 2.0;
    }
    for (int64_t c = 0; c < n; c++) {
        double most = 0.0;
        if (size[c] < 0.0 || size[c] > 1.0) continue;
        for (int64_t g = 0; g < group; g++) most = fmax(most, f[g * n + c]);
        size[c] = most / (double)keys[c];
        mass += most;
        left += (double)keys[c];
    }
    /* odds of each far key; below 0: its bucket is read whole */
    for (j = m->from; j < m->to; j++) {
        flag[j] = by_the_copy && size[m->home[j]] > 1.0;
        m->copied += m->scored[j] = flag[j];
        odds[j] = size[m->home[j]] > 1.0 ? -1.0 : size[m->home[j]];
        if (flag[j]) odds[j] = 0.0;
    }
    if (m->copied) {
        left += (double)m->copied;
        for (int64_t g = 0; g < group; g++) {
            double routed_mass = 0.0;
            for (int64_t c = 0; c < n; c++) if (size[c] > 1.0) routed_mass += f[g * n + c];
            m->near |= copied_shares(x, b, i, kv * group + g, flag, m->from, m->to, part_of);
            for (j = m->from; j < m->to; j++)
                if (flag[j]) odds[j] = fmax(odds[j], routed_mass * part_of[j]);
        }
        for (j = m->from; j < m->to; j++) if (flag[j]) mass += odds[j];
    }
    const int all = draws && (double)draws >= left;
    if (draws && left > 0.0) {
        double low = 0.0, high = 1.0, total;
        for (j = m->from; j < m->to; j++)
            if (odds[j] >= 0.0) odds[j] = (1.0 - share) * odds[j] / mass + share / left;
        while (high < 1e30) {                                    /* a lambda that is too large */
            total = 0.0;
            for (j = m->from; j < m->to; j++) if (odds[j] >= 0.0) total += fmin(1.0, high * odds[j]);
            if (total >= fmin((double)draws, left)) break;
            high *= 2.0;
        }
        for (int turn = 0; turn < 200; turn++) {
            const double lambda = 0.5 * (low + high);
            total = 0.0;
            for (j = m->from; j < m->to; j++) if (odds[j] >= 0.0) total += fmin(1.0, lambda * odds[j]);
            if (total < (double)draws) low = lambda;
            else high = lambda;
        }
        for (j = m->from; j < m->to; j++) {
            if (odds[j] < 0.0) continue;
            m->near |= !all && !flag[j] && fabs(high * odds[j] - 1.0) < 1e-5;
            odds[j] = all ? 1.0 : fmin(1.0, high * odds[j]);
        }
    } else {
        for (j = m->from; j < m->to; j++) if (odds[j] >= 0.0) odds[j] = 0.0;
    }
    /* the comb: the keys that the copy scored, then bucket after bucket, each with its keys in
       ascending order */
    const uint64_t request = o->request_ids ? o->request_ids[b] : (uint64_t)b;
    if (tooth < 0.0) tooth = ref_random(o, ref_stream(request, kv * group, i), 0);
    double end = 0.0;
    for (int64_t c = -1; c < n; c++) {
        int is_whole = c >= 0 && keys[c] > 0;
        for (j = m->from; j < m->to; j++) {
            if (flag[j] && !all ? c >= 0 : m->home[j] != c) continue;
            const int is_read = odds[j] < 0.0 || (odds[j] >= 1.0 && (all || !flag[j]));
            if (is_read) { m->chance[j] = m->count[j] = 1.0; m->whole++; continue; }
            is_whole = 0;
            if (odds[j] <= 0.0) continue;
            m->chance[j] = odds[j];
            const double begin = end, next = ceil(begin - tooth) + tooth;
            end += odds[j];
            if (odds[j] >= 1.0) { m->count[j] = 1.0; m->drawn++; continue; }
            m->near |= fabs(end - tooth - floor(end - tooth + 0.5))
                       < (m->copied ? 1e-5 : 4e-6) * (2.0 + end);
            if (next < end) { m->count[j] = 1.0 / odds[j]; m->drawn++; }
        }
        for (j = m->from; j < m->to && is_whole; j++) if (m->home[j] == c && flag[j] && !all) is_whole = 0;
        m->buckets += is_whole;
        if (is_whole) m->largest = fmax(m->largest, (double)keys[c] / (double)(m->to - m->from));
    }
    free(f); free(sum); free(size); free(keys);
}

/* Attention of one head over what the row read; with weights NULL over all that it sees. */
static inline double attend(const routed *x, const row *m, const double *count, int64_t b, int64_t i,
                            int64_t h, double *out, double *absolute) {
    const ref_spec *s = &x->as.s;
    const int64_t dv = s->head_dim_v, kv = h / (s->heads / s->kv_heads);
    double e[MAX_LEN], top = ref_sink(&x->p, h), sum;
    for (int64_t j = m->begin; j < m->end; j++) {
        e[j] = count && !(count[j] > 0.0) ? -REF_INF : score(x, b, i, h, j);
        top  = fmax(top, e[j]);
    }
    for (int64_t c = 0; c < dv; c++) out[c] = absolute[c] = 0.0;
    if (!(top > -REF_INF)) return top;
    sum = exp(ref_sink(&x->p, h) - top);
    for (int64_t j = m->begin; j < m->end; j++) {
        e[j] = exp(e[j] - top) * (count ? count[j] : 1.0);
        sum += e[j];
    }
    for (int64_t j = m->begin; j < m->end; j++)
        for (int64_t c = 0; c < dv && e[j] > 0.0; c++) {
            const double v = x->p.v[((b * s->len + j) * s->kv_heads + kv) * dv + c];
            out[c] += e[j] / sum * v * scale_of(x->p.a.v_scale);
            absolute[c] += e[j] / sum * fabs(v) * scale_of(x->p.a.v_scale);
        }
    return top + log(sum);
}

/* std_error: the quotient's linearisation as if the drawn keys had come one by one. */
static inline double error_bar(const routed *x, const row *m, int64_t b, int64_t i, int64_t h, double lse,
                               const double *out) {
    const ref_spec *s = &x->as.s;
    const int64_t kv = h / (s->heads / s->kv_heads);
    double sum = 0.0;
    if (m->to - m->from == m->whole) return 0.0;
    if (m->drawn < 2) return REF_INF;
    for (int64_t j = m->from; j < m->to; j++) {
        const double *v = x->p.v + ((b * s->len + j) * s->kv_heads + kv) * s->head_dim_v;
        double w, square = 0.0;
        if (!(m->count[j] > 0.0)) continue;
        w = m->count[j] * exp(score(x, b, i, h, j) - lse);
        for (int64_t c = 0; c < s->head_dim_v; c++)
            square += pow(scale_of(x->p.a.v_scale) * v[c] - out[c], 2.0);
        sum += (1.0 - m->chance[j]) * w * w * square;
    }
    return sqrt(sum);
}

/* Rows that verify has seen, and those of them that it left out, as they hang on rounding. */
typedef struct rows_counted { int64_t seen, near; } rows_counted;

/* The result of santa_decode, and stats where given, against the model. */
static inline int verify(const routed *x, const santa_options *o, const santa_stats *stats,
                         rows_counted *rows_all, const char *what) {
    const ref_spec *s = &x->as.s;
    const int64_t group = s->heads / s->kv_heads, dv = s->head_dim_v;
    double *want = ref_doubles(2 * dv), imbalance = 0.0, largest = 0.0, covered = 0.0;
    int64_t keys = 0, far = 0, visited = 0, buckets = 0, read = 0, draws = 0, rows = 0, heads = 0, near = 0,
            copied = 0;
    row    *m = (row *)test_alloc(sizeof *m);
    int     ok = 1;
    for (int64_t at = 0; at < s->batch * s->kv_heads * s->q_len; at++) {
        const int64_t b = at / s->q_len / s->kv_heads, kv = at / s->q_len % s->kv_heads, i = at % s->q_len;
        model(x, o, b, i, kv, -1.0, m);
        rows_all->seen++;
        rows_all->near += m->near;
        near += m->near;
        for (int64_t h = kv * group; h < (kv + 1) * group && !m->near; h++) {
            const double lse = attend(x, m, m->count, b, i, h, want, want + dv);
            const float got = x->p.lse[(b * s->q_len + i) * s->heads + h];
            double all = 0.0, part = 0.0;
            for (int64_t c = 0; c < dv; c++) {
                const double out = ref_get(&x->p.a.out, b, i, h, c);
                ok &= fabs(out - want[c])
                      <= 3e-5 * want[dv + c] + (s->out_type == SANTA_F16 ? 6e-8 : 1e-30)
                             + ref_epsilon(s->out_type) * fabs(want[c]);
            }
            ok &= (double)got == lse || fabs((double)got - lse) <= 2e-5 * (1.0 + fabs(lse));
            if (x->p.a.std_error) {
                const double bar = error_bar(x, m, b, i, h, lse, want);
                const double said = (double)x->p.std_error[(b * s->q_len + i) * s->heads + h];
                ok &= CHECK_NEAR(said, bar, 1e-6, 2e-3);
            }
            if (!CHECK_MSG(ok, "%s: sequence %d, row %d, head %d: lse %.7g, model %.7g", what, (int)b,
                           (int)i, (int)h, (double)got, lse)) {
                ref_out(&x->p, b, i, h, want + dv);
                printf("        out %.7g %.7g, model %.7g %.7g\n", want[dv], want[dv + dv - 1], want[0],
                       want[dv - 1]);
                goto end;
            }
            for (int64_t j = m->begin; j < m->end; j++) {
                const double e = exp(score(x, b, i, h, j) - 5.0);
                all += e;
                part += m->count[j] > 0.0 ? e : 0.0;
            }
            if (all > 0.0) { covered += part / all; heads++; }
        }
        if (m->to > m->from) { imbalance += m->imbalance; largest += m->largest; rows++; }
        keys += m->end - m->begin;
        far += m->to - m->from;
        visited += m->whole + m->drawn;
        buckets += m->buckets;
        draws += m->drawn;
        read += m->end - m->begin - (m->to - m->from) + m->whole + m->drawn;
        copied += m->copied;
    }
    if (stats && !near) {
        ok &= CHECK_INT(stats->rows, s->batch * s->q_len * s->heads) & CHECK_INT(stats->keys, keys);
        ok &= CHECK_INT(stats->far_rows, far) & CHECK_INT(stats->visited_rows, visited);
        ok &= CHECK_INT(stats->visited_buckets, buckets) & CHECK_INT(stats->draws, draws);
        ok &= CHECK_INT(stats->proxy_rows_read, copied) & CHECK_INT(stats->redone_rows, 0);
        ok &= CHECK_INT(stats->k_rows_read, read) & CHECK_INT(stats->v_rows_read, read);
        ok &= CHECK_INT(stats->v_rows_head, read * group);
        ok &= CHECK_INT(stats->k_features_read, read * s->head_dim);
        ok &= CHECK_INT(stats->k_features_head, read * s->head_dim * group);
        ok &= CHECK_NEAR(stats->imbalance, rows ? imbalance / (double)rows : 0.0, 2e-6, 0.0);
        ok &= CHECK_NEAR(stats->largest_bucket, rows ? largest / (double)rows : 0.0, 2e-6, 0.0);
        if (o->saap.measure_mass)
            ok &= CHECK_NEAR(stats->covered_mass, heads ? covered / (double)heads : 0.0, 2e-5, 0.0);
        if (!ok) printf("        in %s\n", what);
    }
end:
    free(want);
    free(m);
    return ok;
}

static inline int run_and_verify(routed *x, const santa_options *o, rows_counted *rows, const char *what) {
    santa_stats  stats;
    rows_counted unused = {0, 0};
    return ref_run(&x->p, o, &stats) && verify(x, o, &stats, rows ? rows : &unused, what);
}

#endif
