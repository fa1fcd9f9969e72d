/* A few query rows, which share a pass over K, of dense over V, too, on the GPU: against the
   CPU; what a row does not see must not change it. The same of a copy of K. A part of
   test_cuda.cu. */

static ref_spec rows_spec(int64_t group, int64_t q_len, int64_t len, int64_t d, santa_dtype type) {
    ref_spec s = spec16(2 * group, 2, len, d, type);
    if (type == SANTA_E4M3 || type == SANTA_E5M2) s.q_type = SANTA_BF16;
    s.q_len  = q_len;
    s.causal = 1;
    return s;
}

/* As many rows as one pass has, fewer and more, of groups that fill its slots or not. */
static void rows_match_cpu(void) {
    NEED_DEVICE();
    static const int64_t groups[] = {4, 1, 8, 3, 6, 16};
    int number = 0;
    totals t = {0, 0, 0};
    for (santa_dtype type : {SANTA_BF16, SANTA_F16, SANTA_E4M3, SANTA_E5M2})
        for (int64_t d : {128, 96, 256, 64})
            for (int64_t group : groups)
                for (int64_t q_len : {2, 4, 7, 19}) {
                    if (number++ % (on_emulator ? 7 : test_quick ? 3 : 1)) continue;
                    ref_spec s = rows_spec(group, q_len, number % 5 ? 150 : 700, d, type);
                    s.page_size = number % 3 == 0 ? 16 : number % 11 == 0 ? 12 : 0;
                    s.window    = number % 4 == 1 ? 100 : 0;
                    s.causal    = number % 6 != 5;
                    s.batch     = number % 2 ? 3 : 1;
                    s.ragged    = s.batch > 1;      /* one is empty, one may be shorter than q_len */
                    s.soft_cap  = number % 7 == 2 || number % 7 == 3 ? 2.0f : 0.0f;
                    s.alibi     = number % 7 == 3 || number % 7 == 4;
                    problem p(s);
                    for (santa_method m : {SANTA_DENSE, SANTA_PROP, SANTA_PPS, SANTA_TOP_K})
                        compare(p, options(m, 32), &t);
                }
    check_totals(t, "rows");
}

/* Lengths around those from which a row has other splits, with a row on either side. */
static void rows_of_any_length(void) {
    NEED_DEVICE();
    totals none = {0, 0, 0};
    for (santa_dtype type : {SANTA_BF16, SANTA_E4M3})
        for (int64_t len : {3, 64, 66, 513, 1025, 2049, 8193}) {
            if (on_emulator && len > 2000) continue;
            ref_spec s = rows_spec(4, 4, len, 128, type);
            problem p(s);
            compare(p, options(SANTA_DENSE, 0), &none);
            s.window = len / 2 + 1;
            problem windowed(s);
            compare(windowed, options(SANTA_DENSE, 0), &none);
        }
}

