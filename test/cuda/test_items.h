/* Ranges of items on the GPU: items in the range have the whole call's bits, others are not
   touched. For test_cuda.cu. */

/* All that a call writes. */
struct item_results {
    result r;
    std::vector<santa_audit> audit;
    std::vector<char> mask, sparse;                  /* sample-attention's, with its audits */
    std::vector<float> row_mass;
};

/* before: what was there. */
static bool run_items(const santa_attention &a, santa_options o, item_results *before,
                      item_results *after) {
    const size_t heads = (size_t)(a.q.shape[0] * a.q.shape[2]), rows = heads * (size_t)a.q.shape[1];
    int64_t q_blocks = 0, k_blocks = 0;
    const bool sparse = o.method == SANTA_SAMPLE_ATTENTION;
    if (sparse) CHECK_STATUS(santa_mask_shape(&a, &o, &q_blocks, &k_blocks), SANTA_OK);
    block mask(std::max<size_t>(heads * (size_t)(q_blocks * k_blocks), 1)),
          audit(heads * sizeof(santa_sample_audit)), mass(4 * rows);
    if (sparse) {
        o.sample_attention.mask_out = (uint8_t *)mask.data();
        o.sample_attention.audit = (santa_sample_audit *)audit.data();
        o.sample_attention.row_mass = (float *)mass.data();
    }
    on_gpu g(a, o);
    const auto read = [&](item_results *x) {
        x->r = g.get();
        if (o.vattention.audit) x->audit = g.audits();
        x->mask.resize(heads * (size_t)(q_blocks * k_blocks));
        x->sparse.resize(heads * sizeof(santa_sample_audit));
        x->row_mass.resize(rows);
        mask.get(x->mask.data(), x->mask.size());
        audit.get(x->sparse.data(), x->sparse.size());
        mass.get(x->row_mass.data(), 4 * rows);
    };
    read(before);
    if (!g.run() || !CHECK(mask.intact() && audit.intact() && mass.intact())) return false;
    read(after);
    return true;
}

/* Whether two calls left the same of an item. */
static bool same_item(const item_results &x, const item_results &y, int64_t b, int64_t kv, int64_t group) {
    const int64_t q_len = x.r.out.shape[1], heads = x.r.out.shape[2];
    bool same = true;
    const auto alike = [&](const auto &v, const auto &w, int64_t count, int64_t at) {
        const size_t each = v.size() / (size_t)count * sizeof v[0];
        if (each) same &= !memcmp((const char *)v.data() + (size_t)at * each,
                                  (const char *)w.data() + (size_t)at * each, each);
    };
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        const int64_t head = b * heads + h, all = x.r.out.shape[0] * heads;
        alike(x.mask, y.mask, all, head);
        alike(x.sparse, y.sparse, all, head);
        for (int64_t i = 0; i < q_len; i++) {
            const int64_t row = (b * q_len + i) * heads + h;
            same &= x.r.same_row(b, i, h, y.r, b);
            alike(x.r.lse, y.r.lse, all * q_len, row);
            alike(x.r.std_error, y.r.std_error, all * q_len, row);
            alike(x.audit, y.audit, all * q_len, row);
            alike(x.row_mass, y.row_mass, all * q_len, row);
        }
    }
    return same;
}

enum { STATS_COUNTS = 18 };
static_assert(offsetof(santa_stats, expected_variance) == STATS_COUNTS * sizeof(int64_t), "whole numbers");

