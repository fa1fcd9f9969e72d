/* Dense attention against float64: types, shapes, layouts, pages, score extras; lse, counters,
   empty and broken rows; merging. All instruction sets of this machine run every problem. */
#include "prefill.h"

/* out and lse of every row against the reference, after a run. abs_tol is for scores of a few
   units. */
static int compare(const ref_problem *p, const char *what, double abs_tol) {
    const ref_spec *s = &p->spec;
    double *want = ref_doubles(s->head_dim_v), *got = ref_doubles(s->head_dim_v);
    const double rel = ref_epsilon(s->out_type);
    int good = 1;
    for (int64_t b = 0; b < s->batch && good; b++)
        for (int64_t i = 0; i < s->q_len && good; i++)
            for (int64_t h = 0; h < s->heads && good; h++) {
                const double lse = ref_dense(p, b, i, h, want, NULL);
                const float  mine = p->lse[(b * s->q_len + i) * s->heads + h];
                ref_out(p, b, i, h, got);
                good = CHECK_MSG(lse == -REF_INF ? (double)mine == lse
                                                 : fabs((double)mine - lse) <= abs_tol + 1e-6 * fabs(lse),
                                 "%s: lse of batch %d row %d head %d: got %.9g, want %.9g", what, (int)b,
                                 (int)i, (int)h, (double)mine, lse);
                for (int64_t c = 0; c < s->head_dim_v && good; c++)
                    good = CHECK_MSG(fabs(got[c] - want[c]) <= abs_tol + rel * fabs(want[c]),
                                     "%s: out of batch %d row %d head %d, element %d: got %.9g, want %.9g",
                                     what, (int)b, (int)i, (int)h, (int)c, got[c], want[c]);
            }
    free(want);
    free(got);
    return good;
}

/* What a dense call reads: each valid key once per query row and KV head, in k and in v. */
static int64_t dense_keys(const ref_problem *p) {
    int64_t keys = 0;
    double *scores = ref_doubles(p->spec.len);
    for (int64_t b = 0; b < p->spec.batch; b++)
        for (int64_t i = 0; i < p->spec.q_len; i++) {
            const int64_t n = ref_scores(p, b, i, 0, scores);
            for (int64_t j = 0; j < n; j++) keys += scores[j] > -REF_INF;
        }
    free(scores);
    return keys * p->spec.kv_heads;
}

static int dense_matches(const ref_spec *spec, const char *what) {
    int good = 1;
    FOR_EACH_ISA (isa) {
        ref_problem p;
        if (!good) break;
        ref_build(&p, spec);
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        santa_stats stats;
        o.isa = isa;
        good = ref_run(&p, &o, &stats) && compare(&p, what, 2e-5);
        if (good) {
            const int64_t keys = dense_keys(&p), rows = spec->batch * spec->q_len * spec->heads;
            good &= CHECK_INT(stats.rows, rows);
            good &= CHECK_INT(stats.keys, keys);
            good &= CHECK_INT(stats.k_rows_read, keys);
            good &= CHECK_INT(stats.v_rows_read, keys);
            good &= CHECK_INT(stats.v_rows_head, keys * (spec->heads / spec->kv_heads));
            good &= CHECK_INT(stats.k_features_read, keys * spec->head_dim);
            for (int64_t i = 0; i < rows; i++) good &= CHECK(p.std_error[i] == 0.0f);
        }
        ref_free(&p);
    }
    return good;
}

static void types(void) {
    char what[64];
    for (int mix = 0; mix < 81; mix++) {
        ref_spec s = ref_spec_make(4, 2, 150, 40);
        s.stream     = (uint64_t)mix;
        s.q_type     = (santa_dtype)(mix % 3);
        s.k_type     = (santa_dtype)(mix / 3 % 3);
        s.v_type     = (santa_dtype)(mix / 9 % 3);
        s.out_type   = (santa_dtype)(mix / 27);
        s.head_dim_v = 24;
        snprintf(what, sizeof what, "types q %d k %d v %d out %d", s.q_type, s.k_type, s.v_type,
                 s.out_type);
        if (!dense_matches(&s, what)) return;
    }
}

static void head_dims(void) {
    static const int64_t dims[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 80, 96, 100, 128, 130, 192,
                                   256, 576};
    char what[64];
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (size_t j = 0; j < 3; j++) {
            ref_spec s = ref_spec_make(2, 1, 100, dims[i]);
            s.head_dim_v = dims[(i + 5 * j) % (sizeof dims / sizeof dims[0])];
            s.k_type     = (santa_dtype)j;
            s.v_type     = (santa_dtype)j;
            snprintf(what, sizeof what, "head_dim %d, head_dim_v %d, type %d", (int)s.head_dim,
                     (int)s.head_dim_v, (int)j);
            if (!dense_matches(&s, what)) return;
        }
}

static void groups(void) {
    static const int64_t group[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 40};
    char what[64];
    for (size_t i = 0; i < sizeof group / sizeof group[0]; i++)
        for (int64_t kv_heads = 1; kv_heads <= 3; kv_heads += 2) {
            ref_spec s = ref_spec_make(group[i] * kv_heads, kv_heads, 130, 33);
            s.k_type = s.v_type = (santa_dtype)(i % 3);
            snprintf(what, sizeof what, "group %d, %d kv heads", (int)group[i], (int)kv_heads);
            if (!dense_matches(&s, what)) return;
        }
}

static void lengths(void) {
    static const int64_t lens[] = {1, 2, 7, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 1000, 1025};
    char what[64];
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        ref_spec s = ref_spec_make(3, 1, lens[i], 16);
        snprintf(what, sizeof what, "%d keys", (int)lens[i]);
        if (!dense_matches(&s, what)) return;
        s.batch  = 6;
        s.ragged = 1;
        snprintf(what, sizeof what, "ragged batch up to %d keys", (int)lens[i]);
        if (!dense_matches(&s, what)) return;
    }
}

static void layouts_and_pages(void) {
    static const int64_t pages[] = {0, 1, 3, 16, 64, 100, 128};
    char what[80];
    for (int layout = 0; layout < REF_LAYOUTS; layout++)
        for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++)
            for (int type = 0; type < 3; type++) {
                if (test_quick && (layout + (int)i + type) % 3) continue;
                ref_spec s = ref_spec_make(4, 2, 210, 33);
                s.layout    = (ref_layout)layout;
                s.page_size = pages[i];
                s.batch     = 6;
                s.ragged    = 1;
                s.k_type = s.v_type = (santa_dtype)type;
                snprintf(what, sizeof what, "layout %d, page size %d, type %d", layout, (int)pages[i],
                         type);
                if (!dense_matches(&s, what)) return;
                s.ragged = 0;                                /* the whole of the last page but its tail */
                s.batch  = 1;
                if (!dense_matches(&s, what)) return;
            }
}

