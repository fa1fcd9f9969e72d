/* Unbiasedness, variances and standard errors over many seeds. Every claim is a bound on z =
   |mean - expected| in standard errors of the mean; 5 means once in two million by chance, and
   the seeds are fixed. The same check must catch deliberately biased samplers. */
#include "reference.h"

enum { PROJECTIONS = 8 };

/* What is collected about out - exact over many draws. */
typedef struct tally { double sum, squares, count; } tally;
typedef struct experiment {
    int64_t dv;
    double *axis;                            /* [PROJECTIONS, dv] random unit vectors */
    tally   projection[PROJECTIONS];         /* axis . (out - exact) */
    tally   error2;                          /* |out - exact|^2 */
    tally   estimate2;                       /* std_error^2 */
} experiment;

static void add(tally *t, double x) { t->sum += x; t->squares += x * x; t->count += 1.0; }

static void begin(experiment *e, int64_t dv) {
    test_rng r = test_rng_make(4711);
    memset(e, 0, sizeof *e);
    e->dv   = dv;
    e->axis = ref_doubles(PROJECTIONS * dv);
    for (int k = 0; k < PROJECTIONS; k++) {
        double *axis = e->axis + k * dv;
        for (int64_t c = 0; c < dv; c++) axis[c] = test_normal(&r);
        const double length = sqrt(ref_length2(axis, dv));
        for (int64_t c = 0; c < dv; c++) axis[c] /= length;
    }
}

static void observe(experiment *e, const double *out, const double *exact) {
    for (int k = 0; k < PROJECTIONS; k++) {
        double x = 0.0;
        for (int64_t c = 0; c < e->dv; c++) x += e->axis[k * e->dv + c] * (out[c] - exact[c]);
        add(&e->projection[k], x);
    }
    add(&e->error2, ref_distance2(out, exact, e->dv));
}

/* The bias check of this file: the largest z over all projections, after an allowance for float
   rounding. */
static double bias_z(const experiment *e) {
    double worst = 0.0;
    for (int k = 0; k < PROJECTIONS; k++) {
        const tally *t = &e->projection[k];
        const double mean = t->sum / t->count,
                     error = sqrt((t->squares - t->sum * mean) / (t->count - 1.0) / t->count);
        const double off  = fabs(mean) - 2e-6;
        const double z    = off <= 0.0 ? 0.0 : error > 0.0 ? off / error : 1e300;
        if (!(z <= worst)) worst = z;
    }
    return worst;
}

static void end(experiment *e) { free(e->axis); }

/* Decode row 0 .. of the problem for many requests and seeds; one experiment per query row and
   head. */
static int many_draws(const ref_spec *spec, santa_options o, int64_t draws, experiment *e) {
    const int64_t requests = ref_min(draws, 500), rows = spec->q_len * spec->heads, dv = spec->head_dim_v;
    ref_problem p;
    ref_build(&p, spec);
    double *exact = ref_doubles(rows * dv), *lse = ref_doubles(rows), *out = ref_doubles(dv);
    for (int64_t i = 0; i < rows; i++) {
        lse[i] = ref_dense(&p, 0, i / spec->heads, i % spec->heads, exact + i * dv, NULL);
        begin(&e[i], dv);
    }
    ref_replicate(&p, requests);
    int good = 1;
    for (int64_t done = 0; done < draws && good; done += requests) {
        o.seed = test_seed + (uint64_t)done;
        good = ref_run(&p, &o, NULL);
        for (int64_t b = 0; b < requests && good; b++)
            for (int64_t i = 0; i < rows; i++) {
                ref_out(&p, b, i / spec->heads, i % spec->heads, out);
                observe(&e[i], out, exact + i * dv);
                const double estimate = (double)p.std_error[b * rows + i];
                add(&e[i].estimate2, estimate * estimate);
                good &= CHECK_NEAR(p.lse[b * rows + i], lse[i], 1e-5, 1e-6);
            }
    }
    free(exact); free(lse); free(out);
    ref_free(&p);
    return good;
}

static santa_method sampled(int i) {
    static const santa_method methods[] = {SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_PROP, SANTA_FLASH};
    return methods[i];
}

/* ------------------------------------------------------------ bias */

enum { PLAIN, GROUPED, PEAKED, ONE_DRAW, MANY_DRAWS, SINKS, WINDOW, CAUSAL, F16, BF16, EXTRAS, SHAPES };
static const char *const shape_names[SHAPES] = {"plain", "group 5", "peaked", "S = 1", "S > n", "sinks",
                                                "window", "causal, 2 rows", "f16", "bf16",
                                                "soft cap, ALiBi, sinks"};

