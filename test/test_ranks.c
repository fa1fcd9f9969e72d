/* One context over several ranks against the same context in one piece. */
#include "ranks.h"

static int64_t numbers_of(const ref_problem *p) {
    return p->spec.batch * p->spec.q_len * p->spec.heads * (p->spec.head_dim_v + 1);
}

/* out and lse of a call, as numbers. */
static void take(const ref_problem *p, float *to) {
    const ref_spec *s = &p->spec;
    int64_t n = 0;
    for (int64_t x = 0; x < s->batch * s->q_len * s->heads; x++) {
        for (int64_t c = 0; c < s->head_dim_v; c++)
            to[n++] = (float)ref_get(&p->a.out, x / s->heads / s->q_len, x / s->heads % s->q_len,
                                     x % s->heads, c);
        to[n++] = p->lse[x];
    }
}

/* The rank in whose copy of K a key is NaN, or -1. */
static int64_t poisoned = -1;

static void poison(const shard *x) {
    const size_t gains = 16 * 64 * (size_t)(x->a.k.shape[3] / 32);      /* behind the codes of a block */
    const uint16_t bad = 0x7e00u;
    memcpy((char *)x->copy + gains + 14, &bad, sizeof bad);
}

static int wants_error;

/* The last rank has no context_lens: the context ends with its keys. */
static int last_without_context;

/* Every rank's result, which must have the same bits; stats added up. Returns the status. */
static santa_status run_ranks(ref_problem *p, santa_options o, const int64_t *cuts, int64_t ranks,
                              int64_t broken, float *result, santa_stats *sum) {
    const santa_attention whole = p->a;
    const int64_t n = numbers_of(p), rows = p->spec.batch * p->spec.q_len * p->spec.heads;
    float *other = ref_floats(n);
    santa_status worst = SANTA_ERR_RANKS_EXCHANGE;
    talk t;
    memset(p->lse, 0xff, (size_t)rows * sizeof *p->lse);              /* an error leaves it as it is */
    memset(&t, 0, sizeof t);
    t.ranks = ranks;
    t.broken = broken;
    o.ranks.count = ranks;
    o.ranks.all_gather = talk_all_gather;
    o.ranks.user = &t;
    const int64_t most = broken < 0 ? (int64_t)MOST_EXCHANGES : broken + 2;
    for (; worst == SANTA_ERR_RANKS_EXCHANGE && t.known < most; t.known++) {
        if (sum) memset(sum, 0, sizeof *sum);
        worst = SANTA_OK;
        for (t.rank = 0; t.rank < ranks; t.rank++) {
            shard x;
            santa_stats stats;
            santa_status s;
            cut(p, cuts, t.rank, &x);
            if (o.scores == SANTA_SCORES_PROXY) cut_copy(&x);
            if (t.rank == poisoned) poison(&x);
            if (last_without_context && t.rank == ranks - 1) x.a.context_lens = NULL;
            if (wants_error) x.a.std_error = whole.std_error;
            o.ranks.rank = t.rank;
            t.exchange = 0;
            const size_t bytes = santa_workspace_size(&x.a, &o);
            void *work = test_alloc(bytes + 1);
            memset(work, 0xff, bytes);
            take(p, t.rank ? other : result);
            s = santa_decode(&x.a, &o, work, bytes, &stats);
            free(work);
            free(x.copy);
            if (s != SANTA_OK) {                     /* nothing was written */
                float *now = ref_floats(n);
                take(p, now);
                CHECK(!memcmp(now, t.rank ? other : result, (size_t)n * sizeof *now));
                free(now);
                worst = s;
                if (s != SANTA_ERR_RANKS_EXCHANGE) break;
                continue;
            }
            take(p, t.rank ? other : result);
            if (t.rank) CHECK(!memcmp(result, other, (size_t)n * sizeof *other));
            if (sum) {
                sum->draws += stats.draws;
                sum->keys += stats.keys;
                sum->v_rows_head += stats.v_rows_head;
                sum->tiles += stats.tiles;
                /* of the whole context, on every rank */
                sum->rescued_rows = stats.rescued_rows;
                sum->redone_rows = stats.redone_rows;
                sum->expected_variance = stats.expected_variance;
                sum->found_variance = stats.found_variance;
                sum->tiles_skipped += stats.tiles_skipped;
            }
        }
    }
    talk_free(&t);
    free(other);
    p->a = whole;
    return worst;
}

/* A problem with much of what a call may have. */
static ref_spec some_spec(test_rng *r, int turn) {
    static const santa_dtype types[] = {SANTA_F32,  SANTA_F16,  SANTA_BF16, SANTA_E4M3,
                                        SANTA_Q8_0, SANTA_E5M2, SANTA_Q4_0};
    ref_spec s = ref_spec_make(turn % 3 == 0 ? 6 : 4, 2, 150 + test_below(r, 200), 32);
    vary(&s, turn);
    s.soft_cap = turn % 7 == 4 ? 5.0f : 0.0f;
    s.k_type = s.v_type = types[turn % 7];
    s.layout  = turn % 4 == 3 ? REF_HND : REF_NHD;
    s.row_scales = turn % 6 == 5;
    s.stream  = (uint64_t)turn + 1;
    return s;
}

static const int64_t counts[] = {1, 2, 3, 4, 7};

static void dense_is_dense(void) {
    test_rng r = test_rng_make(31);
    for (int turn = 0; turn < (test_quick ? 12 : 60); turn++) {
        ref_spec s = some_spec(&r, turn);
        if (turn % 10 == 9) s.q_len = 40;            /* by panels */
        const int64_t ranks = counts[turn / 2 % 5];
        int64_t cuts[MOST_RANKS + 1];
        ref_problem p;
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        ref_build(&p, &s);
        if (s.window && turn % 2) p.a.first_tokens = 1 + turn * 7 % 80;
        make_cuts(&r, turn % 4, s.len, ranks, cuts);
        const int64_t n = numbers_of(&p);
        float *one = ref_floats(n), *many = ref_floats(n);
        if (ref_run(&p, &o, NULL)) {
            take(&p, one);
            CHECK_STATUS(run_ranks(&p, o, cuts, ranks, -1, many, NULL), SANTA_OK);
            for (int64_t i = 0; i < n; i++)
                if (!CHECK_NEAR(many[i], one[i], 4e-5, 2e-6)) break;
        }
        free(one);
        free(many);
        ref_free(&p);
    }
}

