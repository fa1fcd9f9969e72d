/* One context over ranks on a GPU: part of test_cuda.cu. */
#include "../ranks.h"

static int device_copy(void *to, const void *from, size_t bytes) {
    return cudaDeviceSynchronize() != cudaSuccess
           || cudaMemcpy(to, from, bytes, cudaMemcpyDefault) != cudaSuccess;
}

/* What a workspace holds before a call; all that ranks said, if it is asked for. */
static int workspace_of_ranks = 0xff;
static std::vector<std::vector<char>> *said_by_ranks;

/* Every rank's result, of which the first is returned: all must have the same bits. */
static santa_status gpu_ranks(const problem &p, santa_options o, const int64_t *cuts, int64_t ranks,
                              result *first, santa_stats *sum, int64_t broken = -1,
                              std::vector<santa_audit> *audits = nullptr) {
    santa_status worst = SANTA_ERR_RANKS_EXCHANGE;
    talk t;
    memset(&t, 0, sizeof t);
    t.ranks = ranks;
    t.broken = broken;
    t.copy = device_copy;
    o.ranks.count = ranks;
    o.ranks.all_gather = talk_all_gather;
    o.ranks.user = &t;
    for (; worst == SANTA_ERR_RANKS_EXCHANGE && t.known < (broken < 0 ? MOST_EXCHANGES : broken + 2);
         t.known++) {
        memset(sum, 0, sizeof *sum);
        worst = SANTA_OK;
        for (t.rank = 0; t.rank < ranks; t.rank++) {
            shard x;
            cut(&p, cuts, t.rank, &x);
            x.a.std_error = p.a.std_error;
            if (o.scores == SANTA_SCORES_PROXY) cut_copy(&x);
            o.ranks.rank = t.rank;
            t.exchange = 0;
            on_gpu g(x.a, o, workspace_of_ranks);
            free(x.copy);
            const result before = g.get();
            const santa_status s = g.start();
            if (!CUDA(cudaDeviceSynchronize())) return s;
            result r = g.get();
            if (s != SANTA_OK) {
                CHECK(r.same(before));
                worst = s;
                continue;
            }
            sum->draws += r.stats.draws;
            sum->keys += r.stats.keys;
            sum->v_rows_head += r.stats.v_rows_head;
            sum->rescued_rows = r.stats.rescued_rows;
            sum->redone_rows = r.stats.redone_rows;
            sum->expected_variance = r.stats.expected_variance;
            sum->found_variance = r.stats.found_variance;
            if (t.rank)
                CHECK(r.same(*first) && (r.std_error.empty()
                      || !memcmp(r.std_error.data(), first->std_error.data(), 4 * r.std_error.size())));
            else *first = std::move(r);
            if (!audits) continue;
            const std::vector<santa_audit> own = g.audits();
            if (t.rank)
                CHECK(!memcmp(own.data(), audits->data(), own.size() * sizeof own[0]));
            else *audits = own;
        }
    }
    if (said_by_ranks) said_by_ranks->clear();
    for (int64_t i = 0; said_by_ranks && i < t.known; i++)
        if (t.message[i])
            said_by_ranks->push_back({t.message[i], t.message[i] + t.bytes[i] * (size_t)ranks});
    talk_free(&t);
    return worst;
}

/* A scale for each row of K and V. */
static void scale_some(ref_spec *s, int turn) {
    if (turn % 6 != 5) return;
    s->row_scales = 1;
    s->scale_type = (santa_dtype)(turn / 6 % 3);
}

/* The result over ranks against the CPU's: rows that are others are counted, or refused. */
static void compare_over(const problem &p, const result &over, bool none_moves, int turn, totals *t) {
    const ref_spec &s = p.spec;
    for (int64_t x = 0; x < s.batch * s.q_len * s.heads; x++) {
        const int64_t b = x / s.heads / s.q_len, i = x / s.heads % s.q_len, h = x % s.heads;
        double norm;
        const double difference = apart(p, over, b, i, h, &norm);
        t->rows++;
        t->off += !(sqrt(difference) <= 2e-4 * sqrt(norm) + 1e-6);
        CHECK_MSG(over.lse[(size_t)x] == p.lse[x] || fabsf(over.lse[(size_t)x] - p.lse[x]) <= 1e-3f,
                  "turn %d row %d: lse %g, want %g", turn, (int)x, (double)over.lse[(size_t)x],
                  (double)p.lse[x]);
        if (none_moves)
            CHECK_MSG(sqrt(difference) <= 2e-4 * sqrt(norm) + 1e-6, "turn %d: dense is off by %g of %g",
                      turn, sqrt(difference), sqrt(norm));
    }
}

