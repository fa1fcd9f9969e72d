/* Calls every public function once and looks at the result, in whatever way the matrix compiles
   it: with the implementation in this unit (-DSANTA_IMPLEMENTATION), in unit.c, or static in
   both. Prints the instruction set. */
#include "../../santa.h"
#include "../../santa.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#ifdef TWO_UNITS
#ifdef __cplusplus
extern "C"
#endif
santa_status unit_decode(const santa_attention *a, const santa_options *o, void *workspace, size_t bytes);
#endif

enum { N = 200, HEADS = 4, KV_HEADS = 2, DIM = 20, DIM_V = 12, GROUP = HEADS / KV_HEADS,
       SCRATCH = 1 << 18, MANY_ROWS = 70 };

static float q[HEADS * DIM], k[N * KV_HEADS * DIM], v[N * KV_HEADS * DIM_V], out[HEADS * DIM_V],
    dense[HEADS * DIM_V];
static float scores[GROUP * N], weight[N], row[DIM_V], columns[N * KV_HEADS * DIM];
static int32_t index_of[N];
static union { double align; unsigned char bytes[SCRATCH]; } workspace;

static int wrong = 0;
static void expect(int ok, const char *what, int line) {
    if (ok) return;
    printf("use.c:%d: %s\n", line, what);
    wrong = 1;
}
#define EXPECT(cond) expect((cond) ? 1 : 0, #cond, __LINE__)

/* Distance relative to the larger, false for NaN even where the compiler folds isnan: the
   comparison is on bits. */
static int near_to(double x, double y, double tolerance) {
    const double  distance = fabs(x - y), limit = tolerance * (1.0 + fabs(y));
    unsigned char bits[sizeof(double)];
    uint64_t      word;
    memcpy(bits, &distance, sizeof bits);
    memcpy(&word, bits, sizeof word);
    return (word & 0x7fffffffffffffffu) < 0x7ff0000000000000u && distance <= limit;
}

static santa_status decode(const santa_attention *a, const santa_options *o, santa_stats *stats) {
#ifdef TWO_UNITS
    if (!stats) return unit_decode(a, o, workspace.bytes, SCRATCH);
#endif
    return santa_decode(a, o, workspace.bytes, SCRATCH, stats);
}

