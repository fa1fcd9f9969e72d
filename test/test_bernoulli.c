/* Bernoulli scores: moments of every element's estimate, which features are read, degenerate
   queries, layouts. With K the identity a score is the estimate of one element of q, so that
   the estimator lies open. */
#include "reference.h"

enum { DIM = 24, GROUP = 3 };

static int is_group(santa_scores_method m) {
    return m == SANTA_SCORES_GROUP_IID || m == SANTA_SCORES_GROUP_STRAT;
}
static int is_strat(santa_scores_method m) {
    return m == SANTA_SCORES_BERNOULLI_STRAT || m == SANTA_SCORES_GROUP_STRAT;
}

/* Three heads on one KV head, K = identity, scale 1. Elements of q from 0.1 to 1 in size, both
   signs, a few zero. */
static void identity_problem(ref_problem *p, santa_dtype type) {
    ref_spec s = ref_spec_make(GROUP, 1, DIM, DIM);
    s.sm_scale = 1.0f;
    s.q_type = s.k_type = type;
    s.head_dim_v = 1;
    ref_build(p, &s);
    for (int h = 0; h < GROUP; h++)
        for (int i = 0; i < DIM; i++) {
            const double size = 0.1 + 0.9 * (double)((i * 7 + h * 5) % DIM) / (double)(DIM - 1);
            const int    zero = (h == 1 && i == 5) || i == 11;
            p->q[h * DIM + i] = ref_round(type, zero ? 0.0 : i % 3 ? size : -size);
        }
    for (int j = 0; j < DIM; j++)
        for (int i = 0; i < DIM; i++) p->k[j * DIM + i] = i == j ? 1.0 : 0.0;
    ref_write(p);
}

/* The query that is sampled, |q| or the group's mean |q|, and its maximum. */
static double sampled_query(const ref_problem *p, santa_scores_method m, int h, double *size) {
    double max = 0.0;
    for (int i = 0; i < DIM; i++) {
        size[i] = is_group(m) ? (fabs(p->q[i]) + fabs(p->q[DIM + i]) + fabs(p->q[2 * DIM + i])) / 3.0
                              : fabs(p->q[h * DIM + i]);
        max = fmax(max, size[i]);
    }
    return max;
}

static santa_options options(santa_scores_method m, int64_t draws, uint64_t seed) {
    santa_options o = ref_options(SANTA_DENSE, 0, seed);
    o.scores = m;
    o.bernoulli_draws = draws;
    return o;
}

/* Mean, variance and possible values of every element's estimate. */
static void moments(void) {
    static const int64_t budgets[] = {1, 2, 4, 7};
    const int rounds = test_quick ? 500 : 6000;
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int b = 0; b < 4; b++) {
            const santa_scores_method m = (santa_scores_method)method;
            const double draws = (double)budgets[b];
            ref_problem p;
            identity_problem(&p, b == 1 ? SANTA_F16 : SANTA_F32);
            santa_options o = options(m, budgets[b], 0);
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void *workspace = test_alloc(bytes);
            static double sum[GROUP][DIM], squares[GROUP][DIM], fourth[GROUP][DIM];
            memset(sum, 0, sizeof sum);
            memset(squares, 0, sizeof squares);
            memset(fourth, 0, sizeof fourth);
            for (int round = 0; round < rounds; round++) {
                float scores[GROUP * DIM];
                o.seed = test_seed + (uint64_t)round;
                if (!CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, DIM, workspace, bytes), SANTA_OK))
                    break;
                for (int h = 0; h < GROUP; h++) {
                    double size[DIM];
                    const double max = sampled_query(&p, m, h, size);
                    for (int i = 0; i < DIM; i++) {
                        const double q = p.q[h * DIM + i], got = (double)scores[h * DIM + i],
                                     error = got - q;
                        /* got = q/size * max * count/B: a whole count, if stratified B size/max
                           rounded up or down */
                        const double unit = size[i] > 0.0 ? q / size[i] * max / draws : 0.0;
                        const double share = draws * size[i] / max;
                        const double count = unit != 0.0 ? got / unit : 0.0;
                        const double off = fabs(count - floor(count + 0.5));
                        const int whole = off < 1e-4 && count >= 0.0 && count < draws + 0.5;
                        const int near_share = !is_strat(m) || fabs(count - share) < 1.0 + 1e-4;
                        const int good = unit == 0.0 ? got == 0.0 : whole && near_share;
                        if (!good) {
                            CHECK_MSG(0, "scores %d, B = %d, head %d, element %d = %g: estimate %g is "
                                  "%.6f draws of %g",
                                      method, (int)budgets[b], h, i, q, got, count, share);
                            round = rounds;
                            break;
                        }
                        sum[h][i]     += error;
                        squares[h][i] += error * error;
                        fourth[h][i]  += error * error * error * error;
                    }
                }
            }
            for (int h = 0; h < GROUP; h++) {
                double size[DIM];
                const double max = sampled_query(&p, m, h, size);
                for (int i = 0; i < DIM; i++) {
                    const double q = p.q[h * DIM + i], share = draws * size[i] / max,
                                 f = share - floor(share);
                    const double ratio = size[i] > 0.0 ? q / size[i] : 0.0;
                    const double variance = ratio * ratio *
                                            (is_strat(m) ? max * max * f * (1.0 - f) / (draws * draws)
                                                         : (max * size[i] - size[i] * size[i]) / draws);
                    if (variance > 1e-4) {
                        CHECK_MEAN_Z("mean of an estimate", sum[h][i], squares[h][i], rounds, 0.0, 5.0);
                        CHECK_MEAN_Z("variance of an estimate", squares[h][i], fourth[h][i], rounds,
                                     variance, 5.0);
                    } else {
                        CHECK_NEAR(squares[h][i] / rounds, variance, 1e-4, 0.3);
                    }
                }
            }
            free(workspace);
            ref_free(&p);
        }
}