/* What is not finite, or a page that is gone, shows in the rows that see it and in no other. */
static void rows_nan(void) {
    NEED_DEVICE();
    enum { OF_K, OF_V, INFINITE, PAGE, KINDS };
    for (santa_dtype type : {SANTA_BF16, SANTA_F16, SANTA_E4M3})
        for (int64_t d : {128, 256})
            for (int64_t window : {0, 130})
                for (int what = 0; what < KINDS; what++)
                    for (int64_t from_end : {1, 2, 5}) {
                        if (type == SANTA_E4M3 && (what == INFINITE || d == 256)) continue;
                        ref_spec s = rows_spec(4, 7, what == PAGE ? 192 + from_end : 230, d, type);
                        s.page_size = what == PAGE ? 16 : 0;
                        s.window    = window;
                        problem clean(s), bad(s);
                        /* at the end later rows see it; at a window's begin earlier ones */
                        const int64_t key = window && what != PAGE ? s.len - window - from_end + 1
                                                                   : s.len - from_end;
                        if (what == OF_K) ref_set(&bad.a.k, 0, key, 0, 5, (double)test_nan());
                        if (what == OF_V) ref_set(&bad.a.v, 0, key, 0, 5, (double)test_nan());
                        if (what == INFINITE) ref_set(&bad.a.v, 0, key, 0, 5, -INFINITY);
                        if (what == PAGE) bad.block_table[key / 16] = from_end & 1 ? -1 : INT32_MAX;
                        for (santa_method m : {SANTA_DENSE, SANTA_PROP}) {
                            result x, y;
                            const santa_options o = options(m, 64);
                            if (m == SANTA_PROP && (what == OF_V || what == INFINITE)) continue;
                            if (!run_on_gpu(clean, o, &x) || !run_on_gpu(bad, o, &y)) return;
                            int64_t wrong = 0;
                            for (int64_t row = 0; row < s.q_len; row++)
                                for (int64_t h = 0; h < s.heads; h++) {
                                    const int64_t at = s.len - s.q_len + row,
                                                  first = what == PAGE ? key / 16 * 16 : key;
                                    const bool sees = first <= at && (!window || key > at - window);
                                    if (!sees || (h >= s.heads / 2 && what != PAGE)) {
                                        wrong += !y.same_row(0, row, h, x, 0);
                                        continue;
                                    }
                                    const double got = ref_get(&y.out, 0, row, h, 5);
                                    if (what == INFINITE) wrong += got - got == 0.0;
                                    else wrong += !test_is_nan((float)got);
                                    if (what == OF_K || what == PAGE)
                                        wrong += y.nans(0, row, h) != s.head_dim_v + 1;
                                    else wrong += test_is_nan((float)ref_get(&y.out, 0, row, h, 6));
                                }
                            CHECK_MSG(wrong == 0, "%s, type %d, head_dim %lld, window %lld, case %d, %lld "
                                      "from the end: %lld heads are wrong", santa_method_name(m),
                                      (int)type, (long long)d, (long long)window, what,
                                      (long long)from_end, (long long)wrong);
                        }
                    }
}

/* A row whose q is 2^34 times as large changes no other row by a bit, of 40 rows by prefill,
   too. */
static void rows_apart(void) {
    NEED_DEVICE();
    int number = 0;
    for (santa_dtype type : {SANTA_E4M3, SANTA_E5M2, SANTA_BF16})
        for (int64_t d : {128, 64, 256})
            for (int64_t group : {4, 1, 3, 8}) {
                const bool many = number % 3 == 1;
                if (number++ % (on_emulator ? 5 : 1)) continue;
                ref_spec s = rows_spec(group, many ? 40 : 5, 200, d, type);
                s.q_type    = SANTA_BF16;
                s.page_size = number % 3 ? 0 : 16;
                problem p(s), other(s);
                for (int64_t h = 0; h < s.heads; h++)
                    for (int64_t f = 0; f < d; f++)
                        ref_set(&other.a.q, 0, 1, h, f, 17179869184.0 * ref_get(&p.a.q, 0, 1, h, f));
                for (santa_method m : {SANTA_PROP, SANTA_DENSE, SANTA_PPS, SANTA_TOP_K}) {
                    result x, y;
                    const santa_options o = options(m, m == SANTA_DENSE ? 0 : 40);
                    if (many && m != SANTA_DENSE) continue;
                    if (!run_on_gpu(p, o, &x) || !run_on_gpu(other, o, &y)) return;
                    int64_t changed = 0;
                    for (int64_t row = 0; row < s.q_len; row++)
                        for (int64_t h = 0; h < s.heads; h++)
                            changed += y.same_row(0, row, h, x, 0) == (row == 1);
                    CHECK_MSG(changed == 0, "%s, type %d, head_dim %lld, groups of %lld: %lld heads",
                              santa_method_name(m), (int)type, (long long)d, (long long)group,
                              (long long)changed);
                }
            }
}

/* The first rows of a problem, by its own K, V and copy, which has more keys. */
struct with_rows {
    problem p;
    with_rows(const problem &more, int64_t q_len, int64_t len) : p(spec_of(more, q_len)) {
        const santa_attention &from = more.a;
        for (int64_t row = 0; row < q_len; row++)
            for (int64_t h = 0; h < p.spec.heads; h++)
                for (int64_t f = 0; f < p.spec.head_dim; f++)
                    ref_set(&p.a.q, 0, row, h, f, ref_get(&from.q, 0, row, h, f));
        p.a.k           = from.k;
        p.a.v           = from.v;
        p.a.block_table = from.block_table;
        p.a.max_pages   = from.max_pages;
        p.a.proxy       = from.proxy;
        p.a.proxy_bits  = from.proxy_bits;
        lens            = (int32_t)len;
        p.a.seq_lens    = &lens;
    }
private:
    int32_t lens;
    static ref_spec spec_of(const problem &more, int64_t q_len) {
        ref_spec s = more.spec;
        s.q_len = q_len;
        return s;
    }
};

