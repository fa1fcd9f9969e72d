/* Decodes with the santa.h that the build found: all rows of V are equal, so every draw gives
   that row. */
#include <santa.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef THREADS
#define THREADS 1                                   /* more than 1 is refused without OpenMP */
#endif
enum { N = 300, DIM = 16 };
static float q[DIM], k[N * DIM], v[N * DIM], out[DIM];

int main(void) {
    santa_attention a = {0};
    santa_options   o = {0};
    int i, wrong = 0;
    for (i = 0; i < N * DIM; i++) { k[i] = (float)(i % 7); v[i] = (float)(i % DIM); }
    a.q   = santa_view(q, SANTA_F32, 1, 1, 1, DIM);
    a.k   = santa_view(k, SANTA_F32, 1, N, 1, DIM);
    a.v   = santa_view(v, SANTA_F32, 1, N, 1, DIM);
    a.out = santa_view(out, SANTA_F32, 1, 1, 1, DIM);
    o.method = SANTA_SYS;
    o.num_samples = 16;
    o.num_threads = THREADS;
    {
        const size_t bytes = santa_workspace_size(&a, &o);
        void        *workspace = malloc(bytes);
        const santa_status s = santa_decode(&a, &o, workspace, bytes, NULL);
        free(workspace);
        printf("santa %d: %s\n", SANTA_VERSION, santa_status_string(s));
        if (s != SANTA_OK) return 1;
    }
    for (i = 0; i < DIM; i++) wrong += !(out[i] > (float)i - .001f && out[i] < (float)i + .001f);
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;
#ifdef WITH_CUDA
    wrong += santa_check(&a, &o) == SANTA_ERR_NO_BACKEND;
#else
    wrong += santa_check(&a, &o) != SANTA_ERR_NO_BACKEND;
#endif
    return wrong != 0;
}
