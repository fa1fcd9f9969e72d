/* Prefill on the GPU, dense and sparse: against float64 and the CPU; what must not change a
   row's bits; what must not be read. A part of test_cuda.cu. */

/* ---------------------------------------------------------------------------------- dense */

/* The type of the tiles: q's; of an f32 q K's or V's, or f16. */
static santa_dtype tile_type(const ref_spec &s) {
    const auto sixteen = [](santa_dtype t) { return t == SANTA_F16 || t == SANTA_BF16; };
    if (s.q_type != SANTA_F32) return s.q_type;
    return sixteen(s.k_type) ? s.k_type : sixteen(s.v_type) ? s.v_type : SANTA_F16;
}
static bool is_exact_in_tiles(const ref_spec &s, santa_dtype type) {
    return !s.row_scales && (type == tile_type(s) || type == SANTA_E4M3 || type == SANTA_E5M2);
}
/* How far rounding takes a score: of K to the tiles' type, or of an f32 q's second part. Its
   numbers' errors are independent; so many times what they add up to. */
static double score_bound(const problem &p) {
    const ref_spec &s = p.spec;
    double most[2] = {0.0, 0.0};
    for (int of_k = 0; of_k < 2; of_k++) {
        const int64_t d = s.head_dim,
                      rows = s.batch * (of_k ? s.len * s.kv_heads : s.q_len * s.heads);
        const double *x = of_k ? p.k : p.q;
        for (int64_t i = 0; i < rows; i++) {
            double sum = 0.0;
            for (int64_t c = 0; c < d; c++) sum += x[i * d + c] * x[i * d + c];
            if (sum > most[of_k]) most[of_k] = sum;
        }
    }
    const double d = (double)s.head_dim, e = ref_epsilon(tile_type(s)),
                 scale = s.sm_scale != 0.0f ? fabs((double)s.sm_scale) : 1.0 / sqrt(d),
                 size = 4.0 * scale * sqrt(most[0] * most[1] / d);
    return size * ((is_exact_in_tiles(s, s.k_type) ? 0.0 : e) + (s.q_type == SANTA_F32 ? e * e : 0.0));
}
/* Weights are rounded to the tiles' type before they meet V, which may be, too. */
static double weight_bound(const problem &p) {
    const double e = ref_epsilon(tile_type(p.spec)), v = is_exact_in_tiles(p.spec, p.spec.v_type) ? 0.0 : e;
    const double out = p.spec.out_type == SANTA_F32 ? 0.0 : ref_epsilon(p.spec.out_type);
    return (e + v + out + 2.0 * score_bound(p)) * largest_row_of_v(p);
}

/* Rows of the GPU that are further from float64 than rounding takes them. relative: of scores
   so large that lse has no more digits. */
static int64_t rows_off(const problem &p, const result &r, double relative = 0.0) {
    const ref_spec &s = p.spec;
    const double bound = weight_bound(p) + 1e-6, of_lse = 2e-4 + score_bound(p);
    std::vector<double> want((size_t)s.head_dim_v);
    int64_t off = 0;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t i = 0; i < s.q_len; i++)
            for (int64_t h = 0; h < s.heads; h++) {
                const double lse = ref_dense(&p, b, i, h, want.data(), NULL),
                             got = (double)r.lse[(size_t)((b * s.q_len + i) * s.heads + h)];
                double d2 = 0.0;
                for (int64_t c = 0; c < s.head_dim_v; c++) {
                    const double d = ref_get(&r.out, b, i, h, c) - want[(size_t)c];
                    d2 += d * d;
                }
                off += !(sqrt(d2) <= bound)
                    || !(got == lse || fabs(got - lse) <= of_lse + relative * fabs(lse));
            }
    return off;
}

static ref_spec prefill_spec(int64_t heads, int64_t kv_heads, int64_t q_len, int64_t len, int64_t d,
                             santa_dtype type = SANTA_BF16) {
    ref_spec s = spec16(heads, kv_heads, len, d, type);
    s.q_len = q_len;
    s.causal = 1;
    s.gain = 2.0;
    return s;
}

/* K (bit 0), V (bit 1) of floats of 8 bits: e4m3, or (bits 2, 3) e5m2. */
static void take_eights(ref_spec *s, int which) {
    if (which & 1) s->k_type = which & 4 ? SANTA_E5M2 : SANTA_E4M3;
    if (which & 2) s->v_type = which & 8 ? SANTA_E5M2 : SANTA_E4M3;
}

static void check_dense_rows(const problem &p, const char *what) {
    const ref_spec &s = p.spec;
    result r;
    santa_stats cpu;
    const santa_options o = options(SANTA_DENSE, 0);
    if (!run_on_gpu(p, o, &r)) return;
    const int64_t off = rows_off(p, r);
    CHECK_MSG(off == 0,
              "%s: %lld rows are off: %lld x %lld rows of %lld, heads %lld/%lld, dim %lld/%lld, "
              "types %d, %d, %d, page %lld, window %lld",
              what, (long long)off, (long long)s.batch, (long long)s.q_len, (long long)s.len,
              (long long)s.heads, (long long)s.kv_heads, (long long)s.head_dim, (long long)s.head_dim_v,
              (int)s.q_type, (int)s.k_type, (int)s.v_type, (long long)s.page_size, (long long)s.window);
    problem q(s);
    q.a.kv_start = p.a.kv_start;
    if (!ref_run(&q, &o, &cpu)) return;
    CHECK_MSG(cpu.rows == r.stats.rows && cpu.keys == r.stats.keys && cpu.v_rows_read == r.stats.v_rows_read
              && cpu.v_rows_head == r.stats.v_rows_head && cpu.k_features_head == r.stats.k_features_head,
              "%s: stats", what);
}

/* Padding before a sequence's keys: a part of those it has. */
static std::vector<int32_t> starts_of(const problem &p) {
    std::vector<int32_t> starts;
    for (int64_t b = 0; b < p.spec.batch; b++) starts.push_back((int32_t)(ref_len(&p, b) * (2 + b) / 7));
    return starts;
}

