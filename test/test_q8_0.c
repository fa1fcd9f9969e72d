/* q8_0: blocks of an f16 scale and 32 int8. The conversion and its error; everything that reads
   K or V gives the bits that the same numbers give as f32; what q8_0 cannot do is refused (and
   the refusals' statuses are in test_errors.c). */
#include "reference.h"

enum { BLOCK = 32, BYTES = 34 };

static double scale_of(const unsigned char *block) { return ref_decode16(SANTA_F16, ref_half(block)); }

/* Off by half a scale where the int8 reaches, by what is beyond 127 scales where the scale was
   rounded down. */
static void round_trip(void) {
    test_rng r = test_rng_make(5);
    for (int turn = 0; turn < (test_quick ? 300 : 20000); turn++) {
        float f[3 * BLOCK], back[3 * BLOCK];
        unsigned char bytes[3 * BYTES + 2];
        const int exponent = (int)test_below(&r, 40) - 25;
        for (int i = 0; i < 3 * BLOCK; i++) f[i] = (float)ldexp(test_normal(&r), exponent);
        memset(bytes, 0xa5, sizeof bytes);
        santa_f32_to_q8_0(f, 3 * BLOCK, bytes + 1);                   /* at an odd address */
        santa_q8_0_to_f32(bytes + 1, 3 * BLOCK, back);
        CHECK(bytes[0] == 0xa5 && bytes[3 * BYTES + 1] == 0xa5);
        for (int b = 0; b < 3; b++) {
            const double scale = scale_of(bytes + 1 + b * BYTES);
            double top = 0.0;
            for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++)
                if (fabs((double)f[i]) > top) top = fabs((double)f[i]);
            CHECK_MSG(fabs(scale - top / 127.0) <= top / 127.0 / 2048.0 + ldexp(1.0, -25),
                      "scale %g of largest %g", scale, top);
            for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
                const double error = fabs((double)back[i] - (double)f[i]);
                const double bound = 0.5 * scale + fmax(fabs((double)f[i]) - 127.5 * scale, 0.0);
                if (!CHECK_MSG(error <= bound * (1.0 + 1e-6), "%.9g became %.9g, scale %g", (double)f[i],
                               (double)back[i], scale))
                    return;
            }
        }
    }
}

/* Against an encoder in double; multiples of a scale that f16 has survive unchanged, again and
   again. */
