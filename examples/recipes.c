/* Caches and layouts that engines have: each is strides, a table, a field or two calls. The
   manual's page >>recipes has the same lines. Each recipe is checked against a plain
   loop. Build: cc -O2 examples/recipes.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1000, HEADS = 8, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, D = 64, LIST = 100, ROWS = 4 };

static float q[ROWS * HEADS * D], k[N * KV_HEADS * D], v[N * KV_HEADS * D], out[ROWS * HEADS * D];
static float lse[HEADS];

static void decode(const santa_attention *a, const santa_options *o) {
    const size_t bytes = santa_workspace_size(a, o);
    void *workspace = malloc(bytes);
    const santa_status status = santa_decode(a, o, workspace, bytes, NULL);
    free(workspace);
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

/* Exact attention of one query over the keys that are listed. */
static void plain(const float *query, const float *keys, const float *values, int64_t stride, int64_t dim,
                  int64_t dim_v, const int32_t *list, int64_t count, double *result) {
    double sum = 0.0;
    for (int64_t c = 0; c < dim_v; c++) result[c] = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double s = 0.0;
        for (int64_t c = 0; c < dim; c++) s += (double)query[c] * (double)keys[list[i] * stride + c];
        s = exp(s / sqrt((double)dim));
        sum += s;
        for (int64_t c = 0; c < dim_v; c++) result[c] += s * (double)values[list[i] * stride + c];
    }
    for (int64_t c = 0; c < dim_v; c++) result[c] /= sum;
}

static void check(const char *recipe, const float *got, const double *want, int64_t n) {
    double worst = 0.0;
    for (int64_t c = 0; c < n; c++) {
        const double off = fabs((double)got[c] - want[c]);
        if (!(off <= worst)) worst = off;
    }
    if (!(worst < 1e-5)) { fprintf(stderr, "%s: off by %g\n", recipe, worst); exit(1); }
}

