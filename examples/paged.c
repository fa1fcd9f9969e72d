/* Paged K and V: requests of different lengths, their tokens in pages scattered over one pool.
   Build: cc -O2 examples/paged.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, PAGE = 16, MAX_PAGES = 64, PAGES = BATCH * MAX_PAGES, MOST = PAGE * MAX_PAGES,
       HEADS = 8, KV_HEADS = 2, D = 64, ROW = KV_HEADS * D };

static float q[BATCH * HEADS * D], out[BATCH * HEADS * D], alone[HEADS * D];
/* each request's own, contiguous: to compare with */
static float k[BATCH][MOST * ROW], v[BATCH][MOST * ROW];
static float k_pool[PAGES * PAGE * ROW], v_pool[PAGES * PAGE * ROW];
static int32_t block_table[BATCH * MAX_PAGES];

static void decode(const santa_attention *a, const santa_options *o) {
    const size_t bytes = santa_workspace_size(a, o);
    void *workspace = malloc(bytes);
    const santa_status status = santa_decode(a, o, workspace, bytes, NULL);
    free(workspace);
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "Requests of different lengths, their tokens in pages scattered over one pool;\n"
                   "draws do not depend on the place in the batch.");
    const int32_t seq_lens[BATCH] = { 1000, 37, 260 };
    /* draws follow the request, not the batch index */
    const uint64_t request_ids[BATCH] = { 501, 502, 503 };

    /* Nothing past a request's last token is read: the pool is all NaN, the table all -1, until
       tokens come. */
    for (int i = 0; i < PAGES * PAGE * ROW; i++) k_pool[i] = v_pool[i] = (float)NAN;
    for (int i = 0; i < BATCH * MAX_PAGES; i++) block_table[i] = -1;
    for (int b = 0, used = 0; b < BATCH; b++) {
        data_sequence(q + b * HEADS * D, k[b], v[b], seq_lens[b], HEADS, KV_HEADS, D, (uint64_t)b + 1);
        for (int t = 0; t < seq_lens[b]; t++) {
            if (t % PAGE == 0) block_table[b * MAX_PAGES + t / PAGE] = used++ * 131 % PAGES; /* scattered */
            const int slot = block_table[b * MAX_PAGES + t / PAGE] * PAGE + t % PAGE;
            memcpy(k_pool + slot * ROW, k[b] + t * ROW, ROW * sizeof(float));
            memcpy(v_pool + slot * ROW, v[b] + t * ROW, ROW * sizeof(float));
        }
    }

    santa_attention a = {0};
    a.q   = santa_view(q, SANTA_F32, BATCH, 1, HEADS, D);
    a.k   = santa_view(k_pool, SANTA_F32, PAGES, PAGE, KV_HEADS, D);
    a.v   = santa_view(v_pool, SANTA_F32, PAGES, PAGE, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, BATCH, 1, HEADS, D);
    a.seq_lens = seq_lens;
    a.block_table = block_table;
    a.max_pages = MAX_PAGES;
    santa_options o = {0};
    o.method = SANTA_PROP;
    o.num_samples = 64;
    o.seed = 1;
    o.request_ids = request_ids;
    decode(&a, &o);

    int wrong = 0;
    for (int b = 0; b < BATCH; b++) { /* each request alone, from its contiguous copy */
        santa_attention one = {0};
        one.q   = santa_view(q + b * HEADS * D, SANTA_F32, 1, 1, HEADS, D);
        one.k   = santa_view(k[b], SANTA_F32, 1, seq_lens[b], KV_HEADS, D);
        one.v   = santa_view(v[b], SANTA_F32, 1, seq_lens[b], KV_HEADS, D);
        one.out = santa_view(alone, SANTA_F32, 1, 1, HEADS, D);
        o.request_ids = &request_ids[b];
        decode(&one, &o);
        const int same = memcmp(alone, out + b * HEADS * D, sizeof alone) == 0;
        printf("request %d, %4d tokens in %2d pages: %s\n", (int)request_ids[b], (int)seq_lens[b],
               (int)(seq_lens[b] + PAGE - 1) / PAGE,
               same ? "the same bits as alone and contiguous" : "DIFFERENT");
        wrong += !same;
    }
    return wrong ? 1 : 0;
}