static ref_spec shape_spec(int shape, int64_t *samples) {
    ref_spec s = ref_spec_make(2, 2, 300, 8);
    s.head_dim_v = 10;
    s.stream = (uint64_t)shape;
    *samples = 16;
    switch (shape) {
        case GROUPED:    s.heads = 5; s.kv_heads = 1; s.gain = 2.0; break;
        case PEAKED:     s.gain = 3.0; break; /* more, and errors are too rare for a normal bound */
        case ONE_DRAW:   *samples = 1; break;
        case MANY_DRAWS: s.len = 90; *samples = 200; break;
        case SINKS:      s.sinks = 1; s.heads = 3; s.kv_heads = 1; break;
        case WINDOW:     s.window = 170; break;
        case CAUSAL:     s.causal = 1; s.q_len = 2; s.gain = 2.0; *samples = 7; break;
        case F16:        s.q_type = s.k_type = s.v_type = SANTA_F16; s.out_type = SANTA_F32; break;
        case BF16:       s.q_type = s.k_type = s.v_type = SANTA_BF16; s.layout = REF_HND; break;
        case EXTRAS:     s.soft_cap = 2.0f; s.alibi = s.sinks = 1; s.gain = 3.0; break;
        default: break;
    }
    return s;
}

static void unbiased(santa_method method) {
    const int64_t draws = test_quick ? 1000 : 4000;
    for (int shape = 0; shape < SHAPES; shape++) {
        int64_t  samples;
        ref_spec s = shape_spec(shape, &samples);
        experiment e[8];
        for (int tile = 0; tile < (method == SANTA_FLASH || method == SANTA_PROP ? 2 : 1); tile++) {
            santa_options o = ref_options(method, samples, 0);
            if (method == SANTA_PROP) o.tile_size = tile ? 128 : 64;
            /* 8: more tiles than draws, the S < T rule */
            if (method == SANTA_FLASH) o.tile_size = tile ? 64 : 8;
            if (!many_draws(&s, o, draws, e)) return;
            for (int64_t i = 0; i < s.q_len * s.heads; i++) {
                const double z = bias_z(&e[i]);
                CHECK_MSG(z <= 5.0, "%s, %s, tile %d, row and head %d: z = %.1f", santa_method_name(method),
                          shape_names[shape], (int)o.tile_size, (int)i, z);
                end(&e[i]);
            }
        }
    }
}

static void unbiased_iid(void)   { unbiased(SANTA_IID); }
static void unbiased_strat(void) { unbiased(SANTA_STRAT); }
static void unbiased_sys(void)   { unbiased(SANTA_SYS); }
static void unbiased_prop(void)  { unbiased(SANTA_PROP); }
static void unbiased_pps(void)   { unbiased(SANTA_PPS); }
static void unbiased_flash(void) { unbiased(SANTA_FLASH); }

static void unbiased_combs(void) {
    const int64_t draws = test_quick ? 1000 : 4000;
    for (int m = 2; m < 5; m++) {
        const ref_spec s = ref_spec_make(2, 2, 300, 8);
        santa_options o = ref_options(sampled(m), 16, 0);
        experiment e[2];
        o.num_combs = 4;
        if (m > 2) o.tile_size = 64; /* flash: 5 tiles, so a comb has fewer draws than tiles */
        if (!many_draws(&s, o, draws, e)) return;
        for (int i = 0; i < 2; i++) {
            CHECK_MSG(bias_z(&e[i]) <= 5.0, "%s, head %d: z = %.1f", santa_method_name(o.method), i,
                      bias_z(&e[i]));
            end(&e[i]);
        }
    }
}

/* A sampler to be caught: counts of a biased scheme, from exact probabilities and a good
   uniform. */
typedef void (*bad_sampler)(const double *p, int64_t n, int64_t tile, int64_t samples, test_rng *r,
                            double *weight);

/* The published prop: tile budgets by largest remainder, then a comb inside each tile, weight
   1/S. */
static void largest_remainder(const double *p, int64_t n, int64_t tile, int64_t samples, test_rng *r,
                              double *weight) {
    double  mass[64];
    int64_t budget[64], left = samples, tiles = (n + tile - 1) / tile;
    for (int64_t t = 0; t < tiles; t++) {
        mass[t] = 0.0;
        for (int64_t j = t * tile; j < ref_min(n, (t + 1) * tile); j++) mass[t] += p[j];
        left -= budget[t] = (int64_t)floor(mass[t] * (double)samples);
    }
    for (; left > 0; left--) {
        int64_t best = 0;
        for (int64_t t = 1; t < tiles; t++)
            if (mass[t] * (double)samples - (double)budget[t] >
                mass[best] * (double)samples - (double)budget[best])
                best = t;
        budget[best]++;
    }
    for (int64_t t = 0; t < tiles; t++) {
        const double u = test_uniform(r);
        double  end_mass = 0.0;
        int64_t m = 0;
        for (int64_t j = t * tile; j < ref_min(n, (t + 1) * tile); j++) {
            end_mass += p[j];
            weight[j] = 0.0;
            for (; m < budget[t] && ((double)m + u) / (double)budget[t] * mass[t] < end_mass; m++)
                weight[j] += 1.0 / (double)samples;
        }
    }
}