static void exact_numbers(void) {
    test_rng r = test_rng_make(6);
    for (int turn = 0; turn < (test_quick ? 100 : 2000); turn++) {
        float  f[BLOCK], back[BLOCK];
        double want[BLOCK];
        unsigned char bytes[BYTES], again[BYTES], mine[BYTES];
        /* subnormal ones, too */
        const double scale = ref_decode16(SANTA_F16, (uint16_t)test_below(&r, 0x5800));
        const int64_t top = test_below(&r, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            want[i] = scale * (double)(i == top ? 127 - 254 * (turn & 1) : test_below(&r, 255) - 127);
        for (int i = 0; i < BLOCK; i++) f[i] = (float)want[i];
        santa_f32_to_q8_0(f, BLOCK, bytes);
        santa_q8_0_to_f32(bytes, BLOCK, back);
        santa_f32_to_q8_0(back, BLOCK, again);
        ref_store_row(SANTA_Q8_0, mine, 0, BLOCK, want);
        for (int i = 0; i < BLOCK; i++)
            CHECK_MSG(back[i] == f[i], "%.9g became %.9g", (double)f[i], (double)back[i]);
        CHECK(!memcmp(bytes, again, BYTES) && !memcmp(bytes, mine, BYTES));
    }
}

static void special_blocks(void) {
    const uint32_t bits[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7f800000u, 0xff800000u};
    float f[2 * BLOCK], back[2 * BLOCK];
    unsigned char bytes[2 * BYTES];
    for (int bad = 0; bad < 5; bad++)
        for (int at = 0; at < BLOCK; at++) {
            for (int i = 0; i < 2 * BLOCK; i++) f[i] = (float)(i - 40);
            memcpy(&f[at], &bits[bad], sizeof f[0]);
            santa_f32_to_q8_0(f, 2 * BLOCK, bytes);
            santa_q8_0_to_f32(bytes, 2 * BLOCK, back);
            for (int i = 0; i < 2 * BLOCK; i++) CHECK(test_is_nan(back[i]) == (i < BLOCK));
        }
    memset(f, 0, sizeof f);
    f[3] = -0.0f;
    f[BLOCK + 3] = 1e-9f;                                             /* its scale rounds to 0 */
    santa_f32_to_q8_0(f, 2 * BLOCK, bytes);
    santa_q8_0_to_f32(bytes, 2 * BLOCK, back);
    for (int i = 0; i < 2 * BLOCK; i++) CHECK(back[i] == 0.0f);
    for (int i = 0; i < 2 * BYTES; i++) CHECK_INT(bytes[i], 0);
    for (int i = 0; i < BLOCK; i++) f[i] = 127.0f * 65504.0f;         /* the largest that fits */
    for (int i = 0; i < BLOCK; i++) f[BLOCK + i] = 127.0f * 65536.0f; /* and one that does not */
    santa_f32_to_q8_0(f, 2 * BLOCK, bytes);
    santa_q8_0_to_f32(bytes, 2 * BLOCK, back);
    for (int i = 0; i < BLOCK; i++) CHECK(back[i] == f[i] && test_is_nan(back[BLOCK + i]));
    memset(bytes, 0xa5, sizeof bytes);
    santa_f32_to_q8_0(f, 0, bytes);
    CHECK(bytes[0] == 0xa5);
}

/* ------------------------------------------------------------ reading it */

enum { N = 210, HEADS = 6, KV = 2, REQUESTS = 2 };

static ref_spec spec_of(int turn) {
    ref_spec s = ref_spec_make(HEADS, KV, N, turn % 2 ? 96 : 32);
    s.batch      = REQUESTS;
    s.head_dim_v = turn % 3 ? 64 : 128;
    s.ragged     = turn % 4 == 3;
    s.page_size  = turn % 5 == 4 ? 16 : 0;
    s.layout     = (ref_layout)(turn % REF_STRIDED);                  /* NHD, HND, padded, backwards */
    s.q_len      = 1 + turn % 3 / 2;
    s.causal     = s.q_len > 1;
    s.sinks      = turn % 7 == 6;
    s.gain       = 2.0;
    return s;
}

/* The problem with K and V as q8_0, or the same numbers as f32. */
static void build(ref_problem *p, ref_spec s, int as_q8_0) {
    ref_problem numbers;
    s.k_type = s.v_type = SANTA_Q8_0;
    ref_build(as_q8_0 ? p : &numbers, &s);
    if (as_q8_0) return;
    s.k_type = s.v_type = SANTA_F32;
    ref_build(p, &s);
    memcpy(p->k, numbers.k, (size_t)(s.batch * s.len * s.kv_heads * s.head_dim) * sizeof *p->k);
    memcpy(p->v, numbers.v, (size_t)(s.batch * s.len * s.kv_heads * s.head_dim_v) * sizeof *p->v);
    ref_write(p);
    ref_assign(p);
    ref_free(&numbers);
}

static int same_results(const ref_problem *a, const ref_problem *b) {
    const ref_spec *s = &a->spec;
    const int64_t rows = s->batch * s->q_len * s->heads;
    int same = !memcmp(a->lse, b->lse, (size_t)rows * sizeof *a->lse);
    if (a->a.std_error)
        same = same && !memcmp(a->std_error, b->std_error, (size_t)rows * sizeof *a->std_error);
    for (int64_t r = 0; r < rows && same; r++)
        for (int64_t c = 0; c < s->head_dim_v; c++) {
            const int64_t i0 = r / (s->q_len * s->heads), i1 = r / s->heads % s->q_len, i2 = r % s->heads;
            same = same && ref_get(&a->a.out, i0, i1, i2, c) == ref_get(&b->a.out, i0, i1, i2, c);
        }
    return same;
}

/* An int8 times an f16 is exact in f32, so the bits are those of the numbers: every method,
   layout and kind of scores. */
static void is_its_numbers(void) {
    for (int turn = 0; turn < (test_quick ? 7 : 24); turn++) {
        ref_problem p[2];
        for (int e = 0; e < 2; e++) {
            build(&p[e], spec_of(turn), e);
            p[e].a.k_scale = turn % 2 ? 0.7f : 0.0f;
            p[e].a.v_scale = turn % 2 ? 3.0f : 0.0f;
        }
        for (int m = 0; m < SANTA_METHOD_COUNT; m++)
            FOR_EACH_ISA (isa) {
                santa_options o = ref_options((santa_method)m, 30, 3);
                santa_stats stats[2];
                o.isa    = isa;
                if (ref_has_scores(o.method)) o.scores = (santa_scores_method)((turn + m) % 5);
                o.vattention.sink_tokens = o.vattention.local_tokens = 10;
                o.vattention.guarantee   = (santa_guarantee)(turn % 2);
                santa_clear_unused_options(&o);
                for (int e = 0; e < 2; e++) {
                    p[e].a.std_error = ref_has_error(o.method) ? p[e].std_error : NULL;
                    if (!ref_run(&p[e], &o, &stats[e])) return;
                }
                CHECK_MSG(same_results(&p[0], &p[1]) && !memcmp(&stats[0], &stats[1], sizeof stats[0]),
                          "%s, %s, scores %d, turn %d", santa_isa_name(isa), santa_method_name(o.method),
                          (int)o.scores, turn);
            }
        ref_free(&p[0]);
        ref_free(&p[1]);
    }
}

/* K and V need not be of the same type. */
static void mixed_types(void) {
    for (int other = SANTA_F32; other <= SANTA_Q8_0; other++)
        for (int side = 0; side < 2; side++) {
            ref_spec s = ref_spec_make(HEADS, KV, N, 64);
            double want[64];
            ref_problem p;
            s.k_type = side ? SANTA_Q8_0 : (santa_dtype)other;
            s.v_type = side ? (santa_dtype)other : SANTA_Q8_0;
            ref_build(&p, &s);
            FOR_EACH_ISA (isa) {
                santa_options o = ref_options(SANTA_DENSE, 0, 0);
                o.isa = isa;
                if (!ref_run(&p, &o, NULL)) break;
                for (int64_t h = 0; h < HEADS; h++) {
                    ref_dense(&p, 0, 0, h, want, NULL);
                    check_array_near("mixed types", (const float *)p.a.out.data + h * 64, want, 64, 2e-5,
                                     1e-5);
                }
            }
            ref_free(&p);
        }
}

static void gather(void) {
    for (int turn = 0; turn < 20; turn++) {
        const ref_spec s = spec_of(turn);
        ref_problem p;
        int32_t index[100];
        float   weight[100], got[128];
        build(&p, s, 1);
        const int64_t len = ref_len(&p, 0);
        for (int i = 0; i < 100; i++) {
            index[i]  = (int32_t)(i * 2 % len);
            weight[i] = 0.01f * (float)(i % 9);
        }
        for (int64_t h = 0; h < KV; h++) {
            double want[128] = {0.0};
            for (int i = 0; i < 100; i++)
                for (int64_t c = 0; c < s.head_dim_v; c++)
                    want[c] += (double)weight[i] * p.v[((int64_t)index[i] * KV + h) * s.head_dim_v + c];
            if (CHECK_STATUS(santa_gather(&p.a, 0, h, index, weight, 100, got), SANTA_OK))
                check_array_near("gather", got, want, s.head_dim_v, 1e-5, 1e-5);
        }
        ref_free(&p);
    }
}

/* Blocks cannot be cut into features: the view is empty, nothing is written, and a call on it
   is refused. */
static void not_feature_major(void) {
    ref_problem p;
    ref_spec s = ref_spec_make(HEADS, KV, N, 64);
    build(&p, s, 1);
    const unsigned char none[sizeof(santa_tensor)] = {0};
    unsigned char copy[16];
    memset(copy, 0xa5, sizeof copy);
    p.a.k = santa_keys_feature_major(&p.a.k, copy);
    CHECK(!memcmp(&p.a.k, none, sizeof none));
    CHECK(copy[0] == 0xa5 && copy[15] == 0xa5);
    const santa_options o = ref_options(SANTA_DENSE, 0, 0);
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_SHAPE);
    ref_free(&p);
}

