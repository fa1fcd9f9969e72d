/* What each sampler draws, row by row: against float64 sequential samplers fed with the same
   random numbers. */
#include "reference.h"

/* seed 1, offset 0, request 0: these heads' first word is 0 and 0xffffffff (found by search;
   checked below). */
enum { ZERO_HEAD = 1555671153, ZERO_ROW = 0, ONES_HEAD = 1271270554, ONES_ROW = 1 };

/* ------------------------------------------------------------ score families */

enum { FLAT, GAUSS, PEAKED, MASKED, ONE_HOT, LARGE, UNDERFLOW, SKEWED, FAMILIES };
static const char *const family_names[FAMILIES] = {"flat", "gauss", "peaked", "masked",
                                                   "one-hot", "1e4", "underflow", "skewed"};

static void make_scores(int family, int64_t n, uint64_t stream, float *s) {
    test_rng r = test_rng_make(stream * 31 + (uint64_t)family);
    double tile = 0.0;
    for (int64_t j = 0; j < n; j++) {
        double x = test_normal(&r);
        if (j % 64 == 0) tile = 3.0 * test_normal(&r);
        switch (family) {
            case FLAT:      x = -2.25; break;
            case PEAKED:    x *= 6.0; break;
            case MASKED:    if (test_uniform(&r) < 0.4) x = -REF_INF; break;
            case ONE_HOT:   x = j == n / 3 ? 300.0 : -REF_INF; break;
            case LARGE:     x = 1e4 + 2.0 * x; break;
            case UNDERFLOW: if (test_uniform(&r) < 0.5) x = -1e4; break;
            case SKEWED:    x = 2.0 * x + tile; break;
            default: break;
        }
        s[j] = (float)x;
    }
    if (family == MASKED) s[0] = s[n - 1] = n > 2 ? -INFINITY : 0.0f;
    if (family == UNDERFLOW) s[n / 2] = 1.0f;
}

static double *probabilities(const float *scores, int64_t n, double *lse) {
    double *p = ref_doubles(n), *wide = ref_doubles(n);
    for (int64_t j = 0; j < n; j++) wide[j] = (double)scores[j];
    const double sum = ref_softmax(wide, n, -REF_INF, p);
    if (lse) *lse = sum;
    free(wide);
    return p;
}

/* ------------------------------------------------------------ checks */

/* What every result must be: ascending, in range, counted, finite, lse exact. */
static int well_formed(const ref_drawn *r, const float *scores, int64_t n, double lse) {
    int64_t draws = 0;
    int     good  = CHECK_STATUS(r->status, SANTA_OK);
    if (!good) return 0;
    good &= CHECK(r->d.rows >= 0 && r->d.rows <= r->d.capacity && r->d.rows <= n);
    for (int64_t i = 0; good && i < r->d.rows; i++) {
        good &= CHECK(r->index[i] >= 0 && r->index[i] < n && (i == 0 || r->index[i] > r->index[i - 1]));
        good &= CHECK(r->count[i] >= 1);
        good &= CHECK(r->weight[i] > 0.0f && r->weight[i] <= 1.00001f);
        if (good) good &= CHECK(scores[r->index[i]] > -INFINITY);
        draws += r->count[i];
    }
    good &= CHECK_INT(r->d.draws, draws);
    good &= lse == -REF_INF ? CHECK((double)r->d.lse == lse) : CHECK_NEAR(r->d.lse, lse, 2e-6, 1e-6);
    return good;
}

/* The m-th lowest draw against the m-th lowest threshold: it must lie in that key's share of
   [0, 1) but for rounding. Returns how many draws are not the reference's key, -1 after a
   failed check. */
static int64_t flips(const ref_drawn *r, const double *p, int64_t n, const santa_options *o,
                     santa_stream_id id) {
    const double tolerance = 4e-7;
    double *t = ref_doubles(o->num_samples), end = 0.0;
    int64_t moved = 0, m = 0, j = -1, last = n - 1;
    while (last > 0 && p[last] <= 0.0) last--;
    ref_thresholds(o, id, t);
    for (int64_t i = 0; i < r->d.rows; i++) {
        while (j < r->index[i]) end += p[++j];
        const double begin = end - p[j];
        if (!CHECK_NEAR(r->weight[i], (double)r->count[i] / (double)o->num_samples, 0.0, 1e-6)) moved = -1;
        for (int32_t c = 0; c < r->count[i] && moved >= 0; c++, m++) {
            moved += t[m] < begin || (t[m] >= end && j < last);
            if (!CHECK_MSG(t[m] >= begin - tolerance && (t[m] < end + tolerance || j == last),
                           "draw %d is key %d of [%.12g, %.12g), threshold %.12g", (int)m, (int)j, begin,
                           end, t[m]))
                moved = -1;
        }
        if (moved < 0) break;
    }
    free(t);
    return moved;
}

static santa_method sampled(int i) {
    static const santa_method methods[] = {SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_PROP, SANTA_FLASH};
    return methods[i];
}

/* ------------------------------------------------------------ cases */

static void sequential(void) {
    static const int64_t lens[] = {1, 2, 63, 64, 65, 300, 1000, 4096, 5001};
    static const int64_t budgets[] = {1, 2, 7, 64, 128, 1000};
    int64_t moved = 0, draws = 0;
    for (int family = 0; family < FAMILIES; family++)
        for (size_t l = 0; l < sizeof lens / sizeof lens[0]; l++) {
            const int64_t n = lens[l];
            float  *scores = ref_floats(n);
            double  lse;
            make_scores(family, n, (uint64_t)l, scores);
            double *p = probabilities(scores, n, &lse);
            for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++)
                for (int m = 0; m < 4; m++) {
                    const santa_options   o  = ref_options(sampled(m), budgets[b], 11 + b);
                    const santa_stream_id id = ref_stream(l, family, 3);
                    ref_drawn r = ref_sample(scores, n, &o, id);
                    const int good = well_formed(&r, scores, n, lse) && CHECK_INT(r.d.draws, budgets[b]);
                    const int64_t off = good ? flips(&r, p, n, &o, id) : -1;
                    ref_drawn_free(&r);
                    if (!CHECK_MSG(off >= 0, "%s, %s, n = %d, S = %d", santa_method_name(o.method),
                                   family_names[family], (int)n, (int)budgets[b])) {
                        free(scores);
                        free(p);
                        return;
                    }
                    moved += off;
                    draws += budgets[b];
                }
            free(scores);
            free(p);
        }
    /* A threshold is moved across a border by an error of at most about 1e-7 in the prefix;
       shares here are mostly above 1e-4: one draw in a thousand is the generous bound. */
    CHECK_MSG(moved * 1000 <= draws, "%d of %d draws differ from the float64 sampler", (int)moved,
              (int)draws);
}