/* flash without the exact masses: every tile's draws weigh 1/S. */
static void unweighted_tiles(const double *p, int64_t n, int64_t tile, int64_t samples, test_rng *r,
                             double *weight) {
    const int64_t tiles = (n + tile - 1) / tile;
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t budget = samples * (t + 1) / tiles - samples * t / tiles;
        const double  u = test_uniform(r);
        double  mass = 0.0, end_mass = 0.0;
        int64_t m = 0;
        for (int64_t j = t * tile; j < ref_min(n, (t + 1) * tile); j++) mass += p[j];
        for (int64_t j = t * tile; j < ref_min(n, (t + 1) * tile); j++) {
            end_mass += p[j];
            weight[j] = 0.0;
            for (; m < budget && ((double)m + u) / (double)budget * mass < end_mass; m++)
                weight[j] += 1.0 / (double)samples;
        }
    }
}

/* A comb whose teeth fall on the key before the right one. */
static void shifted_comb(const double *p, int64_t n, int64_t tile, int64_t samples, test_rng *r,
                         double *weight) {
    int32_t *count = ref_ints(n);
    (void)tile;
    ref_comb(p, n, test_uniform(r), samples, count);
    for (int64_t j = 0; j < n; j++) weight[j] = (double)count[(j + 1) % n] / (double)samples;
    free(count);
}

/* No fault at all: must pass, or the check would catch anything. */
static void right_comb(const double *p, int64_t n, int64_t tile, int64_t samples, test_rng *r,
                       double *weight) {
    int32_t *count = ref_ints(n);
    (void)tile;
    ref_comb(p, n, test_uniform(r), samples, count);
    for (int64_t j = 0; j < n; j++) weight[j] = (double)count[j] / (double)samples;
    free(count);
}

/* The same problems, projections, number of draws and bound as for the samplers of the
   library. */
static void negative_controls(void) {
    static const struct { const char *name; bad_sampler draw; int biased; } controls[] = {
        {"largest-remainder prop", largest_remainder, 1}, {"flash without masses", unweighted_tiles, 1},
        {"shifted comb", shifted_comb, 1}, {"exact comb", right_comb, 0}};
    const int64_t draws = test_quick ? 1000 : 4000;
    for (int c = 0; c < 4; c++) {
        double worst = 0.0;
        for (int shape = PLAIN; shape <= ONE_DRAW; shape++) {
            int64_t  samples;
            ref_spec s = shape_spec(shape, &samples);
            ref_problem p;
            ref_build(&p, &s);
            double *exact = ref_doubles(s.head_dim_v), *out = ref_doubles(s.head_dim_v),
                   *prob = ref_doubles(s.len);
            double *weight = ref_doubles(s.len);
            for (int64_t h = 0; h < s.heads; h++) {
                experiment e;
                test_rng r = test_rng_make(99);
                begin(&e, s.head_dim_v);
                ref_dense(&p, 0, 0, h, exact, prob);
                for (int64_t i = 0; i < draws; i++) {
                    controls[c].draw(prob, s.len, 64, samples, &r, weight);
                    ref_values(&p, 0, h, weight, out);
                    observe(&e, out, exact);
                }
                worst = fmax(worst, bias_z(&e));
                end(&e);
            }
            free(exact); free(out); free(prob); free(weight);
            ref_free(&p);
        }
        CHECK_MSG((worst > 5.0) == controls[c].biased, "%s: worst z = %.1f", controls[c].name, worst);
    }
}

/* Key by key: E[weight_j] = p_j. Counts of sys have variance f (1 - f) with f = frac(S p_j),
   those of iid S p (1 - p) and those of strat at most that; flash's spread is measured. */
static void inclusion(void) {
    enum { N = 300, S = 40 };
    const int64_t draws = test_quick ? 2000 : 20000;
    float  scores[N];
    double wide[N], p[N];
    test_rng r = test_rng_make(17);
    for (int j = 0; j < N; j++) wide[j] = (double)(scores[j] = (float)(2.0 * test_normal(&r)));
    ref_softmax(wide, N, -REF_INF, p);
    for (int m = 0; m < 5; m++) {
        tally t[N];
        memset(t, 0, sizeof t);
        santa_options o = ref_options(sampled(m), S, test_seed);
        if (m >= 3) o.tile_size = 64;
        for (int64_t i = 0; i < draws; i++) {
            ref_drawn d = ref_sample(scores, N, &o, ref_stream((uint64_t)i, 0, 0));
            if (!CHECK_STATUS(d.status, SANTA_OK)) { ref_drawn_free(&d); return; }
            for (int64_t k = 0, j = 0; j < N; j++)
                add(&t[j], k < d.d.rows && d.index[k] == j ? (double)d.weight[k++] : 0.0);
            ref_drawn_free(&d);
        }
        for (int j = 0; j < N; j++) {
            const double share = (double)S * p[j], fraction = share - floor(share),
                         mean = t[j].sum / t[j].count;
            double variance = sampled(m) == SANTA_SYS || sampled(m) == SANTA_PROP
                                  ? fraction * (1.0 - fraction)
                                  : share * (1.0 - p[j]);
            variance /= (double)(S * S);
            if (sampled(m) == SANTA_FLASH) variance = (t[j].squares - t[j].sum * mean) / (t[j].count - 1.0);
            if (share * (double)draws < 50.0) continue;      /* a Poisson count that small is not normal */
            CHECK_MSG(fabs(mean - p[j]) <= 5.0 * sqrt(variance / (double)draws) + 1e-6,
                      "%s, key %d: mean weight %.9g, p = %.9g, z = %.1f", santa_method_name(o.method), j,
                      mean, p[j], fabs(mean - p[j]) / sqrt(variance / (double)draws));
        }
    }
}

