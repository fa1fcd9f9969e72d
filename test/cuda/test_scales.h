/* Scales of rows of K and V on the GPU, k_scales and v_scales; a part of test_cuda.cu. Random
   problems, copies of K, vAttention, ranks and steps have them in their own tests, too. */

/* Of so many rows of K and V each has a scale that is a power of two; and the same rows
   multiplied. */
struct scaled_pair {
    problem scaled, multiplied;
    explicit scaled_pair(ref_spec s) : scaled(with_scales(s, 2)), multiplied(with_scales(s, 0)) {
        const size_t rows = (size_t)(s.batch * s.len * s.kv_heads);
        memcpy(multiplied.k, scaled.k, rows * (size_t)s.head_dim * sizeof *multiplied.k);
        memcpy(multiplied.v, scaled.v, rows * (size_t)s.head_dim_v * sizeof *multiplied.v);
        ref_write(&multiplied);
        ref_assign(&multiplied);
    }

private:
    static ref_spec with_scales(ref_spec s, int kind) {
        s.row_scales = kind;
        return s;
    }
};

/* How many numbers of two results differ. */
static int64_t differ(const result &x, const result &y) {
    int64_t n = 0;
    for (int64_t b = 0; b < x.out.shape[0]; b++)
        for (int64_t i = 0; i < x.out.shape[1]; i++)
            for (int64_t h = 0; h < x.out.shape[2]; h++) n += !x.same_row(b, i, h, y, b);
    for (size_t i = 0; i < x.lse.size(); i++) n += memcmp(&x.lse[i], &y.lse[i], 4) != 0;
    for (size_t i = 0; i < x.std_error.size(); i++) n += memcmp(&x.std_error[i], &y.std_error[i], 4) != 0;
    return n;
}

/* On the device, from a copy of K that the device makes. */
static bool run_with_copy(const problem &p, const santa_options &o, result *r, std::vector<char> *copy) {
    santa_attention a = p.a;
    copy->assign(santa_proxy_size(&a), (char)0x5a);
    if (o.scores == SANTA_SCORES_PROXY) a.proxy = copy->data();
    on_gpu g(a, o);
    if (a.proxy && !CHECK_STATUS(santa_proxy_encode(&g.a, 0, p.spec.len, NULL), SANTA_OK)) return false;
    if (!g.run()) return false;
    *r = g.get();
    if (a.proxy) *copy = g.copy_of_k();
    return true;
}

static ref_spec scaled_spec(test_rng *r, int turn) {
    static const santa_dtype types[] = {SANTA_F32, SANTA_F16, SANTA_BF16};
    const int64_t kv_heads = 1 + test_below(r, 3);
    ref_spec s = ref_spec_make(kv_heads * (1 + test_below(r, 5)), kv_heads,
                               100 + test_below(r, on_emulator ? 150 : 500),
                               8 * (1 + test_below(r, 16)));
    s.head_dim_v = turn % 3 ? s.head_dim : 1 + test_below(r, 200);
    s.batch      = 1 + turn % 2;
    s.q_len      = turn % 4 == 3 ? 3 : 1;
    s.causal     = turn % 2;
    s.ragged     = turn % 4 == 2;
    s.sinks      = turn % 3 == 1;
    s.alibi      = turn % 7 == 2;
    s.soft_cap   = turn % 6 == 4 ? 5.0f : 0.0f;
    s.page_size  = turn % 3 == 2 ? 16 * (1 + test_below(r, 3)) : 0;
    s.layout     = (ref_layout)(turn % REF_LAYOUTS);
    s.gain       = 0.5 + 2.0 * test_uniform(r);
    s.scale_type = types[turn / 2 % 3];
    s.stream     = (uint64_t)turn + 1;
    return s;
}

/* Powers of two change no bit, whatever the method, where both K are read by the same
   kernels. */
