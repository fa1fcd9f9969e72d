/* dense_below on a GPU: part of test_cuda.cu. */

/* Rows of fewer keys have the bits of the dense call, the others those of the call without
   it. */
static void below_same_bits(const ref_spec &s, const santa_options &asked, bool copied) {
    problem p(s);
    std::vector<char> copy;
    p.a.std_error = p.std_error;
    if (copied) {
        copy.resize(santa_proxy_size(&p.a));
        p.a.proxy = copy.data();
        if (!CHECK_STATUS(santa_proxy_encode(&p.a, 0, s.len, NULL), SANTA_OK)) return;
    }
    santa_options o = asked, exact = asked;
    if (copied) o.scores = SANTA_SCORES_PROXY;
    exact.method = SANTA_DENSE;
    santa_clear_unused_options(&exact);
    result sampled, dense;
    if (!run_on_gpu(p, o, &sampled) || !run_on_gpu(p, exact, &dense)) return;
    const int64_t limits[] = {2, s.len / 2, s.len + 1, SANTA_AUTO, 1, 66, s.len, INT64_MAX};
    for (int l = 0; l < (test_quick ? 4 : 8); l++) {
        const int64_t below = limits[l];
        o.dense_below = below;
        result got;
        santa_stats cpu;
        if (!run_on_gpu(p, o, &got) || !ref_run(&p, &o, &cpu)) return;
        const int64_t limit = below == SANTA_AUTO ? 16 * o.num_samples : below;
        int64_t wrong = 0, errors = 0;
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t i = 0; i < s.q_len; i++) {
                std::vector<double> scores((size_t)s.len);
                const int64_t n = ref_scores(&p, b, i, 0, scores.data());
                int64_t keys = 0;
                for (int64_t j = 0; j < n; j++) keys += scores[(size_t)j] > -REF_INF;
                const result &want = keys < limit ? dense : sampled;
                for (int64_t h = 0; h < s.heads; h++) {
                    const size_t row = (size_t)((b * s.q_len + i) * s.heads + h);
                    wrong += !got.same_row(b, i, h, want, b) || memcmp(&got.lse[row], &want.lse[row], 4);
                    errors += memcmp(&got.std_error[row], &want.std_error[row], 4) != 0;
                }
            }
        CHECK_MSG(wrong == 0 && errors == 0, "%s%s, below %lld: %lld rows, %lld errors are others",
                  santa_method_name(o.method), copied ? " from a copy" : "", (long long)limit,
                  (long long)wrong, (long long)errors);
        const santa_stats &x = got.stats;
        CHECK_INT(x.dense_rows, cpu.dense_rows);
        CHECK_INT(x.rows, cpu.rows);
        CHECK_INT(x.keys, cpu.keys);
        CHECK_INT(x.proxy_rows_read, cpu.proxy_rows_read);
        if (!copied) CHECK_INT(x.draws, cpu.draws);
        if (!copied) CHECK_INT(x.k_rows_read, cpu.k_rows_read);
        if (cpu.dense_rows == cpu.rows) {
            CHECK_INT(x.v_rows_read, cpu.v_rows_read);
            CHECK_INT(x.v_rows_head, cpu.v_rows_head);
            CHECK_INT(x.k_features_head, cpu.k_features_head);
            CHECK_INT(x.draws, 0);
        }
    }
}

static void dense_below(void) {
    NEED_DEVICE();
    static const santa_method methods[] = {SANTA_IID, SANTA_STRAT, SANTA_PROP, SANTA_FLASH, SANTA_PPS};
    int turn = 0;
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3, SANTA_F32})
        for (santa_method m : methods) {
            ref_spec s = spec16(8, 2, test_quick ? 200 : 3000, 64, type);
            if (type == SANTA_E4M3) s.q_type = SANTA_BF16;
            s.batch = 4;
            s.ragged = 1;
            s.q_len = turn % 2 ? 3 : 1;
            s.causal = turn % 2;
            s.page_size = turn % 3 == 2 ? 16 : 0;
            s.window = turn % 5 == 4 ? s.len / 3 : 0;
            s.sinks = turn++ % 4 == 3;
            santa_options o = options(m, 9, STASHES[turn % 3]);
            if (m == SANTA_FLASH) o.tile_size = 128;
            below_same_bits(s, o, false);
            if (m == SANTA_PROP || m == SANTA_PPS) below_same_bits(s, o, true);
        }
    const auto three_rows = [](int64_t len, int64_t window) {
        ref_spec wide = spec16(4, 2, len, 64);
        wide.q_len = 3;
        wide.window = window;
        return wide;
    };
    /* not causal, the first rows see more keys than the window has: of three rows 2, 1, 0
       more */
    for (int64_t below : {100, 101, 102, 103}) {
        problem x(three_rows(300, 100));
        santa_options y = options(SANTA_IID, 9);
        y.dense_below = below;
        totals t = {0, 0, 0};
        compare(x, y, &t);
        check_totals(t, "rows that see later keys");
    }
    /* so that dense's splits are one more: of 128 keys, of 512 and of 1024 */
    for (int64_t window : {256, 1024, 9216}) {
        const int64_t size = window == 256 ? 128 : window == 1024 ? 512 : 1024;
        problem x(three_rows(window + 2 * size + 1, window));
        totals t = {0, 0, 0};
        compare(x, options(SANTA_DENSE, 0), &t);
    }
    /* many query rows: dense's tiles, where no row can have as many keys */
    ref_spec s = spec16(4, 2, 100, 64);
    s.q_len = 40;
    s.causal = 1;
    problem p(s);
    santa_options o = options(SANTA_PROP, 16);
    o.dense_below = SANTA_AUTO;
    result got, dense;
    santa_stats cpu;
    if (!run_on_gpu(p, o, &got) || !run_on_gpu(p, options(SANTA_DENSE, 0), &dense)
        || !ref_run(&p, &o, &cpu))
        return;
    CHECK(got.same(dense));
    CHECK_INT(got.stats.dense_rows, cpu.dense_rows);
    CHECK_INT(got.stats.v_rows_head, cpu.v_rows_head);
}
