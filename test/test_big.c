/* More than 2^24 keys in one sequence, where a float counts no further: one head of 8 features
   in f16, 268 MB of K, which is V as well. The keys past 2^24 carry a third of the mass, so
   that most of what is drawn near the end lies there. */
#include "reference.h"

enum { BULK = 1 << 24, TAIL = 5000, KEYS = BULK + TAIL, DIM = 8, ROWS = 1021, SAMPLES = 3000,
      TILE = 1 << 20, TILES = BULK / TILE + 1,
       TOP = 20000 };

static double   row[2][ROWS][DIM];            /* what key j holds, by j < BULK and j % ROWS */
static float    q[DIM], out[DIM];
static uint16_t *k;
static float    *scores;

static const double *row_of(int64_t j) { return row[j >= BULK][j % ROWS]; }

static int make_keys(void) {
    test_rng r = test_rng_make(24);
    k = (uint16_t *)malloc((size_t)KEYS * DIM * sizeof *k);
    scores = (float *)malloc((size_t)KEYS * sizeof *scores);
    if (!k || !scores) return 0;
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < DIM; c++) {
            row[0][i][c] = c == 0 ? 0.0 : ref_round(SANTA_F16, ref_bell(&r));
            row[1][i][c] = c == 0 ? 7.25 : row[0][i][c];
        }
    for (int c = 0; c < DIM; c++) q[c] = c == 0 ? 1.0f : (float)(0.5 * ref_bell(&r));
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0; i < ROWS; i++) {              /* once, and from there copied */
            const int64_t first = t ? BULK + (i - BULK % ROWS + ROWS) % ROWS : i;
            for (int c = 0; c < DIM; c++) k[first * DIM + c] = ref_encode16(SANTA_F16, row[t][i][c]);
        }
    for (int64_t j = ROWS; j < KEYS; j++)
        if (j < BULK || j >= BULK + ROWS) memcpy(k + j * DIM, k + (j - ROWS) * DIM, DIM * sizeof *k);
    return 1;
}

static void free_keys(void) {
    free(k);
    free(scores);
}

static void one_by_one(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    for (int64_t i = count; i-- > 0;) task(context, i);
}

static santa_attention attention(float *lse) {
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q   = santa_view(q, SANTA_F32, 1, 1, 1, DIM);
    a.k   = a.v = santa_view(k, SANTA_F16, 1, KEYS, 1, DIM);
    a.out = santa_view(out, SANTA_F32, 1, 1, 1, DIM);
    a.lse = lse;
    a.sm_scale = 1.0f;
    return a;
}

static int decode(santa_options o, int64_t threads, float *lse, santa_stats *stats) {
    const santa_attention a = attention(lse);
    o.num_threads  = threads;
    o.parallel_for = one_by_one;
    const size_t bytes = santa_workspace_size(&a, &o);
    void *workspace = malloc(bytes);
    if (!workspace) { test_skip("no memory for a workspace"); return 0; }
    const int good = CHECK_STATUS(santa_decode(&a, &o, workspace, bytes, stats), SANTA_OK);
    free(workspace);
    return good;
}

/* exp(score - top) in double; top is the largest score. */
static double top;
static double mass_of(int64_t j) { return exp((double)scores[j] - top); }

/* Scores of all keys within rounding of their own double; sums and tiles of their masses. */
static double sum_of_masses(double tile[TILES], double mean[DIM]) {
    double exact[2][ROWS], total = 0.0;
    int64_t wrong = 0;
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < ROWS; i++) {
            exact[t][i] = 0.0;
            for (int c = 0; c < DIM; c++) exact[t][i] += (double)q[c] * row[t][i][c];
        }
    top = -REF_INF;
    for (int64_t j = 0; j < KEYS; j++) {
        wrong += !(fabs((double)scores[j] - exact[j >= BULK][j % ROWS]) <= 4e-6);
        top = fmax(top, (double)scores[j]);
    }
    CHECK_INT(wrong, 0);
    for (int t = 0; t < TILES; t++) tile[t] = 0.0;
    for (int c = 0; c < DIM; c++) mean[c] = 0.0;
    for (int64_t j = 0; j < KEYS; j++) {
        const double x = mass_of(j);
        tile[j / TILE] += x;
        for (int c = 0; c < DIM; c++) mean[c] += x * row_of(j)[c];
    }
    for (int t = 0; t < TILES; t++) total += tile[t];
    for (int c = 0; c < DIM; c++) mean[c] /= total;
    return total;
}

/* A sampler's list beside the walk over all keys that checks it. */
typedef struct walk {
    santa_options o;
    ref_drawn     r;
    double       *threshold;
    int64_t       i, m, in_tile;
    int           bad;
} walk;

