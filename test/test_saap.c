/* SANTA_SAAP: the index, the router, what is read and what each read key counts, against the
   model of routed.h. With V = identity a head's output is its list of weights, which tells the
   keys that were read. */
#include "routed.h"

/* ------------------------------------------------------------ the index */

static int64_t keys_seen, keys_near;

/* All keys of x are in one bucket each, that of the largest product. */
static int buckets_are_right(const routed *x) {
    const ref_spec *s = &x->as.s;
    const int64_t d = s->head_dim, n = x->as.buckets;
    for (int64_t at = 0; at < s->batch * s->kv_heads * s->len; at++) {
        const int64_t b = at / (s->kv_heads * s->len), h = at / s->len % s->kv_heads, j = at % s->len;
        const int64_t got = bucket_of(x, b, h, j);
        const double *k = x->pre + ((b * s->len + j) * s->kv_heads + h) * d;
        double best = -REF_INF, mine = -REF_INF, scale = 0.0;
        int64_t want = 0;
        if (j >= ref_len(&x->p, b)) {
            if (!CHECK_INT(got, -1)) return 0;
            continue;
        }
        for (int64_t c = 0; c < n; c++) {
            double sum = 0.0;
            for (int64_t e = 0; e < d; e++) sum += k[e] * x->centroid[(h * n + c) * d + e];
            if (sum > best) { best = sum; want = c; }
            if (c == got) mine = sum;
            scale = fmax(scale, fabs(sum));
        }
        keys_seen++;
        keys_near += got != want;
        if (!CHECK_MSG(best - mine <= 1e-6 * scale, "sequence %d, head %d, key %d: bucket %d, not %d",
                       (int)b, (int)h, (int)j, (int)got, (int)want))
            return 0;
    }
    return 1;
}

static void nearest(void) {
    static const santa_dtype types[] = {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3, SANTA_Q8_0};
    static const int64_t dims[] = {32, 64, 40, 1, 96, 1024, 128, 7}, counts[] = {1, 5, 64, 65, 130, 300};
    keys_seen = keys_near = 0;
    for (int t = 0; t < 5 * REF_LAYOUTS; t += test_quick ? 3 : 1) {
        shape as = shape_make(2, 2, 150, dims[t % (t % 5 < 4 ? 8 : 2)], counts[t % 6]);
        routed x;
        as.s.batch = 2;
        as.s.stream = (uint64_t)t;
        as.key_type = types[t % 5];
        as.weights  = types[t % 3];
        as.key_layout = (ref_layout)(t / 5);
        if (as.key_type == SANTA_Q8_0 && as.key_layout == REF_STRIDED) as.key_layout = REF_NHD;
        if (as.s.head_dim > 128) { as.s.len = 70; as.s.batch = 1; }
        build(&x, &as);
        if (!assign_all(&x) || !CHECK_MSG(buckets_are_right(&x), "turn %d", t)) { release(&x); return; }
        FOR_EACH_ISA(isa) {                                      /* and by the worst kernels */
            santa_options o;
            memset(&o, 0, sizeof o);
            o.isa = isa;
            CHECK_STATUS(santa_buckets_assign(&x.p.a, &x.keys, 0, &o), SANTA_OK);
            CHECK_MSG(buckets_are_right(&x), "turn %d, %s", t, santa_isa_name(isa));
        }
        release(&x);
    }
    CHECK_MSG(keys_near * 1000 <= keys_seen, "%d of %d keys hang on rounding", (int)keys_near,
              (int)keys_seen);
}

/* Whole numbers, whose products are exact: equal ones go to the lower bucket, NaN to bucket 0;
   beside an infinity, what is NaN is passed over. */
static void ties(void) {
    shape  as = shape_make(1, 1, 200, 8, 90);
    routed x;
    as.key_layout = REF_STRIDED;
    build(&x, &as);
    test_rng r = test_rng_make(5);
    float *centroids = (float *)x.memory[1];
    for (int64_t i = 0; i < 90 * 8; i++)
        x.centroid[i] = (double)(centroids[i] = (float)(test_below(&r, 5) - 2));
    for (int64_t i = 0; i < 200 * 8; i++) x.pre[i] = (double)(test_below(&r, 3) - 1);
    for (int64_t c = 0; c < 8; c++) x.pre[7 * 8 + c] = 0.0;                  /* as near to all */
    for (int64_t j = 50; j < 60; j++) x.pre[j * 8 + j % 8] = (double)test_nan();
    for (int64_t j = 60; j < 76; j++) x.pre[j * 8 + j % 8] = j < 68 ? REF_INF : -REF_INF;
    write_keys(&x);
    FOR_EACH_ISA(isa) {
        santa_options o;
        memset(&o, 0, sizeof o);
        o.isa = isa;
        CHECK_STATUS(santa_buckets_assign(&x.p.a, &x.keys, 0, &o), SANTA_OK);
        for (int64_t j = 0; j < 200; j++) {
            double best = -REF_INF;
            int64_t want = 0;
            for (int64_t k = 0; k < 90; k++) {
                double sum = 0.0;
                for (int64_t c = 0; c < 8; c++) sum += x.pre[j * 8 + c] * x.centroid[k * 8 + c];
                if (sum > best) { best = sum; want = k; }
            }
            CHECK_MSG(bucket_of(&x, 0, 0, j) == want, "key %d, %s", (int)j, santa_isa_name(isa));
        }
    }
    release(&x);

    as = shape_make(1, 1, 130, 1, 65536);                        /* as many buckets as there may be */
    build(&x, &as);
    centroids = (float *)x.memory[1];
    for (int64_t i = 0; i < 65536; i++) centroids[i] = (float)(x.centroid[i] = i == 65535 ? 1.0 : 0.0);
    for (int64_t j = 0; j < 130; j++) x.pre[j] = (double)(j % 3 - 1);
    write_keys(&x);
    if (assign_all(&x))
        for (int64_t j = 0; j < 130; j++) CHECK_INT(bucket_of(&x, 0, 0, j), j % 3 == 2 ? 65535 : 0);
    const santa_options o = drawn(10, 1);
    CHECK(run_and_verify(&x, &o, NULL, "65536 buckets"));
    release(&x);
}

/* Out, lse and std_error, and the index as santa_buckets_find tells it, as bytes of their
   own. */
typedef struct bits { float *out; int64_t n; } bits;
static bits bits_of(routed *x, const santa_options *o) {
    const ref_spec *s = &x->as.s;
    const int64_t rows = s->batch * s->q_len * s->heads, places = s->batch * s->kv_heads * s->len;
    bits r;
    r.n   = rows * (s->head_dim_v + 2) + places;
    r.out = ref_floats(r.n);
    float *f = r.out;
    if (!ref_run(&x->p, o, NULL)) memset(x->p.lse, 0, sizeof(float));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < s->head_dim_v; c++)
            *f++ = (float)ref_get(&x->p.a.out, i / (s->q_len * s->heads), i / s->heads % s->q_len,
                                  i % s->heads, c);
    memcpy(f, x->p.lse, (size_t)rows * sizeof *f);
    memcpy(f + rows, x->p.std_error, (size_t)rows * sizeof *f);
    for (int64_t i = 0; i < places; i++)
        f[2 * rows + i] =
            (float)bucket_of(x, i / s->len / s->kv_heads, i / s->len % s->kv_heads, i % s->len);
    return r;
}

static int same(const bits *want, bits got, const char *what) {
    const int equal = want->n == got.n && !memcmp(want->out, got.out, (size_t)want->n * sizeof *want->out);
    free(got.out);
    return CHECK_MSG(equal, "%s: other bits", what);
}