static void scales_are_factors(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(902);
    int turn = 0;
    for (int again = 0; again < (on_emulator ? 1 : test_quick ? 2 : 12); again++)
        for (int m = 0; m < SANTA_METHOD_COUNT; m++)
            for (int kind = 0; kind < 4; kind++, turn++) {      /* exact, copy of K, ranks, both */
                const santa_method method = (santa_method)m;
                const bool ranks = kind > 1, copied = kind % 2 != 0;
                if (copied && !(santa_method_traits(method) & SANTA_PROXIES)) continue;
                if (copied && method == SANTA_TOP_P) continue;
                if (ranks && (method == SANTA_SAAP || method == SANTA_SAMPLE_ATTENTION)) continue;
                ref_spec s = scaled_spec(&r, turn);
                if (ranks) { s.page_size = 0; s.layout = REF_NHD; }
                scaled_pair p(s);
                santa_options o = options(method, 24 + turn % 50);
                if (copied) {
                    o.scores = SANTA_SCORES_PROXY;
                    o.proxy.rescue_above = turn % 3 ? 1e-3 : 0.0;
                    o.proxy.exact_above = turn % 4 == 3 ? 0.02 : 0.0;
                    if (method == SANTA_TOP_K) o.proxy.rescue_above = o.proxy.exact_above = 0.0;
                    if (turn % 5 < 2) o.stash = SANTA_STASH_U8;
                }
                if (method == SANTA_VATTENTION) {
                    o.vattention.guarantee = turn % 2 ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
                    if (ranks) o.vattention = few_tokens();
                }
                santa_clear_unused_options(&o);
                const unsigned told = 1u << SANTA_DENSE | 1u << SANTA_IID | 1u << SANTA_STRAT
                                    | 1u << SANTA_SYS | 1u << SANTA_PROP;  /* they tell */
                if (ref_has_error(method) && !(ranks && (copied || !(told >> m & 1)))) {
                    p.scaled.a.std_error = p.scaled.std_error;
                    p.multiplied.a.std_error = p.multiplied.std_error;
                }
                result x, y;
                std::vector<char> copy, other;
                if (ranks) {
                    const int64_t cuts[] = {0, s.len / 2 / 64 * 64, s.len};
                    santa_stats sum;
                    if (!CHECK_STATUS(gpu_ranks(p.scaled, o, cuts, 2, &x, &sum), SANTA_OK)
                        || !CHECK_STATUS(gpu_ranks(p.multiplied, o, cuts, 2, &y, &sum), SANTA_OK))
                        continue;
                } else if (!run_with_copy(p.scaled, o, &x, &copy)
                           || !run_with_copy(p.multiplied, o, &y, &other))
                    continue;
                const int64_t off = differ(x, y);
                CHECK_MSG(off == 0, "turn %d: %s, kind %d: %lld rows differ", turn,
                          santa_method_name(method), kind, (long long)off);
                if (!s.page_size) CHECK_MSG(copy == other, "turn %d: copies differ", turn);
            }
}

/* The same for lists, first tokens, rows that are dense because they are short, many rows. */
static void scales_with_options(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(903);
    for (int turn = 0; turn < (test_quick ? 24 : 120); turn++) {
        ref_spec s = scaled_spec(&r, turn);
        const int what = turn % 4;
        if (what == 1) s.window = 30 + test_below(&r, 40);
        if (what == 3) { s.q_len = 34; s.soft_cap = 0.0f; s.alibi = 0; s.ragged = 0; s.page_size = 0; }
        scaled_pair p(s);
        santa_options o = options(what == 0 || what == 3 ? SANTA_DENSE
                                  : turn / 4 % 2         ? SANTA_DENSE : SANTA_PROP, 20);
        key_lists lists = {};
        if (what == 0) {
            test_rng same = r;
            lists = lists_build(&p.scaled, 60, 0, turn / 4 % 2, &same);
            santa_attention &a = p.multiplied.a;
            a.key_list = lists.keys;
            a.key_list_lens = lists.lens;
            a.key_weights = lists.weights;
            a.max_list = 60;
            a.key_list_stride = lists.stride;
        }
        if (what == 1) p.scaled.a.first_tokens = p.multiplied.a.first_tokens = 3 + turn % 9;
        if (what == 2) { o = options(SANTA_PROP, 20); o.dense_below = s.len / 2 + 1; }
        result x, y;
        if (run_on_gpu(p.scaled, o, &x) && run_on_gpu(p.multiplied, o, &y)) {
            const int64_t off = differ(x, y);
            CHECK_MSG(off == 0, "turn %d: %lld rows differ", turn, (long long)off);
        }
        lists_free(&lists);
    }
}