/* ------------------------------------------------------------ variance */

static double mean(const tally *t) { return t->sum / t->count; }

/* The closed forms against what many draws scatter, heads of a group included; sinks scale by
   the mass on real keys. */
static void closed_forms(void) {
    const int64_t draws = test_quick ? 500 : 8000;
    for (int shape = 0; shape < SHAPES; shape++) {
        if (shape != PLAIN && shape != GROUPED && shape != PEAKED && shape != ONE_DRAW && shape != SINKS)
            continue;
        int64_t  samples;
        ref_spec s = shape_spec(shape, &samples);
        ref_problem p;
        ref_build(&p, &s);
        double *v = ref_doubles(s.len * s.head_dim_v), *prob = ref_doubles(s.len),
               *out = ref_doubles(s.head_dim_v);
        for (int m = 0; m < 4; m++) {
            experiment e[8];
            const santa_options o = ref_options(sampled(m), samples, 0);
            if (!many_draws(&s, o, draws, e)) break;
            for (int64_t h = 0; h < s.heads; h++) {
                double mass = 0.0;
                ref_dense(&p, 0, 0, h, out, prob);
                for (int64_t j = 0; j < s.len; j++) mass += prob[j];
                for (int64_t j = 0; j < s.len; j++) {
                    prob[j] /= mass;
                    memcpy(v + j * s.head_dim_v,
                           p.v + (j * s.kv_heads + h / (s.heads / s.kv_heads)) * s.head_dim_v,
                           (size_t)s.head_dim_v * sizeof *v);
                }
                const double variance =
                    mass * mass *
                    (m == 0   ? ref_variance_iid(prob, s.len, v, s.head_dim_v, samples)
                     : m == 1 ? ref_variance_strat(prob, s.len, v, s.head_dim_v, samples)
                              : ref_variance_sys(prob, s.len, v, s.head_dim_v, samples));
                const tally *t = &e[h].error2;
                if (!CHECK_MEAN_Z("squared error against the closed form", t->sum, t->squares, t->count,
                                  variance, 5.0))
                    CHECK_MSG(0, "that was %s, %s, head %d", santa_method_name(o.method),
                              shape_names[shape], (int)h);
            }
            for (int64_t h = 0; h < s.heads; h++) end(&e[h]);
        }
        free(v); free(prob); free(out);
        ref_free(&p);
    }
}

/* V alternating in step with the comb: sys gets all even or all odd keys, S times the variance
   of iid. We say so. */
static void alternating_values(void) {
    enum { S = 32 };
    ref_spec s = ref_spec_make(1, 1, 2 * S, 4);
    s.gain = 0.0;                                            /* q = 0: all scores equal */
    s.head_dim_v = 1;
    ref_problem p;
    ref_build(&p, &s);
    for (int j = 0; j < 2 * S; j++) p.v[j] = j % 2 ? 1.0 : -1.0;
    ref_write(&p);
    ref_replicate(&p, 400);
    for (int m = 0; m < 4; m++) {
        const santa_options o = ref_options(sampled(m), S, 6);
        tally error2 = {0, 0, 0};
        if (!ref_run(&p, &o, NULL)) break;
        for (int64_t b = 0; b < 400; b++) add(&error2, pow(ref_get(&p.a.out, b, 0, 0, 0), 2.0));
        if (m == 0) CHECK_MEAN_Z("iid", error2.sum, error2.squares, error2.count, 1.0 / (double)S, 5.0);
        if (m == 1) CHECK_MEAN_Z("strat", error2.sum, error2.squares, error2.count, 1.0 / (double)S, 5.0);
        if (m >= 2) CHECK_NEAR(mean(&error2), 1.0, 1e-5, 0.0);
    }
    ref_free(&p);
}

/* Slopes of log variance against log S, S = 16 .. 1024, for logits N(0, g^2) and Gaussian V: -1
   for iid; strat and sys fall faster the more peaked the attention. */