static void million(void) {
    const int64_t n = test_quick ? 100000 : 1000000, samples = 2000;
    float *scores = ref_floats(n);
    for (int family = 0; family < FAMILIES; family++) {
        if (family == ONE_HOT) continue;
        double lse;
        make_scores(family, n, 5, scores);
        double *p = probabilities(scores, n, &lse);
        for (int m = 0; m < 4; m++) {
            const santa_options   o  = ref_options(sampled(m), samples, 23);
            const santa_stream_id id = ref_stream(9, family, 0);
            ref_drawn r = ref_sample(scores, n, &o, id);
            const int64_t off = well_formed(&r, scores, n, lse) ? flips(&r, p, n, &o, id) : -1;
            /* One key's share is about 1e-6, so an error of 1e-7 in the prefix moves one draw
               in ten. Equal scores have no such error: there even a uniform of 24 bits would
               show. */
            CHECK_MSG(off >= 0 && off * 10 <= samples && (family != FLAT || off <= 2),
                      "%s, %s: %d of %d draws differ from the float64 sampler", santa_method_name(o.method),
                      family_names[family], (int)off, (int)samples);
            ref_drawn_free(&r);
        }
        free(p);
    }
    free(scores);
}

/* Key j is drawn floor(S p_j) or ceil(S p_j) times. */
static void comb_counts(void) {
    static const int64_t budgets[] = {1, 5, 64, 1000, 65536};
    const int64_t n = 3000;
    float *scores = ref_floats(n);
    for (int family = 0; family < FAMILIES; family++)
        for (int b = 0; b < 5; b++)
            for (int m = 2; m < 4; m++) {
                make_scores(family, n, 8, scores);
                double *p = probabilities(scores, n, NULL);
                const santa_options o = ref_options(sampled(m), budgets[b], (uint64_t)family);
                ref_drawn r = ref_sample(scores, n, &o, ref_stream(0, 0, 0));
                int64_t i = 0;
                for (int64_t j = 0; j < n && r.status == SANTA_OK; j++) {
                    const double  share = (double)budgets[b] * p[j], slack = 4e-7 * (double)budgets[b];
                    const int64_t count = i < r.d.rows && r.index[i] == j ? r.count[i++] : 0;
                    if (!CHECK_MSG((double)count >= floor(share - slack) &&
                                       (double)count <= ceil(share + slack),
                                   "%s, %s, S = %d: key %d of share %.9g drawn %d times",
                                   santa_method_name(o.method), family_names[family], (int)budgets[b],
                                   (int)j, share, (int)count))
                        break;
                }
                CHECK_STATUS(r.status, SANTA_OK);
                ref_drawn_free(&r);
                free(p);
            }
    free(scores);
}

/* prop is sys, bit for bit, for every tile size and number of tiles. */
static void prop_is_sys(void) {
    static const int64_t lens[]  = {1, 63, 64, 65, 128, 200, 256, 1000, 1024, 4096, 4097, 10000, 16384,
                                    33000};
    static const int64_t tiles[] = {0, 64, 128, 192, 256, 320, 1024, 65536};
    static const int64_t budgets[] = {1, 2, 128, 1000};
    for (size_t l = 0; l < sizeof lens / sizeof lens[0]; l++)
        for (int family = 0; family < FAMILIES; family++) {
            float *scores = ref_floats(lens[l]);
            make_scores(family, lens[l], (uint64_t)l, scores);
            for (int b = 0; b < (lens[l] > 5000 ? 3 : 4); b++) {
                santa_options o = ref_options(SANTA_SYS, budgets[b], l + (uint64_t)b);
                ref_drawn want = ref_sample(scores, lens[l], &o, ref_stream(0, 2, 0));
                o.method = SANTA_PROP;
                for (size_t t = 0; t < sizeof tiles / sizeof tiles[0]; t++) {
                    o.tile_size = tiles[t];
                    ref_drawn got = ref_sample(scores, lens[l], &o, ref_stream(0, 2, 0));
                    const size_t rows = (size_t)want.d.rows;
                    CHECK_MSG(got.status == SANTA_OK && got.d.rows == want.d.rows &&
                                  got.d.draws == want.d.draws &&
                                  !memcmp(got.index, want.index, rows * sizeof *got.index) &&
                                  !memcmp(got.count, want.count, rows * sizeof *got.count) &&
                                  !memcmp(got.weight, want.weight, rows * sizeof *got.weight) &&
                                  !memcmp(&got.d.lse, &want.d.lse, sizeof(float)),
                              "n = %d, %s, S = %d, tile %d: not the rows of sys", (int)lens[l],
                              family_names[family], (int)budgets[b], (int)tiles[t]);
                    ref_drawn_free(&got);
                }
                ref_drawn_free(&want);
            }
            free(scores);
        }
}

/* flash: the split of the budget over the tiles that have mass, each tile's own comb, its exact
   mass as weight. */
static void flash_tiles(void) {
    static const int64_t lens[]    = {1, 8, 100, 256, 1000, 4096, 129 * 64, 129 * 64 - 5};
    static const int64_t sizes[]   = {8, 16, 32, 64, 192, 256};
    static const int64_t budgets[] = {1, 3, 64, 256, 1000};
    for (size_t l = 0; l < sizeof lens / sizeof lens[0]; l++)
        for (int family = 0; family < FAMILIES; family++)
            for (int z = 0; z < 6; z++)
                for (int b = 0; b < 5; b++) {
                    const int64_t n = lens[l], size = sizes[z], tiles = (n + size - 1) / size,
                                  samples = budgets[b];
                    if (test_quick && (l + (size_t)family + (size_t)z + (size_t)b) % 8) continue;
                    float *scores = ref_floats(n);
                    double lse;
                    make_scores(family, n, (uint64_t)l, scores);
                    double *p = probabilities(scores, n, &lse);
                    santa_options o = ref_options(SANTA_FLASH, samples, 5);
                    o.tile_size = size;
                    const santa_stream_id id = ref_stream(1, 2, 3);
                    ref_drawn r = ref_sample(scores, n, &o, id);
                    int64_t i = 0, total = 0, massive = 0, rank = 0;
                    int     good = well_formed(&r, scores, n, lse);
                    for (int64_t t = 0; t < tiles; t++) {
                        double mass = 0.0;
                        for (int64_t j = t * size; j < ref_min(n, t * size + size); j++) mass += p[j];
                        massive += mass > 0.0;
                    }
                    for (int64_t t = 0; t < tiles && good; t++) {
                        const int64_t begin = t * size, end = ref_min(n, begin + size);
                        int64_t drawn = 0, last = -1;
                        double  mass = 0.0, before = 0.0;
                        for (int64_t j = begin; j < end; j++) {
                            mass += p[j];
                            if (p[j] > 0.0) last = j;
                        }
                        if (last < 0) continue;
                        const double  u = ref_random(&o, id, t);
                        const double  tolerance = 4e-7 * mass + 1e-15;
                        const int64_t budget =
                            ref_max(samples * (rank + 1) / massive - samples * rank / massive, 1);
                        rank++;
                        for (int64_t j = begin; j < end && good; j++) {
                            const double after = before + p[j];
                            if (i < r.d.rows && r.index[i] == j) {
                                const double weight = mass * (double)r.count[i] / (double)budget;
                                good &= CHECK_NEAR(r.weight[i], weight, 4e-16, 3e-6);
                                for (int32_t c = 0; c < r.count[i]; c++, drawn++) {
                                    const double threshold = mass * ((double)drawn + u) / (double)budget;
                                    good &= CHECK_MSG(
                                        threshold >= before - tolerance &&
                                            (threshold < after + tolerance || j == last),
                                        "n = %d, tile %d of %d, %s: key %d of [%.9g, %.9g), threshold %.9g",
                                        (int)n, (int)t, (int)tiles, family_names[family], (int)j, before,
                                        after, threshold);
                                }
                                i++;
                            }
                            before = after;
                        }
                        good = good && CHECK_INT(drawn, budget);
                        total += budget;
                    }
                    good = good && CHECK_INT(r.d.draws, total);
                    /* none lost, one each at least */
                    if (good) CHECK_INT(r.d.draws, ref_max(samples, massive));
                    ref_drawn_free(&r);
                    free(scores);
                    free(p);
                    if (!good) return;
                }
}