static void prefill_dense(void) {
    NEED_DEVICE();
    for (int i = 0; i < 8; i++) {
        const santa_dtype type = i % 2 ? SANTA_F16 : SANTA_BF16;
        ref_spec s = prefill_spec(4, 1, 70, 200, 128, type);
        if (i == 1) { s = prefill_spec(6, 2, 33, 150, 64, type); s.batch = 3; s.ragged = 1; }
        if (i == 2) {
            s = prefill_spec(5, 1, 40, 30, 192, type);
            s.head_dim_v = 128;
        } /* rows before all keys */
        if (i == 3) {
            s = prefill_spec(8, 2, 64, 190, 96, type);
            s.page_size = 16;
            s.batch = 2;
            s.ragged = 1;
        }
        if (i == 4) {
            s = prefill_spec(2, 2, 140, 300, 80, type);
            s.window = 70;
            s.sinks = 1;
            s.head_dim_v = 40;
        }
        if (i == 5) {
            s = prefill_spec(4, 2, 36, 100, 256, type);
            s.soft_cap = 5.0f;
            s.alibi = 1;
            s.layout = REF_HND;
        }
        if (i == 6) { s = prefill_spec(20, 1, 32, 70, 128, type); s.causal = 0; s.page_size = 7; }
        if (i == 7) {
            s = prefill_spec(4, 1, 40, 131, 128, type);
            s.soft_cap = 5.0f;
            s.sm_scale = -0.1f;
            s.page_size = 48;
        }
        problem p(s);
        check_dense_rows(p, "prefill");
        ref_spec eights = s;
        take_eights(&eights, i == 3 ? 1 : i == 4 ? 14 : i == 6 ? 7 : 3);
        const problem of_eights(eights);
        check_dense_rows(of_eights, "prefill of 8 bits");
        if (i > 3) continue;
        const std::vector<int32_t> starts = starts_of(p);
        p.a.kv_start = starts.data();
        check_dense_rows(p, "prefill behind padding");
    }
    for (int i = 0; i < (test_quick ? 2 : 60); i++) {
        test_rng r = test_rng_make(7000 + (uint64_t)i);
        const int64_t kv_heads = pick(&r, {1, 2, 3}),
                      d = pick(&r, {8, 64, 72, 96, 128, 128, 160, 192, 256});
        ref_spec s = prefill_spec(
            kv_heads * pick(&r, {1, 2, 4, 5, 8, 17}), kv_heads, 32 + test_below(&r, test_quick ? 20 : 100),
            1 + test_below(&r, test_quick ? 150 : 400), d, test_below(&r, 2) ? SANTA_F16 : SANTA_BF16);
        s.head_dim_v = test_below(&r, 2) ? d : pick(&r, {8, 40, 64, 128, 136, 256});
        s.batch = pick(&r, {1, 1, 2, 4});
        s.ragged = (int)test_below(&r, 2);
        s.page_size = test_below(&r, 2) ? 0 : pick(&r, {1, 7, 16, 48, 64, 128});
        s.causal = test_below(&r, 4) != 0;
        s.window = test_below(&r, 4) ? 0 : 1 + test_below(&r, 300);
        s.sinks = (int)test_below(&r, 2);
        s.alibi = test_below(&r, 4) == 0;
        s.soft_cap = test_below(&r, 4) ? 0.0f : 10.0f;
        s.layout = s.page_size || test_below(&r, 2) ? REF_NHD : REF_HND;
        s.out_type = test_below(&r, 2) ? SANTA_F32 : s.v_type;
        if (test_below(&r, 2)) take_eights(&s, (int)test_below(&r, 16));
        problem p(s);
        char what[60];
        snprintf(what, sizeof what, "random prefill %d", i);
        check_dense_rows(p, what);
    }
}

static long long launches_of(const char *kernel) {
    long long n = 0;
    for (const launched *k = all_launched; k; k = k->next) if (k->name == kernel) n += k->count;
    return n;
}
static bool is_copied(santa_dtype t) { return t != SANTA_F32 && t != SANTA_F16 && t != SANTA_BF16; }

/* Types and layouts that tiles do not take as they lie: copied, of all heads at a time or of
   some. */
static void tile_rows(void) {
    NEED_DEVICE();
    static const santa_dtype keys[] = {SANTA_E4M3, SANTA_Q8_0, SANTA_Q4_0,
                                       SANTA_E5M2, SANTA_F16,  SANTA_BF16};
    const int runs = test_quick ? 24 : 240;
    int copied = 0;
    for (int i = 0; i < runs; i++) {
        test_rng r = test_rng_make(11000 + (uint64_t)i);
        const int64_t kv_heads = pick(&r, {1, 2, 3});
        const int64_t heads = kv_heads * pick(&r, {1, 2, 4, 5});
        ref_spec s = prefill_spec(heads, kv_heads, 32 + test_below(&r, test_quick ? 20 : 100),
                                  1 + test_below(&r, test_quick ? 150 : 500), 64);
        const santa_dtype k = keys[i % 6], v = test_below(&r, 2) ? k : keys[test_below(&r, 4)];
        const bool blocks = k == SANTA_Q8_0 || k == SANTA_Q4_0 || v == SANTA_Q8_0 || v == SANTA_Q4_0;
        s.q_type = i % 2 ? SANTA_F32 : k == SANTA_F16 || k == SANTA_BF16 ? k
                 : test_below(&r, 2) ? SANTA_F16 : SANTA_BF16;
        s.k_type = k;
        s.v_type = v;
        s.head_dim = blocks ? pick(&r, {32, 64, 96, 128}) : pick(&r, {8, 20, 64, 72, 100, 128, 128});
        if (s.q_type != SANTA_F32 && !blocks && test_below(&r, 3) == 0)
            s.head_dim = pick(&r, {136, 200, 256});
        s.head_dim_v = test_below(&r, 2) ? s.head_dim
                     : blocks            ? pick(&r, {32, 128, 160})
                                         : pick(&r, {7, 64, 136});
        s.batch = pick(&r, {1, 1, 2, 3});
        s.ragged = (int)test_below(&r, 2);
        s.page_size = test_below(&r, 2) ? 0 : pick(&r, {1, 7, 16, 48, 64});
        s.causal = test_below(&r, 4) != 0;
        s.window = test_below(&r, 3) ? 0 : 1 + test_below(&r, 200);
        s.sinks = (int)test_below(&r, 2);
        s.alibi = test_below(&r, 5) == 0;
        s.soft_cap = test_below(&r, 5) ? 0.0f : 10.0f;
        s.row_scales = test_below(&r, 3) ? 0 : 1 + (int)test_below(&r, 2);
        s.scale_type = (santa_dtype)pick(&r, {SANTA_F32, SANTA_F16, SANTA_BF16});
        if (!s.page_size) s.layout = (ref_layout)test_below(&r, blocks ? REF_PADDED : REF_LAYOUTS);
        s.out_type = test_below(&r, 2) ? SANTA_F32 : SANTA_BF16;
        problem p(s);
        std::vector<int32_t> starts = starts_of(p);
        if (test_below(&r, 4) == 0) p.a.kv_start = starts.data();
        char what[60];
        snprintf(what, sizeof what, "copied rows %d, layout %d, scales %d", i, (int)s.layout, s.row_scales);
        const long long before = launches_of("k_tile_rows");
        check_dense_rows(p, what);
        const long long now = launches_of("k_tile_rows") - before;
        const bool want = s.q_type == SANTA_F32 || is_copied(k) || is_copied(v) || s.row_scales
                       || s.head_dim % 8 || s.head_dim_v % 8 || s.layout >= REF_PADDED;
        CHECK_MSG(!want || now > 0, "%s: nothing was copied", what);
        copied += now > 3;
    }
    CHECK_MSG(copied > runs / 20, "%d of %d calls went in parts", copied, runs);
}