static void slopes(void) {
    enum { N = 8192, DV = 16 };
    static const double gains[] = {1.0, 2.0, 4.0, 8.0}, expected[] = {-1.07, -1.2, -1.4, -1.6};
    const int seeds = test_quick ? 20 : 120, instances = test_quick ? 1 : 4;
    float *scores = ref_floats(N);
    double *v = ref_doubles(N * DV), *p = ref_doubles(N), *exact = ref_doubles(DV), out[DV];
    /* errors of peaked attention are rare: too rare for quick */
    for (int g = 0; g < (test_quick ? 2 : 4); g++)
        for (int m = 0; m < 3; m++) {
            double sx = 0.0, sy = 0.0, sxx = 0.0, sxy = 0.0;
            for (int step = 0; step < 4; step++) {
                const int64_t samples = 16 << (2 * step);
                double error2 = 0.0;
                for (int instance = 0; instance < instances; instance++) {
                    test_rng r = test_rng_make(1000 + (uint64_t)(10 * g + instance));
                    for (int j = 0; j < N; j++)
                        p[j] = (double)(scores[j] = (float)(gains[g] * test_normal(&r)));
                    for (int j = 0; j < N * DV; j++) v[j] = test_normal(&r);
                    ref_softmax(p, N, -REF_INF, p);
                    for (int c = 0; c < DV; c++) {
                        exact[c] = 0.0;
                        for (int j = 0; j < N; j++) exact[c] += p[j] * v[j * DV + c];
                    }
                    for (int seed = 0; seed < seeds; seed++) {
                        const santa_options o = ref_options(sampled(m), samples, test_seed);
                        ref_drawn d = ref_sample(scores, N, &o, ref_stream((uint64_t)seed, g, instance));
                        ref_drawn_sum(&d, v, DV, out);
                        error2 += ref_distance2(out, exact, DV);
                        ref_drawn_free(&d);
                    }
                }
                const double x = log((double)samples), y = log(error2);
                sx += x; sy += y; sxx += x * x; sxy += x * y;
            }
            const double slope = (4.0 * sxy - sx * sy) / (4.0 * sxx - sx * sx);
            const double want = m == 0 ? -1.0 : expected[g];
            CHECK_MSG(fabs(slope - want) < (test_quick ? 0.2 : 0.08),
                      "%s, logits N(0, %g^2): slope %.3f, expected %.2f", santa_method_name(sampled(m)),
                      gains[g], slope, want);
        }
    free(scores); free(v); free(p); free(exact);
}

/* Scores that differ from tile to tile (3N per tile + 2N per key): tiles of no weight draw as
   many rows as those that matter, so flash needs about 2048 draws where prop needs 128. */
static void skewed_tiles(void) {
    enum { DV = 4, TILE = 256 };
    const int64_t n = test_quick ? 4096 : 32768;
    const int seeds = test_quick ? 20 : 60, instances = test_quick ? 1 : 6;
    static const struct { santa_method method; int64_t samples; } runs[3] = {
        {SANTA_PROP, 128}, {SANTA_FLASH, 2048}, {SANTA_FLASH, 128}};
    float  *scores = ref_floats(n);
    double *v = ref_doubles(n * DV), *p = ref_doubles(n), logs[3] = {0.0, 0.0, 0.0};
    for (int instance = 0; instance < instances; instance++) {
        test_rng r = test_rng_make(500 + (uint64_t)instance);
        double exact[DV] = {0.0, 0.0, 0.0, 0.0}, out[DV], tile = 0.0;
        for (int64_t j = 0; j < n; j++) {
            if (j % TILE == 0) tile = 3.0 * test_normal(&r);
            p[j] = (double)(scores[j] = (float)(tile + 2.0 * test_normal(&r)));
        }
        ref_softmax(p, n, -REF_INF, p);
        for (int64_t j = 0; j < n * DV; j++) {
            v[j] = test_normal(&r);
            exact[j % DV] += p[j / DV] * v[j];
        }
        for (int k = 0; k < 3; k++) {
            double error2 = 0.0;
            santa_options o = ref_options(runs[k].method, runs[k].samples, 8);
            o.tile_size = TILE;
            for (int seed = 0; seed < seeds; seed++) {
                ref_drawn d = ref_sample(scores, n, &o, ref_stream((uint64_t)seed, 0, instance));
                ref_drawn_sum(&d, v, DV, out);
                error2 += ref_distance2(out, exact, DV);
                ref_drawn_free(&d);
            }
            logs[k] += 0.5 * log(error2) / instances;
        }
    }
    const double same = exp(logs[1] - logs[0]), worse = exp(logs[2] - logs[0]);
    CHECK_MSG(same > (test_quick ? 0.1 : 0.3) && same < (test_quick ? 5.0 : 2.5),
              "error of flash at 2048 draws is %.2f of prop's at 128", same);
    CHECK_MSG(worse > (test_quick ? same : 2.0), "error of flash at 128 draws is %.2f of prop's", worse);
    free(scores); free(v); free(p);
}

/* Heads of one group with the same query, rows with the same query, requests: errors must not
   be correlated. */
static void independent_draws(void) {
    const int64_t draws = test_quick ? 500 : 4000;
    for (int m = 0; m < 5; m++) {
        ref_spec s = ref_spec_make(2, 1, 200, 4);
        s.q_len = 2;
        s.head_dim_v = 1;
        ref_problem p;
        ref_build(&p, &s);
        for (int i = 4; i < 16; i++) p.q[i] = p.q[i - 4];    /* one query for all heads and rows */
        ref_write(&p);
        double exact;
        ref_dense(&p, 0, 0, 0, &exact, NULL);
        ref_replicate(&p, draws);
        santa_options o = ref_options(sampled(m), 8, 5);
        if (m == 4) o.tile_size = 32;
        if (ref_run(&p, &o, NULL)) {
            tally heads = {0, 0, 0}, rows = {0, 0, 0}, requests = {0, 0, 0};
            for (int64_t b = 0; b < draws; b++) {
                const double error = ref_get(&p.a.out, b, 0, 0, 0) - exact;
                add(&heads, error * (ref_get(&p.a.out, b, 0, 1, 0) - exact));
                add(&rows, error * (ref_get(&p.a.out, b, 1, 0, 0) - exact));
                if (b > 0) add(&requests, error * (ref_get(&p.a.out, b - 1, 0, 0, 0) - exact));
            }
            CHECK_MEAN_Z("heads of a group", heads.sum, heads.squares, heads.count, 0.0, 5.0);
            CHECK_MEAN_Z("query rows", rows.sum, rows.squares, rows.count, 0.0, 5.0);
            CHECK_MEAN_Z("requests", requests.sum, requests.squares, requests.count, 0.0, 5.0);
        }
        ref_free(&p);
    }
}