/* Bits 0-4: soft cap, window, sinks, ALiBi, a scale; with 1 and 5 queries, causal and not,
   ragged and paged. */
static void extras(void) {
    char what[128];
    for (int set = 0; set < 32; set++)
        for (int mode = 0; mode < 6; mode++) {
            ref_spec s = ref_spec_make(6, 2, 140, 20);
            s.stream    = (uint64_t)set;
            s.gain      = 2.0;
            s.soft_cap  = set & 1 ? 3.0f : 0.0f;
            s.window    = set & 2 ? 37 : 0;
            s.sinks     = set >> 2 & 1;
            s.alibi     = set >> 3 & 1;
            s.sm_scale  = set & 16 ? 0.4f : 0.0f;
            s.q_len     = mode < 2 ? 1 : 5;
            s.causal    = mode % 2;
            s.batch     = mode < 4 ? 1 : 6;
            s.ragged    = mode >= 4;
            s.page_size = mode >= 4 ? 16 : 0;
            snprintf(what, sizeof what, "extras %d (1 cap, 2 window, 4 sinks, 8 ALiBi, 16 scale), mode %d",
                     set, mode);
            if (!dense_matches(&s, what)) return;
        }
}

/* Windows of one key, of exactly the length, and longer; more queries than keys; a negative
   scale. */
static void mask_edges(void) {
    static const int64_t windows[] = {0, 1, 2, 63, 64, 65, 99, 100, 101, INT64_C(1) << 40};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        for (int causal = 0; causal < 2; causal++) {
            ref_spec s = ref_spec_make(2, 1, 100, 8);
            s.window = windows[i];
            s.causal = causal;
            s.q_len  = 3;
            if (!dense_matches(&s, "window edge")) return;
        }
    ref_spec s = ref_spec_make(2, 1, 3, 8);
    s.q_len  = 7;                                            /* the first four rows see no key */
    s.causal = 1;
    s.sinks  = 1;
    dense_matches(&s, "more queries than keys");
    s.alibi = 1;
    dense_matches(&s, "more queries than keys, ALiBi");
    s = ref_spec_make(2, 1, 70, 8);
    s.sm_scale = -0.7f;
    dense_matches(&s, "negative scale");
}

static void large_scores(void) {
    static const float scales[] = {1e2f, 1e4f, 1e6f, 1.2676506e30f /* 2^100 */, 1e-30f};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        for (int sinks = 0; sinks < 2; sinks++) {
            /* K holds multiples of 1/4 and q of 1/2: scores are exact in float, and so is
               softmax's argument. */
            ref_spec s = ref_spec_make(3, 1, 150, 16);
            s.sinks    = sinks;
            s.sm_scale = scales[i];
            FOR_EACH_ISA (isa) {
                ref_problem p;
                ref_build(&p, &s);
                for (int64_t j = 0; j < 3 * 16; j++) p.q[j] = floor(2.0 * p.q[j]) / 2.0;
                for (int64_t j = 0; j < 150 * 16; j++) p.k[j] = floor(4.0 * p.k[j]) / 4.0;
                ref_write(&p);
                santa_options o = ref_options(SANTA_DENSE, 0, 0);
                o.isa = isa;
                if (ref_run(&p, &o, NULL)) compare(&p, "large scores", 2e-5);
                ref_free(&p);
            }
        }
}

/* Scores at the edge of exp: far below the maximum they vanish, whatever their number. */
static void wide_scores(void) {
    ref_spec s = ref_spec_make(1, 1, 400, 1);
    s.sm_scale = 1.0f;
    ref_problem p;
    ref_build(&p, &s);
    p.q[0] = 1.0;
    /* 0 .. -200 */
    for (int64_t j = 0; j < 400; j++) p.k[j] = (double)(float)(-0.5 * (double)((j * 37) % 400));
    ref_write(&p);
    FOR_EACH_ISA (isa) {
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        o.isa = isa;
        if (ref_run(&p, &o, NULL)) compare(&p, "scores from 0 to -200", 1e-6);
    }
    ref_free(&p);
}

/* Finite scores count however low they are, down to the limit that the manual names; below it
   they are -inf. */
static void low_scores(void) {
    enum { KEYS = 200, BEST = 77 };
    static const double tops[] = {-2e30, -1e35, -0.9e38, -1.1e38};
    ref_spec s = ref_spec_make(2, 1, KEYS, 1);
    s.head_dim_v = 3;
    s.sm_scale   = 1.0f;
    for (int i = 0; i < 4; i++) {
        ref_problem p;
        ref_build(&p, &s);
        p.q[0] = p.q[1] = 1.0;
        for (int j = 0; j < KEYS; j++)
            p.k[j] = (double)(float)(tops[i] * (j == BEST ? 1.0 : 1.5 + 0.001 * j));
        ref_write(&p);
        for (int m = 0; m < SANTA_METHOD_COUNT; m++)
            FOR_EACH_ISA (isa) {
                santa_options o = ref_options((santa_method)m, 8, 1);
                o.isa = isa;
                o.vattention.sink_tokens = o.vattention.local_tokens = 5;
                if (m == SANTA_SAAP) o.num_samples = KEYS;
                santa_clear_unused_options(&o);
                p.a.std_error = ref_has_error((santa_method)m) ? p.std_error : NULL;
                if (!ref_run(&p, &o, NULL)) break;
                for (int h = 0; h < 2; h++)
                    for (int c = 0; c < 3; c++) {
                        const double want = i < 3 ? p.v[BEST * 3 + c] : 0.0,
                                     got = ref_get(&p.a.out, 0, 0, h, c);
                        CHECK_MSG(fabs(got - want) < 1e-6 &&
                                      (i < 3 ? p.lse[h] == (float)p.k[BEST] : p.lse[h] == -INFINITY),
                                  "%s, %s, best score %g: out %g, want %g, lse %g",
                                  santa_method_name(o.method), santa_isa_name(isa), tops[i], got, want,
                                  (double)p.lse[h]);
                    }
            }
        ref_free(&p);
    }
}

/* Numbers of V at both ends of f32's range: results are as many times as large, of every
   method, in one row and in as many as go by blocks. */