/* The keys arrive in one call, in pieces, one by one, and again after wrong ones. */
static void arrivals(void) {
    for (int turn = 0; turn < 4; turn++) {
        shape as = shape_make(4, 2, 230, 16, 20);
        as.s.batch     = turn == 3 ? 1 : 5;                      /* with an empty one */
        as.s.ragged    = turn != 3;
        as.s.page_size = turn == 1 ? 16 : 0;
        as.s.stream    = 40;
        as.permuted    = turn == 2;
        as.key_type    = turn == 2 ? SANTA_F16 : SANTA_F32;
        as.hidden      = 24;
        const santa_options o = drawn(24, 1);
        const int64_t len = as.s.len, batch = as.s.batch;
        int32_t  lens[5] = {230};
        test_rng r = test_rng_make(8 + (uint64_t)turn);
        routed   x;
        build(&x, &as);
        if (!x.p.seq_lens) x.p.a.seq_lens = x.p.seq_lens = ref_ints(1);
        x.p.seq_lens[0] = 230;
        memcpy(lens, x.p.seq_lens, (size_t)batch * sizeof *lens);
        if (!assign_all(&x)) return;
        const bits want = bits_of(&x, &o);
        CHECK(buckets_are_right(&x));
        for (int way = 0; way < 6; way++) {
            int64_t step, at = way == 4 ? 77 : 0;
            char    what[40];
            if (way != 5) memset(x.memory[5], 0xa5, x.bytes);
            if (way == 4) CHECK_STATUS(assign(&x, 0, len, NULL), SANTA_OK);
            if (way >= 4) {                                      /* wrong keys, all or behind 100 */
                santa_tensor other = x.keys;
                other.data = (char *)other.data + ref_bytes(other.dtype, 7 * other.stride[1]);
                other.shape[1] = way == 4 ? len - 107 : len - 7;
                CHECK_STATUS(santa_buckets_assign(&x.p.a, &other, way == 4 ? 100 : 0, NULL), SANTA_OK);
            }
            if (way == 2 || way == 3) {                          /* begins that of the empty sequence */
                for (int64_t b = 0; b < batch; b++) x.p.seq_lens[b] = 0;
                CHECK_STATUS(assign(&x, 0, 1, NULL), SANTA_OK);
            }
            for (; at < len; at += step) {
                step = way == 0 ? 1 + test_below(&r, 90) : way < 3 ? 1 : way == 3 ? 37 : len - at;
                step = ref_min(step, len - at);
                for (int64_t b = 0; b < batch; b++) x.p.seq_lens[b] = (int32_t)ref_min(at + step, lens[b]);
                const int is_append = way == 2 || way == 3;
                CHECK_STATUS(is_append ? append(&x, step) : assign(&x, at, step, NULL), SANTA_OK);
            }
            snprintf(what, sizeof what, "turn %d, way %d", turn, way);
            CHECK(canary_lives(&x));
            same(&want, bits_of(&x, &o), what);
        }
        CHECK_STATUS(assign(&x, len, 1, NULL), SANTA_OK);        /* nothing is left to add */
        same(&want, bits_of(&x, &o), "no key more");
        free(want.out);
        release(&x);
    }
}

/* A context that grows key by key: its keys are all there, once, at every length. */
static void growing(void) {
    shape as = shape_make(2, 1, 200, 8, 7);
    int32_t len = 0;
    double  exact[2 * 200], none[200], absolute[200], fixed[200];
    santa_options o[5];
    routed  x;
    as.s.head_dim_v = 200;
    build(&x, &as);
    one_hot(&x);
    o[0] = plain(7); o[1] = plain(SANTA_NONE); o[2] = plain(1);
    o[3] = drawn(400, SANTA_NONE); o[4] = drawn(9, 2);
    for (int i = 0; i < 5; i++) { o[i].saap.sink_tokens = 3; o[i].saap.local_tokens = 20; }
    x.p.a.seq_lens = x.p.seq_lens = ref_ints(1);
    rows_counted rows = {0, 0};
    for (len = 1; len <= 200; len++) {
        row m;
        x.p.seq_lens[0] = len;
        if (!CHECK_STATUS(append(&x, 1), SANTA_OK)) break;
        if (test_quick && len % 64 > 2 && len % 64 < 62 && len % 64 != 20 && len != 30) continue;
        model(&x, &o[0], 0, 0, 0, -1.0, &m);
        CHECK_INT(m.to - m.from, ref_max((len - 20) / 64 * 64 - 3, 0));
        for (int i = 0; i < 5; i++) {
            x.p.a.std_error = i < 3 ? NULL : x.p.std_error;
            if (!run_and_verify(&x, &o[i], &rows, "a growing context")) { len = 999; break; }
            for (int64_t h = 0; h < 2 && (i < 2 || i == 3); h++) {
                if (i == 0) attend(&x, &m, NULL, 0, 0, h, exact + h * 200, absolute);
                for (int64_t j = 0; j < 200; j++) fixed[j] = j < 3 || j >= m.to;
                if (i == 1) attend(&x, &m, fixed, 0, 0, h, none, absolute);
                for (int64_t j = 0; j < len; j++)
                    CHECK_NEAR(weight_of(&x, h, j), i == 1 ? none[j] : exact[h * 200 + j], 1e-6, 1e-5);
            }
        }
    }
    CHECK_MSG(rows.near * 20 <= rows.seen, "%d of %d rows within rounding", (int)rows.near, (int)rows.seen);
    release(&x);
}

/* ------------------------------------------------------------ the router */

/* One KV head whose keys lie in the buckets that `home` names in turn, whose queries' shares
   are the softmax of given logits: centroids are unit vectors, K before RoPE too. V =
   identity. */
static void build_by_hand(routed *x, int64_t heads, int64_t len, int64_t buckets, const int *home,
                          int64_t homes, const double *logits) {
    shape as = shape_make(heads, 1, len, 16, buckets);
    as.s.head_dim_v = len;
    as.s.sm_scale   = 1.0f;
    as.s.gain       = 0.3;
    as.own_q        = 1;
    build(x, &as);
    x->r.key_norm = 0.0f;                                        /* = 1 */
    for (int64_t c = 0; c < buckets * 16; c++)
        ((float *)x->memory[1])[c] = (float)(x->centroid[c] = c / 16 == c % 16 ? 1.0 : 0.0);
    for (int64_t i = 0; i < len * 16; i++) x->pre[i] = home[i / 16 % homes] == i % 16 ? 1.0 : 0.0;
    for (int64_t i = 0; i < heads * 16; i++)
        x->q0[i] = i % 16 < buckets ? logits[i / 16 * buckets + i % 16] : 0.0;
    write_keys(x);
    write_q0(x);
    one_hot(x);
    x->p.a.std_error = NULL;
    (void)assign_all(x);
}

/* Bits of the buckets whose far keys count something in head 0; -1 if a bucket is there in
   part. */
static int buckets_read(routed *x, int64_t probes) {
    santa_options o = plain(probes);
    int read = 0, unread = 0;
    o.saap.local_tokens = SANTA_NONE;
    o.saap.sink_tokens  = SANTA_NONE;
    if (!run_and_verify(x, &o, NULL, "a router by hand")) return -2;
    for (int64_t j = 0; j < x->as.s.len / 64 * 64; j++) {
        const int bit = 1 << bucket_of(x, 0, 0, j);
        if (weight_of(x, 0, j) > 0.0) read |= bit;
        else unread |= bit;
    }
    return read & unread ? -1 : read;
}

