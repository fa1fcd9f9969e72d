/* Variances, distinct rows, effective keys and error measures against brute force in float64;
   the benchmarks' ratios. */
#include "reference.h"
#include "../bench/gain.h"

enum { UNIFORM, SOFTMAX, PEAKED, SPARSE, ONE_HOT, DYADIC, FAMILIES };

/* Probabilities as the float softmax would give them, and the exact values of those floats made
   to sum to 1. */
static void make_probabilities(int family, int64_t n, uint64_t stream, float *p, double *exact) {
    test_rng r = test_rng_make(stream * 17 + (uint64_t)family);
    double sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        const double x = test_normal(&r);
        switch (family) {
            case UNIFORM: exact[j] = 1.0; break;
            case SOFTMAX: exact[j] = exp(x); break;
            case PEAKED:  exact[j] = exp(5.0 * x); break;
            case SPARSE:  exact[j] = test_uniform(&r) < 0.7 && j ? 0.0 : exp(x); break;
            case ONE_HOT: exact[j] = j == n / 2 ? 1.0 : 0.0; break;
            default:      exact[j] = ldexp(1.0, -(int)j - (j < n - 1)); break; /* S p_j whole for many */
        }
        sum += exact[j];
    }
    for (int64_t j = 0; j < n; j++) p[j] = (float)(exact[j] / sum);
    sum = 0.0;
    for (int64_t j = 0; j < n; j++) sum += exact[j] = (double)p[j];
    for (int64_t j = 0; j < n; j++) exact[j] /= sum;
}

static const int64_t lens[]    = {1, 2, 3, 17, 64, 100};
static const int64_t budgets[] = {1, 2, 3, 16, 64, 300};

static void variances(void) {
    for (int family = 0; family < FAMILIES; family++)
        for (int l = 0; l < 6; l++)
            for (int64_t dv = 1; dv <= 9; dv += 4) {
                const int64_t n = lens[l], stride = dv + (dv == 5 ? 3 : 0);
                if (family == DYADIC && n > 64) continue;
                float  *p = ref_floats(n), *v = ref_floats(n * stride);
                double *exact = ref_doubles(n), *wide = ref_doubles(n * dv);
                test_rng r = test_rng_make(5);
                make_probabilities(family, n, (uint64_t)l, p, exact);
                for (int64_t i = 0; i < n * stride; i++) v[i] = test_nan();      /* the gaps stay so */
                for (int64_t j = 0; j < n; j++)
                    for (int64_t c = 0; c < dv; c++) {
                        v[j * stride + c] = (float)(test_normal(&r) + 0.3);
                        wide[j * dv + c]  = (double)v[j * stride + c];
                    }
                const size_t bytes = santa_variance_workspace_size(n, dv);
                void *workspace = test_alloc(bytes);
                for (int b = 0; b < 6; b++) {
                    double iid = -1.0, strat = -1.0, sys = -1.0;
                    const int64_t samples = budgets[b];
                    memset(workspace, 0xa5, bytes);
                    CHECK_STATUS(santa_variance_iid(p, n, v, stride, dv, samples, &iid, workspace, bytes),
                                 SANTA_OK);
                    CHECK_STATUS(santa_variance_strat(p, n, v, stride, dv, samples, &strat, workspace,
                                                      bytes),
                                 SANTA_OK);
                    CHECK_STATUS(santa_variance_sys(p, n, v, stride, dv, samples, &sys, workspace, bytes),
                                 SANTA_OK);
                    const double tolerance = 3e-6 * ref_variance_iid(exact, n, wide, dv, 1) + 1e-12;
                    const int good =
                        CHECK_NEAR(iid, ref_variance_iid(exact, n, wide, dv, samples),
                                   tolerance / (double)samples, 1e-6) &
                        CHECK_NEAR(strat, ref_variance_strat(exact, n, wide, dv, samples),
                                   tolerance / (double)samples, 1e-6) &
                        CHECK_NEAR(sys, ref_variance_sys(exact, n, wide, dv, samples), tolerance, 1e-6) &
                        CHECK(iid >= 0.0 && strat >= 0.0 && sys >= 0.0);
                    if (samples == 1) {                      /* one draw is one draw */
                        CHECK_NEAR(strat, iid, tolerance, 0.0);
                        CHECK_NEAR(sys, iid, tolerance, 0.0);
                    }
                    CHECK_MSG(good, "family %d, n = %d, dv = %d, S = %d", family, (int)n, (int)dv,
                              (int)samples);
                }
                free(p); free(v); free(exact); free(wide); free(workspace);
            }
}

