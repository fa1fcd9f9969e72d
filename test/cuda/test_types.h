/* Types of q, K and V on the GPU, and what is done to scores of each; a part of
   test_cuda.cu. */

/* out and lse against float64, closer than rounding to half of q's bits would bring them. */
static void check_close(problem &p, const char *what, double most) {
    result r;
    if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
    const ref_spec &s = p.spec;
    std::vector<double> want((size_t)s.head_dim_v);
    double off = 0.0, norm = 0.0, off_lse = 0.0;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.q_len; i++)
            for (int64_t h = 0; h < s.heads; h++) {
                const double lse = ref_dense(&p, b, i, h, want.data(), NULL);
                for (int64_t c = 0; c < s.head_dim_v; c++) {
                    const double x = want[(size_t)c], d = ref_get(&r.out, b, i, h, c) - x;
                    off += d * d;
                    norm += x * x;
                }
                const size_t row = (size_t)((b * s.q_len + i) * s.heads + h);
                off_lse = std::max(off_lse, fabs((double)r.lse[row] - lse));
            }
    CHECK_MSG(sqrt(off) <= most * sqrt(norm) && off_lse <= most,
              "%s, types %d%d, group %lld, dim %lld, page %lld: out is %.3g off, lse %.3g", what,
              (int)s.q_type, (int)s.k_type, (long long)(s.heads / s.kv_heads), (long long)s.head_dim,
              (long long)s.page_size, sqrt(off / norm), off_lse);
}

/* A q that K's type cannot hold comes in parts. */
static void query_parts(void) {
    NEED_DEVICE();
    for (santa_dtype k : {SANTA_F16, SANTA_BF16, SANTA_E4M3, SANTA_E5M2})
        for (santa_dtype q : {SANTA_F32, SANTA_F16, SANTA_BF16})
            for (int64_t group : {1, 2, 3, 4, 5, 8, 9, 16})
                for (int how = 0; how < 4; how++) {
                    if (q == k || (test_quick && (group + how + (int)q) % 3)) continue;
                    ref_spec s = spec16(2 * group, 2, test_quick ? 200 : 1500,
                                        how == 0 ? 64 : how == 1 ? 128 : how == 2 ? 256 : 112, k);
                    s.q_type = q;
                    s.page_size = how == 1 ? 16 : how == 3 ? 12 : 0;
                    s.q_len = how == 2 ? 2 : 1;
                    s.window = how == 3 ? 150 : 0;
                    s.sinks = how == 0;
                    problem p(s);
                    /* bf16 rounds q and weights at 2^-17 */
                    check_close(p, "q in parts", q == SANTA_F32 && k != SANTA_BF16 ? 1e-5 : 4e-5);
                    totals t = {0, 0, 0};
                    for (santa_method m : {SANTA_PROP, SANTA_TOP_K, SANTA_FLASH})
                        compare(p, options(m, 64), &t);
                    check_totals(t, "q in parts");
                }
}

/* Numbers of V at both ends of the range: results are as many times as large. */
static void value_range(santa_dtype type, santa_method method, int64_t rows, bool copied,
                        bool scaled = false) {
    ref_spec s = spec16(8, 2, 700, 64, type);
    s.q_len = rows;
    s.row_scales = scaled;
    santa_options o = options(method, 100);
    if (copied) o.scores = SANTA_SCORES_PROXY;
    result first, r;
    for (int power : {0, 118, -110}) {
        with_copy p(s);
        const double factor = ldexp(1.0, power);
        for (int64_t j = 0; j < s.len; j++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t c = 0; c < 64; c++)
                    ref_set(&p.a.v, 0, j, h, c, factor * ref_get(&p.a.v, 0, j, h, c));
        if (!run_on_gpu(p, o, power ? &r : &first)) return;
        int64_t wrong = 0;
        for (int64_t i = 0; power && i < rows; i++)
            for (int64_t h = 0; h < 8; h++)
                for (int64_t c = 0; c < 64; c++) {
                    const double x = ref_get(&first.out, 0, i, h, c), y = ref_get(&r.out, 0, i, h, c);
                    wrong += !(fabs(y / factor - x) <= 1e-6);
                }
        CHECK_MSG(wrong == 0, "%s%s%s, type %d, %lld rows, V times 2^%d: %lld results are off",
                  santa_method_name(method), copied ? " by a copy" : "", scaled ? " with scales" : "",
                  (int)type, (long long)rows, power, (long long)wrong);
    }
}
static void value_ranges(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_F32, SANTA_BF16}) {
        value_range(type, SANTA_DENSE, 70, false);
        value_range(type, SANTA_DENSE, 1, false, true);
        for (santa_method method : {SANTA_DENSE, SANTA_IID, SANTA_PROP, SANTA_FLASH, SANTA_TOP_K,
                                    SANTA_TOP_P, SANTA_PPS, SANTA_VATTENTION})
            value_range(type, method, 1, false);
        for (santa_method method : {SANTA_PROP, SANTA_TOP_K, SANTA_PPS, SANTA_VATTENTION})
            value_range(type, method, 1, true);
    }
}