/* Every element's count of draws that kept it, recomputed: draw b of feature i has word i * B +
   b of stream 1, of the query head or, for GROUP, the group's first; it keeps the feature if
   below |q| / max |q|. Stratified, draw b has [b/B, (b + 1)/B) to itself: only the stratum in
   which the feature's share ends is random, by the word of that b. */
static void known_draws(void) {
    static const int64_t budgets[] = {1, 3, 4, 16};
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int b = 0; b < 4; b++)
            for (uint64_t seed = 0; seed < 25; seed++) {
                const santa_scores_method m = (santa_scores_method)method;
                const int64_t draws = budgets[b];
                float scores[GROUP * DIM];
                ref_problem p;
                identity_problem(&p, SANTA_F32);
                santa_options o = options(m, draws, seed);
                o.offset = seed << 33;
                const size_t bytes = santa_workspace_size(&p.a, &o);
                void *workspace = test_alloc(bytes);
                if (CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, DIM, workspace, bytes), SANTA_OK))
                    for (int h = 0; h < GROUP; h++) {
                        double size[DIM];
                        const double max = sampled_query(&p, m, h, size);
                        for (int64_t i = 0; i < DIM; i++) {
                            const double share = (double)draws * size[i] / max;
                            int64_t kept = 0;
                            for (int64_t d = 0; d < draws; d++) {
                                const uint32_t head = is_group(m) ? 0 : (uint32_t)h;
                                const uint32_t index = (uint32_t)(i * draws + d);
                                const double u =
                                    ldexp((double)santa_random(o.seed, o.offset, 0, 1, head, 0, index),
                                          -32);
                                kept += is_strat(m) ? (double)d + u < share : u * (double)draws < share;
                            }
                            const double q = p.q[h * DIM + i];
                            const double unit = size[i] > 0.0 ? q / size[i] * max / (double)draws : 0.0;
                            const double want = unit * (double)kept;
                            CHECK_MSG(fabs((double)scores[h * DIM + i] - want) < 1e-5,
                                      "scores %d, B = %d, seed %d, head %d, element %d: %g, want %g",
                                      method, (int)draws, (int)seed, h, (int)i,
                                      (double)scores[h * DIM + i], want);
                        }
                    }
                free(workspace);
                ref_free(&p);
            }
}

/* One set of draws for the group: the heads' estimates stand in the ratio of their queries. Own
   draws otherwise. */