static void router(void) {
    static const int all[] = {0, 1, 2, 2, 1, 0, 0}, some[] = {4, 1, 3, 3}, one[] = {2};
    /* sums of logits would take bucket 1 here, sums of shares take 0; the largest share would
       take 0 or 2 there, their sum takes 1; and equal shares */
    static const double logits[] = {5, 0, 0, -30, 3, 0}, shared[] = {3.4, 3, -9, -9, 3, 3.4},
                        none[12] = {0};
    santa_stats stats;
    routed x;
    build_by_hand(&x, 2, 192, 3, all, 7, logits);
    CHECK_INT(buckets_read(&x, 1), 1);
    CHECK_INT(buckets_read(&x, 2), 3);
    CHECK_INT(buckets_read(&x, 3), 7);
    CHECK_INT(buckets_read(&x, 65536), 7);
    santa_options o = drawn(20, SANTA_NONE);
    x.r.key_norm = 0.25f;                                        /* nearly the same for all buckets */
    CHECK(run_and_verify(&x, &o, NULL, "a small key_norm"));
    release(&x);
    build_by_hand(&x, 2, 64, 3, all, 7, logits);                 /* one key is far */
    o = plain(3);
    o.saap.local_tokens = SANTA_NONE;
    o.saap.sink_tokens  = 63;
    CHECK(run_and_verify(&x, &o, NULL, "one far key"));
    release(&x);
    build_by_hand(&x, 2, 192, 3, all, 7, shared);
    CHECK_INT(buckets_read(&x, 1), 2);
    release(&x);
    build_by_hand(&x, 2, 256, 6, some, 4, none);
    CHECK_INT(buckets_read(&x, 1), 2);                           /* bucket 0 has no keys */
    CHECK_INT(buckets_read(&x, 2), 2 + 8);
    CHECK_INT(buckets_read(&x, 3), 2 + 8 + 16);
    CHECK_INT(buckets_read(&x, 6), 2 + 8 + 16);
    o = plain(2);                                                /* numbers by hand */
    o.saap.local_tokens = SANTA_NONE;
    o.saap.sink_tokens  = SANTA_NONE;
    o.saap.measure_mass = 1;
    if (ref_run(&x.p, &o, &stats)) {
        double sum = 0.0;
        for (int64_t h = 0; h < 2; h++) {
            double e[2] = {0.0, 0.0};                            /* of bucket 4, of 1 and 3 */
            for (int64_t j = 0; j < 256; j++) e[j % 4 > 0] += exp(score(&x, 0, 0, h, j));
            sum += 0.5 * e[1] / (e[0] + e[1]);
        }
        CHECK_INT(stats.far_rows, 256);
        CHECK_INT(stats.visited_rows, 192);
        CHECK_INT(stats.visited_buckets, 2);
        CHECK_NEAR(stats.imbalance, 6.0 * (0.25 * 0.25 * 2.0 + 0.5 * 0.5), 2e-6, 0.0);
        CHECK_NEAR(stats.largest_bucket, 0.5, 2e-6, 0.0);
        CHECK_NEAR(stats.covered_mass, sum, 5e-6, 0.0);
    }
    o.saap.num_probes = 1;                                       /* bucket 1, a fourth of the keys */
    if (ref_run(&x.p, &o, &stats)) {
        CHECK_INT(stats.visited_rows, 64);
        CHECK_NEAR(stats.largest_bucket, 0.25, 2e-6, 0.0);
    }
    release(&x);
    build_by_hand(&x, 1, 192, 6, one, 1, none);                  /* all keys in one bucket */
    CHECK_INT(buckets_read(&x, 1), 4);
    o.num_samples = 10;
    o.saap.num_probes = SANTA_NONE;
    CHECK(run_and_verify(&x, &o, NULL, "drawn from one bucket"));
    release(&x);
    build_by_hand(&x, 1, 192, 1, one, 1, none);
    x.r.key_norm = 2.0f;
    CHECK_INT(buckets_read(&x, 1), 1);
    CHECK_INT(buckets_read(&x, SANTA_NONE), 0);
    CHECK(run_and_verify(&x, &o, NULL, "drawn from the only bucket"));
    release(&x);

    /* NaN in a query for the router: all heads that it sends, if there is anything to send
       for */
    shape as = shape_make(6, 2, 200, 16, 9);
    for (int turn = 0; turn < 4; turn++) {
        as.own_q  = 1;
        as.hidden = turn % 2 ? 12 : 0;
        build(&x, &as);
        x.q0[4 * 16 + 3] = turn < 2 ? (double)test_nan() : REF_INF;
        write_q0(&x);
        o = drawn(16, 1);
        if (!assign_all(&x) || !ref_run(&x.p, &o, NULL)) break;
        for (int64_t h = 0; h < 6; h++)
            for (int64_t c = 0; c < 16; c++) {
                CHECK_INT(test_is_nan(x.p.lse[h]), h >= 3);
                CHECK_INT(test_is_nan((float)ref_get(&x.p.a.out, 0, 0, h, c)), h >= 3);
            }
        o.saap.local_tokens = 200;
        x.p.a.k_scale = 1.0f;
        CHECK(run_and_verify(&x, &o, NULL, "a NaN that nobody asks"));
        release(&x);
    }
}

/* All buckets and all draws are exact attention, and so is a long window. */
static void ends(void) {
    for (int turn = 0; turn < 8; turn++) {
        shape as = shape_make(6, 2, 300, 32, turn == 5 ? 400 : 12);          /* C > keys */
        routed x;
        as.s.q_len    = 3;
        as.s.causal   = turn % 2;
        as.s.window   = turn == 3 ? 200 : turn == 4 ? 50 : 0;
        as.s.sinks    = turn / 2 % 2;
        as.s.alibi    = turn / 4;
        as.s.soft_cap = turn == 6 ? 3.0f : 0.0f;
        as.s.stream   = 300 + (uint64_t)turn;
        as.s.k_type   = as.s.v_type = turn == 7 ? SANTA_Q8_0 : SANTA_F32;
        build(&x, &as);
        if (!assign_all(&x)) { release(&x); return; }
        const int64_t rows = 3 * 6;
        double *exact = ref_doubles(rows * 33);
        if (!give_copy(&x, 4)) { release(&x); return; }
        for (int way = 0; way < 8; way++) {
            santa_options o = way == 0 ? ref_options(SANTA_DENSE, 0, 0) : way == 1 ? plain(as.buckets)
                            : way == 2 ? drawn(300, SANTA_NONE) : way == 3 ? drawn(SANTA_MAX_SAMPLES, 3)
                            : way == 4 ? drawn(16, as.buckets) : way == 5 ? plain(SANTA_NONE)
                            : by_copy(300, way == 6 ? 0 : as.buckets);
            if (way == 1 || way == 4) o.saap.local_tokens = 32;
            if (way == 5) o.saap.local_tokens = 300;
            x.p.a.std_error = way == 1 || way == 5 ? NULL : x.p.std_error;
            if (!ref_run(&x.p, &o, NULL)) break;
            for (int64_t i = 0; i < rows; i++) {
                for (int64_t c = 0; c <= 32; c++) {
                    const double got =
                        c == 32 ? (double)x.p.lse[i] : ref_get(&x.p.a.out, 0, i / 6, i % 6, c);
                    if (way == 0) exact[i * 33 + c] = got;
                    CHECK_NEAR(got, exact[i * 33 + c], 2e-5, 1e-5);
                }
                if (x.p.a.std_error) CHECK_NEAR(x.p.std_error[i], 0.0, 0.0, 0.0);
            }
        }
        free(exact);
        release(&x);
    }
    shape as = shape_make(2, 1, 200, 16, 4);                     /* other scores are told apart, too */
    routed x;
    as.s.k_type = SANTA_Q8_0;
    as.s.head_dim = 32;
    build(&x, &as);
    if (!assign_all(&x)) { release(&x); return; }
    for (int t = SANTA_SCORES_EXACT; t < SANTA_SCORES_PROXY; t++) {
        float want[2 * 16];
        santa_options o = ref_options(SANTA_DENSE, 0, 3);
        o.scores = (santa_scores_method)t;
        if (!ref_run(&x.p, &o, NULL)) break;
        for (int64_t i = 0; i < 32; i++) want[i] = (float)ref_get(&x.p.a.out, 0, 0, i / 16, i % 16);
        o.method = SANTA_SAAP;
        o.num_samples = 200;
        if (!ref_run(&x.p, &o, NULL)) break;
        for (int64_t i = 0; i < 32; i++)
            CHECK_NEAR(ref_get(&x.p.a.out, 0, 0, i / 16, i % 16), want[i], 1e-5, 1e-4);
    }
    release(&x);
}