static int is_far(const float *many, const float *one, int64_t dv, float within) {
    int far = 0;
    for (int64_t c = 0; c < dv; c++) far |= !(fabsf(many[c] - one[c]) < within);
    return far;
}

/* Rows, of dv numbers and lse, that drew or chose another key; lse is the same. */
static int64_t count_moved(const float *many, const float *one, int64_t n, int64_t dv) {
    int64_t moved = 0;
    for (int64_t x = 0; x < n; x += dv + 1) {
        CHECK_NEAR(many[x + dv], one[x + dv], 2e-5, 1e-6);
        moved += is_far(many + x, one + x, dv, 2e-5f);
    }
    return moved;
}

/* A draw may move to a neighbouring key where rounding differs: rarely. */
static void same_rows(void) {
    static const santa_method methods[] = {SANTA_SYS,   SANTA_FLASH, SANTA_PROP,
                                           SANTA_STRAT, SANTA_IID,   SANTA_PPS};
    static const int64_t tiles[] = {0, 8, 64, 16, 128, 32};
    test_rng r = test_rng_make(32);
    int64_t rows = 0, moved = 0, skipped = 0;
    for (int turn = 0; turn < (test_quick ? 36 : 192); turn++) {
        ref_spec s = some_spec(&r, turn);
        if (turn % 4 == 1) s.gain = 80.0;            /* tiles without mass */
        const int64_t ranks = counts[turn / 2 % 5], dv = s.head_dim_v;
        int64_t cuts[MOST_RANKS + 1];
        ref_problem p;
        santa_stats sum, whole;
        santa_options o = ref_options(methods[(turn + turn / 6) % 6], 32, (uint64_t)turn);
        if (turn % 6 == 5 && (santa_method_traits(o.method) & SANTA_COMBS)) o.num_combs = 4;
        if (o.method == SANTA_FLASH) o.tile_size = tiles[turn / 6 % 6];
        if (turn % 9 == 2) o.stash = turn % 2 ? SANTA_STASH_F16 : SANTA_STASH_U8;
        /* 8 bits round the keys of a block that a border cuts otherwise, and with it all
           chances */
        if (o.method == SANTA_PPS && o.stash == SANTA_STASH_U8) o.stash = SANTA_STASH_F16;
        if (turn % 8 == 7) o.scores = SANTA_SCORES_BERNOULLI_STRAT;
        ref_build(&p, &s);
        if (s.window && turn % 2) p.a.first_tokens = 1 + turn * 7 % 80;
        make_cuts(&r, turn % 4, s.len, ranks, cuts);
        const int64_t n = numbers_of(&p);
        float *one = ref_floats(n), *many = ref_floats(n);
        if (ref_run(&p, &o, &whole)) {
            take(&p, one);
            CHECK_STATUS(run_ranks(&p, o, cuts, ranks, -1, many, &sum), SANTA_OK);
            CHECK_INT(sum.draws, whole.draws);
            CHECK_INT(sum.keys, whole.keys);
            if (o.method == SANTA_FLASH) {
                CHECK_INT(sum.tiles, whole.tiles);
                CHECK_INT(sum.tiles_skipped, whole.tiles_skipped);
                skipped += whole.tiles_skipped;
            }
            moved += count_moved(many, one, n, dv);
            rows += n / (dv + 1);
        }
        free(one);
        free(many);
        ref_free(&p);
    }
    CHECK_MSG(moved * 200 <= rows, "%d of %d rows differ", (int)moved, (int)rows);
    CHECK(skipped > 0);
}

/* The same keys as in one process, also of equal scores: the first. */
static void same_top(void) {
    test_rng r = test_rng_make(33);
    int64_t rows = 0, moved = 0;
    for (int turn = 0; turn < (test_quick ? 24 : 112); turn++) {
        ref_spec s = some_spec(&r, turn);
        const int64_t ranks = counts[turn / 2 % 5], dv = s.head_dim_v;
        const int has_ties = turn % 5 == 3;
        int64_t cuts[MOST_RANKS + 1];
        ref_problem p;
        santa_stats sum, whole;
        santa_options o = ref_options(turn % 3 == 2 ? SANTA_TOP_P : SANTA_TOP_K, 1, 0);
        if (o.method == SANTA_TOP_P) o.top_p = turn % 4 == 1 ? 1.0 : turn % 4 == 2 ? 1e-9 : 0.7;
        else o.num_samples = turn % 4 == 1 ? 3000 : turn % 4 == 3 ? 1 : 1 + test_below(&r, 200);
        if (turn % 8 == 7) o.scores = SANTA_SCORES_BERNOULLI_STRAT;
        if (has_ties) { s.alibi = 0; s.k_type = SANTA_F32; }
        ref_build(&p, &s);
        p.a.std_error = NULL;
        if (s.window && turn % 2) p.a.first_tokens = 1 + turn * 7 % 80;
        for (int64_t j = 5; has_ties && j < s.len; j++)
            for (int64_t c = 0; c < s.batch * 2 * s.head_dim; c++)
                ref_set(&p.a.k, c / s.head_dim / 2, j, c / s.head_dim % 2, c % s.head_dim,
                        ref_get(&p.a.k, c / s.head_dim / 2, j % 5, c / s.head_dim % 2, c % s.head_dim));
        make_cuts(&r, turn % 4, s.len, ranks, cuts);
        const int64_t n = numbers_of(&p);
        float *one = ref_floats(n), *many = ref_floats(n);
        if (ref_run(&p, &o, &whole)) {
            take(&p, one);
            CHECK_STATUS(run_ranks(&p, o, cuts, ranks, -1, many, &sum), SANTA_OK);
            /* all of the mass: where its rounding ends */
            if (o.method == SANTA_TOP_K || o.top_p < 1.0) CHECK_INT(sum.v_rows_head, whole.v_rows_head);
            moved += count_moved(many, one, n, dv);
            rows += n / (dv + 1);
        }
        free(one);
        free(many);
        ref_free(&p);
    }
    CHECK_MSG(moved * 500 <= rows, "%d of %d rows differ", (int)moved, (int)rows);
}

