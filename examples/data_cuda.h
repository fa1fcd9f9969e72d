/* data_cuda.h - what the examples for GPUs share: errors end the program, numbers for a
   cache. */
#ifndef DATA_CUDA_H
#define DATA_CUDA_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* _exit: other threads may wait for this one's GPU. */
#define CHECK(ok, why) \
    do { if (!(ok)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, why); _exit(1); } } while (0)
#define CUDA(call) \
    do { cudaError_t e_ = (call); CHECK(e_ == cudaSuccess, cudaGetErrorString(e_)); } while (0)

/* Numbers of mean 0 and a standard deviation of `scale` that depend on their place, first + i,
   alone. */
static __global__ void fill(__nv_bfloat16 *x, long long n, long long first, unsigned seed, float scale) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) {
        unsigned long long z = (unsigned long long)(first + i) * 0x9E3779B97F4A7C15ull + seed;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        const float u = (float)(z & 0xffffff) / 16777216.0f + (float)(z >> 40) / 16777216.0f - 1.0f;
        x[i] = __float2bfloat16_rn(2.449f * scale * u);
    }
}

#endif /* DATA_CUDA_H */