/* Every type against the CPU: tensor cores and plain loads, pages, one scale for each KV
   head. */
static void scales_match_cpu(void) {
    NEED_DEVICE();
    static const santa_dtype t[][4] = {                     /* q, k, v, scales */
        {SANTA_BF16, SANTA_E4M3, SANTA_E4M3, SANTA_F32}, {SANTA_F16,  SANTA_F16,  SANTA_F16,  SANTA_F16},
        {SANTA_BF16, SANTA_BF16, SANTA_BF16, SANTA_BF16}, {SANTA_F32, SANTA_F32,  SANTA_F32,  SANTA_F32},
        {SANTA_F32,  SANTA_E4M3, SANTA_F16,  SANTA_BF16}, {SANTA_BF16, SANTA_Q8_0, SANTA_Q8_0, SANTA_F16},
        {SANTA_F16,  SANTA_E5M2, SANTA_E5M2, SANTA_F32}, {SANTA_F32,  SANTA_Q4_0, SANTA_BF16, SANTA_F16},
    };
    for (const santa_dtype *x : t)
        for (int how = 0; how < 4; how++) {
            if (test_quick && how == 3) continue;
            ref_spec s = spec16(8, 2, test_quick ? 150 : 700, 64);
            s.q_type = x[0]; s.k_type = x[1]; s.v_type = x[2]; s.scale_type = x[3];
            s.row_scales = 1;
            s.batch = 2;
            s.page_size = how == 1 ? 16 : how == 2 ? 12 : 0;
            if (how == 1) s.layout = REF_HND;
            if (how == 3) { s.q_len = 3; s.causal = 1; s.ragged = 1; }
            compare_all(s, 64, "scales");
            totals moved = {0, 0, 0};
            problem p(s);
            for (santa_tensor *of : {&p.a.k_scales, &p.a.v_scales}) {
                of->stride[0] = of->stride[1] = 0;
                for (int64_t h = 0; h < s.kv_heads; h++) ref_set(of, 0, 0, h, 0, h ? 0.75 : -0.5);
            }
            compare(p, options(SANTA_DENSE, 0), &moved);
            compare(p, options(SANTA_PROP, 64), &moved);
            p.a.k_scales.data = NULL;                       /* of V alone; then of K alone */
            compare(p, options(SANTA_DENSE, 0), &moved);
            compare(p, options(SANTA_PROP, 64), &moved);
            p.a.k_scales = p.a.v_scales;
            p.a.v_scales.data = NULL;
            compare(p, options(SANTA_DENSE, 0), &moved);
            compare(p, options(SANTA_PROP, 64), &moved);
            check_totals(moved, "scales");
        }
}

/* V's scales of any size, in any order, and zeros: each column is right to 1e-5 of what its
   keys add up to without their signs, or more where scores are large. Weights have 16 bits on
   tensor cores, where a scale of 1e-20 may be nothing beside one of 1. */