/* ------------------------------------------------------------ 8-bit queries */

/* Scores of one problem with SANTA_SCORES_Q8, all heads [HEADS, len], and the output of
   dense. */
static int scores_q8(ref_problem *p, santa_isa isa, santa_scores_method method, float *scores) {
    const ref_spec *s = &p->spec;
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    o.isa    = isa;
    o.scores = method;
    const size_t bytes = santa_workspace_size(&p->a, &o);
    void *workspace = test_alloc(bytes);
    int good = 1;
    for (int64_t kv = 0; kv < s->kv_heads && good; kv++)
        good = CHECK_STATUS(santa_scores(&p->a, &o, 0, 0, kv, scores + kv * s->heads / s->kv_heads * s->len,
                                         s->len, workspace, bytes),
                            SANTA_OK);
    free(workspace);
    return good && ref_run(p, &o, NULL);
}

/* Queries on the grid, which nothing rounds: the scores are the exact ones, and so is what
   follows. Some with a NaN, an infinity, or nothing but zeros in a block. Groups, dims with an
   odd number of blocks, keys that fill no tile, K at odd addresses. */
static void query_on_grid(void) {
    static const int64_t dims[] = {32, 64, 96, 128, 160}, lens[] = {1, 3, 64, 65, 200};
    for (int turn = 0; turn < (test_quick ? 40 : 225); turn++) {
        const int64_t group = 1 + turn % 9, kv = 1 + turn % 2, d = dims[turn % 5], n = lens[turn / 5 % 5];
        const int special = turn % 4; /* 1: zeros, 2: NaN, 3: infinity in the last head */
        test_rng r = test_rng_make((uint64_t)turn);
        ref_spec s = ref_spec_make(group * kv, kv, n, d);
        ref_problem p;
        s.k_type = SANTA_Q8_0;
        s.layout = turn % 2 ? REF_HND : REF_NHD;
        ref_build(&p, &s);
        for (int64_t i = 0; i < s.heads * d; i++)
            p.q[i] = ldexp((double)(i % 32 == 5 ? 127 - 254 * (turn & 1) : test_below(&r, 255) - 127),
                           (int)(i / 32 % 9) - 9);
        if (special) for (int i = 0; i < 32; i++) p.q[s.heads * d - 32 + i] = 0.0;
        if (special > 1) p.q[s.heads * d - 7] = special == 2 ? (double)NAN : (double)INFINITY;
        ref_write(&p);
        const size_t bytes = (size_t)(n * kv * d / BLOCK * BYTES);
        char *memory = (char *)test_alloc(bytes + 3);                 /* ends where K does */
        p.a.k.data = memcpy(memory + 3, p.a.k.data, bytes);
        float  *scores = ref_floats(s.heads * n);
        double *want = ref_doubles(n > d ? n : d);
        FOR_EACH_ISA (isa) {
            if (!scores_q8(&p, isa, SANTA_SCORES_Q8, scores)) break;
            for (int64_t h = 0; h < s.heads; h++) {
                const float *out = (const float *)p.a.out.data + h * d;
                if (special > 1 && h == s.heads - 1) {
                    CHECK(test_is_nan(p.lse[h]) && test_is_nan(out[0]) && test_is_nan(out[d - 1]));
                    for (int64_t j = 0; j < n; j++) CHECK(test_is_nan(scores[h * n + j]));
                    continue;
                }
                (void)ref_scores(&p, 0, 0, h, want);
                check_array_near(santa_isa_name(isa), scores + h * n, want, n, 2e-5, 2e-6);
                ref_dense(&p, 0, 0, h, want, NULL);
                check_array_near(santa_isa_name(isa), out, want, d, 4e-5, 2e-5);
            }
        }
        free(scores);
        free(want);
        free(memory);
        ref_free(&p);
    }
}

