/* santa - rows of up to 576 features, and many query heads of a KV head; included by
   test_cuda.cu. */

/* V's rows lie in K's, `on` features from their beginning. */
static void put_v_in_k(problem *p, int64_t on) {
    ref_spec &s = p->spec;
    p->a.v = p->a.k;
    p->a.v.shape[3] = s.head_dim_v;
    p->a.v.data = (char *)p->a.k.data + on * size_of(s.k_type);
    s.v_type = s.k_type;
    for (int64_t j = 0; j < s.batch * s.len * s.kv_heads; j++)
        memcpy(p->v + j * s.head_dim_v, p->k + j * s.head_dim + on, (size_t)s.head_dim_v * sizeof *p->v);
}

/* A problem that k_list_many takes: rows wider than 256 features. */
static ref_spec many_spec(test_rng *r, int64_t n) {
    const bool inside = n % 4 == 0, wide_v = n % 4 == 1;
    const int64_t most = test_quick || on_emulator ? 150 : 700, kv_heads = 1 + test_below(r, 2);
    const int64_t d = 8 * (wide_v ? 1 + test_below(r, 72) : 33 + test_below(r, 40)),
                  dv = inside   ? 8 * (1 + test_below(r, std::min<int64_t>(d / 8, 64)))
                     : wide_v ? 8 * (33 + test_below(r, 32)) : 8 * (1 + test_below(r, 64));
    const int64_t group = 1 + test_below(r, test_below(r, 3) ? 40 : 140);
    ref_spec s = spec16(group * kv_heads, kv_heads, 1 + test_below(r, most), d,
                        test_below(r, 2) ? SANTA_BF16 : SANTA_F16);
    s.head_dim_v = dv;
    s.batch     = 1 + test_below(r, 3);
    s.q_len     = test_below(r, 3) ? 1 : 1 + test_below(r, 3);
    s.causal    = (int)test_below(r, 2);
    s.ragged    = (int)test_below(r, 2);
    s.sinks     = test_below(r, 4) == 0;
    s.alibi     = test_below(r, 4) == 0;
    s.soft_cap  = test_below(r, 4) ? 0.0f : 15.0f;
    s.gain      = test_below(r, 2) ? 1.0 : 6.0;
    s.page_size = test_below(r, 2) ? 0 : 1 + test_below(r, 40);
    s.window    = test_below(r, 3) ? 0 : 1 + test_below(r, s.len + 20);
    s.layout    = test_below(r, 2) ? REF_NHD : REF_HND;
    s.stream    = 300 + (uint64_t)n;
    return s;
}

static void many_heads(void) {
    NEED_DEVICE();
    test_rng r = test_rng_make(91);
    totals t = {0, 0, 0};
    for (int64_t n = 0; n < (test_quick ? 12 : on_emulator ? 60 : 200); n++) {
        problem p(many_spec(&r, n));
        const ref_spec &s = p.spec;
        if (n % 4 == 0)
            put_v_in_k(&p, n % 8 ? 8 * test_below(&r, (s.head_dim - s.head_dim_v) / 8 + 1) : 0);
        if (n % 3 == 0 && s.window) p.a.first_tokens = 1 + test_below(&r, s.len);
        bool good = compare(p, options(SANTA_DENSE, 0), &t);
        p.a.first_tokens = p.spec.window = p.a.window = 0;
        key_lists x = lists_build(&p, 1 + test_below(&r, 2 * s.len), (int)test_below(&r, 2),
                                  (int)test_below(&r, 2), &r);
        if (n % 4) lists_poison(&p);                /* V's values stand in K's for the others */
        char what[160];
        snprintf(what, sizeof what, "problem %d: heads %d/%d, dim %d/%d, page %d, layout %d, list %d",
                 (int)n, (int)s.heads, (int)s.kv_heads, (int)s.head_dim, (int)s.head_dim_v,
                 (int)s.page_size, (int)s.layout, (int)p.a.max_list);
        result out;
        good = good && run_on_gpu(p, options(SANTA_DENSE, 0), &out) && lists_compare(p, out, what);
        lists_free(&x);
        if (!good) break;
    }
}

/* The same bits where a CTA of k_list_groups has one part and where it has all of a list. */
static void latents_of_many_sequences(void) {
    NEED_DEVICE();
    for (int64_t heads : {5, 40}) {
        if (on_emulator && heads != 5) continue;
        ref_spec s = spec16(heads, 1, 257, 264);
        s.head_dim_v = 256;
        s.batch      = 70;
        problem all(s);
        put_v_in_k(&all, 0);
        totals t = {0, 0, 0};
        result together;
        if (!compare(all, options(SANTA_DENSE, 0), &t)
            || !run_on_gpu(all, options(SANTA_DENSE, 0), &together))
            return;
        for (int64_t b : {0, 33, 69}) {
            ref_spec alone = s;
            alone.batch = 1;
            alone.first_sequence = b;
            problem p(alone);
            put_v_in_k(&p, 0);
            result r;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
            CHECK_MSG(r.same_request(0, together, b), "%d heads: sequence %d alone has other bits",
                      (int)heads, (int)b);
        }
    }
}

/* V in K's rows, and scores far from 0: where a factor rounds by more than a weight is wide; of
   products that are near the end of floats, and with the factor are not. */