static void value_ranges(void) {
    enum { KEYS = 300, DIM = 40, ROWS = 70, HEADS = 4 };
    static const santa_dtype types[] = {SANTA_F32, SANTA_BF16};
    static const int powers[] = {0, 118, -110};
    double *first = ref_doubles(ROWS * HEADS * DIM);
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)
        for (int t = 0; t < 4; t++)
            FOR_EACH_ISA (isa) {
                ref_spec s = ref_spec_make(HEADS, 1, KEYS, DIM);
                s.q_type = s.k_type = s.v_type = types[t / 2];
                s.q_len = t % 2 ? ROWS : 1;
                s.causal = m == SANTA_SAMPLE_ATTENTION;
                if (s.causal && s.q_len == 1) continue;
                for (int i = 0; i < 3; i++) {
                    santa_options o = ref_options((santa_method)m, 30, 1);
                    ref_problem p;
                    int64_t wrong = 0;
                    ref_build(&p, &s);
                    for (int64_t x = 0; x < KEYS * DIM; x++) p.v[x] *= ref_power(powers[i]);
                    ref_write(&p);
                    o.isa = isa;
                    o.vattention.sink_tokens = o.vattention.local_tokens = 5;
                    santa_clear_unused_options(&o);
                    p.a.std_error = ref_has_error((santa_method)m) ? p.std_error : NULL;
                    const int ran = ref_run(&p, &o, NULL);
                    for (int64_t x = 0; ran && x < s.q_len * HEADS * DIM; x++) {
                        const double out = ref_get(&p.a.out, 0, x / HEADS / DIM, x / DIM % HEADS, x % DIM);
                        if (i == 0) first[x] = out;
                        else wrong += !(fabs(out * ref_power(-powers[i]) - first[x]) <= 1e-6);
                    }
                    CHECK_MSG(wrong == 0, "%s, %s, type %d, %d rows, V times 2^%d: %lld results are off",
                              santa_method_name(o.method), santa_isa_name(isa), (int)types[t / 2],
                              (int)s.q_len, powers[i], (long long)wrong);
                    ref_free(&p);
                }
            }
    free(first);
}

/* All keys but one weigh e^-20 of that one each, and V is 0 at that one: what is left is
   theirs. */
static void faint_weights(void) {
    enum { KEYS = 700, DIM = 32, BEST = 300, HEADS = 4 };
    static const santa_dtype types[] = {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3, SANTA_Q8_0};
    const double rest = exp(-20.0) * (KEYS - 1), want = rest / (1.0 + rest);
    for (int t = 0; t < 10; t++)
        FOR_EACH_ISA (isa) {
            ref_spec s = ref_spec_make(HEADS, 1, KEYS, DIM);
            santa_options o = ref_options(SANTA_DENSE, 0, 0);
            ref_problem p;
            double off = 0.0;
            s.k_type = s.v_type = types[t / 2];
            s.q_len = t % 2 ? 70 : 1;
            s.sm_scale = 1.0f;
            ref_build(&p, &s);
            for (int64_t x = 0; x < KEYS * DIM; x++) {
                p.k[x] = x == BEST * DIM ? 4.0 : 0.0;
                p.v[x] = x / DIM == BEST ? 0.0 : 1.0;
            }
            for (int64_t x = 0; x < s.q_len * HEADS * DIM; x++) p.q[x] = x % DIM == 0 ? 5.0 : 0.0;
            ref_write(&p);
            o.isa = isa;
            const int ran = ref_run(&p, &o, NULL);
            for (int64_t x = 0; ran && x < s.q_len * HEADS * DIM; x++) {
                const double out = ref_get(&p.a.out, 0, x / HEADS / DIM, x / DIM % HEADS, x % DIM);
                off = off > fabs(out / want - 1.0) ? off : fabs(out / want - 1.0);
            }
            /* q8_0 has no 1; in rows by blocks weights of bf16 are bf16 */
            CHECK_MSG(off <= (types[t / 2] == SANTA_Q8_0                  ? 2e-3
                              : types[t / 2] == SANTA_BF16 && s.q_len > 1 ? 4e-3
                                                                          : 2e-5),
                      "%s, type %d, %d rows: %g off, relative", santa_isa_name(isa), (int)types[t / 2],
                      (int)s.q_len, off);
            ref_free(&p);
        }
}

static void strided_zero(void) {
    /* One K/V row shown as many, and one KV head shown as two: views with stride 0 are inputs
       like any other. */
    ref_spec s = ref_spec_make(4, 2, 90, 12);
    ref_problem p;
    ref_build(&p, &s);
    for (int64_t j = 0; j < 90; j++)
        for (int64_t c = 0; c < 12; c++) {
            p.k[(j * 2 + 1) * 12 + c] = p.k[j * 2 * 12 + c];
            p.v[(j * 2 + 0) * 12 + c] = p.v[c];
            p.v[(j * 2 + 1) * 12 + c] = p.v[12 + c];
        }
    p.a.k.stride[2] = 0;
    p.a.v.stride[1] = 0;
    ref_write(&p);
    const santa_options o = ref_options(SANTA_DENSE, 0, 0);
    if (ref_run(&p, &o, NULL)) compare(&p, "stride 0", 2e-5);
    ref_free(&p);
}

/* A NaN or +inf score spoils its whole row, out and lse, and no other row; -inf scores are
   masked keys. */
static void broken_scores(void) {
    FOR_EACH_ISA (isa)
        for (int turn = 0; turn < 6; turn++)
            for (int method = 0; method < SANTA_METHOD_COUNT; method++) {
                const int kind = turn % 3;
                ref_spec s = ref_spec_make(2, 2, 200, 4);
                s.batch = 2;
                ref_problem p;
                ref_build(&p, &s);
                p.q[0] = 1.0;                                /* batch 0, head 0 */
                ref_write(&p);
                const double bad = kind == 0 ? (double)test_nan() : kind == 1 ? REF_INF : -REF_INF;
                ref_set(&p.a.k, 0, 70, 0, 0, bad);
                santa_options o = ref_options((santa_method)method, 64, 3);
                o.isa = isa;
                /* which does not round scores like these */
                o.stash = turn < 3 ? SANTA_STASH_F32 : SANTA_STASH_U8;
                o.vattention.heavy_tokens = 20;
                if (method == SANTA_SAAP) o.num_samples = 200;  /* all keys */
                santa_clear_unused_options(&o);
                if (!ref_has_error((santa_method)method)) p.a.std_error = NULL;
                if (!ref_run(&p, &o, NULL)) { ref_free(&p); return; }
                double out[4];
                for (int64_t b = 0; b < 2; b++)
                    for (int64_t h = 0; h < 2; h++) {
                        const int spoiled = b == 0 && h == 0 && kind < 2;
                        ref_out(&p, b, 0, h, out);
                        for (int c = 0; c < 4; c++)
                            CHECK_MSG(test_is_nan((float)out[c]) == spoiled,
                                      "method %s, kind %d, batch %d, head %d: out %g",
                                      santa_method_name((santa_method)method), kind, (int)b, (int)h,
                                      out[c]);
                        CHECK_MSG(test_is_nan(p.lse[b * 2 + h]) == spoiled,
                                  "method %s, kind %d, batch %d, head %d: lse %g",
                                  santa_method_name((santa_method)method), kind, (int)b, (int)h,
                                  (double)p.lse[b * 2 + h]);
                    }
                ref_free(&p);
            }
}