/* Rows that share a pass over a copy of K: against the CPU, in teams that fill its slots or
   not. */
static void rows_of_a_copy(void) {
    NEED_DEVICE();
    static const int64_t groups[] = {4, 1, 8, 3, 5, 2, 7, 16};
    int number = 0;
    totals t = {0, 0, 0};
    for (int64_t d : {128, 96, 256, 64})
        for (int64_t group : groups)
            for (int64_t q_len : {2, 4, 5, 19}) {
                if (number++ % (on_emulator ? 9 : test_quick ? 3 : 1)) continue;
                if (on_emulator && q_len > 5) continue;
                /* 64 keys from their ends rows are on either side of a block's end */
                ref_spec s = rows_spec(group, q_len, number % 5 ? 322 : 706, d, SANTA_BF16);
                s.page_size = number % 3 == 0 ? 16 : number % 11 == 0 ? 48 : 0;
                s.window    = number % 4 == 1 ? 170 : 0;
                s.causal    = number % 6 != 5;
                s.batch     = number % 2 ? 3 : 1;
                s.ragged    = s.batch > 1;
                s.soft_cap  = number % 7 == 2 || number % 7 == 3 ? 2.0f : 0.0f;
                s.alibi     = number % 7 == 3 || number % 7 == 4;
                with_copy p(s, number % 4 == 3 ? 2 : 4);
                for (santa_method m : {SANTA_PROP, SANTA_PPS, SANTA_TOP_K}) {
                    santa_options o = options(m, 32, STASHES[number % 3]);
                    o.scores = SANTA_SCORES_PROXY;
                    if (m != SANTA_TOP_K) {
                        o.proxy.rescue_above = o.proxy.exact_above = SANTA_NONE;
                        if (number % 5 == 2) o.dense_below = s.len - 1;        /* of some rows */
                    }
                    compare_copies(p, o, &t, "rows");
                }
            }
    check_totals(t, "rows of a copy");
}

/* A call of 1 or 5 rows, and of 4 more behind these, so that the last of the first ones is
   alone in its pass or has company: it has the same bits. So it does beside what only the
   others see, which shows in them: a NaN of K, a page that is gone, which changes no bit
   elsewhere. So of scores of K itself, and of what chooses keys by them. */