static void ranks_same_rows(void) {
    NEED_DEVICE();
    static const santa_method methods[] = {SANTA_DENSE, SANTA_SYS, SANTA_PROP, SANTA_FLASH, SANTA_PPS,
                                           SANTA_STRAT, SANTA_FLASH, SANTA_IID, SANTA_PPS};
    static const int64_t counts[] = {2, 3, 1, 4, 7}, tiles[] = {64, 256, 128, 1024};
    static const santa_dtype types[] = {SANTA_BF16, SANTA_F16, SANTA_F32, SANTA_E4M3};
    test_rng r = test_rng_make(41);
    totals t = {0, 0, 0};
    for (int turn = 0; turn < (test_quick ? 36 : 180); turn++) {
        ref_spec s = spec16(turn % 3 == 0 ? 6 : 4, 2, 150 + test_below(&r, 900), turn % 4 == 3 ? 64 : 128,
                            types[turn / 5 % 4]);
        if (s.q_type == SANTA_E4M3) s.q_type = SANTA_BF16;
        if (turn % 6 == 4) s.head_dim_v = 200;
        vary(&s, turn);
        scale_some(&s, turn);
        if (turn % 9 == 0) s.window = 70;
        s.layout = turn % 4 == 2 ? REF_HND : REF_NHD;
        s.stream = (uint64_t)turn;
        if (turn % 5 == 1) s.gain = 80.0;            /* tiles without mass */
        problem p(s);
        if (s.window) p.a.first_tokens = 1 + turn * 7 % 80;
        santa_options o = options(methods[turn % 9], turn % 7 == 6 ? 300 : turn % 7 == 5 ? 2 : 48);
        if (o.method == SANTA_FLASH) o.tile_size = tiles[turn / 2 % 4];
        if (turn % 8 == 2 && o.num_samples % 4 == 0 && (santa_method_traits(o.method) & SANTA_COMBS))
            o.num_combs = 4;
        int64_t cuts[MOST_RANKS + 1];
        const int64_t ranks = counts[turn / 2 % 5];
        make_cuts(&r, turn % 4, s.len, ranks, cuts);
        for (int64_t i = 0; i < ranks && o.method == SANTA_FLASH; i++)
            cuts[i] = ref_min(cuts[i], s.len - 1) / 64 * 64;
        if (turn % 4 == 1) {                         /* rounded by whole blocks of the context */
            o.stash = SANTA_STASH_U8;
            for (int64_t i = 0; i < ranks; i++) cuts[i] = cuts[i] / 64 * 64;
        }
        santa_clear_unused_options(&o);
        result over;
        santa_stats sum, whole;
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, ranks, &over, &sum), SANTA_OK)) continue;
        if (!ref_run(&p, &o, &whole)) continue;
        CHECK_INT(sum.draws, whole.draws);
        CHECK_INT(sum.keys, whole.keys);
        compare_over(p, over, o.method == SANTA_DENSE, turn, &t);
        t.draws += sum.draws;
    }
    check_totals(t, "over ranks");
}

/* The keys that the CPU takes, also of equal scores the first, also more than a rank tells by
   name. */
static void ranks_selected(void) {
    NEED_DEVICE();
    static const int64_t counts[] = {2, 3, 1, 4, 7}, budgets[] = {48, 3, 300, 2100, 1};
    static const double shares[] = {0.9, 0.5, 1.0, 0.99, 1e-3};
    static const santa_dtype types[] = {SANTA_F32, SANTA_BF16, SANTA_E4M3};
    test_rng r = test_rng_make(45);
    totals t = {0, 0, 0};
    for (int turn = 0; turn < (test_quick ? 30 : 150); turn++) {
        const bool ties = turn % 5 == 3;
        ref_spec s = spec16(turn % 3 == 0 ? 6 : 4, 2, 150 + test_below(&r, turn % 7 == 1 ? 3000 : 900), 64,
                            ties ? SANTA_F32 : types[turn / 2 % 3]);
        if (s.q_type == SANTA_E4M3) s.q_type = SANTA_BF16;
        vary(&s, turn);
        scale_some(&s, turn);
        s.stream = (uint64_t)turn;
        if (ties) s.alibi = 0;
        if (turn % 6 == 4) s.head_dim_v = 200;
        if (turn % 4 == 2) s.gain = 1.0;
        problem p(s);
        if (s.window) p.a.first_tokens = 1 + turn * 7 % 80;
        for (int64_t j = 5; ties && j < s.len; j++)  /* scores repeat, rows of V do not */
            for (int64_t b = 0; b < s.batch; b++)
                for (int64_t h = 0; h < 2; h++)
                    for (int64_t c = 0; c < 64; c++)
                        ref_set(&p.a.k, b, j, h, c, ref_get(&p.a.k, b, j % 5, h, c));
        santa_options o = options(turn % 2 ? SANTA_TOP_P : SANTA_TOP_K, budgets[turn / 2 % 5]);
        if (turn % 2) o.top_p = shares[turn / 2 % 5];
        int64_t cuts[MOST_RANKS + 1];
        make_cuts(&r, turn % 4, s.len, counts[turn / 2 % 5], cuts);
        result over;
        santa_stats sum, whole;
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, counts[turn / 2 % 5], &over, &sum), SANTA_OK)) continue;
        if (!ref_run(&p, &o, &whole)) continue;
        CHECK_INT(sum.draws, 0);
        CHECK_INT(sum.keys, whole.keys);
        /* of top-p rounding may move the last one of a row, or many of the mass is all of it */
        const int64_t moved = o.top_p == 1.0 ? s.batch * s.q_len * s.heads * s.len
                            : turn % 2       ? s.batch * s.q_len * s.heads : 0;
        CHECK_MSG(llabs(sum.v_rows_head - whole.v_rows_head) <= moved, "turn %d: %lld rows, want %lld",
                  turn, (long long)sum.v_rows_head, (long long)whole.v_rows_head);
        compare_over(p, over, false, turn, &t);
    }
    CHECK_MSG(t.off <= 2 + t.rows / 200, "%lld of %lld rows are others", (long long)t.off,
              (long long)t.rows);
}

