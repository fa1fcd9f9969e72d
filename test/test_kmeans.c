/* santa_kmeans: each step against its definition, the same on any number of threads, what it
   finds and what it refuses. */
#include "routed.h"

/* Centroids in memory of their own. */
static float *centroids_of(const float *x, int64_t n, int64_t stride, int64_t d, int64_t buckets,
                           int64_t iterations, uint64_t seed, const santa_options *o) {
    const size_t bytes = santa_kmeans_workspace_size(n, d, buckets);
    float *c = ref_floats(buckets * d + 1);
    unsigned char *work = (unsigned char *)test_alloc(bytes + 1 + CANARY);
    int written = 0;
    memset(work, 0xa5, bytes + 1 + CANARY);
    for (int64_t i = 0; i <= buckets * d; i++) c[i] = test_nan();
    CHECK_STATUS(santa_kmeans(x, n, stride, d, buckets, iterations, seed, c, o, work + 1, bytes), SANTA_OK);
    for (int i = 0; i < CANARY; i++) written |= work[bytes + 1 + (size_t)i] != 0xa5;
    CHECK_MSG(!written && test_is_nan(c[buckets * d]), "k-means wrote past its memory");
    free(work);
    return c;
}

static double dot(const float *a, const float *b, int64_t d) {
    double sum = 0.0;
    for (int64_t c = 0; c < d; c++) sum += (double)a[c] * (double)b[c];
    return sum;
}

/* The largest product with a centroid, and whose it is. */
static int64_t nearest_of(const float *c, int64_t buckets, int64_t d, const float *x, double *best) {
    int64_t at = 0;
    for (int64_t k = 0; k < buckets; k++) {
        const double product = dot(c + k * d, x, d);
        if (k == 0 || product > *best) { *best = product; at = k; }
    }
    return at;
}

/* Whether each centroid after a step is the direction of the rows that were nearest to it
   before, or that of a single row where there were none. */
static int step_is_right(const float *x, int64_t n, int64_t stride, int64_t d, int64_t buckets,
                         const float *before, const float *after) {
    float *sum = ref_floats(buckets * d);
    int    ok = 1;
    for (int64_t i = 0; i < buckets * d; i++) sum[i] = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        double best = 0.0;
        const int64_t k = nearest_of(before, buckets, d, x + i * stride, &best);
        for (int64_t c = 0; c < d; c++) sum[k * d + c] += x[i * stride + c];
    }
    for (int64_t k = 0; k < buckets; k++) {
        const double length = dot(sum + k * d, sum + k * d, d);
        double like = length > 0.0 ? dot(sum + k * d, after + k * d, d) / sqrt(length) : -1.0;
        for (int64_t i = 0; i < n && length <= 0.0; i++) {
            const float *one = x + i * stride;
            like = fmax(like, dot(one, after + k * d, d) / sqrt(dot(one, one, d)));
        }
        ok &= like > 1.0 - 1e-6;
    }
    free(sum);
    return ok;
}

/* Rows around as many directions as sorts, row i near number i % sorts, NaN between the
   rows. */
static float *cloud(int64_t n, int64_t stride, int64_t d, int64_t sorts, double spread, uint64_t stream) {
    test_rng r = test_rng_make(stream);
    double *middle = ref_doubles(sorts * d);
    float  *x = ref_floats(n * stride);
    for (int64_t i = 0; i < sorts * d; i++) middle[i] = ref_bell(&r);
    for (int64_t i = 0; i < n * stride; i++) {
        const int64_t at = i / stride % sorts * d + i % stride;
        x[i] = i % stride < d ? (float)(middle[at] + spread * ref_bell(&r)) : test_nan();
    }
    free(middle);
    return x;
}

static void steps(void) {
    for (int turn = 0; turn < 5; turn++) {
        const int64_t n = turn == 3 ? 9 : 400 + turn, d = turn == 1 ? 40 : 17, stride = d + turn;
        const int64_t buckets = turn == 2 ? 1 : turn == 3 ? 30 : turn == 4 ? 100 : 12;
        const size_t  bytes = (size_t)(buckets * d) * sizeof(float);
        float *x = cloud(n, stride, d, 12, 0.8, 30 + (uint64_t)turn), *before = NULL, *c, *other;
        double last = -REF_INF;
        for (int64_t step = 1; step <= 8; step++, before = c) {
            double   total = 0.0, best = 0.0;
            test_rng r = test_rng_make((uint64_t)step);
            santa_options o = plain(0);
            c = centroids_of(x, n, stride, d, buckets, step, 5, NULL);
            for (int64_t k = 0; k < buckets; k++) CHECK_NEAR(dot(c + k * d, c + k * d, d), 1.0, 1e-6, 0.0);
            for (int64_t i = 0; i < n; i++, total += best)
                (void)nearest_of(c, buckets, d, x + i * stride, &best);
            CHECK_MSG(total >= last - 1e-6 * fabs(total), "step %d: %.7g after %.7g", (int)step, total,
                      last);
            last = total;
            if (before) CHECK(step_is_right(x, n, stride, d, buckets, before, c));
            o.num_threads   = 1 + step % 4;
            o.parallel_for  = shuffled;
            o.parallel_user = &r;
#ifdef HAVE_PTHREADS
            if (step % 2) o.parallel_for = threaded;
#endif
            other = centroids_of(x, n, stride, d, buckets, step, 5, &o);
            CHECK_MSG(!memcmp(c, other, bytes), "threads change k-means");
            free(other);
            free(before);
        }
        other = centroids_of(x, n, stride, d, buckets, 8, 6, NULL);
        CHECK(buckets == 1 || memcmp(before, other, bytes) != 0);            /* another seed */
        free(other); free(before);
        before = centroids_of(x, n, stride, d, buckets, 0, 9, NULL);         /* 0 = 10 */
        other  = centroids_of(x, n, stride, d, buckets, 10, 9, NULL);
        CHECK(!memcmp(before, other, bytes));
        free(other); free(before); free(x);
    }
}

