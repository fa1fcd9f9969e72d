/* A cache that does not fit on the card: V, or K and V, in pinned host memory, which kernels
   read across the bus by the same pointers. Sampled decoding reads a few rows of it; with a
   copy of K in 4 bits on the card the rows that are drawn are all it needs of K, too. Compared
   with all on the card, and with copying K and V over first.
   Build: nvcc -O2 -arch=native -o host_cache examples/host_cache.cu santa_cuda.cu
   Run:   ./host_cache [--keys N] [--batch N] */
#define SANTA_IMPLEMENTATION
#include "../santa_cuda.h"
#include "data_cuda.h"
#include <string.h>
#include <algorithm>
#include <vector>

enum { HEADS = 32, KV_HEADS = 8, D = 128, RUNS = 15 };


static char *sweep;                                  /* what empties L2 between runs */
enum { SWEEP = 256 << 20 };

/* The middle of RUNS times, in microseconds. */
template <typename F> static double time_of(F call) {
    std::vector<float> times;
    cudaEvent_t from, to;
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    for (int i = -2; i < RUNS; i++) {
        float ms;
        CUDA(cudaMemsetAsync(sweep, i & 1, SWEEP));
        CUDA(cudaEventRecord(from));
        call();
        CUDA(cudaEventRecord(to));
        CUDA(cudaEventSynchronize(to));
        CUDA(cudaEventElapsedTime(&ms, from, to));
        if (i >= 0) times.push_back(1e3f * ms);
    }
    std::sort(times.begin(), times.end());
    return times[RUNS / 2];
}

int main(int argc, char **argv) {
    long long keys = 131072, batch = 1;
    for (int i = 1; i < argc; i += 2) {
        if (!strcmp(argv[i], "--keys") && i + 1 < argc) keys = atoll(argv[i + 1]);
        else if (!strcmp(argv[i], "--batch") && i + 1 < argc) batch = atoll(argv[i + 1]);
        else {
            const int help = !strcmp(argv[i], "--help");
            fprintf(help ? stdout : stderr, "K and V in pinned host memory, a copy of K on the card.\n"
                    "  --keys N    131072\n  --batch N   1\n");
            return help ? 0 : 1;
        }
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("no GPU: nothing to show\n");
        return 0;
    }
    CHECK(keys > 0 && batch > 0 && keys < (1 << 30) && batch < 1024, "a size is out of range");
    const long long n = batch * keys * KV_HEADS * D;
    __nv_bfloat16 *q, *out, *card[2], *host[2];
    CUDA(cudaMalloc(&sweep, SWEEP));
    CUDA(cudaMalloc(&q, (size_t)(2 * batch * HEADS * D)));
    CUDA(cudaMalloc(&out, (size_t)(2 * batch * HEADS * D)));
    fill<<<8, 256>>>(q, batch * HEADS * D, 0, 1, 2.0f);
    for (int i = 0; i < 2; i++) {
        CUDA(cudaMalloc(&card[i], (size_t)(2 * n)));
        CUDA(cudaHostAlloc(&host[i], (size_t)(2 * n), cudaHostAllocDefault));
        fill<<<1024, 256>>>(card[i], n, 0, 2 + (unsigned)i, 1.0f);
        CUDA(cudaMemcpy(host[i], card[i], (size_t)(2 * n), cudaMemcpyDeviceToHost));
    }
    santa_attention a = {};
    const auto view = [&](void *p, long long rows, long long heads) {
        santa_tensor t = santa_view(p, SANTA_BF16, batch, rows, heads, D);
        t.device = SANTA_CUDA;        /* where it is computed; the memory may be the host's */
        return t;
    };
    a.q = view(q, 1, HEADS);
    a.out = view(out, 1, HEADS);
    a.k = view(card[0], keys, KV_HEADS);
    a.v = view(card[1], keys, KV_HEADS);
    CUDA(cudaMalloc(&a.proxy, santa_proxy_size(&a)));
    santa_status s = santa_proxy_encode(&a, 0, keys, NULL);
    CHECK(s == SANTA_OK, santa_status_string(s));

    const auto decode = [&](santa_method method, santa_scores_method scores, bool k_there, bool v_there,
                            std::vector<char> *result) {
        santa_options o = {};
        o.method = method;
        o.scores = scores;
        o.seed = 3;
        a.k.data = k_there ? host[0] : card[0];
        a.v.data = v_there ? host[1] : card[1];
        const size_t bytes = santa_workspace_size(&a, &o);
        void *workspace;
        CUDA(cudaMalloc(&workspace, bytes));
        const double us = time_of([&] {
            const santa_status status = santa_decode(&a, &o, workspace, bytes, NULL);
            CHECK(status == SANTA_OK, santa_status_string(status));
        });
        result->resize((size_t)(2 * batch * HEADS * D));
        CUDA(cudaMemcpy(result->data(), out, result->size(), cudaMemcpyDeviceToHost));
        CUDA(cudaFree(workspace));
        return us;
    };
    std::vector<char> here, there;
    bool same = true;
    printf("%lld x %lld keys, %d query heads, %d KV heads, bf16: K and V %.2f GB, the copy of K %.2f GB\n",
           batch, keys, (int)HEADS, (int)KV_HEADS, 4e-9 * (double)n, 1e-9 * (double)santa_proxy_size(&a));
    const double dense = decode(SANTA_DENSE, SANTA_SCORES_EXACT, false, false, &here);
    const double prop = decode(SANTA_PROP, SANTA_SCORES_EXACT, false, false, &here);
    const double prop_v = decode(SANTA_PROP, SANTA_SCORES_EXACT, false, true, &there);
    same &= here == there;
    const double copy = decode(SANTA_PROP, SANTA_SCORES_PROXY, false, false, &here);
    const double copy_kv = decode(SANTA_PROP, SANTA_SCORES_PROXY, true, true, &there);
    same &= here == there;
    const double stream = time_of([&] {              /* what exact attention has to wait for */
        for (int i = 0; i < 2; i++)
            CUDA(cudaMemcpyAsync(card[i], host[i], (size_t)(2 * n), cudaMemcpyHostToDevice));
    });
    printf("exact, all on the card                          %9.1f us\n"
           "prop, all on the card                           %9.1f us\n"
           "prop, V in host memory                          %9.1f us  %5.2f x of that\n"
           "prop by the copy of K, all on the card          %9.1f us\n"
           "prop by the copy of K, K and V in host memory   %9.1f us  %5.2f x of that\n"
           "K and V copied over, before anything else       %9.1f us  %5.1f x of that\n",
           dense, prop, prop_v, prop_v / prop, copy, copy_kv, copy_kv / copy, stream, stream / copy_kv);
    printf("%s\n", same ? "the results have the same bits" : "WRONG: results differ");
    return same ? 0 : 1;
}