static void attend(void) {
    santa_attention a;
    santa_options   o;
    santa_stats     stats;
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    for (int i = 0; i < HEADS * DIM; i++)           q[i] = (float)((i * 37) % 19) * 0.1f - 0.9f;
    for (int i = 0; i < N * KV_HEADS * DIM; i++)    k[i] = (float)((i * 53) % 23) * 0.1f - 1.1f;
    for (int i = 0; i < N * KV_HEADS * DIM_V; i++)  v[i] = (float)((i * 71) % 29) * 0.1f - 1.4f;
    a.q   = santa_view(q,   SANTA_F32, 1, 1, HEADS, DIM);
    a.k   = santa_view(k,   SANTA_F32, 1, N, KV_HEADS, DIM);
    a.v   = santa_view(v,   SANTA_F32, 1, N, KV_HEADS, DIM_V);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, DIM_V);
    EXPECT(santa_view_hnd(k, SANTA_F32, 1, N, KV_HEADS, DIM).stride[2] == (int64_t)N * DIM);
    EXPECT(santa_check(&a, &o) == SANTA_OK);
    santa_problem problem;
    EXPECT(santa_problem_make(&a, &o, &problem) == SANTA_OK && problem.group == GROUP);
    EXPECT(santa_workspace_size(&a, &o) > 0 && santa_workspace_size(&a, &o) <= SCRATCH);
    EXPECT(decode(&a, &o, NULL) == SANTA_OK);
    for (int h = 0; h < HEADS; h++) {                         /* dense against the formula */
        double sum = 0.0, o_h[DIM_V] = {0};
        for (int j = 0; j < N; j++) {
            double s = 0.0;
            const int row_of_j = j * KV_HEADS + h / GROUP;
            for (int i = 0; i < DIM; i++) s += (double)q[h * DIM + i] * (double)k[row_of_j * DIM + i];
            s = exp(s / sqrt((double)DIM));
            sum += s;
            for (int i = 0; i < DIM_V; i++) o_h[i] += s * (double)v[row_of_j * DIM_V + i];
        }
        for (int i = 0; i < DIM_V; i++) EXPECT(near_to((double)out[h * DIM_V + i], o_h[i] / sum, 1e-4));
    }
    memcpy(dense, out, sizeof out);
    a.k = santa_keys_feature_major(&a.k, columns);
    for (int m = 0; m < SANTA_METHOD_COUNT; m++) {
        o.method = (santa_method)m;
        o.num_samples = 4096; /* many draws: every method is near dense, top-k equal */
        EXPECT(santa_method_from_name(santa_method_name(o.method)) == o.method &&
               santa_method_traits(o.method) != 0);
        if (santa_method_traits(o.method) & SANTA_ROUTES) continue;   /* see buckets */
        EXPECT(!santa_unused_option(&o));
        o.top_p = 0.5;
        EXPECT(m == SANTA_TOP_P || !strcmp(santa_unused_option(&o), "top_p"));
        santa_clear_unused_options(&o);
        EXPECT(!santa_unused_option(&o) && (m == SANTA_TOP_P || !(o.top_p > 0.0)));
        o.top_p = 0.0;
        EXPECT(decode(&a, &o, NULL) == SANTA_OK);
        EXPECT(decode(&a, &o, &stats) == SANTA_OK);
        EXPECT(stats.keys == (int64_t)N * KV_HEADS && stats.rows == HEADS);
        if (m != SANTA_TOP_P)                                 /* leaves out a tenth of the mass */
            for (int i = 0; i < HEADS * DIM_V; i++) EXPECT(near_to((double)out[i], (double)dense[i], 0.1));
    }

    o.method      = SANTA_SYS;                                /* the steps give what the call gives */
    o.num_samples = 64;
    o.offset = santa_offset(3, 5);
    EXPECT(o.offset == 5 * 65536 + 3);
    EXPECT(decode(&a, &o, NULL) == SANTA_OK);
    EXPECT(santa_scores(&a, &o, 0, 0, 1, scores, N, workspace.bytes, SCRATCH) == SANTA_OK);
    santa_stream_id id = {0, GROUP, 0};
    santa_draws     draws;
    memset(&draws, 0, sizeof draws);
    draws.index    = index_of;
    draws.weight   = weight;
    draws.capacity = N;
    EXPECT(santa_sample_capacity(N, &o) <= N);
    EXPECT(santa_sample_workspace_size(N, &o) <= SCRATCH);
    EXPECT(santa_sample(scores, N, &o, id, &draws, workspace.bytes, SCRATCH) == SANTA_OK);
    EXPECT(santa_gather(&a, 0, 1, index_of, weight, draws.rows, row) == SANTA_OK);
    for (int i = 0; i < DIM_V; i++) EXPECT(near_to((double)row[i], (double)out[GROUP * DIM_V + i], 1e-5));

    float lse = 0.0f, other_lse = 0.0f, half[DIM_V] = {0};
    EXPECT(santa_merge(1, DIM_V, row, &lse, half, &other_lse) == SANTA_OK);
    for (int i = 0; i < DIM_V; i++)
        EXPECT(near_to((double)row[i], 0.5 * (double)out[GROUP * DIM_V + i], 1e-5));
    EXPECT(near_to((double)lse, log(2.0), 1e-6));
}