/* Key j with the masses [begin, end) of the whole: are its draws those whose thresholds lie
   there, but for rounding? */
static void step(walk *w, int64_t j, double begin, double end, double total, const double tile[TILES],
                 double before_tile) {
    if (j % TILE == 0) w->in_tile = 0;
    if (w->bad || w->i >= w->r.d.rows || w->r.index[w->i] != j) return;
    const double  tolerance = 2e-7;
    const int32_t count = w->r.count[w->i];
    const int64_t each = SAMPLES / TILES, rest = SAMPLES % TILES;
    double weight = (double)count / SAMPLES;
    for (int32_t c = 0; c < count; c++) {
        double t;
        if (w->o.method == SANTA_FLASH) {
            const int64_t n = each + rest * (j / TILE + 1) / TILES - rest * (j / TILE) / TILES;
            const double  u = ref_random(&w->o, ref_stream(0, 0, 0), j / TILE);
            t = (before_tile + tile[j / TILE] * ((double)w->in_tile++ + u) / (double)n) / total;
            weight = tile[j / TILE] / total * (double)count / (double)n;
        } else {
            t = w->threshold[w->m];
        }
        w->m++;
        w->bad |=
            !CHECK_MSG(t >= begin / total - tolerance && t < end / total + tolerance,
                       "%s: draw %d is key %d of [%.12g, %.12g), threshold %.12g",
                       santa_method_name(w->o.method), (int)w->m, (int)j, begin / total, end / total, t);
    }
    w->bad |= !CHECK_NEAR(w->r.weight[w->i], weight, 0.0, 3e-6);
    w->i++;
}