/* Errors are those of one GPU, where the rows are. */
static void ranks_errors(void) {
    NEED_DEVICE();
    static const santa_method methods[] = {SANTA_IID, SANTA_SYS, SANTA_STRAT, SANTA_PROP, SANTA_DENSE};
    static const int64_t counts[] = {3, 2, 7};
    test_rng r = test_rng_make(43);
    totals t = {0, 0, 0};
    int64_t wrong = 0, finite = 0;
    for (int turn = 0; turn < (test_quick ? 20 : 100); turn++) {
        ref_spec s = spec16(4, 2, 150 + test_below(&r, 400), 64, turn % 2 ? SANTA_BF16 : SANTA_F32);
        vary(&s, turn);
        scale_some(&s, turn);
        s.sinks = turn % 4 < 2;
        if (turn % 6 == 4) s.head_dim_v = 200;
        problem p(s);
        if (s.window) p.a.first_tokens = 1 + turn * 7 % 80;
        p.a.std_error = p.std_error;
        p.a.v_scale = turn % 3 == 1 ? 2.5f : 0.0f;
        santa_options o = options(methods[turn % 5], turn % 9 == 8 ? 1 : turn % 9 == 5 ? 300 : 48);
        if (turn / 5 % 2 && o.num_samples > 1 && (santa_method_traits(o.method) & SANTA_COMBS))
            o.num_combs = 4;
        int64_t cuts[MOST_RANKS + 1];
        const int64_t ranks = counts[turn % 3];
        make_cuts(&r, turn % 4, s.len, ranks, cuts);
        result over, one;
        santa_stats sum;
        if (!run_on_gpu(p, o, &one)) continue;
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, ranks, &over, &sum), SANTA_OK)) continue;
        const double v_max = largest_row_of_v(p);
        for (int64_t x = 0; x < s.batch * s.q_len * s.heads; x++) {
            const int64_t b = x / s.heads / s.q_len, i = x / s.heads % s.q_len, h = x % s.heads;
            double difference = 0.0, norm = 0.0;
            for (int64_t c = 0; c < s.head_dim_v; c++) {
                const double y = ref_get(&one.out, b, i, h, c), d = ref_get(&over.out, b, i, h, c) - y;
                difference += d * d;
                norm += y * y;
            }
            t.rows++;
            if (!(sqrt(difference) <= 2e-4 * sqrt(norm) + 1e-6 * v_max)) { t.off++; continue; }
            const double y = (double)one.std_error[(size_t)x], z = (double)over.std_error[(size_t)x];
            wrong += !(y == z || fabs(y - z) <= 1e-3 * y + 1e-6 * v_max);
            finite += y > 0.0 && y < 1e30;
        }
        t.draws += sum.draws;
    }
    CHECK_MSG(wrong == 0 && finite > 50, "%lld errors differ, %lld are above 0", (long long)wrong,
              (long long)finite);
    check_totals(t, "errors over ranks");
}

/* From copies of K: the rows of one GPU where ranges begin with a whole block, rescued and done
   again heads among them. */