/* ------------------------------------------------------------ draws */

/* A group over 320 keys; V = identity or random of 12 features. */
static void build_draws(routed *x, int identity, uint64_t stream) {
    shape as = shape_make(3, 1, 320, 16, 14);
    as.s.head_dim_v = identity ? 320 : 12;
    as.s.stream     = stream;
    as.hidden       = stream % 2 ? 20 : 0;
    as.sharp        = 2.0;
    build(x, &as);
    if (identity) one_hot(x);
    (void)assign_all(x);
}

/* How often each key is drawn, against the chances that the manual gives; those with another
   uniform share, and with the mean over the group for the largest, must fail. */
static void chances(void) {
    const int64_t seeds = test_quick ? 1000 : 4000, samples = 20;
    for (int turn = 0; turn < 4; turn++) {                       /* the last one from a copy of K */
        double worst = 0.0, wrong = 0.0, count[320] = {0.0};
        row right, other;
        routed x;
        build_draws(&x, 1, 10 + (uint64_t)turn);
        const int64_t probes = turn == 2 ? 2 : turn == 3 ? 3 : SANTA_NONE;
        santa_options o = drawn(samples, probes), off, only = plain(turn == 3 ? SANTA_NONE : probes);
        only.saap.local_tokens = 64;
        if (turn == 3 && !give_copy(&x, 4)) { release(&x); return; }
        if (turn == 3) o.scores = SANTA_SCORES_PROXY;
        o.saap.uniform_share = turn == 1 ? 0.5 : 0.0;
        off = o;
        off.saap.uniform_share = turn == 1 ? 0.05 : 0.6;
        model(&x, &only, 0, 0, 0, 0.5, &right);
        const int64_t probed = right.whole;                      /* keys of buckets read whole anyway */
        model(&x, &o, 0, 0, 0, 0.5, &right);
        model(&x, &off, 0, 0, 0, 0.5, &other);
        for (int64_t i = 0; i < seeds; i++) {
            santa_stats stats;
            int64_t rows = 0;
            o.offset = (uint64_t)i;
            if (!ref_run(&x.p, &o, &stats)) break;
            for (int64_t j = right.from; j < right.to; j++) {
                const int seen = weight_of(&x, 0, j) > 0.0 || weight_of(&x, 1, j) > 0.0;
                count[j] += seen;
                rows += seen;
            }
            CHECK_INT(rows, stats.visited_rows);
            CHECK_MSG(llabs(rows - probed - samples) <= 1, "%d keys for %d draws", (int)rows, (int)samples);
        }
        for (int64_t j = right.from; j < right.to; j++) {
            const double n = (double)seeds, pi = right.chance[j], no = other.chance[j];
            if (pi >= 1.0) CHECK_NEAR(count[j], n, 0.0, 0.0);
            else worst = fmax(worst, fabs(count[j] - n * pi) / sqrt(n * pi * (1.0 - pi) + 1.0));
            if (no < 1.0) wrong = fmax(wrong, fabs(count[j] - n * no) / sqrt(n * no * (1.0 - no) + 1.0));
            CHECK(pi > 0.2 * (double)samples * (turn == 1 ? 0.5 : 0.1) / 320.0);
        }
        CHECK_MSG(worst < 5.0, "turn %d: a key is off by %.1f standard errors", turn, worst);
        CHECK_MSG(wrong > 6.0, "turn %d: another share is off by only %.1f standard errors", turn, wrong);
        release(&x);
    }
    /* a router that knows nothing of where the keys are: they are drawn evenly, by the uniform
       part */
    static const int home[] = {1, 2};
    static const double sure[] = {90, 0, 0};
    routed x;
    row m;
    build_by_hand(&x, 1, 384, 3, home, 2, sure);
    santa_options o = drawn(16, SANTA_NONE);
    double n = 0.0;
    model(&x, &o, 0, 0, 0, 0.5, &m);
    for (int64_t i = 0; i < 200; i++) {
        o.offset = (uint64_t)i;
        if (!run_and_verify(&x, &o, NULL, "a router that is sure of an empty bucket")) break;
        n += weight_of(&x, 0, 100) > 0.0;
    }
    CHECK_NEAR(m.chance[100], 16.0 / (double)(m.to - m.from), 1e-9, 1e-9);
    CHECK_NEAR(n / 200.0, 16.0 / (double)(m.to - m.from), 0.06, 0.0);
    release(&x);
}

/* Codes, gains and centres that have nothing to do with K. */
static void rubbish_copy(const routed *x) {
    const ref_copy f = ref_copy_shape(&x->p);
    test_rng r = test_rng_make(12);
    for (int64_t at = 0; at < x->as.s.kv_heads * f.blocks; at++) {
        unsigned char *block = (unsigned char *)x->p.a.proxy + at * f.bytes;
        for (int64_t i = 0; i < f.scale; i++) block[i] = (unsigned char)test_below(&r, 256);
        for (int64_t i = 0; i < f.keys; i++) ref_set_gain(&f, block, i, 0.3 * test_uniform(&r));
    }
}

/* Numerator and denominator are right on average, their quotient as the comb's places say, more
   draws come nearer, and std_error tells how near. */
static void estimates(void) {
    const int64_t seeds = test_quick ? 500 : 2000, dv = 12, places = 512;
    for (int turn = 0; turn < 4; turn++) {                       /* with a copy of K, with a wrong one */
        double bias[2] = {0.0, 0.0}, square[2] = {0.0, 0.0}, control = 0.0;
        routed x;
        build_draws(&x, 0, 20 + (uint64_t)turn);
        if (turn >= 2 && !give_copy(&x, 4)) { release(&x); return; }
        if (turn == 3) rubbish_copy(&x);
        for (int more = 0; more < 2; more++) {
            santa_options o = drawn(more ? 96 : 12, SANTA_NONE);
            if (turn >= 2) { o.scores = SANTA_SCORES_PROXY; o.saap.num_probes = 4; }
            double exact[3 * 12], lse[3], absolute[12], one[12], mean[3 * 12] = {0.0},
                   sum[3 * 12] = {0.0}, squares[3 * 12] = {0.0}, top[3 * 13] = {0.0},
                   tops[3 * 13] = {0.0}, bar = 0.0, z, fixed = 0.0;
            row m, all;
            for (int64_t i = 0; i < places; i++) {               /* expectation of the quotient */
                model(&x, &o, 0, 0, 0, ((double)i + 0.5) / (double)places, &m);
                for (int64_t h = 0; h < 3; h++) {
                    attend(&x, &m, m.count, 0, 0, h, one, absolute);
                    for (int64_t c = 0; c < dv; c++) mean[h * dv + c] += one[c] / (double)places;
                }
            }
            for (int64_t h = 0; h < 3; h++)
                lse[h] = attend(&x, &m, NULL, 0, 0, h, exact + h * dv, absolute);
            for (int64_t i = 0; i < seeds; i++) {
                o.seed = test_seed + (uint64_t)i;
                if (!ref_run(&x.p, &o, NULL)) break;
                for (int64_t h = 0; h < 3; h++) {
                    const double share = exp((double)x.p.lse[h] - lse[h]);
                    ref_out(&x.p, 0, 0, h, one);
                    square[more] += ref_distance2(one, exact + h * dv, dv) / (double)seeds;
                    bar += pow((double)x.p.std_error[h], 2.0) / (double)seeds;
                    for (int64_t c = 0; c <= dv; c++) {
                        const double part = c == dv ? share : share * one[c];
                        top[h * 13 + c] += part;
                        tops[h * 13 + c] += part * part;
                        if (c < dv) { sum[h * dv + c] += one[c]; squares[h * dv + c] += one[c] * one[c]; }
                    }
                }
            }
            all = m;
            for (int64_t j = 0; j < 320; j++) all.count[j] = j < m.from || j >= m.to;
            for (int64_t h = 0; h < 3; h++) {
                fixed = exp(attend(&x, &all, all.count, 0, 0, h, one, absolute) - lse[h]);
                bias[more] += ref_distance2(mean + h * dv, exact + h * dv, dv);
                for (int64_t c = 0; c <= dv; c++)
                    CHECK_MEAN_Z("numerator or denominator", top[h * 13 + c], tops[h * 13 + c], seeds,
                                 c == dv ? 1.0 : exact[h * dv + c], 5.0);
                z = test_mean_z(top[h * 13 + dv], tops[h * 13 + dv], (double)seeds, 0.5 + 0.5 * fixed);
                control = fmax(control, z);
                for (int64_t c = 0; c < dv; c++)
                    CHECK_MEAN_Z("quotient", sum[h * dv + c], squares[h * dv + c], seeds, mean[h * dv + c],
                                 5.0);
            }
            CHECK_MSG(bar > (more ? 0.4 : 0.2) * square[more] && bar < 1.8 * square[more],
                      "turn %d: the squared error bar is %.2f of the squared error", turn,
                      bar / square[more]);
        }
        CHECK_MSG(control > 6.0, "half of what is drawn is off by only %.1f standard errors", control);
        CHECK_MSG(square[1] < 0.25 * square[0], "squared error %.3g of 12 draws, %.3g of 96", square[0],
                  square[1]);
        CHECK_MSG(bias[1] < 0.25 * bias[0] && bias[0] < 0.5 * square[0], "squared bias %.3g, %.3g", bias[0],
                  bias[1]);
        santa_options o = drawn(1, SANTA_NONE);                           /* too few to tell */
        if (ref_run(&x.p, &o, NULL)) CHECK(x.p.std_error[0] > 1e38f);
        release(&x);
    }
}

