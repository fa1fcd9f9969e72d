/* vAttention: which keys it takes and with what weight, its budgets, its (epsilon, delta)
   promise, its audit. With V the identity, out[j] is key j's weight times its probability, so
   that the sample lies open. */
#include "reference.h"

/* ------------------------------------------------------------ budgets */

static double normal_cdf(double x) { return 0.5 * erfc(-x / sqrt(2.0)); }

static double z_of(santa_bound bound, double delta) {
    return bound == SANTA_BOUND_CLT ? santa_normal_quantile(1.0 - delta / 2.0)
                                    : sqrt(2.0 * log(2.0 / delta));
}

static void quantile(void) {
    for (double p = 1e-12; p < 0.5; p *= 1.7) {
        CHECK_NEAR(normal_cdf(santa_normal_quantile(p)), p, 0.0, 1e-9);
        CHECK_NEAR(normal_cdf(-santa_normal_quantile(1.0 - p)), p, 3e-16, 1e-9);
    }
    CHECK_NEAR(santa_normal_quantile(0.5), 0.0, 1e-12, 0.0);
    CHECK_NEAR(santa_normal_quantile(0.975), 1.959963984540054, 1e-11, 0.0);
    CHECK_NEAR(santa_normal_quantile(0.9), 1.2815515655446004, 1e-11, 0.0);
    CHECK_NEAR(santa_normal_quantile(0.001), -3.090232306167813, 1e-11, 0.0);
    /* far tails, down to the smallest number there is: log Q(z) by its continued fraction,
       which needs no exp */
    for (double p = 1e-12; p > 0.0; p *= 1e-3) {
        const double z = -santa_normal_quantile(p);
        double fraction = z;
        for (int i = 60; i > 0; i--) fraction = z + (double)i / fraction;
        CHECK_NEAR(-0.5 * z * z - log(fraction * 2.5066282746310002), log(p), 0.0, 1e-10);
        CHECK(z < 39.0);
    }
    const double none[] = {0.0, 1.0, -0.1, 1.1, (double)test_nan()};
    for (int i = 0; i < 5; i++) CHECK(test_is_nan((float)santa_normal_quantile(none[i])));
}

static santa_budget random_input(test_rng *r) {
    santa_budget in;
    memset(&in, 0, sizeof in);
    in.epsilon     = 0.01 + 0.3 * test_uniform(r);
    in.delta       = 0.01 + 0.2 * test_uniform(r);
    in.bound       = test_next(r) % 2 ? SANTA_BOUND_CLT : SANTA_BOUND_HOEFFDING;
    in.population  = 1 + test_below(r, 200000);
    in.sigma       = exp(test_normal(r));
    in.denominator = (double)in.population * exp(test_normal(r));
    in.trace       = exp(2.0 * test_normal(r));
    in.norm        = (double)in.population * exp(test_normal(r));
    return in;
}

/* Rounded up, with the finite-population correction. */
static double corrected(double b0, double population) { return ceil(b0 / (1.0 + b0 / population) - 1e-9); }

static void single_budgets(void) {
    test_rng r = test_rng_make(1);
    for (int i = 0; i < 5000; i++) {
        santa_budget in = random_input(&r);
        const double n = (double)in.population, z = z_of(in.bound, in.delta);
        const double d0 = pow(z * n * in.sigma / (in.epsilon * in.denominator), 2.0);
        const double n0 = pow(z * n * sqrt(in.trace) / (in.epsilon * in.norm), 2.0);
        int64_t d = -1, v = -1;
        CHECK_STATUS(santa_budget_denominator(&in, &d), SANTA_OK);
        CHECK_STATUS(santa_budget_numerator(&in, &v), SANTA_OK);
        CHECK(fabs((double)d - fmin(corrected(d0, n), n)) <= (d0 > 1e6 ? 1.0 : 0.0));
        CHECK(fabs((double)v - fmin(corrected(n0, n), n)) <= (n0 > 1e6 ? 1.0 : 0.0));
        CHECK(d >= 0 && d <= in.population && v >= 0 && v <= in.population);
    }
    santa_budget in = random_input(&r);
    int64_t b = -1;
    in.sigma = 0.0;
    CHECK_STATUS(santa_budget_denominator(&in, &b), SANTA_OK);
    CHECK_INT(b, 0);
    /* no spread of the denominator: the numerator has half of epsilon and all of delta, of
       which a norm's CLT takes .215 at most */
    in = random_input(&r);
    in.sigma = 0.0;
    in.epsilon = 0.3;
    in.delta = 0.4;
    for (int hoeffding = 0; hoeffding < 2; hoeffding++) {
        const double n = (double)in.population, c = n * sqrt(in.trace) / in.norm;
        in.bound = hoeffding ? SANTA_BOUND_HOEFFDING : SANTA_BOUND_CLT;
        const double z = z_of(in.bound, hoeffding ? in.delta : 0.215);
        CHECK_STATUS(santa_budget_full(&in, &b), SANTA_OK);
        CHECK_NEAR(b, fmin(corrected(pow(2.0 * z * c / in.epsilon, 2.0), n), n), 1.0, 0.0);
    }
    in = random_input(&r);
    in.sigma       = 1.0;
    in.denominator = 0.0; /* any error of it is infinitely large: take all */
    CHECK_STATUS(santa_budget_denominator(&in, &b), SANTA_OK);
    CHECK_INT(b, in.population);
    in.population = 0;
    CHECK_STATUS(santa_budget_denominator(&in, &b), SANTA_OK);
    CHECK_INT(b, 0);
    in.population = 1;
    CHECK_STATUS(santa_budget_denominator(&in, &b), SANTA_OK);
    CHECK_INT(b, 1);
}

/* Theorem 4.3 by exhaustion: the smallest max of the two budgets over all splits of epsilon and
   delta. */
static double brute_force(const santa_budget *in, int steps) {
    const double n = (double)in->population, a = n * in->sigma / in->denominator,
                 c = n * sqrt(in->trace) / in->norm;
    double best = 1e300;
    for (int i = 1; i < steps; i++) {
        const double d1 = in->delta * (double)i / (double)steps, d2 = in->delta - d1;
        if (in->bound == SANTA_BOUND_CLT && d2 > 0.215) continue; /* where the norm's bound does not hold */
        const double z1 = z_of(in->bound, d1), z2 = z_of(in->bound, d2);
        for (int j = 1; j < steps; j++) {
            const double e1 = in->epsilon * (double)j / (double)steps, e2 = in->epsilon - e1;
            best = fmin(best, fmax(pow(z1 * a / (e1 / 2.0), 2.0), pow(z2 * c / (e2 / 2.0), 2.0)));
        }
    }
    return best;
}

static void full_budget(void) {
    test_rng r = test_rng_make(2);
    const int steps = test_quick ? 100 : 400;
    for (int i = 0; i < (test_quick ? 10 : 60); i++) {
        santa_budget in = random_input(&r);
        in.population = 1000000; /* large: the correction must not hide a difference */
        in.denominator *= 200.0;
        in.norm        *= 200.0;
        if (i % 4 == 0) in.delta = 0.3 + 0.5 * test_uniform(&r);
        int64_t b = -1, d = -1, v = -1;
        CHECK_STATUS(santa_budget_full(&in, &b), SANTA_OK);
        const double n = (double)in.population, b0 = (double)b / (1.0 - (double)b / n),
                     want = brute_force(&in, steps);
        CHECK_MSG(b0 <= want + 2.0 && b0 >= want * (test_quick ? 0.9 : 0.97) - 2.0,
                  "eps %g, delta %g, bound %d, sigma %g of %g, trace %g, norm %g: "
                  "budget %g, exhaustive search %g",
                  in.epsilon, in.delta, (int)in.bound, in.sigma, in.denominator, in.trace, in.norm, b0,
                  want);
        if (in.delta <= 0.215) { /* never cheaper than either alone with all of the tolerance */
            CHECK_STATUS(santa_budget_denominator(&in, &d), SANTA_OK);
            CHECK_STATUS(santa_budget_numerator(&in, &v), SANTA_OK);
            CHECK(b >= d && b >= v);
        }
    }
    santa_budget in = random_input(&r);
    int64_t b = -1;
    in.bound = SANTA_BOUND_CLT;
    in.delta = 0.216;
    CHECK_STATUS(santa_budget_numerator(&in, &b), SANTA_ERR_DELTA_VECTOR);
    CHECK_INT(b, -1);
    in.bound = SANTA_BOUND_HOEFFDING;
    CHECK_STATUS(santa_budget_numerator(&in, &b), SANTA_OK);
    in = random_input(&r); /* the smallest delta that is taken: nothing underflows */
    in.population = INT64_C(1) << 40;
    in.denominator = in.norm = 1e3 * (double)in.population;
    in.sigma = in.trace = 1.0;
    in.epsilon = 0.01;
    for (int bound = 0; bound < 2; bound++) {
        int64_t last = 0;
        in.bound = (santa_bound)bound;
        for (in.delta = 0.1; in.delta >= 1e-290;
             in.delta = in.delta > 1e-280 ? in.delta * 1e-9 : in.delta * 0.1) {
            CHECK_STATUS(santa_budget_full(&in, &b), SANTA_OK);
            CHECK_MSG(b >= last && b < 6000, "delta %g: budget %lld, %lld before", in.delta, (long long)b,
                      (long long)last);
            last = b;
        }
    }
}

