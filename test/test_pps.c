/* SANTA_PPS: which keys a group of heads draws and what they count, with V = identity, so that
   head h's output is its list of weights; error and rows beside sys; keys without a chance. */
#include "reference.h"

enum { HEADS = 4, KEYS = 160 };

/* A group of heads over KEYS keys with V = identity. p: [HEADS, KEYS] exact probabilities. */
static void group_make(ref_problem *x, double *p, double gain, uint64_t stream) {
    ref_spec s = ref_spec_make(HEADS, 1, KEYS, 16);
    s.head_dim_v = KEYS;
    s.gain       = gain;
    s.stream     = stream;
    ref_build(x, &s);
    for (int64_t j = 0; j < KEYS; j++)
        for (int64_t c = 0; c < KEYS; c++) x->v[j * KEYS + c] = j == c ? 1.0 : 0.0;
    ref_write(x);
    double *out = ref_doubles(KEYS);
    for (int64_t h = 0; h < HEADS; h++) ref_dense(x, 0, 0, h, out, p + h * KEYS);
    free(out);
}

static double weight_of(const ref_problem *x, int64_t h, int64_t j) {
    return ref_get(&x->a.out, 0, 0, h, j);
}

static int is_drawn(const ref_problem *x, int64_t j) {
    for (int64_t h = 0; h < HEADS; h++)
        if (weight_of(x, h, j) != 0.0) return 1;
    return 0;
}

static double largest(const double *p, int64_t j) {
    double most = 0.0;
    for (int64_t h = 0; h < HEADS; h++)
        if (p[h * KEYS + j] > most) most = p[h * KEYS + j];
    return most;
}

/* How often each key is drawn, against min(1, S max p); the same with the heads' mean must
   fail. */
static void chances(void) {
    const int64_t samples = 24, draws = test_quick ? 1500 : 6000;
    double p[HEADS * KEYS], count[KEYS] = {0.0}, rows = 0.0, expected = 0.0, worst = 0.0, wrong = 0.0;
    ref_problem   x;
    santa_options o = ref_options(SANTA_PPS, samples, test_seed);
    santa_stats   stats;
    int           sure = 0;
    group_make(&x, p, 2.0, 1);
    for (int64_t i = 0; i < draws; i++) {
        o.offset = (uint64_t)i;
        if (!ref_run(&x, &o, &stats)) break;
        for (int64_t j = 0; j < KEYS; j++) count[j] += is_drawn(&x, j);
        rows += (double)stats.v_rows_read;
    }
    for (int64_t j = 0; j < KEYS; j++) {
        const double pi = (double)samples * largest(p, j), n = (double)draws;
        double mean = 0.0;
        for (int64_t h = 0; h < HEADS; h++) mean += (double)samples * p[h * KEYS + j] / HEADS;
        expected += pi < 1.0 ? pi : 1.0;
        if (pi >= 1.0 + 1e-6) { sure++; CHECK_NEAR(count[j], n, 0.0, 0.0); }
        if (pi < 0.999) worst = fmax(worst, fabs(count[j] - n * pi) / sqrt(n * pi * (1.0 - pi) + 1.0));
        if (mean < 0.999)
            wrong = fmax(wrong, fabs(count[j] - n * mean) / sqrt(n * mean * (1.0 - mean) + 1.0));
    }
    CHECK_MSG(worst < 5.0, "a key's number of draws is off by %.1f standard errors", worst);
    CHECK_MSG(wrong > 8.0, "the mean instead of the largest p is off by only %.1f standard errors", wrong);
    CHECK_MSG(sure > 0 && sure < KEYS / 4, "%d sure keys", sure);
    CHECK_NEAR(rows / (double)draws, expected, 0.1, 0.0);
    ref_free(&x);
}

/* A drawn key counts p / pi in every head; sure keys that hold a quarter of a head's mass take
   up what its weights miss. */