/* Few rows of long sequences: of a tile's keys several CTAs have each a split. */
static void tile_splits(void) {
    NEED_DEVICE();
    const int runs = test_quick ? 6 : 40;
    for (int i = 0; i < runs; i++) {
        test_rng r = test_rng_make(12000 + (uint64_t)i);
        const int64_t rows = test_quick ? 30 : 250;
        const int64_t kv_heads = pick(&r, {1, 2}), group = pick(&r, {1, 2, 4, 5, 20});
        ref_spec s = prefill_spec(kv_heads * group, kv_heads, 32 + test_below(&r, 1 + rows / group),
                                  2000 + test_below(&r, test_quick ? 1200 : i % 8 ? 3000 : 9000),
                                  pick(&r, {64, 128, 128, 192}),
                                  test_below(&r, 2) ? SANTA_F16 : SANTA_BF16);
        s.head_dim_v = test_below(&r, 2) ? s.head_dim : pick(&r, {8, 64, 136});
        s.batch = pick(&r, {1, 2, 3});
        s.ragged = (int)test_below(&r, 2);
        s.page_size = test_below(&r, 2) ? 0 : pick(&r, {16, 64});
        s.causal = test_below(&r, 3) != 0;
        s.window = test_below(&r, 3) ? 0 : 1 + test_below(&r, 4000);
        s.sinks = (int)test_below(&r, 2);
        s.soft_cap = test_below(&r, 4) ? 0.0f : 10.0f;
        s.out_type = test_below(&r, 2) ? SANTA_F32 : SANTA_BF16;
        if (test_below(&r, 3) == 0) take_eights(&s, 3);
        if (test_below(&r, 4) == 0) {
            s.q_type = SANTA_F32;
            s.head_dim = s.head_dim > 128 ? 128 : s.head_dim;
        }
        problem p(s);
        std::vector<int32_t> starts = starts_of(p);
        if (test_below(&r, 4) == 0) p.a.kv_start = starts.data();
        char what[60];
        snprintf(what, sizeof what, "splits %d", i);
        check_dense_rows(p, what);
    }
    /* bits depend on neither the batch, the KV heads, pages nor room for more keys */
    const int64_t keys = test_quick ? 2600 : 5000;
    ref_spec s = prefill_spec(4, 2, 36, keys, test_quick ? 64 : 128);
    s.batch = 2;
    result whole, other;
    const problem p(s);
    const long long before = launches_of("k_combine") + launches_of("k_combine_few");
    if (!run_on_gpu(p, options(SANTA_DENSE, 0), &whole)) return;
    CHECK(launches_of("k_combine") + launches_of("k_combine_few") > before);
    for (int64_t page : {16, 64}) {
        s.page_size = page;
        if (!run_on_gpu(problem(s), options(SANTA_DENSE, 0), &other)) return;
        CHECK_MSG(whole.same(other), "splits, pages of %lld", (long long)page);
    }
    s.page_size = 0;
    s.batch = 1;
    s.first_sequence = 1;
    if (!run_on_gpu(problem(s), options(SANTA_DENSE, 0), &other)) return;
    CHECK_MSG(other.same_request(0, whole, 1), "splits, alone");
    santa_options o = options(SANTA_DENSE, 0);
    o.item_begin = 1;
    o.item_end = 4;
    if (!run_on_gpu(p, o, &other)) return;
    int64_t wrong = 0;
    for (int64_t row = 0; row < s.q_len; row++)
        for (int64_t h = 0; h < 4; h++) wrong += !other.same_row(1, row, h, whole, 1);
    CHECK_MSG(wrong == 0, "splits of some items: %lld rows differ", (long long)wrong);
    /* over ranks, of copies */
    const int64_t cuts[] = {0, 2240, keys};
    take_eights(&s, 3);
    const problem eights(s);
    santa_stats sum;
    CHECK_STATUS(gpu_ranks(eights, options(SANTA_DENSE, 0), cuts, 2, &other, &sum), SANTA_OK);
    CHECK(rows_off(eights, other) == 0);
}

/* Floats of 8 bits are exact in 16: the same bits as of a call with their values. So are rows
   that lie anywhere. */