/* ------------------------------------------------------------ std_error */

/* std_error^2 against the true mean squared error. iid: within a few percent. The others are
   conservative: strat provably (successive draws differ by both strata's spread and the step
   between them), sys, prop and flash on data like this. How much too large they are has no
   bound for one head (a comb that fits the shares has no error at all), so that is judged by
   the geometric mean. */
static void standard_errors(void) {
    for (int m = 0; m < 5; m++) {
        /* only a wide bound from below holds for the last three */
        const int64_t draws = test_quick ? 500 : m < 2 ? 4500 : 1500;
        double logs = 0.0, count = 0.0;
        for (int shape = 0; shape < SHAPES; shape++) {
            if (shape == ONE_DRAW || (test_quick && shape > CAUSAL)) continue;
            int64_t  samples;
            ref_spec s = shape_spec(shape, &samples);
            experiment e[8];
            /* few draws for iid: there 1/S and 1/(S - 1) differ */
            santa_options o = ref_options(sampled(m), m == 0 ? 8 : shape == MANY_DRAWS ? samples : 64, 0);
            if (m == 4) o.tile_size = 64;
            if (!many_draws(&s, o, draws, e)) return;
            for (int64_t i = 0; i < s.q_len * s.heads; i++) {
                const double ratio = mean(&e[i].estimate2) / mean(&e[i].error2);
                CHECK_MSG(m == 0 ? fabs(ratio - 1.0) < (test_quick ? 0.25 : 0.05)
                                 : ratio > (m == 1 && !test_quick ? 0.97 : 0.8),
                          "%s, %s, %d: estimated/true variance %.3f", santa_method_name(o.method),
                          shape_names[shape], (int)i, ratio);
                logs  += log(ratio);
                count += 1.0;
                end(&e[i]);
            }
        }
        CHECK_MSG(exp(logs / count) < 3.0, "%s: estimated/true variance %.3f (geometric mean)",
                  santa_method_name(sampled(m)), exp(logs / count));
    }
}

static void standard_error_edges(void) {
    ref_spec s = ref_spec_make(2, 1, 100, 8);
    ref_problem p;
    ref_build(&p, &s);
    for (int m = 0; m < 5; m++) {                            /* one draw says nothing about its spread */
        const santa_options o = ref_options(sampled(m), 1, 6);
        if (ref_run(&p, &o, NULL))
            CHECK_MSG(p.std_error[0] == INFINITY, "%s: %g", santa_method_name(o.method),
                      (double)p.std_error[0]);
    }
    const float sinks[2] = {4.0f, 5.5f};
    for (int m = 0; m < 5; m++) { /* a sink scales the estimate, and its error with it */
        const santa_options o = ref_options(sampled(m), 20, 6);
        float before[2], lse[2];
        p.a.sinks = NULL;
        if (!ref_run(&p, &o, NULL)) break;
        memcpy(before, p.std_error, sizeof before);
        memcpy(lse, p.lse, sizeof lse);
        p.a.sinks = sinks;
        if (!ref_run(&p, &o, NULL)) break;
        for (int h = 0; h < 2; h++) {
            const double share = exp((double)lse[h] - (double)p.lse[h]);
            CHECK(share < 0.9);
            CHECK_MSG(fabs((double)p.std_error[h] / ((double)before[h] * share) - 1.0) < 1e-4,
                      "%s: %g with a sink, %g without", santa_method_name(o.method), (double)p.std_error[h],
                      (double)before[h]);
        }
    }
    p.a.sinks = NULL;
    for (int64_t i = 0; i < 100 * 8; i++) p.v[i] = p.v[i % 8];
    ref_write(&p);
    for (int m = 0; m < 5; m++) {                            /* all rows alike: no error */
        const santa_options o = ref_options(sampled(m), 20, 6);
        if (ref_run(&p, &o, NULL))
            CHECK_MSG(p.std_error[0] < 1e-3f, "%s: %g", santa_method_name(o.method),
                      (double)p.std_error[0]);
    }
    for (int64_t i = 0; i < 100; i++) p.v[i * 8 + 3] = (double)test_nan();  /* nor an error of NaN */
    ref_write(&p);
    for (int m = -1; m < 5; m++) {
        const santa_options o = m < 0 ? ref_options(SANTA_DENSE, 0, 6) : ref_options(sampled(m), 20, 6);
        if (ref_run(&p, &o, NULL))
            CHECK_MSG(isnan(p.std_error[0]) && isnan(p.std_error[1]), "%s: %g", santa_method_name(o.method),
                      (double)p.std_error[0]);
    }
    ref_free(&p);
}