static void shared_draws(void) {
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++) {
        ref_problem p;
        identity_problem(&p, SANTA_F32);
        const santa_options o = options((santa_scores_method)method, 3, 8);
        const size_t bytes = santa_workspace_size(&p.a, &o);
        void *workspace = test_alloc(bytes);
        float scores[GROUP * DIM];
        int   apart = 0;
        if (CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, DIM, workspace, bytes), SANTA_OK))
            for (int i = 0; i < DIM; i++)
                for (int h = 1; h < GROUP; h++)
                    apart += fabs((double)scores[h * DIM + i] * p.q[i] -
                                  (double)scores[i] * p.q[h * DIM + i]) > 1e-5;
        CHECK_MSG((apart == 0) == is_group((santa_scores_method)method), "scores %d: %d elements apart",
                  method, apart);
        free(workspace);
        ref_free(&p);
    }
}

/* Scores of an ordinary problem are unbiased; soft cap, ALiBi and masks come after the
   estimate. */
static void unbiased_scores(void) {
    enum { N = 20 };
    const int rounds = test_quick ? 500 : 5000;
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int type = 0; type < 3; type++) {
            ref_spec s = ref_spec_make(8, 2, N, 40);
            s.k_type = s.q_type = (santa_dtype)type;
            s.q_len  = 2;
            s.alibi  = s.causal = 1;
            ref_problem p;
            ref_build(&p, &s);
            santa_options o = options((santa_scores_method)method, 2, 0);
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void  *workspace = test_alloc(bytes);
            double want[4][N], sum[4][N], squares[4][N];
            memset(sum, 0, sizeof sum);
            memset(squares, 0, sizeof squares);
            for (int g = 0; g < 4; g++) ref_scores(&p, 0, 0, 4 + g, want[g]);
            for (int round = 0; round < rounds; round++) {
                float scores[4 * N];
                o.offset = (uint64_t)round;
                if (!CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 1, scores, N, workspace, bytes), SANTA_OK))
                    break;
                for (int g = 0; g < 4; g++)
                    for (int j = 0; j < N - 1; j++) {
                        const double error = (double)scores[g * N + j] - want[g][j];
                        sum[g][j]     += error;
                        squares[g][j] += error * error;
                    }
                CHECK(scores[N - 1] == -INFINITY);           /* row 0 of 2 does not see the last key */
            }
            for (int g = 0; g < 4; g++)
                for (int j = 0; j < N - 1; j++)
                    CHECK_MEAN_Z("mean score", sum[g][j], squares[g][j], rounds, 0.0, 5.0);

            float plain[4 * N], capped[4 * N];
            p.a.alibi_slopes = NULL;
            CHECK_STATUS(santa_scores(&p.a, &o, 0, 1, 0, plain, N, workspace, bytes), SANTA_OK);
            p.a.soft_cap = 1.5f;
            CHECK_STATUS(santa_scores(&p.a, &o, 0, 1, 0, capped, N, workspace, bytes), SANTA_OK);
            for (int i = 0; i < 4 * N; i++)
                CHECK_NEAR(capped[i], 1.5 * tanh((double)plain[i] / 1.5), 1e-6, 1e-6);
            free(workspace);
            ref_free(&p);
        }
}

/* Features read: 1 - (1 - p)^B (iid) or min(1, B p) of them, per head and in union over the
   group. */
static void access_fractions(void) {
    static const int64_t budgets[] = {1, 2, 4};
    const int64_t requests = test_quick ? 300 : 3000;
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int b = 0; b < 3; b++) {
            const santa_scores_method m = (santa_scores_method)method;
            ref_problem p;
            identity_problem(&p, SANTA_F32);
            double head = 0.0, group = 0.0, group_variance = 0.0, head_variance = 0.0;
            for (int i = 0; i < DIM; i++) {
                double missed = 1.0;
                for (int h = 0; h < GROUP; h++) {
                    double size[DIM];
                    const double max = sampled_query(&p, m, h, size), share = size[i] / max;
                    const double read = is_strat(m) ? fmin(1.0, (double)budgets[b] * share)
                                                    : 1.0 - pow(1.0 - share, (double)budgets[b]);
                    /* a head does not need what it multiplies by 0 */
                    if (p.q[h * DIM + i] != 0.0) head += read;
                    head_variance += read * (1.0 - read);
                    if (!is_group(m) || h == 0) missed *= 1.0 - read;
                }
                group          += 1.0 - missed;
                group_variance += missed * (1.0 - missed);
            }
            if (is_group(m)) head_variance = 9.0 * group_variance;
            ref_replicate(&p, requests);
            const santa_options o = options(m, budgets[b], 3);
            santa_stats stats;
            if (ref_run(&p, &o, &stats)) {
                const double unit = 1.0 / (double)(requests * DIM);      /* counted per key; n = DIM keys */
                CHECK_INT(stats.k_rows_read, requests * DIM);
                CHECK_NEAR((double)stats.k_features_read * unit, group,
                           5.0 * sqrt(group_variance / (double)requests) + 1e-9, 0.0);
                CHECK_NEAR((double)stats.k_features_head * unit, head,
                           5.0 * sqrt(head_variance / (double)requests) + 1e-9, 0.0);
            }
            ref_free(&p);
        }
}