static void scales_of_any_size(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(904);
    for (int turn = 0; turn < (test_quick ? 12 : 60); turn++) {
        /* a warp has a second block in rows of more than 8192 keys */
        const bool is_long = turn % (on_emulator ? 4 : 2) == 0;
        static const santa_dtype types[] = {SANTA_E4M3, SANTA_E5M2, SANTA_BF16, SANTA_E4M3, SANTA_F16};
        ref_spec s = spec16(8, is_long ? 1 : 2, (is_long ? 8200 : 90) + test_below(&r, 900),
                            turn % 3 ? 128 : turn % 2 ? 256 : 64);
        s.k_type = s.v_type = types[turn % 5];
        s.q_type = s.k_type == SANTA_F16 ? SANTA_F16 : SANTA_BF16;
        s.page_size = turn % 7 == 3 ? 16 : 0;
        s.row_scales = 1;
        s.scale_type = turn % 4 == 3 ? SANTA_BF16 : SANTA_F32;
        s.out_type = SANTA_F32;
        s.gain = turn % 5 == 4 ? 6.0 : 1.0;
        s.stream = (uint64_t)turn + 77;
        problem p(s);
        for (int64_t j = 0; j < s.len; j++)
            for (int64_t h = 0; h < s.kv_heads; h++) {
                const double at = (double)j / (double)s.len, sign = test_below(&r, 2) ? 1.0 : -1.0,
                             power[] = { 50.0 * test_uniform(&r) - 25.0, 50.0 * at - 25.0, 25.0 - 50.0 * at,
                                         -25.0, 25.0, test_below(&r, 100) ? 0.0 : 20.0 };
                double x = sign * pow(10.0, power[turn % 6]);
                if (turn % 4 < 2 && (j < 70 || test_below(&r, 5) == 0)) x = 0.0;
                int64_t i0, i1;
                ref_place(&p, 0, j, &i0, &i1);
                ref_set(&p.a.v_scales, i0, i1, h, 0, x);
            }
        result y;
        if (!run_on_gpu(p, options(SANTA_DENSE, 0), &y)) return;
        std::vector<double> prob((size_t)s.len), out((size_t)s.head_dim_v);
        int64_t off = 0;
        for (int64_t h = 0; h < s.heads; h++) {
            const int64_t kv = h / (s.heads / s.kv_heads);
            ref_dense(&p, 0, 0, h, out.data(), prob.data());
            for (int64_t c = 0; c < s.head_dim_v; c++) {
                double sum = 0.0, all = 0.0;
                for (int64_t j = 0; j < s.len; j++) {
                    int64_t i0, i1;
                    ref_place(&p, 0, j, &i0, &i1);
                    const double x = prob[(size_t)j] * ref_get(&p.a.v, i0, i1, kv, c)
                                   * ref_get(&p.a.v_scales, i0, i1, kv, 0);
                    sum += x;
                    all += fabs(x);
                }
                off += !(fabs(ref_get(&y.out, 0, 0, h, c) - sum) <= 1e-5 * s.gain * all + 1e-37);
            }
        }
        CHECK_MSG(off == 0, "turn %d: %lld numbers are off", turn, (long long)off);
    }
}

/* A scale becomes NaN, of all KV heads or of one. */
static void spoil_scale(problem *p, santa_tensor *t, int64_t b, int64_t j, int64_t head = -1) {
    int64_t i0, i1;
    ref_place(p, b, j, &i0, &i1);
    for (int64_t h = 0; h < p->spec.kv_heads; h++)
        if (head < 0 || h == head) ref_set(t, i0, i1, h, 0, (double)test_nan());
}

/* K's scales far below 1, as of an 8-bit cache with one for each token, in rows that begin and
   end anywhere: short ones are shared by warps, which read the nearest row for one that is not
   there. */
static void scales_of_short_rows(void) {
    NEED_DEVICE();
    static const int64_t lens[] = {1, 7, 9, 16, 31, 100, 101, 385, 511, 513, 1001, 1537, 2047, 2049};
    test_rng r = test_rng_make(905);
    totals moved = {0, 0, 0};
    for (santa_dtype type : {SANTA_E4M3, SANTA_F16, SANTA_BF16, SANTA_E5M2, SANTA_F32, SANTA_Q8_0})
        for (int64_t n : lens) {
            if (on_emulator && n > 600) continue;
            ref_spec s = spec16(8, 2, n, 64);
            s.k_type = s.v_type = type;
            s.q_type = type == SANTA_F16 ? SANTA_F16 : SANTA_BF16;
            s.window = n % 4 == 1 && n > 9 ? n * 2 / 3 : 0;
            s.page_size = n % 5 == 0 ? 16 : 0;
            s.row_scales = 1;
            s.scale_type = SANTA_F32;
            problem p(s);
            const int32_t start = 3;
            if (n % 4 == 3 && n > 9) p.a.kv_start = &start;
            for (int64_t j = 0; j < n; j++)
                for (int64_t h = 0; h < s.kv_heads; h++) {
                    double row[64];
                    int64_t i0, i1;
                    ref_place(&p, 0, j, &i0, &i1);
                    for (double &x : row) x = 100.0 * test_normal(&r);
                    ref_set_row(&p.a.k, i0, i1, h, row);
                    ref_set(&p.a.k_scales, i0, i1, h, 0, 0.01 * (0.5 + test_uniform(&r)));
                }
            compare(p, options(SANTA_DENSE, 0), &moved);
            santa_options o = options(SANTA_PROP, 16);
            o.dense_below = n + 1;
            compare(p, o, &moved);
        }
}

