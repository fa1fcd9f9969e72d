/* llama_cuda.h - attention of llama.h on the GPU: include it before the program's .c file,
   which includes llama.h.

   Only decoding is on the GPU: prefill and all else stay on the CPU. What both touch is pinned
   host memory, which the GPU reads over the bus: fine for a toy, and nothing to measure speed
   with. A real decoder keeps its cache and the workspace in device memory and does not wait
   after each layer. Each host thread has a stream of its own. */
#ifndef LLAMA_CUDA_H
#define LLAMA_CUDA_H

#include "../santa_cuda.h"
#include <cuda_runtime.h>
#include <stdio.h>

static void *llama_pinned_alloc(size_t bytes) {
    void *p = NULL;
    return cudaMallocHost(&p, bytes) == cudaSuccess ? p : NULL;
}

static santa_status llama_decode_and_wait(const santa_attention *a, const santa_options *o, void *workspace,
                                          size_t bytes, santa_stats *stats) {
    santa_options on_stream = *o;
    on_stream.stream = (void *)cudaStreamPerThread;
    const santa_status status = santa_decode(a, &on_stream, workspace, bytes, stats);
    if (status != SANTA_OK) return status;
    const cudaError_t error = cudaStreamSynchronize(cudaStreamPerThread);
    return error == cudaSuccess ? SANTA_OK : (santa_status)(SANTA_ERR_CUDA + (int)error);
}

/* 0, and a line that says so, where there is no GPU. */
static int llama_have_device(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return 1;
    printf("skipped: no device\n");
    return 0;
}

#define LLAMA_DEVICE      SANTA_CUDA
#define LLAMA_ALLOC(size) llama_pinned_alloc(size)
#define LLAMA_FREE(p)     cudaFreeHost(p)
#define LLAMA_DECODE      llama_decode_and_wait

#endif /* LLAMA_CUDA_H */