static void weights(void) {
    int anchored = 0, loose = 0;
    for (uint64_t stream = 0; stream < 40; stream++) {
        const int64_t samples = 4 << stream % 5;
        double        p[HEADS * KEYS];
        ref_problem   x;
        group_make(&x, p, 0.5 + 0.1 * (double)stream, stream);
        for (uint64_t i = 0; i < 5; i++) {
            santa_options o = ref_options(SANTA_PPS, samples, test_seed + i);
            if (!ref_run(&x, &o, NULL)) break;
            for (int64_t h = 0; h < HEADS; h++) {
                double sum = 0.0, sure = 0.0;
                for (int64_t j = 0; j < KEYS; j++) {
                    const double pi = (double)samples * largest(p, j), w = weight_of(&x, h, j);
                    sum += w;
                    if (pi > 1.0 + 1e-5) sure += p[h * KEYS + j];
                    else if (pi < 1.0 - 1e-5 && is_drawn(&x, j))
                        CHECK_NEAR(w, p[h * KEYS + j] / pi, 1e-6, 1e-4);
                }
                if (sure > 0.251) { anchored++; CHECK_NEAR(sum, 1.0, 2e-5, 0.0); }
                else if (sure < 0.249) loose += fabs(sum - 1.0) > 1e-3;
            }
        }
        ref_free(&x);
    }
    CHECK_MSG(anchored > 100 && loose > 100, "%d heads with sure keys, %d without", anchored, loose);
}

/* A key that another head makes sure is so, too, where a rounding of the sum of p takes its
   chance just below 1. */
static void sure_but_for_rounding(void) {
    enum { N = 5 };
    const size_t bytes = santa_variance_workspace_size(N, N);
    void *work = malloc(bytes);
    float v[N * N] = {0.0f};
    double least = 1e300, most = 0.0;
    for (int i = 0; i < N; i++) v[i * N + i] = 1.0f;
    for (int ulps = -4; ulps <= 4; ulps++) {
        float p[N]    = {0.5f, 0.25f, 0.125f, 0.0625f, 0.0625f},
              size[N] = {1.0f, 0.25f, 0.125f, 0.0625f, 0.0625f};
        p[N - 1] += (float)ulps * 3.725290298461914e-9f;                  /* of the last bit */
        size[N - 1] = p[N - 1];
        double variance = -1.0;
        CHECK_STATUS(santa_variance_pps(p, size, N, v, N, N, 1, &variance, work, bytes), SANTA_OK);
        least = fmin(least, variance);
        most = fmax(most, variance);
    }
    CHECK_MSG(least > 0.0 && most < 1.001 * least, "%g to %g", least, most);
    free(work);
}

/* The mean squared error over seeds against the exact variance over the comb's offset; that of
   a head alone must not fit. */
static void closed_form(void) {
    const int64_t draws = test_quick ? 800 : 4000;
    const size_t  bytes = santa_variance_workspace_size(KEYS, KEYS);
    void         *work = malloc(bytes);
    float        *v = (float *)calloc(KEYS * KEYS, sizeof *v), own[KEYS], size[KEYS];
    double        p[HEADS * KEYS], worst = 0.0, alone = 0.0;
    for (int64_t j = 0; j < KEYS; j++) v[j * KEYS + j] = 1.0f;
    for (int shape = 0; shape < 4; shape++) {
        const int64_t samples = 6 << shape;
        double        sum[HEADS] = {0.0}, square[HEADS] = {0.0};
        ref_problem   x;
        group_make(&x, p, 0.5 + (double)shape, 60 + (uint64_t)shape);
        for (int64_t i = 0; i < draws; i++) {
            santa_options o = ref_options(SANTA_PPS, samples, test_seed + (uint64_t)i);
            if (!ref_run(&x, &o, NULL)) break;
            for (int64_t h = 0; h < HEADS; h++) {
                double error = 0.0;
                for (int64_t j = 0; j < KEYS; j++) error += pow(weight_of(&x, h, j) - p[h * KEYS + j], 2.0);
                sum[h] += error;
                square[h] += error * error;
            }
        }
        for (int64_t j = 0; j < KEYS; j++) size[j] = (float)largest(p, j);
        for (int64_t h = 0; h < HEADS; h++) {
            const double n = (double)draws, mean = sum[h] / n;
            const double bar = sqrt(fmax(square[h] / n - mean * mean, 0.0) / n) + 1e-6 * mean + 1e-12;
            double variance = -1.0, single = -1.0;
            for (int64_t j = 0; j < KEYS; j++) {
                own[j] = (float)p[h * KEYS + j];
                if (size[j] < own[j]) size[j] = own[j];
            }
            CHECK_STATUS(santa_variance_pps(own, size, KEYS, v, KEYS, KEYS, samples, &variance, work,
                                            bytes),
                         SANTA_OK);
            CHECK_STATUS(santa_variance_pps(own, NULL, KEYS, v, KEYS, KEYS, samples, &single, work, bytes),
                         SANTA_OK);
            worst = fmax(worst, fabs(mean - variance) / bar);
            alone = fmax(alone, fabs(mean - single) / bar);
        }
        ref_free(&x);
    }
    CHECK_MSG(worst < 5.0, "off by %.1f standard errors", worst);
    CHECK_MSG(alone > 8.0, "a head alone is off by only %.1f standard errors", alone);
    free(v);
    free(work);
}