/* vAttention: the sets, budgets and audits of one process, wherever the sinks, the local
   window, heavy tokens and the sample lie. */
static void same_budgets(void) {
    static const int64_t tokens[] = {20, SANTA_NONE, 4, 0, 1, 130};
    test_rng r = test_rng_make(34);
    int64_t rows = 0, moved = 0, sampled = 0, complete = 0;
    for (int turn = 0; turn < (test_quick ? 20 : 90); turn++) {
        ref_spec s = some_spec(&r, turn);
        const int64_t ranks = counts[turn / 2 % 5], dv = s.head_dim_v;
        int64_t cuts[MOST_RANKS + 1];
        ref_problem p;
        santa_stats sum, whole;
        santa_audit audit[2][64];
        santa_options o = ref_options(SANTA_VATTENTION, 1, (uint64_t)turn);
        santa_vattention_options *v = &o.vattention;
        v->sink_tokens = tokens[turn % 6];
        v->local_tokens = tokens[(turn + turn / 6) % 6];
        v->heavy_tokens = turn % 3 == 0 ? 0 : turn % 3 == 1 ? 1 + test_below(&r, 20) : SANTA_NONE;
        v->base_samples = turn % 4 == 1 ? 2 + test_below(&r, 30) : 0;
        v->epsilon = turn % 2 ? 0.15 : 0.4;
        v->delta = 0.1;
        v->guarantee = turn / 2 % 2 ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
        v->bound = turn / 4 % 2 ? SANTA_BOUND_HOEFFDING : SANTA_BOUND_CLT;
        s.gain = turn % 5 == 4 ? 4.0 : 0.7;
        s.len += turn % 4 ? 300 : 0;
        s.batch = turn % 7 == 6 ? 2 : 1;
        if (turn % 8 == 7) o.scores = SANTA_SCORES_BERNOULLI_STRAT;
        ref_build(&p, &s);
        p.a.std_error = NULL;
        const int64_t n = numbers_of(&p), results = s.batch * s.q_len * s.heads;
        int32_t *index = (int32_t *)test_alloc((size_t)(results * 24) * sizeof *index);
        if (turn % 6 == 4) {                         /* a caller's own, some of them no keys, some twice */
            v->heavy_tokens = 20;
            v->heavy_stride = 24;
            for (int64_t i = 0; i < results * 24; i++) index[i] = (int32_t)test_below(&r, s.len + 40) - 20;
            v->heavy_index = index;
        }
        /* from copies, whose blocks are one process's if ranges begin with whole ones */
        const int copied = (turn % 8 == 1 || turn % 8 == 3) && v->heavy_tokens >= 0 && !v->heavy_index;
        shard all;
        memset(&all, 0, sizeof all);
        make_cuts(&r, turn % 4, copied ? s.len / 64 : s.len, ranks, cuts);
        for (int64_t i = 0; i < ranks && copied; i++) cuts[i] *= 64;
        cuts[ranks] = s.len;
        if (copied) {
            const int64_t whole_cuts[2] = {0, s.len};
            o.scores = SANTA_SCORES_PROXY;
            o.proxy.sink_tokens = 70;
            cut(&p, whole_cuts, 0, &all);
            cut_copy(&all);
            p.a.proxy = all.copy;
        }
        float *one = ref_floats(n), *many = ref_floats(n);
        v->audit = audit[0];
        if (ref_run(&p, &o, &whole)) {
            take(&p, one);
            v->audit = audit[1];
            CHECK_STATUS(run_ranks(&p, o, cuts, ranks, -1, many, &sum), SANTA_OK);
            int same = sum.draws == whole.draws && sum.v_rows_head == whole.v_rows_head;
            for (int64_t i = 0; i < results; i++) {
                const santa_audit *x = &audit[1][i], *y = &audit[0][i];
                const double m = x->max_score;
                CHECK_INT(x->num_keys, y->num_keys);
                CHECK_INT(x->num_fixed, y->num_fixed);
                CHECK_INT(x->num_residual, y->num_residual);
                CHECK_INT(x->num_base, y->num_base);
                same &= x->needed == y->needed && x->budget == y->budget && x->exact == y->exact;
                sampled += !y->exact;
                complete += !y->exact && 2 * (y->budget - y->num_base) > y->num_residual - y->num_base;
                if (!same || y->num_keys == 0) continue;
                CHECK_NEAR(m, y->max_score, 1e-5, 1e-5);
                CHECK_NEAR(x->density, y->density, 1e-12, 0.0);
                CHECK_NEAR(x->denominator, y->denominator, 0.0, 2e-5);
                CHECK_NEAR(x->sigma, y->sigma, 1e-6, 1e-4);
                CHECK_NEAR(x->trace, y->trace, 1e-6, 1e-4);
                CHECK_NEAR(x->norm, y->norm, 1e-4, 1e-4);
            }
            for (int64_t x = 0; x < n; x += dv + 1) {
                const int far = !same || is_far(many + x, one + x, dv, 5e-5f);
                rows++;
                moved += far;
                if (!far) CHECK_NEAR(many[x + dv], one[x + dv], 2e-5, 1e-6);
            }
        }
        free(all.copy);
        free(index);
        free(one);
        free(many);
        ref_free(&p);
    }
    CHECK_MSG(moved * 100 <= rows, "%d of %d rows differ", (int)moved, (int)rows);
    CHECK_MSG(sampled > rows / 4 && complete > 0, "%d of %d rows are sampled, %d by what is left out",
              (int)sampled, (int)rows, (int)complete);
}

static void serial(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    for (int64_t i = count; i-- > 0;) task(context, i);
}