/* Clusters that lie apart are found; duplicates, zeros; what is refused. */
static void edges(void) {
    const int64_t n = 240, d = 24, sorts = 6;
    const size_t  bytes = santa_kmeans_workspace_size(n, d, 4);
    float *x = cloud(n, d, d, sorts, 0.05, 77), *c, out[4 * 24];
    void  *work = test_alloc(bytes);
    int    found = 0;
    double best = 0.0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        int64_t seen = 0;
        c = centroids_of(x, n, d, d, sorts, 0, seed, NULL);
        for (int64_t i = 0; i < sorts; i++) seen |= (int64_t)1 << nearest_of(c, sorts, d, x + i * d, &best);
        found += seen == 63;
        free(c);
    }
    CHECK_MSG(found > 0, "no seed finds %d clusters", (int)sorts);
    for (int64_t i = 1; i < n; i++) memcpy(x + i * d, x, (size_t)d * sizeof *x);      /* all the same */
    c = centroids_of(x, n, d, d, 5, 0, 1, NULL);
    for (int64_t k = 0; k < 5; k++) CHECK_NEAR(dot(c + k * d, x, d), sqrt(dot(x, x, d)), 0.0, 1e-5);
    free(c);
    for (int zeros = 0; zeros < 2; zeros++) {                    /* all rows, or every other one */
        for (int64_t i = 0; i < n * d; i++) x[i] = (float)(i / d % 2 * zeros * (1 + (i / d + i % d) % 7));
        c = centroids_of(x, n, d, d, 9, 4, 3, NULL);
        for (int64_t k = 0; k < 9; k++) CHECK_NEAR(dot(c + k * d, c + k * d, d), zeros, 1e-6, 0.0);
        free(c);
    }
    santa_options o = plain(0);
    for (int i = 0; i < 4 * 24; i++) out[i] = 7.0f;
#define BAD_KMEANS(error, ...) CHECK_STATUS(santa_kmeans(__VA_ARGS__, bytes), SANTA_##error)
    BAD_KMEANS(ERR_NULL_ARGUMENT, NULL, n, d, d, 4, 0, 0, out, NULL, work);
    BAD_KMEANS(ERR_NULL_ARGUMENT, x, n, d, d, 4, 0, 0, NULL, NULL, work);
    BAD_KMEANS(ERR_SHAPE, x, 0, d, d, 4, 0, 0, out, NULL, work);
    BAD_KMEANS(ERR_SHAPE, x, n, d, 0, 4, 0, 0, out, NULL, work);
    BAD_KMEANS(ERR_BUCKETS_SHAPE, x, n, d, d, 0, 0, 0, out, NULL, work);
    BAD_KMEANS(ERR_BUCKETS_SHAPE, x, n, d, d, 65537, 0, 0, out, NULL, work);
    BAD_KMEANS(ERR_BUCKETS_HEAD_DIM, x, n, 1025, 1025, 4, 0, 0, out, NULL, work);
    BAD_KMEANS(ERR_KMEANS, x, n, d, d, 4, -1, 0, out, NULL, work);
    BAD_KMEANS(ERR_KMEANS, x, n, d, d, 4, (1 << 20) + 1, 0, out, NULL, work);
    BAD_KMEANS(ERR_WORKSPACE_NULL, x, n, d, d, 4, 0, 0, out, NULL, NULL);
    BAD_KMEANS(ERR_WORKSPACE_SIZE, x, n, d, d, 400, 0, 0, out, NULL, work);
    o.num_threads = -1;
    BAD_KMEANS(ERR_THREADS, x, n, d, d, 4, 0, 0, out, &o, work);
    o.num_threads = 0;
    o.isa = SANTA_ISA_COUNT;
    BAD_KMEANS(ERR_ISA, x, n, d, d, 4, 0, 0, out, &o, work);
    for (int bad = 0; bad < 3; bad++) {
        x[(n - 1) * d + 3] = bad == 0 ? test_nan() : bad == 1 ? INFINITY : -INFINITY;
        BAD_KMEANS(ERR_KMEANS, x, n, d, d, 4, 0, 0, out, NULL, work);
    }
    for (int i = 0; i < 4 * 24; i++) CHECK(out[i] > 6.9f && out[i] < 7.1f);
    CHECK(santa_kmeans_workspace_size(n, 0, 4) == 0 && santa_kmeans_workspace_size(n, d, 65537) == 0);
    free(work);
    free(x);
}

/* More buckets than directions: those that have no row begin anew with rows that the seed
   picks, any of them. */
static void begins_anew(void) {
    enum { N = 16, BUCKETS = 256 };
    float x[N * N] = {0};
    int64_t found[N] = {0};
    for (int64_t i = 0; i < N; i++) x[i * N + i] = 1.0f + (float)i;
    float *c = centroids_of(x, N, N, N, BUCKETS, 1, 5, NULL);
    for (int64_t k = 0; k < BUCKETS; k++)
        for (int64_t i = 0; i < N; i++) found[i] += c[k * N + i] == 1.0f;
    for (int64_t i = 0; i < N; i++)                  /* 16 on average, and one that has rows */
        CHECK_MSG(found[i] >= 3 && found[i] <= 40, "row %lld has %lld of %d centroids", (long long)i,
                  (long long)found[i], BUCKETS);
    free(c);
}

const test_case suite_kmeans[] = {
    {"steps, threads, seeds", steps},
    {"clusters, duplicates, zeros, refusals", edges},
    {"buckets without rows", begins_anew},
    {0, 0}
};