static void latents_of_far_scores(void) {
    NEED_DEVICE();
    for (santa_dtype type : {SANTA_F16, SANTA_BF16})
        for (int64_t heads : {5, 40})
            for (float scale : {1e4f, 1e6f, 1e8f, 1e11f, -1e8f, 0x1p-120f}) {
                const bool far_products = scale < 1.0f && scale > 0.0f;
                if (far_products && type == SANTA_F16) continue;
                ref_spec s = spec16(heads, 1, 150, 320, type);
                s.head_dim_v = 264;
                s.sm_scale   = scale;
                problem p(s);
                if (far_products) {                 /* -2.6e38, of each key */
                    for (int64_t h = 0; h < heads; h++) ref_set(&p.a.q, 0, 0, h, 300, 0x1.8p100);
                    for (int64_t j = 0; j < s.len; j++) ref_set(&p.a.k, 0, j, 0, 300, -0x1p27);
                }
                put_v_in_k(&p, 0);
                santa_stats cpu;
                result r;
                const santa_options o = options(SANTA_DENSE, 0);
                if (!ref_run(&p, &o, &cpu) || !run_on_gpu(p, o, &r)) return;
                for (int64_t h = 0; h < heads; h++) {
                    double norm;
                    const double difference = apart(p, r, 0, 0, h, &norm), x = p.lse[h],
                                 y = r.lse[(size_t)h];
                    CHECK_MSG(difference <= 1e-6 * norm && fabs(x - y) <= 1e-6 * fabs(x),
                              "type %d, scale %g, head %d of %d: off by %g of %g, lse %g is %g", type,
                              (double)scale, (int)h, (int)heads, sqrt(difference), sqrt(norm), x, y);
                }
            }
}

/* Scores so large that the next number is 8 more, in base 2: what a sum so far is kept for must
   not be rounded to that. */
static void many_scores_a_step_apart(void) {
    NEED_DEVICE();
    for (int inside = 0; inside < 2; inside++) {
        ref_spec s = spec16(5, 1, 150, 320, SANTA_F16);
        s.head_dim_v = 264;
        s.sm_scale   = 1.01f * 65536.0f / 1.44269504f;
        problem p(s);
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t c = 0; c < s.head_dim; c++)
                ref_set(&p.a.q, 0, 0, h, c, p.q[h * s.head_dim + c] = c == 0 ? 1.0 : c == 1 ? 0x1p-7 : 0.0);
        for (int64_t j = 0; j < s.len; j++)
            for (int64_t c = 0; c < 2; c++)
                ref_set(&p.a.k, 0, j, 0, c,
                        p.k[j * s.head_dim + c] = c == 0 ? 1024.0 : j == 100 ? 0x1p-6 : 0.0);
        if (inside) put_v_in_k(&p, 0);
        result r;
        if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
        std::vector<double> want((size_t)s.head_dim_v);
        for (int64_t h = 0; h < s.heads; h++) {
            double difference = 0.0, norm = 0.0;
            ref_dense(&p, 0, 0, h, want.data(), NULL);
            for (int64_t c = 0; c < s.head_dim_v; c++) {
                const double x = want[(size_t)c], d = ref_get(&r.out, 0, 0, h, c) - x;
                if (c == 0 && inside) continue;     /* of all keys the same */
                difference += d * d;
                norm += x * x;
            }
            CHECK_MSG(difference <= 0.01 * norm, "V %s K, head %d: off by %g of %g",
                      inside ? "in" : "beside", (int)h, sqrt(difference), sqrt(norm));
        }
    }
}

/* What a row gets is the same bits alone and beside others; a bad entry of the block table, NaN
   in K and in V show in the rows that see them alone. */
static void many_heads_apart(void) {
    NEED_DEVICE();
    for (int64_t d : {264, 576, 320}) {
        const bool inside = d == 320;               /* V in K's rows */
        ref_spec s = spec16(70, 1, 400, d);
        s.head_dim_v = d == 576 ? 512 : d == 320 ? 264 : 48;
        s.page_size  = 16;
        s.batch      = 3;
        problem all(s);
        if (inside) put_v_in_k(&all, 0);
        result together;
        if (!run_on_gpu(all, options(SANTA_DENSE, 0), &together)) return;
        for (int64_t b = 0; b < 3; b++) {
            ref_spec alone = s;
            alone.batch = 1;
            alone.first_sequence = b;
            problem p(alone);
            if (inside) put_v_in_k(&p, 0);
            result r;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
            CHECK_MSG(r.same_request(0, together, b), "head_dim %d: sequence %d alone has other bits",
                      (int)d, (int)b);
        }
        for (int what = 0; what < 3; what++) {
            problem p(s);
            if (inside) put_v_in_k(&p, 0);
            if (what == 0) ref_set(&p.a.k, p.block_table[p.a.max_pages + 3], 5, 0, 7, (double)test_nan());
            if (what == 1) ref_set(&p.a.v, p.block_table[p.a.max_pages + 3], 5, 0, 7, (double)test_nan());
            if (what == 2) p.block_table[p.a.max_pages + 3] = 1 << 30;
            result r;
            if (!run_on_gpu(p, options(SANTA_DENSE, 0), &r)) return;
            for (int64_t b = 0; b < 3; b++) {
                const int64_t nans = r.nans(b, 0, 69), every = what == 1 && !inside ? 1 : s.head_dim_v + 1;
                CHECK_MSG(nans == (b != 1 ? 0 : every), "%d: %d NaN in sequence %d", what, (int)nans,
                          (int)b);
                if (b != 1) CHECK(r.same_request(b, together, b));
            }
        }
    }
}