/* All keys but one weigh e^-16.875 of that one each, which f16 hardly has, and V is 0 at that
   one. */
static void faint_weights(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (santa_method method : {SANTA_DENSE, SANTA_TOP_K, SANTA_VATTENTION})
            for (int64_t rows : {1, 70}) {
                if (rows > 1 && (method != SANTA_DENSE || type == SANTA_E4M3)) continue;
                ref_spec s = spec16(4, 1, 700, 128, type);
                if (type == SANTA_E4M3) s.q_type = SANTA_F16;
                s.q_len = rows;
                problem p(s);
                p.a.sm_scale = 1.0f;
                p.a.causal = 0;
                for (int64_t c = 0; c < 128; c++) {
                    for (int64_t j = 0; j < s.len; j++) {
                        ref_set(&p.a.k, 0, j, 0, c, j == 300 && c == 0 ? 4.5 : 0.0);
                        ref_set(&p.a.v, 0, j, 0, c, j == 300 ? 0.0 : 1.0);
                    }
                    for (int64_t i = 0; i < rows; i++)
                        for (int64_t h = 0; h < 4; h++) ref_set(&p.a.q, 0, i, h, c, c == 0 ? 3.75 : 0.0);
                }
                santa_options o = options(method, 256);
                if (method == SANTA_VATTENTION) {       /* nothing drawn */
                    o.vattention.sink_tokens = 400;
                    o.vattention.local_tokens = 300;
                }
                result r;
                if (!run_on_gpu(p, o, &r)) return;
                const double keys = method == SANTA_TOP_K ? 255.0 : 699.0;
                const double want = keys * exp(-16.875) / (1.0 + keys * exp(-16.875));
                double off = 0.0;
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t h = 0; h < 4; h++)
                        for (int64_t c = 0; c < 128; c++)
                            off = std::max(off, fabs(ref_get(&r.out, 0, i, h, c) / want - 1.0));
                CHECK_MSG(off <= (rows > 1 ? 4e-3 : 1e-4), "%s, type %d, %lld rows: %g off, relative",
                          santa_method_name(method), (int)type, (long long)rows, off);
            }
}

/* Each head by itself: a q out of f16's range on either side, and one that is no number. */
static void query_range(santa_dtype q, santa_dtype k) {
    for (int64_t group : {1, 2, 4, 7})
        for (double factor : {1e30, 1e5, 1e-5, 1e-30, 1e-42}) {
            if (q == SANTA_BF16 && factor < 1e-40) continue;           /* it has no such numbers */
            ref_spec s = spec16(2 * group, 2, 150, 64, k);
            s.q_type = q;
            problem p(s);
            for (int64_t h = 0; h < 2 * group; h++)
                for (int64_t f = 0; f < 64; f++)
                    ref_set(&p.a.q, 0, 0, h, f, factor * ref_get(&p.a.q, 0, 0, h, f));
            p.a.sm_scale = (float)(0.125 / std::max(factor, 1e-30));
            result r, x;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
            int64_t wrong = 0;
            for (int64_t h = 0; h < 2 * group; h++) wrong += r.nans(0, 0, h) != 0;
            santa_stats stats;
            const santa_options o = options(SANTA_DENSE, 0);
            if (!ref_run(&p, &o, &stats)) return;
            for (int64_t h = 0; h < 2 * group; h++)
                wrong += !(fabs((double)r.lse[(size_t)h] - (double)p.lse[h]) < 1e-3);
            CHECK_MSG(wrong == 0, "q %d, K %d, group %lld, q times %g: %lld heads are wrong", (int)q,
                      (int)k, (long long)group, factor, (long long)wrong);
            if (group < 2) continue;
            /* one head's q */
            for (double bad : {(double)NAN, (double)INFINITY}) {
                ref_set(&p.a.q, 0, 0, 1, 3, bad);
                if (!run_on_gpu(p, options(SANTA_DENSE, 0), &x)) return;
                CHECK_INT(x.nans(0, 0, 1), 65);
                for (int64_t h = 0; h < 2 * group; h++)
                    if (h != 1) CHECK(x.same_row(0, 0, h, r, 0));
                if (!run_on_gpu(p, options(SANTA_PROP, 20), &x)) return;
                for (int64_t h = 0; h < 2 * group; h++) {
                    CHECK_INT(x.nans(0, 0, h), h == 1 ? 65 : 0);
                    if (h != 1)
                        CHECK_NEAR((double)x.lse[(size_t)h], (double)p.lse[h], 2e-3, 0.0);
                }
            }
        }
}

static void query_ranges(void) {
    NEED_DEVICE();
    for (santa_dtype k : {SANTA_F16, SANTA_BF16, SANTA_E4M3, SANTA_E5M2, SANTA_Q8_0, SANTA_Q4_0})
        for (santa_dtype q : {SANTA_F32, SANTA_BF16}) query_range(q, k);
}