/* Scales of rows that are not read: before the window, behind the sequence, of keys that no
   draw takes; and of those that are. */
static void scales_poison(void) {
    NEED_DEVICE();
    static const santa_method all[] = {SANTA_DENSE, SANTA_IID, SANTA_STRAT, SANTA_PROP, SANTA_FLASH,
                                       SANTA_PPS, SANTA_TOP_K, SANTA_VATTENTION};
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_E4M3})
        for (int64_t page : {0, 16}) {
            ref_spec s = spec16(8, 2, 300, 64);
            s.k_type = s.v_type = type;
            s.batch  = 4;
            s.ragged = 1;
            s.window = 100;
            s.page_size = page;
            s.row_scales = 1;
            s.scale_type = type == SANTA_E4M3 ? SANTA_F32 : type;
            problem clean(s), bad(s);
            for (int64_t b = 0; b < s.batch; b++) {
                const int64_t n = ref_len(&bad, b), most = page ? (n + page - 1) / page * page : s.len;
                for (int64_t j = 0; j < most; j++)
                    if (j < n - s.window || j >= n)
                        for (santa_tensor *of : {&bad.a.k_scales, &bad.a.v_scales})
                            spoil_scale(&bad, of, b, j);
            }
            for (santa_method m : all) {
                result x, y;
                const santa_options o = options(m, m == SANTA_VATTENTION ? 0 : 64);
                if (!run_on_gpu(clean, o, &x) || !run_on_gpu(bad, o, &y)) return;
                CHECK_MSG(x.same(y), "%s, type %d, page %lld: a scale that is not read counts",
                          santa_method_name(m), (int)type, (long long)page);
            }
        }
    /* every other key has no weight: its row of V is not drawn */
    for (santa_dtype type : {SANTA_BF16, SANTA_F32}) {
        ref_spec s = spec16(8, 2, 300, 64, type);
        s.q_type = type;
        s.row_scales = 1;
        s.scale_type = type;
        problem clean(s);
        for (int64_t h = 0; h < 8; h++) ref_set(&clean.a.q, 0, 0, h, 5, 100.0);
        for (int64_t j = 0; j < 300; j++)
            for (int64_t h = 0; h < 2; h++) {
                ref_set(&clean.a.k, 0, j, h, 5, j % 2 ? -100.0 : 0.0);
                ref_set(&clean.a.k_scales, 0, j, h, 0, 1.0);
            }
        for (santa_method m : {SANTA_IID, SANTA_STRAT, SANTA_PROP, SANTA_FLASH, SANTA_PPS, SANTA_TOP_K}) {
            result x, y;
            if (!run_on_gpu(clean, options(m, 40), &x)) return;
            std::vector<double> kept;
            for (int64_t j = 1; j < 300; j += 2)
                for (int64_t h = 0; h < 2; h++) {
                    kept.push_back(ref_get(&clean.a.v_scales, 0, j, h, 0));
                    ref_set(&clean.a.v_scales, 0, j, h, 0, (double)test_nan());
                }
            if (!run_on_gpu(clean, options(m, 40), &y)) return;
            CHECK_MSG(x.same(y), "%s, type %d: a scale that is not read counts", santa_method_name(m),
                      (int)type);
            for (int64_t j = 1, i = 0; j < 300; j += 2)
                for (int64_t h = 0; h < 2; h++, i++)
                    ref_set(&clean.a.v_scales, 0, j, h, 0, kept[(size_t)i]);
        }
    }
    /* one that is read makes its KV head NaN, and no other */
    for (santa_dtype type : {SANTA_BF16, SANTA_F32, SANTA_Q8_0, SANTA_E4M3})
        for (bool of_v : {false, true})
            for (santa_method m : {SANTA_DENSE, SANTA_PROP, SANTA_TOP_K, SANTA_PPS}) {
                if (type == SANTA_Q8_0 && m == SANTA_PPS) continue;
                if (of_v && m == SANTA_TOP_K) continue;
                ref_spec s = spec16(8, 2, 300, 64);
                s.k_type = s.v_type = type;
                s.row_scales = 1;
                problem p(s);
                /* V: with so many draws that each key has one */
                const int64_t first = of_v && m != SANTA_DENSE ? 0 : 70,
                              end = of_v && first == 0 ? 300 : 71;
                for (int64_t j = first; j < end; j++)
                    spoil_scale(&p, of_v ? &p.a.v_scales : &p.a.k_scales, 0, j, 1);
                result r;
                if (!run_on_gpu(p, options(m, 40), &r)) return;
                for (int64_t h = 0; h < 8; h++)
                    CHECK_MSG(r.nans(0, 0, h) == (h < 4 ? 0 : of_v ? 64 : 65),
                              "%s, type %d, %s, head %lld: %lld NaN", santa_method_name(m), (int)type,
                              of_v ? "V" : "K", (long long)h, (long long)r.nans(0, 0, h));
            }
}