/* seq_len 0, all keys at -inf: out = 0, lse = -inf (with a sink: the sink), for every
   method. */
static void no_keys(void) {
    for (int method = 0; method < SANTA_METHOD_COUNT; method++)
        for (int kind = 0; kind < 4; kind++) {
            ref_spec s = ref_spec_make(2, 1, 130, 4);
            s.batch = 2;
            s.sinks = kind >= 2;
            ref_problem p;
            ref_build(&p, &s);
            int32_t lens[2] = {0, 130};
            if (kind % 2 == 0) p.a.seq_lens = lens;
            else
                for (int64_t j = 0; j < 130; j++) {
                    for (int64_t c = 0; c < 4; c++) ref_set(&p.a.k, 0, j, 0, c, c == 0 ? -REF_INF : 0.0);
                    ref_set(&p.a.q, 0, 0, 0, 0, 1.0);
                    ref_set(&p.a.q, 0, 0, 1, 0, 2.0);
                }
            santa_options o = ref_options((santa_method)method, 16, 3);
            if (!ref_has_error((santa_method)method)) p.a.std_error = NULL;
            if (!ref_run(&p, &o, NULL)) { ref_free(&p); return; }
            double out[4];
            for (int64_t h = 0; h < 2; h++) {
                ref_out(&p, 0, 0, h, out);
                for (int c = 0; c < 4; c++)
                    CHECK_MSG(out[c] == 0.0, "method %s, kind %d: out %g",
                              santa_method_name((santa_method)method), kind, out[c]);
                const double want = kind >= 2 ? (double)p.sinks[h] : -REF_INF, lse = (double)p.lse[h];
                CHECK_MSG(lse == want || fabs(lse - want) < 1e-6, "method %s, kind %d: lse %g, want %g",
                          santa_method_name((santa_method)method), kind, lse, want);
            }
            ref_free(&p);
        }
}

/* A sink of logit 0 is a sink: it takes its share of every method's row, and the whole of a row
   without a key. */
static void zero_sinks(void) {
    static const float zeros[2] = {0.0f, -0.0f};
    for (int method = 0; method < SANTA_METHOD_COUNT; method++)
        for (int64_t n = 1; n <= 130; n = n * 3 + 2) {
            ref_spec s = ref_spec_make(2, 1, n, 8);
            ref_problem p;
            float   out[2 * 8], lse[2];
            int32_t none = 0;
            ref_build(&p, &s);
            santa_options o = ref_options((santa_method)method, 16, 3);
            p.a.std_error = NULL;
            o.vattention.base_samples = 1000;                /* all keys */
            santa_clear_unused_options(&o);
            if (!ref_run(&p, &o, NULL)) { ref_free(&p); return; }
            memcpy(out, p.a.out.data, sizeof out);
            memcpy(lse, p.lse, sizeof lse);
            p.a.sinks = zeros;
            if (ref_run(&p, &o, NULL))
                for (int h = 0; h < 2; h++) {
                    const double keys = exp((double)lse[h]), share = keys / (keys + 1.0);
                    CHECK_MSG(fabs((double)p.lse[h] - log(keys + 1.0)) < 1e-6,
                              "%s, %d keys: lse %.9g, want %.9g", santa_method_name(o.method), (int)n,
                              (double)p.lse[h], log(keys + 1.0));
                    for (int c = 0; c < 8; c++)
                        CHECK_NEAR(ref_get(&p.a.out, 0, 0, h, c), share * (double)out[h * 8 + c], 2e-6,
                                   0.0);
                }
            p.a.seq_lens = &none;
            if (ref_run(&p, &o, NULL))
                for (int h = 0; h < 2; h++) {
                    CHECK(p.lse[h] == 0.0f);
                    for (int c = 0; c < 8; c++) CHECK(ref_get(&p.a.out, 0, 0, h, c) == 0.0);
                }
            ref_free(&p);
        }
}

/* A NaN in a V row with no mass is multiplied by nothing only if the row is masked; a masked
   row is not read. */
static void masked_rows_unread(void) {
    for (int method = 0; method < SANTA_METHOD_COUNT; method++) {
        ref_spec s = ref_spec_make(2, 1, 300, 8);
        s.window = 100;
        s.q_len  = 3;
        s.causal = 1;
        ref_problem p;
        ref_build(&p, &s);
        for (int64_t j = 0; j < 300 - 3 - 100; j++)          /* before the first row's window */
            for (int64_t c = 0; c < 8; c++) {
                ref_set(&p.a.k, 0, j, 0, c, (double)test_nan());
                ref_set(&p.a.v, 0, j, 0, c, (double)test_nan());
            }
        santa_options o = ref_options((santa_method)method, 16, 3);
        if (!ref_has_error((santa_method)method)) p.a.std_error = NULL;
        if (ref_run(&p, &o, NULL))
            for (int64_t i = 0; i < 3; i++)
                for (int64_t h = 0; h < 2; h++)
                    CHECK_MSG(!test_is_nan((float)ref_get(&p.a.out, 0, i, h, 0)), "method %s",
                              santa_method_name((santa_method)method));
        ref_free(&p);
    }
}

/* Feature-major K whose tokens go backwards: keys are side by side, but not as the fast path
   for columns wants them. */
static void feature_major_backwards(void) {
    enum { N = 150, D = 33 };
    ref_problem p;
    ref_spec s = ref_spec_make(3, 1, N, D);
    ref_build(&p, &s);
    float *copy = ref_floats(N * D), *back = ref_floats(N * D);
    const santa_tensor k = santa_keys_feature_major(&p.a.k, copy);
    for (int i = 0; i < N * D; i++) back[i] = copy[i / N * N + (N - 1 - i % N)];
    p.a.k = k;
    p.a.k.data = back + N - 1;
    p.a.k.stride[1] = -1;
    FOR_EACH_ISA (isa) {
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        o.isa = isa;
        if (ref_run(&p, &o, NULL)) compare(&p, "feature-major K, backwards", 2e-5);
    }
    free(copy);
    free(back);
    ref_free(&p);
}

/* K feature-major, by the library's own copy: same result within rounding, also in a group of
   which eight heads are worked on at a time. */
