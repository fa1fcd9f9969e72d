/* The steps of santa_decode one by one, for a gather of your own or to look at which rows were
   drawn. Build: cc -O2 examples/steps.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>

enum { N = 4096, HEADS = 8, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, D = 64 };

static float q[HEADS * D], k[N * KV_HEADS * D], v[N * KV_HEADS * D], out[HEADS * D], lse[HEADS];
static float mine[HEADS * D], my_lse[HEADS], scores[GROUP * N];

static void check(santa_status status) {
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "The steps of santa_decode one by one: scores, draws, the rows that were drawn,\n"
                   "their sum.");
    data_sequence(q, k, v, N, HEADS, KV_HEADS, D, 1);
    santa_attention a = {0};
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k = santa_view(k, SANTA_F32, 1, N, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, 1, N, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.lse = lse;
    santa_options o = {0};
    o.method = SANTA_SYS;
    o.num_samples = 64;
    o.seed = 1;

    const size_t bytes = santa_workspace_size(&a, &o), sample_bytes = santa_sample_workspace_size(N, &o);
    const int64_t capacity = santa_sample_capacity(N, &o);
    void *workspace = malloc(bytes), *sample_workspace = malloc(sample_bytes);
    santa_draws draws = {0};
    draws.index  = (int32_t *)malloc((size_t)capacity * sizeof *draws.index);
    draws.count  = (int32_t *)malloc((size_t)capacity * sizeof *draws.count);
    draws.weight = (float *)malloc((size_t)capacity * sizeof *draws.weight);
    draws.capacity = capacity;
    check(santa_decode(&a, &o, workspace, bytes, NULL));

    for (int kv_head = 0; kv_head < KV_HEADS; kv_head++) {
        check(santa_scores(&a, &o, 0, 0, kv_head, scores, N, workspace, bytes)); /* 1. q . k, by group */
        for (int g = 0; g < GROUP; g++) {
            const int head = kv_head * GROUP + g;
            const santa_stream_id id = { 0, head, 0 }; /* request, head, query row: as santa_decode */
            /* 2. draw */
            check(santa_sample(scores + g * N, N, &o, id, &draws, sample_workspace, sample_bytes));
            for (int64_t i = 0; i < draws.rows; i++) { /* 3. your own gather */
                const float *row = v + (draws.index[i] * KV_HEADS + kv_head) * D;
                for (int x = 0; x < D; x++) mine[head * D + x] += draws.weight[i] * row[x];
            }
            my_lse[head] = draws.lse;
            printf("head %d: %2d rows for %d draws; the most drawn:", head, (int)draws.rows,
                   (int)draws.draws);
            int32_t shown = 0;
            for (int64_t i = 0; i < draws.rows; i++)
                if (draws.count[i] >= 8 && shown++ < 4)
                    printf("  key %d x %d", (int)draws.index[i], (int)draws.count[i]);
            printf("\n");
        }
    }
    const double error = santa_relative_l2(mine, out, HEADS * D),
                 lse_error = santa_relative_l2(my_lse, lse, HEADS);
    printf("against santa_decode: output off by %.1e, lse by %.1e\n", error, lse_error);
    free(draws.index);
    free(draws.count);
    free(draws.weight);
    free(sample_workspace);
    free(workspace);
    return error < 1e-6 && lse_error < 1e-6 ? 0 : 1;
}