/* A tile more than 87 below the best one has no share and no draw; one less far below is drawn
   from as often as any, with its own small mass as weight, which does not drown in what lies
   before it. */
static void flash_far_tiles(void) {
    static const float low[] = {-200.0f, -80.0f, 0.0f, -86.9f, -87.1f, -200.0f, -1e30f, -60.0f, -40.0f};
    static const int   drawn[] = {0, 1, 1, 1, 0, 0, 0, 1, 1};
    enum { TILES = 9, MASSIVE = 5, SAMPLES = 20 };
    for (int64_t size = 8; size <= 128; size *= 2) {
        const int64_t n = TILES * size;
        float *scores = ref_floats(n);
        test_rng r = test_rng_make((uint64_t)size);
        for (int64_t j = 0; j < n; j++)
            scores[j] = low[j / size] - (j % size ? (float)(3.0 * test_uniform(&r)) : 0.0f);
        double lse, *p = probabilities(scores, n, &lse);
        santa_options o = ref_options(SANTA_FLASH, SAMPLES, 3);
        o.tile_size = size;
        ref_drawn d = ref_sample(scores, n, &o, ref_stream(0, 0, 0));
        if (well_formed(&d, scores, n, lse)) {
            int64_t counts[TILES] = {0};
            CHECK_INT(d.d.draws, SAMPLES);
            for (int64_t i = 0; i < d.d.rows; i++) {
                const int64_t t = d.index[i] / size;
                double mass = 0.0;
                for (int64_t j = t * size; j < (t + 1) * size; j++) mass += p[j];
                CHECK_NEAR(d.weight[i], mass * d.count[i] / (SAMPLES / MASSIVE), 0.0, 3e-6);
                counts[t] += d.count[i];
            }
            for (int t = 0; t < TILES; t++) CHECK_INT(counts[t], drawn[t] * SAMPLES / MASSIVE);
        }
        ref_drawn_free(&d);
        free(scores);
        free(p);
    }
}

/* Keys that must never be drawn, with the two extreme random words in the first draw. */
static void zero_mass(void) {
    static const float low[] = {-INFINITY, -1e4f};
    CHECK_INT(santa_random(1, 0, 0, 0, ZERO_HEAD, ZERO_ROW, 0), 0);
    CHECK_INT(santa_random(1, 0, 0, 0, ONES_HEAD, ONES_ROW, 0), 0xffffffff);
    for (int64_t n = 3; n <= 511; n = n * 2 + 1)
        for (int64_t first = 0; first < n; first += 1 + n / 7)
            for (int64_t last = first; last < n; last += 1 + n / 5)
                for (int l = 0; l < 2; l++)
                    for (int m = 0; m < 5; m++)
                        for (int word = 0; word < 3; word++) {
                            float scores[512];
                            for (int64_t j = 0; j < n; j++) scores[j] = low[l];
                            for (int64_t j = first; j <= last; j += 3) scores[j] = 0.25f * (float)(j % 3);
                            const santa_options o = ref_options(sampled(m), 5, 1);
                            ref_drawn r =
                                ref_sample(scores, n, &o,
                                           word == 0   ? ref_stream(0, ZERO_HEAD, ZERO_ROW)
                                           : word == 1 ? ref_stream(0, ONES_HEAD, ONES_ROW)
                                                       : ref_stream((uint64_t)(n + first), last, 0));
                            int good = CHECK_STATUS(r.status, SANTA_OK) && CHECK(r.d.rows > 0);
                            for (int64_t i = 0; i < r.d.rows && good; i++)
                                good = CHECK_MSG(
                                    scores[r.index[i]] > -1e3f,
                                    "%s drew key %d of %d, which has no mass (mass in %d..%d, word %d)",
                                    santa_method_name(o.method), (int)r.index[i], (int)n, (int)first,
                                    (int)last, word);
                            ref_drawn_free(&r);
                            if (!good) return;
                        }
}

/* The smallest of a million offsets finds key 0, however small its share; and only if its share
   reaches it. */
static void tiny_offsets(void) {
    double smallest = 1.0;
    santa_options o = ref_options(SANTA_SYS, 4, 0), best = o;
    for (uint64_t seed = 0; seed < (test_quick ? 20000u : 1000000u); seed++) {
        o.seed = seed;
        const double u = ref_random(&o, ref_stream(0, 0, 0), 0);
        if (u < smallest) { smallest = u; best = o; }
    }
    CHECK(smallest > 0.0 && smallest < 2e-4);
    for (int side = 0; side < 2; side++) {
        /* key 0 gets half, or twice, the mass below the first threshold; key 1 none */
        float scores[100];
        const double share = smallest / 4.0 * (side ? 2.0 : 0.5);
        for (int j = 0; j < 100; j++) scores[j] = (float)-log(98.0);
        scores[0] = (float)log(share / (1.0 - share));
        scores[1] = -INFINITY;
        ref_drawn r = ref_sample(scores, 100, &best, ref_stream(0, 0, 0));
        if (CHECK_STATUS(r.status, SANTA_OK)) CHECK_INT(r.index[0], side ? 0 : 2);
        ref_drawn_free(&r);
    }
}

/* The part's keys, no multiple of a block, lie before all that the rows see: no key is scored,
   and nothing is read in search of one. */
static void left_behind(void) {
    ref_spec s = ref_spec_make(2, 1, 100, 8);
    ref_problem p;
    float scores[2 * 100];
    const int32_t context = 1000;
    s.window = 50;
    s.causal = 1;
    ref_build(&p, &s);
    p.a.context_lens = &context;
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        const santa_options o = ref_options((santa_method)m, 8, 1);
        p.a.std_error = ref_has_error((santa_method)m) ? p.std_error : NULL;
        if (!ref_run(&p, &o, NULL)) break;
        CHECK(p.lse[0] == -INFINITY && p.lse[1] == -INFINITY && ref_get(&p.a.out, 0, 0, 1, 7) == 0.0);
        const size_t bytes = santa_workspace_size(&p.a, &o);
        void *workspace = test_alloc(bytes);
        CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, 100, workspace, bytes), SANTA_OK);
        for (int j = 0; j < 200; j++) CHECK(scores[j] == -INFINITY);
        free(workspace);
    }
    ref_free(&p);
}

/* Rounding what is kept of a score does not hide that it was none; the other head keeps its
   bits. */
