/* Attention over lists of keys against float64: types, layouts, pages, masks, weights, gaps;
   what is not listed is never read; threads and instruction sets; counters; merging. */
#include "lists.h"

static int compare(const ref_problem *p, const santa_stats *stats, const char *what) {
    const ref_spec *s = &p->spec;
    double *want = ref_doubles(s->head_dim_v), *got = ref_doubles(s->head_dim_v);
    int64_t rows = 0;
    int good = 1;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < s->q_len; i++)
            for (int64_t h = 0; h < s->heads; h++) {
                int64_t count;
                const double lse = lists_dense(p, b, i, h, want, &count);
                const float mine = p->lse[(b * s->q_len + i) * s->heads + h];
                ref_out(p, b, i, h, got);
                rows += count;
                good &= CHECK_MSG(lse == -REF_INF ? (double)mine == lse : fabs((double)mine - lse) <= 5e-5,
                                  "%s: lse of batch %d row %d head %d: got %.9g, want %.9g", what, (int)b,
                                  (int)i, (int)h, (double)mine, lse);
                for (int64_t c = 0; c < s->head_dim_v && good; c++)
                    good &= CHECK_MSG(fabs(got[c] - want[c]) <= 5e-5 * (1.0 + fabs(want[c])),
                                      "%s: out of batch %d row %d head %d, element %d: got %.9g, want %.9g",
                                      what, (int)b, (int)i, (int)h, (int)c, got[c], want[c]);
                if (!good) break;
            }
    free(want);
    free(got);
    return good & CHECK_INT(stats->v_rows_head, rows)
         & CHECK_INT(stats->k_rows_read * (s->heads / s->kv_heads), rows)
         & CHECK_INT(stats->v_rows_read * (s->heads / s->kv_heads), rows)
         & CHECK_INT(stats->rows, s->batch * s->q_len * s->heads);
}

static void lists_match_float64(void) {
    test_rng r = test_rng_make(71);
    const int64_t problems = test_quick ? 24 : 160;
    int good = 1;
    for (int64_t n = 0; n < problems && good; n++) {
        const ref_spec s = lists_spec(&r, n, 300);
        ref_problem p;
        santa_stats stats;
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        char what[80];
        ref_build(&p, &s);
        p.a.std_error = NULL;
        o.isa = test_isa_from((int)(n % SANTA_ISA_COUNT) + 1);
        if (o.isa == SANTA_ISA_COUNT) o.isa = SANTA_ISA_AUTO;
        const int64_t most = 1 + test_below(&r, 200);
        key_lists x = lists_build(&p, most, (int)test_below(&r, 2), (int)test_below(&r, 2), &r);
        if (n % 7 == 0) p.a.key_list_lens = NULL;
        for (int64_t i = 0; n % 7 == 0 && i < x.count * x.stride; i++)
            if (x.keys[i] == INT32_MAX) x.keys[i] = -1;
        lists_poison(&p);
        snprintf(what, sizeof what, "problem %d, %s", (int)n, santa_isa_name(o.isa));
        good = ref_run(&p, &o, &stats) && compare(&p, &stats, what);
        lists_free(&x);
        ref_free(&p);
    }
}

static void all_keys_in_a_list_are_dense(void) {
    ref_spec s = ref_spec_make(8, 2, 700, 64);
    ref_problem p;
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    int32_t *all = ref_ints(1400);
    float dense[8], half[2][8], *out[2], both[8];
    ref_build(&p, &s);
    p.a.std_error = NULL;
    for (int i = 0; i < 1400; i++) all[i] = (i % 700) * 349 % 700;     /* 349: each key once */
    if (!ref_run(&p, &o, NULL)) return;
    memcpy(dense, p.lse, sizeof dense);
    p.a.key_list = all;
    p.a.max_list = 700;
    if (!ref_run(&p, &o, NULL)) return;
    for (int h = 0; h < 8; h++) CHECK_NEAR(p.lse[h], dense[h], 1e-5, 1e-5);
    /* halves of the list, merged */
    p.a.key_list_stride = 700;
    p.a.max_list = 350;
    for (int i = 0; i < 2; i++) {
        p.a.key_list = all + 350 * i;
        if (!ref_run(&p, &o, NULL)) return;
        memcpy(half[i], p.lse, sizeof half[i]);
        out[i] = ref_floats(8 * 64);
        memcpy(out[i], p.a.out.data, 8 * 64 * sizeof(float));
    }
    p.a.key_list = NULL;
    p.a.key_list_stride = p.a.max_list = 0;
    if (!ref_run(&p, &o, NULL)) return;
    for (int h = 0; h < 8; h++) {
        const double top = (double)half[0][h], w = exp((double)half[1][h] - top);
        both[h] = (float)(top + log1p(w));
        CHECK_NEAR(both[h], dense[h], 1e-5, 1e-5);
        for (int c = 0; c < 64; c++)
            CHECK_NEAR(((double)out[0][64 * h + c] + w * (double)out[1][64 * h + c]) / (1.0 + w),
                       ((const float *)p.a.out.data)[64 * h + c], 1e-4, 1e-4);
    }
    free(out[0]);
    free(out[1]);
    free(all);
    ref_free(&p);
}