/* From copies of K, whose blocks are one process's where ranges begin with a whole one. */
static void copied_rows(void) {
    static const santa_method methods[] = {SANTA_SYS, SANTA_PPS, SANTA_PROP, SANTA_PPS, SANTA_TOP_K};
    test_rng r = test_rng_make(34);
    int64_t rows = 0, moved = 0, rescued = 0, redone = 0;
    double off[2] = {0.0, 0.0};                      /* where blocks are others, as good as one process */
    for (int turn = 0; turn < (test_quick ? 40 : 96); turn++) {
        ref_spec s = some_spec(&r, turn);
        const int64_t ranks = counts[turn / 2 % 5], dv = s.head_dim_v, cut_to = turn % 8 == 7 ? 1 : 64;
        int64_t cuts[MOST_RANKS + 1];
        ref_problem p;
        shard all;
        santa_stats sum, whole;
        santa_options o = ref_options(methods[turn % 3 == 2 ? 4 : turn % 4], turn % 9 == 8 ? 300 : 24,
                                      (uint64_t)turn);
        s.len += 64 * test_below(&r, 10);
        o.scores = SANTA_SCORES_PROXY;
        o.proxy.rescue_keys = turn % 5 == 2 ? SANTA_NONE : turn % 5 == 3 ? 70 : 0;
        o.proxy.rescue_above = turn % 3 ? 1e-3 : 0.0;
        o.proxy.exact_above = turn % 4 == 3 ? 0.02 : turn % 4 == 2 ? SANTA_NONE : 0.0;
        if (turn % 7 == 5) o.stash = SANTA_STASH_U8;
        if (turn % 6 == 1) o.proxy.local_tokens = 150;
        if (turn % 6 == 2) { o.proxy.local_tokens = SANTA_NONE; o.proxy.sink_tokens = 70; }
        santa_clear_unused_options(&o);
        ref_build(&p, &s);
        if (santa_method_traits(o.method) & SANTA_BIASED) p.a.std_error = NULL;
        p.a.proxy_bits = turn % 3 == 1 ? 2 : 4;
        make_cuts(&r, turn % 4, s.len / cut_to, ranks, cuts);
        for (int64_t i = 0; i < ranks; i++) cuts[i] *= cut_to;
        cuts[ranks] = s.len;
        const int64_t n = numbers_of(&p), whole_cuts[2] = {0, s.len};
        float *one = ref_floats(n), *many = ref_floats(n);
        cut(&p, whole_cuts, 0, &all);
        cut_copy(&all);
        p.a.proxy = all.copy;
        if (ref_run(&p, &o, &whole)) {
            take(&p, one);
            CHECK_STATUS(run_ranks(&p, o, cuts, ranks, -1, many, &sum), SANTA_OK);
            CHECK_INT(sum.keys, whole.keys);
            if (cut_to == 64) {
                CHECK_INT(sum.rescued_rows, whole.rescued_rows);
                CHECK_INT(sum.redone_rows, whole.redone_rows);
                CHECK_NEAR(sum.expected_variance, whole.expected_variance, 2e-6, 1e-4);
                if (whole.redone_rows == 0) CHECK_INT(sum.draws, whole.draws);
            }
            rescued += whole.rescued_rows;
            redone += whole.redone_rows;
            double *exact = ref_exact(&p);
            for (int64_t x = 0; x < s.heads * (dv + 1) && cut_to == 1; x++)
                for (int k = 0; k < 2 && x % (dv + 1) < dv; k++) {
                    const double to = (double)(k ? many : one)[x] - exact[x / (dv + 1) * dv + x % (dv + 1)];
                    off[k] += to * to;
                }
            free(exact);
            for (int64_t x = 0; x < n && cut_to == 64; x += dv + 1) {
                int far = is_far(many + x, one + x, dv, 4e-5f);
                far |= !isinf(one[x + dv]) && !(fabsf(many[x + dv] - one[x + dv]) < 1e-4f);
                rows++;
                moved += far;
            }
        }
        free(all.copy);
        free(one);
        free(many);
        ref_free(&p);
    }
    CHECK_MSG(moved * 200 <= rows, "%d of %d rows differ", (int)moved, (int)rows);
    CHECK(rescued > 0 && redone > 0);
    CHECK_MSG(off[1] < 1.2 * off[0], "off by %g, one process by %g", off[1], off[0]);
}

/* Many heads whose messages of what they have drawn are longer than those of what is to be
   rescued. */
static void few_rescued(void) {
    static const int64_t cuts[] = {0, 256, 600};
    static const struct { santa_method method; int64_t samples, keys; } turns[] = {
        {SANTA_SYS, 64, SANTA_NONE}, {SANTA_SYS, 64, 4}, {SANTA_PROP, 4, 0}, {SANTA_PPS, 64, 1},
        {SANTA_TOP_K, 8, 0}
    };
    for (size_t turn = 0; turn < sizeof turns / sizeof *turns; turn++) {
        ref_spec s = ref_spec_make(16, 8, 600, 32);
        ref_problem p;
        santa_stats sum;
        float many[16 * 33];
        double exact[32];
        santa_options o = ref_options(turns[turn].method, turns[turn].samples, 1);
        o.scores = SANTA_SCORES_PROXY;
        o.proxy.rescue_keys = turns[turn].keys;
        ref_build(&p, &s);
        if (CHECK_STATUS(run_ranks(&p, o, cuts, 2, -1, many, &sum), SANTA_OK))
            for (int64_t h = 0; h < 16; h++)
                CHECK_NEAR(many[h * 33 + 32], ref_dense(&p, 0, 0, h, exact, NULL), 0.3, 0.0);
        ref_free(&p);
    }
}

/* A NaN in K is in all results, one in a copy costs exact scores. No keys at all. Exchanges
   that fail. */