/* strat <= iid for every instance. sys has no such theorem: alternating V is S times worse, and
   it says so. */
static void orders(void) {
    enum { N = 200, DV = 3 };
    float  p[N], v[N * DV];
    double exact[N];
    const size_t bytes = santa_variance_workspace_size(N, DV);
    void *workspace = test_alloc(bytes);
    test_rng r = test_rng_make(12);
    int sys_worse = 0;
    for (int round = 0; round < (test_quick ? 40 : 400); round++) {
        const int64_t samples = 1 + test_below(&r, 200);
        make_probabilities(round % (ONE_HOT + 1), N, (uint64_t)round, p, exact);
        for (int i = 0; i < N * DV; i++)
            v[i] = (float)test_normal(&r) + (round % 2 ? (float)(i / DV % 2) : 0.0f);
        double iid, strat, sys;
        CHECK_STATUS(santa_variance_iid(p, N, v, DV, DV, samples, &iid, workspace, bytes), SANTA_OK);
        CHECK_STATUS(santa_variance_strat(p, N, v, DV, DV, samples, &strat, workspace, bytes), SANTA_OK);
        CHECK_STATUS(santa_variance_sys(p, N, v, DV, DV, samples, &sys, workspace, bytes), SANTA_OK);
        CHECK_MSG(strat <= iid * (1.0 + 1e-6) + 1e-12, "S = %d: strat %.9g above iid %.9g", (int)samples,
                  strat, iid);
        sys_worse += sys > iid * 1.01;
    }
    for (int64_t samples = 4; samples <= 100; samples *= 5) {
        for (int64_t j = 0; j < 2 * samples; j++) {
            p[j] = 0.5f / (float)samples;
            v[j] = j % 2 ? 1.0f : -1.0f;
        }
        double iid, strat, sys;
        CHECK_STATUS(santa_variance_iid(p, 2 * samples, v, 1, 1, samples, &iid, workspace, bytes),
                     SANTA_OK);
        CHECK_STATUS(santa_variance_strat(p, 2 * samples, v, 1, 1, samples, &strat, workspace, bytes),
                     SANTA_OK);
        CHECK_STATUS(santa_variance_sys(p, 2 * samples, v, 1, 1, samples, &sys, workspace, bytes),
                     SANTA_OK);
        CHECK_NEAR(iid, 1.0 / (double)samples, 0.0, 1e-5);
        CHECK_NEAR(strat, 1.0 / (double)samples, 0.0, 1e-4);
        CHECK_NEAR(sys, 1.0, 0.0, 1e-4);
    }
    CHECK_MSG(sys_worse < (test_quick ? 20 : 200), "sys worse than iid in %d cases", sys_worse);
    free(workspace);
}

/* The functions against the samplers: mean squared error over seeds. */
static void against_samplers(void) {
    enum { N = 250, DV = 4, S = 24 };
    const int64_t draws = test_quick ? 1000 : 10000;
    static const santa_method methods[] = {SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_PROP};
    float  scores[N], p[N], v[N * DV];
    double wide[N], wide_v[N * DV], exact[DV] = {0, 0, 0, 0}, out[DV], rows, variance;
    const size_t bytes = santa_variance_workspace_size(N, DV);
    void *workspace = test_alloc(bytes);
    test_rng r = test_rng_make(3);
    for (int j = 0; j < N; j++) wide[j] = (double)(scores[j] = (float)(1.5 * test_normal(&r)));
    ref_softmax(wide, N, -REF_INF, wide);
    for (int j = 0; j < N * DV; j++) wide_v[j] = (double)(v[j] = (float)test_normal(&r));
    for (int j = 0; j < N; j++) {
        p[j] = (float)wide[j];
        for (int c = 0; c < DV; c++) exact[c] += wide[j] * wide_v[j * DV + c];
    }
    for (int m = 0; m < 4; m++) {
        double error_sum = 0.0, error_squares = 0.0, row_sum = 0.0, row_squares = 0.0;
        santa_options o = ref_options(methods[m], S, 31);
        if (m == 3) o.tile_size = 64;
        for (int64_t i = 0; i < draws; i++) {
            ref_drawn d = ref_sample(scores, N, &o, ref_stream((uint64_t)i, 0, 0));
            ref_drawn_sum(&d, wide_v, DV, out);
            const double error2 = ref_distance2(out, exact, DV);
            error_sum += error2;
            error_squares += error2 * error2;
            row_sum += (double)d.d.rows;
            row_squares += (double)d.d.rows * (double)d.d.rows;
            ref_drawn_free(&d);
        }
        const santa_status s = m == 0 ? santa_variance_iid(p, N, v, DV, DV, S, &variance, workspace, bytes)
                               : m == 1
                                   ? santa_variance_strat(p, N, v, DV, DV, S, &variance, workspace, bytes)
                                   : santa_variance_sys(p, N, v, DV, DV, S, &variance, workspace, bytes);
        CHECK_STATUS(s, SANTA_OK);
        CHECK_MEAN_Z("mean squared error", error_sum, error_squares, draws, variance, 5.0);
        CHECK_STATUS(santa_expected_distinct(methods[m], p, N, S, &rows), SANTA_OK);
        CHECK_MEAN_Z("distinct rows", row_sum, row_squares, draws, rows, 5.0);
    }
    free(workspace);
}