/* A caller's own list of keys, the same for all heads: pages of one token. */
static void list_of_keys(void) {
    static int32_t list[LIST];
    for (int i = 0; i < LIST; i++) list[i] = i < 4 ? i : N - LIST + i;    /* first tokens and a window */
    const int32_t count = LIST;

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k   = santa_view(k, SANTA_F32, N, 1, KV_HEADS, D);                  /* N pages of one token */
    a.v   = santa_view(v, SANTA_F32, N, 1, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.block_table = list;
    a.max_pages   = LIST;
    a.seq_lens    = &count;
    santa_options o = {0};
    decode(&a, &o);

    for (int h = 0; h < HEADS; h++) {
        double want[D];
        plain(q + h * D, k + h / GROUP * D, v + h / GROUP * D, KV_HEADS * D, D, D, list, LIST, want);
        check("a list of keys", out + h * D, want, D);
    }
    puts("a list of keys: pages of one token");
}

/* A list for each KV head. */
static void list_of_each_head(void) {
    static int32_t list[KV_HEADS * LIST];
    const int32_t counts[KV_HEADS] = {LIST, LIST / 3};
    for (int h = 0; h < KV_HEADS; h++)
        for (int i = 0; i < LIST; i++) list[h * LIST + i] = (i * 37 + h * 11) % N;

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k   = santa_view(k, SANTA_F32, 1, N, KV_HEADS, D);
    a.v   = santa_view(v, SANTA_F32, 1, N, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.lse = lse;                                                          /* to merge with other keys */
    a.key_list      = list;
    a.max_list      = LIST;
    a.key_list_lens = counts;
    santa_options o = {0};
    decode(&a, &o);

    for (int h = 0; h < HEADS; h++) {
        double want[D];
        const int kv = h / GROUP;
        plain(q + h * D, k + kv * D, v + kv * D, KV_HEADS * D, D, D, list + kv * LIST, counts[kv], want);
        check("a list for each KV head", out + h * D, want, D);
    }
    puts("a list for each KV head: key_list");
}

/* StreamingLLM: the first tokens stay visible beside a sliding window. */
static void window_and_first_tokens(void) {
    enum { FIRST = 4, WINDOW = 500 };

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k   = santa_view(k, SANTA_F32, 1, N, KV_HEADS, D);
    a.v   = santa_view(v, SANTA_F32, 1, N, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.window       = WINDOW;
    a.first_tokens = FIRST;
    santa_options o = {0};
    decode(&a, &o);

    for (int h = 0; h < HEADS; h++) {
        int32_t list[FIRST + WINDOW];
        double want[D];
        for (int i = 0; i < FIRST + WINDOW; i++) list[i] = i < FIRST ? i : N - WINDOW + i - FIRST;
        plain(q + h * D, k + h / GROUP * D, v + h / GROUP * D, KV_HEADS * D, D, D, list, FIRST + WINDOW,
              want);
        check("first tokens beside a window", out + h * D, want, D);
    }
    puts("first tokens beside a window: first_tokens");
}

/* Left padding: a batch of prompts that end together. */
static void left_padding(void) {
    const int32_t start[2] = {0, 300};

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, 2, 1, HEADS, D);
    a.k   = santa_view(k, SANTA_F32, 2, N / 2, KV_HEADS, D);
    a.v   = santa_view(v, SANTA_F32, 2, N / 2, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 2, 1, HEADS, D);
    a.kv_start = start;
    santa_options o = {0};
    decode(&a, &o);

    for (int i = 0; i < 2 * HEADS; i++) {
        static int32_t list[N / 2];
        double want[D];
        const int b = i / HEADS, h = i % HEADS, first = b * (N / 2) + start[b], end = (b + 1) * (N / 2);
        for (int j = first; j < end; j++) list[j - first] = j;
        plain(q + i * D, k + h / GROUP * D, v + h / GROUP * D, KV_HEADS * D, D, D, list, end - first, want);
        check("left padding", out + i * D, want, D);
    }
    puts("left padding: kv_start");
}

/* A cache of bytes with a scale for each token and KV head, which lies behind the row's
   numbers. */
enum { ROW = D + 4 };

/* row: N * KV_HEADS rows. exact: what they stand for. */
static void rows_of_bytes(const float *x, uint8_t *row, float *exact) {
    for (int i = 0; i < N * KV_HEADS; i++, x += D, row += ROW, exact += D) {
        float most = 0.0f, scale;
        for (int c = 0; c < D; c++) most = fabsf(x[c]) > most ? fabsf(x[c]) : most;
        scale = most > 0.0f ? most / 448.0f : 1.0f;                       /* the largest e4m3 */
        for (int c = 0; c < D; c++) {
            row[c] = santa_f32_to_e4m3(x[c] / scale);
            exact[c] = santa_e4m3_to_f32(row[c]) * scale;
        }
        memcpy(row + D, &scale, sizeof scale);
    }
}

static void scale_of_each_row(void) {
    static uint8_t k8[N * KV_HEADS * ROW], v8[N * KV_HEADS * ROW];
    static float exact_k[N * KV_HEADS * D], exact_v[N * KV_HEADS * D];
    static int32_t list[N];
    rows_of_bytes(k, k8, exact_k);
    rows_of_bytes(v, v8, exact_v);

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k   = santa_view(k8, SANTA_E4M3, 1, N, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.k.stride[2] = ROW;                                                  /* bytes of e4m3 */
    a.k.stride[1] = KV_HEADS * ROW;
    a.k_scales = santa_view(k8 + D, SANTA_F32, 1, N, KV_HEADS, 1);
    a.k_scales.stride[2] = ROW / 4;                                       /* floats */
    a.k_scales.stride[1] = KV_HEADS * ROW / 4;
    a.v             = a.k;
    a.v.data        = v8;
    a.v_scales      = a.k_scales;
    a.v_scales.data = v8 + D;
    santa_options o = {0};
    decode(&a, &o);

    for (int j = 0; j < N; j++) list[j] = j;
    for (int h = 0; h < HEADS; h++) {
        double want[D];
        const int kv = h / GROUP;
        plain(q + h * D, exact_k + kv * D, exact_v + kv * D, KV_HEADS * D, D, D, list, N, want);
        check("a scale for each row", out + h * D, want, D);
    }
    puts("a scale for each row: k_scales, v_scales");
}

/* Multi-head latent attention (MLA): all heads share a latent of 96 numbers and 32 of RoPE; V
   is the latent itself, the front of the same rows. */
static void latent(void) {
    enum { LATENT = 96, ROPE = 32, DIM = LATENT + ROPE, TOKENS = N * KV_HEADS * D / DIM, QUERIES = 4 };

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, 1, 1, QUERIES, DIM);
    a.k   = santa_view(k, SANTA_F32, 1, TOKENS, 1, DIM);
    a.v   = a.k;
    a.v.shape[3] = LATENT;
    a.out = santa_view(out, SANTA_F32, 1, 1, QUERIES, LATENT);
    santa_options o = {0};
    decode(&a, &o);

    for (int h = 0; h < QUERIES; h++) {
        static int32_t list[TOKENS];
        double want[LATENT];
        for (int j = 0; j < TOKENS; j++) list[j] = j;
        plain(q + h * DIM, k, k, DIM, DIM, LATENT, list, TOKENS, want);
        check("MLA", out + h * LATENT, want, LATENT);
    }
    puts("MLA: V is the front of K's rows");
}

/* V as some engines keep it, [kv_heads, d, n], tokens side by side. */
static void turned_values(void) {
    static float turned[KV_HEADS * D * N];
    static int32_t all[N];
    for (int j = 0; j < N; j++) {
        all[j] = j;
        for (int i = 0; i < KV_HEADS * D; i++) turned[i * N + j] = v[j * KV_HEADS * D + i];
    }

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k   = santa_view(k, SANTA_F32, 1, N, KV_HEADS, D);
    a.v   = santa_view(turned, SANTA_F32, 1, N, KV_HEADS, D);
    a.v.stride[1] = 1;
    a.v.stride[2] = D * N;
    a.v.stride[3] = N;
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    santa_options o = {0};
    decode(&a, &o);

    for (int h = 0; h < HEADS; h++) {
        double want[D];
        plain(q + h * D, k + h / GROUP * D, v + h / GROUP * D, KV_HEADS * D, D, D, all, N, want);
        check("V turned", out + h * D, want, D);
    }
    puts("V turned: tokens side by side, by strides");
}

/* Speculative decoding: cheap draft steps, each a row of draws; then one exact call for all of
   their rows, which reads K and V once. */
static void draft_and_verify(void) {
    static float drafts[ROWS * HEADS * D];
    const int64_t context = N - ROWS;
    santa_attention a = {0};
    a.k = santa_view(k, SANTA_F32, 1, N, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, 1, N, KV_HEADS, D);
    santa_options o = {0};

    o.method = SANTA_SYS;
    o.num_samples = 64;
    for (int i = 0; i < ROWS; i++) {                                      /* the draft: a token at a time */
        const int32_t len = (int32_t)context + i + 1;
        a.q   = santa_view(q + i * HEADS * D, SANTA_F32, 1, 1, HEADS, D);
        a.out = santa_view(drafts + i * HEADS * D, SANTA_F32, 1, 1, HEADS, D);
        a.seq_lens = &len;
        o.offset   = santa_offset(0, i);
        decode(&a, &o);
    }
    o.method   = SANTA_DENSE;                                             /* the check: all rows at once */
    a.q        = santa_view(q, SANTA_F32, 1, ROWS, HEADS, D);
    a.out      = santa_view(out, SANTA_F32, 1, ROWS, HEADS, D);
    a.seq_lens = NULL;
    a.causal   = 1;
    decode(&a, &o);

    double off = 0.0, all = 0.0;
    for (int i = 0; i < ROWS * HEADS; i++) {
        static int32_t list[N];
        double want[D];
        const int h = i % HEADS;
        const int64_t keys = context + i / HEADS + 1;
        for (int j = 0; j < keys; j++) list[j] = j;
        plain(q + i * D, k + h / GROUP * D, v + h / GROUP * D, KV_HEADS * D, D, D, list, keys, want);
        check("the check of a draft", out + i * D, want, D);
        for (int c = 0; c < D; c++) {
            const double d = (double)drafts[i * D + c] - want[c];
            off += d * d;
            all += want[c] * want[c];
        }
    }
    printf("draft and verify: %d rows drawn (error %.3f), then %d exact rows in one call\n", ROWS,
           sqrt(off / all), ROWS);
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "Lists of keys, first tokens beside a window, left padding, scales of rows, MLA,\n"
                   "V turned, draft and verify: by strides, tables, fields and calls, each\n"
                   "compared with a plain loop.");
    data_sequence(q, k, v, N, HEADS, KV_HEADS, D, 1);
    for (int i = HEADS * D; i < ROWS * HEADS * D; i++)
        q[i] = q[i % (HEADS * D)] * (1.0f - 0.1f * (float)(i / (HEADS * D)));
    list_of_keys();
    list_of_each_head();
    window_and_first_tokens();
    left_padding();
    scale_of_each_row();
    latent();
    turned_values();
    draft_and_verify();
    return 0;
}