/* The call in three ranges, some of which may be empty. */
static bool check_ranges(const santa_attention &a, santa_options o, test_rng *r, const char *what) {
    const int64_t kv_heads = a.k.shape[2], batch = a.q.shape[0], group = a.q.shape[2] / kv_heads,
                  items = batch * kv_heads;
    int64_t cut[4] = {0, test_below(r, items + 1), test_below(r, items + 1), items};
    if (cut[1] > cut[2]) std::swap(cut[1], cut[2]);
    item_results whole, before, part;
    int64_t sum[STATS_COUNTS] = {}, counts[STATS_COUNTS];
    if (!run_items(a, o, &before, &whole)) return CHECK_MSG(0, "in %s", what) != 0;
    for (int n = 0; n < 3; n++) {
        o.item_begin = cut[n];
        o.item_end   = cut[n + 1];
        if (o.item_end == 0) continue;               /* that is all */
        if (!run_items(a, o, &before, &part)) return CHECK_MSG(0, "in %s", what) != 0;
        for (int64_t i = 0; i < items; i++) {
            const bool mine = i >= cut[n] && i < cut[n + 1];
            if (!CHECK_MSG(same_item(part, mine ? whole : before, i / kv_heads, i % kv_heads, group),
                           "%s: item %lld of %lld is %s by range %lld to %lld", what, (long long)i,
                           (long long)items, mine ? "changed" : "touched", (long long)cut[n],
                           (long long)cut[n + 1]))
                return false;
        }
        memcpy(counts, &part.r.stats, sizeof counts);
        for (int k = 0; k < STATS_COUNTS; k++) sum[k] += counts[k];
    }
    memcpy(counts, &whole.r.stats, sizeof counts);
    for (int k = 0; k < STATS_COUNTS; k++)
        if (!CHECK_MSG(sum[k] == counts[k], "%s: stats %d add up to %lld, not %lld", what, k,
                       (long long)sum[k], (long long)counts[k]))
            return false;
    return true;
}

/* What every method reads, and each of its own. */
static void items_of_methods(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(81);
    const int turns = test_quick ? 3 : 12;
    static const uint64_t numbers[] = {5, 1u << 20, 9};
    for (int turn = 0; turn < turns; turn++)
        for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
            const santa_method method = (santa_method)m;
            ref_spec s = spec16(turn % 2 ? 6 : 12, 3, 150 + test_below(&r, 100), 64,
                                turn % 4 == 2 ? SANTA_F32 : SANTA_BF16);
            s.batch = 3;
            s.q_len = 1 + turn % 3;
            s.ragged = s.causal = s.sinks = 1;
            s.alibi = turn % 4 == 3;
            s.page_size = turn % 2 ? 16 : 0;
            s.layout = turn % 3 == 1 ? REF_HND : REF_NHD;
            if (turn % 4 == 1) s.k_type = s.v_type = SANTA_E4M3;
            s.row_scales = turn % 5 == 4;
            with_copy p(s);
            const bool biased = santa_method_traits(method) & SANTA_BIASED;
            std::vector<santa_audit> audit((size_t)(s.batch * s.q_len * s.heads));
            p.a.std_error = biased || turn % 2 ? NULL : p.std_error;
            santa_options o = options(method, 24, STASHES[turn % 3]);
            if (turn % 3 == 0) o.seeds = numbers; else if (turn % 3 == 1) o.request_ids = numbers;
            if (santa_method_traits(method) & SANTA_COMBS) o.num_combs = turn % 2 ? 4 : 1;
            if (santa_method_traits(method) & SANTA_DRAWS && turn % 3 == 2) o.dense_below = s.len - 20;
            if (method == SANTA_VATTENTION) o.vattention = few_tokens();
            o.vattention.audit = method == SANTA_VATTENTION ? audit.data() : NULL;
            if (method != SANTA_SAMPLE_ATTENTION)   /* whose blocks: see items_of_prefill */
                check_ranges(p.a, o, &r, santa_method_name(method));
            if (!(santa_method_traits(method) & SANTA_PROXIES)) continue;
            o.scores = SANTA_SCORES_PROXY;
            o.num_combs = 0;
            o.dense_below = 0;
            santa_clear_unused_options(&o);
            check_ranges(p.a, o, &r, "from a copy");
        }
}