static void distinct(void) {
    for (int family = 0; family < FAMILIES; family++)
        for (int l = 0; l < 6; l++)
            for (int b = 0; b < 6; b++) {
                const int64_t n = lens[l], samples = budgets[b];
                if (family == DYADIC && n > 64) continue;
                float  *p = ref_floats(n);
                double *exact = ref_doubles(n), iid = 0.0, strat = 0.0, sys = 0.0, end = 0.0, got[4];
                make_probabilities(family, n, (uint64_t)l, p, exact);
                for (int64_t j = 0; j < n; j++) {
                    const double begin = end;
                    double miss = 1.0;
                    end = j == n - 1 ? 1.0 : end + exact[j];
                    for (int64_t m = 0; m < samples; m++) {
                        const double low = (double)m / (double)samples,
                                     high = (double)(m + 1) / (double)samples;
                        miss *= 1.0 - (double)samples * fmax(0.0, fmin(end, high) - fmax(begin, low));
                    }
                    iid   += 1.0 - pow(1.0 - exact[j], (double)samples);
                    strat += 1.0 - fmax(miss, 0.0);
                    sys   += fmin(1.0, (double)samples * exact[j]);
                }
                CHECK_STATUS(santa_expected_distinct(SANTA_IID, p, n, samples, &got[0]), SANTA_OK);
                CHECK_STATUS(santa_expected_distinct(SANTA_STRAT, p, n, samples, &got[1]), SANTA_OK);
                CHECK_STATUS(santa_expected_distinct(SANTA_SYS, p, n, samples, &got[2]), SANTA_OK);
                CHECK_STATUS(santa_expected_distinct(SANTA_PROP, p, n, samples, &got[3]), SANTA_OK);
                const int good = CHECK_NEAR(got[0], iid, 1e-5, 1e-5) &
                                 CHECK_NEAR(got[1], strat, 1e-5, 1e-5) &
                                 CHECK_NEAR(got[2], sys, 1e-5, 1e-5) & CHECK(got[3] == got[2]) &
                                 CHECK(got[0] <= got[1] * (1.0 + 1e-6) && got[1] <= got[2] * (1.0 + 1e-6));
                CHECK_MSG(good, "family %d, n = %d, S = %d", family, (int)n, (int)samples);
                free(p);
                free(exact);
            }
    double rows;
    const float p[2] = {0.5f, 0.5f};
    CHECK_STATUS(santa_expected_distinct(SANTA_DENSE, p, 2, 4, &rows), SANTA_ERR_METHOD);
    CHECK_STATUS(santa_expected_distinct(SANTA_FLASH, p, 2, 4, &rows), SANTA_ERR_METHOD);
}

static void invalid_probabilities(void) {
    enum { N = 4 };
    static const float bad[][N] = {
        {0.5f, 0.5f, 0.5f, -0.5f}, {0.5f, 0.25f, 0.1f, 0.1f}, {1.0f, 1.0f, 0.0f, 0.0f}, {0, 0, 0, 0}};
    const float v[N] = {1, 2, 3, 4};
    const size_t bytes = santa_variance_workspace_size(N, 1);
    void *workspace = test_alloc(bytes);
    double x = 77.0;
    for (int i = 0; i < 5; i++) {
        float p[N];
        memcpy(p, bad[i % 4], sizeof p);
        if (i == 4) { p[0] = p[1] = 0.5f; p[3] = test_nan(); }
        CHECK_STATUS(santa_variance_iid(p, N, v, 1, 1, 8, &x, workspace, bytes), SANTA_ERR_PROBABILITIES);
        CHECK_STATUS(santa_variance_strat(p, N, v, 1, 1, 8, &x, workspace, bytes), SANTA_ERR_PROBABILITIES);
        CHECK_STATUS(santa_variance_sys(p, N, v, 1, 1, 8, &x, workspace, bytes), SANTA_ERR_PROBABILITIES);
        CHECK_STATUS(santa_expected_distinct(SANTA_IID, p, N, 8, &x), SANTA_ERR_PROBABILITIES);
        CHECK(test_is_nan((float)santa_effective_keys(p, N)));
        CHECK(x == 77.0);
    }
    free(workspace);
}