static void feature_major(void) {
    for (int type = 0; type < 3; type++) {
        ref_spec s = ref_spec_make(type == 2 ? 22 : 6, 2, 210, 33);
        s.batch  = 2;
        s.k_type = (santa_dtype)type;
        s.layout = type == 1 ? REF_PADDED : REF_NHD;
        ref_problem p;
        ref_build(&p, &s);
        void *copy = test_alloc((size_t)(2 * 210 * 2 * 33) * (type == SANTA_F32 ? 4u : 2u));
        p.a.k = santa_keys_feature_major(&p.a.k, copy);
        CHECK_INT(p.a.k.shape[0], 2);
        CHECK_INT(p.a.k.shape[1], 210);
        CHECK_INT(p.a.k.shape[2], 2);
        CHECK_INT(p.a.k.shape[3], 33);
        CHECK_INT(p.a.k.stride[1], 1);
        CHECK_INT(p.a.k.stride[3], 210);
        CHECK(p.a.k.dtype == (santa_dtype)type && p.a.k.data == copy);
        FOR_EACH_ISA (isa) {
            santa_options o = ref_options(SANTA_DENSE, 0, 0);
            o.isa = isa;
            if (ref_run(&p, &o, NULL)) compare(&p, "feature-major K", 2e-5);
        }
        free(copy);
        ref_free(&p);
    }
}

/* Attention over keys [0, cut) and [cut, n) merged is attention over all; with a sink on one
   side. */
static void merge_splits(void) {
    static const int64_t cuts[] = {0, 1, 64, 100, 199, 200};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        for (int sinks = 0; sinks < 2; sinks++) {
            ref_spec s = ref_spec_make(4, 2, 200, 16);
            s.gain  = 3.0;
            s.sinks = sinks;
            ref_problem p;
            ref_build(&p, &s);
            const santa_options o = ref_options(SANTA_DENSE, 0, 0);
            float   left[4 * 16], left_lse[4];
            int32_t len = (int32_t)cuts[i];
            p.a.seq_lens = &len;
            if (!ref_run(&p, &o, NULL)) { ref_free(&p); return; }
            memcpy(left, p.a.out.data, sizeof left);
            memcpy(left_lse, p.lse, sizeof left_lse);
            len = (int32_t)(200 - cuts[i]); /* a view of the rest; the sink was on the left */
            p.a.sinks = NULL;
            p.a.k.data = (char *)p.memory[1] + 4 * (len ? cuts[i] : 0) * p.a.k.stride[1];
            p.a.v.data = (char *)p.memory[2] + 4 * (len ? cuts[i] : 0) * p.a.v.stride[1];
            p.a.k.shape[1] = p.a.v.shape[1] = len ? len : 1;
            if (!ref_run(&p, &o, NULL)) { ref_free(&p); return; }
            CHECK_STATUS(santa_merge(4, 16, (float *)p.a.out.data, p.lse, left, left_lse), SANTA_OK);
            p.a.sinks = sinks ? p.sinks : NULL;
            compare(&p, "merge", 2e-5);
            ref_free(&p);
        }
}

/* The parts of a context that is cut in three, each told where it lies, merge to the whole:
   what a query row sees and ALiBi's distances are counted in the context, whatever the part. */
static void shards(void) {
    enum { LEN = 230, ROWS = 5 * 4 };
    /* the last is below q_len */
    static const int64_t windows[] = {0, 1, 70, 150}, cuts[] = {0, 100, 226, LEN};
    static const int32_t context = LEN;
    for (int turn = 0; turn < 2 * 4 * 4; turn++) {
        ref_spec s = ref_spec_make(4, 2, LEN, 16);
        s.q_len  = 5;
        s.causal = turn & 1;
        s.alibi  = turn >> 1 & 1;
        s.window = windows[turn / 4 % 4];
        ref_problem p;
        ref_build(&p, &s);
        const santa_options o = ref_options(SANTA_DENSE, 0, 0);
        if (s.window && turn % 3) p.a.first_tokens = turn % 3 == 1 ? 30 : 110;
        const santa_attention whole = p.a;
        float out[ROWS * 16] = {0.0f}, lse[ROWS];
        for (int i = 0; i < ROWS; i++) lse[i] = -INFINITY;
        for (int part = 0; part < 3; part++) {
            p.a.first_key = cuts[part];
            /* the last may leave it out */
            p.a.context_lens = part == 2 && turn >= 4 * 4 ? NULL : &context;
            p.a.k.shape[1] = p.a.v.shape[1] = cuts[part + 1] - cuts[part];
            p.a.k.data = (char *)whole.k.data + 4 * cuts[part] * whole.k.stride[1];
            p.a.v.data = (char *)whole.v.data + 4 * cuts[part] * whole.v.stride[1];
            if (!ref_run(&p, &o, NULL)) break;
            CHECK_STATUS(santa_merge(ROWS, 16, out, lse, (const float *)p.a.out.data, p.lse), SANTA_OK);
        }
        p.a = whole;
        if (ref_run(&p, &o, NULL))
            for (int i = 0; i < ROWS; i++) {
                CHECK_NEAR(lse[i], p.lse[i], 2e-5, 1e-6);
                for (int c = 0; c < 16; c++)
                    CHECK_NEAR(out[i * 16 + c], ref_get(&p.a.out, 0, i / 4, i % 4, c), 2e-5, 0.0);
            }
        ref_free(&p);
    }
}

/* Rows of one call share a pass over K; each must be what it is alone, to the bit (the random
   methods draw alike only for row 0). NaN in a V row that only later query rows see must not
   reach the earlier ones. */
static void rows_together(void) {
    for (int turn = 0; turn < 3 * SANTA_METHOD_COUNT; turn++) {
        const santa_method method = (santa_method)(turn % SANTA_METHOD_COUNT);
        const int random = (santa_method_traits(method) & (SANTA_DRAWS | SANTA_ADAPTS)) != 0;
        ref_spec s = ref_spec_make(turn < SANTA_METHOD_COUNT ? 6 : 2, 2,
                                   turn < 2 * SANTA_METHOD_COUNT ? 700 : 520, 16);
        s.q_len  = turn < SANTA_METHOD_COUNT ? 11 : 18;     /* of the latter 16 at a time */
        s.causal = 1;
        s.window = turn < 2 * SANTA_METHOD_COUNT ? 0 : 200;
        ref_problem p;
        ref_build(&p, &s);
        ref_set(&p.a.v, 0, s.len - 4, 1, 3, (double)test_nan());
        santa_options o = ref_options(method, 8, 3);
        o.offset = santa_offset(1, 1);
        if (method == SANTA_SYS) o.dense_below = 695;        /* some rows are dense, some not */
        if (method == SANTA_VATTENTION) o.vattention.sink_tokens = o.vattention.local_tokens = 16;
        p.a.std_error = NULL;
        const int64_t row = s.heads * 16;
        float one[6 * 16];
        const int ran = ref_run(&p, &o, NULL);
        for (int64_t i = 0; i < s.q_len && ran; i++) {
            const float *together = (const float *)p.a.out.data + i * row;
            int32_t len = (int32_t)(s.len - s.q_len + i + 1);
            santa_attention a = p.a;
            for (int64_t c = 0; c < row && i < s.q_len - 4; c++)
                CHECK_MSG(!test_is_nan(together[c]), "%s, turn %d: row %d has a later row's NaN",
                          santa_method_name(method), turn, (int)i);
            if (random && i > 0) continue;
            a.q.data = (char *)a.q.data + 4 * i * a.q.stride[1];
            a.q.shape[1] = 1;
            a.out = santa_view(one, SANTA_F32, 1, 1, s.heads, 16);
            a.seq_lens = &len;
            a.lse = NULL;
            const size_t bytes = santa_workspace_size(&a, &o);
            void *workspace = test_alloc(bytes);
            if (CHECK_STATUS(santa_decode(&a, &o, workspace, bytes, NULL), SANTA_OK))
                CHECK_MSG(!memcmp(one, together, (size_t)row * sizeof *one), "%s, turn %d: row %d differs",
                          santa_method_name(method), turn, (int)i);
            free(workspace);
        }
        ref_free(&p);
    }
}

