/* k_scales and v_scales: a scale for each row of K and V. Numbers are compared to float64;
   scales that are powers of two must give the bits of a K and V that were multiplied
   beforehand, whatever the method. */
#include "copy.h"

static void tasks_backwards(void *user, int64_t count, santa_task task, void *context) {
    (void)user;
    while (count-- > 0) task(context, count);
}

static ref_spec some_spec(test_rng *r, int turn) {
    static const santa_dtype types[] = {SANTA_F32, SANTA_E4M3, SANTA_F16, SANTA_Q8_0, SANTA_BF16,
                                        SANTA_Q4_0, SANTA_E5M2};
    const santa_dtype k = types[turn % 7], v = types[turn / 2 % 7];
    const int64_t kv_heads = 1 + test_below(r, 3);
    ref_spec s = ref_spec_make(kv_heads * (1 + test_below(r, 5)), kv_heads, 20 + test_below(r, 300),
                               ref_is_blocks(k) ? 64 : 8 * (1 + test_below(r, 9)));
    s.head_dim_v = ref_is_blocks(v) ? 32 : 1 + test_below(r, 70);
    s.k_type     = k;
    s.v_type     = v;
    s.batch      = 1 + test_below(r, 2);
    s.q_len      = turn % 4 == 3 ? 1 + test_below(r, 3) : 1;
    s.causal     = (int)test_below(r, 2);
    s.window     = turn % 5 == 1 ? 1 + test_below(r, 90) : 0;
    s.sinks      = turn % 3 == 1;
    s.alibi      = turn % 7 == 2;
    s.soft_cap   = turn % 6 == 4 ? 5.0f : 0.0f;
    s.ragged     = turn % 4 == 2;
    s.page_size  = turn % 3 == 2 ? 5 + test_below(r, 40) : 0;
    s.layout     = (ref_layout)(turn % (ref_is_blocks(k) || ref_is_blocks(v) ? REF_STRIDED : REF_LAYOUTS));
    s.row_scales = 1;
    s.scale_type = types[turn % 3 == 1 ? 0 : turn % 3 + 2 * (turn % 3 == 2)];
    s.stream     = (uint64_t)turn + 1;
    if (s.scale_type == SANTA_Q8_0) s.scale_type = SANTA_F16;
    return s;
}

static void dense_matches_float64(void) {
    test_rng r = test_rng_make(test_seed + 900);
    for (int turn = 0; turn < (test_quick ? 30 : 150); turn++) {
        ref_spec s = some_spec(&r, turn);
        if (turn % 5 == 4) s.q_len = 32 + test_below(&r, 20);                    /* by panels */
        ref_problem p;
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        ref_build(&p, &s);
        o.isa = turn % 2 ? SANTA_ISA_AUTO : SANTA_ISA_SCALAR;
        double *want = ref_doubles(s.head_dim_v);
        int ok = ref_run(&p, &o, NULL);
        for (int64_t x = 0; ok && x < s.batch * s.q_len * s.heads; x++) {
            const int64_t b = x / (s.q_len * s.heads), i = x / s.heads % s.q_len, h = x % s.heads;
            const double lse = ref_dense(&p, b, i, h, want, NULL);
            ok &= CHECK_MSG(lse == (double)p.lse[x] || fabs(lse - (double)p.lse[x]) < 3e-5,
                            "turn %d: lse %.9g, not %.9g", turn, (double)p.lse[x], lse);
            for (int64_t c = 0; ok && c < s.head_dim_v; c++)
                ok &= CHECK_NEAR(ref_get(&p.a.out, b, i, h, c), want[c], 3e-5, 3e-5);
        }
        free(want);
        ref_free(&p);
    }
}

/* Of kind 0: exact scores; then estimated ones, and those from a copy of K. */
static int has_kind(santa_method m, int kind) {
    const unsigned traits = santa_method_traits(m);
    return kind == 0 || (kind < 3 ? !(traits & SANTA_SPARSE) : (traits & SANTA_PROXIES) != 0);
}

static void *copy_of(ref_problem *p) {
    const size_t bytes = santa_proxy_size(&p->a);
    p->a.proxy = test_alloc(bytes);
    memset(p->a.proxy, 0xff, bytes);
    CHECK_STATUS(santa_proxy_encode(&p->a, 0, p->spec.len, NULL), SANTA_OK);
    return p->a.proxy;
}

/* V with its tokens side by side, whatever it was. */
static void values_by_feature(ref_problem *p) {
    const ref_spec *s = &p->spec;
    free(p->memory[2]);
    p->a.v = ref_tensor(s->v_type, s->batch, s->head_dim_v, s->kv_heads, s->len, REF_HND, &p->memory[2]);
    const int64_t tokens = p->a.v.stride[3], features = p->a.v.stride[1];
    p->a.v.shape[1] = s->len;
    p->a.v.shape[3] = s->head_dim_v;
    p->a.v.stride[1] = tokens;
    p->a.v.stride[3] = features;
    ref_write(p);
}

