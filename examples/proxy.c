/* Draws from a copy of K in 4 bits: keep it beside an append-only cache, read K and V only
   where it draws. Build: cc -O2 examples/proxy.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>

enum { CAPACITY = 8192, PROMPT = 8000, STEPS = 100, HEADS = 8, KV_HEADS = 2, D = 64 };

static float q[HEADS * D], k[CAPACITY * KV_HEADS * D], v[CAPACITY * KV_HEADS * D];
static float out[HEADS * D], exact[HEADS * D];

static void check(santa_status status) {
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

/* Mean square error of a method's output over the steps, relative to the exact one, and what it
   reads. */
static double measure(santa_attention *a, int32_t *length, santa_method method,
                      santa_scores_method scores) {
    santa_options dense = {0}, o = {0};
    o.method = method;
    o.scores = scores;
    o.num_samples = 128;
    o.seed = 1;
    const size_t bytes = santa_workspace_size(a, &o) + santa_workspace_size(a, &dense);
    void *workspace = malloc(bytes);
    santa_stats stats = {0};
    double error = 0.0, read = 0.0;
    for (int step = 0; step < STEPS; step++) {
        *length = PROMPT + step + 1; /* a decoder has just written row PROMPT + step of k and v */
        if (a->proxy) check(santa_proxy_append(a, 1, NULL));
        o.offset = santa_offset(0, step);
        a->out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
        check(santa_decode(a, &o, workspace, bytes, &stats));
        a->out = santa_view(exact, SANTA_F32, 1, 1, HEADS, D);
        check(santa_decode(a, &dense, workspace, bytes, NULL));
        for (int h = 0; h < HEADS; h++)
            error += pow(santa_relative_l2(out + h * D, exact + h * D, D), 2) / (STEPS * HEADS);
        /* with K and V in 16 bits; a key of the copy takes 36 bytes here */
        const double copy = (double)santa_proxy_size(a) / (CAPACITY * KV_HEADS);
        const double rows = (double)(stats.k_rows_read + stats.v_rows_read);
        read += (2.0 * D * rows + copy * (double)stats.proxy_rows_read) / (4.0 * D * (double)stats.keys)
                / STEPS;
    }
    printf("%-4s %-14s error %5.1f %%, bytes %5.1f %% of exact attention's; %d of %d heads rescued, "
           "%d redone\n", santa_method_name(method),
           scores == SANTA_SCORES_PROXY ? "from the copy" : "exact scores", 100.0 * sqrt(error),
           100.0 * read, (int)stats.rescued_rows, (int)stats.rows, (int)stats.redone_rows);
    free(workspace);
    return error;
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "Draws from a copy of K in 4 bits, kept beside a cache that grows: rows of K and\n"
                   "V that are read, and the error.");
    int32_t length = PROMPT;
    data_sequence(q, k, v, CAPACITY, HEADS, KV_HEADS, D, 1);
    santa_attention a = {0};
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k = santa_view(k, SANTA_F32, 1, CAPACITY, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, 1, CAPACITY, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.seq_lens = &length;
    measure(&a, &length, SANTA_SYS, SANTA_SCORES_EXACT);
    const double before = measure(&a, &length, SANTA_PPS, SANTA_SCORES_EXACT);

    a.proxy = malloc(santa_proxy_size(&a));
    length = PROMPT;
    check(santa_proxy_encode(&a, 0, PROMPT, NULL));  /* behind the prefill, once */
    const double after = measure(&a, &length, SANTA_PPS, SANTA_SCORES_PROXY);
    free(a.proxy);
    return after < 1.3 * before ? 0 : 1;
}