/* Squared distance of two rows of V. */
static double apart(const double *v, int64_t dv, int32_t a, int32_t b) {
    return ref_distance2(v + a * dv, v + b * dv, dv);
}

/* std_error^2 of 2 and 3 draws a <= b <= c in closed form. iid and combs of one draw: the sum
   of squared distances over S^2 (S - 1). strat and one comb: |a-b|^2 / 4 of two draws, (|a-b|^2
   + |b-c|^2) / 12 of three. flash with a draw in each of two tiles: half of |a-b|^2 times the
   sum of their squared masses. */
static void few_draws(void) {
    enum { N = 100, DV = 5 };
    static const santa_method methods[] = {SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_PROP, SANTA_FLASH};
    int twice = 0, thrice = 0;
    ref_spec s = ref_spec_make(1, 1, N, 8);
    s.head_dim_v = DV;
    s.gain  = 3.0;
    s.sinks = 1;
    for (int turn = 0; turn < 400; turn++) {
        const int64_t samples = 2 + turn % 2;
        const int tiles = turn % 5 == 4 && turn % 3 == 0;
        const int combs = turn % 5 >= 2 && turn % 3 == 1 ? (int)samples : 1;
        if (tiles && samples == 3) continue;
        ref_problem p;
        float scores[N];
        s.stream = (uint64_t)turn / 40;
        ref_build(&p, &s);
        p.a.v_scale = 1.5f;
        santa_options o = ref_options(methods[turn % 5], samples, (uint64_t)turn);
        if (turn % 5 == 4) o.tile_size = tiles ? 64 : 128;
        o.num_combs = combs;
        const size_t bytes = santa_workspace_size(&p.a, &o);
        void *workspace = test_alloc(bytes);
        CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, N, workspace, bytes), SANTA_OK);
        ref_drawn d = ref_sample(scores, N, &o, ref_stream(0, 0, 0));
        if (ref_run(&p, &o, NULL) && CHECK_STATUS(d.status, SANTA_OK) && CHECK_INT(d.d.draws, samples)) {
            const double share = 1.5 * (1.0 - exp((double)p.sinks[0] - (double)p.lse[0]));
            int32_t row[3] = {0, 0, 0};
            int drawn = 0;
            for (int64_t i = 0; i < d.d.rows; i++)
                for (int32_t c = 0; c < d.count[i]; c++) row[drawn++] = d.index[i];
            const double ab = apart(p.v, DV, row[0], row[1]);
            const double bc = samples > 2 ? apart(p.v, DV, row[1], row[2]) : 0.0;
            const double ac = samples > 2 ? apart(p.v, DV, row[0], row[2]) : 0.0;
            double want;
            if (o.method == SANTA_IID || combs > 1)
                want = (ab + bc + ac) / (double)(samples * samples * (samples - 1));
            else if (tiles)
                want = 0.5 * ab * (pow((double)d.weight[0], 2.0) + pow((double)d.weight[1], 2.0));
            else
                want = samples == 2 ? ab / 4.0 : (ab + bc) / 12.0;
            CHECK_MSG(fabs((double)p.std_error[0] - share * sqrt(want)) <= 1e-6 + 2e-6 * share * sqrt(want),
                      "%s, %d draws, %d combs, rows %d %d %d: std_error %.9g, want %.9g",
                      santa_method_name(o.method), (int)samples, combs, (int)row[0], (int)row[1],
                      (int)row[2], (double)p.std_error[0], share * sqrt(want));
            twice  += samples == 3 && d.d.rows == 2;
            thrice += d.d.rows == 1;
        }
        ref_drawn_free(&d);
        free(workspace);
        ref_free(&p);
    }
    CHECK_MSG(twice > 10 && thrice > 0, "%d times a key was drawn twice, %d times alone", twice, thrice);
}

/* V in step with a comb: waves of that many keys, or in no order for 0. All scores are equal
   then. */
static void make_waves(ref_problem *p, int period) {
    const int64_t dv = p->spec.head_dim_v;
    for (int64_t i = 0; i < p->spec.len * p->spec.kv_heads * dv && period; i++)
        p->v[i] = (double)(float)cos(6.283185307179586 * (double)(i / dv / p->spec.kv_heads) / period);
    for (int64_t i = 0; i < p->spec.heads * p->spec.head_dim && period; i++) p->q[i] = 0.0;
    ref_write(p);
}

/* std_error^2 - |out - exact|^2 over many draws, per head added up. */
static int error_of_estimate(const santa_options *o, int period, int64_t draws, tally *difference,
                             tally *error2) {
    ref_spec s = ref_spec_make(3, 1, 128, 8);
    ref_problem p;
    double exact[3][8], out[8];
    s.gain = 2.0;
    s.sinks = period == 0;
    ref_build(&p, &s);
    make_waves(&p, period);
    for (int h = 0; h < 3; h++) ref_dense(&p, 0, 0, h, exact[h], NULL);
    ref_replicate(&p, draws);
    const int good = ref_run(&p, o, NULL);
    memset(difference, 0, sizeof *difference);
    memset(error2, 0, sizeof *error2);
    for (int64_t b = 0; b < draws && good; b++)
        for (int h = 0; h < 3; h++) {
            ref_out(&p, b, 0, h, out);
            const double e = ref_distance2(out, exact[h], 8);
            add(difference, pow((double)p.std_error[b * 3 + h], 2.0) - e);
            add(error2, e);
        }
    ref_free(&p);
    return good;
}