/* 2 ln(2/delta) / z^2 = 2.8 times more draws for Hoeffding than for the CLT at delta = 0.2. */
static void hoeffding_ratio(void) {
    santa_budget in;
    int64_t clt = 0, hoeffding = 0;
    memset(&in, 0, sizeof in);
    in.epsilon = 0.01;
    in.delta   = 0.2;
    in.population  = INT64_C(1) << 40;
    in.denominator = (double)in.population;
    in.sigma       = 1.0;
    CHECK_STATUS(santa_budget_denominator(&in, &clt), SANTA_OK);
    in.bound = SANTA_BOUND_HOEFFDING;
    CHECK_STATUS(santa_budget_denominator(&in, &hoeffding), SANTA_OK);
    CHECK_NEAR((double)hoeffding / (double)clt, 2.804, 0.001, 0.0);
}

/* ------------------------------------------------------------ the sample */

enum { N = 400, DIM = 8 };

/* One sequence, V = identity. Scores are a mild tail with a few keys that stand out. */
static ref_spec open_spec(int64_t heads, int64_t kv_heads) {
    ref_spec s = ref_spec_make(heads, kv_heads, N, DIM);
    s.head_dim_v = N;
    s.gain = 0.7;
    return s;
}

/* Queries of one length, so that scores are N(0, gain^2) whatever the seed; every step-th key
   scores `peak`. */
static void stand_out(ref_problem *p, int64_t first, int64_t step, double peak) {
    const ref_spec *s = &p->spec;
    const int64_t   d = s->head_dim, group = s->heads / s->kv_heads;
    for (int64_t row = 0; row < s->q_len * s->heads; row++) {
        double *q = p->q + row * d;
        const double norm = ref_length2(q, d);
        for (int64_t c = 0; c < d; c++)
            q[c] = ref_round(s->q_type, q[c] * s->gain * sqrt((double)d / norm));
    }
    for (int64_t j = first; j < s->len; j += step)
        for (int64_t kv = 0; kv < s->kv_heads; kv++)
            for (int64_t c = 0; c < d; c++)
                p->k[(j * s->kv_heads + kv) * d + c] =
                    (double)(float)(p->q[kv * group * d + c] * peak /
                                    (s->gain * s->gain * sqrt((double)d)));
}

static void open_up(ref_problem *p) {
    const ref_spec *s = &p->spec;
    for (int64_t j = 0; j < N; j++)
        for (int64_t kv = 0; kv < s->kv_heads; kv++)
            for (int64_t c = 0; c < N; c++) p->v[(j * s->kv_heads + kv) * N + c] = j == c ? 1.0 : 0.0;
    stand_out(p, 31, 57, 3.0);
    ref_write(p);
}

static santa_options open_options(uint64_t seed) {
    santa_options o = ref_options(SANTA_VATTENTION, 0, seed);
    o.vattention.sink_tokens  = 10;
    o.vattention.local_tokens = 20;
    o.vattention.heavy_tokens = 12;
    o.vattention.base_samples = 40;
    o.vattention.epsilon = 0.05;
    o.vattention.delta   = 0.2;
    return o;
}

/* Weight of every key, read off out: 0 = not taken. */
static void weights(const ref_problem *p, int64_t h, double *scores, double *weight) {
    const double total = (double)p->lse[h];
    ref_scores(p, 0, 0, h, scores);
    for (int64_t j = 0; j < N; j++) weight[j] = ref_get(&p->a.out, 0, 0, h, j) * exp(total - scores[j]);
}

/* A predictor that remembers how it was called and answers from a list, head h from
   answer + h * stride on. */
typedef struct oracle {
    const int32_t *answer;
    int64_t stride, answers, calls, batch, q_index, head, begin, end, count;
    float q[DIM];
} oracle;
static int64_t ask(void *user, int64_t batch, int64_t q_index, int64_t head, const float *q, int64_t begin,
                   int64_t end, int64_t count, int32_t *index) {
    oracle *x = (oracle *)user;
    x->calls++;
    x->batch = batch; x->q_index = q_index; x->head = head;
    x->begin = begin; x->end = end;         x->count = count;
    memcpy(x->q, q, sizeof x->q);
    if (x->answers > 0)
        memcpy(index, x->answer + head * x->stride, (size_t)ref_min(x->answers, count) * sizeof *index);
    return x->answers;
}

/* Fixed keys weigh 1, b others n_s/b, the rest 0; the audit says the same. */
static void check_sample(const ref_problem *p, int64_t h, const santa_audit *audit, const char *fixed) {
    double scores[N], weight[N], total = 0.0, top = -REF_INF;
    int64_t sampled = 0, taken_fixed = 0;
    const double w = (double)audit->num_residual / (double)audit->budget, sink = ref_sink(p, h);
    weights(p, h, scores, weight);
    for (int64_t j = 0; j < N; j++) {
        if (fixed[j]) {
            taken_fixed++;
            CHECK_MSG(fabs(weight[j] - 1.0) < 1e-4, "fixed key %d has weight %g", (int)j, weight[j]);
        } else if (weight[j] != 0.0) {
            sampled++;
            CHECK_MSG(fabs(weight[j] / w - 1.0) < 1e-4, "sampled key %d has weight %g, want %g", (int)j,
                      weight[j], w);
        }
        if (weight[j] != 0.0) {
            total += (fixed[j] ? 1.0 : w) * exp(scores[j]);
            top = fmax(top, scores[j]);
        }
    }
    CHECK_INT(audit->num_keys, N);
    CHECK_INT(audit->num_fixed, taken_fixed);
    CHECK_INT(audit->num_residual, N - taken_fixed);
    CHECK_INT(audit->budget, sampled);
    CHECK_INT(audit->exact, sampled == N - taken_fixed);
    CHECK_NEAR(audit->max_score, top, 1e-5, 1e-6);
    CHECK_NEAR(audit->density, (double)(sampled + taken_fixed) / (double)N, 1e-12, 0.0);
    CHECK_NEAR(p->lse[h], log(total + exp(sink)), 1e-5, 1e-6);
    if (audit->budget == audit->num_base) {                  /* all that was sampled is the base sample */
        double d = exp(sink - audit->max_score), sum = 0.0, squares = 0.0;
        for (int64_t j = 0; j < N; j++) {
            const double e = exp(scores[j] - audit->max_score);
            if (weight[j] == 0.0) continue;
            d += (fixed[j] ? 1.0 : w) * e;
            if (!fixed[j]) { sum += e; squares += e * e; }
        }
        const double b = (double)audit->num_base;
        CHECK_NEAR(audit->denominator, d, 0.0, 1e-5);
        CHECK_NEAR(audit->sigma, sqrt((squares - sum * sum / b) / (b - 1.0)), 0.0, 1e-4);
    }
}

/* The heavy keys of the exact oracle: the best of the middle, ties to the lower index. */
static void add_heavy(const double *scores, int64_t begin, int64_t end, int64_t count, char *fixed) {
    for (; count > 0; count--) {
        int64_t best = -1;
        for (int64_t j = begin; j < end; j++)
            if (!fixed[j] && (best < 0 || scores[j] > scores[best])) best = j;
        if (best >= 0) fixed[best] = 1;
    }
}

/* The budget must be the one of the public function for the audit's numbers. */
static int64_t budget_of(const santa_options *o, const santa_audit *audit) {
    santa_budget in;
    int64_t want = 0;
    memset(&in, 0, sizeof in);
    in.epsilon     = o->vattention.epsilon;
    in.delta       = o->vattention.delta;
    in.population  = audit->num_residual;
    in.sigma       = audit->sigma;
    in.denominator = audit->denominator;
    CHECK_STATUS(santa_budget_denominator(&in, &want), SANTA_OK);
    return ref_max(want, audit->num_base);
}

/* Two groups; the heads of each share a fixed set, the union of their heavy keys, and a sample,
   the largest asked for. */
static void check_groups(int64_t heads, uint64_t seed, int base_only, int alibi, int sinks) {
    enum { GROUPS = 2, HEADS = 22 };
    const int64_t group = heads / GROUPS;
    ref_spec s = open_spec(heads, GROUPS);
    ref_problem p;
    santa_audit audit[HEADS];
    santa_stats stats;
    s.alibi = alibi;
    s.sinks = sinks;
    ref_build(&p, &s);
    for (int64_t h = 0; h < heads && alibi; h++) p.slopes[h] *= 0.1f; /* the first keys weigh something */
    open_up(&p);
    santa_options o = open_options(seed);
    o.vattention.epsilon = base_only ? 0.9 : 0.05;
    o.vattention.audit = audit;
    if (ref_run(&p, &o, &stats)) {
        int64_t draws = 0, exact = 0, rows = 0;
        for (int64_t first = 0; first < heads; first += group) {
            char    fixed[N] = {0};
            int64_t largest = 0;
            for (int64_t h = first; h < first + group; h++) {
                double scores[N];
                char   own[N];
                ref_scores(&p, 0, 0, h, scores);
                for (int64_t j = 0; j < N; j++) own[j] = j < 10 || j >= N - 20;
                add_heavy(scores, 10, N - 20, 12, own);
                for (int64_t j = 0; j < N; j++) fixed[j] |= own[j];
                CHECK_INT(audit[h].needed, budget_of(&o, &audit[h]));
                largest = ref_max(largest, audit[h].needed);
            }
            for (int64_t h = first; h < first + group; h++) {
                check_sample(&p, h, &audit[h], fixed);
                CHECK_INT(audit[h].num_base, 40);
                CHECK_INT(audit[h].budget, largest);
                CHECK_MSG(base_only ? largest == 40 : largest > 40, "budget %d", (int)largest);
                CHECK(audit[h].trace == 0.0 && audit[h].norm == 0.0);
                draws += audit[h].budget;
                exact += audit[h].exact;
            }
            rows += audit[first].budget + audit[first].num_fixed;
        }
        CHECK_INT(stats.draws, draws);
        CHECK_INT(stats.exact_rows, exact);
        CHECK_INT(stats.v_rows_read, rows);
        CHECK_INT(stats.v_rows_head, rows * group);
        CHECK_INT(stats.k_rows_read, GROUPS * N);            /* the oracle reads all keys */
    }
    ref_free(&p);
}

