/* SAAP without a classifier: keys in buckets by k-means, queries routed by their inner product
   with the centroids. A trained classifier routes better: examples/saap.
   Build: cc -O2 examples/buckets.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>

enum { CAPACITY = 16384, PROMPT = 16000, STEPS = 100, HEADS = 8, KV_HEADS = 2, D = 64, BUCKETS = 128 };

static float q[HEADS * D], k[CAPACITY * KV_HEADS * D], v[CAPACITY * KV_HEADS * D];
static float out[HEADS * D], exact[HEADS * D], centroids[KV_HEADS * BUCKETS * D];

static void check(santa_status status) {
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

/* Keys of a text that goes from topic to topic, and queries that look at one topic each. */
static void write_text(uint64_t seed) {
    enum { TOPICS = 100, RUN = 25 };
    static float topic[TOPICS * D];
    uint64_t random = 7;                                      /* the same topics in every text */
    for (int i = 0; i < TOPICS * D; i++) topic[i] = data_normal(&random);
    data_sequence(q, k, v, CAPACITY, HEADS, KV_HEADS, D, seed);
    for (int j = 0; j < CAPACITY; j++)
        for (int h = 0; h < KV_HEADS; h++)
            for (int i = 0; i < D; i++)
                k[(j * KV_HEADS + h) * D + i] +=
                    0.6f * topic[((uint64_t)(j / RUN) * 41 + seed) % TOPICS * D + (uint64_t)i];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < D; i++) q[h * D + i] = 0.4f * q[h * D + i] + topic[h * 7 * D + i];
}

/* Centroids of the keys of another text, k before RoPE: once for a model, each layer and KV
   head. */
static void learn(void) {
    const size_t bytes = santa_kmeans_workspace_size(CAPACITY, D, BUCKETS);
    void *workspace = malloc(bytes);
    write_text(2);
    for (int h = 0; h < KV_HEADS; h++)
        check(santa_kmeans(k + h * D, CAPACITY, KV_HEADS * D, D, BUCKETS, 0, 1,
                           centroids + h * BUCKETS * D, NULL, workspace, bytes));
    free(workspace);
}

/* What a decoder does at each step: a key comes, goes into its bucket, a query looks at
   some. */
static double measure(santa_attention *a, int32_t *length, int64_t num_probes, int64_t num_samples) {
    santa_options dense = {0}, o = {0};
    o.method = SANTA_SAAP;
    o.num_samples = num_samples;
    o.saap.num_probes = num_probes;
    o.saap.local_tokens = 512;
    const size_t bytes = santa_workspace_size(a, &o) + santa_workspace_size(a, &dense);
    void *workspace = malloc(bytes);
    santa_stats stats = {0};
    double error = 0.0, read = 0.0;
    santa_tensor keys = santa_view(k, SANTA_F32, 1, PROMPT, KV_HEADS, D);
    *length = PROMPT;
    check(santa_buckets_assign(a, &keys, 0, NULL));           /* behind the prefill, once */
    for (int step = 0; step < STEPS; step++) {
        keys = santa_view(k + *length * KV_HEADS * D, SANTA_F32, 1, 1, KV_HEADS, D);
        ++*length;                                            /* that row of k and v is there now */
        check(santa_buckets_assign(a, &keys, -1, NULL));
        o.offset = santa_offset(0, step);
        a->out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
        check(santa_decode(a, &o, workspace, bytes, &stats));
        a->out = santa_view(exact, SANTA_F32, 1, 1, HEADS, D);
        check(santa_decode(a, &dense, workspace, bytes, NULL));
        for (int h = 0; h < HEADS; h++)
            error += pow(santa_relative_l2(out + h * D, exact + h * D, D), 2) / (STEPS * HEADS);
        read += (double)stats.visited_rows / (double)stats.far_rows / STEPS;
    }
    printf("%4d buckets read whole, %4d keys drawn: %5.1f %% of the far keys read, error %5.1f %%\n",
           (int)num_probes, num_samples == SANTA_NONE ? 0 : (int)num_samples, 100.0 * read,
           100.0 * sqrt(error));
    free(workspace);
    return error;
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "Keys in buckets by k-means, queries sent to buckets by their inner product with\n"
                   "the centroids (SAAP without a classifier): what is read, and the error.");
    int32_t length = PROMPT;
    santa_buckets buckets = {0};
    santa_attention a = {0};
    learn();
    write_text(1);
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k = santa_view(k, SANTA_F32, 1, CAPACITY, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, 1, CAPACITY, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.seq_lens = &length;
    a.buckets = &buckets;
    buckets.num_buckets = BUCKETS;
    buckets.centroids = centroids;
    buckets.key_norm = 8.0f;                                  /* about sqrt(D) here */
    buckets.index = malloc(santa_buckets_size(&a));
    measure(&a, &length, 8, SANTA_NONE);                      /* as published: the rest is left out */
    const double published = measure(&a, &length, 16, SANTA_NONE);
    measure(&a, &length, 4, 512);                             /* the rest is drawn */
    const double drawn = measure(&a, &length, 4, 1536);
    free(buckets.index);
    return drawn < published ? 0 : 1;
}