static void measure(void) {
    float  p[8];
    double iid = 0.0, strat = 0.0, sys = 0.0, pps = 0.0, rows = 0.0;
    for (int j = 0; j < 8; j++) p[j] = 0.125f;
    EXPECT(santa_variance_workspace_size(8, DIM_V) <= SCRATCH);
    EXPECT(santa_variance_iid  (p, 8, v, DIM_V, DIM_V, 4, &iid,   workspace.bytes, SCRATCH) == SANTA_OK);
    EXPECT(santa_variance_strat(p, 8, v, DIM_V, DIM_V, 4, &strat, workspace.bytes, SCRATCH) == SANTA_OK);
    EXPECT(santa_variance_sys  (p, 8, v, DIM_V, DIM_V, 4, &sys,   workspace.bytes, SCRATCH) == SANTA_OK);
    EXPECT(santa_variance_pps(p, NULL, 8, v, DIM_V, DIM_V, 4, &pps, workspace.bytes, SCRATCH) == SANTA_OK);
    EXPECT(iid > 0.0 && strat <= iid && sys >= 0.0 && pps >= 0.0);
    EXPECT(santa_expected_distinct(SANTA_SYS, p, 8, 4, &rows) == SANTA_OK && near_to(rows, 4.0, 1e-6));
    EXPECT(near_to(santa_effective_keys(p, 8), 8.0, 1e-6));
    EXPECT(near_to(santa_relative_l2(v, v, 8), 0.0, 0.0));
    EXPECT(near_to(santa_cosine(v, v, 8), 1.0, 1e-6));

    santa_budget in;
    int64_t      b[3] = {0, 0, 0};
    memset(&in, 0, sizeof in);
    in.epsilon = in.delta = 0.1;
    in.population = 10000;
    in.sigma = in.trace = 1.0;
    in.denominator = in.norm = 10000.0;
    EXPECT(santa_budget_denominator(&in, &b[0]) == SANTA_OK);
    EXPECT(santa_budget_numerator  (&in, &b[1]) == SANTA_OK);
    EXPECT(santa_budget_full       (&in, &b[2]) == SANTA_OK);
    EXPECT(b[0] > 0 && b[1] > 0 && b[2] > b[0] && b[2] > b[1]);
    EXPECT(near_to(santa_normal_quantile(0.975), 1.959964, 1e-6));
}

static void convert_and_draw(void) {
    uint32_t counter[4] = {0, 0, 0, 0}, key[2] = {0, 0}, word[4];
    santa_philox(counter, key, word);
    EXPECT(word[0] == 0x6627e8d5u && word[1] == 0xe169c58du && word[2] == 0xbc57ac4cu &&
           word[3] == 0x9b00dbd8u);
    EXPECT(santa_random(7, 65537, 3, 0, 5, 0, 2) != santa_random(8, 65537, 3, 0, 5, 0, 2));
    EXPECT(near_to((double)santa_f16_to_f32(santa_f32_to_f16(-1.5f)), -1.5, 0.0));
    EXPECT(near_to((double)santa_bf16_to_f32(santa_f32_to_bf16(0.75f)), 0.75, 0.0));
    EXPECT(near_to((double)santa_e4m3_to_f32(santa_f32_to_e4m3(-1.75f)), -1.75, 0.0));
    EXPECT(near_to((double)santa_e4m3_to_f32(santa_f32_to_e4m3(-0.625f)), -0.625, 0.0));
    EXPECT(near_to((double)santa_e5m2_to_f32(santa_f32_to_e5m2(-0.625f)), -0.625, 0.0));
    float blocks[64];
    santa_f32_to_q8_0(q, 64, workspace.bytes);
    santa_q8_0_to_f32(workspace.bytes, 64, blocks);
    for (int i = 0; i < 64; i++) EXPECT(near_to((double)blocks[i], (double)q[i], 0.5 * 0.9 / 127.0));
    santa_f32_to_q4_0(q, 64, workspace.bytes);
    santa_q4_0_to_f32(workspace.bytes, 64, blocks);
    for (int i = 0; i < 64; i++) EXPECT(near_to((double)blocks[i], (double)q[i], 1.01 * 0.9 / 8.0));
    EXPECT(santa_register_backend(SANTA_CPU, NULL) != SANTA_OK);
    EXPECT(*santa_status_string(SANTA_ERR_NO_BACKEND) != 0);
}