static void sets_and_weights(void) {
    static const int64_t groups[] = {1, 2, 4, 11};           /* above 8 a group is worked on in slices */
    for (uint64_t seed = 0; seed < (test_quick ? 4u : 40u); seed++)
        for (int i = 0; i < 4; i++)
            for (int base_only = 0; base_only < 2; base_only++)
                check_groups(2 * groups[i], seed, base_only, 0, 0);
}

/* Each head has its own slope and its own sink, in the second slice of a group as well; the
   sinks count in the budgets. */
static void alibi_and_sinks(void) {
    for (uint64_t seed = 0; seed < (test_quick ? 2u : 10u); seed++)
        for (int64_t group = 1; group <= 11; group += 5)
            for (int base_only = 0; base_only < 2; base_only++)
                for (int which = 1; which < 4; which++)
                    check_groups(2 * group, seed, base_only, which & 1, which >> 1);
}

/* A sink far above the keys, beyond the range of a double's exp too: nothing is left to
   promise, so the base sample will do. */
static void far_sinks(void) {
    static const float above[] = {600.0f, 700.0f, 710.0f, 5000.0f, 1e30f};
    for (int i = 0; i < 5; i++)
        for (int full = 0; full < 2; full++) {
            ref_spec s = open_spec(1, 1);
            ref_problem p;
            santa_audit audit;
            santa_options o = open_options(4);
            s.sinks = 1;
            ref_build(&p, &s);
            open_up(&p);
            p.sinks[0] = above[i];
            o.vattention.guarantee = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
            o.vattention.epsilon   = 0.001;
            o.vattention.audit     = &audit;
            if (ref_run(&p, &o, NULL)) {
                CHECK(p.lse[0] == above[i]);
                for (int64_t c = 0; c < N; c++) CHECK(ref_get(&p.a.out, 0, 0, 0, c) == 0.0);
                CHECK(p.std_error[0] == 0.0f);
                CHECK(audit.denominator > 1e250 && audit.denominator < REF_INF);
                CHECK_INT(audit.num_base, 40);
                if (!full) CHECK_INT(audit.budget, 40);      /* in full the numerator is promised, too */
            }
            ref_free(&p);
        }
}

/* V times 2^100 is out times 2^100, bit for bit, at the same budgets. */
static void huge_values(void) {
    enum { KEYS = 500, DV = 6, HEADS = 2 };
    for (int full = 0; full < 2; full++) {
        ref_spec s = ref_spec_make(HEADS, 1, KEYS, 16);
        ref_problem p;
        santa_audit audit[2][HEADS];
        float out[HEADS * DV], std_error[HEADS];
        santa_options o = ref_options(SANTA_VATTENTION, 0, 9);
        s.head_dim_v = DV;
        ref_build(&p, &s);
        o.vattention.sink_tokens  = o.vattention.local_tokens = 20;
        o.vattention.base_samples = 60;
        o.vattention.guarantee = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
        o.vattention.epsilon   = full ? 0.5 : 0.1;
        o.vattention.delta     = 0.2;
        for (int huge = 0; huge < 2; huge++) {
            o.vattention.audit = audit[huge];
            if (huge) for (int64_t i = 0; i < KEYS * DV; i++) p.v[i] = ldexp(p.v[i], 100);
            ref_write(&p);
            if (!ref_run(&p, &o, NULL)) break;
            for (int64_t i = 0; i < HEADS * DV && huge; i++)
                CHECK_NEAR(((const float *)p.a.out.data)[i], ldexp((double)out[i], 100), 0.0, 0.0);
            for (int h = 0; h < HEADS && huge; h++) {
                const santa_audit *small = &audit[0][h], *large = &audit[1][h];
                CHECK(small->budget > 60 && !small->exact && std_error[h] > 0.0f);
                CHECK_INT(large->needed, small->needed);
                CHECK_INT(large->budget, small->budget);
                CHECK(large->denominator == small->denominator && large->sigma == small->sigma);
                CHECK_NEAR(large->trace, ldexp(small->trace, 200), 0.0, 0.0);
                CHECK_NEAR(large->norm, ldexp(small->norm, 100), 0.0, 0.0);
                CHECK_NEAR(p.std_error[h], ldexp((double)std_error[h], 100), 0.0, 0.0);
                CHECK(full == (small->trace > 0.0));
            }
            memcpy(out, p.a.out.data, sizeof out);
            memcpy(std_error, p.std_error, sizeof std_error);
        }
        ref_free(&p);
    }
}

/* The positions of >>random: stream 2, the group's first head, words 0, 1, ..: word * size >>
   32 between sinks and local tokens, what was taken before passed over. A word whose product's
   low half is below 2^32 mod size is passed over, too, or small positions would come more
   often. Marks the first `count` of them in taken; how many words were unfit by the second
   rule. */
static int64_t draw_positions(const santa_options *o, santa_stream_id id, int64_t first, int64_t size,
                              int64_t count, char *taken) {
    int64_t unfit = 0;
    for (uint32_t i = 0; count > 0; i++) {
        const uint64_t word = santa_random(o->seed, o->offset, id.request_id, 2, (uint32_t)id.head,
                                           (uint32_t)id.q_index, i);
        const uint64_t wide = word * (uint64_t)size;
        const int64_t  key  = first + (int64_t)(wide >> 32);
        if ((wide & 0xffffffffu) < (UINT64_C(1) << 32) % (uint64_t)size) { unfit++; continue; }
        if (taken[key]) continue;
        taken[key] = 1;
        count--;
    }
    return unfit;
}

/* V is the identity and epsilon so large or small that the base sample, or more than it and
   less than half, is read. */
static void known_positions(void) {
    static const int32_t heavy[] = {31, 88, 145, 202, 259, 260, 89, 30, 203, 11};
    enum { ROWS = 2, HEADS = 4, GROUP = 2 };
    const uint64_t requests[] = {UINT64_C(77) << 32, 5};
    int more = 0;
    for (int turn = 0; turn < 16; turn++) {
        ref_spec s = open_spec(HEADS, HEADS / GROUP);
        ref_problem p;
        oracle x;
        santa_audit audit[2 * ROWS * HEADS];
        santa_options o = open_options((UINT64_C(3) << 40) + (uint64_t)turn);
        memset(&x, 0, sizeof x);
        x.answer = heavy;
        x.stride = 2;
        x.answers = turn % 2 ? 2 : 0;
        s.batch = 2;
        s.q_len = ROWS;
        ref_build(&p, &s);
        for (int64_t j = 0; j < 2 * N * (HEADS / GROUP); j++)
            for (int64_t c = 0; c < N; c++) p.v[j * N + c] = j / (HEADS / GROUP) % N == c ? 1.0 : 0.0;
        ref_write(&p);
        o.offset = (UINT64_C(1) << 33) + 8;
        o.request_ids = requests;
        o.vattention.epsilon    = turn % 4 < 2 ? 0.9 : 0.1;
        o.vattention.heavy      = ask;
        o.vattention.heavy_user = &x;
        o.vattention.audit      = audit;
        if (ref_run(&p, &o, NULL))
            for (int64_t row = 0; row < 2 * ROWS * HEADS; row++) {
                const int64_t b = row / (ROWS * HEADS), i = row / HEADS % ROWS, h = row % HEADS;
                const int64_t first = h / GROUP * GROUP;
                char taken[N];
                for (int64_t j = 0; j < N; j++) taken[j] = j < 10 || j >= N - 20;
                for (int64_t head = first; head < first + GROUP; head++)
                    for (int64_t a = 0; a < x.answers; a++) taken[heavy[head * x.stride + a]] = 1;
                if (!CHECK(audit[row].budget >= 40 && 2 * audit[row].budget < audit[row].num_residual))
                    continue;
                more += audit[row].budget > 40;
                draw_positions(&o, ref_stream(requests[b], first, i), 10, N - 30, audit[row].budget, taken);
                for (int64_t j = 0; j < N; j++)
                    CHECK_MSG((ref_get(&p.a.out, b, i, h, j) != 0.0) == taken[j],
                              "turn %d, batch %d, row %d, head %d: key %d",
                              turn, (int)b, (int)i, (int)h, (int)j);
            }
        ref_free(&p);
    }
    CHECK_MSG(more > 20, "only %d rows took more than the base sample", more);
}

/* A size that leaves 2^32 mod size = 1167296: one word in 3700 is unfit. All keys but those
   that the words name hold NaN. */
