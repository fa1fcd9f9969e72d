/* K and V of q8_0, e5m2 and q4_0 in the methods and steps that read these types by plain loads;
   for test_cuda.cu. Those that draw and select: see types, random_problems. */

static const santa_dtype CODED[][2] = {          /* of K and V */
    {SANTA_Q8_0, SANTA_Q8_0}, {SANTA_E5M2, SANTA_E5M2}, {SANTA_Q4_0, SANTA_Q4_0}, {SANTA_Q4_0, SANTA_F32},
    {SANTA_BF16, SANTA_E5M2}, {SANTA_E5M2, SANTA_Q8_0},
};

static ref_spec coded_spec(int turn) {
    const santa_dtype *type = CODED[turn % 6];
    ref_spec s = spec16(turn % 2 ? 6 : 4, 2, test_quick ? 250 : 900, turn % 3 ? 64 : 96);
    s.head_dim_v = turn % 4 == 3 ? 160 : 64;
    s.q_type = turn % 2 ? SANTA_F32 : SANTA_BF16;
    s.k_type = type[0];
    s.v_type = type[1];
    s.batch = 2;
    s.ragged = 1;
    s.q_len = 1 + turn % 2;
    s.page_size = turn % 2 ? 16 : 0;
    s.layout = turn % 3 == 1 ? REF_HND : REF_NHD;
    s.sinks = turn % 3 == 2;
    s.stream = (uint64_t)turn;
    if (turn % 5 == 4) { s.row_scales = 1; s.scale_type = SANTA_F16; }
    return s;
}

static void coded_errors(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    for (int turn = 0; turn < 6; turn++) {
        problem p(coded_spec(turn));
        for (santa_method m : METHODS) compare_errors(p, options(m, 48), &t, "coded_errors");
    }
    check_totals(t, "coded_errors");
}

/* A block of K whose scale is infinite and one of whose numbers is 0 gives NaN, whatever its
   sign. */
static void coded_infinity(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_Q8_0, SANTA_Q4_0})
        for (int64_t d : {64, 96})
            for (uint16_t scale : {0x7c00, 0xfc00})
                for (santa_method m : {SANTA_DENSE, SANTA_PROP}) {
                    ref_spec s = spec16(4, 2, 100, d);
                    s.q_type = SANTA_BF16;
                    s.k_type = s.v_type = type;
                    problem p(s);
                    const int64_t block = type == SANTA_Q8_0 ? 34 : 18;
                    unsigned char *const first = (unsigned char *)p.a.k.data + 2 * 70 * (d / 32) * block;
                    memcpy(first, &scale, sizeof scale);            /* key 70, KV head 0 */
                    first[2] = type == SANTA_Q8_0 ? 0 : 0x88;
                    result r;
                    if (!run_on_gpu(p, options(m, 32), &r)) return;
                    for (int64_t h = 0; h < 4; h++)
                        CHECK_INT(r.nans(0, 0, h), h < 2 ? s.head_dim_v + 1 : 0);
                }
}

static void coded_budgets(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(91);
    va_totals t = {};
    for (int turn = 0; turn < 6; turn++) {
        va_problem p(coded_spec(turn), &r, false);
        for (int heavy = 0; heavy < VA_HEAVIES; heavy++) {
            santa_options o = p.options((va_heavy)heavy, 9);
            o.vattention.sink_tokens = o.vattention.local_tokens = 20;
            o.vattention.base_samples = 20;
            o.vattention.epsilon = o.vattention.delta = 0.2;
            o.vattention.guarantee = turn % 2 ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
            va_compare(p, o, &t);
        }
    }
    va_check_totals(t);
}