static void ranks_copies(void) {
    NEED_DEVICE();
    static const santa_dtype types[] = {SANTA_BF16, SANTA_F32, SANTA_F16};
    static const santa_method methods[] = {SANTA_SYS, SANTA_PROP, SANTA_PPS, SANTA_TOP_K};
    static const int64_t counts[] = {2, 3, 1, 4, 7};
    test_rng r = test_rng_make(44);
    totals t = {0, 0, 0};
    int64_t rescued = 0, redone = 0;
    double off[2] = {0.0, 0.0};                      /* where blocks are others: as good as one GPU */
    for (int turn = 0; turn < (test_quick ? 24 : 192); turn++) {
        ref_spec s = spec16(turn % 3 == 0 ? 6 : 4, 2, 150 + test_below(&r, 900), turn % 4 == 3 ? 128 : 64,
                            types[turn % 3]);
        const int64_t ranks = counts[turn / 2 % 5], cut_to = turn % 8 == 7 ? 1 : 64;
        int64_t cuts[MOST_RANKS + 1];
        shard all;
        santa_stats sum;
        result one, over;
        vary(&s, turn);
        scale_some(&s, turn);
        s.stream = (uint64_t)turn;
        if (turn % 5 == 4) s.head_dim_v = 200;
        santa_options o = options(methods[turn % 11 % 4], turn % 9 == 8 ? 300 : 24,
                                  turn % 7 == 5 ? SANTA_STASH_F32 : SANTA_STASH_U8);
        o.scores = SANTA_SCORES_PROXY;
        o.seed = (uint64_t)turn;
        o.proxy.rescue_keys = turn % 5 == 2 ? SANTA_NONE : turn % 5 == 3 ? 70 : 0;
        o.proxy.rescue_above = turn % 3 ? 1e-3 : 0.0;
        o.proxy.exact_above = turn % 4 == 3 ? 0.02 : turn % 4 == 2 ? SANTA_NONE : 0.0;
        if (turn % 6 == 1) o.proxy.local_tokens = 150;
        if (turn % 6 == 2) { o.proxy.local_tokens = SANTA_NONE; o.proxy.sink_tokens = 70; }
        santa_clear_unused_options(&o);
        problem p(s);
        p.a.proxy_bits = turn % 3 == 1 ? 2 : 4;
        make_cuts(&r, turn % 4, s.len / cut_to, ranks, cuts);
        for (int64_t i = 0; i < ranks; i++) cuts[i] *= cut_to;
        cuts[ranks] = s.len;
        const int64_t whole_cuts[2] = {0, s.len};
        cut(&p, whole_cuts, 0, &all);
        cut_copy(&all);
        p.a.proxy = all.copy;
        const bool good = run_on_gpu(p, o, &one);
        free(all.copy);
        p.a.proxy = NULL;
        if (!good || !CHECK_STATUS(gpu_ranks(p, o, cuts, ranks, &over, &sum), SANTA_OK)) continue;
        if (cut_to == 64) {
            CHECK_INT(sum.rescued_rows, one.stats.rescued_rows);
            CHECK_INT(sum.redone_rows, one.stats.redone_rows);
            CHECK_NEAR(sum.expected_variance, one.stats.expected_variance, 3e-6, 1e-3);
        }
        rescued += one.stats.rescued_rows;
        redone += one.stats.redone_rows;
        double *exact = ref_exact(&p);
        const double v_max = largest_row_of_v(p);
        for (int64_t x = 0; x < s.batch * s.q_len * s.heads; x++) {
            const int64_t b = x / s.heads / s.q_len, i = x / s.heads % s.q_len, h = x % s.heads;
            double difference = 0.0, norm = 0.0;
            for (int64_t c = 0; c < s.head_dim_v; c++) {
                const double y = ref_get(&one.out, b, i, h, c), z = ref_get(&over.out, b, i, h, c);
                difference += (z - y) * (z - y);
                norm += y * y;
                if (cut_to == 64 || x >= s.heads) continue;
                const double to = exact[x * s.head_dim_v + c];
                off[0] += (y - to) * (y - to);
                off[1] += (z - to) * (z - to);
            }
            if (cut_to == 1) continue;
            t.rows++;
            t.off += !(sqrt(difference) <= 5e-4 * sqrt(norm) + 2e-6 * v_max)
                   || !(over.lse[(size_t)x] == one.lse[(size_t)x]
                        || fabsf(over.lse[(size_t)x] - one.lse[(size_t)x]) <= 1e-3f);
        }
        free(exact);
        t.draws += cut_to == 64 ? one.stats.draws : 0;
    }
    check_totals(t, "copies over ranks");
    CHECK_MSG(rescued > 0 && redone > 0, "%lld rescued, %lld done again", (long long)rescued,
              (long long)redone);
    CHECK_MSG(off[1] < 1.2 * off[0], "off by %g, one GPU by %g", off[1], off[0]);
}

/* A NaN in K is in all results, one in a copy costs exact scores. No keys at all. Exchanges
   that fail. */
static void ranks_copies_nan(void) {
    NEED_DEVICE();
    static const int64_t cuts[] = {0, 192, 192, 384, 600};
    static const int32_t none[1] = {0};
    for (int turn = 0; turn < 14; turn++) {
        const int kind = turn % 5;
        problem p(spec16(4, 2, 600, 64, SANTA_F32));
        santa_options o = options(turn < 5 ? SANTA_SYS : turn < 10 ? SANTA_PPS : SANTA_TOP_K, 16);
        santa_stats sum;
        result r;
        o.scores = SANTA_SCORES_PROXY;
        if (kind < 2) ref_set(&p.a.k, 0, kind ? 597 : 200, 1, 3, (double)test_nan());
        if (kind == 2) o.proxy.exact_above = 1e-6;
        if (kind == 3) p.a.seq_lens = none;
        if (kind == 4) o.proxy.rescue_above = 1e-6;
        santa_clear_unused_options(&o);
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, 4, &r, &sum), SANTA_OK)) continue;
        if (kind == 2 && turn < 10) CHECK_INT(sum.redone_rows, 4);
        if (kind == 4) CHECK_INT(sum.rescued_rows, 4);
        for (int h = 0; h < 4 && kind < 3; h++) CHECK_INT(r.nans(0, 0, h), kind < 2 && h >= 2 ? 65 : 0);
        if (kind == 3) CHECK_INT(sum.draws, 0);
        if (kind == 4)
            for (int broken = 0; broken < (turn < 5 ? 3 : 5); broken++)
                CHECK_STATUS(gpu_ranks(p, o, cuts, 4, &r, &sum, broken), SANTA_ERR_RANKS_EXCHANGE);
    }
}