/* ------------------------------------------------------------ random problems */

static shape random_shape(test_rng *r, uint64_t stream) {
    static const int64_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 20}, hidden[] = {0, 0, 1, 33, 64, 70},
                         buckets[] = {1, 2, 3, 16, 63, 64, 65, 130};
    const int64_t kv_heads = 1 + test_below(r, 3);
    shape as = shape_make(kv_heads * groups[test_below(r, 10)], kv_heads, 1 + test_below(r, MAX_LEN),
                          1 + test_below(r, 70), buckets[test_below(r, 8)]);
    ref_spec *s = &as.s;
    s->stream   = stream;
    s->batch    = 1 + test_below(r, 3);
    s->q_len    = test_below(r, 3) ? 1 : 1 + test_below(r, 3);
    s->causal   = s->q_len > 1;
    s->ragged   = (int)test_below(r, 2);
    s->page_size = test_below(r, 3) ? 0 : 8 << test_below(r, 4);
    s->window   = test_below(r, 4) ? 0 : 1 + test_below(r, 400);
    s->sinks    = test_below(r, 4) == 0;
    s->alibi    = test_below(r, 4) == 0;
    s->soft_cap = test_below(r, 4) ? 0.0f : 4.0f;
    s->layout   = (ref_layout)test_below(r, REF_LAYOUTS);
    s->head_dim_v = 1 + test_below(r, 40);
    s->q_type   = (santa_dtype)test_below(r, 3);
    s->out_type = (santa_dtype)test_below(r, 3);
    s->k_type   = (santa_dtype)test_below(r, 4);
    s->v_type   = (santa_dtype)test_below(r, 4);
    if (test_below(r, 6) == 0) {
        s->k_type = s->v_type = SANTA_Q8_0;
        s->layout = s->layout == REF_STRIDED ? REF_PADDED : s->layout;
        s->head_dim   = 32 * (1 + test_below(r, 2));
        s->head_dim_v = 32;
    }
    as.hidden     = hidden[test_below(r, 6)];
    as.weights    = (santa_dtype)test_below(r, 3);
    as.key_type   = (santa_dtype)test_below(r, 4);
    as.q0_type    = (santa_dtype)test_below(r, 3);
    as.key_layout = (ref_layout)test_below(r, REF_LAYOUTS);
    as.own_q      = (int)test_below(r, 2);
    as.permuted   = (int)test_below(r, 2);
    as.sharp      = 0.3 + 2.0 * test_uniform(r);
    return as;
}

static void random_problems(void) {
    const int turns = test_quick ? 24 : 90;
    test_rng r = test_rng_make(4242);
    rows_counted rows = {0, 0};
    for (int turn = 0; turn < turns; turn++) {
        const shape as = random_shape(&r, 500 + (uint64_t)turn);
        routed  x;
        int32_t context[3];
        build(&x, &as);
        if (test_below(&r, 3) == 0) {
            x.p.a.first_key = test_below(&r, 90);
            for (int64_t b = 0; b < as.s.batch; b++)
                context[b] = (int32_t)(x.p.a.first_key + ref_len(&x.p, b) + test_below(&r, 100));
            x.p.a.context_lens = context;
        }
        if (test_below(&r, 3) == 0) { x.p.a.k_scale = 0.75f; x.p.a.v_scale = 1.5f; }
        if (!assign_all(&x)) { release(&x); return; }
        if (test_below(&r, 4) == 0 && !x.p.seq_lens) {           /* the index lags behind */
            santa_tensor t = x.keys;
            t.shape[1] = x.held = 1 + test_below(&r, as.s.len);
            CHECK_STATUS(santa_buckets_assign(&x.p.a, &t, 0, NULL), SANTA_OK);
        }
        if (x.p.seq_lens && test_below(&r, 3) == 0)              /* or has keys that are gone */
            for (int64_t b = 0; b < as.s.batch; b++)
                x.p.seq_lens[b] -= (int32_t)test_below(&r, ref_min(ref_len(&x.p, b), 150) + 1);
        for (int way = 0; way < 3; way++) {
            santa_options o = way == 0 ? plain(1 + test_below(&r, 12))
                            : drawn(1 + test_below(&r, 60), way == 2 ? 1 + test_below(&r, 5) : SANTA_NONE);
            o.offset = (uint64_t)turn;
            o.saap.local_tokens  = way == 0 && turn % 5 == 0 ? 0 : test_below(&r, 90) - 1;
            o.saap.sink_tokens   = test_below(&r, 12) - 1;
            o.saap.uniform_share = test_below(&r, 3) ? 0.0 : 0.05 + 0.95 * test_uniform(&r);
            o.saap.measure_mass  = turn % 2;
            santa_clear_unused_options(&o);
            x.p.a.std_error = way ? x.p.std_error : NULL;
            FOR_EACH_ISA(isa) {
                char what[64];
                if ((turn + way + (int)isa) % 2 && santa_best_isa() != SANTA_ISA_SCALAR) continue;
                o.isa = isa;
                snprintf(what, sizeof what, "problem %d, way %d, %s", turn, way, santa_isa_name(isa));
                if (!run_and_verify(&x, &o, &rows, what)) { way = 9; break; }
            }
        }
        release(&x);
    }
    CHECK_MSG(rows.near * 25 <= rows.seen, "%d of %d rows within rounding", (int)rows.near, (int)rows.seen);
}