/* Gaussian queries: never off by more than half a step of each feature, on average by what
   rounding to a grid gives, step^2 / 12 a feature; the same on every instruction set; exact
   scores are not off like that. */
static void query_is_rounded(void) {
    enum { DIM = 96, KEYS = 150 };
    double squares = 0.0, expected = 0.0, exact_squares = 0.0;
    for (int turn = 0; turn < (test_quick ? 4 : 20); turn++) {
        ref_spec s = ref_spec_make(HEADS, KV, KEYS, DIM);
        ref_problem p;
        static float scalar[HEADS * KEYS], scores[HEADS * KEYS], exact[HEADS * KEYS];
        double want[KEYS];
        s.k_type = SANTA_Q8_0;
        s.stream = (uint64_t)turn;
        ref_build(&p, &s);
        if (!scores_q8(&p, SANTA_ISA_SCALAR, SANTA_SCORES_Q8, scalar)) return;
        if (!scores_q8(&p, SANTA_ISA_SCALAR, SANTA_SCORES_EXACT, exact)) return;
        FOR_EACH_ISA (isa) {
            if (!scores_q8(&p, isa, SANTA_SCORES_Q8, scores)) return;
            for (int i = 0; i < HEADS * KEYS; i++)
                CHECK_NEAR((double)scores[i], (double)scalar[i], 1e-5, 1e-5);
        }
        for (int h = 0; h < HEADS; h++) {
            (void)ref_scores(&p, 0, 0, h, want);
            for (int j = 0; j < KEYS; j++) {
                const double off = (double)scalar[h * KEYS + j] - want[j],
                             other = (double)exact[h * KEYS + j] - want[j];
                double bound = 1e-5, variance = 0.0;
                for (int c = 0; c < DIM; c++) {
                    double top = 0.0;
                    for (int i = c / 32 * 32; i < c / 32 * 32 + 32; i++)
                        top = fmax(top, fabs(p.q[h * DIM + i]));
                    const double step = top / 127.0 / sqrt((double)DIM),
                                 k = p.k[(j * KV + h / (HEADS / KV)) * DIM + c];
                    bound += 0.5 * step * fabs(k);
                    variance += step * step / 12.0 * k * k;
                }
                CHECK_MSG(fabs(off) <= bound, "head %d, key %d: off by %g, bound %g", h, j, off, bound);
                squares += off * off;
                exact_squares += other * other;
                expected += variance;
            }
        }
        ref_free(&p);
    }
    CHECK_MSG(squares > 0.9 * expected && squares < 1.1 * expected,
              "mean square error %g times what rounding gives", squares / expected);
    CHECK_MSG(exact_squares < 1e-4 * expected, "exact scores: %g times what rounding gives",
              exact_squares / expected);
}

const test_case suite_q8_0[] = {
    {"from f32 and back, within half a scale", round_trip},
    {"numbers that it holds exactly", exact_numbers},
    {"NaN, infinity, zero, very small, very large", special_blocks},
    {"is its numbers: every method, score and layout", is_its_numbers},
    {"beside another type", mixed_types},
    {"gather", gather},
    {"not feature-major", not_feature_major},
    {"8-bit queries on the grid: exact scores; NaN, infinity, zeros", query_on_grid},
    {"8-bit queries: off as rounding is", query_is_rounded},
    {0, 0},
};