/* So that most of 400 keys are left to the sample. */
static santa_vattention_options few_tokens(int64_t heavy = 5) {
    santa_vattention_options v;
    memset(&v, 0, sizeof v);
    v.sink_tokens = v.local_tokens = 4;
    v.heavy_tokens = heavy;
    v.base_samples = 20;
    v.epsilon = 0.4;
    return v;
}

/* vAttention: the sets, budgets and audits of one GPU, wherever sinks, the local window, heavy
   tokens and the sample lie; the budgets of the CPU, but for rounding. */
static void ranks_budgets(void) {
    NEED_DEVICE();
    static const int64_t tokens[] = {20, SANTA_NONE, 4, 0, 1, 130}, counts[] = {2, 3, 1, 4, 7};
    static const santa_dtype types[] = {SANTA_BF16, SANTA_F32, SANTA_F16, SANTA_E4M3};
    test_rng r = test_rng_make(46);
    int64_t rows = 0, off = 0, budgets = 0, sampled = 0, complete = 0, cpu = 0;
    for (int turn = 0; turn < (test_quick ? 24 : 180); turn++) {
        const int kind = turn % 4;                   /* heavy: by scores, a copy, an array, none */
        ref_spec s = spec16(turn % 3 == 0 ? 6 : 4, 2, 1 + test_below(&r, 400) + (turn % 5 ? 300 : 0), 64,
                            types[turn / 4 % 4]);
        if (s.q_type == SANTA_E4M3) s.q_type = SANTA_BF16;
        vary(&s, turn);
        scale_some(&s, turn);
        s.gain = turn % 5 == 4 ? 4.0 : 0.7;
        s.stream = (uint64_t)turn;
        if (turn % 7 == 5) s.head_dim_v = 200;
        if (turn % 9 == 8) s.layout = REF_HND;
        const bool is_long = turn % 12 == 6 || turn % 12 == 9;         /* more than a CTA has */
        if (is_long) { s.len = 10000; s.head_dim = s.head_dim_v = 8; s.batch = s.q_len = 1; }
        problem p(s);
        const int64_t ranks = is_long ? 2 : counts[turn / 2 % 5], results = s.batch * s.q_len * s.heads;
        std::vector<santa_audit> audits[2];
        std::vector<int32_t> index((size_t)(results * 24));
        santa_options o = options(SANTA_VATTENTION, 0);
        santa_vattention_options &v = o.vattention;
        v.sink_tokens = tokens[turn % 6];
        v.local_tokens = tokens[(turn + turn / 6) % 6];
        v.heavy_tokens = kind == 3 ? SANTA_NONE : turn % 3 == 0 ? 0 : 1 + test_below(&r, 20);
        v.base_samples = turn % 5 == 1 ? 2 + test_below(&r, 30) : turn % 5 == 3 ? 200 : 0;
        v.epsilon = turn % 3 ? 0.15 : 0.4;
        v.delta = 0.1;
        v.guarantee = turn / 2 % 2 ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
        v.bound = turn / 4 % 2 ? SANTA_BOUND_HOEFFDING : SANTA_BOUND_CLT;
        if (turn % 10 == 9 && kind < 2) v.heavy_tokens = 3000;         /* more than a rank tells by name */
        if (kind == 2) {                             /* some of them no keys, some twice */
            v.heavy_tokens = 20;
            v.heavy_stride = 24;
            for (int32_t &x : index) x = (int32_t)test_below(&r, s.len + 40) - 20;
            v.heavy_index = index.data();
        }
        if (kind == 1) o.scores = SANTA_SCORES_PROXY;
        santa_audit none;
        v.audit = &none;                             /* on_gpu has its own */
        const int64_t to = kind == 1 ? 64 : 1;
        int64_t cuts[MOST_RANKS + 1];
        make_cuts(&r, turn / 4 % 4, s.len / to, ranks, cuts);
        for (int64_t i = 0; i < ranks; i++) cuts[i] *= to;
        cuts[ranks] = s.len;
        shard all;
        result one, over;
        santa_stats sum;
        const int64_t whole[2] = {0, s.len};
        cut(&p, whole, 0, &all);
        if (kind == 1) cut_copy(&all);
        {
            on_gpu g(all.a, o);
            free(all.copy);
            if (!g.run()) continue;
            one = g.get();
            audits[0] = g.audits();
        }
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, ranks, &over, &sum, -1, &audits[1]), SANTA_OK)) continue;
        CHECK_INT(sum.keys, one.stats.keys);
        const double v_max = largest_row_of_v(p);
        bool same = true;
        for (int64_t i = 0; i < results; i++) {
            const santa_audit &x = audits[1][(size_t)i], &y = audits[0][(size_t)i];
            const int64_t b = i / s.heads / s.q_len, t = i / s.heads % s.q_len, h = i % s.heads;
            CHECK_INT(x.num_keys, y.num_keys);
            rows++;
            if (x.num_fixed != y.num_fixed || x.num_base != y.num_base || x.needed != y.needed
                || x.budget != y.budget || x.exact != y.exact) {
                budgets++;
                same = false;
                const double far = fabs((double)(x.needed - y.needed));
                CHECK_MSG(x.num_fixed != y.num_fixed || far <= 2.0 + 0.02 * (double)y.num_residual,
                          "turn %d row %d: fixed %d base %d needs %d budget %d, want %d %d %d %d", turn,
                          (int)i, (int)x.num_fixed, (int)x.num_base, (int)x.needed, (int)x.budget,
                          (int)y.num_fixed, (int)y.num_base, (int)y.needed, (int)y.budget);
                continue;
            }
            CHECK_INT(x.num_residual, y.num_residual);
            sampled += !y.exact;
            complete += !y.exact && 2 * (y.budget - y.num_base) > y.num_residual - y.num_base;
            CHECK_NEAR(x.max_score, y.max_score, 1e-5, 1e-5);
            CHECK_NEAR(x.density, y.density, 1e-12, 0.0);
            CHECK_NEAR(x.denominator, y.denominator, 0.0, 1e-4);
            CHECK_NEAR(x.sigma, y.sigma, 1e-5, 1e-3);
            CHECK_NEAR(x.trace, y.trace, 1e-6 * v_max * v_max, 1e-2);
            CHECK_NEAR(x.norm, y.norm, 1e-4 * v_max, 1e-3);
            double difference = 0.0, norm = 0.0;
            for (int64_t c = 0; c < s.head_dim_v; c++) {
                const double z = ref_get(&one.out, b, t, h, c), d = ref_get(&over.out, b, t, h, c) - z;
                difference += d * d;
                norm += z * z;
            }
            const float lse = over.lse[(size_t)i], want = one.lse[(size_t)i];
            off += !(sqrt(difference) <= 2e-4 * sqrt(norm) + 1e-6 * v_max)
                   || !(lse == want || fabsf(lse - want) <= 1e-3f);
        }
        if (same) {
            CHECK_INT(sum.draws, one.stats.draws);
            CHECK_INT(sum.v_rows_head, one.stats.v_rows_head);
        }
        if (kind == 1) continue;
        santa_stats on_cpu;
        std::vector<santa_audit> host((size_t)results);
        v.audit = host.data();
        p.a.std_error = NULL;
        if (!ref_run(&p, &o, &on_cpu)) continue;
        for (int64_t i = 0; i < results; i++)
            cpu += audits[1][(size_t)i].num_fixed != host[(size_t)i].num_fixed
                   || audits[1][(size_t)i].budget != host[(size_t)i].budget;
    }
    printf("        %d rows: %d with other budgets, %d off, %d have not the CPU's budgets\n", (int)rows,
           (int)budgets, (int)off, (int)cpu);
    CHECK(off + budgets <= 4 + rows / 100 && cpu <= 8 + rows / 25);
    CHECK_MSG(sampled > rows / 4 && complete > 0, "%d of %d rows are sampled, %d by what is left out",
              (int)sampled, (int)rows, (int)complete);
}