/* Over random groups: no more rows than the heads' own combs, no larger error. */
static void beside_sys(void) {
    const int64_t groups = test_quick ? 40 : 200, draws = 40, dv = 24;
    double        rows[2] = {0.0, 0.0}, error[2] = {0.0, 0.0};
    for (int64_t g = 0; g < groups; g++) {
        ref_spec s = ref_spec_make(1 + g % 5, 1, 200 + g, 16);
        s.head_dim_v = dv;
        s.gain       = 0.5 + 0.02 * (double)g;
        s.stream     = (uint64_t)g;
        ref_problem x;
        ref_build(&x, &s);
        double *exact = ref_exact(&x), mse[2] = {0.0, 0.0};
        for (int m = 0; m < 2; m++)
            for (int64_t i = 0; i < draws; i++) {
                santa_options o = ref_options(m ? SANTA_PPS : SANTA_SYS, 16, test_seed + (uint64_t)i);
                santa_stats   stats;
                if (!ref_run(&x, &o, &stats)) break;
                rows[m] += (double)stats.v_rows_read;
                mse[m] += ref_error2(&x, exact, NULL);
            }
        for (int m = 0; m < 2; m++) error[m] += mse[m] / (mse[0] + mse[1] + 1e-30);
        free(exact);
        ref_free(&x);
    }
    CHECK_MSG(rows[1] < 0.95 * rows[0], "%.0f rows, sys %.0f", rows[1], rows[0]);
    CHECK_MSG(error[1] < 1.02 * error[0], "squared error %.3f of sys'", error[1] / error[0]);
}