/* The same from a copy of K. */
static void random_copies(void) {
    const int turns = test_quick ? 24 : 90;
    test_rng r = test_rng_make(5151);
    rows_counted rows = {0, 0};
    for (int turn = 0; turn < turns; turn++) {
        shape   as = random_shape(&r, 5000 + (uint64_t)turn);
        routed  x;
        int32_t lens[3];
        if (as.s.k_type != SANTA_Q8_0) as.s.head_dim = (as.s.head_dim + 7) / 8 * 8;
        if (as.s.page_size == 8) as.s.page_size = 48;
        build(&x, &as);
        if (test_below(&r, 3) == 0) { x.p.a.k_scale = 0.75f; x.p.a.v_scale = 1.5f; }
        if (!assign_all(&x) || !give_copy(&x, turn % 4 ? 4 : 2)) { release(&x); return; }
        for (int64_t b = 0; b < as.s.batch; b++) lens[b] = (int32_t)test_below(&r, as.s.len + 50);
        if (turn % 5 == 0) x.p.a.proxy_lens = lens;
        for (int way = 0; way < 2; way++) {
            santa_options o = by_copy(1 + test_below(&r, 60), way ? 1 + test_below(&r, 12) : 0);
            o.offset = (uint64_t)turn;
            o.saap.local_tokens  = test_below(&r, 90) - 1;
            o.saap.sink_tokens   = test_below(&r, 12) - 1;
            o.saap.uniform_share = test_below(&r, 3) ? 0.0 : 0.05 + 0.95 * test_uniform(&r);
            o.saap.measure_mass  = turn % 2;
            FOR_EACH_ISA(isa) {
                char what[64];
                if ((turn + way + (int)isa) % 2 && santa_best_isa() != SANTA_ISA_SCALAR) continue;
                o.isa = isa;
                snprintf(what, sizeof what, "copy %d, way %d, %s", turn, way, santa_isa_name(isa));
                if (!run_and_verify(&x, &o, &rows, what)) { way = 9; break; }
            }
        }
        release(&x);
    }
    CHECK_MSG(rows.near * 10 <= rows.seen, "%d of %d rows within rounding", (int)rows.near, (int)rows.seen);
}

/* ------------------------------------------------------------ bits */

/* out, lse and std_error of sequence b among those of all. */
static int same_sequence(const routed *x, const bits *all, int64_t b, const float *got) {
    const int64_t rows = x->as.s.q_len * x->as.s.heads, dv = x->as.s.head_dim_v, batch = x->as.s.batch;
    int equal = !memcmp(all->out + b * rows * dv, got, (size_t)(rows * dv) * sizeof *got);
    for (int64_t i = 0; i < 2; i++)
        equal &= !memcmp(all->out + batch * rows * (dv + i) + b * rows, got + rows * (dv + i),
                         (size_t)rows * sizeof *got);
    return equal;
}

/* Threads and item ranges of index and decode; pages, layouts, place in the batch. */
static void same_bits(void) {
    static const int64_t pages[] = {0, 16, 64, 40}, count[] = {1, 2, 3, 8};
    test_rng r = test_rng_make(3);
    for (int turn = 0; turn < 3; turn++) {
        shape as = shape_make(6, 2, turn == 2 ? 2100 : 330, 24, 30);  /* 2048: threads share keys */
        as.s.batch  = turn == 2 ? 2 : 4;
        as.s.ragged = as.s.causal = as.own_q = 1;
        as.s.q_len  = 2;
        as.hidden   = 40;
        as.no_error = turn == 1;
        const int64_t items = 2 * as.s.batch;
        santa_options o = turn == 2 ? by_copy(20, 6) : turn ? plain(5) : drawn(20, 1), how;
        uint64_t ids[4] = {0, 1, 2, 3};
        char     what[40];
        routed   x, y;
        if (turn == 1) o.saap.local_tokens = 64;
        build(&x, &as);
        if (!assign_all(&x) || !give_copy(&x, 4)) { release(&x); return; }
        const bits   want  = bits_of(&x, &o);
        const size_t bytes = santa_workspace_size(&x.p.a, &o);
        for (int way = 0; way < 8; way++) {
            how = o;
            how.num_threads   = count[way / 2];
            how.parallel_for  = shuffled;
            how.parallel_user = &r;
#ifdef HAVE_PTHREADS
            if (way % 2) how.parallel_for = threaded;
#endif
            snprintf(what, sizeof what, "%d threads", (int)how.num_threads);
            memset(x.memory[5], 0xa5, x.bytes);
            CHECK_STATUS(santa_buckets_assign(&x.p.a, &x.keys, 0, &how), SANTA_OK);
            same(&want, bits_of(&x, &how), what);
        }
        memset(x.memory[5], 0xa5, x.bytes);                      /* all items in ranges, one by one */
        how = o;
        for (how.item_begin = 0; how.item_begin < items; how.item_begin = how.item_end) {
            how.item_end = ref_min(how.item_begin + 3, items);
            CHECK_STATUS(santa_buckets_assign(&x.p.a, &x.keys, 0, &how), SANTA_OK);
        }
        same(&want, bits_of(&x, &o), "an index in ranges");
        for (int64_t i = 0; i < 12 * as.s.batch; i++) x.p.lse[i] = -1.0f;
        void *memory = test_alloc(bytes);
        for (how.item_end = items; how.item_end > 0; how.item_end--) {
            how.item_begin = how.item_end - 1;
            CHECK_STATUS(santa_decode(&x.p.a, &how, memory, bytes, NULL), SANTA_OK);
        }
        free(memory);
        how.item_begin = how.item_end = 3;                       /* none: what is there */
        same(&want, bits_of(&x, &how), "decoded in ranges");
        for (int way = 0; way < 4 + REF_LAYOUTS + 4; way++) {    /* pages, layouts, one sequence alone */
            const int64_t alone = way - 4 - REF_LAYOUTS;
            shape other = as;
            how = o;
            if (alone >= as.s.batch || (turn == 2 && way < 4 && pages[way] % 64)) continue;
            if (alone >= 0) {
                other.s.batch = 1;
                other.s.first_sequence = alone;
                how.request_ids = ids + alone;
            } else if (way < 4) other.s.page_size = pages[way];
            else other.key_layout = (ref_layout)(way - 4);
            if (other.key_layout != REF_STRIDED) other.s.layout = other.key_layout;
            other.permuted = way % 2;
            build(&y, &other);
            if (assign_all(&y) && (turn < 2 || give_copy(&y, 4))) {
                bits got = bits_of(&y, &how);
                snprintf(what, sizeof what, "way %d", way);
                if (alone < 0) same(&want, got, what);
                else CHECK_MSG(same_sequence(&x, &want, alone, got.out), "sequence %d alone", (int)alone);
                if (alone >= 0) free(got.out);
            }
            release(&y);
        }
        free(want.out);
        release(&x);
    }
}

/* ------------------------------------------------------------ what is not read */

static void spoil_code(const routed *x, int64_t h, int64_t j) {
    const ref_copy f = ref_copy_shape(&x->p);
    unsigned char *block = ref_copy_block(&x->p, &f, 0, h, j);
    ref_set_gain(&f, block, j % f.keys, (double)test_nan());
    for (int64_t c = 0; c < x->as.s.head_dim; c++) ref_set_code(&f, block, j % f.keys, c, 15);
}

/* A copy without a number among the codes that are scored: exact attention, told by stats;
   among others nothing. */