/* Draws from a copy of K: with as many draws as there are, all keys, as exact attention. */
static void copy(void) {
    static union { double align; unsigned char bytes[1 << 14]; } proxy;
    santa_attention a;
    santa_options   o;
    santa_stats     stats;
    double          off = 0.0;
    int             i;
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, 8);
    a.k = santa_view(k, SANTA_F32, 1, N, KV_HEADS, 8);
    a.v = santa_view(v, SANTA_F32, 1, N, KV_HEADS, DIM_V);
    a.out = santa_view(dense, SANTA_F32, 1, 1, HEADS, DIM_V);
    EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, NULL) == SANTA_OK);
    EXPECT(santa_proxy_size(&a) > 0 && santa_proxy_size(&a) <= sizeof proxy.bytes);
    a.proxy = proxy.bytes;
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, DIM_V);
    EXPECT(santa_proxy_encode(&a, 0, N - 10, NULL) == SANTA_OK);
    EXPECT(santa_proxy_append(&a, 10, NULL) == SANTA_OK);
    o.method = SANTA_PPS;
    o.scores = SANTA_SCORES_PROXY;
    o.num_samples = SANTA_MAX_SAMPLES;
    EXPECT(santa_workspace_size(&a, &o) <= SCRATCH);
    EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, &stats) == SANTA_OK);
    for (i = 0; i < HEADS * DIM_V; i++) off += fabs((double)out[i] - (double)dense[i]);
    EXPECT(off < 1e-3 && stats.proxy_rows_read > 0);
}

/* Keys in buckets: with as many draws as there are keys, all of them, as exact attention. */
static void buckets(void) {
    static union { int32_t align; unsigned char bytes[1 << 13]; } index;
    static float    centroids[KV_HEADS * 3 * DIM];
    santa_attention a;
    santa_options   o;
    santa_buckets   r;
    santa_tensor    keys;
    santa_stats     stats;
    double          off = 0.0;
    int             h, i;
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    memset(&r, 0, sizeof r);
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, DIM);
    a.k = keys = santa_view(k, SANTA_F32, 1, N, KV_HEADS, DIM);
    a.v = santa_view(v, SANTA_F32, 1, N, KV_HEADS, DIM_V);
    a.out = santa_view(dense, SANTA_F32, 1, 1, HEADS, DIM_V);
    EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, NULL) == SANTA_OK);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, DIM_V);
    EXPECT(santa_kmeans_workspace_size(N, DIM, 3) <= SCRATCH);
    for (h = 0; h < KV_HEADS; h++)
        EXPECT(santa_kmeans(k + h * DIM, N, KV_HEADS * DIM, DIM, 3, 0, 1, centroids + h * 3 * DIM, NULL,
                            workspace.bytes, SCRATCH) == SANTA_OK);
    r.num_buckets = 3;
    r.centroids   = centroids;
    r.index       = index.bytes;
    a.buckets     = &r;
    EXPECT(santa_buckets_size(&a) > 0 && santa_buckets_size(&a) <= sizeof index.bytes);
    EXPECT(santa_buckets_assign(&a, &keys, 0, NULL) == SANTA_OK);
    EXPECT(santa_buckets_find(&a, 0, 0, N - 1) >= 0);
    o.method = SANTA_SAAP;
    o.num_samples = SANTA_MAX_SAMPLES;
    EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, &stats) == SANTA_OK);
    for (i = 0; i < HEADS * DIM_V; i++) off += fabs((double)out[i] - (double)dense[i]);
    EXPECT(off < 1e-3 && stats.visited_rows == stats.far_rows && stats.far_rows > 0);
}

/* Many query rows: with all blocks, sparse prefill is exact attention; a mask says which are
   read. */