/* What has arrays of its own: lists, heavy tokens, slots, classifiers; first tokens. */
static void items_of_arrays(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(82);
    for (int turn = 0; turn < (test_quick ? 4 : 16); turn++) {
        ref_spec s = spec16(6, 3, 200, 64);
        s.batch = 3;
        s.q_len = 1 + turn % 2;
        s.page_size = turn % 4 < 2 ? 16 : 0;
        problem p(s);
        key_lists x = lists_build(&p, 100, turn % 2, 1, &r);
        check_ranges(p.a, options(SANTA_DENSE, 0), &r, "lists");
        lists_free(&x);
        problem first(s);
        first.a.window = first.spec.window = 40;
        first.a.first_tokens = 5;
        check_ranges(first.a, options(SANTA_DENSE, 0), &r, "first tokens");
        std::vector<int32_t> heavy((size_t)(s.batch * s.q_len * s.heads * 9));
        for (int32_t &i : heavy) i = (int32_t)test_below(&r, s.len);
        problem indexed(s);
        santa_options o = options(SANTA_VATTENTION, 0);
        o.vattention = few_tokens();
        o.vattention.heavy_tokens = 7;
        o.vattention.heavy_index = heavy.data();
        o.vattention.heavy_stride = 9;
        if (turn % 2) o.vattention.guarantee = SANTA_GUARANTEE_FULL;
        check_ranges(indexed.a, o, &r, "heavy_index");
        problem slots(s);
        slots.replicate(3);                          /* in other slots */
        check_ranges(slots.a, options(SANTA_SAAP, 20), &r, "slots");
        shape as = shape_make(6, 3, 150, 64, 20);
        as.s.batch = 2;
        as.hidden = turn % 2 ? 24 : 0;
        routed_problem y(as);
        if (!assign_all(&y)) return;
        o = options(SANTA_SAAP, 20);
        o.saap.sink_tokens = o.saap.local_tokens = 4;
        o.saap.measure_mass = 1;
        check_ranges(y.p.a, o, &r, "a router");
    }
}

/* Few heads and many are joined by other kernels, where they have 9 to 32 splits; all have some
   of 1. */
static void items_joined(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(84);
    for (int turn = 0; turn < (test_quick ? 2 : 8); turn++) {
        ref_spec s = spec16(4, 1, 200, turn % 4 == 3 ? 160 : 64);
        s.batch = turn % 2 ? 140 : 40;
        s.sinks = turn % 2;
        problem p(s);
        key_lists x = lists_build(&p, turn % 2 ? 1100 : 4000, 0, 1, &r);   /* by 128 */
        check_ranges(p.a, options(SANTA_DENSE, 0), &r, "many heads");
        lists_free(&x);
    }
    ref_spec s = spec16(4, 1, on_emulator ? 4700 : 20000, 64);
    s.batch = 40;
    s.ragged = 1;
    problem p(s);
    check_ranges(p.a, options(SANTA_DENSE, 0), &r, "many heads, dense");
}

/* k_dense joins short rows' splits itself where few sequences are called for; rows below
   dense_below, too. */
static void items_of_short_rows(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(85);
    static const int64_t lens[] = {300, 1025, 2048, 120, 513, 4096, 700, 1990};
    for (int turn = 0; turn < (on_emulator ? 2 : test_quick ? 8 : 24); turn++) {
        const int64_t len = on_emulator ? 120 + 400 * turn : lens[turn % 8];
        ref_spec s = spec16(turn % 3 ? 4 : 7, 1, len, turn % 4 == 3 ? 72 : 128,
                            turn % 5 == 1 ? SANTA_F16 : SANTA_BF16);
        if (turn % 5 > 2) s.q_type = SANTA_F32;
        s.batch = len < 513 ? 150 : 40;
        s.q_len = 1 + turn % 2;
        s.causal = 1;
        s.ragged = turn % 4 != 0;
        s.sinks = turn % 3 == 1;
        s.soft_cap = turn % 6 == 5 ? 5.0f : 0.0f;
        s.window = turn % 4 == 2 ? len / 2 : 0;
        problem p(s);
        check_ranges(p.a, options(SANTA_DENSE, 0), &r, "short rows");
        santa_options o = options(SANTA_PROP, 16);
        o.dense_below = len / 2;
        check_ranges(p.a, o, &r, "short rows, others drawn");
    }
}