/* Soft cap and ALiBi in the kernels that are tuned. */
static void scores_with_extras(void) {
    NEED_DEVICE();
    for (santa_dtype k : {SANTA_BF16, SANTA_F16, SANTA_E4M3, SANTA_E5M2})
        for (santa_dtype q : {SANTA_BF16, SANTA_F32})
            for (int64_t group : {1, 4, 9})
                for (int extra = 1; extra < 4; extra++) {
                    if (test_quick && (group + extra + (int)k) % 2) continue;
                    ref_spec s = spec16(2 * group, 2, test_quick ? 200 : 1500,
                                        extra == 1 ? 64 : extra == 2 ? 128 : 256, k);
                    s.q_type = q;
                    s.gain = 6.0;
                    s.q_len = extra;
                    s.causal = 1;
                    if (extra & 1) s.soft_cap = extra == 3 ? 50.0f : 3.0f;
                    if (extra & 2) s.alibi = 1;
                    s.page_size = extra == 2 ? 16 : 0;
                    problem p(s);
                    check_close(p, "soft cap and ALiBi", k == q || q == SANTA_F32 ? 6e-5 : 2e-3);
                    totals t = {0, 0, 0};
                    for (santa_method m : {SANTA_PROP, SANTA_TOP_K}) compare(p, options(m, 64), &t);
                    check_totals(t, "soft cap and ALiBi");
                }
}

/* e5m2 has infinities: a key of them has no weight, or makes NaN. */
static void e5m2_infinities(void) {
    NEED_DEVICE();
    for (santa_dtype q : {SANTA_F32, SANTA_BF16}) {
        ref_spec s = spec16(8, 2, 200, 64, SANTA_E5M2);
        s.q_type = q;
        problem p(s);
        for (int64_t h = 0; h < 8; h++) ref_set(&p.a.q, 0, 0, h, 5, h % 4 == 3 ? -1.0 : 1.0);
        ref_set(&p.a.k, 0, 70, 0, 5, -(double)INFINITY);
        ref_set(&p.a.v, 0, 71, 1, 5, (double)INFINITY);
        result r;
        if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
        for (int64_t h = 0; h < 8; h++) {
            CHECK_INT(r.nans(0, 0, h), h == 3 ? 65 : h < 4 ? 0 : r.nans(0, 0, h));
            if (h >= 4) CHECK(!(fabs(ref_get(&r.out, 0, 0, h, 5)) < INFINITY));
        }
    }
}

/* q8_0 and q4_0 in digits, either in K or V; what lies at odd places goes by other kernels.
   With V of another type only the scores do. */
static void blocks_of_32(void) {
    NEED_DEVICE();
    for (santa_dtype k : {SANTA_Q8_0, SANTA_Q4_0})
        for (santa_dtype v : {SANTA_Q8_0, SANTA_Q4_0, SANTA_BF16})
            for (int64_t group : {1, 2, 3, 4, 5, 8, 9, 16})
                for (int how = 0; how < 5; how++) {
                    if (test_quick && (group + how + (int)v) % 3) continue;
                    ref_spec s = spec16(2 * group, 2, test_quick ? 700 : 1500, how == 1 ? 64 : 128, k);
                    s.q_type = how == 2 ? SANTA_BF16 : SANTA_F32;
                    s.v_type = v;
                    s.head_dim_v = how == 2 ? 64 : 128;
                    s.page_size = how == 1 ? 16 : how == 3 ? 12 : 0;
                    s.q_len = how == 2 ? 2 : 1;
                    s.causal = 1;
                    s.window = how == 3 ? 450 : 0;
                    s.sinks = how == 0;
                    s.soft_cap = how == 4 ? 5.0f : 0.0f;
                    s.alibi = how == 4;
                    if (how == 0) s.layout = REF_HND;
                    s.ragged = how == 3;
                    s.batch = how == 3 ? 3 : 1;
                    problem p(s);
                    check_close(p, "blocks", v == SANTA_BF16 ? 4e-5 : 2e-5);
                    totals t = {0, 0, 0};
                    static const santa_method others[] = {SANTA_TOP_K, SANTA_FLASH, SANTA_PPS};
                    for (santa_method m : {SANTA_PROP, others[(group + how) % 3]})
                        compare(p, options(m, 64), &t);
                    check_totals(t, "blocks");
                }
    /* rows long enough for splits of more than 1,024 keys, since many heads have CTAs of their
       own; begun within one */
    for (int64_t len : {20000, 34000, 70000, 140000, 290000}) {
        ref_spec s = spec16(256, 1, len, 64, SANTA_Q4_0);
        if (test_quick && len > 20000) break;
        s.q_type = SANTA_F32;
        s.causal = 1;
        s.window = len - 300;
        problem p(s);
        check_close(p, "long rows of blocks", 2e-5);
    }
}

static const test_case type_cases[] = {
    {"query_parts", query_parts}, {"query_ranges", query_ranges}, {"value_ranges", value_ranges},
    {"faint_weights", faint_weights},
    {"scores_with_extras", scores_with_extras}, {"e5m2_infinities", e5m2_infinities},
    {"blocks_of_32", blocks_of_32},
    {0, 0}
};