static void broken_scores(void) {
    for (int m = SANTA_IID; m <= SANTA_FLASH; m++)
        for (int stash = SANTA_STASH_DEFAULT; stash <= SANTA_STASH_U8; stash++)
            for (int kind = 0; kind < 2; kind++) {
                ref_spec s = ref_spec_make(2, 2, 300, 8);
                ref_problem p;
                santa_options o = ref_options((santa_method)m, 16, 1);
                double good[8], now[8];
                o.stash = (santa_stash)stash;
                ref_build(&p, &s);
                if (!ref_run(&p, &o, NULL)) return;
                ref_out(&p, 0, 0, 1, good);
                for (int c = 0; c < 8; c++) {
                    ref_set(&p.a.k, 0, 77, 0, c, kind ? REF_INF : (double)test_nan());
                    ref_set(&p.a.q, 0, 0, 0, c, 1.0);
                }
                if (!ref_run(&p, &o, NULL)) return;
                ref_out(&p, 0, 0, 1, now);
                CHECK(memcmp(good, now, sizeof now) == 0);
                for (int c = 0; c < 8; c++) CHECK(test_is_nan((float)ref_get(&p.a.out, 0, 0, 0, c)));
                CHECK(test_is_nan(p.lse[0]) && !test_is_nan(p.lse[1]));
                ref_free(&p);
            }
}

static void no_mass(void) {
    float scores[130];
    for (int j = 0; j < 130; j++) scores[j] = -INFINITY;
    for (int m = 0; m < SANTA_VATTENTION; m++) {
        const santa_options o = ref_options((santa_method)m, 8, 1);
        ref_drawn r = ref_sample(scores, 130, &o, ref_stream(0, 0, 0));
        if (CHECK_STATUS(r.status, SANTA_OK)) {
            CHECK_INT(r.d.rows, 0);
            CHECK_INT(r.d.draws, 0);
            CHECK(r.d.lse == -INFINITY);
        }
        ref_drawn_free(&r);
        for (int bad = 0; bad < 2; bad++) {
            scores[77] = bad ? INFINITY : test_nan();
            r = ref_sample(scores, 130, &o, ref_stream(0, 0, 0));
            CHECK_STATUS(r.status, SANTA_ERR_NAN);
            ref_drawn_free(&r);
            scores[77] = -INFINITY;
        }
    }
}

/* Other requests, heads, rows, seeds and offsets draw other rows; the same ones draw the
   same. */
static void streams_differ(void) {
    float scores[1000];
    make_scores(GAUSS, 1000, 1, scores);
    for (int m = 0; m < 5; m++) {
        santa_options o = ref_options(sampled(m), 64, 1);
        ref_drawn base = ref_sample(scores, 1000, &o, ref_stream(0, 0, 0));
        for (int change = 0; change < 7; change++) {
            santa_options   other = o;
            santa_stream_id id    = ref_stream(change == 1, change == 2, change == 3);
            if (change == 4) other.seed = 2;
            if (change == 5) other.offset = 1;
            if (change == 6) id.request_id = UINT64_C(1) << 32;
            ref_drawn r = ref_sample(scores, 1000, &other, id);
            const int same =
                r.d.rows == base.d.rows && !memcmp(r.index, base.index, (size_t)r.d.rows * sizeof *r.index);
            CHECK_MSG(same == (change == 0), "%s, change %d", santa_method_name(o.method), change);
            ref_drawn_free(&r);
        }
        ref_drawn_free(&base);
    }
}

/* Sorted by score, ties by index. */
static const float *sort_scores;
static int by_score(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sort_scores[i] != sort_scores[j]) return sort_scores[i] < sort_scores[j] ? 1 : -1;
    return (i > j) - (i < j);
}