static void known_positions_of_many(void) {
    const int64_t n = 1400000, base = test_quick ? 20000 : 60000;
    uint16_t *k = (uint16_t *)test_alloc((size_t)n * sizeof *k);
    uint16_t *v = (uint16_t *)test_alloc((size_t)n * sizeof *v);
    char *taken = (char *)test_alloc((size_t)n);
    float q = 1.0f, out = 0.0f, lse = 0.0f;
    santa_audit audit;
    santa_attention a;
    santa_options o = ref_options(SANTA_VATTENTION, 0, 31);
    memset(&a, 0, sizeof a);
    memset(taken, 0, (size_t)n);
    const int64_t unfit = draw_positions(&o, ref_stream(0, 0, 0), 0, n, base, taken);
    CHECK_MSG(unfit > 1, "%d words were unfit", (int)unfit);
    double d = 0.0, top = 0.0;
    for (int64_t j = 0; j < n; j++) {
        const double score = (double)(j % 16) / 8.0, value = (double)(j % 1000);
        k[j] = taken[j] ? ref_encode16(SANTA_F16, score) : 0x7e01;
        v[j] = taken[j] ? ref_encode16(SANTA_F16, value) : 0x7e01;
        if (taken[j]) { d += exp(score); top += exp(score) * value; }
    }
    a.q   = santa_view(&q, SANTA_F32, 1, 1, 1, 1);
    a.k   = santa_view(k, SANTA_F16, 1, n, 1, 1);
    a.v   = santa_view(v, SANTA_F16, 1, n, 1, 1);
    a.out = santa_view(&out, SANTA_F32, 1, 1, 1, 1);
    a.lse = &lse;
    o.vattention.sink_tokens  = o.vattention.local_tokens = o.vattention.heavy_tokens = SANTA_NONE;
    o.vattention.base_samples = base;
    o.vattention.epsilon      = 0.5;
    o.vattention.audit        = &audit;
    const size_t bytes = santa_workspace_size(&a, &o);
    void *workspace = test_alloc(bytes);
    CHECK_STATUS(santa_decode(&a, &o, workspace, bytes, NULL), SANTA_OK);
    CHECK_INT(audit.budget, base);
    CHECK_NEAR(out, top / d, 0.0, 1e-4);
    CHECK_NEAR(lse, log(d * (double)n / (double)base), 1e-5, 0.0);
    free(workspace);
    free(taken);
    free(k);
    free(v);
}

/* Full guarantee: trace and norm in the audit are those of exp(s) v, the budget Theorem
   4.3's. */
static void full_audit(void) {
    ref_spec s = open_spec(1, 1);
    ref_problem p;
    santa_audit audit;
    ref_build(&p, &s);
    open_up(&p);
    santa_options o = open_options(3);
    o.vattention.guarantee = SANTA_GUARANTEE_FULL;
    o.vattention.epsilon   = 0.9;
    o.vattention.sink_tokens = 200;     /* most of the mass is fixed: a small budget does */
    o.vattention.audit = &audit;
    for (int64_t j = 0; j < 200; j++)   /* and points one way */
        for (int64_t c = 0; c < N; c++) p.v[j * N + c] = c == 0 ? 1.0 : 0.0;
    ref_write(&p);
    if (ref_run(&p, &o, NULL)) {
        santa_budget in;
        int64_t      want = 0;
        memset(&in, 0, sizeof in);
        in.epsilon     = 0.9;
        in.delta       = 0.2;
        in.population  = audit.num_residual;
        in.sigma       = audit.sigma;
        in.denominator = audit.denominator;
        in.trace       = audit.trace;
        in.norm        = audit.norm;
        CHECK(audit.trace > 0.0 && audit.norm > 0.0);
        CHECK_STATUS(santa_budget_full(&in, &want), SANTA_OK);
        CHECK_INT(audit.budget, ref_max(want, 40));
        if (CHECK_INT(audit.budget, 40)) { /* then every sampled key is in the base sample */
            double scores[N], weight[N], norm2 = 0.0, square = 0.0, mean2 = 0.0, first = 0.0;
            const double w = (double)audit.num_residual / 40.0;
            weights(&p, 0, scores, weight);
            for (int64_t j = 0; j < N; j++) {
                const double e = exp(scores[j] - audit.max_score), out = ref_get(&p.a.out, 0, 0, 0, j);
                if (j < 200) { first += e; continue; }       /* all of these lie on axis 0 */
                if (out == 0.0) continue;
                const int sampled = weight[j] > 0.5 * (1.0 + w);
                if (sampled) { square += e * e; mean2 += e * e / 1600.0; }
                norm2 += pow(sampled ? w * e : e, 2.0);
            }
            const double trace = (square / 40.0 - mean2) * 40.0 / 39.0, n = (double)audit.num_residual;
            CHECK_NEAR(audit.trace, trace, 0.0, 1e-4);
            /* |N| of the sample less what its noise adds on average */
            CHECK_NEAR(audit.norm, sqrt(norm2 + first * first - trace * n * (n - 40.0) / 40.0), 0.0, 1e-4);
        }
    }
    ref_free(&p);
}

/* With a predictor, keys that the group does not take are not read: NaN in their K and V rows
   changes no bit. What is predicted for one head is fixed for both. */
static void reads_what_it_takes(void) {
    static const int32_t heavy[] = {31, 88, 145, 202, 259, 30, 89, 145, 203, 259};
    enum { HEADS = 2, FIXED = 10 + 20 + 8 };
    FOR_EACH_ISA (isa)
        for (uint64_t seed = 0; seed < 5; seed++)
            for (int full = 0; full < 2; full++) {
                ref_spec s = open_spec(HEADS, 1);
                ref_problem p;
                oracle x;
                float clean[HEADS * N], lse[HEADS];
                santa_stats stats;
                memset(&x, 0, sizeof x);
                x.answer  = heavy;
                x.stride  = x.answers = 5;
                ref_build(&p, &s);
                open_up(&p);
                santa_options o = open_options(seed);
                santa_audit audit[HEADS];
                o.isa = isa;
                o.vattention.guarantee  = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
                o.vattention.epsilon    = full ? 0.9 : 0.1;
                o.vattention.heavy      = ask;
                o.vattention.heavy_user = &x;
                o.vattention.audit      = audit;
                if (full) { /* V = 1: the numerator is as tame as the denominator */
                    for (int64_t i = 0; i < N * N; i++) p.v[i] = 1.0;
                    for (int64_t j = 0; j < N; j++) p.v[j * N + j] = 2.0;
                    ref_write(&p);
                }
                if (!ref_run(&p, &o, &stats)) { ref_free(&p); return; }
                memcpy(clean, p.a.out.data, sizeof clean);
                memcpy(lse, p.lse, sizeof lse);
                int64_t taken = 0;
                for (int64_t j = 0; j < N; j++) {
                    /* with V = 1 + identity, out[j] is above 1 where j was taken */
                    const int got = (double)clean[j] > (full ? 1.0 + 1e-5 : 0.0);
                    CHECK_MSG(got == ((double)clean[N + j] > (full ? 1.0 + 1e-5 : 0.0)),
                              "key %d: one head only", (int)j);
                    if (got) { taken++; continue; }
                    for (int64_t c = 0; c < DIM; c++) ref_set(&p.a.k, 0, j, 0, c, (double)test_nan());
                    for (int64_t c = 0; c < N; c++) ref_set(&p.a.v, 0, j, 0, c, (double)test_nan());
                }
                CHECK_MSG(!audit[0].exact && taken < N - 50, "%d of %d taken", (int)taken, N);
                CHECK_INT(audit[0].num_fixed, FIXED);
                CHECK_INT(taken, FIXED + audit[0].budget);
                CHECK_INT(stats.k_rows_read, taken);
                CHECK_INT(stats.v_rows_read, taken);
                CHECK_INT(stats.v_rows_head, taken * HEADS);
                CHECK_INT(stats.k_features_read, taken * DIM);
                if (ref_run(&p, &o, NULL))
                    CHECK(!memcmp(clean, p.a.out.data, sizeof clean) && !memcmp(lse, p.lse, sizeof lse));
                ref_free(&p);
            }
}

/* The oracle reads every key: a NaN in any of them, at the middle's ends too, spoils the
   row. */
static void oracle_sees_nan(void) {
    enum { SINKS = 3, LOCAL = 5 };
    static const int where[] = {0, SINKS - 1, SINKS, SINKS + 1, N / 2, N - LOCAL - 1, N - LOCAL, N - 1};
    for (int i = 0; i < 8; i++) {
        ref_spec s = open_spec(1, 1);
        ref_problem p;
        ref_build(&p, &s);
        ref_set(&p.a.k, 0, where[i], 0, 1, (double)test_nan());
        santa_options o = open_options(1);
        o.vattention.sink_tokens  = SINKS;
        o.vattention.local_tokens = LOCAL;
        o.vattention.heavy        = NULL;
        if (ref_run(&p, &o, NULL))
            CHECK_MSG(test_is_nan(p.lse[0]) && test_is_nan((float)ref_get(&p.a.out, 0, 0, 0, 0)),
                      "NaN in key %d", where[i]);
        ref_free(&p);
    }
}

static void predictors(void) {
    enum { MANY = 64 };
    int32_t answer[MANY];
    for (int kind = 0; kind < 6; kind++) {
        ref_spec s = open_spec(2, 1);
        s.q_type = SANTA_F16;
        ref_problem p;
        oracle x;
        santa_audit audit[2];
        char fixed[N];
        memset(&x, 0, sizeof x);
        memset(fixed, 0, sizeof fixed);
        for (int64_t j = 0; j < N; j++) fixed[j] = j < 10 || j >= N - 20;
        x.answer = answer;
        for (int i = 0; i < MANY; i++) answer[i] = 40 + 3 * i;
        switch (kind) {
            case 0: x.answers = 12; break;                               /* all it was asked for       */
            case 1: x.answers = 4; break;                                /* fewer                      */
            case 2: x.answers = 0; break;
            case 3: x.answers = -5; break;
            case 4:                                                      /* twice, sinks, local, wild  */
                x.answers = 10;
                answer[1] = answer[0];
                answer[2] = 9;         answer[3] = N - 20; answer[4] = -1; answer[5] = N;
                answer[6] = INT32_MAX; answer[7] = INT32_MIN; answer[8] = 10; answer[9] = N - 21;
                break;
            default: x.answers = 1 << 30; break;                         /* claims more than it may    */
        }
        for (int64_t i = 0; i < ref_min(x.answers, 12); i++)
            if (answer[i] >= 10 && answer[i] < N - 20) fixed[answer[i]] = 1;
        ref_build(&p, &s);
        open_up(&p);
        santa_options o = open_options(7);
        o.vattention.heavy      = ask;
        o.vattention.heavy_user = &x;
        o.vattention.audit      = audit;
        if (ref_run(&p, &o, NULL)) {
            for (int64_t h = 0; h < 2; h++) check_sample(&p, h, &audit[h], fixed);
            CHECK_INT(x.calls, 2);
            CHECK_INT(x.batch, 0);
            CHECK_INT(x.q_index, 0);
            CHECK_INT(x.head, 1);
            CHECK_INT(x.begin, 10);
            CHECK_INT(x.end, N - 20);
            CHECK_INT(x.count, 12);
            for (int c = 0; c < DIM; c++) CHECK((double)x.q[c] == p.q[DIM + c]);
        }
        ref_free(&p);
    }
}