/* q = 0 everywhere, in one head, in one feature of the whole group: scores 0, never NaN,
   nothing read. */
static void zero_queries(void) {
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        FOR_EACH_ISA (isa) {
            ref_problem p;
            float  scores[GROUP * DIM];
            double out;
            identity_problem(&p, SANTA_F32);
            santa_options o = options((santa_scores_method)method, 4, 8);
            o.isa = isa;
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void *workspace = test_alloc(bytes);
            memset(p.q + DIM, 0, DIM * sizeof *p.q);                     /* head 1 */
            ref_write(&p);
            CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, DIM, workspace, bytes), SANTA_OK);
            for (int i = 0; i < DIM; i++) {
                CHECK(scores[DIM + i] == 0.0f);
                CHECK(!test_is_nan(scores[i]) && !test_is_nan(scores[2 * DIM + i]));
            }
            memset(p.q, 0, GROUP * DIM * sizeof *p.q);
            ref_write(&p);
            /* unread */
            for (int i = 0; i < DIM * DIM; i++) ref_store(SANTA_F32, p.memory[1], i, (double)test_nan());
            santa_stats stats;
            if (ref_run(&p, &o, &stats)) {
                CHECK_INT(stats.k_features_read, 0);
                CHECK_INT(stats.k_features_head, 0);
                double mean = 0.0;
                for (int j = 0; j < DIM; j++) mean += p.v[j] / (double)DIM;
                for (int h = 0; h < GROUP; h++) {
                    ref_out(&p, 0, 0, h, &out);
                    CHECK_NEAR(out, mean, 1e-6, 0.0);
                    CHECK_NEAR(p.lse[h], log((double)DIM), 1e-6, 0.0);
                }
            }
            free(workspace);
            ref_free(&p);
        }
}

/* A query head with a NaN or an infinity gives NaN; of the others those do that share its
   draws. */
static void broken_queries(void) {
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int kind = 0; kind < 3; kind++) {
            ref_problem p;
            santa_stats stats;
            identity_problem(&p, SANTA_F32);
            const santa_options o = options((santa_scores_method)method, 4, 8);
            p.q[DIM + 3] = kind == 0 ? (double)test_nan() : kind == 1 ? REF_INF : -REF_INF;   /* head 1 */
            ref_write(&p);
            if (ref_run(&p, &o, &stats))
                for (int h = 0; h < GROUP; h++) {
                    const int bad = h == 1 || is_group((santa_scores_method)method);
                    CHECK_INT(test_is_nan((float)ref_get(&p.a.out, 0, 0, h, 0)), bad);
                    CHECK_INT(test_is_nan(p.lse[h]), bad);
                }
            ref_free(&p);
        }
}

/* bf16 q and k in rows of 32, which exact scores may multiply two at a time, and a single key
   of q8_0: estimated scores are those of the same numbers in f32. */