static void bad_copy(void) {
    for (int turn = 0; turn < 4; turn++) {
        shape as = shape_make(6, 2, 300, 24, 10);
        santa_options o = by_copy(20, 3), dense = ref_options(SANTA_DENSE, 0, 0);
        santa_stats stats;
        float  want[6 * 25];
        routed x;
        row    m;
        as.s.stream    = 640 + (uint64_t)turn;
        as.s.page_size = turn == 1 ? 32 : 0;
        build(&x, &as);
        if (!assign_all(&x) || !give_copy(&x, turn == 2 ? 2 : 4) || !ref_run(&x.p, &dense, NULL)) return;
        for (int64_t i = 0; i < 6 * 25; i++)
            want[i] = i % 25 == 24 ? x.p.lse[i / 25]
                                                 : (float)ref_get(&x.p.a.out, 0, 0, i / 25, i % 25);
        model(&x, &o, 0, 0, 1, -1.0, &m);
        int64_t j = m.from;
        while (!m.scored[j]) j++;
        const ref_copy f = ref_copy_shape(&x.p);
        unsigned char *block = ref_copy_block(&x.p, &f, 0, 1, j);
        if (turn == 3) memset(block + f.scale, 0xff, 4);         /* the centre's scale */
        else ref_set_gain(&f, block, j % f.keys, (double)test_nan());
        if (!ref_run(&x.p, &o, &stats)) return;
        CHECK_INT(stats.redone_rows, 3);
        CHECK(stats.visited_rows > m.to - m.from && stats.visited_rows < 2 * (m.to - m.from));
        for (int64_t i = 0; i < 6 * 25; i++) {
            const int64_t h = i / 25, c = i % 25;
            const double got = c == 24 ? (double)x.p.lse[h] : ref_get(&x.p.a.out, 0, 0, h, c);
            if (h < 3) CHECK(!test_is_nan((float)got));
            else CHECK_NEAR(got, (double)want[i], 2e-5, 1e-5);
            if (h >= 3) CHECK_NEAR(x.p.std_error[h], 0.0, 0.0, 0.0);
        }
        x.p.k[(j * 2 + 1) * 24] = (double)test_nan();            /* and K has none either */
        ref_write(&x.p);
        if (!ref_run(&x.p, &o, &stats)) return;
        for (int64_t h = 0; h < 6; h++) CHECK(test_is_nan(x.p.lse[h]) == (h >= 3));
        release(&x);
    }
}

/* Keys that were not visited, weights of other KV heads, and slots of nobody hold NaN and
   rubbish. */
static void poison(void) {
    for (int turn = 0; turn < 15; turn++) {
        shape as = shape_make(6, 2, 300, 24, 10);
        const int has_copy = turn >= 12;
        santa_options o = has_copy   ? by_copy(20, 3)
                        : turn % 2 ? plain(3)
                                   : drawn(20, turn % 4 == 2 ? 1 : SANTA_NONE), how;
        int64_t near = 0;
        routed x, y;
        row    m;
        as.s.stream    = 600 + (uint64_t)turn;
        as.s.layout    = (ref_layout)(turn % REF_LAYOUTS);
        as.s.page_size = turn % 3 == 2 ? 16 : 0;
        as.hidden      = turn % 4 < 2 ? 30 : 0;
        as.permuted    = 1;
        as.no_error    = turn % 2;
        if (turn % 2) o.saap.local_tokens = 30;
        build(&x, &as);
        build(&y, &as);
        if (!assign_all(&x) || !assign_all(&y)) return;
        if (has_copy && (!give_copy(&x, 4) || !give_copy(&y, 4))) return;
        const bits want = bits_of(&x, &o);
        for (int64_t h = 0; h < 2; h++) {
            model(&x, &o, 0, 0, h, -1.0, &m);
            near += m.near;
            for (int64_t j = 0; j < 300; j++)
                for (int64_t c = 0; c < 24 && m.count[j] <= 0.0; c++)
                    x.p.k[(j * 2 + h) * 24 + c] = x.p.v[(j * 2 + h) * 24 + c] = (double)test_nan();
            for (int64_t j = 0; j < 256 && has_copy; j++)        /* codes that were not */
                if (j < m.from || j >= m.to || !m.scored[j]) spoil_code(&x, h, j);
        }
        ref_write(&x.p);
        if (!near) same(&want, bits_of(&x, &o), "keys that were not visited");
        for (int in_k = 0; in_k < 2; in_k++) {                   /* one that was, of KV head 1 */
            int64_t j = m.from;
            while (!(m.count[j] > 0.0)) j++;
            (in_k ? x.p.k : x.p.v)[(j * 2 + 1) * 24 + 5] = (double)test_nan();
            ref_write(&x.p);
            if (near || !ref_run(&x.p, &o, NULL)) break;
            for (int64_t g = 0; g < 6; g++) {
                CHECK(test_is_nan((float)ref_get(&x.p.a.out, 0, 0, g, 5)) == (g >= 3));
                CHECK(test_is_nan(x.p.lse[g]) == (g >= 3 && in_k));
            }
        }
        /* half of each array is KV head 1's; slot 0 of three is nobody's, and so is slot 2 */
        const int64_t size[3] = {as.buckets * 24, as.hidden * 24, as.buckets * as.hidden};
        for (int i = 0; i < 3; i++)
            for (int64_t c = 0; c < size[i]; c++)
                ref_store(as.weights, y.memory[1 + i], size[i] + c, (double)test_nan());
        for (int64_t c = 0; c < as.hidden; c++) y.b1[as.hidden + c] = test_nan();
        for (int64_t c = 0; c < as.buckets; c++) y.b2[as.buckets + c] = test_nan();
        memset(y.memory[5], 0x77, y.bytes / 3);
        memset((char *)y.memory[5] + y.bytes / 3 * 2, 0x77, y.bytes / 3);
        for (int64_t h = 0; h < 2; h++) {
            how = o;
            how.item_begin = h;
            how.item_end   = h + 1;
            if (!ref_run(&y.p, &how, NULL)) return;
        }
        for (int64_t g = 0; g < 6; g++) {
            CHECK(test_is_nan(y.p.lse[g]) == (g >= 3));
            if (g < 3) CHECK(!memcmp(&y.p.lse[g], &want.out[6 * 24 + g], sizeof(float)));
            for (int64_t c = 0; c < 24 && g < 3; c++)
                CHECK_NEAR(ref_get(&y.p.a.out, 0, 0, g, c), want.out[g * 24 + c], 0.0, 0.0);
        }
        free(want.out);
        release(&x);
        release(&y);
    }
}

/* ------------------------------------------------------------ errors */

/* Each line changes copies of what is right: a, r (its buckets), o, keys, from, lens, slots,
   index. */