static void tile_rows_exact(void) {
    NEED_DEVICE();
    for (int i = 0; i < 8; i++) {
        const santa_dtype type = i & 1 ? SANTA_F16 : SANTA_BF16;
        ref_spec s = prefill_spec(4, 2, 70, 200, i & 2 ? 128 : 72, type);
        if (i < 6) { s.batch = 2; s.ragged = 1; } else s = prefill_spec(1, 1, 1030, 1100, 64, type);
        ref_spec other = s;
        if (i < 4) take_eights(&other, i % 2 ? 11 : 7);
        else if (i < 6) other.layout = i & 1 ? REF_STRIDED : REF_PADDED;
        else other.page_size = i == 6 ? 7 : 16;
        problem as_it_is(other), p(s);
        memcpy(p.k, as_it_is.k, sizeof *p.k * (size_t)(s.batch * s.len * s.kv_heads * s.head_dim));
        memcpy(p.v, as_it_is.v, sizeof *p.v * (size_t)(s.batch * s.len * s.kv_heads * s.head_dim_v));
        ref_write(&p);
        result x, y;
        const santa_options o = options(SANTA_DENSE, 0);
        if (!run_on_gpu(as_it_is, o, &x) || !run_on_gpu(p, o, &y)) return;
        int64_t wrong = 0;
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t row = 0; row < s.q_len; row++)
                for (int64_t h = 0; h < s.heads; h++) wrong += !x.same_row(b, row, h, y, b);
        CHECK_MSG(wrong == 0, "turn %d: %lld rows have other bits", i, (long long)wrong);
    }
}

/* An f32 q of any size that the scale makes up for gives the bits of the usual one. */
static void tile_rows_sizes(void) {
    NEED_DEVICE();
    int i = 0;
    for (santa_dtype type : {SANTA_F16, SANTA_BF16, SANTA_E4M3})
        for (santa_method m : {SANTA_DENSE, SANTA_SAMPLE_ATTENTION}) {
            ref_spec s = prefill_spec(4, 2, 40, 300, m == SANTA_DENSE ? 128 : 64, type);
            s.q_type = SANTA_F32;
            problem p(s);
            result usual, other;
            if (!run_on_gpu(p, options(m, 0), &usual)) return;
            CHECK_MSG(rows_off(p, usual) == 0 || m != SANTA_DENSE, "type %d: the usual q", (int)type);
            const std::vector<double> q(p.q, p.q + s.q_len * s.heads * s.head_dim);
            for (int power : {-90, -30, -12, 12, 30, 90}) {
                for (size_t c = 0; c < q.size(); c++) p.q[c] = ldexp(q[c], power);
                ref_write(&p);
                const float scale = (float)(1.0 / sqrt((double)s.head_dim));
                const bool by_k = i++ % 2 != 0;     /* or by the scale of all of K */
                p.a.sm_scale = by_k ? scale : ldexpf(scale, -power);
                p.a.k_scale = by_k ? ldexpf(1.0f, -power) : 0.0f;
                if (!run_on_gpu(p, options(m, 0), &other)) return;
                CHECK_MSG(usual.same(other), "type %d, method %s, q by 2^%d", (int)type,
                          santa_method_name(m), power);
            }
        }
}

/* One key's scores far above or below all others, up to 1e30: the rows that it is above are its
   row of V, the others do not see it. Soft caps far above all scores, which tiles leave to the
   kernels of single rows. */
static void prefill_far_scores(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_BF16, SANTA_F16})
        for (int power : {13, 27, 40, 66, 100}) {
            const double far = ldexp(1.0, power);           /* which every type has */
            ref_spec s = prefill_spec(4, 2, 40, 100, 64, type);
            s.causal = 0;
            s.gain = 1.0;
            if (type == SANTA_F16) s.sm_scale = (float)ldexp(far, -13);
            problem p(s);
            for (int64_t h = 0; h < 2; h++)
                for (int64_t j = 0; j < 100; j++)
                    for (int64_t c = 0; c < 64; c++) {
                        const double x = c != 3 ? 0.0 : j == 70 ? type == SANTA_F16 ? 8192.0 : far : 0.0;
                        if (type == SANTA_F16 || c == 3) p.k[(j * 2 + h) * 64 + c] = (double)(float)x;
                    }
            ref_write(&p);
            result r;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
            const int64_t off = rows_off(p, r, 1e-5);
            CHECK_MSG(off == 0, "type %d, scores of %g: %lld rows are off", (int)type, far, (long long)off);
        }
    for (float cap : {500.0f, 1e4f, 1e8f, 1e30f}) {
        ref_spec s = prefill_spec(4, 2, 40, 100, 64);
        s.soft_cap = cap;
        problem p(s);
        check_dense_rows(p, "large soft cap");
        on_gpu g(p.a, options(SANTA_SAMPLE_ATTENTION, 0));
        CHECK_STATUS(santa_check(&g.a, &g.o), cap < 1000.0f ? SANTA_OK : SANTA_ERR_BACKEND_SPARSE);
    }
}

/* Rows [from, from + rows) of p, at the end of so many keys fewer. */
struct part_of_prompt {
    santa_attention a;
    std::vector<int32_t> lens;
    part_of_prompt(const problem &p, int64_t from, int64_t rows) : a(p.a) {
        const int64_t size = size_of(a.q.dtype);
        a.q.data = (char *)a.q.data + size * from * a.q.stride[1];
        a.out.data = (char *)a.out.data + size_of(a.out.dtype) * from * a.out.stride[1];
        for (int64_t b = 0; b < p.spec.batch; b++)
            lens.push_back((int32_t)(ref_len(&p, b) - (p.spec.q_len - from - rows)));
        a.q.shape[1] = a.out.shape[1] = rows;
        a.seq_lens = lens.data();
    }
};

/* A row's bits depend on neither the batch, pages, the layout, nor on the rows that it comes
   with. */