static void other_types(void) {
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int q8 = 0; q8 < 2; q8++) {
            ref_spec s = ref_spec_make(2, 1, q8 ? 1 : 70, 32);
            float    scores[2][2 * 70];
            s.q_type = s.k_type = SANTA_BF16;
            if (q8) s.k_type = SANTA_Q8_0;
            const santa_options o = options((santa_scores_method)method, 6, 3);
            ref_problem p[2];
            for (int f32 = 0; f32 < 2; f32++) {
                ref_build(&p[f32], &s);
                if (f32) memcpy(p[1].q, p[0].q, 2 * 32 * sizeof *p[0].q);
                if (f32) memcpy(p[1].k, p[0].k, (size_t)s.len * 32 * sizeof *p[0].k);
                ref_write(&p[f32]);
                const size_t bytes = santa_workspace_size(&p[f32].a, &o);
                void *workspace = test_alloc(bytes);
                CHECK_STATUS(santa_scores(&p[f32].a, &o, 0, 0, 0, scores[f32], s.len, workspace, bytes),
                             SANTA_OK);
                free(workspace);
                s.q_type = s.k_type = SANTA_F32;
            }
            for (int64_t j = 0; j < 2 * s.len; j++) CHECK_NEAR(scores[0][j], scores[1][j], 1e-4, 1e-5);
            ref_free(&p[0]);
            ref_free(&p[1]);
        }
}

/* NaN in the features that nobody drew changes no bit, token by token or feature by feature. */
static void unread_features(void) {
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        FOR_EACH_ISA (isa)
            for (int major = 0; major < 2; major++) {
                ref_problem p;
                float clean[GROUP * DIM], poisoned[GROUP * DIM];
                int   unread = 0;
                identity_problem(&p, SANTA_F32);
                santa_options o = options((santa_scores_method)method, 1, 12);
                o.isa = isa;
                float copy[DIM * DIM];
                if (major) p.a.k = santa_keys_feature_major(&p.a.k, copy);
                const size_t bytes = santa_workspace_size(&p.a, &o);
                void *workspace = test_alloc(bytes);
                CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, clean, DIM, workspace, bytes), SANTA_OK);
                for (int i = 0; i < DIM; i++)
                    if (clean[i] == 0.0f && clean[DIM + i] == 0.0f && clean[2 * DIM + i] == 0.0f) {
                        for (int j = 0; j < DIM; j++) ref_set(&p.a.k, 0, j, 0, i, (double)test_nan());
                        unread++;
                    }
                CHECK_MSG(unread > 0 && unread < DIM, "%d features unread", unread);
                CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, poisoned, DIM, workspace, bytes), SANTA_OK);
                CHECK_MSG(!memcmp(clean, poisoned, sizeof clean), "scores %d, isa %s, feature-major %d",
                          method, santa_isa_name(isa), major);
                free(workspace);
                ref_free(&p);
            }
}

/* Feature-major K, other layouts and pages: the same draws, scores within rounding of the exact
   estimate. */
static void layouts(void) {
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int type = 0; type < 3; type++)
            FOR_EACH_ISA (isa) {
                ref_spec s = ref_spec_make(4, 2, 300, 80);
                s.k_type = (santa_dtype)type;
                float *want = ref_floats(600), *got = ref_floats(600);
                for (int layout = 0; layout <= REF_LAYOUTS + 1; layout++) {
                    s.layout    = (ref_layout)(layout < REF_LAYOUTS ? layout : 0);
                    s.page_size = layout == REF_LAYOUTS + 1 ? 16 : 0;
                    ref_problem p;
                    ref_build(&p, &s);
                    santa_options o = options((santa_scores_method)method, 4, 12);
                    o.isa = isa;
                    void *copy = test_alloc(300 * 2 * 80 * 4);
                    if (layout == REF_LAYOUTS) p.a.k = santa_keys_feature_major(&p.a.k, copy);
                    const size_t bytes = santa_workspace_size(&p.a, &o);
                    void *workspace = test_alloc(bytes);
                    CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 1, layout ? got : want, 300, workspace,
                                              bytes),
                                 SANTA_OK);
                    for (int i = 0; i < 600 && layout; i++)
                        if (!CHECK_NEAR(got[i], want[i], 5e-6, 1e-6)) {
                            CHECK_MSG(0, "scores %d, type %d, isa %s, layout %d, score %d", method, type,
                                      santa_isa_name(isa), layout, i);
                            break;
                        }
                    free(workspace);
                    free(copy);
                    ref_free(&p);
                }
                free(want);
                free(got);
            }
}

/* Relative L2 of the estimated query, Gaussian q, d = 128: about 1.13/sqrt(B) iid, 1.16/B
   stratified. */