/* Rows of SAAP: its index and draws are the CPU's, so are most results. */
static void coded_buckets(void) {
    NEED_DEVICE();
    totals t = {0, 0, 0};
    int64_t errors = 0;
    for (int turn = 0; turn < 6; turn++) {
        problem p(coded_spec(turn));
        const ref_spec &s = p.spec;
        santa_options o = options(SANTA_SAAP, 48);
        result r;
        santa_stats cpu;
        p.a.std_error = p.std_error;
        o.saap.sink_tokens = o.saap.local_tokens = 9;
        o.saap.num_probes = 1;
        if (!run_on_gpu(p, o, &r) || !ref_run(&p, &o, &cpu)) return;
        for (int64_t x = 0; x < s.batch * s.q_len * s.heads; x++) {
            double norm;
            const int64_t b = x / s.heads / s.q_len, i = x / s.heads % s.q_len, h = x % s.heads;
            const double off = apart(p, r, b, i, h, &norm), y = (double)p.std_error[x],
                         z = (double)r.std_error[(size_t)x];
            const float lse = r.lse[(size_t)x];
            const bool other = !(sqrt(off) <= 2e-3 * sqrt(norm) + 1e-5)
                            || !(lse == p.lse[x] || fabsf(lse - p.lse[x]) <= 1e-3f);
            t.off += other;
            errors += !other && !(y == z || fabs(y - z) <= 1e-2 * y + 1e-4);
            t.rows++;
        }
        t.draws += cpu.draws;
    }
    CHECK_INT(errors, 0);
    check_totals(t, "coded_buckets");
}

static void coded_copies(void) {
    NEED_DEVICE();
    copy_totals encoded = {0, 0, 0};
    totals t = {0, 0, 0};
    for (int turn = 0; turn < 6; turn++) {
        with_copy p(coded_spec(turn), turn % 4 == 3 ? 2 : 4);
        if (!compare_encoded(p, &encoded)) return;
        p.a.proxy = p.copy.data();
        for (santa_method m : {SANTA_PROP, SANTA_PPS, SANTA_TOP_K}) {
            santa_options o = options(m, 24);
            o.scores = SANTA_SCORES_PROXY;
            if (turn % 3 == 1 && m != SANTA_TOP_K) o.proxy.rescue_above = 1e-3;
            if (m != SANTA_TOP_K) o.proxy.exact_above = SANTA_NONE;
            santa_clear_unused_options(&o);
            compare_copies(p, o, &t, "coded");
            if (m == SANTA_TOP_K) continue;
            o.proxy.exact_above = 1e-9;              /* done again: exact here */
            const ref_spec &s = p.spec;
            std::vector<double> want((size_t)s.head_dim_v);
            result r;
            double worst = 0.0;
            if (!run_on_gpu(p, o, &r)) return;
            for (int64_t x = 0; x < s.batch * s.q_len * s.heads; x++) {
                const int64_t b = x / s.heads / s.q_len, i = x / s.heads % s.q_len, h = x % s.heads;
                ref_dense(&p, b, i, h, want.data(), NULL);
                for (int64_t c = 0; c < s.head_dim_v; c++)
                    worst = std::max<double>(worst, fabs(ref_get(&r.out, b, i, h, c) - want[(size_t)c]));
            }
            CHECK_MSG(r.stats.redone_rows > 0 && worst <= 2e-4 * largest_row_of_v(p),
                      "%lld heads done again, off by %g", (long long)r.stats.redone_rows, worst);
        }
    }
    CHECK(encoded.off * 10000 <= encoded.all && encoded.far * 100000 <= encoded.all);
    check_copies(t, "coded");
}

static void coded_ranks(void) {
    NEED_DEVICE();
    static const int64_t cuts[] = {0, 64, 128, 1000};
    totals t = {0, 0, 0};
    for (int turn = 0; turn < 6; turn++) {
        ref_spec s = coded_spec(turn);
        s.layout = REF_NHD;
        s.page_size = 0;
        s.ragged = 0;
        problem p(s);
        int64_t own[4];
        memcpy(own, cuts, sizeof own);
        own[3] = s.len;
        for (santa_method m : {SANTA_PROP, SANTA_PPS, SANTA_VATTENTION}) {
            santa_options o = options(m, 48);
            if (m == SANTA_VATTENTION) o.vattention = few_tokens();
            result over;
            santa_stats sum, whole;
            if (!CHECK_STATUS(gpu_ranks(p, o, own, 3, &over, &sum), SANTA_OK)) continue;
            if (!ref_run(&p, &o, &whole)) continue;
            t.draws += whole.draws;
            compare_over(p, over, false, turn, &t);
        }
    }
    check_totals(t, "coded_ranks");
}

static const test_case coded_cases[] = {
    {"coded_errors", coded_errors}, {"coded_infinity", coded_infinity}, {"coded_budgets", coded_budgets},
    {"coded_buckets", coded_buckets}, {"coded_copies", coded_copies}, {"coded_ranks", coded_ranks},
    {0, 0}
};