/* Several combs: std_error^2 is the squared error on average, whatever V looks like. One comb
   is blind to V that keeps step with it: the same check must fail there. */
static void combs_know_their_error(void) {
    static const santa_method methods[] = {SANTA_SYS, SANTA_PROP, SANTA_FLASH};
    static const int periods[] = {0, 2, 4, 16, 64};
    const int64_t draws = test_quick ? 150 : 500;
    tally difference, error2;
    for (int m = 0; m < 3; m++)
        for (int combs = 2; combs <= 16; combs *= 2)
            for (int i = 0; i < 5; i++) {
                santa_options o = ref_options(methods[m], i % 2 ? 16 : 64, 12);
                o.num_combs = combs;
                /* flash: fewer draws of a comb than tiles, too */
                if (m > 0) o.tile_size = m == 1 || i % 2 ? 64 : 16;
                if (!error_of_estimate(&o, periods[i], draws, &difference, &error2)) return;
                /* the waves fit: exact */
                if (mean(&error2) < 1e-12 && fabs(mean(&difference)) < 1e-12) continue;
                if (!CHECK_MEAN_Z("std_error^2 - error^2", difference.sum, difference.squares,
                                  difference.count, 0.0, 5.0))
                    CHECK_MSG(0, "that was %s, %d combs, waves of %d, mean error^2 %g",
                              santa_method_name(o.method), combs, periods[i], mean(&error2));
            }
    santa_options o = ref_options(SANTA_SYS, 64, 12);
    if (!error_of_estimate(&o, 2, draws, &difference, &error2)) return;
    CHECK_NEAR(mean(&error2), 8.0, 1e-5, 0.0);               /* out = +-1 in 8 columns, exact 0 ... */
    CHECK_NEAR(mean(&difference), -8.0, 1e-5, 0.0);          /* ... and std_error 0 */
}

/* The draws of several combs are those of each comb with its own number of the stream, so they
   are unbiased, too. */
static void combs_are_combs(void) {
    enum { N = 700, S = 60 };
    float   scores[N];
    double  wide[N], p[N];
    int32_t one[N], want[N];
    test_rng r = test_rng_make(23);
    int64_t off = 0;
    for (int j = 0; j < N; j++) wide[j] = (double)(scores[j] = (float)(2.0 * test_normal(&r)));
    ref_softmax(wide, N, -REF_INF, p);
    for (int i = 0; i < 60; i++) {
        santa_options o = ref_options(i % 2 ? SANTA_SYS : SANTA_PROP, S, test_seed);
        const santa_stream_id id = ref_stream((uint64_t)i, i % 7, 0);
        o.num_combs = 1 + i % 6;
        memset(want, 0, sizeof want);
        for (int64_t c = 0; c < o.num_combs; c++) {
            ref_comb(p, N, ref_random(&o, id, c), S / o.num_combs, one);
            for (int j = 0; j < N; j++) want[j] += one[j];
        }
        ref_drawn d = ref_sample(scores, N, &o, id);
        if (!CHECK_STATUS(d.status, SANTA_OK)) { ref_drawn_free(&d); return; }
        CHECK_INT(d.d.draws, S);
        for (int64_t k = 0, j = 0; j < N; j++) {
            const int32_t got = k < d.d.rows && d.index[k] == j ? d.count[k++] : 0;
            off += labs((long)(got - want[j]));
        }
        ref_drawn_free(&d);
    }
    /* a threshold at a boundary may move */
    CHECK_MSG(off <= 4, "%d counts differ from the combs'", (int)off);
}

const test_case suite_statistics[] = {
    {"the bias check catches biased samplers", negative_controls},
    {"iid is unbiased", unbiased_iid},
    {"strat is unbiased", unbiased_strat},
    {"sys is unbiased", unbiased_sys},
    {"prop is unbiased", unbiased_prop},
    {"pps is unbiased", unbiased_pps},
    {"flash is unbiased, also with fewer draws than tiles", unbiased_flash},
    {"several combs are unbiased", unbiased_combs},
    {"each key's mean weight is its probability", inclusion},
    {"variance of iid, strat, sys and prop is the closed form", closed_forms},
    {"V alternating with the comb: sys is S times worse than iid", alternating_values},
    {"slopes of log variance", slopes},
    {"flash against prop where tiles differ", skewed_tiles},
    {"heads, rows and requests draw independently", independent_draws},
    {"std_error against the true error", standard_errors},
    {"std_error: too few draws, sinks, nothing to estimate, NaN", standard_error_edges},
    {"std_error of 2 and 3 draws in closed form", few_draws},
    {"several combs: std_error is unbiased, where one comb's is 0", combs_know_their_error},
    {"several combs are combs of their own", combs_are_combs},
    {0, 0},
};
