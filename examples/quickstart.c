/* The quick start of santa.h as a program: one query against 4096 keys, 128 draws a head. */
/* Build: cc -O2 examples/quickstart.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    enum { n = 4096, heads = 8, kv_heads = 2, d = 64 };
    static float q[heads * d], k[n * kv_heads * d], v[n * kv_heads * d], out[heads * d];
    for (int i = 0; i < heads * d; i++) q[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int i = 0; i < n * kv_heads * d; i++) { k[i] = (float)(i % 7) * 0.1f; v[i] = (float)(i % 5); }

    santa_attention a = {0};                                  // what to attend to
    a.q   = santa_view(q,   SANTA_F32, 1, 1, heads, d);       // [batch, q_len, heads, head_dim]
    a.k   = santa_view(k,   SANTA_F32, 1, n, kv_heads, d);    // [batch, len, kv_heads, head_dim]
    a.v   = santa_view(v,   SANTA_F32, 1, n, kv_heads, d);
    a.out = santa_view(out, SANTA_F32, 1, 1, heads, d);

    santa_options o = {0};                                    // how: zero means the documented default
    o.method = SANTA_SYS;  o.num_samples = 128;  o.seed = 7;  o.offset = santa_offset(0, 0);

    size_t bytes = santa_workspace_size(&a, &o);
    void *workspace = malloc(bytes);
    santa_stats stats;
    santa_status s = santa_decode(&a, &o, workspace, bytes, &stats);
    if (s != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(s)); return 1; }
    printf("out[0] = %g, V rows read: %.2f %%\n", (double)out[0],
           100.0 * (double)stats.v_rows_read / (double)stats.keys);
    free(workspace);
    return 0;
}