/* Draws from a copy: of many heads by CTAs of 4 warps, of few by CTAs of 8; rescued heads, and
   those done again by exact attention, too. */
static void items_of_many_heads(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(86);
    for (int turn = 0; turn < (on_emulator ? 4 : test_quick ? 6 : 12); turn++) {
        /* more keys than a warp's list has room for */
        const bool many = turn % 6 == 3 || turn % 6 == 4;
        const int64_t few = many ? 1300 : 150;
        ref_spec s = spec16(turn % 2 ? 7 : 12, turn % 2 ? 1 : 3, on_emulator ? few : 300 + 700 * (turn % 7),
                            turn % 5 == 4 ? 72 : 128, turn % 3 == 1 ? SANTA_F16 : SANTA_BF16);
        s.batch = turn % 2 ? 41 : 24;
        s.q_len = on_emulator ? 1 : 1 + turn % 2;
        s.causal = s.sinks = 1;
        s.ragged = turn % 3 != 2;
        s.gain = turn % 4 == 1 ? 4.0 : turn == 9 ? 1e-6 : 1.0;      /* all scores alike */
        s.page_size = turn % 6 == 5 ? 16 : 0;
        with_copy p(s, turn % 4 == 3 ? 2 : 4);
        santa_options o = proxy_options(turn % 3 == 2 ? 200 : turn % 3 ? 100 : 128);
        o.stash = turn % 2 ? SANTA_STASH_U8 : SANTA_STASH_F32;
        if (turn % 2) { o.proxy.rescue_above = 0.02; o.proxy.rescue_keys = turn % 4 == 1 ? 20 : 0; }
        if (many) { o.proxy.rescue_above = 1e-30; o.proxy.rescue_keys = 1200; }
        if (turn % 4 > 1) o.proxy.exact_above = turn % 8 > 4 ? 1e-9 : 0.01;
        check_ranges(p.a, o, &r, "many heads");
    }
}

static void items_of_prefill(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(83);
    for (int turn = 0; turn < (test_quick ? 4 : 16); turn++) {
        ref_spec s = spec16(6, 3, 200, 64, turn % 2 ? SANTA_F16 : SANTA_BF16);
        s.batch = 2;
        s.q_len = 70;
        s.causal = 1;
        s.page_size = turn % 4 < 2 ? 16 : 0;
        s.ragged = turn % 4 == 3;
        problem p(s);
        check_ranges(p.a, options(SANTA_DENSE, 0), &r, "prefill");
        santa_options o = options(SANTA_SAMPLE_ATTENTION, 0);
        o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = 0.6;
        o.sample_attention.dense_above = turn % 2 ? SANTA_NONE : 0.5;
        check_ranges(p.a, o, &r, "sample-attention");
    }
}