/* Closed forms of 200 random groups, head by head: as a rule less than sys', by no theorem. */
static void variance_beside_sys(void) {
    enum { DV = 24, MOST = 400 };
    int    heads = 0, above = 0;
    double most = 0.0, sum = 0.0;
    const size_t bytes = santa_variance_workspace_size(MOST, DV);
    void  *work = test_alloc(bytes);
    for (int64_t g = 0; g < 200; g++) {
        ref_spec s = ref_spec_make(1 + g % 5, 1, 200 + g, 16);
        static float  p[5 * MOST], size[MOST];
        static double score[MOST], prob[MOST];
        s.head_dim_v = DV;
        s.gain       = 0.5 + 0.02 * (double)g;
        s.stream     = (uint64_t)g + 500u * test_seed;
        ref_problem x;
        ref_build(&x, &s);
        float *v = ref_floats(s.len * DV);
        for (int64_t i = 0; i < s.len * DV; i++) v[i] = (float)x.v[i];
        for (int64_t j = 0; j < s.len; j++) size[j] = 0.0f;
        for (int64_t h = 0; h < s.heads; h++) {
            ref_scores(&x, 0, 0, h, score);
            ref_softmax(score, s.len, -REF_INF, prob);
            for (int64_t j = 0; j < s.len; j++) {
                p[h * MOST + j] = (float)prob[j];
                if (size[j] < (float)prob[j]) size[j] = (float)prob[j];
            }
        }
        for (int64_t h = 0; h < s.heads; h++) {
            double pps = 0.0, sys = 0.0;
            CHECK_STATUS(santa_variance_pps(p + h * MOST, size, s.len, v, DV, DV, 16, &pps, work, bytes),
                         SANTA_OK);
            CHECK_STATUS(santa_variance_sys(p + h * MOST, s.len, v, DV, DV, 16, &sys, work, bytes),
                         SANTA_OK);
            heads++;
            above += pps > sys;
            sum += pps / sys;
            most = fmax(most, pps / sys);
        }
        free(v);
        ref_free(&x);
    }
    CHECK_MSG(above * 5 <= heads * 2 && most < 5.0 && sum < 0.99 * heads,
              "pps' variance is above sys' in %d of %d heads, at most %.2f times, %.2f on average", above,
              heads, most, sum / heads);
    free(work);
}

/* A head alone: its sure keys, and of the others those that a comb of teeth 1 apart meets along
   the sum of S p. */
static void comb_alone(void) {
    const int64_t samples = 20;
    for (int turn = 0; turn < 40; turn++) {
        ref_spec s = ref_spec_make(1, 1, KEYS, 16);
        s.head_dim_v = 8;
        s.gain       = 1.0 + 0.2 * (double)(turn % 20);
        s.stream     = (uint64_t)turn;
        ref_problem   x;
        santa_options o = ref_options(SANTA_PPS, samples, test_seed + (uint64_t)turn);
        static float  f[KEYS], weight[KEYS];
        static int32_t index[KEYS];
        double        score[KEYS], prob[KEYS], end = 0.0, before = 0.0;
        santa_draws   d;
        int64_t       at = 0, near = 0;
        memset(&d, 0, sizeof d);
        d.index = index;
        d.weight = weight;
        d.capacity = KEYS;
        ref_build(&x, &s);
        ref_scores(&x, 0, 0, 0, score);
        for (int64_t j = 0; j < KEYS; j++) f[j] = (float)score[j];
        ref_softmax(score, KEYS, -REF_INF, prob);
        const size_t bytes = santa_sample_workspace_size(KEYS, &o);
        void *work = test_alloc(bytes);
        CHECK_STATUS(santa_sample(f, KEYS, &o, ref_stream(0, 0, 0), &d, work, bytes), SANTA_OK);
        const double u = ref_random(&o, ref_stream(0, 0, 0), 0);
        for (int64_t j = 0; j < KEYS; j++) {
            const double pi = fmin((double)samples * prob[j], 1.0);
            before = end;
            end += (double)samples * prob[j];
            near += fabs(end - u - floor(end - u + 0.5)) < 1e-4;
            const int is_met = ceil(before - u) + u < end;                    /* the next tooth */
            if (near) continue;
            if (!is_met) {
                CHECK_MSG(at >= d.rows || index[at] != j, "turn %d: not the comb's: key %d", turn, (int)j);
                continue;
            }
            if (!CHECK_MSG(at < d.rows && index[at] == j, "turn %d: no key %d", turn, (int)j)) break;
            /* where the sure keys hold a quarter they also take up what the others miss */
            if (pi < 1.0) CHECK_NEAR(weight[at], prob[j] / pi, 1e-6, 1e-4);
            at++;
        }
        free(work);
        ref_free(&x);
    }
}