static void relative_error(void) {
    enum { D = 128 };
    const int rounds = test_quick ? 20 : 200;
    for (int method = 0; method < 2; method++)
        for (int64_t draws = 1; draws <= 8; draws *= 2) {
            ref_spec s = ref_spec_make(1, 1, D, D);
            s.sm_scale   = 1.0f;
            s.head_dim_v = 1;
            ref_problem p;
            ref_build(&p, &s);
            for (int i = 0; i < D * D; i++) p.k[i] = i / D == i % D ? 1.0 : 0.0;
            santa_options o =
                options(method ? SANTA_SCORES_BERNOULLI_STRAT : SANTA_SCORES_BERNOULLI_IID, draws, 1);
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void *workspace = test_alloc(bytes);
            test_rng r = test_rng_make(9);
            double mean = 0.0;
            ref_write(&p);
            for (int round = 0; round < rounds; round++) {
                float q[D], scores[D];
                for (int i = 0; i < D; i++) {
                    q[i] = (float)test_normal(&r);
                    ref_set(&p.a.q, 0, 0, 0, i, (double)q[i]);
                }
                o.seed = (uint64_t)round;
                CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, D, workspace, bytes), SANTA_OK);
                mean += santa_relative_l2(scores, q, D) / rounds;
            }
            CHECK_NEAR(mean, method ? 1.16 / (double)draws : 1.13 / sqrt((double)draws), 0.0,
                       test_quick ? 0.1 : 0.05);
            free(workspace);
            ref_free(&p);
        }
}

/* Any value method goes on from the estimated scores: its lse is theirs, and so are dense's
   probabilities. */
static void under_values(void) {
    for (int method = SANTA_SCORES_BERNOULLI_IID; method <= SANTA_SCORES_GROUP_STRAT; method++) {
        ref_spec s = ref_spec_make(4, 1, 150, 40);
        s.head_dim_v = 6;
        s.gain = 2.0;
        ref_problem p;
        ref_build(&p, &s);
        float  scores[4 * 150];
        double wide[150], out[6], want[6];
        for (int value = 0; value < SANTA_VATTENTION; value++) {
            santa_options o = options((santa_scores_method)method, 4, 12);
            o.method = (santa_method)value;
            if (!ref_has_error((santa_method)value)) p.a.std_error = NULL;
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void *workspace = test_alloc(bytes);
            CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, 150, workspace, bytes), SANTA_OK);
            if (!ref_run(&p, &o, NULL)) { free(workspace); break; }
            for (int h = 0; h < 4; h++) {
                for (int j = 0; j < 150; j++) wide[j] = (double)scores[h * 150 + j];
                const double lse = ref_softmax(wide, 150, -REF_INF, wide);
                CHECK_NEAR(p.lse[h], lse, 1e-5, 1e-6);
                ref_values(&p, 0, h, wide, want);
                ref_out(&p, 0, 0, h, out);
                for (int c = 0; c < 6 && value == SANTA_DENSE; c++) CHECK_NEAR(out[c], want[c], 1e-5, 1e-5);
            }
            free(workspace);
        }
        ref_free(&p);
    }
}

/* Exact scores read every feature for every head, those included where q is 0. */
static void features_of_exact_scores(void) {
    ref_problem p;
    santa_stats stats;
    identity_problem(&p, SANTA_F32);
    santa_options o = ref_options(SANTA_DENSE, 0, 1);
    if (ref_run(&p, &o, &stats)) {
        CHECK_INT(stats.k_features_read, DIM * DIM);
        CHECK_INT(stats.k_features_head, GROUP * DIM * DIM);
    }
    ref_free(&p);
}

/* Index feature * B + draw from 2^34 on, where the stream's word takes what index / 4 has
   beyond 32 bits: B = 2^16, features from 2^18 on. They want half a draw more than a whole
   number, which the random number gives them or not. Keys are one row of a single 1, a feature
   further on for each key. */
