/* For bench/peers_cuda.py: a kernel that reads memory and does nothing else. */
#include <cuda_runtime.h>

/* The floor of any method with exact scores: K is read once. data: bytes / 65536 blocks of 64
   KB, any rest is not read; one CTA per block, 16 loads of 16 bytes in flight per thread,
   evict-first. The store keeps the loads alive and hardly ever runs. */
__global__ void __launch_bounds__(256) bench_k_read(const uint4 *data, unsigned *sink) {
    const uint4 *p = data + (size_t)blockIdx.x * 4096 + threadIdx.x;
    uint4 v[16];
    unsigned a = 0;
#pragma unroll
    for (int j = 0; j < 16; j++) v[j] = __ldcs(p + j * 256);
#pragma unroll
    for (int j = 0; j < 16; j++) a ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    if (a == 0x12345) *sink = a;
}

extern "C" int bench_read(const void *data, size_t bytes, void *sink, void *stream) {
    bench_k_read<<<(unsigned)(bytes / 65536), 256, 0, (cudaStream_t)stream>>>((const uint4 *)data,
                                                                              (unsigned *)sink);
    return (int)cudaGetLastError();
}