/* Every residual key is sampled with the same probability b / n_s; heads of a group share the
   sample, groups draw independently. */
static void uniform_sample(void) {
    enum { BASE = 40, GROUPS = 2 };
    const int64_t requests = test_quick ? 300 : 4000, at_once = test_quick ? 300 : 500;
    ref_spec s = open_spec(4, GROUPS);
    ref_problem p;
    ref_build(&p, &s);
    open_up(&p);
    santa_options o = open_options(5);
    o.vattention.epsilon      = 0.99;
    o.vattention.heavy_tokens = SANTA_NONE;
    ref_replicate(&p, at_once);
    static double hits[GROUPS][N], both[N];
    memset(hits, 0, sizeof hits);
    memset(both, 0, sizeof both);
    for (int64_t done = 0; done < requests; done += at_once) {
        o.seed = (uint64_t)done;
        if (!ref_run(&p, &o, NULL)) break;
        for (int64_t b = 0; b < at_once; b++)
            for (int64_t j = 0; j < N; j++) {
                int got[4];
                for (int64_t h = 0; h < 4; h++) got[h] = ref_get(&p.a.out, b, 0, h, j) != 0.0;
                CHECK_MSG(got[0] == got[1] && got[2] == got[3], "key %d: not the same for the group",
                          (int)j);
                hits[0][j] += got[0];
                hits[1][j] += got[2];
                both[j]    += got[0] && got[2];
            }
    }
    const double draws = (double)requests, share = (double)BASE / (double)(N - 30);
    double chi[GROUPS] = {0.0, 0.0}, pairs = 0.0;
    for (int64_t j = 0; j < N; j++) {
        if (j < 10 || j >= N - 20) { CHECK(hits[0][j] == draws && hits[1][j] == draws); continue; }
        for (int i = 0; i < GROUPS; i++) {
            const double z = (hits[i][j] - draws * share) / sqrt(draws * share * (1.0 - share));
            CHECK_MSG(fabs(z) < 5.0, "key %d sampled %g times of %g, z = %.1f", (int)j, hits[i][j], draws,
                      z);
            chi[i] += z * z;
        }
        pairs += both[j];
    }
    const double freedom = N - 31;
    for (int i = 0; i < GROUPS; i++) CHECK_NEAR(chi[i], freedom, 5.0 * sqrt(2.0 * freedom), 0.0);
    /* overlap of two independent samples of 40 out of 370: hypergeometric */
    const double mean = (double)BASE * share;
    const double variance = mean * (1.0 - share) * (double)(N - 30 - BASE) / (double)(N - 31);
    CHECK_NEAR(pairs / draws, mean, 5.0 * sqrt(variance / draws), 0.0);
    ref_free(&p);
}

/* ------------------------------------------------------------ the promise */

/* A context with a few heavy keys and a long mild tail, seen by a group of heads. Returns how
   often the relative error of the denominator [0] and of the output [1] was above epsilon for
   the head that missed most; density in *density. */
static void coverage(santa_options o, double epsilon, int64_t heads, int centred, double rate[2],
                     double *density) {
    enum { KEYS = 3000, HEADS = 4 };
    const int64_t draws = test_quick ? 200 : 2000, at_once = 200, dv = 6;
    ref_spec s = ref_spec_make(heads, 1, KEYS, 16);
    s.head_dim_v = dv;
    s.gain = 0.7;
    ref_problem p;
    double exact[HEADS][6], lse[HEADS], missed[HEADS][2] = {{0.0}}, out[6];
    ref_build(&p, &s);
    stand_out(&p, 100, 97, 4.0);
    if (centred)
        for (int64_t i = 0; i < KEYS * dv; i++) p.v[i] -= 0.5;
    ref_write(&p);
    for (int64_t h = 0; h < heads; h++) lse[h] = ref_dense(&p, 0, 0, h, exact[h], NULL);
    ref_replicate(&p, at_once);
    santa_audit *audit = (santa_audit *)test_alloc((size_t)(at_once * heads) * sizeof *audit);
    o.vattention.audit = audit;
    rate[0] = rate[1] = *density = 0.0;
    for (int64_t done = 0; done < draws; done += at_once) {
        o.offset = (uint64_t)done;
        if (!ref_run(&p, &o, NULL)) break;
        for (int64_t i = 0; i < at_once * heads; i++) {
            const int64_t b = i / heads, h = i % heads;
            ref_out(&p, b, 0, h, out);
            missed[h][0] += fabs(exp((double)p.lse[i] - lse[h]) - 1.0) > epsilon;
            missed[h][1] += sqrt(ref_distance2(out, exact[h], dv) / ref_length2(exact[h], dv)) > epsilon;
            *density += audit[i].density / (double)(draws * heads);
        }
    }
    for (int64_t h = 0; h < heads; h++)
        for (int i = 0; i < 2; i++) rate[i] = fmax(rate[i], missed[h][i] / (double)draws);
    free(audit);
    ref_free(&p);
}

static santa_options promise(santa_guarantee guarantee, santa_bound bound, double epsilon, double delta) {
    santa_options o = ref_options(SANTA_VATTENTION, 0, 77);
    o.vattention.sink_tokens  = 16;
    o.vattention.local_tokens = 32;
    o.vattention.heavy_tokens = 40;
    o.vattention.base_samples = 100;
    o.vattention.guarantee = guarantee;
    o.vattention.bound     = bound;
    o.vattention.epsilon   = epsilon;
    o.vattention.delta     = delta;
    return o;
}

/* Denominator: missed with probability delta under the CLT (not never: then the budget would be
   waste), hardly ever under Hoeffding; and asked for twice the tolerance it must fail the
   test. */
static void denominator_coverage(void) {
    static const double deltas[] = {0.05, 0.2};
    const double draws = test_quick ? 200.0 : 2000.0, epsilon = 0.03;
    double rate[2], density;
    for (int i = 0; i < 2; i++) {
        const double noise = 5.0 * sqrt(deltas[i] * (1.0 - deltas[i]) / draws);
        coverage(promise(SANTA_GUARANTEE_DENOMINATOR, SANTA_BOUND_CLT, epsilon, deltas[i]), epsilon, 1, 0,
                 rate, &density);
        /* the spread itself is estimated, from 100 keys of a skewed tail: a quarter more misses
           than delta */
        CHECK_MSG(rate[0] <= 1.25 * deltas[i] + noise, "CLT, delta %g: missed %.3f, density %.2f",
                  deltas[i], rate[0], density);
        CHECK_MSG(rate[0] >= 0.4 * deltas[i] - noise, "CLT, delta %g: missed %.3f, density %.2f", deltas[i],
                  rate[0], density);
        CHECK_MSG(density < 0.8, "density %.2f", density);
        coverage(promise(SANTA_GUARANTEE_DENOMINATOR, SANTA_BOUND_HOEFFDING, epsilon, deltas[i]), epsilon,
                 1, 0, rate, &density);
        CHECK_MSG(rate[0] <= 0.5 * deltas[i], "Hoeffding, delta %g: missed %.3f, density %.2f", deltas[i],
                  rate[0], density);
        coverage(promise(SANTA_GUARANTEE_DENOMINATOR, SANTA_BOUND_CLT, 2.0 * epsilon, deltas[i]), epsilon,
                 1, 0, rate, &density);
        CHECK_MSG(rate[0] > 1.25 * deltas[i] + noise,
                  "twice the tolerance, delta %g: missed %.3f only, density %.3f", deltas[i], rate[0],
                  density);
    }
}

/* Heads that read one sample keep what each was promised; with twice the tolerance the test
   must fail. */
static void group_coverage(void) {
    const double draws = test_quick ? 200.0 : 2000.0, epsilon = 0.03, delta = 0.2;
    const double noise = 5.0 * sqrt(delta * (1.0 - delta) / draws);
    double rate[2], density;
    coverage(promise(SANTA_GUARANTEE_DENOMINATOR, SANTA_BOUND_CLT, epsilon, delta), epsilon, 4, 0, rate,
             &density);
    CHECK_MSG(rate[0] <= 1.25 * delta + noise, "missed %.3f, density %.2f", rate[0], density);
    CHECK_MSG(density < 0.9, "density %.2f", density);
    coverage(promise(SANTA_GUARANTEE_DENOMINATOR, SANTA_BOUND_CLT, 2.0 * epsilon, delta), epsilon, 4, 0,
             rate, &density);
    CHECK_MSG(rate[0] > 1.25 * delta + noise, "twice the tolerance: missed %.3f only, density %.2f",
              rate[0], density);
}

/* The output to epsilon in full mode; with centred V the denominator's guarantee alone bounds
   nothing. */
