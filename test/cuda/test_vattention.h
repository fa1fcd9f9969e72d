/* vAttention on the GPU; a part of test_cuda.cu. The CPU is the definition: the same keys for the same seed, but
   where a score is rounded across the border of what is heavy, or a budget across a whole number. */

enum va_heavy { VA_NONE, VA_INDEX, VA_ORACLE, VA_COPY, VA_HEAVIES };

/* A problem with a few keys that stand out, a copy of K, and an array of heavy keys. */
struct va_problem : with_copy {
    std::vector<int32_t>     index;
    std::vector<santa_audit> audit;

    explicit va_problem(const ref_spec &s, test_rng *r, bool peaks) : with_copy(s) {
        const int64_t rows = s.batch * s.q_len * s.heads;
        for (int64_t j = 5; peaks && j < s.len; j += 41)
            for (int64_t b = 0; b < s.batch; b++)
                for (int64_t kv = 0; kv < s.kv_heads; kv++) {
                    const int64_t head = kv * (s.heads / s.kv_heads) + j % (s.heads / s.kv_heads);
                    for (int64_t c = 0; c < s.head_dim; c++)
                        k[((b * s.len + j) * s.kv_heads + kv) * s.head_dim + c]
                            += 0.35 * q[(b * s.q_len * s.heads + head) * s.head_dim + c];
                }
        if (peaks) {
            for (int64_t i = 0; i < s.batch * s.len * s.kv_heads * s.head_dim; i++) k[i] = ref_round(s.k_type, k[i]);
            ref_write(this);
            encode();
        }
        audit.resize((size_t)rows);
        index.resize((size_t)(rows * 16));
        for (int32_t &x : index) x = (int32_t)test_below(r, s.len + 20) - 10;
    }
    santa_options options(va_heavy heavy, int64_t tokens) {
        santa_options o = ::options(SANTA_VATTENTION, 0);
        o.vattention.heavy_tokens = heavy == VA_NONE ? SANTA_NONE : tokens;
        if (heavy == VA_COPY) o.scores = SANTA_SCORES_PROXY;
        if (heavy == VA_INDEX) {
            o.vattention.heavy_tokens = ref_min(tokens, 16);
            o.vattention.heavy_index  = index.data();
            o.vattention.heavy_stride = 16;
        }
        o.vattention.audit = audit.data();
        return o;
    }
};

struct va_totals { int64_t heads, keys, budgets, values; };