/* A NaN of K, of a copy or of V in one shard is in all results. No keys. Exchanges that
   fail. */
static void ranks_budgets_nan(void) {
    NEED_DEVICE();
    static const int64_t cuts[] = {0, 192, 192, 384, 600};
    static const int32_t none[1] = {0};
    enum { IN_COPY, IN_ROW, IN_V, NO_KEYS, BROKEN, KINDS };
    for (int kind = 0; kind < KINDS; kind++)
        for (int full = 0; full < 2; full++) {
            problem p(spec16(4, 2, 600, 64, full ? SANTA_F32 : SANTA_BF16));
            santa_options o = options(SANTA_VATTENTION, 0);
            santa_stats sum;
            result r;
            o.scores = SANTA_SCORES_PROXY;
            o.vattention = few_tokens();
            o.vattention.guarantee = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
            if (kind == IN_COPY) ref_set(&p.a.k, 0, 200, 1, 3, (double)test_nan());
            if (kind == IN_ROW) ref_set(&p.a.k, 0, 594, 1, 3, (double)test_nan());
            if (kind == IN_V) ref_set(&p.a.v, 0, 300, 1, 3, (double)test_nan());
            if (kind == IN_V) o.vattention.base_samples = 600;         /* all keys are read */
            if (kind == NO_KEYS) p.a.seq_lens = none;
            if (!CHECK_STATUS(gpu_ranks(p, o, cuts, 4, &r, &sum), SANTA_OK)) continue;
            for (int h = 0; h < 4; h++)
                CHECK_INT(r.nans(0, 0, h), h < 2 || kind >= NO_KEYS ? 0 : kind == IN_V ? 1 : 65);
            if (kind == NO_KEYS) CHECK(sum.draws == 0 && r.lse[0] < -1e30f);
            for (int broken = 0; kind == BROKEN && broken < 9; broken++)
                CHECK_STATUS(gpu_ranks(p, o, cuts, 4, &r, &sum, broken), SANTA_ERR_RANKS_EXCHANGE);
        }
}