static void full_coverage(void) {
    const double epsilon = 0.2, delta = 0.2;
    double rate[2], density;
    for (int bound = 0; bound < 2; bound++) {
        coverage(promise(SANTA_GUARANTEE_FULL, (santa_bound)bound, epsilon, delta), epsilon, 1, 0, rate,
                 &density);
        CHECK_MSG(rate[1] <= delta, "full, bound %d: missed %.3f, density %.2f", bound, rate[1], density);
        CHECK_MSG(density < 0.9, "full, bound %d: density %.2f", bound, density);
    }
    coverage(promise(SANTA_GUARANTEE_DENOMINATOR, SANTA_BOUND_CLT, 0.1, delta), 0.1, 1, 1, rate, &density);
    CHECK_MSG(rate[0] <= 0.3 && rate[1] > 0.5, "centred V: denominator missed %.3f, output %.3f", rate[0],
              rate[1]);
    santa_options o = promise(SANTA_GUARANTEE_FULL, SANTA_BOUND_CLT, 0.1, delta);
    o.vattention.base_samples = 1000; /* |N| is near 0 and must be estimated before it is divided by */
    coverage(o, 0.1, 1, 1, rate, &density);
    CHECK_MSG(rate[1] <= delta, "centred V, full: missed %.3f, density %.2f", rate[1], density);
}

/* std_error against the true error over many draws. */
static void standard_error(void) {
    for (int full = 0; full < 2; full++) {
        const int64_t draws = test_quick ? 200 : 2000;
        ref_spec s = ref_spec_make(2, 1, 1000, 16);
        s.head_dim_v = 6;
        s.sinks = full;
        ref_problem p;
        double exact[2][6], out[6];
        ref_build(&p, &s);
        for (int h = 0; h < 2; h++) ref_dense(&p, 0, 0, h, exact[h], NULL);
        ref_replicate(&p, draws);
        santa_options o = promise(full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR,
                                  SANTA_BOUND_CLT, full ? 0.3 : 0.028, 0.2);
        santa_stats stats;
        if (ref_run(&p, &o, &stats)) {
            /* about half of the residual is read, so that the correction for a finite
               population counts */
            const double read = (double)stats.draws / (double)(2 * draws * (1000 - 88));
            CHECK_MSG(read > 0.3 && read < 0.8 && stats.exact_rows == 0, "%.2f of the residual read", read);
            for (int h = 0; h < 2; h++) {
                double error2 = 0.0, estimate2 = 0.0;
                for (int64_t b = 0; b < draws; b++) {
                    ref_out(&p, b, 0, h, out);
                    for (int c = 0; c < 6; c++) error2 += pow(out[c] - exact[h][c], 2.0);
                    estimate2 += pow((double)p.std_error[b * 2 + h], 2.0);
                }
                CHECK_MSG(fabs(estimate2 / error2 - 1.0) < (test_quick ? 0.35 : 0.15),
                          "full %d, head %d: estimated/true variance %.3f", full, h, estimate2 / error2);
            }
        }
        ref_free(&p);
    }
}

/* ------------------------------------------------------------ edges */

/* Must be dense attention, every key with weight 1. */
static void check_exact(const ref_spec *spec, santa_options o, const char *what, int64_t heads) {
    ref_problem p;
    double want[64], got[64];
    santa_audit audit[16];
    santa_stats stats;
    ref_build(&p, spec);
    o.vattention.audit = audit;
    if (ref_run(&p, &o, &stats))
        for (int64_t h = 0; h < heads; h++) {
            const double lse = ref_dense(&p, 0, 0, h, want, NULL);
            ref_out(&p, 0, 0, h, got);
            for (int64_t c = 0; c < spec->head_dim_v; c++)
                CHECK_MSG(fabs(got[c] - want[c]) < 1e-5, "%s: got %.9g, want %.9g", what, got[c], want[c]);
            CHECK_NEAR(p.lse[h], lse, 1e-5, 1e-6);
            CHECK(p.std_error[h] == 0.0f);
            CHECK_INT(audit[h].exact, 1);
            CHECK_INT(audit[h].num_fixed + audit[h].budget, audit[h].num_keys);
            CHECK_INT(audit[h].num_residual, audit[h].budget);
            CHECK_NEAR(audit[h].density, 1.0, 0.0, 0.0);
            /* where a base sample was drawn first, it is the estimate that led to taking all */
            if (audit[h].num_base == 0)
                CHECK_NEAR(audit[h].denominator, exp(lse - audit[h].max_score), 0.0, 1e-5);
        }
    CHECK_INT(stats.exact_rows, heads);
    ref_free(&p);
}

static void exact_edges(void) {
    ref_spec s = ref_spec_make(4, 2, 700, 16);
    santa_options o = ref_options(SANTA_VATTENTION, 0, 1);
    o.vattention.epsilon = 1e-6;
    check_exact(&s, o, "budget beyond the residual", 4);
    o.vattention.guarantee = SANTA_GUARANTEE_FULL;
    check_exact(&s, o, "full budget beyond the residual", 4);
    o = ref_options(SANTA_VATTENTION, 0, 1);
    o.vattention.base_samples = 5000;
    check_exact(&s, o, "base sample beyond the residual", 4);
    o.vattention.base_samples = 700 - 128 - 128 - 18;
    check_exact(&s, o, "base sample just the residual", 4);
    o.vattention.heavy_tokens = 10000;
    check_exact(&s, o, "all keys heavy", 4);
    o = ref_options(SANTA_VATTENTION, 0, 1);
    o.vattention.sink_tokens = 700;
    check_exact(&s, o, "all keys sinks", 4);
    o.vattention.sink_tokens  = 300;
    o.vattention.local_tokens = 650;
    check_exact(&s, o, "sinks and window overlap", 4);
    s.sinks = 1;
    check_exact(&s, o, "with an attention sink", 4);
    for (int64_t n = 1; n < 300; n = n * 2 + 1) {
        s = ref_spec_make(4, 2, n, 16);
        check_exact(&s, ref_options(SANTA_VATTENTION, 0, 1), "few keys", 4);
    }
    s = ref_spec_make(2, 1, 100, 16);
    o = ref_options(SANTA_VATTENTION, 0, 1);
    o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens = SANTA_NONE;
    o.vattention.epsilon = 1e-6;
    check_exact(&s, o, "nothing fixed", 2);
}

/* All residual scores equal: no spread, so the base sample is enough, and the denominator is
   exact. */
static void no_spread(void) {
    ref_spec s = ref_spec_make(1, 1, 1000, 16);
    ref_problem p;
    santa_audit audit;
    double out[16];
    ref_build(&p, &s);
    for (int64_t j = 0; j < 1000; j++)
        for (int c = 0; c < 16; c++) p.k[j * 16 + c] = p.k[500 * 16 + c];
    ref_write(&p);
    for (int full = 0; full < 2; full++) {
        santa_options o = ref_options(SANTA_VATTENTION, 0, 1);
        o.vattention.base_samples = 50;
        o.vattention.guarantee = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
        o.vattention.audit = &audit;
        if (full) {
            for (int64_t i = 0; i < 1000 * 16; i++) p.v[i] = p.v[i % 16];
            ref_write(&p);
        }
        const double lse = ref_dense(&p, 0, 0, 0, out, NULL);
        if (!ref_run(&p, &o, NULL)) break;
        CHECK_INT(audit.budget, 50);
        CHECK_INT(audit.exact, 0);
        CHECK_NEAR(audit.sigma, 0.0, 1e-3, 0.0);
        CHECK_NEAR(p.lse[0], lse, 1e-5, 0.0);
    }
    ref_free(&p);
}

static void defaults(void) {
    ref_spec s = ref_spec_make(1, 1, 8000, 4);
    s.head_dim_v = 1;
    ref_problem p;
    santa_audit audit;
    ref_build(&p, &s);
    santa_options o = ref_options(SANTA_VATTENTION, 0, 1);
    o.vattention.audit = &audit;
    if (ref_run(&p, &o, NULL)) {
        CHECK_INT(audit.num_keys, 8000);
        CHECK_INT(audit.num_fixed, 128 + 128 + 200);         /* 2.5 % of 8000 */
        CHECK_INT(audit.num_residual, 8000 - 456);
        CHECK_INT(audit.num_base, 189);                      /* 2.5 % of 7544 */
        santa_budget in;
        int64_t want = 0;
        memset(&in, 0, sizeof in);
        in.epsilon     = in.delta = 0.05;
        in.population  = audit.num_residual;
        in.sigma       = audit.sigma;
        in.denominator = audit.denominator;
        CHECK_STATUS(santa_budget_denominator(&in, &want), SANTA_OK);
        CHECK_INT(audit.budget, ref_max(want, 189));
    }
    o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens = SANTA_NONE;
    if (ref_run(&p, &o, NULL)) {
        CHECK_INT(audit.num_fixed, 0);
        CHECK_INT(audit.num_base, 200);
    }
    /* 2.5 % rounded up */
    static const int32_t lens[] = {7960, 7961, 1281, 1280, 1000}, base[] = {199, 200, 33, 32, 32};
    for (int i = 0; i < 5; i++) {
        p.a.seq_lens = &lens[i];
        if (ref_run(&p, &o, NULL)) CHECK_INT(audit.num_base, base[i]);
    }
    p.a.seq_lens = NULL;
    ref_free(&p);
}