static void prefill(void) {
    static float    many[MANY_ROWS * HEADS * DIM_V], exact[MANY_ROWS * HEADS * DIM_V];
    static uint8_t  mask[HEADS * 4 * 4];
    santa_attention a;
    santa_options   o;
    santa_sample_audit audit[HEADS];
    int64_t         q_blocks = 0, k_blocks = 0;
    double          off = 0.0, first = 0.0;
    int             i;
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    a.q = santa_view(k, SANTA_F32, 1, MANY_ROWS, HEADS, DIM);      /* K has numbers enough */
    a.k = santa_view(k, SANTA_F32, 1, N, KV_HEADS, DIM);
    a.v = santa_view(v, SANTA_F32, 1, N, KV_HEADS, DIM_V);
    a.out = santa_view(exact, SANTA_F32, 1, MANY_ROWS, HEADS, DIM_V);
    a.causal = 1;
    EXPECT(santa_workspace_size(&a, &o) <= SCRATCH);
    EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, NULL) == SANTA_OK);
    a.out = santa_view(many, SANTA_F32, 1, MANY_ROWS, HEADS, DIM_V);
    o.method = SANTA_SAMPLE_ATTENTION;
    o.sample_attention.alpha_columns = 1.0;
    o.sample_attention.dense_above   = SANTA_NONE;
    o.sample_attention.audit         = audit;
    EXPECT(santa_mask_shape(&a, &o, &q_blocks, &k_blocks) == SANTA_OK);
    EXPECT(HEADS * q_blocks * k_blocks <= (int64_t)sizeof mask && k_blocks == 4);
    o.sample_attention.mask_out = mask;
    EXPECT(santa_workspace_size(&a, &o) <= SCRATCH);
    EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, NULL) == SANTA_OK);
    for (i = 0; i < MANY_ROWS * HEADS * DIM_V; i++) off += fabs((double)many[i] - (double)exact[i]);
    EXPECT(off < 1e-2 && near_to(audit[0].kept_share, 1.0, 0.0) && mask[0] == 1);
    o.sample_attention.mask_out = NULL;
    o.sample_attention.mask     = mask;
    santa_clear_unused_options(&o);
    memset(mask, 0, sizeof mask);
    EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, NULL) == SANTA_OK);
    for (i = 0; i < MANY_ROWS * HEADS * DIM_V; i++) first += fabs((double)many[i]);
    EXPECT(near_to(first, 0.0, 0.0));
}

/* The steps have santa_decode's bits, also where V's features lie apart and the compiler makes
   one instruction of a product and a sum. */
static void steps(void) {
    static float    apart[KV_HEADS * DIM_V * N];
    santa_attention a;
    santa_options   o;
    santa_draws     d;
    santa_stream_id id = {0, 0, 0};
    int             h, i, seed;
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    memset(&d, 0, sizeof d);
    for (h = 0; h < KV_HEADS * DIM_V; h++)
        for (i = 0; i < N; i++) apart[h * N + i] = v[i * KV_HEADS * DIM_V + h];
    a.q = santa_view(q, SANTA_F32, 1, 1, KV_HEADS, DIM);
    a.k = santa_view(k, SANTA_F32, 1, N, KV_HEADS, DIM);
    a.v = santa_view(apart, SANTA_F32, 1, N, KV_HEADS, DIM_V);
    a.v.stride[1] = 1;
    a.v.stride[2] = DIM_V * N;
    a.v.stride[3] = N;
    a.out = santa_view(out, SANTA_F32, 1, 1, KV_HEADS, DIM_V);
    o.method = SANTA_IID;
    o.num_samples = 30;
    d.index = index_of;
    d.weight = weight;
    d.capacity = N;
    for (seed = 0; seed < 8; seed++) {
        o.seed = (uint64_t)seed;
        EXPECT(santa_workspace_size(&a, &o) <= SCRATCH && santa_sample_workspace_size(N, &o) <= SCRATCH);
        EXPECT(santa_decode(&a, &o, workspace.bytes, SCRATCH, NULL) == SANTA_OK);
        for (h = 0; h < KV_HEADS; h++) {
            id.head = h;
            EXPECT(santa_scores(&a, &o, 0, 0, h, scores, N, workspace.bytes, SCRATCH) == SANTA_OK);
            EXPECT(santa_sample(scores, N, &o, id, &d, workspace.bytes, SCRATCH) == SANTA_OK);
            EXPECT(santa_gather(&a, 0, h, index_of, weight, d.rows, row) == SANTA_OK);
            EXPECT(!memcmp(row, out + h * DIM_V, sizeof row));
        }
    }
}

int main(void) {
    attend();
    steps();
    prefill();
    copy();
    buckets();
    measure();
    convert_and_draw();
    EXPECT(santa_version() == SANTA_VERSION && santa_struct_size("santa_options") == sizeof(santa_options));
    EXPECT(!strcmp(santa_status_name(SANTA_ERR_SHAPE), "SANTA_ERR_SHAPE"));
    EXPECT(santa_isa_supported(SANTA_ISA_SCALAR) && santa_isa_supported(santa_best_isa()));
    printf("isa %s\n", santa_isa_name(santa_best_isa()));
    return wrong;
}