#define BAD(call, error, ...) do {                                                                  \
        santa_attention a = x.p.a; santa_buckets w = x.r; santa_options o = good;                   \
        santa_tensor keys = x.keys; int64_t from = 0;                                               \
        int32_t lens[3] = {200, 200, 200}, slots[3] = {2, 0, 1};                                    \
        a.buckets = &w; a.seq_lens = lens; w.slots = slots; w.num_slots = 4;                        \
        __VA_ARGS__;                                                                                \
        memset(&stats, 0x5a, sizeof stats);                                                         \
        (void)from; (void)keys;                                                                     \
        CHECK_STATUS(call, SANTA_##error);                                                          \
        CHECK_MSG(!memcmp(x.memory[5], index, x.bytes + CANARY), "the index was written: " #error); \
        CHECK_MSG(((unsigned char *)&stats)[5] == 0x5a, "stats were written: " #error);             \
        CHECK_MSG(((unsigned char *)x.p.memory[3])[0] == 0x5a, "out was written: " #error);         \
    } while (0)
#define BAD_DECODE(error, ...) BAD(santa_decode(&a, &o, work, bytes, &stats), error, __VA_ARGS__)
#define BAD_ASSIGN(error, ...) BAD(santa_buckets_assign(&a, &keys, from, &o), error, __VA_ARGS__)

static void refusals(void) {
    shape as = shape_make(4, 2, 200, 16, 9);
    const santa_options good = drawn(16, 1);
    santa_stats stats;
    routed x;
    as.s.batch  = 3;
    as.hidden   = 10;
    as.own_q    = 1;
    as.permuted = 1;                                             /* room for five */
    build(&x, &as);
    for (int b = 0; b < 3; b++) x.slots[b] = b;
    if (!assign_all(&x)) { release(&x); return; }
    unsigned char *index = (unsigned char *)test_alloc(x.bytes + CANARY);
    memcpy(index, x.memory[5], x.bytes + CANARY);
    memset(x.p.memory[3], 0x5a, 3 * 4 * 16 * sizeof(float));
    const size_t bytes = santa_workspace_size(&x.p.a, &good);
    void *work = test_alloc(bytes);

    BAD_DECODE(ERR_BUCKETS_NULL, w.w1 = NULL);                   /* the other fields: test_errors.c */
    BAD_DECODE(ERR_BUCKETS_NULL, w.b1 = NULL);
    BAD_DECODE(ERR_BUCKETS_NULL, w.w2 = NULL);
    BAD_DECODE(ERR_BUCKETS_NULL, w.b2 = NULL);
    BAD_DECODE(ERR_BUCKETS_NULL, w.index = NULL);
    BAD_DECODE(ERR_BUCKETS_HEAD_DIM, a.q.shape[3] = w.q.shape[3] = a.k.shape[3] = 1025);
    BAD_DECODE(ERR_OVERFLOW, w.num_slots = INT64_MAX);
    BAD_DECODE(ERR_BUCKETS_SLOT, slots[1] = 4);
    BAD_DECODE(ERR_BUCKETS_SLOT, w.slots = NULL; w.num_slots = 2);
    BAD_DECODE(ERR_BUCKETS_INDEX, slots[1] = 3);                 /* not begun */
    BAD_DECODE(ERR_BUCKETS_INDEX, w.num_buckets = 8);            /* of another shape */
    BAD_DECODE(ERR_BUCKETS_INDEX, w.num_buckets = 10);
    BAD_DECODE(ERR_BUCKETS_INDEX, a.k.shape[1] = a.v.shape[1] = 199; lens[0] = lens[1] = lens[2] = 199);
    BAD_DECODE(ERR_BUCKETS_INDEX, w.index = (char *)x.memory[5] + 2);
    BAD_ASSIGN(ERR_BUCKETS_SLOT, slots[2] = 2);                  /* twice */
    BAD_ASSIGN(ERR_BUCKETS_SLOT, slots[2] = -1);
    BAD_ASSIGN(ERR_BUCKETS_INDEX, from = 10; slots[2] = 3);
    BAD_ASSIGN(ERR_BUCKETS_INDEX, from = 10; w.num_buckets = 8);
    BAD_ASSIGN(ERR_BUCKETS_INDEX, from = 10; a.k.shape[1] = 210);
    BAD_ASSIGN(ERR_BUCKETS_INDEX, w.index = (char *)x.memory[5] + 1);
    BAD_ASSIGN(ERR_ISA, o.isa = SANTA_ISA_COUNT);
    const float score_of[4] = {0};
    ref_drawn alone = ref_sample(score_of, 4, &good, ref_stream(0, 0, 0));
    CHECK_STATUS(alone.status, SANTA_ERR_METHOD);                /* there are no buckets of scores */
    ref_drawn_free(&alone);

    /* gaps: a sequence's index ends before the first new key, also where none is new for it */
    x.p.a.seq_lens = x.p.seq_lens = ref_ints(3);
    x.p.seq_lens[0] = x.p.seq_lens[1] = 200;
    x.p.seq_lens[2] = 90;
    CHECK_STATUS(assign(&x, 0, 120, NULL), SANTA_OK);
    memcpy(index, x.memory[5], x.bytes);
    BAD_ASSIGN(ERR_BUCKETS_RANGE, from = 121; keys.shape[1] = 20; w.slots = x.slots; w.num_slots = 5);
    BAD_ASSIGN(ERR_BUCKETS_RANGE, from = 91; keys.shape[1] = 20; w.slots = x.slots; w.num_slots = 5);
    BAD_ASSIGN(ERR_BUCKETS_RANGE, from = 100; keys.shape[1] = 20; lens[2] = 100; w.slots = x.slots;
               w.num_slots = 5);
    BAD_ASSIGN(ERR_BUCKETS_INDEX, from = 100; keys.shape[1] = 20; slots[0] = 1; slots[1] = 3; slots[2] = 0;
               lens[1] = 100);

    /* damage: a key that slot 0 holds, not sorted yet or sorted, in a bucket beyond the last */
    for (int j = 10; j <= 100; j += 90) {
        const size_t at = (size_t)(16 + 2 * (as.buckets + 1) + x.p.a.k.shape[1]) * 4 + (size_t)j * 2;
        memset((char *)x.memory[5] + at, 0x77, 2);
        memset(index + at, 0x77, 2);
        BAD_ASSIGN(ERR_BUCKETS_INDEX, from = j == 100 ? 120 : 40; w.slots = x.slots; w.num_slots = 5);
    }
    free(work);
    free(index);

    /* what has no index, and where keys are in none */
    CHECK_INT(santa_buckets_find(&x.p.a, 2, 1, 89) >= 0, 1);
    CHECK_INT(santa_buckets_find(&x.p.a, 2, 1, 90), -1);
    CHECK_INT(santa_buckets_find(&x.p.a, 4, 1, 0), -1);
    CHECK_INT(santa_buckets_find(&x.p.a, 5, 0, 0), -1);
    CHECK_INT(santa_buckets_find(&x.p.a, -1, 0, 0), -1);
    CHECK_INT(santa_buckets_find(&x.p.a, 0, 2, 0), -1);
    CHECK_INT(santa_buckets_find(&x.p.a, 0, -1, 0), -1);
    CHECK_INT(santa_buckets_find(&x.p.a, 0, 0, -1), -1);
    CHECK_INT(santa_buckets_find(NULL, 0, 0, 0), -1);
    x.r.index = (char *)x.memory[5] + 1;
    CHECK_INT(santa_buckets_find(&x.p.a, 0, 0, 0), -1);
    CHECK(santa_buckets_size(NULL) == 0);
    CHECK_INT(santa_buckets_size(&x.p.a), x.bytes);
    x.r.num_buckets = 0;
    CHECK(santa_buckets_size(&x.p.a) == 0);
    release(&x);
}

/* Keys in an index that lead out of the cache: NaN, nothing else is read. Cache in a block of
   its own, so that a sanitizer sees. */
static void overwritten(void) {
    static const int64_t draws[] = {SANTA_NONE, 16};
    for (int way = 0; way < 6; way++) {
        shape as = shape_make(4, 2, 200, 16, 9);
        santa_options o = way < 4 ? drawn(draws[way % 2], 3) : by_copy(16, way == 4 ? 3 : SANTA_NONE);
        santa_stats stats;
        routed x;
        build(&x, &as);
        if (!assign_all(&x)) { release(&x); return; }
        int32_t *ints = (int32_t *)x.memory[5];
        const int64_t first = 16 + 2 * (x.r.num_buckets + 1);        /* where the keys of KV head 0 begin */
        for (int64_t i = 0; i < 200 / SANTA_BLOCK * SANTA_BLOCK; i++)
            ints[first + i] = way < 2 || way == 4 ? INT32_MAX - 1 : -5;
        o.saap.local_tokens = o.saap.sink_tokens = SANTA_NONE;
        if (way % 2 == 0) x.p.a.std_error = NULL;
        if (way >= 4 && !give_copy(&x, 4)) { release(&x); return; }
        const size_t bytes = santa_workspace_size(&x.p.a, &o);
        void *work = test_alloc(bytes);
        CHECK_STATUS(santa_decode(&x.p.a, &o, work, bytes, &stats), SANTA_OK);
        for (int64_t h = 0; h < 4; h++)
            CHECK_MSG((isnan(ref_get(&x.p.a.out, 0, 0, h, 0)) != 0) == (h < 2), "head %d", (int)h);
        free(work);
        release(&x);
    }
}

const test_case suite_saap[] = {
    {"each key in the bucket of its largest product", nearest},
    {"ties and NaN", ties},
    {"keys in one call, in pieces, one by one, again", arrivals},
    {"a growing context", growing},
    {"the router by hand", router},
    {"all buckets, all draws, none: exact attention", ends},
    {"chances of the keys", chances},
    {"unbiased sums, consistent quotient, std_error", estimates},
    {"random problems against the model", random_problems},
    {"random problems with a copy of K", random_copies},
    {"threads, items, pages, layouts, batches", same_bits},
    {"what is not visited", poison},
    {"a copy without a number", bad_copy},
    {"refusals", refusals},
    {"an index that was overwritten", overwritten},
    {0, 0}
};