static void rows_of_any_pass(void) {
    NEED_DEVICE();
    enum { CLEAN, OF_K, PAGE, KINDS };
    static const struct { santa_method method; santa_scores_method scores; } ways[] = {
        {SANTA_PROP, SANTA_SCORES_PROXY},  {SANTA_PPS, SANTA_SCORES_PROXY},
        {SANTA_TOP_K, SANTA_SCORES_PROXY}, {SANTA_TOP_P, SANTA_SCORES_PROXY},
        {SANTA_TOP_K, SANTA_SCORES_EXACT}, {SANTA_TOP_P, SANTA_SCORES_EXACT},
        {SANTA_VATTENTION, SANTA_SCORES_PROXY}, {SANTA_VATTENTION, SANTA_SCORES_EXACT}};
    int number = 0;
    for (int64_t group : {4, 1, 2, 8, 3})
        for (const auto &way : ways)
            for (int has_window = 0; has_window < 2; has_window++)
                for (int what = 0; what < KINDS; what++)
                    for (int64_t q_len : {1, 5}) {
                        number++;
                        if (number % (on_emulator ? 11 : test_quick ? 3 : 1)) continue;
                        /* blocks of keys end at 320, at 316 or 319 where there are pages */
                        const int64_t page = what == PAGE || number % 2 ? 16 : 0, n = 318 + number % 3;
                        /* row 1's begins with a page: row 0 alone sees the one before */
                        const int64_t window = has_window ? n - q_len + 1 - 159 : 0;
                        ref_spec s = rows_spec(group, q_len + 4, n + 4, 128, SANTA_BF16);
                        s.page_size = page;
                        s.window    = window;
                        with_copy more(s, number % 5 ? 4 : 2);
                        const santa_method m = way.method;
                        santa_options o = options(m, number % 4 ? 40 : 300, STASHES[number % 3]);
                        o.scores = way.scores;
                        o.top_p  = 0.5;
                        o.proxy.local_tokens = number % 3 ? SANTA_NONE : 0;
                        o.proxy.sink_tokens  = window ? SANTA_NONE : 0;
                        o.proxy.rescue_above = number % 4 == 1 ? 1e-3 : 0.0;
                        o.vattention.sink_tokens  = number % 3 ? 20 : SANTA_NONE;
                        o.vattention.local_tokens = number % 2 ? 30 : SANTA_NONE;
                        o.vattention.heavy_tokens = what || number % 7 ? 25 : SANTA_NONE;
                        o.vattention.base_samples = 20;
                        o.vattention.epsilon      = number % 5 ? 0.3 : 0.1;
                        if (number % 4 == 2) o.vattention.guarantee = SANTA_GUARANTEE_FULL;
                        santa_clear_unused_options(&o);
                        /* the others see it: in front of a window, or behind all keys */
                        const int64_t key = window && (what == PAGE || number % 2) ? 159 : n + 1;
                        int64_t i0, i1;
                        ref_place(&more, 0, key, &i0, &i1);
                        if (what == OF_K) ref_set(&more.a.k, i0, i1, 0, 5, (double)test_nan());
                        more.encode();
                        with_rows few(more, q_len, n);
                        result x, y, clean;
                        if (what == PAGE && !run_on_gpu(more, o, &clean)) return;
                        if (what == PAGE) more.block_table[key / page] = -1;
                        if (!run_on_gpu(few.p, o, &x) || !run_on_gpu(more, o, &y)) return;
                        int64_t changed = 0, wrong = 0;
                        for (int64_t row = 0; row < q_len + 4; row++)
                            for (int64_t h = 0; h < s.heads; h++) {
                                const int64_t at = n - q_len + row,
                                              first = what == PAGE ? key / 16 * 16 : key,
                                              last = what == PAGE ? first + 15 : key;
                                const bool sees = what != CLEAN && (what == PAGE || h < group)
                                    && first <= at && (!window || last > at - window);
                                if (row < q_len) changed += !y.same_row(0, row, h, x, 0);
                                if (what == PAGE && !sees) changed += !y.same_row(0, row, h, clean, 0);
                                wrong += y.nans(0, row, h) != (sees ? s.head_dim_v + 1 : 0);
                            }
                        CHECK_MSG(changed == 0 && wrong == 0,
                                  "%s, groups of %lld, window %lld, page %lld, case %d, %lld rows: "
                                  "%lld heads changed, %lld are wrong", santa_method_name(m),
                                  (long long)group, (long long)window, (long long)page, what,
                                  (long long)q_len, (long long)changed, (long long)wrong);
                    }
}

/* Stats are those of the CPU; another run gives the same bits. */
static void rows_stats(void) {
    NEED_DEVICE();
    for (int64_t q_len : {3, 4, 5, 9})
        for (santa_method m : {SANTA_DENSE, SANTA_PROP, SANTA_TOP_K, SANTA_TOP_P}) {
            ref_spec s = rows_spec(4, q_len, 200, 128, SANTA_BF16);
            problem p(s);
            result r, again;
            santa_stats cpu;
            const santa_options o = options(m, 64);
            if (!run_on_gpu(p, o, &r) || !run_on_gpu(p, o, &again)) return;
            CHECK(r.same(again));
            problem q(s);
            if (!ref_run(&q, &o, &cpu)) return;
            CHECK_MSG(cpu.rows == r.stats.rows && cpu.keys == r.stats.keys && cpu.draws == r.stats.draws
                      && cpu.k_features_head == r.stats.k_features_head,
                      "%s, %lld rows: stats", santa_method_name(m), (long long)q_len);
        }
}

static const test_case row_cases[] = {{"rows_match_cpu", rows_match_cpu},
                                      {"rows_of_any_length", rows_of_any_length},
                                      {"rows_nan", rows_nan},
                                      {"rows_apart", rows_apart},
                                      {"rows_stats", rows_stats},
                                      {"rows_of_a_copy", rows_of_a_copy},
                                      {"rows_of_any_pass", rows_of_any_pass},
                                      {0, 0}};