static void effective_keys(void) {
    for (int family = 0; family < FAMILIES; family++) {
        float  p[60];
        double exact[60], sum = 0.0;
        make_probabilities(family, 60, 2, p, exact);
        for (int j = 0; j < 60; j++) sum += exact[j] * exact[j];
        CHECK_NEAR(santa_effective_keys(p, 60), 1.0 / sum, 0.0, 1e-5);
    }
    const float one[3] = {0, 1, 0}, four[4] = {0.25f, 0.25f, 0.25f, 0.25f};
    CHECK(santa_effective_keys(one, 3) == 1.0);
    CHECK(santa_effective_keys(four, 4) == 4.0);
}

static void errors_of_nothing(void) {
    const float zero[3] = {0.0f, 0.0f, 0.0f}, some[3] = {0.0f, 2.0f, 0.0f};
    const float bad[3] = {0.0f, test_nan(), 0.0f};
    CHECK(santa_relative_l2(zero, zero, 3) == 0.0);
    CHECK(test_is_nan((float)santa_relative_l2(bad, zero, 3)));
    CHECK(test_is_nan((float)santa_relative_l2(bad, some, 3)));
    for (int i = 0; i < 3; i++) {
        const float *const x = i & 1 ? some : NULL, *const y = i & 2 ? some : NULL;
        CHECK(test_is_nan((float)santa_relative_l2(x, y, 3)) && test_is_nan((float)santa_cosine(x, y, 3)));
    }
    CHECK(santa_relative_l2(some, zero, 3) > 1e30);           /* infinitely wrong */
}

static void errors_of_vectors(void) {
    test_rng r = test_rng_make(8);
    for (int64_t n = 1; n < 3000; n = n * 3 + 1) {
        float *a = ref_floats(n), *b = ref_floats(n);
        double dot = 0.0, aa = 0.0, bb = 0.0, dd = 0.0;
        for (int64_t i = 0; i < n; i++) {
            a[i] = (float)test_normal(&r);
            b[i] = a[i] + 0.1f * (float)test_normal(&r);
            dot += (double)a[i] * (double)b[i];
            aa  += (double)a[i] * (double)a[i];
            bb  += (double)b[i] * (double)b[i];
            dd  += pow((double)a[i] - (double)b[i], 2.0);
        }
        CHECK_NEAR(santa_relative_l2(a, b, n), sqrt(dd / bb), 0.0, 1e-9);
        CHECK_NEAR(santa_cosine(a, b, n), dot / sqrt(aa * bb), 0.0, 1e-9);
        CHECK(santa_relative_l2(a, a, n) == 0.0);
        CHECK_NEAR(santa_cosine(a, a, n), 1.0, 1e-12, 0.0);
        for (int64_t i = 0; i < n; i++) b[i] = -2.0f * a[i];
        CHECK_NEAR(santa_cosine(a, b, n), -1.0, 1e-12, 0.0);
        CHECK_NEAR(santa_relative_l2(b, a, n), 3.0, 1e-12, 0.0);
        free(a);
        free(b);
    }
    const float x[2] = {3e38f, 0}, y[2] = {0, 3e38f};        /* squares overflow float, not double */
    CHECK_NEAR(santa_relative_l2(x, y, 2), sqrt(2.0), 1e-9, 0.0);
    CHECK_NEAR(santa_cosine(x, y, 2), 0.0, 1e-9, 0.0);
}

/* The closed forms fall with S as the theory says: exactly 1/S for iid, faster for strat and
   sys and peaked scores. */