static int by_index(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* The kept rows must be exactly the best `kept` ones with the softmax over them as weights. */
static int kept_are_best(const ref_drawn *r, const int32_t *order, int64_t kept, const double *p) {
    int32_t *want = ref_ints(kept);
    double   mass = 0.0;
    int      good = CHECK_INT(r->d.rows, kept);
    for (int64_t i = 0; i < kept; i++) {
        want[i] = order[i];
        mass += p[order[i]];
    }
    qsort(want, (size_t)kept, sizeof *want, by_index);
    for (int64_t i = 0; i < kept && good; i++) {
        good &= CHECK_INT(r->index[i], want[i]);
        good &= CHECK_INT(r->count[i], 1);
        good &= CHECK_NEAR(r->weight[i], p[want[i]] / mass, 0.0, 3e-6);
    }
    free(want);
    return good;
}

static void make_ties(int family, int64_t n, float *scores) {
    make_scores(family % FAMILIES, n, 3, scores);
    if (family >= FAMILIES)                                  /* a second round: few distinct scores */
        for (int64_t j = 0; j < n; j++) {
            if (scores[j] > -1e3f) scores[j] = floorf(scores[j]);
            if (scores[j] == 0.0f && j % 2) scores[j] = -0.0f;
        }
}

static void top_k(void) {
    static const int64_t lens[] = {1, 2, 65, 500, 3000}, ks[] = {1, 2, 63, 64, 100, 3000, 5000};
    for (int family = 0; family < 2 * FAMILIES; family++)
        for (int l = 0; l < 5; l++) {
            const int64_t n = lens[l];
            float   *scores = ref_floats(n);
            int32_t *order  = ref_ints(n);
            double   lse;
            make_ties(family, n, scores);
            double *p = probabilities(scores, n, &lse);
            int64_t finite = 0;
            for (int32_t j = 0; j < n; j++) {
                order[j] = j;
                finite += scores[j] > -INFINITY && (p[j] > 0.0);
            }
            sort_scores = scores;
            qsort(order, (size_t)n, sizeof *order, by_score);
            for (int k = 0; k < 7; k++) {
                const santa_options o = ref_options(SANTA_TOP_K, ks[k], 0);
                ref_drawn r = ref_sample(scores, n, &o, ref_stream(0, 0, 0));
                int64_t kept = ref_min(ks[k], finite);
                /* weight 0 may stay */
                if (family % FAMILIES == UNDERFLOW && r.d.rows > kept) kept = ref_min(ks[k], n);
                const int good = CHECK_STATUS(r.status, SANTA_OK) && kept_are_best(&r, order, kept, p) &&
                                 CHECK_NEAR(r.d.lse, lse, 2e-6, 1e-6);
                CHECK_MSG(good, "%s, n = %d, k = %d", family_names[family % FAMILIES], (int)n, (int)ks[k]);
                ref_drawn_free(&r);
            }
            free(scores);
            free(order);
            free(p);
        }
}

/* Long rows, where the search guesses how far down the top goes: from scores at equal
   distances, which here also mislead it either way. */
static void top_k_of_long_rows(void) {
    static const int64_t lens[] = {9024, 40000}, ks[] = {100, 700, 1127, 2500, 4900}; /* whole blocks */
    enum { RAISED = FAMILIES, LOWERED, STEPS, FULL, MORE, GUESSES };  /* FULL: its list, 4096 keys */
    for (int family = 0; family < GUESSES; family++)
        for (int l = 0; l < 2; l++) {
            const int64_t n = lens[l];
            float   *scores = ref_floats(n);
            int32_t *order  = ref_ints(n);
            make_scores(family < FAMILIES ? family : GAUSS, n, 5, scores);
            for (int64_t i = 0; i < 1024 && (family == RAISED || family == LOWERED); i++)
                scores[i * n / 1024] += family == RAISED ? 9.0f : -9.0f;
            for (int64_t i = 0; i < n && family == STEPS; i++) scores[i] = floorf(4.0f * scores[i]) / 4.0f;
            for (int64_t i = 0; i < 4096 && family >= FULL; i++)
                scores[i * n / 4096] = i < 4095 ? 20.0f : 21.0f;
            if (family == MORE) scores[1] = 20.0f;
            for (int32_t j = 0; j < n; j++) order[j] = j;
            sort_scores = scores;
            qsort(order, (size_t)n, sizeof *order, by_score);
            double *p = probabilities(scores, n, NULL);
            for (int k = 0; k < 5; k++) {
                const santa_options o = ref_options(SANTA_TOP_K, ks[k], 0);
                ref_drawn r = ref_sample(scores, n, &o, ref_stream(0, 0, 0));
                int64_t kept = 0;
                while (kept < ks[k] && scores[order[kept]] > -INFINITY) kept++;
                CHECK_MSG(CHECK_STATUS(r.status, SANTA_OK) && kept_are_best(&r, order, kept, p),
                          "family %d, n = %d, k = %d", family, (int)n, (int)ks[k]);
                ref_drawn_free(&r);
            }
            free(scores);
            free(order);
            free(p);
        }
}

static void top_p(void) {
    static const int64_t lens[] = {1, 2, 65, 500, 3000};
    static const double  ps[]   = {1e-6, 0.1, 0.333, 0.5001, 0.9, 0.99, 0.9999, 1.0};
    for (int family = 0; family < 2 * FAMILIES; family++)
        for (int l = 0; l < 5; l++) {
            const int64_t n = lens[l];
            float   *scores = ref_floats(n);
            int32_t *order  = ref_ints(n);
            double   lse;
            make_ties(family, n, scores);
            double *p = probabilities(scores, n, &lse);
            for (int32_t j = 0; j < n; j++) order[j] = j;
            sort_scores = scores;
            qsort(order, (size_t)n, sizeof *order, by_score);
            for (int k = 0; k < 8; k++) {
                santa_options o = ref_options(SANTA_TOP_P, 0, 0);
                o.top_p = ps[k];
                ref_drawn r = ref_sample(scores, n, &o, ref_stream(0, 0, 0));
                /* The fewest whose mass reaches top_p, but for float's idea of the mass. */
                double  mass  = 0.0;
                int64_t least = 0, most;
                while (least < n && mass < ps[k] - 1e-6) mass += p[order[least++]];
                for (most = least; most < n && mass < ps[k] + 1e-6; most++) mass += p[order[most]];
                const int good =
                    CHECK_STATUS(r.status, SANTA_OK) &&
                    CHECK_MSG(r.d.rows >= ref_max(least, 1) && r.d.rows <= most, "%d rows, want %d to %d",
                              (int)r.d.rows, (int)least, (int)most) &&
                    kept_are_best(&r, order, r.d.rows, p) && CHECK_NEAR(r.d.lse, lse, 2e-6, 1e-6);
                CHECK_MSG(good, "%s, n = %d, top_p = %g", family_names[family % FAMILIES], (int)n, ps[k]);
                ref_drawn_free(&r);
            }
            free(scores);
            free(order);
            free(p);
        }
}

/* santa_sample of dense: all rows with mass, their softmax as weights. */
static void dense_step(void) {
    float scores[500];
    for (int family = 0; family < FAMILIES; family++) {
        double lse;
        make_scores(family, 500, 4, scores);
        double *p = probabilities(scores, 500, &lse);
        const santa_options o = ref_options(SANTA_DENSE, 0, 0);
        ref_drawn r = ref_sample(scores, 500, &o, ref_stream(0, 0, 0));
        if (CHECK_STATUS(r.status, SANTA_OK)) {
            double sum = 0.0;
            for (int64_t i = 0; i < r.d.rows; i++) {
                CHECK_NEAR(r.weight[i], p[r.index[i]], 1e-30, 3e-6);
                sum += p[r.index[i]];
            }
            CHECK_NEAR(sum, 1.0, 1e-12, 0.0);
            CHECK_NEAR(r.d.lse, lse, 2e-6, 1e-6);
        }
        ref_drawn_free(&r);
        free(p);
    }
}

/* ------------------------------------------------------------ steps */

/* scores, sample, gather for every row must be santa_decode's bits; the counters must be those
   of the draws. */
static void steps_match(const ref_spec *spec, santa_options o, const char *what) {
    ref_problem p;
    ref_build(&p, spec);
    const int64_t group = spec->heads / spec->kv_heads, dv = spec->head_dim_v;
    const uint64_t requests[6] = {40, 3, 7, 7, UINT64_C(1) << 63, 0}, seeds[6] = {9, 9, 8, 9, 9, 1},
                   offsets[6] = {0, 1, 0, 5, 5, 5};
    if (spec->batch == 6) {
        o.request_ids = requests;
        o.seeds       = seeds;
        o.offsets     = offsets;
    }
    if (!ref_has_error(o.method)) p.a.std_error = NULL;
    santa_stats stats;
    if (!ref_run(&p, &o, &stats)) { ref_free(&p); return; }
    const size_t bytes = santa_workspace_size(&p.a, &o);
    void  *workspace = test_alloc(bytes);
    float *scores = ref_floats(group * (spec->len + 5)), *row = ref_floats(dv);
    char  *drawn = (char *)test_alloc((size_t)spec->len);
    int64_t head_rows = 0, group_rows = 0, draws = 0, tiles = 0, skipped = 0;
    const int64_t tile = o.tile_size ? o.tile_size : 256;
    /* dense adds its rows block by block, not through the list; santa_gather has no isa to
       force */
    const int same_bits = o.method != SANTA_DENSE && o.isa == santa_best_isa();
    int good = 1;
    for (int64_t b = 0; b < spec->batch; b++)
        for (int64_t i = 0; i < spec->q_len; i++)
            for (int64_t kv = 0; kv < spec->kv_heads && good; kv++) {
                const int64_t n = ref_len(&p, b);
                if (n == 0) continue;
                good &=
                    CHECK_STATUS(santa_scores(&p.a, &o, b, i, kv, scores, spec->len + 5, workspace, bytes),
                                 SANTA_OK);
                memset(drawn, 0, (size_t)spec->len);
                for (int64_t g = 0; g < group && good; g++) {
                    santa_options mine = o;
                    if (o.seeds)   mine.seed   = o.seeds[b];
                    if (o.offsets) mine.offset = o.offsets[b];
                    const int64_t h = kv * group + g;
                    ref_drawn r =
                        ref_sample(scores + g * (spec->len + 5), n, &mine,
                                   ref_stream(o.request_ids ? o.request_ids[b] : (uint64_t)b, h, i));
                    good &= CHECK_STATUS(r.status, SANTA_OK);
                    good &=
                        CHECK_STATUS(santa_gather(&p.a, b, kv, r.index, r.weight, r.d.rows, row), SANTA_OK);
                    for (int64_t c = 0; c < dv && good; c++) {
                        const float  got  = row[c];
                        const double want = ref_get(&p.a.out, b, i, h, c);
                        good &=
                            CHECK_MSG(same_bits ? (double)got == want : fabs((double)got - want) <= 1e-5,
                                      "%s, %s: batch %d row %d head %d: steps give %.9g, decode %.9g",
                                      santa_method_name(o.method), what, (int)b, (int)i, (int)h,
                                      (double)got, want);
                    }
                    const float lse = p.lse[(b * spec->q_len + i) * spec->heads + h];
                    good &= CHECK_MSG(r.d.lse == lse || (!same_bits && fabsf(r.d.lse - lse) <= 1e-5f),
                                      "%s, %s: lse %.9g, decode %.9g", santa_method_name(o.method), what,
                                      (double)r.d.lse, (double)lse);
                    /* tiles of the range that is not masked, counted from token 0 */
                    const float *mine_scores = scores + g * (spec->len + 5);
                    int64_t first = 0, last = n - 1;
                    char   *touched = (char *)test_alloc((size_t)(n / tile + 1));
                    memset(touched, 0, (size_t)(n / tile + 1));
                    while (first < n && mine_scores[first] == -INFINITY) first++;
                    while (last > first && mine_scores[last] == -INFINITY) last--;
                    for (int64_t k = 0; k < r.d.rows; k++)
                        drawn[r.index[k]] = touched[r.index[k] / tile] = 1;
                    for (int64_t t = first / tile; first < n && t <= last / tile; t++) {
                        tiles++;
                        skipped += !touched[t];
                    }
                    free(touched);
                    head_rows += r.d.rows;
                    draws     += r.d.draws;
                    ref_drawn_free(&r);
                }
                for (int64_t j = 0; j < n; j++) group_rows += drawn[j];
            }
    if (good && o.method != SANTA_DENSE) {
        good &= CHECK_INT(stats.v_rows_head, head_rows);
        good &= CHECK_INT(stats.v_rows_read, group_rows);
        if (o.method >= SANTA_IID && o.method <= SANTA_FLASH) good &= CHECK_INT(stats.draws, draws);
        if (o.method == SANTA_PROP || o.method == SANTA_FLASH) {
            good &= CHECK_INT(stats.tiles, tiles);
            good &= CHECK_INT(stats.tiles_skipped, skipped);
        }
        CHECK_MSG(good, "%s, %s: counters", santa_method_name(o.method), what);
    }
    free(workspace); free(scores); free(row); free(drawn);
    ref_free(&p);
}

static void steps_are_decode(void) {
    for (int method = 0; method < SANTA_VATTENTION; method++)
        for (int shape = 0; shape < 9; shape++)
            FOR_EACH_ISA (isa) {
                ref_spec s = ref_spec_make(6, 2, 333, 24);
                s.gain = 2.0;
                santa_options o = ref_options((santa_method)method, 40, 77);
                o.offset = santa_offset(3, 9);
                o.isa    = isa;
                switch (shape) {
                    case 0: break;
                    case 1:
                        s.batch = 6; s.ragged = 1; s.page_size = 16; s.k_type = s.v_type = SANTA_BF16;
                        break;
                    case 2: s.q_len = 4; s.causal = 1; s.window = 120; s.alibi = 1; s.head_dim_v = 7; break;
                    case 3:
                        s.heads = 7; s.kv_heads = 1; s.soft_cap = 4.0f; s.layout = REF_HND;
                        s.k_type = s.v_type = SANTA_F16;
                        break;
                    case 4:
                        s.heads = s.kv_heads = 5; s.layout = REF_STRIDED;
                        s.head_dim = 1; s.head_dim_v = 130;
                        break;
                    case 5: o.scores = SANTA_SCORES_BERNOULLI_STRAT; s.batch = 2; s.q_len = 2; break;
                    case 6: /* without causal a row sees more keys than the window has */
                        s.q_len = test_quick ? 70 : 200; s.window = 5; s.heads = 3; s.kv_heads = 1; break;
                    case 7:
                        o.scores = SANTA_SCORES_GROUP_IID; o.bernoulli_draws = 3; s.layout = REF_BACKWARDS;
                        break;
                    default: /* a row that sees one key, beside rows that see more; features lie apart */
                        s.batch = 6; s.ragged = 1; s.len = 9; s.q_len = 5; s.causal = 1; s.heads = 2;
                        s.layout = REF_STRIDED;
                        break;
                }
                if (method == SANTA_PROP) o.tile_size = 128;
                if (method == SANTA_FLASH) o.tile_size = 32;
                char what[48];
                snprintf(what, sizeof what, "shape %d, isa %s", shape, santa_isa_name(isa));
                steps_match(&s, o, what);
            }
}

/* The same at a length where float prefix sums would have long lost count. */
static void long_decode(void) {
    for (int m = 0; m < 5; m++) {
        ref_spec s = ref_spec_make(2, 1, test_quick ? 20000 : 1000000, 1);
        s.gain = 0.5;
        s.head_dim_v = 2;
        santa_options o = ref_options(sampled(m), 500, 4);
        o.isa = santa_best_isa();
        steps_match(&s, o, "long");
    }
}

static void gather(void) {
    static const int64_t pages[] = {0, 16};
    for (int layout = 0; layout < REF_LAYOUTS; layout++)
        for (int type = 0; type < 3; type++)
            for (int page = 0; page < 2; page++)
                for (int64_t dv = 1; dv < 140; dv = dv * 2 + 3) {
                    ref_spec s = ref_spec_make(2, 2, 100, 4);
                    s.batch      = 2;
                    s.head_dim_v = dv;
                    s.layout     = (ref_layout)layout;
                    s.page_size  = pages[page];
                    s.v_type     = (santa_dtype)type;
                    ref_problem p;
                    ref_build(&p, &s);
                    static const int32_t index[] = {0, 1, 17, 31, 32, 33, 64, 99};
                    static const float   weight[] = {0.5f, -0.25f, 3.0f, 0.125f, 0.0f, 1.0f, 0.7f, 0.3f};
                    static const float   scale[] = {0.0f, 2.75f, 1e-3f};                     /* 0 is 1 */
                    float  *got  = ref_floats(dv);
                    double *want = ref_doubles(dv);
                    for (int64_t rows = 0; rows <= 8; rows += 4) {
                        for (int64_t c = 0; c < dv; c++) {
                            want[c] = 0.0;
                            for (int64_t i = 0; i < rows; i++)
                                want[c] += (double)weight[i] * p.v[((100 + index[i]) * 2 + 1) * dv + c];
                            if (rows > 0) want[c] *= rows == 4 ? (double)scale[1] : (double)scale[2];
                        }
                        p.a.v_scale = scale[rows / 4];
                        CHECK_STATUS(santa_gather(&p.a, 1, 1, index, weight, rows, got), SANTA_OK);
                        check_array_near("gather", got, want, dv, 2e-6, 1e-6);
                    }
                    free(got);
                    free(want);
                    ref_free(&p);
                }
}

/* Causal prefill, near-uniform attention: the share of V rows that some query drew tends to
   S/(S+1) (table 11). */
static void causal_coverage(void) {
    static const int64_t budgets[] = {1, 4, 8, 16};
    enum { N = 512 };
    for (int m = 0; m < 3; m++)
        for (int b = 0; b < 4; b++) {
            const int rounds = test_quick ? 2 : 12;
            double covered = 0.0;
            for (int round = 0; round < rounds; round++) {
                ref_spec s = ref_spec_make(1, 1, N, 16);
                s.q_len  = N;
                s.causal = 1;
                s.gain   = 0.5;
                s.stream = (uint64_t)round;
                s.head_dim_v = 1;
                ref_problem p;
                ref_build(&p, &s);
                const santa_options o = ref_options(sampled(m), budgets[b], 50);
                const size_t bytes = santa_workspace_size(&p.a, &o);
                void *workspace = test_alloc(bytes);
                float scores[N];
                char  touched[N];
                memset(touched, 0, sizeof touched);
                for (int64_t i = 0; i < N; i++) {
                    if (!CHECK_STATUS(santa_scores(&p.a, &o, 0, i, 0, scores, N, workspace, bytes),
                                      SANTA_OK))
                        break;
                    ref_drawn r = ref_sample(scores, N, &o, ref_stream((uint64_t)round, 0, i));
                    for (int64_t k = 0; k < r.d.rows; k++) {
                        touched[r.index[k]] = 1;
                        CHECK(r.index[k] <= i);
                    }
                    ref_drawn_free(&r);
                }
                for (int j = 0; j < N; j++) covered += touched[j];
                free(workspace);
                ref_free(&p);
            }
            CHECK_NEAR(covered / (double)(rounds * N), (double)budgets[b] / (double)(budgets[b] + 1),
                       test_quick ? 0.04 : 0.015, 0.0);
        }
}

/* One key, one draw, more draws than keys, very many draws. */
static void budget_edges(void) {
    static const int64_t lens[] = {1, 2, 50}, budgets[] = {1, 2, 65536, SANTA_MAX_SAMPLES};
    for (int l = 0; l < 3; l++)
        for (int b = 0; b < (test_quick ? 3 : 4); b++)
            for (int m = 0; m < 5; m++) {
                float  scores[50];
                double lse;
                make_scores(GAUSS, lens[l], 2, scores);
                double *p = probabilities(scores, lens[l], &lse);
                const santa_options o = ref_options(sampled(m), budgets[b], 2);
                ref_drawn r = ref_sample(scores, lens[l], &o, ref_stream(0, 0, 0));
                if (well_formed(&r, scores, lens[l], lse)) {
                    CHECK_INT(r.d.draws, budgets[b]);
                    if (lens[l] == 1) CHECK(r.d.rows == 1 && r.weight[0] == 1.0f);
                    /* 6 standard deviations of iid */
                    for (int64_t i = 0; i < r.d.rows && budgets[b] >= 65536; i++)
                        CHECK_NEAR(r.weight[i], p[r.index[i]],
                                   6.0 * sqrt(p[r.index[i]] / (double)budgets[b]), 0.0);
                }
                ref_drawn_free(&r);
                free(p);
            }
}

/* Of all the mass, keys 1000 below the others have none: rounding of the sums may ask for one
   of them, never for its equals. */
static void top_p_without_mass(void) {
    enum { N = 100, LOW = 10, SEEDS = 40 };
    int asked = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        test_rng rng = test_rng_make(seed);
        float scores[N];
        for (int j = 0; j < N; j++) scores[j] = j < N - LOW ? (float)test_normal(&rng) : -1000.0f;
        santa_options o = ref_options(SANTA_TOP_P, 0, 0);
        o.top_p = 1.0;
        ref_drawn r = ref_sample(scores, N, &o, ref_stream(0, 0, 0));
        CHECK_STATUS(r.status, SANTA_OK);
        CHECK_MSG(r.d.rows <= N - LOW + 1, "%d rows, of which %d have mass", (int)r.d.rows, N - LOW);
        asked += r.d.rows == N - LOW + 1;
        ref_drawn_free(&r);
    }
    CHECK_MSG(asked > 0, "no sum was rounded down");
}