/* Heads whose fixed keys, budgets, values differ; the last two of heads that do not differ before. */
static bool va_compare(va_problem &p, const santa_options &o, va_totals *t) {
    const ref_spec &s = p.spec;
    const double eps = s.out_type == SANTA_F32 ? 0.0 : 2.0 * ref_epsilon(s.out_type), v_max = largest_row_of_v(p);
    on_gpu g(p.a, o);
    if (!g.run()) return false;
    const result r = g.get();
    const std::vector<santa_audit> audit = g.audits();
    santa_stats cpu;
    if (!ref_run(&p, &o, &cpu)) return false;
    int64_t keys = 0, budgets = 0, values = 0;
    for (int64_t row = 0; row < s.batch * s.q_len * s.heads; row++) {
        const int64_t b = row / (s.q_len * s.heads), i = row / s.heads % s.q_len, h = row % s.heads;
        const santa_audit &x = audit[(size_t)row], &y = p.audit[(size_t)row];
        t->heads++;
        if (x.num_keys != y.num_keys || x.num_fixed != y.num_fixed || x.num_base != y.num_base) { keys++; continue; }
        if (x.budget != y.budget || x.needed != y.needed || x.exact != y.exact) {
            budgets++;
            const double n = (double)x.num_residual, far = fabs((double)(x.needed - y.needed));
            if (!(far <= 2.0 + 0.02 * n)) values += 1000;                  /* not by rounding */
            continue;
        }
        double difference = 0.0, norm = 0.0;
        for (int64_t c = 0; c < s.head_dim_v; c++) {
            const double z = ref_get(&p.a.out, b, i, h, c), d = ref_get(&r.out, b, i, h, c) - z;
            difference += d * d;
            norm += z * z;
        }
        const float lse = r.lse[(size_t)row], want = p.lse[row];
        const double most = s.q_type == s.k_type ? 1e-4 : 1e-3;
        const auto near = [&](double a, double c, double relative) {
            return a == c || fabs(a - c) <= relative * fabs(c) + 1e-9;
        };
        bool good = sqrt(difference) <= (1e-4 + eps) * sqrt(norm) + 2e-6 * v_max
                 && (lse == want || fabs((double)lse - (double)want) <= most);
        good = good && near(x.max_score, y.max_score, 1e-3) && near(x.denominator, y.denominator, 2e-3)
            && near(x.density, y.density, 1e-12) && fabs(x.sigma - y.sigma) <= 2e-3 * y.sigma + 1e-4
            && fabs(x.trace - y.trace) <= 1e-2 * y.trace + 1e-6 * v_max * v_max
            && fabs(x.norm - y.norm) <= 1e-2 * y.norm + 1e-5 * v_max * (double)x.num_keys;
        values += !good;
    }
    t->keys += keys;
    t->budgets += budgets;
    t->values += values;
    if (!keys && !budgets && !values) {
        const santa_stats &z = r.stats;
        CHECK_MSG(z.rows == cpu.rows && z.keys == cpu.keys && z.k_rows_read == cpu.k_rows_read
                      && z.k_features_read == cpu.k_features_read && z.k_features_head == cpu.k_features_head
                      && z.v_rows_read == cpu.v_rows_read && z.v_rows_head == cpu.v_rows_head
                      && z.draws == cpu.draws && z.exact_rows == cpu.exact_rows
                      && z.proxy_rows_read == cpu.proxy_rows_read,
                  "stats: rows %lld %lld, keys %lld %lld, k %lld %lld, v %lld %lld, draws %lld %lld, exact %lld %lld, "
                  "proxy %lld %lld", (long long)z.rows, (long long)cpu.rows, (long long)z.keys, (long long)cpu.keys,
                  (long long)z.k_rows_read, (long long)cpu.k_rows_read, (long long)z.v_rows_read,
                  (long long)cpu.v_rows_read, (long long)z.draws, (long long)cpu.draws, (long long)z.exact_rows,
                  (long long)cpu.exact_rows, (long long)z.proxy_rows_read, (long long)cpu.proxy_rows_read);
    }
    return keys + budgets + values == 0;
}

static void va_check_totals(const va_totals &t) {
    printf("        %lld heads: %lld with other keys, %lld with other budgets, %lld with other values\n",
           (long long)t.heads, (long long)t.keys, (long long)t.budgets, (long long)t.values);
    CHECK(t.keys + t.budgets + t.values <= 4 + t.heads / 50);
}