/* Over ranks. */
static void items_of_ranks(void) {
    NEED_DEVICE();
    static const int64_t cuts[] = {0, 64, 64, 250};
    for (int turn = 0; turn < (test_quick ? 8 : 16); turn++) {
        ref_spec s = spec16(6, 3, 250, 64);
        s.batch = 3;
        problem p(s);
        static const santa_method methods[] = {SANTA_DENSE, SANTA_PROP, SANTA_PPS, SANTA_TOP_K, SANTA_TOP_P,
                                               SANTA_VATTENTION, SANTA_FLASH, SANTA_PROP};
        santa_options o = options(methods[turn % 8], 24);
        std::vector<santa_audit> audit((size_t)(s.batch * s.heads)), one, all;
        const bool adapts = o.method == SANTA_VATTENTION;
        if (adapts) { o.vattention = few_tokens(); o.vattention.audit = audit.data(); }
        if (turn % 8 == 7) o.scores = SANTA_SCORES_PROXY;
        else if (turn % 8 < 2) p.a.std_error = p.std_error;
        result whole, part;
        santa_stats sum;
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, 3, &whole, &sum, -1, adapts ? &all : nullptr), SANTA_OK))
            continue;
        o.item_begin = 2;
        o.item_end   = turn % 2 ? 3 : 8;
        if (!CHECK_STATUS(gpu_ranks(p, o, cuts, 3, &part, &sum, -1, adapts ? &one : nullptr), SANTA_OK))
            continue;
        result before;
        before.out = p.a.out;
        const float untouched[] = {part.lse[0]};
        for (int64_t x = 0; x < s.batch * s.heads; x++) {
            const int64_t b = x / s.heads, h = x % s.heads, item = b * 3 + h / 2;
            const bool mine = item >= o.item_begin && item < o.item_end;
            bool same = part.same_row(b, 0, h, mine ? whole : before, b);
            same &= !memcmp(&part.lse[(size_t)x], mine ? &whole.lse[(size_t)x] : untouched, 4);
            if (mine && p.a.std_error)
                same &= !memcmp(&part.std_error[(size_t)x], &whole.std_error[(size_t)x], 4);
            if (mine && adapts) same &= !memcmp(&one[(size_t)x], &all[(size_t)x], sizeof one[0]);
            CHECK_MSG(same, "turn %d: item %d over ranks", turn, (int)item);
        }
        CHECK(untouched[0] != whole.lse[0]);
    }
}

/* Means of stats are those of the range's rows, whatever parts it is done in. */
static void items_means(void) {
    NEED_DEVICE();
    ref_spec s = spec16(4, 2, 300, 64);
    s.batch = 3;
    s.q_len = 2;
    for (int routed = 0; routed < 2; routed++) {
        with_copy p(s);
        santa_options o = options(routed ? SANTA_SAAP : SANTA_PROP, 24);
        if (routed) o.saap.measure_mass = 1;
        else o.scores = SANTA_SCORES_PROXY;
        double sum[3] = {}, top = 0.0;
        item_results before, x;
        for (int64_t i = 1; i < 6; i++) {            /* the last one is all of them but the ends */
            o.item_begin = i == 5 ? 1 : i;
            o.item_end   = i == 5 ? 5 : i + 1;
            if (!run_items(p.a, o, &before, &x)) return;
            const santa_stats &y = x.r.stats;
            const double mean[3] = {routed ? y.covered_mass : y.expected_variance,
                                    routed ? y.imbalance : y.found_variance,
                                    routed ? y.largest_bucket : 0.0};
            for (int k = 0; k < 3; k++) {
                if (i < 5) sum[k] += mean[k] / 4.0;
                else CHECK_NEAR(mean[k], sum[k], 2e-6, 1e-5);
            }
            if (i < 5) top = std::max(top, y.found_variance_max);
            else CHECK(y.found_variance_max == top);
        }
        CHECK(sum[0] > 0.0);
        o.item_begin = o.item_end = 3;               /* none */
        if (!run_items(p.a, o, &before, &x)) return;
        for (int64_t i = 0; i < 6; i++) CHECK(same_item(x, before, i / 2, i % 2, 2));
        CHECK(x.r.stats.rows == 0 && x.r.stats.keys == 0);
    }
}

static const test_case item_cases[] = {
    {"items_of_methods", items_of_methods}, {"items_of_arrays", items_of_arrays},
    {"items_joined", items_joined}, {"items_of_short_rows", items_of_short_rows},
    {"items_of_many_heads", items_of_many_heads},
    {"items_of_prefill", items_of_prefill}, {"items_of_ranks", items_of_ranks},
    {"items_means", items_means},
    {0, 0}
};