/* Nor may NaN in a V row that a sliding window has passed reach the rows after, which share a
   pass with those that see it. */
static void nan_behind_the_window(void) {
    enum { ROWS = 12, LEN = 300, WINDOW = 100, LAST = 5 };           /* the last row that sees the NaN */
    ref_spec s = ref_spec_make(2, 2, LEN, 16);
    s.q_len  = ROWS;
    s.causal = 1;
    s.window = WINDOW;
    ref_problem p;
    ref_build(&p, &s);
    ref_set(&p.a.v, 0, LEN - ROWS + LAST - WINDOW + 1, 1, 3, (double)test_nan());
    FOR_EACH_ISA (isa) {
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        o.isa = isa;
        if (!ref_run(&p, &o, NULL)) break;
        for (int i = 0; i < ROWS; i++)
            for (int h = 0; h < 2; h++)
                for (int c = 0; c < 16; c++)
                    CHECK_MSG(test_is_nan((float)ref_get(&p.a.out, 0, i, h, c)) ==
                                  (i <= LAST && h == 1 && c == 3),
                              "row %d, head %d, column %d", i, h, c);
    }
    ref_free(&p);
}

static void merge_edges(void) {
    const float inf = INFINITY, nan = test_nan();
    float out[5 * 2] = {1, 2, 0, 0, 0, 0, 1, 2, 3, 4}, lse[5] = {0, -inf, -inf, nan, 1e4f};
    const float other[5 * 2] = {3, 6, 5, 7, 0, 0, 1, 1, 5, 8};
    const float other_lse[5] = {1.0986123f, 2, -inf, 1, 1e4f};                 /* log 3 */
    CHECK_STATUS(santa_merge(5, 2, out, lse, other, other_lse), SANTA_OK);
    CHECK_NEAR(out[0], 2.5, 1e-6, 0);                        /* 1/4 and 3/4 */
    CHECK_NEAR(out[1], 5.0, 1e-6, 0);
    CHECK_NEAR(lse[0], log(4.0), 1e-6, 0);
    CHECK(out[2] == 5.0f && out[3] == 7.0f && lse[1] == 2.0f);
    CHECK(out[4] == 0.0f && out[5] == 0.0f && lse[2] == -inf);
    CHECK(test_is_nan(out[6]) && test_is_nan(out[7]) && test_is_nan(lse[3]));
    CHECK(out[8] == 4.0f && out[9] == 6.0f);
    CHECK_NEAR(lse[4], 1e4 + log(2.0), 1e-3, 0);

    /* Masses that no exponent holds beside each other: the smaller adds nothing, on either
       side. */
    float       wide[2 * 2] = {1, 2, 1, 2}, wide_lse[2] = {-5000, 5000};
    const float far_off[2 * 2] = {3, 6, 3, 6}, far_lse[2] = {5000, -5000};
    CHECK_STATUS(santa_merge(2, 2, wide, wide_lse, far_off, far_lse), SANTA_OK);
    CHECK(wide[0] == 3.0f && wide[1] == 6.0f && wide_lse[0] == 5000.0f);
    CHECK(wide[2] == 1.0f && wide[3] == 2.0f && wide_lse[1] == 5000.0f);

    /* The empty side's out may hold anything, NaN too; the other order gives the same. */
    float   full[2] = {1, -1}, full_lse[1] = {0.5f};
    const float void_out[2] = {test_nan(), 3}, void_lse[1] = {-inf};
    CHECK_STATUS(santa_merge(1, 2, full, full_lse, void_out, void_lse), SANTA_OK);
    CHECK(full[0] == 1.0f && full[1] == -1.0f && full_lse[0] == 0.5f);
    float nothing[2] = {test_nan(), 3}, nothing_lse[1] = {-inf};
    const float some[2] = {1, -1}, some_lse[1] = {0.5f};
    CHECK_STATUS(santa_merge(1, 2, nothing, nothing_lse, some, some_lse), SANTA_OK);
    CHECK(nothing[0] == 1.0f && nothing[1] == -1.0f && nothing_lse[0] == 0.5f);
    float empty[2] = {test_nan(), 3}, empty_lse[1] = {-inf};
    CHECK_STATUS(santa_merge(1, 2, empty, empty_lse, void_out, void_lse), SANTA_OK);
    CHECK(empty[0] == 0.0f && empty[1] == 0.0f && empty_lse[0] == -inf);
    const float bad[2] = {1, 1}, bad_lse[1] = {nan};
    CHECK_STATUS(santa_merge(1, 2, nothing, nothing_lse, bad, bad_lse), SANTA_OK);
    CHECK(test_is_nan(nothing[0]) && test_is_nan(nothing_lse[0]));

    /* +inf on either side, beside -inf, a number or itself */
    const float lses[3] = {-inf, 1, inf};
    for (int i = 0; i < 9; i++) {
        if (i / 3 != 2 && i % 3 != 2) continue;
        float out1[2] = {1, 2}, lse1 = lses[i / 3];
        CHECK_STATUS(santa_merge(1, 2, out1, &lse1, some, &lses[i % 3]), SANTA_OK);
        CHECK(test_is_nan(out1[0]) && test_is_nan(out1[1]) && test_is_nan(lse1));
    }
}

/* A NaN lse on either side, of either sign, quiet or not, spoils its row and no other, whatever
   the other side's lse is. */