/* A rounded stash: masses of blocks and lse stay exact, the mean over seeds stays the softmax
   (8 bits: dithered; 16 bits: off by 2^-11 at most), and keys without mass stay out. */
static void rounded_stash(void) {
    enum { N = 300, S = 24 };
    const int seeds = test_quick ? 500 : 6000;
    for (int family = 0; family < 3; family++)
        for (int stash = SANTA_STASH_F16; stash <= SANTA_STASH_U8; stash++) {
            float scores[N];
            double x[2][N], want[2] = {0.0, 0.0}, sum[2] = {0.0, 0.0}, squares[2] = {0.0, 0.0}, lse;
            test_rng rng = test_rng_make(5);
            for (int j = 0; j < N; j++) {
                scores[j] = (float)((family + 1) * test_normal(&rng));
                if (family == 2 && j % 2) scores[j] = -INFINITY;
                for (int k = 0; k < 2; k++) x[k][j] = test_normal(&rng);
            }
            double *p = probabilities(scores, N, &lse);
            for (int k = 0; k < 2; k++) for (int j = 0; j < N; j++) want[k] += p[j] * x[k][j];
            for (int i = 0; i < seeds; i++) {
                santa_options o = ref_options(i % 2 ? SANTA_SYS : SANTA_FLASH, S, (uint64_t)i);
                o.stash = (santa_stash)stash;
                ref_drawn r = ref_sample(scores, N, &o, ref_stream(0, 0, 0));
                CHECK_STATUS(r.status, SANTA_OK);
                CHECK_NEAR(r.d.lse, lse, 2e-6, 1e-6);
                for (int k = 0; k < 2; k++) {
                    double y = 0.0;
                    for (int64_t m = 0; m < r.d.rows; m++) y += (double)r.weight[m] * x[k][r.index[m]];
                    sum[k] += y - want[k];
                    squares[k] += (y - want[k]) * (y - want[k]);
                }
                for (int64_t m = 0; m < r.d.rows; m++) CHECK(scores[r.index[m]] > -1e30f);
                ref_drawn_free(&r);
            }
            for (int k = 0; k < 2; k++) CHECK_MEAN_Z("rounded stash", sum[k], squares[k], seeds, 0.0, 5.0);
            free(p);
        }
}