static void prefill_bits(void) {
    NEED_DEVICE();
    for (int i = 0; i < 4; i++) {
        const int64_t d = i < 3 ? 64 * (i + 1) : 128;
        ref_spec s = prefill_spec(4, 1, 150, 300, d);
        s.batch = 2;
        if (i == 3) take_eights(&s, 3);
        result whole, other;
        problem p(s);
        if (!run_on_gpu(p, options(SANTA_DENSE, 0), &whole)) return;
        for (int64_t page : {7, 16, 64}) {
            s.page_size = page;
            problem x(s);
            if (!run_on_gpu(x, options(SANTA_DENSE, 0), &other)) return;
            CHECK_MSG(whole.same(other), "head_dim %lld, pages of %lld", (long long)d, (long long)page);
        }
        s.page_size = 0;
        s.batch = 1;
        s.first_sequence = 1;
        problem alone(s);
        if (!run_on_gpu(alone, options(SANTA_DENSE, 0), &other)) return;
        CHECK_MSG(other.same_request(0, whole, 1), "head_dim %lld, alone", (long long)d);
        const int64_t cuts[] = {0, 40, 77, 150};
        for (int j = 0; j < 3; j++) {
            const part_of_prompt part(p, cuts[j], cuts[j + 1] - cuts[j]);
            on_gpu g(part.a, options(SANTA_DENSE, 0));
            if (!g.run()) return;
            const result r = g.get();
            int64_t wrong = 0;
            for (int64_t b = 0; b < 2; b++)
                for (int64_t k = 0; k < cuts[j + 1] - cuts[j]; k++)
                    for (int64_t h = 0; h < 4; h++)
                        for (int64_t c = 0; c < d; c++)
                            wrong +=
                                ref_get(&r.out, b, k, h, c) != ref_get(&whole.out, b, cuts[j] + k, h, c);
            CHECK_MSG(wrong == 0, "head_dim %lld, rows from %lld on: %lld numbers differ", (long long)d,
                      (long long)cuts[j], (long long)wrong);
        }
    }
}

/* What is not finite in a row of K or V shows in the rows that see it, and in no others; nor do
   pages that do not exist. */
static void prefill_nan(void) {
    NEED_DEVICE();
    for (int64_t d : {64, 128})
        for (int i = 0; i < 10; i++) {
            const int what = i < 8 ? i % 4 : 3, page_size = i < 8 ? 16 : 32 * (i - 7);
            ref_spec s = prefill_spec(4, 1, 100, 200, d, i & 1 ? SANTA_F16 : SANTA_BF16);
            s.page_size = what == 3 ? page_size : 0;
            if (i >= 4 && i < 8) take_eights(&s, what == 2 ? 11 : 3);    /* e4m3 has no infinity */
            problem clean(s), bad(s);
            const int64_t key = i < 9 ? 160 : 128;
            if (what == 0) ref_set(&bad.a.k, 0, key, 0, 5, (double)test_nan());
            if (what == 1) ref_set(&bad.a.v, 0, key, 0, 5, (double)test_nan());
            if (what == 2) ref_set(&bad.a.v, 0, key, 0, 5, INFINITY);
            if (what == 3) bad.block_table[key / page_size] = i & 1 ? -1 : INT32_MAX;
            result x, y;
            if (!run_on_gpu(clean, options(SANTA_DENSE, 0), &x)
                || !run_on_gpu(bad, options(SANTA_DENSE, 0), &y))
                return;
            int64_t wrong = 0;
            for (int64_t row = 0; row < s.q_len; row++)
                for (int64_t h = 0; h < s.heads; h++) {
                    if (s.len - s.q_len + row < key) { wrong += !y.same_row(0, row, h, x, 0); continue; }
                    const double at = ref_get(&y.out, 0, row, h, 5);
                    wrong += what == 2 ? at - at == 0.0 : !test_is_nan((float)at);
                    if (what == 0 || what == 3) wrong += y.nans(0, row, h) != d + 1;
                }
            CHECK_MSG(wrong == 0, "case %d, head_dim %lld: %lld rows are wrong", i, (long long)d,
                      (long long)wrong);
        }
    ref_spec s = prefill_spec(4, 2, 50, 300, 128);              /* behind seq_lens and before the window */
    s.batch = 3;
    s.ragged = 1;
    s.window = 100;
    problem clean(s), bad(s);
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t j = 0; j < s.len; j++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t c = 0; c < 128; c++) {
                    const int64_t n = ref_len(&bad, b);
                    if (j >= n) {
                        ref_set(&clean.a.k, b, j, h, c, 1.0);
                        ref_set(&clean.a.v, b, j, h, c, 1.0);
                    }
                    if (j < n - s.q_len - s.window) {
                        ref_set(&bad.a.k, b, j, h, c, (double)test_nan());
                        ref_set(&bad.a.v, b, j, h, c, (double)test_nan());
                    }
                }
    result x, y;
    if (!run_on_gpu(clean, options(SANTA_DENSE, 0), &x) || !run_on_gpu(bad, options(SANTA_DENSE, 0), &y))
        return;
    CHECK_MSG(x.same(y), "keys that no row sees were read");
    for (int64_t page : {16, 32, 64}) {                         /* pages that no row sees may be gone */
        s.page_size = page;
        problem all(s), some(s);
        const int64_t pages = (s.len + page - 1) / page;
        int64_t gone = 0;
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t i = 0; i < pages; i++) {
                const int64_t n = ref_len(&some, b);
                if (i * page < n && (i + 1) * page > n - s.q_len - s.window) continue;
                some.block_table[b * pages + i] = i & 1 ? -7 : INT32_MAX;
                gone++;
            }
        if (!CHECK_MSG(gone > 0, "pages of %lld", (long long)page)
            || !run_on_gpu(all, options(SANTA_DENSE, 0), &x)
            || !run_on_gpu(some, options(SANTA_DENSE, 0), &y))
            return;
        CHECK_MSG(x.same(y), "pages of %lld that no row sees were read", (long long)page);
    }
}

/* --------------------------------------------------------------------------------- sparse */

/* A call of SANTA_SAMPLE_ATTENTION on both sides, with mask_out and audit. */
struct sparse_call {
    problem p;
    santa_options o;
    int64_t q_blocks = 0, k_blocks = 0;
    std::vector<uint8_t> given, cpu_mask, gpu_mask;
    std::vector<santa_sample_audit> cpu_audit, gpu_audit;
    std::vector<float> cpu_mass, gpu_mass;           /* of each row, if they have room for it */
    santa_stats cpu;
    result gpu;