static void copies_of_nothing(void) {
    static const int64_t cuts[] = {0, 192, 192, 384, 600};
    static const santa_method methods[] = {SANTA_SYS, SANTA_PPS};
    static const int32_t none[1] = {0};
    for (int turn = 0; turn < 10; turn++) {
        const int kind = turn / 2;
        ref_spec s = ref_spec_make(4, 2, 600, 32);
        ref_problem p;
        santa_stats sum;
        float many[4 * 33], one[4 * 33];
        santa_options o = ref_options(methods[turn % 2], 16, 1);
        o.scores = SANTA_SCORES_PROXY;
        ref_build(&p, &s);
        if (kind < 2) ref_set(&p.a.k, 0, kind ? 597 : 200, 1, 3, (double)test_nan());
        if (kind == 2) poisoned = 2;
        if (kind == 3) p.a.seq_lens = none;
        if (kind == 4) o.proxy.rescue_above = o.proxy.exact_above = 1e-6;
        if (kind == 4 && CHECK_STATUS(run_ranks(&p, o, cuts, 4, -1, one, &sum), SANTA_OK)) {
            const int last = turn % 2 ? 8 : 7;       /* with rescue and exact scores; then the results */
            CHECK_INT(sum.redone_rows, 4);
            for (int broken = 0; broken < last; broken++)
                CHECK_STATUS(run_ranks(&p, o, cuts, 4, broken, many, NULL), SANTA_ERR_RANKS_EXCHANGE);
            CHECK_STATUS(run_ranks(&p, o, cuts, 4, last, many, NULL), SANTA_OK);
            o.num_threads = 3;
            o.parallel_for = serial;
            CHECK_STATUS(run_ranks(&p, o, cuts, 4, -1, many, NULL), SANTA_OK);
            CHECK(!memcmp(one, many, sizeof one));
        } else if (kind < 4 && CHECK_STATUS(run_ranks(&p, o, cuts, 4, -1, many, &sum), SANTA_OK)) {
            CHECK_INT(sum.redone_rows, kind < 3 ? 2 : 0);
            for (int i = 0; i < 4 * 33; i++) {
                CHECK_INT(test_is_nan(many[i]), kind < 2 && i >= 2 * 33);
                if (kind == 3 && i % 33 < 32) CHECK_NEAR(many[i], 0.0, 0.0, 0.0);
                if (kind == 3 && i % 33 == 32) CHECK(isinf(many[i]) && many[i] < 0.0f);
            }
        }
        poisoned = -1;
        ref_free(&p);
    }
}

/* What chooses keys by a copy of K: a NaN in a rank's copy, or in K where it is read, is in all
   results. No keys at all. Exchanges that fail. */
static void choices_of_nothing(void) {
    static const int64_t cuts[] = {0, 192, 192, 384, 600};
    static const int32_t none[1] = {0};
    for (int turn = 0; turn < 8; turn++) {
        const int kind = turn / 2, adapts = turn % 2;
        ref_spec s = ref_spec_make(4, 2, 600, 32);
        ref_problem p;
        float many[4 * 33], one[4 * 33];
        santa_options o = ref_options(adapts ? SANTA_VATTENTION : SANTA_TOP_K, 16, 1);
        o.scores = SANTA_SCORES_PROXY;
        if (adapts) o.vattention.heavy_tokens = 9;
        ref_build(&p, &s);
        p.a.std_error = NULL;
        if (kind == 0) ref_set(&p.a.k, 0, 597, 1, 3, (double)test_nan());
        if (kind == 1) poisoned = 2;
        if (kind == 2) p.a.seq_lens = none;
        if (kind == 3) {
            /* the copy, what is chosen, what was drawn; counts, scores, what is left, the
               sample's words, its sums, and the rest if there is one; then the results */
            const int last = adapts ? 6 : 3;
            CHECK_STATUS(run_ranks(&p, o, cuts, 4, -1, one, NULL), SANTA_OK);
            for (int broken = 0; broken < last; broken++)
                CHECK_STATUS(run_ranks(&p, o, cuts, 4, broken, many, NULL), SANTA_ERR_RANKS_EXCHANGE);
            o.num_threads = 3;
            o.parallel_for = serial;
            CHECK_STATUS(run_ranks(&p, o, cuts, 4, -1, many, NULL), SANTA_OK);
            CHECK(!memcmp(one, many, sizeof one));
        } else if (CHECK_STATUS(run_ranks(&p, o, cuts, 4, -1, many, NULL), SANTA_OK)) {
            for (int i = 0; i < 4 * 33; i++) {
                CHECK_INT(test_is_nan(many[i]), kind < 2 && (i >= 2 * 33) == (kind == 0));
                if (kind == 2 && i % 33 < 32) CHECK_NEAR(many[i], 0.0, 0.0, 0.0);
                if (kind == 2 && i % 33 == 32) CHECK(isinf(many[i]) && many[i] < 0.0f);
            }
        }
        poisoned = -1;
        ref_free(&p);
    }
}

/* std_error is one process's where the rows are. */
static void same_errors(void) {
    static const santa_method methods[] = {SANTA_SYS, SANTA_PROP, SANTA_STRAT, SANTA_IID, SANTA_DENSE};
    test_rng r = test_rng_make(36);
    int64_t rows = 0, other = 0;
    wants_error = 1;
    for (int turn = 0; turn < (test_quick ? 20 : 100); turn++) {
        ref_spec s = some_spec(&r, turn);
        const int64_t ranks = counts[turn / 2 % 5], dv = s.head_dim_v;
        int64_t cuts[MOST_RANKS + 1];
        ref_problem p;
        santa_options o = ref_options(methods[turn % 5], turn % 9 == 8 ? 1 : 32, (uint64_t)turn);
        if (turn % 3 == 1 && turn % 5 < 2 && o.num_samples > 1) o.num_combs = 4;
        ref_build(&p, &s);
        make_cuts(&r, turn % 4, s.len, ranks, cuts);
        const int64_t n = numbers_of(&p), results = s.batch * s.q_len * s.heads;
        float *one = ref_floats(n), *many = ref_floats(n), *error = ref_floats(results);
        if (CHECK(p.a.std_error) && ref_run(&p, &o, NULL)) {
            take(&p, one);
            for (int64_t i = 0; i < results; i++) error[i] = p.a.std_error[i];
            CHECK_STATUS(run_ranks(&p, o, cuts, ranks, -1, many, NULL), SANTA_OK);
            for (int64_t i = 0; i < results; i++) {
                const int far = is_far(many + i * (dv + 1), one + i * (dv + 1), dv, 2e-5f);
                rows++;
                other += far;
                if (isinf(error[i])) CHECK(isinf(p.a.std_error[i]));
                else if (!far) CHECK_NEAR(p.a.std_error[i], error[i], 1e-5, 1e-4);
            }
        }
        free(one);
        free(many);
        free(error);
        ref_free(&p);
    }
    wants_error = 0;
    CHECK_MSG(other * 100 <= rows, "%d of %d rows differ", (int)other, (int)rows);
}