/* The stash of one row, recomputed: in 8 bits key j takes half j % 2 of word j / 2 of stream 3,
   j counted from token 0. A comb of 2^18 or more thresholds draws so often that its counts show
   what each block's weights were rounded to. False for a seed whose numbers lie so near to the
   next integer that float arithmetic may not decide as this does. */
static int stash_weights(const santa_options *o, santa_stream_id id, const float *s, int64_t n,
                         double *want, double *plain) {
    double total = 0.0, top = -REF_INF;
    int clear = 1;
    for (int64_t j = 0; j < n; j++) if ((double)s[j] > top) top = (double)s[j];
    for (int64_t b = 0; b < n; b += 64) {
        const int64_t end = ref_min(n, b + 64);
        double max = -REF_INF, sum = 0.0, rounded = 0.0;
        for (int64_t j = b; j < end; j++) if ((double)s[j] > max) max = (double)s[j];
        for (int64_t j = b; j < end; j++) {
            const double u = max > -REF_INF ? exp((double)s[j] - max) : 0.0;
            const uint32_t word = santa_random(o->seed, o->offset, id.request_id, 3, (uint32_t)id.head,
                                               (uint32_t)id.q_index, (uint32_t)(j / 2));
            const double x = u * 255.0 + (double)(j % 2 ? word >> 16 : word & 0xffffu) / 65536.0;
            sum += plain[j] = u;
            rounded += want[j] = o->stash == SANTA_STASH_U8 ? floor(x) : ref_round(SANTA_F16, u);
            clear = clear && (o->stash == SANTA_STASH_F16 || fabs(x - floor(x + 0.5)) > 2e-4 || u == 0.0);
        }
        const double mass = max > -REF_INF ? sum * exp(max - top) : 0.0;       /* not rounded */
        for (int64_t j = b; j < end; j++) {
            want[j]  = rounded > 0.0 ? want[j] * mass / rounded : 0.0;
            plain[j] = sum > 0.0 ? plain[j] * mass / sum : 0.0;
        }
        total += mass;
    }
    for (int64_t j = 0; j < n; j++) { want[j] /= total; plain[j] /= total; }
    return clear;
}