    sparse_call(const ref_spec &s, double alpha, int64_t block, int64_t chunks, int per_head)
        : p(s), o(options(SANTA_SAMPLE_ATTENTION, 0)) {
        santa_sample_attention_options &x = o.sample_attention;
        x.alpha_columns = x.alpha_slashes = alpha;
        x.block_size = block;
        x.num_chunks = chunks;
        x.per_head = per_head;
        x.dense_above = SANTA_NONE;
        santa_options shape = options(SANTA_SAMPLE_ATTENTION, 0);
        shape.sample_attention.block_size = block;
        CHECK_STATUS(santa_mask_shape(&p.a, &shape, &q_blocks, &k_blocks), SANTA_OK);
        cpu_mask.assign((size_t)(s.batch * s.heads * q_blocks * k_blocks), 0xee);
        gpu_mask = cpu_mask;
        cpu_audit.resize((size_t)(s.batch * s.heads));
        gpu_audit = cpu_audit;
    }
    void with_row_mass() {
        const ref_spec &s = p.spec;
        cpu_mass.assign((size_t)(s.batch * s.q_len * s.heads), -7.0f);
        gpu_mass = cpu_mass;
    }
    bool run_gpu() {
        block mass(4 * gpu_mass.size() + 4);
        block mask(gpu_mask.size()), audit(gpu_audit.size() * sizeof gpu_audit[0]), mine(gpu_mask.size());
        mask.put(gpu_mask.data(), gpu_mask.size());
        santa_options x = o;
        if (!given.empty()) {
            mine.put(given.data(), given.size());
            x.sample_attention.mask = (const uint8_t *)mine.data();
        }
        x.sample_attention.mask_out = (uint8_t *)mask.data();
        x.sample_attention.audit = (santa_sample_audit *)audit.data();
        if (!gpu_mass.empty()) x.sample_attention.row_mass = (float *)mass.data();
        santa_clear_unused_options(&x);              /* with a mask nothing is sampled */
        on_gpu g(p.a, x);
        if (!g.run() || !CHECK(mask.intact() && audit.intact() && mass.intact())) return false;
        gpu = g.get();
        mass.get(gpu_mass.data(), 4 * gpu_mass.size());
        mask.get(gpu_mask.data(), gpu_mask.size());
        audit.get(gpu_audit.data(), gpu_audit.size() * sizeof gpu_audit[0]);
        return true;
    }
    bool run_cpu() {
        santa_options x = o;
        x.sample_attention.mask = given.empty() ? NULL : given.data();
        x.sample_attention.mask_out = cpu_mask.data();
        x.sample_attention.audit = cpu_audit.data();
        if (!cpu_mass.empty()) x.sample_attention.row_mass = cpu_mass.data();
        santa_clear_unused_options(&x);
        return ref_run(&p, &x, &cpu) != 0;
    }
    /* The GPU's rows are those of the blocks that it says it read. */
    bool matches_mask(const char *what) {
        std::vector<uint8_t> mask = gpu_mask;
        for (uint8_t &x : mask) if (x == 0xee) x = 0;
        santa_options x = options(SANTA_SAMPLE_ATTENTION, 0);
        x.sample_attention.block_size = o.sample_attention.block_size;
        x.sample_attention.mask = mask.data();
        if (!ref_run(&p, &x, NULL)) return false;
        const ref_spec &s = p.spec;
        const double bound = weight_bound(p) + 1e-6, of_lse = 2e-4 + score_bound(p);
        int64_t off = 0;
        for (int64_t b = 0; b < s.batch; b++)
            for (int64_t i = 0; i < s.q_len; i++)
                for (int64_t h = 0; h < s.heads; h++) {
                    double d2 = 0.0;
                    for (int64_t c = 0; c < s.head_dim_v; c++) {
                        const double d = ref_get(&gpu.out, b, i, h, c) - ref_get(&p.a.out, b, i, h, c);
                        d2 += d * d;
                    }
                    const size_t row = (size_t)((b * s.q_len + i) * s.heads + h);
                    const float l = gpu.lse[row], m = p.lse[row];
                    off += !(sqrt(d2) <= bound) || !(l == m || fabs((double)l - (double)m) <= of_lse);
                }
        return CHECK_MSG(off == 0, "%s: %lld rows are not those of the mask", what, (long long)off) != 0;
    }
};

/* Masks, audits and stats against the CPU; sums that round differently may turn a block, which
   is counted. */
static void sparse_like_cpu(void) {
    NEED_DEVICE();
    int64_t blocks = 0, turned = 0;
    for (int i = 0; i < (test_quick ? 5 : 30); i++) {
        test_rng r = test_rng_make(9000 + (uint64_t)i);
        const int64_t n = 200 + test_below(&r, test_quick ? 300 : 1500), d = pick(&r, {64, 128, 128, 192});
        ref_spec s = prefill_spec(pick(&r, {2, 4, 5}), 1, 40 + test_below(&r, n), n, d,
                                  i % 2 ? SANTA_F16 : SANTA_BF16);
        s.gain = 3.0;
        if (i % 3 == 1) { s.batch = 2; s.ragged = 1; }
        if (i % 4 == 2) s.page_size = 16;
        if (i % 5 == 3) s.window = 1 + test_below(&r, n);
        if (i % 7 == 4) { s.alibi = 1; s.soft_cap = 20.0f; s.sinks = 1; }
        if (i % 3 == 2) take_eights(&s, 1 + i % 2 * 2);
        if (test_quick) s.q_len = test_below(&r, 120) + 40;
        sparse_call c(s, 0.2 + 0.7 * test_uniform(&r), test_below(&r, 2) ? 64 : 128, 1 + test_below(&r, 4),
                      (int)test_below(&r, 2));
        const bool masked = i % 6 == 5;
        const std::vector<int32_t> starts = starts_of(c.p);
        if (i % 3 == 0) c.p.a.kv_start = starts.data();
        if (masked)
            for (size_t k = 0; k < c.gpu_mask.size(); k++)
                c.given.push_back((uint8_t)(test_below(&r, 3) == 0));
        if (i % 2 == 0 || i == 5) c.with_row_mass();
        if (!c.run_gpu() || !c.run_cpu()) return;
        char what[60];
        snprintf(what, sizeof what, "sparse %d", i);
        int64_t differ = 0;
        for (size_t k = 0; k < c.gpu_mask.size(); k++) differ += c.gpu_mask[k] != c.cpu_mask[k];
        blocks += (int64_t)c.gpu_mask.size();
        turned += differ;
        for (size_t h = 0; h < c.gpu_audit.size() && !differ; h++) {
            const santa_sample_audit &x = c.gpu_audit[h], &y = c.cpu_audit[h];
            CHECK_MSG(x.kept_share == y.kept_share && x.cost == y.cost && x.is_dense == y.is_dense
                          && x.columns == y.columns && x.slashes == y.slashes && fabs(x.cra - y.cra) < 1e-4
                          && fabs(x.low_mass - y.low_mass) < 1e-4 && (x.cra >= 0.0) == !c.gpu_mass.empty()
                          && fabs(x.sampled_mass - y.sampled_mass) < 1e-4
                          && fabs(x.sampled_low - y.sampled_low) < 1e-3,
                      "%s: audit of head %d", what, (int)h);
        }
        int64_t masses = 0;
        for (size_t k = 0; k < c.gpu_mass.size() && !differ; k++)
            masses += !(fabsf(c.gpu_mass[k] - c.cpu_mass[k]) < 1e-4f);
        CHECK_MSG(masses == 0, "%s: %lld rows keep another mass", what, (long long)masses);
        if (!differ)
            CHECK_MSG(c.gpu.stats.rows == c.cpu.rows && c.gpu.stats.k_rows_read == c.cpu.k_rows_read
                          && c.gpu.stats.v_rows_read == c.cpu.v_rows_read
                          && c.gpu.stats.v_rows_head == c.cpu.v_rows_head
                          && c.gpu.stats.k_features_head == c.cpu.k_features_head,
                      "%s: stats", what);
        if (!c.matches_mask(what)) return;
    }
    printf("        %lld of %lld blocks of the masks differ from the CPU's\n", (long long)turned,
           (long long)blocks);
    CHECK(turned * 500 <= blocks);
}

