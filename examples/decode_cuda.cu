/* decode.c with attention on the GPU: the same options and table, less the methods that the GPU does not have.
   Build and run: nvcc -std=c++17 -O2 -arch=native examples/decode_cuda.cu santa_cuda.cu -o build/decode_cuda && \
                  build/decode_cuda --demo

   All but attention stays on the CPU. What both touch is pinned host memory, which the GPU reads over the bus: fine for
   a toy, and nothing to measure speed with. A real decoder keeps its cache and the workspace in device memory and does
   not wait after each layer. */
#include "../santa_cuda.h"
#include <cuda_runtime.h>
#include <stdio.h>

static void *pinned_alloc(size_t bytes) {
    void *p = NULL;
    return cudaMallocHost(&p, bytes) == cudaSuccess ? p : NULL;
}

static santa_status decode_and_wait(const santa_attention *a, const santa_options *o, void *workspace, size_t bytes,
                                    santa_stats *stats) {
    const santa_status status = santa_decode(a, o, workspace, bytes, stats);
    if (status != SANTA_OK) return status;
    const cudaError_t error = cudaStreamSynchronize((cudaStream_t)o->stream);
    return error == cudaSuccess ? SANTA_OK : (santa_status)(SANTA_ERR_CUDA + (int)error);
}

#define LLAMA_DEVICE      SANTA_CUDA
#define LLAMA_ALLOC(size) pinned_alloc(size)
#define LLAMA_FREE(p)     cudaFreeHost(p)
#define LLAMA_DECODE      decode_and_wait
#define main              decode_main
#include "decode.c"
#undef main

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no device\n");
        return 0;
    }
    return decode_main(argc, argv);
}