/* All that a call may be. */
static void va_random(void) {
    NEED_DEVICE();
    const int problems = test_quick ? 40 : 600;
    test_rng r = test_rng_make(41);
    va_totals totals[VA_HEAVIES] = {};
    for (int number = 0; number < problems; number++) {
        const int64_t kv_heads = 1 + test_below(&r, 3),
                      group = (int64_t[]){1, 2, 3, 4, 7, 8, 12, 16}[test_below(&r, 8)];
        ref_spec s = ref_spec_make(kv_heads * group, kv_heads, 1 + test_below(&r, number % 8 ? 1200 : 9000),
                                   8 * (1 + test_below(&r, 16)));
        const santa_dtype types[] = {SANTA_F32, SANTA_F16, SANTA_BF16, SANTA_E4M3};
        s.q_type = types[test_below(&r, 3)];
        s.k_type = types[test_below(&r, 4)];
        s.v_type = types[test_below(&r, 4)];
        s.out_type = types[test_below(&r, 3)];
        if (test_below(&r, 3)) s.q_type = s.v_type = s.k_type = types[1 + test_below(&r, 2)];
        s.head_dim_v = test_below(&r, 2) ? s.head_dim : 1 + test_below(&r, 200);
        s.batch = 1 + test_below(&r, 3);
        s.q_len = 1 + test_below(&r, 3) / 2 * test_below(&r, 3);
        s.ragged = test_below(&r, 2) != 0;
        s.causal = s.q_len > 1 && test_below(&r, 2);
        if (test_below(&r, 5) == 0) s.window = 1 + test_below(&r, s.len);
        if (test_below(&r, 4) == 0) s.page_size = 16 * (1 + test_below(&r, 8));
        s.layout = (ref_layout)test_below(&r, 3);
        s.sinks = test_below(&r, 4) == 0;
        s.alibi = test_below(&r, 8) == 0;
        s.soft_cap = test_below(&r, 8) ? 0.0f : 5.0f;
        s.gain = 0.3 + 2.0 * test_uniform(&r);
        s.stream = (uint64_t)number;
        va_problem p(s, &r, test_below(&r, 2) != 0);
        std::vector<int32_t> lens;
        for (int heavy = 0; heavy < VA_HEAVIES; heavy++) {
            santa_options o = p.options((va_heavy)heavy, test_below(&r, 3) ? 1 + test_below(&r, 40)
                                                         : heavy == VA_INDEX ? 16 : 0);
            santa_vattention_options &v = o.vattention;
            if (heavy == VA_ORACLE && test_below(&r, 6) == 0) v.heavy_tokens = s.len / 2 + 1;
            v.sink_tokens = (int64_t[]){0, SANTA_NONE, 1, 20, 64}[test_below(&r, 5)];
            v.local_tokens = (int64_t[]){0, SANTA_NONE, 7, 50, 64}[test_below(&r, 5)];
            v.base_samples = (int64_t[]){0, 2, 20, 40, s.len / 3 + 2, s.len}[test_below(&r, 6)];
            v.epsilon = (double[]){0.0, 0.02, 0.2, 0.6}[test_below(&r, 4)];
            v.delta = (double[]){0.0, 0.01, 0.2, 0.7}[test_below(&r, 4)];
            v.bound = test_below(&r, 3) ? SANTA_BOUND_CLT : SANTA_BOUND_HOEFFDING;
            v.guarantee = test_below(&r, 3) ? SANTA_GUARANTEE_DENOMINATOR : SANTA_GUARANTEE_FULL;
            if (heavy == VA_COPY && test_below(&r, 2)) {
                o.proxy.sink_tokens = SANTA_NONE;
                o.proxy.local_tokens = 1 + test_below(&r, 100);
                lens.assign((size_t)s.batch, 0);
                for (int32_t &x : lens) x = (int32_t)test_below(&r, s.len + 100);
                p.a.proxy_lens = lens.data();
            }
            if (!va_compare(p, o, &totals[heavy]) && getenv("VERBOSE"))
                printf("        problem %d, heavy %d: %lld keys, heads %lld/%lld, batch %lld, q_len %lld, d %lld, dv %lld, "
                       "types %d%d%d%d, page %lld, window %lld, sink %lld, local %lld, heavy %lld, base %lld, "
                       "eps %g, delta %g, bound %d, full %d\n", number, heavy, (long long)s.len, (long long)s.heads,
                       (long long)s.kv_heads, (long long)s.batch, (long long)s.q_len, (long long)s.head_dim,
                       (long long)s.head_dim_v, s.q_type, s.k_type, s.v_type, s.out_type, (long long)s.page_size,
                       (long long)s.window, (long long)v.sink_tokens, (long long)v.local_tokens,
                       (long long)v.heavy_tokens, (long long)v.base_samples, v.epsilon, v.delta, v.bound, v.guarantee);
            p.a.proxy_lens = NULL;
        }
    }
    for (const va_totals &t : totals) va_check_totals(t);
}

static const test_case va_cases[] = {
    {"va_random", va_random},
    {0, 0}
};