/* Blocks of what tiles do not take as it lies. Rounding turns more of them. */
static void sparse_types(void) {
    NEED_DEVICE();
    const struct { santa_dtype q, k; int scales; } types[] = {
        {SANTA_F32, SANTA_BF16, 0}, {SANTA_BF16, SANTA_Q8_0, 0}, {SANTA_F32, SANTA_Q4_0, 0},
        {SANTA_F16, SANTA_E5M2, 0}, {SANTA_F16, SANTA_F16, 1},   {SANTA_F32, SANTA_E4M3, 1}};
    int64_t blocks = 0, turned = 0;
    for (const auto &t : types)
        for (int given = 0; given < 2; given++) {
            ref_spec s = prefill_spec(4, 2, test_quick ? 80 : 150, test_quick ? 250 : 400, 64, t.q);
            s.k_type = s.v_type = t.k;
            s.row_scales = t.scales;
            s.page_size = given ? 16 : 0;
            s.gain = 3.0;
            sparse_call c(s, 0.6, 64, 2, given);
            for (size_t k = 0; given && k < c.gpu_mask.size(); k++)
                c.given.push_back((uint8_t)(k % 3 == 0));
            if (t.q != SANTA_F32) c.with_row_mass();
            char what[60];
            snprintf(what, sizeof what, "blocks of types %d, %d", (int)t.q, (int)t.k);
            if (!c.run_gpu() || !c.run_cpu()) return;
            for (size_t k = 0; k < c.gpu_mask.size(); k++) turned += c.gpu_mask[k] != c.cpu_mask[k];
            blocks += (int64_t)c.gpu_mask.size();
            const float bound = 1e-4f + 2.0f * (float)score_bound(c.p);
            for (size_t k = 0; k < c.gpu_mass.size() && given; k++)
                if (!CHECK(fabsf(c.gpu_mass[k] - c.cpu_mass[k]) < bound)) return;
            if (!c.matches_mask(what)) return;
        }
    printf("        %lld of %lld blocks of the masks differ from the CPU's\n", (long long)turned,
           (long long)blocks);
    CHECK(turned * 50 <= blocks);
}

/* alpha = 1 is dense, bit for bit; so is what runs dense because it keeps too much. */
static void sparse_is_dense(void) {
    NEED_DEVICE();
    ref_spec s = prefill_spec(4, 2, 200, 333, 128);
    s.batch = 2;
    s.ragged = 1;
    result dense;
    problem p(s);
    if (!run_on_gpu(p, options(SANTA_DENSE, 0), &dense)) return;
    for (int way = 0; way < 3; way++) {
        sparse_call c(s, way ? 0.3 : 1.0, 64, 2, way == 2);
        if (way) c.o.sample_attention.dense_above = 1e-9;
        if (!c.run_gpu()) return;
        double most = 0.0;
        int64_t other = 0;
        for (size_t i = 0; i < dense.lse.size(); i++) {
            other += memcmp(&dense.lse[i], &c.gpu.lse[i], 4) != 0;
            most = std::max(most, fabs((double)dense.lse[i] - (double)c.gpu.lse[i]));
        }
        CHECK_MSG(c.gpu.same(dense), "way %d is not dense: %d of %d lse differ, by %g at most", way,
                  (int)other, (int)dense.lse.size(), most);
        CHECK(c.gpu_audit[0].is_dense == (way > 0));
        CHECK_INT(c.gpu.stats.dense_rows > 0, way > 0);
    }
    problem bad(s);
    ref_set(&bad.a.k, 0, 3, 0, 5, (double)test_nan());           /* sampled rows see it: all do that can */
    result x, y;
    santa_options o = options(SANTA_SAMPLE_ATTENTION, 0);
    if (!run_on_gpu(bad, options(SANTA_DENSE, 0), &x) || !run_on_gpu(bad, o, &y)) return;
    for (int64_t h = 0; h < 4; h++) CHECK(y.same_row(0, 199, h, x, 0));
    /* calls of few rows run dense, and say so; rows without keys are none */
    for (int64_t q_len : {1, 5, 31}) {
        s.q_len = q_len;
        problem few(s);
        santa_stats cpu;
        if (!run_on_gpu(few, options(SANTA_DENSE, 0), &x) || !run_on_gpu(few, o, &y)
            || !ref_run(&few, &o, &cpu))
            return;
        CHECK(y.same(x));
        CHECK_INT(y.stats.dense_rows, cpu.dense_rows);
        CHECK(y.stats.rows == cpu.rows && y.stats.keys == cpu.keys && cpu.dense_rows > 0);
    }
}