static void inline_for(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    for (int64_t i = count - 1; i >= 0; i--) task(context, i);
}

static void threads_change_no_bit(void) {
    test_rng r = test_rng_make(72);
    ref_spec s = ref_spec_make(6, 2, 3000, 32);
    ref_problem p;
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    const int64_t numbers = 2 * 2 * 6 * 32;
    s.batch = s.q_len = 2;
    ref_build(&p, &s);
    p.a.std_error = NULL;
    key_lists x = lists_build(&p, 2600, 1, 1, &r);
    float *want = ref_floats(numbers), lse[24];
    for (int threads = 1; threads <= 9; threads += 4) {
        o.num_threads = threads;
        o.parallel_for = inline_for;
        if (!ref_run(&p, &o, NULL)) break;
        if (threads == 1) {
            memcpy(want, p.a.out.data, (size_t)numbers * sizeof *want);
            memcpy(lse, p.lse, sizeof lse);
        }
        CHECK(!memcmp(want, p.a.out.data, (size_t)numbers * sizeof *want));
        CHECK(!memcmp(lse, p.lse, sizeof lse));
    }
    free(want);
    lists_free(&x);
    ref_free(&p);
}

static int no_gather(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    (void)user; (void)mine; (void)bytes; (void)all; (void)stream;
    return 1;
}

static void bad_lists_are_refused(void) {
    ref_spec s = ref_spec_make(4, 2, 40, 16);
    ref_problem p;
    int32_t keys[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {-1, -5, 39, 38, 2, 2, 0, 1}}, lens[2] = {8, 8};
    float weights[2][8], scores[2 * 40];
    santa_stats stats;
    ref_build(&p, &s);
    p.a.std_error = NULL;
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    for (int i = 0; i < 16; i++) weights[i / 8][i % 8] = 1.0f;
    p.a.key_list = keys[0];
    p.a.key_list_lens = lens;
    p.a.key_weights = weights[0];
    p.a.max_list = 8;
    const float before = p.lse[0] = 77.0f;
    const size_t bytes = santa_workspace_size(&p.a, &o);
    void *work = test_alloc(bytes);
#define REFUSED(change, back, status) do { change; \
        CHECK_STATUS(santa_decode(&p.a, &o, work, bytes, &stats), SANTA_ERR_##status); \
        CHECK(p.lse[0] == before); back; } while (0)
    REFUSED(keys[1][2] = 40, keys[1][2] = 39, KEY_LIST);
    REFUSED(lens[1] = 9, lens[1] = 8, KEY_LIST);
    REFUSED(lens[0] = -1, lens[0] = 8, KEY_LIST);
    REFUSED(weights[1][3] = -1.0f, weights[1][3] = 1.0f, KEY_WEIGHT);
    REFUSED(weights[1][3] = test_nan(), weights[1][3] = 1.0f, KEY_WEIGHT);
    REFUSED(weights[1][3] = INFINITY, weights[1][3] = 1.0f, KEY_WEIGHT);
    REFUSED(p.a.max_list = 0, p.a.max_list = 8, KEY_LIST_SHAPE);
    REFUSED(p.a.key_list_stride = 7, p.a.key_list_stride = 0, KEY_LIST_SHAPE);
    REFUSED(p.a.key_list_rows = 2, p.a.key_list_rows = 0, KEY_LIST_SHAPE);
    REFUSED(p.a.max_list = (int64_t)1 << 31, p.a.max_list = 8, TOO_LONG);
    REFUSED(p.a.key_list_stride = (int64_t)1 << 60, p.a.key_list_stride = 0, OVERFLOW);
    REFUSED(o.method = SANTA_SYS, o.method = SANTA_DENSE, KEY_LIST_METHOD);
    REFUSED(o.scores = SANTA_SCORES_BERNOULLI_IID, o.scores = SANTA_SCORES_EXACT, KEY_LIST_METHOD);
    REFUSED(p.a.key_list = NULL, p.a.key_list = keys[0], KEY_WEIGHT);
    o.ranks.all_gather = no_gather;
    REFUSED(o.ranks.count = 2, o.ranks.count = 0, RANKS_METHOD);
    CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, 40, work, bytes), SANTA_ERR_KEY_LIST_METHOD);
    /* a gap's weight does not matter */
    weights[1][0] = test_nan();
    CHECK_STATUS(santa_decode(&p.a, &o, work, bytes, &stats), SANTA_OK);
    CHECK_INT(stats.k_rows_read, 14);
    free(work);
    ref_free(&p);
}

const test_case suite_lists[] = {
    {"lists_match_float64", lists_match_float64},
    {"all_keys_in_a_list_are_dense", all_keys_in_a_list_are_dense},
    {"threads_change_no_bit", threads_change_no_bit},
    {"bad_lists_are_refused", bad_lists_are_refused},
    {0, 0},
};