static void powers_of_two_change_no_bit(void) {
    static const santa_scores_method kinds[] = {SANTA_SCORES_EXACT, SANTA_SCORES_BERNOULLI_STRAT,
                                                SANTA_SCORES_GROUP_IID, SANTA_SCORES_PROXY};
    test_rng r = test_rng_make(test_seed + 901);
    int turn = 0;
    for (int again = 0; again < (test_quick ? 1 : 4); again++)
        for (int m = 0; m < SANTA_METHOD_COUNT; m++)
            for (int kind = 0; kind < 4; kind++, turn++) {
                if (!has_kind((santa_method)m, kind)) continue;
                ref_spec s = some_spec(&r, turn);
                s.k_type = s.v_type = SANTA_F32;
                s.row_scales = 2;
                s.head_dim = (s.head_dim + 7) / 8 * 8;
                if (s.page_size) s.page_size = 16 * (1 + test_below(&r, 3));
                if (m == SANTA_SAMPLE_ATTENTION) { s.causal = 1; s.q_len = 40; }
                if (turn % 6 == 5) s.len += 1000;
                ref_problem x, y;
                ref_build(&x, &s);
                s.row_scales = 0;
                ref_build(&y, &s);
                const int64_t rows = s.batch * s.len * s.kv_heads, results = s.batch * s.q_len * s.heads;
                memcpy(y.k, x.k, (size_t)(rows * s.head_dim) * sizeof *y.k);
                memcpy(y.v, x.v, (size_t)(rows * s.head_dim_v) * sizeof *y.v);
                ref_write(&y);
                ref_assign(&y);
                if (!s.page_size && turn % 4 == 1) { values_by_feature(&x); values_by_feature(&y); }
                santa_options o = ref_options((santa_method)m, 32, 5);
                o.isa = turn % 3 ? SANTA_ISA_AUTO : SANTA_ISA_SCALAR;
                if (turn % 2) { o.num_threads = 3; o.parallel_for = tasks_backwards; }
                o.scores = kinds[kind];
                santa_clear_unused_options(&o);
                if (!ref_has_error(o.method)) x.a.std_error = y.a.std_error = NULL;
                if (kind == 3) { copy_of(&x); copy_of(&y); }
                if (kind == 3 && CHECK_INT(santa_proxy_size(&x.a), santa_proxy_size(&y.a)) && !s.page_size)
                    CHECK(!memcmp(x.a.proxy, y.a.proxy, santa_proxy_size(&x.a)));
                for (int64_t i = 0; i < results; i++) x.std_error[i] = y.std_error[i] = 0.0f;
                if (ref_run(&x, &o, NULL) & ref_run(&y, &o, NULL)) {
                    CHECK_MSG(!memcmp(x.lse, y.lse, (size_t)results * sizeof *x.lse), "turn %d: lse", turn);
                    CHECK_MSG(!memcmp(x.std_error, y.std_error, (size_t)results * sizeof *x.lse),
                              "turn %d: std_error", turn);
                    for (int64_t i = 0; i < results * s.head_dim_v; i++) {
                        const int64_t b = i / (s.q_len * s.heads * s.head_dim_v),
                                      q = i / (s.heads * s.head_dim_v) % s.q_len,
                                      h = i / s.head_dim_v % s.heads, c = i % s.head_dim_v;
                        const double got  = ref_get(&x.a.out, b, q, h, c),
                                     want = ref_get(&y.a.out, b, q, h, c);
                        if (!CHECK_MSG(got == want, "turn %d, %s: out %.9g, not %.9g", turn,
                                       santa_method_name(o.method), got, want))
                            break;
                    }
                }
                free(x.a.proxy);
                free(y.a.proxy);
                ref_free(&x);
                ref_free(&y);
            }
}

/* Strides of 0: a scale for each KV head, or one for all. */
static void scales_may_be_shared(void) {
    for (int per_head = 0; per_head < 2; per_head++) {
        const uint16_t scale[4] = {santa_f32_to_bf16(0.5f), santa_f32_to_bf16(4.0f), 0x7fc0, 0x7fc0};
        ref_spec s = ref_spec_make(4, 2, 90, 16);
        ref_problem p;
        santa_options o = ref_options(SANTA_DENSE, 0, 0);
        double *want = ref_doubles(16);
        ref_build(&p, &s);
        for (int64_t i = 0; i < 90 * 2 * 16; i++) p.k[i] *= per_head && i / 16 % 2 ? 4.0 : 0.5;
        for (int64_t i = 0; i < 90 * 2 * 16; i++) p.v[i] *= per_head && i / 16 % 2 ? 4.0 : 0.5;
        p.a.k_scales = santa_view(scale, SANTA_BF16, 1, 90, 2, 1);
        p.a.k_scales.stride[0] = p.a.k_scales.stride[1] = 0;
        p.a.k_scales.stride[2] = per_head;
        p.a.v_scales = p.a.k_scales;
        if (ref_run(&p, &o, NULL))
            for (int64_t h = 0; h < 4; h++) {
                CHECK_NEAR(p.lse[h], ref_dense(&p, 0, 0, h, want, NULL), 1e-5, 1e-5);
                for (int64_t c = 0; c < 16; c++)
                    CHECK_NEAR(ref_get(&p.a.out, 0, 0, h, c), want[c], 1e-5, 1e-5);
            }
        free(want);
        ref_free(&p);
    }
}