/* A NaN of one rank is in all results; a row of V that another rank's draws do not name is not
   read. */
static void ranks_nan(void) {
    NEED_DEVICE();
    static const int64_t cuts[] = {0, 130, 256, 400};
    static const santa_method methods[] = {SANTA_DENSE, SANTA_SYS, SANTA_PPS, SANTA_TOP_K, SANTA_TOP_P,
                                           SANTA_VATTENTION};
    for (int turn = 0; turn < 18; turn++) {
        problem p(spec16(4, 2, 400, 64));
        santa_options o = options(methods[turn % 6], 32);
        if (o.method == SANTA_VATTENTION) o.vattention = few_tokens();
        ref_set(&p.a.k, 0, 60 + 130 * (turn / 6), 1, 3, (double)test_nan());
        if (turn % 6 < 2) p.a.std_error = p.std_error;
        result r;
        santa_stats sum;
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, 3, &r, &sum), SANTA_OK)) continue;
        for (int h = 0; h < 4; h++) {
            CHECK_INT(r.nans(0, 0, h), h < 2 ? 0 : 65);
            if (p.a.std_error) CHECK_INT(test_is_nan(r.std_error[(size_t)h]), h >= 2);
        }
    }
    santa_stats whole, sum;
    result r;
    problem v(spec16(4, 2, 400, 64));                /* of V in one column, and in std_error */
    v.a.std_error = v.std_error;
    ref_set(&v.a.v, 0, 200, 1, 40, (double)test_nan());
    if (CHECK_STATUS(gpu_ranks(v, options(SANTA_DENSE, 0), cuts, 3, &r, &sum), SANTA_OK))
        for (int h = 0; h < 4; h++) {
            CHECK_INT(r.nans(0, 0, h), h < 2 ? 0 : 1);
            CHECK_INT(test_is_nan(r.std_error[(size_t)h]), h >= 2);
        }
    problem p(spec16(1, 1, 400, 64));
    for (int64_t j = 0; j < 400; j++)                /* a head on one key, all other rows of V are poison */
        for (int64_t c = 0; c < 64; c++) {
            ref_set(&p.a.k, 0, j, 0, c, j == 200 ? 8.0 * ref_get(&p.a.q, 0, 0, 0, c) : 0.0);
            if (j != 200) ref_set(&p.a.v, 0, j, 0, c, (double)test_nan());
        }
    for (santa_method m : {SANTA_SYS, SANTA_PPS, SANTA_TOP_K, SANTA_TOP_P}) {
        const santa_options o = options(m, m == SANTA_TOP_K ? 1 : 4);
        if (CHECK_STATUS(gpu_ranks(p, o, cuts, 3, &r, &sum), SANTA_OK) && ref_run(&p, &o, &whole)) {
            CHECK_INT(r.nans(0, 0, 0), 0);
            CHECK_INT(sum.v_rows_head, 1);
        }
    }
}

/* Two ranks that say the same, by copies on the stream. */
static int echo(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    ++*(int *)user;
    for (size_t i = 0; i < 2; i++)
        if (cudaMemcpyAsync((char *)all + i * bytes, mine, bytes, cudaMemcpyDeviceToDevice,
                            (cudaStream_t)stream) != cudaSuccess)
            return 1;
    return 0;
}

/* A captured call is a call. */
static void ranks_graphs(void) {
    NEED_DEVICE();
    static const int64_t cuts[] = {0, 640};
    static const int meetings[] = {2, 5, 3, 3, 6, 2, 6, 9, 12, 9, 8};
    static const santa_method methods[] = {SANTA_PROP, SANTA_PROP, SANTA_FLASH, SANTA_PPS,
                                           SANTA_PPS,  SANTA_TOP_K, SANTA_TOP_P,
                                           SANTA_VATTENTION, SANTA_VATTENTION, SANTA_VATTENTION,
                                           SANTA_VATTENTION};
    for (int kind = 0; kind < 11; kind++) {
        problem p(spec16(4, 2, 640, 64));
        santa_options o = options(methods[kind], 32);
        int exchanges = 0;
        shard x;
        if (kind == 0) p.a.std_error = p.std_error;
        const bool copied = kind == 1 || kind == 4 || kind == 9;
        if (copied) o.scores = SANTA_SCORES_PROXY;
        if (kind == 1 || kind == 4) o.proxy.rescue_above = 1e-6;
        if (kind >= 7) o.vattention = few_tokens(kind == 8 ? 0 : kind == 10 ? SANTA_NONE : 5);
        santa_clear_unused_options(&o);
        o.ranks.count = 2;
        o.ranks.all_gather = echo;
        o.ranks.user = &exchanges;
        cut(&p, cuts, 0, &x);
        x.a.std_error = p.a.std_error;
        if (copied) cut_copy(&x);
        on_gpu g(x.a, o);
        free(x.copy);
        if (!g.run()) break;
        const result direct = g.get();
        CHECK_INT(exchanges, meetings[kind]);
        captured graph([&](cudaStream_t stream) { return g.start(stream); });
        if (!graph.good) break;
        graph.replay(g);
        const result again = g.get();
        CHECK(again.same(direct) && (kind || again.std_error == direct.std_error));
    }
}