/* NaN in the blocks that a mask leaves out; the mask that came out, given back, gives the same
   bits; a captured call replayed; chunks of ragged prompts are in sparse_like_cpu. */
static void sparse_poison(void) {
    NEED_DEVICE();
    for (int64_t block_size : {64, 128}) {
        ref_spec s = prefill_spec(4, 1, 256, 400, 128);
        sparse_call c(s, 0.3, block_size, 2, 1), again(s, 0.3, block_size, 2, 0);
        if (!c.run_gpu()) return;
        again.given = c.gpu_mask;
        for (uint8_t &x : again.given) if (x == 0xee) x = 0;
        if (!again.run_gpu()) return;
        CHECK_MSG(again.gpu.same(c.gpu), "the mask that came out, block %lld", (long long)block_size);
        for (int64_t k = 1; k < c.k_blocks; k += 2)             /* every other block is nobody's */
            for (size_t at = (size_t)k; at < again.given.size(); at += (size_t)c.k_blocks)
                again.given[at] = 0;
        if (!again.run_gpu()) return;
        sparse_call bad(s, 0.3, block_size, 2, 0);
        bad.given = again.given;
        for (int64_t j = 0; j < s.len; j++)
            for (int64_t f = 0; f < 128 && j / block_size % 2; f++) {
                ref_set(&bad.p.a.k, 0, j, 0, f, (double)test_nan());
                ref_set(&bad.p.a.v, 0, j, 0, f, (double)test_nan());
            }
        if (!bad.run_gpu()) return;
        CHECK_MSG(bad.gpu.same(again.gpu), "blocks outside the mask were read, block %lld",
                  (long long)block_size);
    }
}

/* Enough tiles that a CTA has several of them, each with blocks of its own, against the same
   sequence alone, whose CTAs have one. */
static void sparse_together(void) {
    NEED_DEVICE();
    for (int64_t page : {0, 64}) {
        ref_spec s = prefill_spec(8, 2, test_quick ? 150 : 500, test_quick ? 300 : 700, 128);
        s.batch = test_quick ? 2 : 110;
        s.page_size = page;
        s.ragged = 1;
        santa_options o = options(SANTA_SAMPLE_ATTENTION, 0);
        o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = 0.3;
        o.sample_attention.dense_above = SANTA_NONE;
        santa_clear_unused_options(&o);
        problem p(s);
        result whole, alone;
        if (!run_on_gpu(p, o, &whole)) return;
        CHECK_INT(whole.stats.dense_rows, 0);
        const int64_t last = s.batch - 1;
        s.batch = 1;
        for (int64_t b : {(int64_t)0, last / 2, last}) {
            s.first_sequence = b;
            problem one(s);
            if (!run_on_gpu(one, o, &alone)) return;
            CHECK_MSG(alone.same_request(0, whole, b), "pages of %lld, sequence %lld alone",
                      (long long)page, (long long)b);
        }
    }
}

static void prefill_graphs(void) {
    NEED_DEVICE();
    for (int i = 0; i < 4; i++) {                    /* of copies and of splits, too */
        const santa_method m = i % 2 ? SANTA_SAMPLE_ATTENTION : SANTA_DENSE;
        ref_spec s = prefill_spec(i < 2 ? 4 : 2, 1, i < 2 ? 100 : 33, i < 2 ? 300 : 2100, 128);
        if (i >= 2) take_eights(&s, 3);
        problem p(s);
        santa_options o = options(m, 0);
        o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = 0.3;
        santa_clear_unused_options(&o);
        on_gpu g(p.a, o);
        if (!g.run()) break;
        const result direct = g.get();
        captured graph([&](cudaStream_t stream) { return g.start(stream); });
        if (!graph.good) break;
        for (int turn = 0; turn < 2; turn++) {
            graph.replay(g);
            const result r = g.get();
            CHECK_MSG(r.same(direct) && !memcmp(&r.stats, &direct.stats, sizeof r.stats),
                      "%s: a replay differs", santa_method_name(m));
        }
    }
}

static void prefill_errors(void) {
    NEED_DEVICE();
    problem p(prefill_spec(4, 1, 64, 100, 128)), floats(prefill_spec(4, 1, 64, 100, 128, SANTA_F32));
    santa_options o = options(SANTA_SAMPLE_ATTENTION, 0);
    on_gpu g(p.a, o), f(floats.a, o);
    CHECK_STATUS(g.start(), SANTA_OK);
    CHECK_STATUS(f.start(), SANTA_ERR_BACKEND_SPARSE);
    ref_spec mixed = p.spec;
    mixed.q_type = SANTA_F32;
    problem two_types(mixed);
    on_gpu two(two_types.a, o);
    CHECK_STATUS(two.start(), SANTA_OK);
    block mass(4 * 100 * 4);
    two.o.sample_attention.row_mass = (float *)mass.data();
    CHECK_STATUS(santa_check(&two.a, &two.o), SANTA_ERR_BACKEND_SPARSE);
    o = g.o;
    santa_sample_audit on_host[4];
    o.sample_attention.audit = on_host;
    block workspace(santa_workspace_size(&g.a, &o));
    CHECK_STATUS(santa_decode(&g.a, &o, workspace.data(), santa_workspace_size(&g.a, &o), NULL),
                 SANTA_ERR_HOST_POINTER);
    CUDA(cudaDeviceSynchronize());
}

static const test_case prefill_cases[] = {{"prefill_dense", prefill_dense},
                                          {"tile_rows", tile_rows},
                                          {"tile_rows_exact", tile_rows_exact},
                                          {"tile_rows_sizes", tile_rows_sizes},
                                          {"tile_splits", tile_splits},
                                          {"sparse_types", sparse_types},
                                          {"prefill_far_scores", prefill_far_scores},
                                          {"prefill_bits", prefill_bits},
                                          {"prefill_nan", prefill_nan},
                                          {"sparse_like_cpu", sparse_like_cpu},
                                          {"sparse_is_dense", sparse_is_dense},
                                          {"sparse_poison", sparse_poison},
                                          {"sparse_together", sparse_together},
                                          {"prefill_graphs", prefill_graphs},
                                          {"prefill_errors", prefill_errors},
                                          {0, 0}};