/* The estimate over ranks has the exact result as its mean: borders lose and double nothing. */
static void unbiased(void) {
    static const int64_t cuts[] = {0, 70, 71, 71, 200};
    static const santa_method kinds[] = {SANTA_STRAT, SANTA_SYS, SANTA_FLASH, SANTA_PPS};
    const int draws = test_quick ? 160 : 800;
    ref_spec s = ref_spec_make(2, 1, 200, 32);
    ref_problem p;
    float many[2 * 33];
    double sum[32], square[32];
    s.gain = 3.0;
    ref_build(&p, &s);
    double *exact = ref_exact(&p);
    memset(sum, 0, sizeof sum);
    memset(square, 0, sizeof square);
    for (int i = 0; i < draws; i++) {
        santa_options o = ref_options(kinds[i % 4], 8, (uint64_t)i);
        if (o.method == SANTA_FLASH) o.tile_size = 32;
        if (!CHECK_STATUS(run_ranks(&p, o, cuts, 4, -1, many, NULL), SANTA_OK)) break;
        for (int c = 0; c < 32; c++) {
            sum[c] += (double)many[c];
            square[c] += (double)many[c] * (double)many[c];
        }
    }
    for (int c = 0; c < 32; c++) CHECK_MEAN_Z("an element", sum[c], square[c], draws, exact[c], 5.0);
    free(exact);
    ref_free(&p);
}

/* The bits do not depend on threads; with them the exchanges stay in order. */
static void threads(void) {
    static const int64_t cuts[] = {0, 1300, 1301, 3000};
    static const santa_method methods[] = {SANTA_DENSE, SANTA_SYS, SANTA_TOP_P, SANTA_VATTENTION,
                                           SANTA_PPS};
    for (int turn = 0; turn < 10; turn++) {
        ref_spec s = ref_spec_make(8, 4, 3000, 32);
        ref_problem p;
        santa_options o = ref_options(methods[turn / 2], 64, 5);
        s.layout = turn & 1 ? REF_HND : REF_NHD;
        s.gain = 0.7;
        s.batch = 2;
        ref_build(&p, &s);
        const int64_t n = numbers_of(&p);
        float *one = ref_floats(n), *more = ref_floats(n);
        CHECK_STATUS(run_ranks(&p, o, cuts, 3, -1, one, NULL), SANTA_OK);
        o.num_threads = 3;
        o.parallel_for = serial;
        CHECK_STATUS(run_ranks(&p, o, cuts, 3, -1, more, NULL), SANTA_OK);
        CHECK(!memcmp(one, more, (size_t)n * sizeof *one));
        free(one);
        free(more);
        ref_free(&p);
    }
}

/* Without context_lens a part is the last one. */
static void no_context(void) {
    static const int64_t cuts[] = {0, 200, 400};
    static const santa_method methods[] = {SANTA_SYS, SANTA_PPS, SANTA_TOP_K, SANTA_DENSE};
    for (int turn = 0; turn < 16; turn++) {
        ref_spec s = ref_spec_make(2, 1, 400, 32);
        ref_problem p;
        float none[2 * 33], some[2 * 33];
        santa_options o = ref_options(methods[turn % 4], turn % 4 == 3 ? 0 : 32, 1);
        if (turn % 4 < 3) o.scores = SANTA_SCORES_PROXY;
        s.window = turn / 4 % 2 ? 150 : 0;
        s.causal = turn / 8;
        s.alibi = turn / 8;
        ref_build(&p, &s);
        CHECK_STATUS(run_ranks(&p, o, cuts, 2, -1, some, NULL), SANTA_OK);
        last_without_context = 1;
        CHECK_STATUS(run_ranks(&p, o, cuts, 2, -1, none, NULL), SANTA_OK);
        last_without_context = 0;
        CHECK_MSG(!memcmp(none, some, sizeof none), "%s: another result", santa_method_name(o.method));
        ref_free(&p);
    }
}

/* A NaN in K of one rank reaches all of them; V's where it is drawn. */
static void nan_in_one(void) {
    static const int64_t cuts[] = {0, 60, 120, 180};
    static const santa_method methods[] = {SANTA_DENSE, SANTA_SYS, SANTA_FLASH, SANTA_TOP_K, SANTA_TOP_P,
                                           SANTA_VATTENTION, SANTA_PPS};
    for (int turn = 0; turn < 21; turn++) {
        ref_spec s = ref_spec_make(4, 2, 180, 32);
        ref_problem p;
        float many[4 * 33];
        santa_options o = ref_options(methods[turn % 7], 16, 1);
        o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens = 4;
        o.vattention.epsilon = 0.4;
        santa_clear_unused_options(&o);
        ref_build(&p, &s);
        ref_set(&p.a.k, 0, 30 + 60 * (turn / 7), 1, 3, (double)test_nan());
        if (CHECK_STATUS(run_ranks(&p, o, cuts, 3, -1, many, NULL), SANTA_OK))
            for (int i = 0; i < 4 * 33; i++) CHECK_INT(test_is_nan(many[i]), i >= 2 * 33);
        ref_free(&p);
    }

    /* of V in one column, and in std_error */
    ref_spec s = ref_spec_make(4, 2, 180, 32);
    ref_problem p;
    float many[4 * 33];
    static const santa_method drawing[] = {SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_SYS};
    wants_error = 1;
    for (int i = 0; i < 4; i++) {                    /* an infinity: no error is known */
        santa_options o = ref_options(drawing[i], 16, 1);
        if (i == 3) o.num_combs = 4;
        ref_build(&p, &s);
        for (int64_t j = 0; j < 180; j++) ref_set(&p.a.v, 0, j, 1, 20, REF_INF);
        if (CHECK_STATUS(run_ranks(&p, o, cuts, 3, -1, many, NULL), SANTA_OK))
            for (int h = 2; h < 4; h++)
                CHECK_MSG(test_is_nan(p.a.std_error[h]), "%d: an error of %g", i, (double)p.a.std_error[h]);
        ref_free(&p);
    }
    ref_build(&p, &s);
    ref_set(&p.a.v, 0, 100, 1, 20, (double)test_nan());
    if (CHECK_STATUS(run_ranks(&p, ref_options(SANTA_DENSE, 0, 1), cuts, 3, -1, many, NULL), SANTA_OK))
        for (int h = 0; h < 4; h++) {
            for (int c = 0; c < 33; c++) CHECK_INT(test_is_nan(many[33 * h + c]), h >= 2 && c == 20);
            CHECK_INT(test_is_nan(p.a.std_error[h]), h >= 2);
        }
    wants_error = 0;
    ref_free(&p);
}

