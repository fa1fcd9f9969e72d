/* A context in two pieces, say a prefix that many requests share and a request's own tokens:
   attend to each, merge.
   Build: cc -O2 examples/merge.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>

enum { PREFIX = 3000, OWN = 700, N = PREFIX + OWN, HEADS = 8, KV_HEADS = 2, D = 64, RUNS = 256 };

typedef struct result { float out[HEADS * D], lse[HEADS], std_error[HEADS]; } result;

static float q[HEADS * D], k[N * KV_HEADS * D], v[N * KV_HEADS * D];

/* Attention to the keys begin .. end - 1. */
static void attend(int begin, int end, const santa_options *o, result *r) {
    santa_attention a = {0};
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k = santa_view(k + begin * KV_HEADS * D, SANTA_F32, 1, end - begin, KV_HEADS, D);
    a.v = santa_view(v + begin * KV_HEADS * D, SANTA_F32, 1, end - begin, KV_HEADS, D);
    a.out = santa_view(r->out, SANTA_F32, 1, 1, HEADS, D);
    a.lse = r->lse; /* what a merge needs beside the output: the weight of the piece */
    a.std_error = r->std_error;
    const size_t bytes = santa_workspace_size(&a, o);
    void *workspace = malloc(bytes);
    const santa_status status = santa_decode(&a, o, workspace, bytes, NULL);
    free(workspace);
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

/* Both pieces under the same options, merged into *r. */
static void attend_in_two(const santa_options *o, result *r) {
    /* draws of their own: equal ids would tie their errors together */
    const uint64_t prefix_id = 0, own_id = 1;
    santa_options prefix = *o, own = *o;
    result right;
    prefix.request_ids = &prefix_id;
    own.request_ids = &own_id;
    attend(0, PREFIX, &prefix, r);
    attend(PREFIX, N, &own, &right);
    for (int h = 0; h < HEADS; h++) {           /* errors of independent pieces add as squares, by weight */
        const double w = 1.0 / (1.0 + exp((double)right.lse[h] - (double)r->lse[h]));
        r->std_error[h] = (float)hypot(w * (double)r->std_error[h], (1.0 - w) * (double)right.std_error[h]);
    }
    const santa_status status = santa_merge(HEADS, D, r->out, r->lse, right.out, right.lse);
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "A context in two pieces, each attended to by itself, merged: against the whole.");
    static result whole, merged;
    static float mean[HEADS * D];
    data_sequence(q, k, v, N, HEADS, KV_HEADS, D, 1);

    santa_options o = {0};                      /* dense: the merge is exact up to rounding */
    attend(0, N, &o, &whole);
    attend_in_two(&o, &merged);
    const double exact_error = santa_relative_l2(merged.out, whole.out, HEADS * D);
    const double lse_error = santa_relative_l2(merged.lse, whole.lse, HEADS);
    printf("dense pieces: merged output off by %.1e, lse by %.1e\n", exact_error, lse_error);

    o.method = SANTA_SYS; /* sampled: each merge is an unbiased estimate of the whole */
    o.num_samples = 64;
    double square = 0.0, predicted = 0.0, size = 0.0, bias = 0.0;
    for (int run = 0; run < RUNS; run++) {
        o.offset = santa_offset(0, run);
        attend_in_two(&o, &merged);
        for (int i = 0; i < HEADS * D; i++) {
            const double e = (double)merged.out[i] - (double)whole.out[i];
            square += e * e / RUNS;
            mean[i] += merged.out[i] / RUNS;
        }
        for (int h = 0; h < HEADS; h++) predicted += pow((double)merged.std_error[h], 2.0) / RUNS;
    }
    for (int i = 0; i < HEADS * D; i++) size += (double)whole.out[i] * (double)whole.out[i];
    for (int i = 0; i < HEADS * D; i++) bias += pow((double)mean[i] - (double)whole.out[i], 2.0);
    printf("sampled pieces, 64 draws each: one merge off by %.1f %% (std_error says %.1f %%), the mean "
           "of %d by %.1f %%\n",
           100.0 * sqrt(square / size), 100.0 * sqrt(predicted / size), RUNS, 100.0 * sqrt(bias / size));

    /* A mean of RUNS unbiased estimates has 1/RUNS of their squared error; 2 leaves room for
       chance, not for bias. */
    const int good = exact_error < 1e-5 && lse_error < 1e-5 && bias < 2.0 * square / RUNS
                     && predicted > 0.5 * square && predicted < 3.0 * square;
    printf("%s\n", good ? "as it should be" : "WRONG");
    return good ? 0 : 1;
}