static void closed_form_slopes(void) {
    enum { STEPS = 7 };
    const int64_t n = 8000, dv = test_quick ? 8 : 32;
    const int instances = test_quick ? 1 : 6;
    static const double gains[] = {1.0, 2.0, 4.0}, expected[] = {-1.07, -1.2, -1.4};
    float  *p = ref_floats(n), *v = ref_floats(n * dv);
    double *wide = ref_doubles(n);
    const size_t bytes = santa_variance_workspace_size(n, dv);
    void *workspace = test_alloc(bytes);
    for (int g = 0; g < (test_quick ? 1 : 3); g++) {
        double total[3][STEPS];
        memset(total, 0, sizeof total);
        for (int instance = 0; instance < instances; instance++) {
            test_rng r = test_rng_make(60 + (uint64_t)(10 * g + instance));
            for (int64_t j = 0; j < n; j++) wide[j] = gains[g] * test_normal(&r);
            ref_softmax(wide, n, -REF_INF, wide);
            for (int64_t j = 0; j < n; j++) p[j] = (float)wide[j];
            for (int64_t j = 0; j < n * dv; j++) v[j] = (float)test_normal(&r);
            for (int m = 0; m < 3; m++)
                for (int step = 0; step < STEPS; step++) {
                    const int64_t samples = 16 << step;
                    double x = 0.0;
                    const santa_status s =
                        m == 0   ? santa_variance_iid(p, n, v, dv, dv, samples, &x, workspace, bytes)
                        : m == 1 ? santa_variance_strat(p, n, v, dv, dv, samples, &x, workspace, bytes)
                                 : santa_variance_sys(p, n, v, dv, dv, samples, &x, workspace, bytes);
                    CHECK_STATUS(s, SANTA_OK);
                    total[m][step] += x;
                }
        }
        for (int m = 0; m < 3; m++) {
            double sx = 0.0, sy = 0.0, sxx = 0.0, sxy = 0.0;
            for (int step = 0; step < STEPS; step++) {
                const double x = log((double)(16 << step)), y = log(total[m][step]);
                sx += x; sy += y; sxx += x * x; sxy += x * y;
            }
            const double slope = ((double)STEPS * sxy - sx * sy) / ((double)STEPS * sxx - sx * sx);
            if (m == 0) CHECK_NEAR(slope, -1.0, 1e-9, 0.0);
            else
                CHECK_MSG(fabs(slope - expected[g]) < (test_quick ? 0.25 : 0.1),
                          "%s, logits N(0, %g^2): slope %.3f, expected %.2f", m == 1 ? "strat" : "sys",
                          gains[g], slope, expected[g]);
        }
    }
    free(p); free(v); free(wide); free(workspace);
}

/* bench/gain.h: the least times give the ratio, rounds their spread; a machine that is busy in
   a fifth of the rounds gives no verdict, one odd round does. */
static void gains(void) {
    enum { ROUNDS = 20 };
    double slow[ROUNDS], fast[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        slow[i] = 3.0 + 0.01 * (double)((i * 7) % ROUNDS);
        fast[i] = 1.5 + 0.01 * (double)((i * 3) % ROUNDS);
    }
    gain g = gain_of(slow, fast, ROUNDS);
    CHECK_NEAR(g.best, 2.0, 1e-12, 0);
    CHECK(g.low > 3.0 / 1.69 && g.low < g.high && g.high < 3.19 / 1.5);
    CHECK_NEAR(g.busy, 1.67 / 1.52, 1e-12, 0);
    fast[5] = 90.0;
    CHECK(gain_of(slow, fast, ROUNDS).busy < TOO_BUSY);
    for (int i = 0; i < ROUNDS; i += 5) slow[i] *= 3.0;
    g = gain_of(slow, fast, ROUNDS);
    CHECK(g.busy > TOO_BUSY && g.high > 4.0);
    CHECK_NEAR(g.best, 3.01 / 1.5, 1e-12, 0);                  /* round 0 was the least */
    CHECK_NEAR(gain_of(fast, fast, 1).busy, 1.0, 0, 0);
    CHECK_NEAR(gain_of(slow, fast, 0).best, 0.0, 0, 0);
}

const test_case suite_measures[] = {
    {"variances against brute force", variances},
    {"strat <= iid; sys against alternating V", orders},
    {"variances and distinct rows against the samplers", against_samplers},
    {"expected distinct rows, iid <= strat <= sys", distinct},
    {"probabilities that are none", invalid_probabilities},
    {"effective number of keys", effective_keys},
    {"relative L2, cosine", errors_of_vectors},
    {"relative L2 of zeros and of NaN", errors_of_nothing},
    {"slopes of the closed forms", closed_form_slopes},
    {"ratios of the benchmarks", gains},
    {0, 0},
};