/* No rank sees a key: zeros and -inf, or the sink; and one sees them all masked. */
static void nothing_to_see(void) {
    static const int64_t cuts[] = {0, 64, 100};
    static const int32_t none[1] = {0};
    static const santa_method methods[] = {SANTA_DENSE, SANTA_PROP, SANTA_FLASH, SANTA_TOP_K, SANTA_TOP_P,
                                           SANTA_VATTENTION, SANTA_PPS};
    for (int turn = 0; turn < 14; turn++) {
        ref_spec s = ref_spec_make(2, 1, 100, 32);
        ref_problem p;
        float many[2 * 33];
        const santa_options o = ref_options(methods[turn % 7], 16, 1);
        s.sinks = turn / 7;
        ref_build(&p, &s);
        p.a.seq_lens = none;
        if (CHECK_STATUS(run_ranks(&p, o, cuts, 2, -1, many, NULL), SANTA_OK))
            for (int h = 0; h < 2; h++) {
                for (int c = 0; c < 32; c++) CHECK_NEAR(many[33 * h + c], 0.0, 0.0, 0.0);
                if (s.sinks) CHECK_NEAR(many[33 * h + 32], p.sinks[h], 0.0, 0.0);
                else CHECK(many[33 * h + 32] < 0.0f && isinf(many[33 * h + 32]));
            }
        ref_free(&p);
    }
}

static void failures(void) {
    static const int64_t cuts[] = {0, 50, 200};
    static const struct { santa_method method; int64_t exchanges; } calls[] = {
        {SANTA_DENSE, 1}, {SANTA_SYS, 2}, {SANTA_FLASH, 3}, {SANTA_TOP_K, 2}, {SANTA_TOP_P, 5},
        {SANTA_VATTENTION, 7}, {SANTA_PPS, 3},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int64_t broken = 0; broken <= calls[i].exchanges; broken++) {
            ref_spec s = ref_spec_make(2, 1, 200, 32);
            ref_problem p;
            float many[2 * 33];
            s.gain = 0.7;
            ref_build(&p, &s);
            santa_options o = ref_options(calls[i].method, 16, 1);
            o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens = 4;
            o.vattention.base_samples = 8;
            o.vattention.epsilon = 0.4;
            santa_clear_unused_options(&o);
            /* run_ranks looks that nothing was written */
            CHECK_STATUS(run_ranks(&p, o, cuts, 2, broken, many, NULL),
                         broken < calls[i].exchanges ? SANTA_ERR_RANKS_EXCHANGE : SANTA_OK);
            ref_free(&p);
        }
}

/* Says that there are keys, and not which. */
static int half_an_exchange(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    (void)user; (void)stream;
    memset(all, 0, 2 * bytes);
    if (bytes == 8) {
        memcpy(all, mine, bytes);
        memcpy((char *)all + bytes, mine, bytes);
    }
    return 0;
}

static void no_loop(void) {
    ref_spec s = ref_spec_make(2, 1, 600, 32);
    ref_problem p;
    santa_options o = ref_options(SANTA_VATTENTION, 16, 1);
    ref_build(&p, &s);
    p.a.std_error = NULL;
    o.vattention.sink_tokens = o.vattention.local_tokens = o.vattention.heavy_tokens = SANTA_NONE;
    o.ranks.count = 2;
    o.ranks.all_gather = half_an_exchange;
    const size_t bytes = santa_workspace_size(&p.a, &o);
    void *work = test_alloc(bytes);
    CHECK_STATUS(santa_decode(&p.a, &o, work, bytes, NULL), SANTA_ERR_RANKS_EXCHANGE);
    free(work);
    for (int turn = 0; turn < 4; turn++) {           /* all_gather leaves out what this rank said */
        o.method = turn == 3 ? SANTA_DENSE : turn ? SANTA_PPS : SANTA_SYS;
        o.scores = turn == 2 ? SANTA_SCORES_PROXY : SANTA_SCORES_EXACT;
        santa_clear_unused_options(&o);
        void *const copy = test_alloc(santa_proxy_size(&p.a));
        p.a.proxy = copy;
        CHECK_STATUS(santa_proxy_encode(&p.a, 0, 600, NULL), SANTA_OK);
        const size_t other = santa_workspace_size(&p.a, &o);
        work = test_alloc(other);
        CHECK_STATUS(santa_decode(&p.a, &o, work, other, NULL), SANTA_ERR_RANKS_EXCHANGE);
        free(work);
        free(copy);
    }
    ref_free(&p);
}

/* The other rank says anything. */
static int wild_exchange(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    test_rng *r = (test_rng *)user;
    (void)stream;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)all)[bytes + i] = (unsigned char)test_below(r, 256);
    memcpy(all, mine, bytes);
    return 0;
}

/* Sanitizers see what is read or written outside. Not of vattention, which draws until the
   ranks have the keys that they say. */