/* A NaN or infinity among the scales shows where its row is read, and nowhere else. */
static void nan_shows_where_it_is_read(void) {
    for (int m = 0; m < SANTA_METHOD_COUNT; m++)
        for (int q_len = 1; q_len <= 33; q_len += 32)
            for (int place = 0; place < 12; place++) {
                static const int64_t keys[3] = {110, 150, 20};  /* all rows see, the last ones, none */
                const int64_t key = keys[place / 4];
                const int in_v = place % 2, is_nan = place / 2 % 2;
                const double bad = is_nan ? (double)test_nan() : REF_INF;
                ref_spec s = ref_spec_make(4, 2, 160, 16);
                ref_problem p;
                santa_options o = ref_options((santa_method)m, 0, 3);
                s.q_len = q_len;
                s.causal = 1;
                s.window = 100;
                s.row_scales = 1;
                ref_build(&p, &s);
                if (!ref_has_error(o.method)) p.a.std_error = NULL;
                /* of KV head 1; an infinite score may be below 0 */
                ref_set(in_v ? &p.a.v_scales : &p.a.k_scales, 0, key, 1, 0, bad);
                if (!ref_run(&p, &o, NULL)) { ref_free(&p); continue; }
                for (int64_t x = 0; x < q_len * 4; x++) {
                    const int64_t position = 160 - q_len + x / 4;
                    const int is_seen = key <= position && key > position - 100;
                    int nan = test_is_nan(p.lse[x]), finite = 1;
                    for (int64_t c = 0; c < 16; c++) {
                        const double out = ref_get(&p.a.out, 0, x / 4, x % 4, c);
                        nan &= test_is_nan((float)out);
                        finite &= out - out == 0.0;
                    }
                    if (!is_seen || x % 4 < 2)
                        CHECK_MSG(finite, "%s: place %d", santa_method_name(o.method), place);
                    else if (!in_v && (is_nan || o.method == SANTA_DENSE))
                        CHECK_MSG(nan || (!is_nan && finite), "%s: place %d",
                                  santa_method_name(o.method), place);
                    else if (o.method == SANTA_DENSE) CHECK(!finite);
                }
                ref_free(&p);
            }
}

static void steps_know_them(void) {
    ref_spec s = ref_spec_make(4, 2, 100, 24);
    ref_problem p;
    santa_options o = ref_options(SANTA_DENSE, 0, 0);
    double want[100], row[24];
    float scores[2 * 100], out[24];
    const int32_t index[3] = {7, 91, 7};
    const float weight[3] = {0.5f, -2.0f, 1.0f};
    s.k_type = s.v_type = SANTA_E4M3;
    s.page_size = 16;
    s.row_scales = 1;
    ref_build(&p, &s);
    p.a.std_error = NULL;
    const size_t bytes = santa_workspace_size(&p.a, &o);
    void *work = test_alloc(bytes);
    CHECK_STATUS(santa_scores(&p.a, &o, 0, 0, 1, scores, 100, work, bytes), SANTA_OK);
    CHECK_INT(ref_scores(&p, 0, 0, 3, want), 100);
    for (int j = 0; j < 100; j++) CHECK_NEAR(scores[100 + j], want[j], 1e-5, 1e-5);
    p.a.v_scale = 2.0f;
    CHECK_STATUS(santa_gather(&p.a, 0, 1, index, weight, 3, out), SANTA_OK);
    for (int c = 0; c < 24; c++) {
        row[c] = 2.0 * (1.5 * p.v[(7 * 2 + 1) * 24 + c] - 2.0 * p.v[(91 * 2 + 1) * 24 + c]);
        CHECK_NEAR(out[c], row[c], 1e-5, 1e-5);
    }
    free(work);
    ref_free(&p);
}

const test_case suite_scales[] = {
    {"dense matches float64", dense_matches_float64},
    {"powers of two change no bit", powers_of_two_change_no_bit},
    {"scales may be shared", scales_may_be_shared},
    {"a NaN shows where it is read", nan_shows_where_it_is_read},
    {"steps know them", steps_know_them},
    {0, 0},
};