static void known_stash(void) {
    enum { N = 200, ROWS = 2, HEADS = 2, S = 1 << 19 };
    const uint64_t request[1] = {UINT64_C(9) << 32};
    ref_spec spec = ref_spec_make(HEADS, 1, N, 8);
    spec.q_len  = ROWS;
    spec.causal = 1;
    spec.window = 120;                               /* the first row's block is not the sequence's */
    spec.head_dim_v = N;
    ref_problem p;
    ref_build(&p, &spec);
    for (int64_t i = 0; i < N * N; i++) p.v[i] = i / N == i % N;     /* out[j] is key j's weight */
    ref_write(&p);
    p.a.std_error = NULL;
    for (int stash = SANTA_STASH_F16; stash <= SANTA_STASH_U8; stash++) {
        int compared = 0;
        double apart = 0.0;
        for (uint64_t seed = 0; compared < 8 && seed < 40; seed++) {
            santa_options o = ref_options(seed % 2 ? SANTA_SYS : SANTA_PROP, S, seed << 32);
            o.offset = UINT64_C(5) << 32;
            o.stash  = (santa_stash)stash;
            o.request_ids = request;
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void *workspace = test_alloc(bytes);
            const int good = CHECK_STATUS(santa_decode(&p.a, &o, workspace, bytes, NULL), SANTA_OK);
            for (int64_t row = 0; row < ROWS * HEADS && good; row++) {
                float  scores[HEADS * N];
                double want[N], plain[N];
                const int64_t i = row / HEADS, h = row % HEADS;
                CHECK_STATUS(santa_scores(&p.a, &o, 0, i, 0, scores, N, workspace, bytes), SANTA_OK);
                if (!stash_weights(&o, ref_stream(request[0], h, i), scores + h * N, N, want, plain))
                    continue;
                compared++;
                ref_drawn alone = ref_sample(scores + h * N, N, &o, ref_stream(request[0], h, i));
                double weight[N] = {0.0};
                for (int64_t k = 0; k < alone.d.rows; k++) weight[alone.index[k]] = (double)alone.weight[k];
                ref_drawn_free(&alone);
                for (int64_t j = 0; j < N; j++) {
                    const double got = ref_get(&p.a.out, 0, i, h, j);
                    CHECK_NEAR(weight[j], got, 2e-7, 0.0); /* santa_sample rounds as santa_decode does */
                    CHECK_MSG(fabs(got - want[j]) < 1.01 / S + 2e-7,
                              "stash %d, seed %d, row %d, head %d: key %d has weight %.9g, "
                              "want %.9g", stash, (int)seed, (int)i, (int)h, (int)j, got, want[j]);
                    apart = fmax(apart, fabs(want[j] - plain[j]));
                }
            }
            free(workspace);
        }
        CHECK_INT(compared >= 8, 1);
        CHECK_MSG(apart > 4.0 / S, "stash %d: rounding would not show: %g", stash, apart);
    }
    ref_free(&p);
}

/* e4m3 keys and values with power-of-two scales are the bits of the same numbers in f32. */
static void e4m3_is_its_numbers(void) {
    enum { N = 200, D = 20, HEADS = 4 };
    static uint8_t k8[N * D], v8[N * D];
    static float k[N * D], v[N * D], q[HEADS * D], out[2][HEADS * D];
    test_rng rng = test_rng_make(8);
    for (int i = 0; i < N * D; i++) {
        k8[i] = santa_f32_to_e4m3((float)(3.0 * test_normal(&rng)));
        v8[i] = santa_f32_to_e4m3((float)test_normal(&rng));
        k[i] = 0.25f * santa_e4m3_to_f32(k8[i]);
        v[i] = 8.0f * santa_e4m3_to_f32(v8[i]);
    }
    for (int i = 0; i < HEADS * D; i++) q[i] = (float)test_normal(&rng);
    for (int method = 0; method < SANTA_METHOD_COUNT; method++)
        FOR_EACH_ISA (isa) {
            santa_options o = ref_options((santa_method)method, 30, 3);
            o.isa = isa;
            o.vattention.sink_tokens = o.vattention.local_tokens = 10;
            santa_clear_unused_options(&o);
            for (int e = 0; e < 2; e++) {
                santa_attention a;
                memset(&a, 0, sizeof a);
                a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
                a.k   = e ? santa_view(k8, SANTA_E4M3, 1, N, 1, D) : santa_view(k, SANTA_F32, 1, N, 1, D);
                a.v   = e ? santa_view(v8, SANTA_E4M3, 1, N, 1, D) : santa_view(v, SANTA_F32, 1, N, 1, D);
                a.out = santa_view(out[e], SANTA_F32, 1, 1, HEADS, D);
                if (e) { a.k_scale = 0.25f; a.v_scale = 8.0f; }
                test_router router;
                test_route(&router, &a);
                const size_t bytes = santa_workspace_size(&a, &o);
                void *workspace = test_alloc(bytes);
                CHECK_STATUS(santa_decode(&a, &o, workspace, bytes, NULL), SANTA_OK);
                free(workspace);
                test_unroute(&router);
            }
            CHECK_MSG(!memcmp(out[0], out[1], sizeof out[0]), "%s, isa %s: not the same bits",
                      santa_method_name(o.method), santa_isa_name(isa));
        }
}

const test_case suite_sampling[] = {
    {"iid, strat, sys, prop against a sequential float64 sampler", sequential},
    {"the same for a million keys", million},
    {"sys draws key j floor or ceil of S p_j times", comb_counts},
    {"prop draws the rows of sys for every tile size", prop_is_sys},
    {"flash: budget split, combs and weights of its tiles", flash_tiles},
    {"flash: tiles far below the best", flash_far_tiles},
    {"keys without mass are never drawn", zero_mass},
    {"thresholds near 0", tiny_offsets},
    {"no mass at all; NaN and +inf", no_mass},
    {"a part of a context that the window has left", left_behind},
    {"NaN and +inf under every stash", broken_scores},
    {"seed, offset, request, head and row select the draws", streams_differ},
    {"top-k against sorting, ties", top_k},
    {"top-k of long rows", top_k_of_long_rows},
    {"top-p against sorting, ties", top_p},
    {"top-p of all: one key without mass at most", top_p_without_mass},
    {"dense as a list of rows", dense_step},
    {"a stash in 16 and 8 bits", rounded_stash},
    {"a stash in 16 and 8 bits: known answers", known_stash},
    {"e4m3 with scales is its numbers", e4m3_is_its_numbers},
    {"scores, sample, gather = decode, bit for bit; counters", steps_are_decode},
    {"steps = decode for a million keys", long_decode},
    {"gather against a plain sum", gather},
    {"S = 1, S > n, S = 65536, n = 1", budget_edges},
    {"causal coverage tends to S/(S+1)", causal_coverage},
    {0, 0},
};