/* Rows that were not drawn are not read, a NaN stays where it is, all keys drawn is exact. */
static void edges(void) {
    double        p[HEADS * KEYS];
    int           drawn[KEYS];
    ref_problem   x;
    santa_options o = ref_options(SANTA_PPS, 16, test_seed);
    santa_stats   stats;
    group_make(&x, p, 2.0, 3);
    if (!ref_run(&x, &o, &stats)) return;
    double *before = ref_doubles(HEADS * KEYS);
    for (int64_t j = 0; j < KEYS; j++) drawn[j] = is_drawn(&x, j);
    for (int64_t i = 0; i < HEADS * KEYS; i++) before[i] = weight_of(&x, i / KEYS, i % KEYS);
    for (int64_t j = 0; j < KEYS; j++)
        for (int64_t c = 0; c < KEYS && !drawn[j]; c++) x.v[j * KEYS + c] = (double)test_nan();
    ref_write(&x);
    if (!ref_run(&x, &o, &stats)) return;
    for (int64_t i = 0; i < HEADS * KEYS; i++)
        CHECK_NEAR(weight_of(&x, i / KEYS, i % KEYS), before[i], 0.0, 0.0);
    free(before);
    ref_free(&x);

    for (int bad = 0; bad < 3; bad++) {
        group_make(&x, p, 2.0, 4);
        if (bad == 0) x.q[2 * 16 + 5] = (double)test_nan();                     /* one head's query */
        if (bad == 1) x.k[77 * 16 + 3] = (double)test_nan();                    /* one key */
        if (bad == 2) x.k[77 * 16 + 3] = REF_INF;
        ref_write(&x);
        if (!ref_run(&x, &o, &stats)) return;
        for (int64_t h = 0; h < HEADS; h++) {
            int nans = 0;
            for (int64_t j = 0; j < KEYS; j++) nans += test_is_nan((float)weight_of(&x, h, j));
            if (bad < 2) CHECK_INT(nans, bad == 1 || h == 2 ? KEYS : 0);
            if (bad < 2) CHECK_INT(test_is_nan(x.lse[h]), bad == 1 || h == 2);
            if (bad == 2) CHECK_MSG(nans == KEYS || x.lse[h] < 1e30f, "an infinite key is in a result");
        }
        ref_free(&x);
    }

    for (int flat = 0; flat < 2; flat++) { /* all keys, or all of the mass */
        group_make(&x, p, flat ? 0.0 : 1.0, 5);
        o.num_samples = 200000;
        if (!ref_run(&x, &o, &stats)) return;
        for (int64_t i = 0; i < HEADS * KEYS; i++)
            CHECK_NEAR(weight_of(&x, i / KEYS, i % KEYS), p[i], 1e-6, 1e-5);
        for (int64_t h = 0; h < HEADS; h++) CHECK_NEAR(x.std_error[h], 0.0, 0.0, 0.0);
        CHECK_INT(stats.v_rows_read, KEYS);
        ref_free(&x);
    }

    group_make(&x, p, 0.0, 6); /* equal scores: any S rows */
    o.num_samples = 32;
    if (!ref_run(&x, &o, &stats)) return;
    CHECK_MSG(stats.v_rows_read == 32, "%d of 32 rows", (int)stats.v_rows_read);
    ref_free(&x);
}

/* std_error of each draw against its formula in float64. With few draws the weights of the keys
   that are not sure may add up to more than 1 and the sure ones' mass, whose weights are below
   0 then. */