static void scales_errors(void) {
    NEED_DEVICE();
    static float host[4096];
    for (int i = 0; i < 2; i++) {
        ref_spec s = spec16(8, 2, 300, 64);
        s.row_scales = 1;
        problem p(s);
        const santa_options o = options(SANTA_PROP, 32);
        on_gpu g(p.a, o);
        const auto with = [&](const char *what, santa_status want, void (*change)(santa_tensor *)) {
            santa_attention a = g.a;
            change(i ? &a.v_scales : &a.k_scales);
            refuse(g, a, g.o, g.workspace(), (size_t)1 << 40, g.stats, want, what);
        };
        with("scales of e4m3", SANTA_ERR_ROW_SCALES, [](santa_tensor *t) { t->dtype = SANTA_E4M3; });
        with("too few scales", SANTA_ERR_ROW_SCALES, [](santa_tensor *t) { t->shape[1]--; });
        with("two for a row", SANTA_ERR_ROW_SCALES, [](santa_tensor *t) { t->shape[3] = 2; });
        with("scales on the CPU", SANTA_ERR_DEVICE_MISMATCH,
             [](santa_tensor *t) { t->device = SANTA_CPU; });
        with("scales at an odd address", SANTA_ERR_BACKEND_ALIGNMENT,
             [](santa_tensor *t) { t->data = (char *)t->data + 1; });
        with("scales in host memory", SANTA_ERR_HOST_POINTER, [](santa_tensor *t) { t->data = host; });
        CHECK(g.run());
        if (i) continue;
        santa_attention a = g.a;
        std::vector<char> copy(santa_proxy_size(&a));
        block there(copy.size() + 16);
        a.proxy = (void *)(((uintptr_t)there.data() + 15) / 16 * 16);
        CHECK_STATUS(santa_proxy_encode(&a, 0, 300, NULL), SANTA_OK);
        a.k_scales.data = (char *)a.k_scales.data + 1;
        CHECK_STATUS(santa_proxy_encode(&a, 0, 300, NULL), SANTA_ERR_BACKEND_ALIGNMENT);
        a.k_scales.data = host;
        CHECK_STATUS(santa_proxy_encode(&a, 0, 300, NULL), SANTA_ERR_HOST_POINTER);
        CUDA(cudaDeviceSynchronize());
    }
    /* blocks of sample-attention are found and read by tiles, for which no f32 is rounded */
    ref_spec s = spec16(4, 1, 100, 64);
    s.q_type = s.k_type = s.v_type = SANTA_F32;
    s.q_len = 40;
    s.causal = 1;
    s.row_scales = 1;
    problem p(s);
    on_gpu g(p.a, options(SANTA_DENSE, 0));
    CHECK(g.run());
    santa_options o = options(SANTA_SAMPLE_ATTENTION, 0);
    refuse(g, g.a, o, g.workspace(), (size_t)1 << 40, g.stats, SANTA_ERR_BACKEND_ROW_SCALES, "sparse rows");
}

static const test_case scale_cases[] = {
    {"scales_are_factors", scales_are_factors}, {"scales_with_options", scales_with_options},
    {"scales_match_cpu", scales_match_cpu}, {"scales_of_any_size", scales_of_any_size},
    {"scales_of_short_rows", scales_of_short_rows},
    {"scales_poison", scales_poison}, {"scales_errors", scales_errors},
    {0, 0}
};