static void wild_ranks(void) {
    static const santa_method methods[] = {SANTA_DENSE, SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_FLASH,
                                           SANTA_TOP_K, SANTA_TOP_P, SANTA_PPS};
    test_rng r = test_rng_make(88);
    int64_t good = 0, calls = 0;
    for (int turn = 0; turn < (test_quick ? 160 : 1600); turn++) {
        ref_spec s = ref_spec_make(2, 1, 400 + test_below(&r, 300), 16);
        ref_problem p;
        santa_options o = ref_options(methods[turn % 8], 1 + test_below(&r, 40), (uint64_t)turn);
        ref_build(&p, &s);
        p.a.std_error = NULL;
        void *const copy = test_alloc(santa_proxy_size(&p.a));
        const int32_t context = (int32_t)s.len + 64;
        p.a.context_lens = &context;
        p.a.proxy = copy;
        o.ranks.count = 2;
        o.ranks.all_gather = wild_exchange;
        o.ranks.user = &r;
        CHECK_STATUS(santa_proxy_encode(&p.a, 0, s.len, NULL), SANTA_OK);
        for (int copied = 0; copied < 2; copied++) {
            o.scores = copied ? SANTA_SCORES_PROXY : SANTA_SCORES_EXACT;
            santa_clear_unused_options(&o);
            if (santa_check(&p.a, &o) != SANTA_OK) continue;
            const size_t bytes = santa_workspace_size(&p.a, &o);
            void *const work = test_alloc(bytes);
            const santa_status got = santa_decode(&p.a, &o, work, bytes, NULL);
            CHECK_MSG(got == SANTA_OK || got == SANTA_ERR_RANKS_EXCHANGE, "%s: %s",
                      santa_method_name(o.method), santa_status_string(got));
            good += got == SANTA_OK;
            calls++;
            free(work);
        }
        free(copy);
        ref_free(&p);
    }
    CHECK_MSG(good > calls / 4, "%d of %d calls came to their end", (int)good, (int)calls);
}

static int64_t predict_nothing(void *user, int64_t batch, int64_t q_index, int64_t head, const float *q,
                               int64_t begin, int64_t end, int64_t count, int32_t *index) {
    (void)user; (void)batch; (void)q_index; (void)head; (void)q;
    (void)begin; (void)end; (void)count; (void)index;
    return 0;
}

static void refusals(void) {
    ref_spec s = ref_spec_make(2, 1, 100, 32);
    ref_problem p;
    talk t;
    memset(&t, 0, sizeof t);
    ref_build(&p, &s);
    p.a.std_error = NULL;
    const int32_t context = 100;
    float error[2];
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        santa_options o = ref_options((santa_method)m, 16, 1);
        const int goes = m == SANTA_DENSE || m == SANTA_IID || m == SANTA_STRAT || m == SANTA_SYS
                      || m == SANTA_PROP || m == SANTA_FLASH || m == SANTA_TOP_K || m == SANTA_TOP_P
                      || m == SANTA_PPS || m == SANTA_VATTENTION;
        o.ranks.all_gather = talk_all_gather;
        o.ranks.user = &t;
        o.ranks.count = 2;
        if (m == SANTA_SAAP) continue;               /* it wants buckets first */
        p.a.context_lens = NULL;
        if (m == SANTA_FLASH) CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS);
        p.a.context_lens = &context;
        CHECK_STATUS(santa_check(&p.a, &o), goes ? SANTA_OK : SANTA_ERR_RANKS_METHOD);
        o.ranks.rank = 2;
        CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS);
        o.ranks.rank = -1;
        CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS);
        o.ranks.rank = 0;
        o.ranks.count = -1;
        CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS);
        o.ranks.count = 65537;
        CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS);
        o.ranks.count = 2;
        o.ranks.all_gather = NULL;
        CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS);
        o.ranks.count = 1;
        CHECK_STATUS(santa_check(&p.a, &o), SANTA_OK);
    }
    santa_options o = ref_options(SANTA_TOP_K, 16, 1);
    o.ranks.all_gather = talk_all_gather;
    o.ranks.count = 2;
    p.a.proxy = error;                               /* it is not looked at */
    o.scores = SANTA_SCORES_PROXY;
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_OK);
    p.a.std_error = error;
    o.method = SANTA_SYS;
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS_METHOD);
    p.a.std_error = NULL;
    p.a.proxy = NULL;
    o.scores = SANTA_SCORES_EXACT;
    o.dense_below = 10;
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS_METHOD);
    o.dense_below = 0;
    CHECK_INT(santa_sample_workspace_size(100, &o), 0);
    const size_t bytes = santa_workspace_size(&p.a, &o);
    void *work = test_alloc(bytes);
    float scores[2 * 100];
    CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 0, scores, 100, work, bytes), SANTA_ERR_RANKS_METHOD);
    free(work);
    o.method = SANTA_VATTENTION;
    o.vattention.heavy = predict_nothing;
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS_METHOD);
    o.method = SANTA_SYS;
    o.vattention.heavy = NULL;
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_OK);
    p.a.std_error = error;
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_OK);
    o.method = SANTA_PPS;
    CHECK_STATUS(santa_check(&p.a, &o), SANTA_ERR_RANKS_METHOD);
    ref_free(&p);
}

const test_case suite_ranks[] = {
    {"dense over ranks is dense", dense_is_dense},
    {"samplers draw the rows that one process draws", same_rows},
    {"top-k and top-p take the keys that one process takes", same_top},
    {"vattention has the sets and budgets of one process", same_budgets},
    {"draws from copies of K are those that one process draws", copied_rows},
    {"std_error is that of one process", same_errors},
    {"copies of K: NaN, no keys, exchanges that fail, threads", copies_of_nothing},
    {"few keys rescued, many heads", few_rescued},
    {"choices by copies of K: NaN, no keys, exchanges that fail, threads", choices_of_nothing},
    {"the mean over seeds is exact attention", unbiased},
    {"threads change no bit", threads},
    {"a NaN in one rank is in the result", nan_in_one},
    {"no context_lens: the last part", no_context},
    {"no keys at all", nothing_to_see},
    {"an exchange that fails writes nothing", failures},
    {"an exchange that brings nothing ends", no_loop},
    {"another rank that says anything", wild_ranks},
    {"what is refused", refusals},
    {0, 0},
};