static void error_formula(void) {
    const int64_t samples = 3;
    double        p[HEADS * KEYS], worst = 0.0;
    int           below = 0, compared = 0;
    ref_problem   x;
    santa_options o = ref_options(SANTA_PPS, samples, test_seed);
    group_make(&x, p, 3.0, 5);
    x.a.std_error = x.std_error;
    for (int64_t i = 0; i < (test_quick ? 200 : 1000); i++) {
        o.offset = (uint64_t)i;
        if (!ref_run(&x, &o, NULL)) break;
        for (int64_t h = 0; h < HEADS; h++) {
            double mass = 0.0, sure = 0.0, open = 0.0, mean[KEYS] = {0.0}, total = 0.0, n = 0.0;
            for (int64_t j = 0; j < KEYS; j++)
                if ((double)samples * largest(p, j) >= 1.0) {
                    mass += p[h * KEYS + j];
                    sure += weight_of(&x, h, j);
                }
            if (mass < 0.26) continue;              /* they take up what is missing above a quarter */
            /* v_j, a unit vector, counts from the sure keys' mean a: w (e_j - a) */
            for (int step = 0; step < 3; step++)    /* sum of 1 - pi, their mean, distances from it */
                for (int64_t j = 0; j < KEYS; j++) {
                    const double rest = 1.0 - (double)samples * largest(p, j), w = weight_of(&x, h, j);
                    double       square = 0.0;
                    if (rest <= 0.0 || w == 0.0) continue;
                    if (step == 0) { open += rest; n += 1.0; }
                    for (int64_t c = 0; c < KEYS && step; c++) {
                        const double is_sure = (double)samples * largest(p, c) >= 1.0,
                                     y = w * ((double)(j == c) - is_sure * p[h * KEYS + c] / mass);
                        if (step == 1) mean[c] += rest / open * y;
                        else square += (y - mean[c]) * (y - mean[c]);
                    }
                    total += rest * square;
                }
            if (n < 2.0) continue;
            below += sure < 0.0;
            compared++;
            worst = fmax(worst, fabs((double)x.std_error[h] / sqrt(total * n / (n - 1.0)) - 1.0));
        }
    }
    printf("        %d heads, %d with weights below 0: at most %.1e off\n", compared, below, worst);
    CHECK(worst < 1e-3 && below > 3 && compared > 3 * below);
    ref_free(&x);
}

/* What std_error says against what the error is, over groups and draws. */
static void error_bar(void) {
    const int64_t draws = test_quick ? 300 : 1000, dv = 16;
    for (int shape = 0; shape < 5; shape++) {
        ref_spec s = ref_spec_make(1 + shape, 1, 500, 16);
        double   error = 0.0, bar = 0.0;
        s.head_dim_v = dv;
        s.gain       = 0.5 + 0.7 * (double)shape;
        s.stream     = 40 + (uint64_t)shape;
        ref_problem x;
        ref_build(&x, &s);
        double *exact = ref_exact(&x);
        for (int64_t i = 0; i < draws; i++) {
            santa_options o = ref_options(SANTA_PPS, 48, test_seed + (uint64_t)i);
            if (!ref_run(&x, &o, NULL)) break;
            error += ref_error2(&x, exact, NULL);
            for (int64_t h = 0; h < s.heads; h++) bar += pow((double)x.std_error[h], 2.0);
        }
        CHECK_MSG(bar > 0.8 * error && bar < 1.3 * error,
                  "shape %d: the squared error bar is %.2f of the squared error", shape, bar / error);
        free(exact);
        ref_free(&x);
    }
}

/* A head whose scores are NaN does not take another one's draws away. */
static void nan_beside_scores(void) {
    ref_spec s = ref_spec_make(2, 1, 2048, 64);
    FOR_EACH_ISA(isa) {
        ref_problem p;
        santa_stats x;
        double exact[64], difference = 0.0, norm = 0.0;
        ref_build(&p, &s);
        p.a.std_error = NULL;
        ref_set(&p.a.q, 0, 0, 1, 3, (double)test_nan());
        santa_options o = ref_options(SANTA_PPS, 256, test_seed);
        o.isa = isa;
        if (ref_run(&p, &o, &x)) {
            ref_dense(&p, 0, 0, 0, exact, NULL);
            for (int64_t c = 0; c < 64; c++) {
                difference += pow(ref_get(&p.a.out, 0, 0, 0, c) - exact[c], 2.0);
                norm += exact[c] * exact[c];
                CHECK(test_is_nan((float)ref_get(&p.a.out, 0, 0, 1, c)));
            }
            CHECK_MSG(difference < 0.3 * norm,
                      "%s: off by %g of %g, %lld rows read", santa_isa_name(isa), sqrt(difference),
                      sqrt(norm), (long long)x.v_rows_read);
        }
        ref_free(&p);
    }
}