/* Masks: sets are counted among the keys the row sees; nothing outside is taken. */
static void masks(void) {
    ref_spec s = open_spec(1, 1);
    s.q_len  = 2;
    s.causal = 1;
    s.window = 300;
    ref_problem p;
    santa_audit audit[2];
    ref_build(&p, &s);
    open_up(&p);
    santa_options o = open_options(2);
    o.vattention.audit = audit;
    if (ref_run(&p, &o, NULL))
        for (int64_t i = 0; i < 2; i++) {
            const int64_t position = N - 2 + i, begin = position - 299;
            int64_t taken = 0;
            for (int64_t j = 0; j < N; j++) {
                const int got = ref_get(&p.a.out, 0, i, 0, j) != 0.0;
                taken += got;
                if (j < begin || j > position) CHECK_MSG(!got, "row %d took key %d", (int)i, (int)j);
                else if (j < begin + 10 || j > position - 20)
                    CHECK_MSG(got, "row %d did not take key %d", (int)i, (int)j);
            }
            CHECK_INT(audit[i].num_keys, 300);
            CHECK_INT(audit[i].num_fixed, 42);
            CHECK_INT(taken, 42 + audit[i].budget);
        }
    ref_free(&p);
}

/* A NaN that is read shows in the output, in K in the log-sum-exp, too. No budget can be made
   of a NaN score: the base sample is all that is read then. */
static void broken_rows(void) {
    for (int place = 0; place < 4; place++)
        for (int full = 0; full < 2; full++) {
            const int in_v = place / 2, fixed = place % 2 == 0;
            ref_spec s = ref_spec_make(2, 1, 500, 8);
            ref_problem p;
            santa_audit audit[2];
            santa_options o = ref_options(SANTA_VATTENTION, 0, 3);
            s.gain = 1.5;
            ref_build(&p, &s);
            for (int64_t j = fixed ? 0 : 8; j < (fixed ? 1 : 492); j++)
                (in_v ? p.v : p.k)[j * 8 + 2] = (double)test_nan();
            ref_write(&p);
            o.vattention.sink_tokens = o.vattention.local_tokens = 8;
            o.vattention.heavy_tokens = SANTA_NONE;
            o.vattention.base_samples = 40;
            o.vattention.epsilon = 0.5;
            o.vattention.guarantee = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
            o.vattention.audit = audit;
            if (ref_run(&p, &o, NULL))
                for (int h = 0; h < 2; h++) {
                    CHECK(test_is_nan((float)ref_get(&p.a.out, 0, 0, h, 2)));
                    CHECK_INT(test_is_nan(p.lse[h]), !in_v);
                    if (!in_v) CHECK_INT(audit[h].needed, 40);
                    /* of a NaN in V no bound is known: all keys */
                    if (in_v && full) CHECK_INT(audit[h].needed, audit[h].num_residual);
                    if (in_v && full) CHECK_INT(audit[h].exact, 1);
                    CHECK(audit[h].needed >= 40 && audit[h].budget <= audit[h].num_residual);
                }
            ref_free(&p);
        }
}

/* Beside an infinite result no error is known. */
static void infinite_values(void) {
    ref_spec s = ref_spec_make(2, 1, 500, 8);
    ref_problem p;
    santa_options o = ref_options(SANTA_VATTENTION, 0, 3);
    s.gain = 1.5;
    ref_build(&p, &s);
    for (int64_t j = 0; j < 500; j++) ref_set(&p.a.v, 0, j, 0, 2, REF_INF);
    o.vattention.sink_tokens = o.vattention.local_tokens = 8;
    o.vattention.heavy_tokens = SANTA_NONE;
    o.vattention.base_samples = 40;
    o.vattention.epsilon = 0.5;
    if (CHECK(p.a.std_error) && ref_run(&p, &o, NULL))
        for (int h = 0; h < 2; h++) {
            CHECK(ref_get(&p.a.out, 0, 0, h, 2) == REF_INF);
            CHECK(test_is_nan(p.std_error[h]));
        }
    ref_free(&p);
}

/* Every score is -inf, by ALiBi: no mass, so zeros and no error, as with the other methods. */
static void no_mass(void) {
    ref_spec s = ref_spec_make(2, 1, 600, 8);
    ref_problem p;
    santa_audit audit[2];
    ref_build(&p, &s);
    for (int64_t i = 0; i < 2 * 8; i++) p.q[i] = 1e30;
    for (int64_t i = 0; i < 600 * 8; i++) p.k[i] = -1e30;
    ref_write(&p);
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        santa_options o = ref_options((santa_method)m, 16, 1);
        if (m == SANTA_VATTENTION) {
            o.vattention.audit = audit;
            o.vattention.base_samples = 20;
            o.vattention.heavy_tokens = SANTA_NONE;
        }
        p.a.std_error = ref_has_error((santa_method)m) ? p.std_error : NULL;
        p.std_error[0] = p.std_error[1] = test_nan();
        if (!ref_run(&p, &o, NULL)) break;
        for (int h = 0; h < 2; h++) {
            CHECK_MSG(p.lse[h] == -INFINITY, "%s: lse %g", santa_method_name(o.method), (double)p.lse[h]);
            if (p.a.std_error)
                CHECK_MSG(p.std_error[h] == 0.0f, "%s: std_error %g", santa_method_name(o.method),
                          (double)p.std_error[h]);
            for (int c = 0; c < 8; c++) CHECK(ref_get(&p.a.out, 0, 0, h, c) == 0.0);
        }
    }
    ref_free(&p);
}

/* Nearly all of a long row is wanted: drawing until each was hit would take 16 words a key, and
   for the longest rows more than there are indices of 32 bits. The keys left out must be
   uniform. */
static void nearly_all(void) {
    enum { LONG = 20000, OUT = 40 };
    const int64_t draws = test_quick ? 100 : 400;
    float *q = ref_floats(1), *k = ref_floats(LONG), *v = ref_floats(LONG), out = 0.0f;
    double sum = 0.0, squares = 0.0;
    for (int j = 0; j < LONG; j++) { k[j] = 0.0f; v[j] = (float)(j < LONG / 2); }
    q[0] = 1.0f;
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(q, SANTA_F32, 1, 1, 1, 1);
    a.k = santa_view(k, SANTA_F32, 1, LONG, 1, 1);
    a.v = santa_view(v, SANTA_F32, 1, LONG, 1, 1);
    a.out = santa_view(&out, SANTA_F32, 1, 1, 1, 1);
    santa_options o = ref_options(SANTA_VATTENTION, 0, 3);
    o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens = SANTA_NONE;
    o.vattention.base_samples = LONG - OUT;
    const size_t bytes = santa_workspace_size(&a, &o);
    void *workspace = test_alloc(bytes);
    santa_stats stats;
    for (int64_t i = 0; i < draws; i++) {
        o.offset = (uint64_t)i;
        if (!CHECK_STATUS(santa_decode(&a, &o, workspace, bytes, &stats), SANTA_OK)) break;
        CHECK_INT(stats.v_rows_read, LONG - OUT);
        const double left_out = (double)LONG / 2.0 - (double)out * (LONG - OUT); /* of the first half */
        sum += left_out;
        squares += left_out * left_out;
    }
    CHECK_MEAN_Z("keys of the first half left out", sum, squares, draws, OUT / 2.0, 5.0);
    /* hypergeometric */
    CHECK_NEAR(squares / (double)draws - pow(sum / (double)draws, 2.0), OUT / 4.0, 0.0, 0.5);
    free(q); free(k); free(v); free(workspace);
}

/* A predictor that says it wrote more than it did: what lay there before must not count. */
static int64_t boast(void *user, int64_t batch, int64_t q_index, int64_t head, const float *q,
                     int64_t begin, int64_t end, int64_t count, int32_t *index) {
    (void)user; (void)batch; (void)q_index; (void)head; (void)q; (void)end;
    index[0] = (int32_t)begin;
    return count;
}

static void boasting_predictor(void) {
    ref_spec s = open_spec(1, 1);
    ref_problem p;
    santa_audit audit[2];
    float out[2][N];
    ref_build(&p, &s);
    open_up(&p);
    santa_options o = open_options(4);
    o.vattention.heavy = boast;
    const size_t bytes = santa_workspace_size(&p.a, &o);
    char *workspace = (char *)test_alloc(bytes);
    for (int i = 0; i < 2; i++) {
        int32_t *old = (int32_t *)(void *)workspace;
        for (size_t w = 0; w < bytes / sizeof *old; w++) old[w] = (int32_t)(i ? 50 + w % 300 : 0);
        o.vattention.audit = &audit[i];
        CHECK_STATUS(santa_decode(&p.a, &o, workspace, bytes, NULL), SANTA_OK);
        for (int c = 0; c < N; c++) out[i][c] = (float)ref_get(&p.a.out, 0, 0, 0, c);
    }
    CHECK_INT(audit[0].num_fixed, 10 + 20 + 1);
    CHECK(!memcmp(&audit[0], &audit[1], sizeof audit[0]) && !memcmp(out[0], out[1], sizeof out[0]));
    free(workspace);
    ref_free(&p);
}

/* An array of heavy keys gives what a predictor with the same answer does, to the bit;
   duplicates, -1 and keys outside of the middle are dropped, and what lies between its rows is
   not looked at. */