static void merge_nan(void) {
    static const uint32_t nans[] = {0x7fc00001u, 0xffc00000u, 0x7f800001u, 0xff812345u};
    const float other[] = {-INFINITY, 0.0f, -3.5f, 1e30f, -1e30f, INFINITY, test_nan()};
    enum { DV = 5 };
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 7; i++)
            for (int side = 0; side < 2; side++) {
                float x[3 * DV], y[3 * DV], x_lse[3] = {1.0f, 1.0f, 1.0f}, y_lse[3] = {1.0f, 1.0f, 1.0f};
                for (int c = 0; c < 3 * DV; c++) { x[c] = 2.0f; y[c] = 4.0f; }
                memcpy(side ? &y_lse[1] : &x_lse[1], &nans[n], sizeof(float));
                (side ? x_lse : y_lse)[1] = other[i];
                CHECK_STATUS(santa_merge(3, DV, x, x_lse, y, y_lse), SANTA_OK);
                for (int c = 0; c < DV; c++)
                    CHECK_MSG(test_is_nan(x[DV + c]) && x[c] == 3.0f && x[2 * DV + c] == 3.0f,
                              "NaN %08x on side %d, other lse %g: %g %g %g", (unsigned)nans[n], side,
                              (double)other[i], (double)x[c], (double)x[DV + c], (double)x[2 * DV + c]);
                CHECK(test_is_nan(x_lse[1]));
                CHECK_NEAR(x_lse[0], 1.0 + log(2.0), 1e-6, 0.0);
                CHECK_NEAR(x_lse[2], 1.0 + log(2.0), 1e-6, 0.0);
            }
}

/* V with the tokens of a feature side by side, as some engines keep it. */
static void feature_major_values(void) {
    static const santa_dtype types[] = {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3};
    for (int type = 0; type < 4; type++)
        for (int64_t len = 5; len < 400; len = 2 * len + 59)
            for (int kind = 0; kind < 3; kind++) {
                ref_spec s = ref_spec_make(kind == 1 ? 20 : 4, 2, len, 40);
                s.batch      = 2;
                s.ragged     = 1;
                s.q_len      = 1 + 2 * kind;
                s.causal     = kind > 0;
                s.window     = kind == 2 ? 70 : 0;
                s.v_type     = types[type];
                s.head_dim_v = kind == 1 ? 75 : 64;
                ref_problem p;
                ref_build(&p, &s);
                const int64_t elements = s.batch * s.len * s.kv_heads * s.head_dim_v;
                const santa_tensor rows = p.a.v;
                p.a.v.data      = test_alloc((size_t)elements * 4);
                p.a.v.stride[0] = s.len * s.kv_heads * s.head_dim_v;
                p.a.v.stride[1] = 1;
                p.a.v.stride[2] = s.len * s.head_dim_v;
                p.a.v.stride[3] = s.len;
                for (int64_t b = 0; b < s.batch; b++)
                    for (int64_t j = 0; j < s.len; j++)
                        for (int64_t h = 0; h < s.kv_heads; h++)
                            for (int64_t c = 0; c < s.head_dim_v; c++)  /* what is not valid is NaN */
                                ref_set(&p.a.v, b, j, h, c,
                                        j < ref_len(&p, b) ? ref_get(&rows, b, j, h, c) : (double)NAN);
                FOR_EACH_ISA (isa) {
                    santa_options o = ref_options(SANTA_DENSE, 0, 0);
                    char what[80];
                    o.isa = isa;
                    snprintf(what, sizeof what, "type %d, length %d, kind %d, %s", type, (int)len, kind,
                             santa_isa_name(isa));
                    if (ref_run(&p, &o, NULL)) compare(&p, what, 2e-5);
                }
                free(p.a.v.data);
                ref_free(&p);
            }
}

/* Left padding: never read, and the same rows drawn as from a cache without it. */
static void padded_left(void) {
    enum { LEN = 300, DIM = 24, ROW = 2 * DIM };
    int32_t start[2] = {0, 0};
    for (int method = 0; method < SANTA_METHOD_COUNT; method++)
        for (int turn = 0; turn < 6; turn++) {
            static const int32_t starts[] = {64, 128, 300, 1, 77, 299};
            ref_spec s = ref_spec_make(4, 2, LEN, DIM);
            s.batch  = 2;
            s.q_len  = turn == 4 ? 3 : 1;
            s.causal = turn == 4;
            s.window = turn == 5 ? 9 : 0;
            ref_problem p;
            ref_build(&p, &s);
            santa_options o = ref_options((santa_method)method, 24, 5);
            if (santa_method_traits((santa_method)method) & SANTA_BIASED) p.a.std_error = NULL;
            start[0] = starts[turn];
            for (int64_t j = 0; j < start[0]; j++)
                for (int64_t h = 0; h < 2; h++)
                    for (int64_t c = 0; c < DIM; c++) {
                        ref_set(&p.a.k, 0, j, h, c, (double)NAN);
                        ref_set(&p.a.v, 0, j, h, c, (double)NAN);
                    }
            p.a.kv_start = start;
            const char *name = santa_method_name((santa_method)method);
            if (!ref_run(&p, &o, NULL)) { ref_free(&p); return; }
            for (int64_t i = 0; i < s.batch * s.q_len * s.heads; i++)
                CHECK_MSG(!isnan(p.lse[i]), "%s, from %d on: row %d saw the padding", name, (int)start[0],
                          (int)i);
            for (int64_t c = 0; c < DIM; c++)
                CHECK_MSG(!isnan(ref_get(&p.a.out, 0, s.q_len - 1, 3, c)), "%s, from %d on", name,
                          (int)start[0]);
            if (method == SANTA_DENSE) compare(&p, "left padding", 2e-5);
            if (turn < 2 && method != SANTA_FLASH && method != SANTA_SAAP) {   /* these count from key 0 */
                float before[4 * DIM];
                santa_attention a = p.a;
                for (int64_t h = 0; h < 4; h++)
                    for (int64_t c = 0; c < DIM; c++)
                        before[h * DIM + c] = (float)ref_get(&a.out, 0, 0, h, c);
                const int64_t rest = LEN - start[0];
                a.kv_start = NULL;
                a.q.shape[0] = a.k.shape[0] = a.v.shape[0] = a.out.shape[0] = 1;
                a.k.shape[1] = a.v.shape[1] = rest;
                a.k.data = (float *)a.k.data + start[0] * ROW;
                a.v.data = (float *)a.v.data + start[0] * ROW;
                const size_t bytes = santa_workspace_size(&a, &o);
                void *work = test_alloc(bytes);
                CHECK_STATUS(santa_decode(&a, &o, work, bytes, NULL), SANTA_OK);
                free(work);
                for (int64_t h = 0; h < 4; h++)
                    for (int64_t c = 0; c < DIM; c++)
                        CHECK_MSG((float)ref_get(&a.out, 0, 0, h, c) == before[h * DIM + c],
                                  "%s, from %d on: head %d differs", name, (int)start[0], (int)h);
            }
            ref_free(&p);
        }
}