/* Of two heads that read rows together one has no mass, its scores are -inf: nothing, whatever
   V holds. */
static void no_mass_beside_nan(void) {
    ref_spec s = ref_spec_make(2, 1, 300, 8);
    ref_problem p;
    ref_build(&p, &s);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t c = 0; c < 8; c++) ref_set(&p.a.q, 0, 0, h, c, h || c ? 0.0 : -1e20);
    for (int64_t j = 0; j < 300; j++) {
        ref_set(&p.a.k, 0, j, 0, 0, 1e20);
        ref_set(&p.a.v, 0, j, 0, 5, (double)test_nan());
    }
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        santa_options o = ref_options((santa_method)m, 16, test_seed);
        santa_clear_unused_options(&o);
        if (m == SANTA_SAAP || m == SANTA_SAMPLE_ATTENTION) continue;
        p.a.std_error = santa_method_traits(o.method) & SANTA_BIASED ? NULL : p.std_error;
        if (!ref_run(&p, &o, NULL)) continue;
        for (int64_t c = 0; c < 8; c++) {
            CHECK_MSG(ref_get(&p.a.out, 0, 0, 0, c) == 0.0, "%s: number %d of a head without mass is not 0",
                      santa_method_name(o.method), (int)c);
            CHECK(test_is_nan((float)ref_get(&p.a.out, 0, 0, 1, c)) == (c == 5));
        }
        CHECK(p.lse[0] < -3e38f && p.lse[1] > 5.0f && (!p.a.std_error || p.std_error[0] == 0.0f));
    }
    ref_free(&p);
}

/* A chance that is 1 but for a rounding is sure: of a head that has half of its mass there the
   weights add up to 1, so that V of ones is one. */
static void nearly_sure(void) {
    enum { N = 40 };
    float q[4] = {1.0f, 0.0f, 0.0f, 1.0f}, k[N * 2], v[N], out[2];
    santa_attention a;
    santa_options o = ref_options(SANTA_PPS, 1, 0);
    memset(&a, 0, sizeof a);
    a.q   = santa_view(q, SANTA_F32, 1, 1, 2, 2);
    a.k   = santa_view(k, SANTA_F32, 1, N, 1, 2);
    a.v   = santa_view(v, SANTA_F32, 1, N, 1, 1);
    a.out = santa_view(out, SANTA_F32, 1, 1, 2, 1);
    a.sm_scale = 1.0f;
    for (int above = 18; above < 24; above++) {      /* 1 - chance: 6e-7 to 4e-9 */
        for (int j = 0; j < N; j++) {
            k[2 * j] = j ? 0.0f : (float)above;
            k[2 * j + 1] = j ? 0.0f : 3.66f;         /* log 39: half */
            v[j] = 1.0f;
        }
        const size_t bytes = santa_workspace_size(&a, &o);
        void *work = test_alloc(bytes);
        for (o.seed = 0; o.seed < 20; o.seed++)
            if (CHECK_STATUS(santa_decode(&a, &o, work, bytes, NULL), SANTA_OK))
                CHECK_MSG(fabs((double)out[1] - 1.0) < 2e-6, "%d above: %g", above, (double)out[1]);
        free(work);
    }
}

const test_case suite_pps[] = {
    {"chances of the keys of a group", chances},
    {"weights", weights},
    {"variance of a key that is sure but for rounding", sure_but_for_rounding},
    {"variance in closed form", closed_form},
    {"rows and error beside sys", beside_sys},
    {"variance beside sys", variance_beside_sys},
    {"a head alone is a comb", comb_alone},
    {"unread rows, NaN, all keys, equal scores", edges},
    {"std_error", error_bar},
    {"std_error of each draw", error_formula},
    {"a head without mass beside one with NaN", no_mass_beside_nan},
    {"a head with NaN beside one with scores", nan_beside_scores},
    {"a chance that is 1 but for a rounding", nearly_sure},
    {0, 0}
};