static void sixteen_million_keys(void) {
    static const santa_method methods[] = {SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_FLASH};
    double tile[TILES], mean[DIM], at = 0.0, before_tile = 0.0, sum[DIM];
    float  lse, one[DIM];
    santa_stats stats;
    walk w[4];
    if (test_quick) SKIP("400 MB and seconds");
    if (!make_keys()) { free_keys(); SKIP("no 350 MB of memory"); }

    const santa_attention a = attention(NULL);
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    const size_t bytes = santa_workspace_size(&a, &o);
    void *workspace = test_alloc(bytes);
    CHECK_STATUS(santa_scores(&a, &o, 0, 0, 0, scores, KEYS, workspace, bytes), SANTA_OK);
    free(workspace);
    const double total = sum_of_masses(tile, mean), want = top + log(total);
    CHECK_MSG(tile[TILES - 1] > 0.2 * total && tile[TILES - 1] < 0.5 * total, "%g of %g past 2^24",
              tile[TILES - 1], total);

    for (int64_t threads = 1; threads <= 2; threads++)
        if (decode(o, threads, &lse, &stats)) {
            check_array_near("dense", out, mean, DIM, 1e-5, 1e-5);
            CHECK_NEAR(lse, want, 2e-6, 0.0);
            CHECK_INT(stats.v_rows_read, KEYS);
            if (threads > 1) CHECK(!memcmp(out, one, sizeof out));
            memcpy(one, out, sizeof one);
        }

    /* What the samplers draw from these scores, what santa_gather makes of it, and that
       santa_decode does the same. */
    for (int m = 0; m < 4; m++) {
        memset(&w[m], 0, sizeof w[m]);
        w[m].o = ref_options(methods[m], SAMPLES, 17 + (uint64_t)m);
        if (methods[m] == SANTA_FLASH) w[m].o.tile_size = TILE;
        w[m].r = ref_sample(scores, KEYS, &w[m].o, ref_stream(0, 0, 0));
        CHECK_STATUS(w[m].r.status, SANTA_OK);
        CHECK_INT(w[m].r.d.draws, SAMPLES);
        CHECK_NEAR(w[m].r.d.lse, want, 2e-6, 0.0);
        w[m].threshold = ref_doubles(SAMPLES);
        if (methods[m] != SANTA_FLASH) ref_thresholds(&w[m].o, ref_stream(0, 0, 0), w[m].threshold);
        memset(sum, 0, sizeof sum);
        for (int64_t i = 0; i < w[m].r.d.rows; i++)
            for (int c = 0; c < DIM; c++) sum[c] += (double)w[m].r.weight[i] * row_of(w[m].r.index[i])[c];
        CHECK_STATUS(santa_gather(&a, 0, 0, w[m].r.index, w[m].r.weight, w[m].r.d.rows, one), SANTA_OK);
        check_array_near("gather", one, sum, DIM, 2e-6, 2e-6);
        const int64_t threads = 1 + m % 2;
        if (decode(w[m].o, threads, &lse, &stats)) {
            CHECK_MSG(!memcmp(out, one, sizeof out) && !memcmp(&lse, &w[m].r.d.lse, sizeof lse),
                      "%s, %d threads: not its steps", santa_method_name(methods[m]), (int)threads);
            CHECK_INT(stats.v_rows_head, w[m].r.d.rows);
        }
    }
    for (int64_t j = 0; j < KEYS; j++) {
        const double end = at + mass_of(j);
        if (j % TILE == 0) before_tile = at;
        for (int m = 0; m < 4; m++) step(&w[m], j, at, end, total, tile, before_tile);
        at = end;
    }
    for (int m = 0; m < 4; m++) {
        int64_t past = 0;
        for (int64_t i = 0; i < w[m].r.d.rows; i++) past += w[m].r.index[i] > BULK;
        CHECK_MSG(w[m].bad || (w[m].i == w[m].r.d.rows && past > 30),
                  "%s: %d rows past 2^24 of %d, %d checked",
                  santa_method_name(methods[m]), (int)past, (int)w[m].r.d.rows, (int)w[m].i);
        ref_drawn_free(&w[m].r);
        free(w[m].threshold);
    }

    /* top-k: no key that is left out is better than one that is taken, and of equal ones the
       first are. */
    o = ref_options(SANTA_TOP_K, TOP, 0);
    ref_drawn r = ref_sample(scores, KEYS, &o, ref_stream(0, 0, 0));
    if (CHECK_STATUS(r.status, SANTA_OK) && CHECK_INT(r.d.rows, TOP)) {
        float lowest = scores[r.index[0]];
        int64_t wrong = 0, left_out = 0, next = 0;
        double  kept = 0.0;
        for (int64_t i = 0; i < TOP; i++) {
            lowest = fminf(lowest, scores[r.index[i]]);
            kept += mass_of(r.index[i]);
        }
        for (int64_t j = 0; j < KEYS; j++) {
            const int taken = next < TOP && r.index[next] == j;
            next += taken;
            wrong += taken ? scores[j] == lowest && left_out : scores[j] > lowest;
            left_out |= !taken && scores[j] == lowest;
        }
        CHECK_MSG(wrong == 0 && next == TOP && r.index[TOP - 1] > BULK,
                  "%d keys should (not) be among the best", (int)wrong);
        for (int64_t i = 0; i < TOP; i++)
            if (!CHECK_NEAR(r.weight[i], mass_of(r.index[i]) / kept, 0.0, 3e-6)) break;
    }
    ref_drawn_free(&r);

    /* vAttention without heavy keys: sinks, local tokens and the positions of >>random, each
       weighed as it must be. */
    santa_audit audit;
    o = ref_options(SANTA_VATTENTION, 0, 5);
    o.vattention.heavy_tokens = SANTA_NONE;
    o.vattention.audit = &audit;
    if (decode(o, 1, &lse, &stats)) {
        const int64_t size = KEYS - 256;
        char *taken = (char *)test_alloc((size_t)KEYS);
        double d[2] = {0.0, 0.0}, n[2][DIM];
        memset(taken, 0, (size_t)KEYS);
        memset(n, 0, sizeof n);
        CHECK_INT(audit.num_keys, KEYS);
        CHECK_INT(audit.num_residual, size);
        CHECK_INT(audit.num_base, (size + 39) / 40);
        CHECK(audit.budget >= audit.num_base && 2 * audit.budget < size);
        for (int64_t left = audit.budget, i = 0; left > 0; i++) {
            const uint64_t word = santa_random(o.seed, o.offset, 0, 2, 0, 0, (uint32_t)i);
            const uint64_t wide = word * (uint64_t)size;
            char *key = taken + 128 + (wide >> 32);
            if ((wide & 0xffffffffu) < (UINT64_C(1) << 32) % (uint64_t)size) continue;
            left -= !*key;
            *key = 1;
        }
        for (int64_t j = 0; j < KEYS; j++) {
            const int fixed = j < 128 || j >= KEYS - 128;
            if (!fixed && !taken[j]) continue;
            d[fixed] += mass_of(j);
            for (int c = 0; c < DIM; c++) n[fixed][c] += mass_of(j) * row_of(j)[c];
        }
        const double weight = (double)size / (double)audit.budget, all = d[1] + weight * d[0];
        for (int c = 0; c < DIM; c++) CHECK_NEAR(out[c], (n[1][c] + weight * n[0][c]) / all, 1e-5, 1e-5);
        CHECK_NEAR(lse, top + log(all), 2e-6, 0.0);
        CHECK_NEAR(lse, want, 0.1, 0.0);                     /* epsilon is .05, missed once in 20 */
        CHECK_INT(stats.k_rows_read, audit.budget + 256);
        free(taken);
    }
    free_keys();
}

const test_case suite_big[] = {
    {"2^24 + 5000 keys in one sequence", sixteen_million_keys},
    {0, 0},
};