/* The bits do not depend on threads, which share the chunks of a row. */
static void same_on_threads(ref_problem *p, santa_options o, const char *what) {
    pf_bits one = pf_run(p, &o), many;
    o.num_threads  = 3;
    o.parallel_for = pf_shuffled;
    many = pf_run(p, &o);
    pf_same_all(&many, &one, what);
    free(one.number);
    free(many.number);
}

/* First tokens beside a window. What no row sees is NaN, and its pages are not there. Draws are
   so many that each method is near exact attention. */
static void first_tokens(void) {
    static const int64_t firsts[] = {1, 4, 64, 70, 130, 400}, windows[] = {1, 33, 150, 300},
                         rows[] = {1, 3, 45};
    static const santa_method methods[] = {SANTA_DENSE, SANTA_SYS,   SANTA_STRAT, SANTA_PROP,
                                           SANTA_IID,   SANTA_FLASH, SANTA_PPS,   SANTA_TOP_K,
                                           SANTA_TOP_P};
    for (int mix = 0; mix < 108; mix++) {
        const santa_method method = methods[mix % 3 ? 0 : mix / 3 % 9];
        const int64_t first = firsts[mix / 3 % 6], start = mix % 4 == 3 ? 21 : 0;
        ref_spec s = ref_spec_make(4, 2, 400, 16);
        int32_t  padding[1];
        ref_problem p;
        if (test_quick && mix % 5) continue;
        s.q_len     = rows[(mix / 3 + mix / 27) % 3];
        s.window    = windows[mix / 9 % 4];
        s.causal    = mix % 5 != 4;
        s.alibi     = mix % 2;
        s.sinks     = mix % 7 == 2;
        s.page_size = mix % 2 ? 16 : 0;
        ref_build(&p, &s);
        if (start) p.a.kv_start = padding;
        padding[0] = (int32_t)start;
        p.a.std_error = NULL;
        p.a.first_tokens = first;
        const int64_t gap_end = 400 - s.q_len - s.window + 1;
        for (int64_t j = 0; j < gap_end; j++)
            for (int64_t c = 0; c < 32 && (j < start || j >= start + first); c++)
                p.k[j * 32 + c] = p.v[j * 32 + c] = (double)test_nan();
        ref_write(&p);
        for (int64_t page = 0; s.page_size && page < gap_end / 16; page++)
            if (page * 16 >= start + first || page * 16 + 16 <= start)
                p.block_table[page] = page % 2 ? INT32_MAX : -7;
        santa_options o = ref_options(method, 1 << 15, 5);
        if (method == SANTA_TOP_P) o.top_p = 1.0;
        santa_stats stats;
        if (!ref_run(&p, &o, &stats)
            || !pf_compare(&p, NULL, 1, santa_method_name(method), method == SANTA_DENSE ? 2e-5
                                                                   : method == SANTA_IID ? 0.08 : 0.01)) {
            printf("first %d window %d q_len %d start %d\n", (int)first, (int)s.window, (int)s.q_len,
                   (int)start);
            ref_free(&p);
            return;
        }
        int64_t keys = 0;
        for (int64_t i = 0; i < s.q_len; i++) {
            const pf_range r = pf_range_of(&p, 0, i);
            keys += 2 * (r.end - r.begin - (r.gap_end - r.gap));
        }
        CHECK_INT(stats.keys, keys);
        CHECK_INT(stats.k_rows_read, keys);
        if (method == SANTA_DENSE) CHECK_INT(stats.v_rows_read, keys);
        if (method == SANTA_DENSE) same_on_threads(&p, o, "first tokens, threads");
        o.num_threads = 1;
        const size_t bytes = santa_workspace_size(&p.a, &o);
        void  *work   = test_alloc(bytes);
        float *scores = ref_floats(2 * 400);
        double *want  = ref_doubles(400);
        CHECK_STATUS(santa_scores(&p.a, &o, 0, s.q_len - 1, 1, scores, 400, work, bytes), SANTA_OK);
        for (int h = 0; h < 2; h++) {
            const pf_range r = pf_scores(&p, 0, s.q_len - 1, 2 + h, want);
            for (int64_t j = 0; j < 400; j++) {
                const int seen = j >= r.begin && j < r.end && (j < r.gap || j >= r.gap_end);
                CHECK_MSG(seen ? fabs((double)scores[h * 400 + j] - want[j]) < 1e-4
                               : (double)scores[h * 400 + j] == -REF_INF, "score of key %d", (int)j);
            }
        }
        free(work); free(scores); free(want);
        ref_free(&p);
    }
}

/* The last chunk of keys that begin within a chunk: threads have room for its sums. */
static void padded_chunks(void) {
    enum { LEN = 16448, DIM = 16 };
    int32_t start[1] = {64};
    ref_spec s = ref_spec_make(1, 1, LEN, DIM);
    ref_problem p;
    ref_build(&p, &s);
    p.a.kv_start = start;
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    same_on_threads(&p, o, "left padding, chunks");
    ref_free(&p);
}

const test_case suite_dense[] = {
    {"types of q, k, v, out: all 81", types},
    {"head_dim, head_dim_v", head_dims},
    {"group sizes", groups},
    {"lengths, ragged batch", lengths},
    {"layouts, page sizes", layouts_and_pages},
    {"scale, soft cap, window, sinks, ALiBi in all combinations", extras},
    {"window and causal edges", mask_edges},
    {"scores up to 2^100", large_scores},
    {"scores from 0 to -200", wide_scores},
    {"scores far below zero, every method", low_scores},
    {"V of every size, every method", value_ranges},
    {"weights of e^-20", faint_weights},
    {"views with stride 0", strided_zero},
    {"a NaN or +inf score spoils its row and no other", broken_scores},
    {"no key: zero and -inf, every method", no_keys},
    {"a sink of logit 0, every method", zero_sinks},
    {"rows outside the window are not read, every method", masked_rows_unread},
    {"feature-major K", feature_major},
    {"feature-major K backwards", feature_major_backwards},
    {"feature-major V", feature_major_values},
    {"left padding, every method", padded_left},
    {"left padding, chunks of threads", padded_chunks},
    {"first tokens beside a window", first_tokens},
    {"merge of a split context", merge_splits},
    {"merge: empty sides, NaN", merge_edges},
    {"parts of a longer context", shards},
    {"query rows that share a pass", rows_together},
    {"NaN behind the window of rows that share a pass", nan_behind_the_window},
    {"merge: a NaN lse beside any other", merge_nan},
    {0, 0},
};