static void large_indices(void) {
    enum { KEYS = 64, FIRST = 1 << 18, LARGE = FIRST + KEYS };
    const int64_t draws = 65536, whole = draws / 2;
    float *q = (float *)test_alloc(LARGE * sizeof *q), *k = (float *)test_alloc((LARGE + KEYS) * sizeof *k);
    float v[KEYS] = {0}, out[1], scores[KEYS];
    for (int i = 0; i < LARGE; i++) q[i] = i ? ((float)whole + 0.5f) / (float)draws : 1.0f;
    for (int i = 0; i < LARGE + KEYS; i++) k[i] = i == LARGE - 1 ? 1.0f : 0.0f;
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(q, SANTA_F32, 1, 1, 1, LARGE);
    a.k = santa_view(k, SANTA_F32, 1, KEYS, 1, LARGE);
    a.k.stride[1] = 1;
    a.v = santa_view(v, SANTA_F32, 1, KEYS, 1, 1);
    a.out = santa_view(out, SANTA_F32, 1, 1, 1, 1);
    a.sm_scale = 1.0f;
    santa_options o = options(SANTA_SCORES_BERNOULLI_STRAT, draws, 5);
    const size_t bytes = santa_workspace_size(&a, &o);
    void *workspace = test_alloc(bytes);
    CHECK_STATUS(santa_scores(&a, &o, 0, 0, 0, scores, KEYS, workspace, bytes), SANTA_OK);
    const uint32_t seed[2] = {5, 0}, first[4] = {(uint32_t)o.offset, (uint32_t)(o.offset >> 32), 0, 0};
    uint32_t row[4], word[4];
    santa_philox(first, seed, row);
    for (int j = 0; j < KEYS; j++) {
        const uint64_t feature = LARGE - 1 - (uint64_t)j,
                       index = feature * (uint64_t)draws + (uint64_t)whole;
        const uint32_t counter[4] = {(uint32_t)(index / 4), 0, 0, 1 + ((uint32_t)(index >> 34) << 8)};
        santa_philox(counter, row, word);
        const int more = word[index % 4] < 0x80000000u;
        CHECK_NEAR(scores[j] * (float)draws, whole + more, 1e-2, 0.0);
    }
    free(workspace);
    free(k);
    free(q);
}

/* A single key has no next one, however far that would be: the same bits. */
static void one_key(void) {
    enum { D = 16, SEEDS = 40 };
    for (int method = SANTA_SCORES_EXACT; method <= SANTA_SCORES_GROUP_STRAT; method++)
        for (int seed = 0; seed < SEEDS; seed++) {
            test_rng r = test_rng_make((uint64_t)seed);
            float q[D], k[D], out[2][D], lse[2], workspace[4096];
            for (int i = 0; i < D; i++) { q[i] = (float)test_normal(&r); k[i] = (float)test_normal(&r); }
            for (int i = 0; i < 2; i++) {
                santa_attention a;
                santa_options o = options((santa_scores_method)method, 4, (uint64_t)seed);
                memset(&a, 0, sizeof a);
                a.q = santa_view(q, SANTA_F32, 1, 1, 1, D);
                a.k = a.v = santa_view(k, SANTA_F32, 1, 1, 1, D);
                a.out = santa_view(out[i], SANTA_F32, 1, 1, 1, D);
                a.lse = &lse[i];
                if (i) a.k.stride[1] = 1;
                CHECK_STATUS(santa_decode(&a, &o, workspace, sizeof workspace, NULL), SANTA_OK);
            }
            CHECK(!memcmp(out[0], out[1], sizeof out[0]));
            CHECK(!memcmp(&lse[0], &lse[1], sizeof lse[0]));
        }
}

const test_case suite_bernoulli[] = {
    {"mean, variance and values of every element's estimate", moments},
    {"draws: known answers", known_draws},
    {"GROUP shares its draws over the group", shared_draws},
    {"scores are unbiased; cap, ALiBi and mask after them", unbiased_scores},
    {"features read, per head and per group", access_fractions},
    {"zero queries", zero_queries},
    {"NaN and infinity in a query", broken_queries},
    {"bf16 in whole rows; a single key of q8_0", other_types},
    {"NaN in features that nobody drew", unread_features},
    {"feature-major, strided, paged K", layouts},
    {"one key, whatever its stride", one_key},
    {"relative error 1.13/sqrt(B) and 1.16/B", relative_error},
    {"every value method on estimated scores", under_values},
    {"random numbers of large indices", large_indices},
    {"exact scores read every feature", features_of_exact_scores},
    {0, 0},
};