static void array_of_heavy_keys(void) {
    enum { ROWS = 3, HEADS = 4, COUNT = 6, STRIDE = 9, ALL = 2 * ROWS * HEADS };
    static const int32_t wild[COUNT] = {-1, 9, N - 20, INT32_MIN, INT32_MAX, N};
    for (int turn = 0; turn < 4; turn++) {
        ref_spec s = open_spec(HEADS, 2);
        ref_problem p;
        oracle x;
        int32_t answer[HEADS * COUNT], index[ALL * STRIDE];
        santa_audit audit[2][ALL];
        float out[2][ALL];
        test_rng r = test_rng_make((uint64_t)turn);
        const int64_t stride = turn % 2 ? STRIDE : COUNT;
        s.batch = 2;
        s.q_len = ROWS;
        ref_build(&p, &s);
        stand_out(&p, 31, 57, 3.0);
        ref_write(&p);
        memset(&x, 0, sizeof x);
        memset(out, 0, sizeof out);
        x.answer = answer;
        x.stride = x.answers = COUNT;
        for (int i = 0; i < HEADS * COUNT; i++)
            answer[i] = turn == 3        ? wild[i % COUNT]
                        : i % COUNT == 4 ? answer[i - 2]
                                         : (int32_t)(12 + test_below(&r, N - 40));
        for (int i = 0; i < ALL * STRIDE; i++) index[i] = 100 + i % 200;
        for (int64_t row = 0; row < ALL; row++)
            memcpy(index + row * stride, answer + row % HEADS * COUNT, COUNT * sizeof *index);
        santa_options o = open_options((uint64_t)turn);
        o.vattention.heavy_tokens = COUNT;
        for (int i = 0; i < 2; i++) {
            o.vattention.audit = audit[i];
            o.vattention.heavy = i ? NULL : ask;
            o.vattention.heavy_user   = &x;
            o.vattention.heavy_index  = i ? index : NULL;
            o.vattention.heavy_stride = i && turn % 2 ? STRIDE : 0;
            if (!ref_run(&p, &o, NULL)) continue;
            for (int64_t row = 0; row < ALL; row++)
                out[i][row] = (float)ref_get(&p.a.out, row / (ROWS * HEADS), row / HEADS % ROWS,
                                             row % HEADS, 31);
        }
        CHECK(!memcmp(audit[0], audit[1], sizeof audit[0]) && !memcmp(out[0], out[1], sizeof out[0]));
        CHECK(turn == 3 ? audit[1][0].num_fixed == 30 : audit[1][0].num_fixed > 35);
        ref_free(&p);
    }
}

/* The base sample sets the budget and counts in the sums: one that happens to be flat asks for
   few more keys and then weighs much. The manual says how much that lowers D on average. */
static santa_options gaussian_promise(santa_bound bound, int heavy, int64_t base, double delta) {
    santa_options o = ref_options(SANTA_VATTENTION, 0, 9);
    o.vattention.bound = bound;
    o.vattention.heavy_tokens = heavy ? 0 : SANTA_NONE;
    o.vattention.base_samples = base;
    o.vattention.epsilon = 0.1;
    o.vattention.delta = delta;
    return o;
}

/* Scores N(0, 1), whose masses have a skewed tail: how often the manual says that epsilon is
   missed, over many sets of keys. */
static void gaussian_coverage(void) {
    enum { SETS = 40, WAYS = 4 };
    static const double deltas[] = {0.05, 0.1};
    static const char *const names[] = {"CLT, heavy tokens", "CLT, none",
                                        "CLT, none, 400 in the base sample", "Hoeffding, none"};
    /* in delta: what the manual says, and a fifth */
    static const double most[] = {1.3, 2.0, 1.5, 0.8};
    const int64_t draws = test_quick ? 20 : 250;
    double rate[WAYS][2] = {{0.0}};
    for (int set = 0; set < SETS; set++) {
        ref_spec s = ref_spec_make(1, 1, 4096, 4);
        s.head_dim_v = 1;
        s.stream = (uint64_t)(100 + set);
        ref_problem p;
        double exact;
        ref_build(&p, &s);
        stand_out(&p, 4096, 1, 0.0);
        ref_write(&p);
        const double lse = ref_dense(&p, 0, 0, 0, &exact, NULL);
        ref_replicate(&p, draws);
        for (int i = 0; i < 2 * WAYS; i++) {
            const int way = i / 2;
            const santa_options o = gaussian_promise(way == 3 ? SANTA_BOUND_HOEFFDING : SANTA_BOUND_CLT,
                                                     way == 0, way == 2 ? 400 : 0, deltas[i % 2]);
            if (!ref_run(&p, &o, NULL)) continue;
            for (int64_t b = 0; b < draws; b++)
                rate[way][i % 2] += fabs(exp((double)p.lse[b] - lse) - 1.0) > 0.1;
        }
        ref_free(&p);
    }
    for (int way = 0; way < WAYS; way++)
        for (int i = 0; i < 2; i++) {
            const double calls = (double)(SETS * draws), missed = rate[way][i] / calls,
                         noise = 5.0 * sqrt(deltas[i] * (1.0 - deltas[i]) / calls);
            printf("        %s: epsilon missed in %.2f delta, delta = %g\n", names[way],
                   missed / deltas[i], deltas[i]);
            CHECK_MSG(missed <= most[way] * deltas[i] + noise, "%s: missed in %.3f, delta %g", names[way],
                      missed, deltas[i]);
            /* what costs more misses shows */
            if (way == 1)
                CHECK_MSG(missed >= 1.1 * deltas[i] - noise, "%s: missed in %.3f only, delta %g",
                          names[way], missed, deltas[i]);
        }
}

static void reuse_bias(void) {
    const int64_t draws = test_quick ? 1000 : 10000;
    ref_spec s = ref_spec_make(1, 1, 2000, 4);
    s.head_dim_v = 1;
    ref_problem p;
    double exact, sum = 0.0, squares = 0.0;
    ref_build(&p, &s);
    stand_out(&p, 2000, 1, 0.0);                             /* scores are N(0, 1) */
    ref_write(&p);
    const double lse = ref_dense(&p, 0, 0, 0, &exact, NULL);
    ref_replicate(&p, draws);
    santa_options o = ref_options(SANTA_VATTENTION, 0, 9);
    o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens = SANTA_NONE;
    o.vattention.base_samples = 40;
    o.vattention.epsilon = o.vattention.delta = 0.1;
    if (ref_run(&p, &o, NULL)) {
        for (int64_t b = 0; b < draws; b++) {
            const double x = exp((double)p.lse[b] - lse) - 1.0;
            sum += x;
            squares += x * x;
        }
        const double bias = sum / (double)draws, noise = sqrt(squares / (double)draws / (double)draws);
        CHECK_MSG(bias < 5.0 * noise - 0.001 && bias > -0.012 - 5.0 * noise, "D is off by %.4f +- %.4f",
                  bias, noise);
    }
    ref_free(&p);
}

/* A row without a key has an audit of zeros, whatever lay there, and so have rows that causal
   leaves none. */
static void audit_of_no_key(void) {
    for (int sinks = 0; sinks < 2; sinks++) {
        ref_spec s = ref_spec_make(4, 2, 300, 8);
        ref_problem p;
        santa_audit audit[3 * 4 * 4];
        int32_t lens[3] = {0, 300, 2};
        s.batch  = 3;
        s.q_len  = 4;
        s.causal = 1;
        s.sinks  = sinks;
        ref_build(&p, &s);
        p.a.seq_lens = lens;
        memset(audit, 0xa5, sizeof audit);
        santa_options o = open_options(1);
        o.vattention.audit = audit;
        if (ref_run(&p, &o, NULL))
            for (int row = 0; row < 3 * 4 * 4; row++) {
                const santa_audit *x = &audit[row];
                const int64_t keys = ref_max(lens[row / 16] - 3 + row / 4 % 4, 0);
                CHECK_INT(x->num_keys, keys);
                CHECK_INT(x->num_fixed + x->num_residual, keys);
                if (keys == 0)
                    CHECK(x->num_fixed == 0 && x->num_base == 0 && x->needed == 0 && x->budget == 0 &&
                          x->exact == 0 && x->sigma == 0.0 && x->denominator == 0.0 && x->trace == 0.0 &&
                          x->norm == 0.0 && x->max_score == 0.0 && x->density == 0.0);
            }
        ref_free(&p);
    }
}

const test_case suite_vattention[] = {
    {"normal quantile", quantile},
    {"budgets of denominator and numerator", single_budgets},
    {"full budget against exhaustive search", full_budget},
    {"Hoeffding asks 2.8 times the CLT at delta 0.2", hoeffding_ratio},
    {"sets, weights, audit and counters", sets_and_weights},
    {"ALiBi and sinks of heads in slices", alibi_and_sinks},
    {"sinks 600 and more above the keys", far_sinks},
    {"V of 1e30", huge_values},
    {"positions: known answers", known_positions},
    {"positions among a million keys: known answers", known_positions_of_many},
    {"audit of the full guarantee", full_audit},
    {"keys not taken are not read", reads_what_it_takes},
    {"the oracle sees every key's NaN", oracle_sees_nan},
    {"predictors: few, many, double, wild", predictors},
    {"the sample is uniform, shared in a group, groups independent", uniform_sample},
    {"the denominator's guarantee holds, CLT and Hoeffding", denominator_coverage},
    {"the denominator's guarantee holds for every head of a group", group_coverage},
    {"the full guarantee holds", full_coverage},
    {"std_error against the true error", standard_error},
    {"exact when the budget reaches the residual", exact_edges},
    {"no spread: the base sample is enough", no_spread},
    {"defaults", defaults},
    {"causal and window", masks},
    {"beside an infinity no error is known", infinite_values},
    {"all scores -inf", no_mass},
    {"NaN in K or V", broken_rows},
    {"nearly all of a long row", nearly_all},
    {"a predictor that returns more than it wrote", boasting_predictor},
    {"an array of heavy keys", array_of_heavy_keys},
    {"the denominator's guarantee and Gaussian scores", gaussian_coverage},
    {"the reused base sample lowers D by less than it says", reuse_bias},
    {"audit of rows without a key", audit_of_no_key},
    {0, 0},
};