static void ranks_failures(void) {
    NEED_DEVICE();
    static const int64_t cuts[] = {0, 50, 200};
    for (int sampled = 0; sampled < 2; sampled++)
        for (int broken = 0; broken <= sampled; broken++) {
            problem p(spec16(2, 1, 200, 64));
            result r;
            santa_stats sum;
            CHECK_STATUS(
                gpu_ranks(p, options(sampled ? SANTA_PROP : SANTA_DENSE, 16), cuts, 2, &r, &sum, broken),
                SANTA_ERR_RANKS_EXCHANGE);
        }
}

/* Each byte of a message is written: none is the workspace's. */
static void ranks_messages(void) {
    NEED_DEVICE();
    static const santa_method methods[] = {SANTA_DENSE, SANTA_IID, SANTA_STRAT, SANTA_PROP, SANTA_FLASH,
                                           SANTA_TOP_K, SANTA_TOP_P, SANTA_VATTENTION, SANTA_PPS};
    static const int64_t cuts[] = {0, 64, 64, 192, 260};
    static const int fills[] = {0x00, 0xff};
    for (int turn = 0; turn < (test_quick ? 2 : 6) * 9 * 2; turn++) {
        const santa_method m = methods[turn % 9];
        const bool copied = turn / 9 % 2 != 0;
        if (copied && (!(santa_method_traits(m) & SANTA_PROXIES) || m == SANTA_TOP_P)) continue;
        ref_spec s = spec16(turn % 3 ? 6 : 4, 2, 260, 64);
        s.batch = s.q_len = 1 + turn / 18 % 2;
        s.ragged = turn / 18 % 2;
        s.causal = 1;
        s.head_dim_v = turn % 2 ? 63 : 64;
        if (turn % 5 == 4) {                         /* odd sizes */
            s.heads = 3;
            s.kv_heads = s.batch = s.q_len = 1;
            s.head_dim_v = 64;
        }
        problem p(s);
        santa_options o = options(m, turn % 4 == 3 ? 3000 : 20);
        if (m == SANTA_VATTENTION) {
            o.vattention = few_tokens();
            if (turn / 18 % 2) o.vattention.heavy_tokens = 2100;
            if (turn / 36 % 2) o.vattention.guarantee = SANTA_GUARANTEE_FULL;
        }
        if (copied) {
            o.scores = SANTA_SCORES_PROXY;
            if (m != SANTA_TOP_K && m != SANTA_VATTENTION && turn % 4) o.proxy.rescue_above = 1e-3;
        } else if (m == SANTA_DENSE || m == SANTA_IID || m == SANTA_STRAT || m == SANTA_PROP)
            p.a.std_error = turn % 4 == 3 || turn / 18 % 2 ? p.std_error : NULL;
        std::vector<std::vector<char>> said[2];
        result r;
        santa_stats sum;
        for (int i = 0; i < 2; i++) {
            workspace_of_ranks = fills[i];
            said_by_ranks = &said[i];
            CHECK_STATUS(gpu_ranks(p, o, cuts, 4, &r, &sum), SANTA_OK);
        }
        workspace_of_ranks = 0xff;
        said_by_ranks = nullptr;
        CHECK(!said[0].empty() && said[0].size() == said[1].size());
        for (size_t k = 0; k < said[0].size() && k < said[1].size(); k++) {
            /* what a list holds comes in any order; a number that nobody wrote is what it
               was */
            const std::vector<char> &a = said[0][k], &b = said[1][k];
            const size_t word = a.size() % 4 ? 1 : 4;
            int64_t open = 0;
            size_t first = 0;
            for (size_t c = a.size() / word; c-- > 0;) {
                bool is_open = true;
                for (size_t i = word * c; i < word * c + word; i++)
                    is_open &= (unsigned char)a[i] == 0x00 && (unsigned char)b[i] == 0xff;
                if (is_open) { open += (int64_t)word; first = word * c; }
            }
            CHECK_MSG(open == 0, "turn %d, %s, copy %d: message %d: %lld of %lld bytes are nobody's, "
                      "from %lld on", turn, santa_method_name(m), copied, (int)k, (long long)open,
                      (long long)said[0][k].size(), (long long)first);
        }
    }
}

static const test_case over_ranks[] = {
    {"ranks_same_rows", ranks_same_rows}, {"ranks_selected", ranks_selected},
    {"ranks_errors", ranks_errors}, {"ranks_copies", ranks_copies}, {"ranks_budgets", ranks_budgets},
    {"ranks_budgets_nan", ranks_budgets_nan},
    {"ranks_copies_nan", ranks_copies_nan}, {"ranks_nan", ranks_nan}, {"ranks_graphs", ranks_graphs},
    {"ranks_failures", ranks_failures}, {"ranks_messages", ranks_messages},
    {0, 0}
};
