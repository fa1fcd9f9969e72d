/* An emulator of a GPU: santa_cuda.cu compiled by a host compiler alone, its kernels run on the
   CPU thread by thread, so that tests see what they compute where there is no GPU and no nvcc.

   HOW TO RUN A PROGRAM (any that calls santa_cuda_init and uses cudaMalloc, cudaMemcpy and so
   on):

     mkdir -p build && cc -O1 -c -o build/santa.o test/impl.c
     g++ -std=c++17 -O1 -fno-strict-aliasing -ffp-contract=off -w -Itest/cuda/emulator \
         -DSANTA_IMPLEMENTATION_DONE -o build/mine -x c++ mine.cpp santa_cuda.cu -x none \
         build/santa.o -lm && build/mine

   Some instructions and calls are there for kernels to come.
   To compile less, include santa_cuda.cu in a file of your own and launch one kernel yourself.
   With -fsanitize=address,undefined every access is checked; -g names lines.
   -D__CUDA_ARCH__=800 takes the code of cards before sm_90.
     SANTA_EMULATED_TRACE=1                a line for each launch: kernel, grid, time
     SANTA_EMULATED_ORDER=reverse          CTAs, warps and lanes from the last to the first; or
                                           shuffle, shuffle:SEED
     SANTA_EMULATED_CARD=sm_120            limits of another card; sm_90 by default, sm_80 below
                                           __CUDA_ARCH__ 900

   WHAT IS EMULATED. A CTA's threads are fibers of the one thread that launches, CTAs run one
   after the other; those of a cluster take turns, each until all its threads wait for the
   others. Lanes wait in a collective (shuffle, ballot, mma, ldmatrix, __syncwarp, ..) until all
   lanes of its mask are there. These end a launch with a report on stderr, and
   cudaErrorLaunchFailure at the next call that waits:
     lanes of a warp in different collectives, or in one from different lines; a mask without
     the caller, or with a lane that has left; a shuffle from a lane outside its mask; a barrier
     that some threads do not reach; threads that wait for ever; accesses beside an allocation
     or a variable of shared memory (pages that fault); copies and mbarriers at odd addresses; a
     bulk copy that nobody waits for; too much shared memory; CTAs of a cluster that wait for
     ever, or a variable of one that has none yet.
   Shared memory is NaN in each CTA before its first use. cp.async and bulk copies happen when
   they are waited for, and leave NaN till then. Device memory starts as NaN, and the host
   cannot touch it. A kernel runs when it is launched, or, in a capture, when the graph is.

   WHAT IS NOT: races within a warp's step or between CTAs (but see SANTA_EMULATED_ORDER), CTAs
   of no cluster that wait for each other, overlap of kernels, caches, memory order. exp, tanh
   and the like are libm's, sums on tensor cores are in order, in f32.

   TO ADD AN INSTRUCTION: its function in >>instructions of santa_cuda.cu, and its twin at the
   end of instructions.h. What one thread does is plain C++. A collective puts its arguments and
   the place for its result into a struct on its stack and calls meet(mask, &struct, finish,
   HERE("name")): the last lane to come calls finish(arguments of all lanes, mask), see
   finish_mma. A barrier of several warps: barrier(id, threads, ..). A loop that waits for
   others calls poll. Warpgroup instructions: keep what each warp has brought in state, and let
   the last of four compute. */
#ifndef SANTA_EMULATOR_CUDA_RUNTIME_H
#define SANTA_EMULATOR_CUDA_RUNTIME_H
#define SANTA_CUDA_EMULATED
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#endif
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include "../launched.h"
#include "numbers.h"
#include "fibers.h"
#include "instructions.h"

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define threadIdx (emulated::state.now->index)

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719, cudaErrorNotSupported = 801, cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901, cudaErrorStreamCaptureImplicit = 906
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor,
    cudaDevAttrL2CacheSize,
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore,
    cudaLaunchAttributeProgrammaticStreamSerialization,
    cudaLaunchAttributeClusterDimension
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed
};
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };

struct cudaPointerAttributes { cudaMemoryType type; int device; void *devicePointer, *hostPointer; };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct { int programmaticStreamSerializationAllowed; dim3 clusterDim; } val;
};

namespace emulated {
typedef std::function<cudaError_t()> operation;
struct graph { std::vector<operation> operations; };
struct stream { bool blocking = true, capturing = false, invalid = false; graph recorded; };
struct event { timespec at; };

/* What cudaMalloc and the like gave: pages, between two that cannot be touched. Bytes of the
   pages that are not the caller's hold POISON. */
struct allocation { char *pages; size_t page_bytes, bytes; cudaMemoryType type; };
struct runtime_type {
    std::map<uintptr_t, allocation> memory;         /* by its first byte */
    std::map<const void *, int> most_dynamic;
    std::vector<stream *> streams;
    cudaError_t pending = cudaSuccess, last = cudaSuccess;
};
inline runtime_type runtime;

inline cudaError_t note(cudaError_t e) {
    if (e != cudaSuccess) runtime.last = e;
    return e;
}

inline const card_type *find_card() {
    if (state.card) return state.card;
    const char *name = getenv("SANTA_EMULATED_CARD");
    state.card = &cards[__CUDA_ARCH__ >= 900 ? 3 : 0];
    if (name) {
        state.card = nullptr;
        for (const card_type &c : cards) if (!strcmp(c.name, name)) state.card = &c;
        if (!state.card || (state.card->major >= 9) != (__CUDA_ARCH__ >= 900)) {
            fprintf(stderr, "emulator: no card %s for code of %d\n", name, __CUDA_ARCH__);
            exit(2);
        }
    }
    return state.card;
}

/* The allocation that holds these bytes. */
inline const allocation *find_memory(const void *p, size_t bytes = 1) {
    auto at = runtime.memory.upper_bound((uintptr_t)p);
    if (at == runtime.memory.begin()) return nullptr;
    --at;
    const size_t offset = (uintptr_t)p - at->first;
    return offset < at->second.bytes && bytes <= at->second.bytes - offset ? &at->second : nullptr;
}

/* The host can touch device memory while this lives. */
struct opened {
    opened() { set(true); }
    ~opened() { set(false); }
    static void set(bool now) {
        for (const auto &x : runtime.memory)
            if (x.second.type == cudaMemoryTypeDevice) open_pages(x.second.pages, x.second.page_bytes, now);
    }
};

inline bool borders_hold(uintptr_t at, const allocation &x) {
#ifdef EMULATED_ASAN
    (void)at;
    (void)x;
#else
    for (const char *p = x.pages; p < (const char *)at; p++) if (*p != (char)POISON) return false;
    for (const char *p = (const char *)at + x.bytes; p < x.pages + x.page_bytes; p++)
        if (*p != (char)POISON) return false;
#endif
    return true;
}

inline cudaError_t allocate(void **p, size_t bytes, cudaMemoryType type) {
    for (const stream *s : runtime.streams)
        if (s->capturing && type == cudaMemoryTypeDevice) return note(cudaErrorStreamCaptureUnsupported);
    *p = nullptr;
    if (!bytes) return cudaSuccess;
    if (bytes > (size_t)4 << 30) return note(cudaErrorMemoryAllocation);
    allocation x = {nullptr, whole_pages(bytes + 255), bytes, type};
    char *all = reserve(x.page_bytes + 2 * page_bytes());
    x.pages = all + page_bytes();
    open_pages(x.pages, x.page_bytes);
    char *at = x.pages + x.page_bytes - bytes;
    at -= (uintptr_t)at % 256;
    memset(x.pages, POISON, x.page_bytes);
#ifdef EMULATED_ASAN
    __asan_poison_memory_region(x.pages, (size_t)(at - x.pages));
    __asan_poison_memory_region(at + bytes, (size_t)(x.pages + x.page_bytes - at) - bytes);
#endif
    if (type == cudaMemoryTypeDevice) open_pages(x.pages, x.page_bytes, false);
    runtime.memory[(uintptr_t)at] = x;
    *p = at;
    return cudaSuccess;
}

inline cudaError_t release(void *p, bool device) {
    if (!p) return cudaSuccess;
    const auto at = runtime.memory.find((uintptr_t)p);
    if (at == runtime.memory.end() || (at->second.type == cudaMemoryTypeHost) == device)
        return note(cudaErrorInvalidValue);
    const allocation x = at->second;
#ifdef EMULATED_ASAN
    __asan_unpoison_memory_region(x.pages, x.page_bytes);
#endif
    munmap(x.pages - page_bytes(), x.page_bytes + 2 * page_bytes());
    runtime.memory.erase(at);
    return cudaSuccess;
}

/* Runs it, or keeps it for a graph. */
inline cudaError_t in_stream(stream *s, const operation &run) {
    if (!s)
        for (stream *x : runtime.streams)
            if (x->capturing && x->blocking) {
                x->invalid = true;
                return note(cudaErrorStreamCaptureImplicit);
            }
    if (s && s->capturing) {
        s->recorded.operations.push_back(run);
        return cudaSuccess;
    }
    return run();
}

/* What a call that waits gives back: the first failure of a kernel since the last one. */
inline cudaError_t waited() {
    const cudaError_t e = runtime.pending;
    runtime.pending = cudaSuccess;
    return note(e);
}

inline std::string kernel_name(const void *kernel) {
    for (const launched *k = all_launched; k; k = k->next) if (k->kernel == kernel) return k->name;
    char text[40];
    snprintf(text, sizeof text, "kernel %p", kernel);
    return text;
}

inline cudaError_t run_kernel(const void *kernel, dim3 grid, dim3 block, size_t dynamic,
                              const std::function<void()> &body, unsigned ctas) {
    start();
    opened memory;
    const std::string name = kernel_name(kernel);
    const auto most = runtime.most_dynamic.find(kernel);
    bool good = run_grid(name.c_str(), grid, block, dynamic,
                         most == runtime.most_dynamic.end() ? 0 : most->second, body, ctas);
    for (const auto &x : runtime.memory)
        if (!borders_hold(x.first, x.second)) {
            state.report.clear();
            say("emulator: %s wrote beside the %zu bytes at %p\n", name.c_str(), x.second.bytes,
                (void *)x.first);
            print_report();
            memset(x.second.pages, POISON, x.first - (uintptr_t)x.second.pages);
            char *const end = (char *)x.first + x.second.bytes;
            memset(end, POISON, (size_t)(x.second.pages + x.second.page_bytes - end));
            good = false;
        }
    if (!good && runtime.pending == cudaSuccess) runtime.pending = cudaErrorLaunchFailure;
    return cudaSuccess;
}

inline cudaError_t copy_memory(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    const bool device_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
               device_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes && ((device_to && !find_memory(to, bytes)) || (device_from && !find_memory(from, bytes))))
        return note(cudaErrorInvalidValue);
    opened memory;
    if (bytes) memcpy(to, from, bytes);
    return cudaSuccess;
}
}  /* namespace emulated */

typedef emulated::stream *cudaStream_t;
#define cudaStreamPerThread ((cudaStream_t)nullptr) /* there is one thread */
typedef emulated::event *cudaEvent_t;
typedef emulated::graph *cudaGraph_t;
typedef emulated::graph *cudaGraphExec_t;

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* --------------------------------------------------------------------------------- device */

inline const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess ? "no error" : e == cudaErrorInvalidValue ? "invalid argument"
         : e == cudaErrorLaunchFailure ? "the emulator has stopped a kernel, see its report"
         : e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorInvalidDevice ? "no such device"
         : "an error of the emulated runtime";
}
inline const char *cudaGetErrorName(cudaError_t e) { return cudaGetErrorString(e); }
inline cudaError_t cudaPeekAtLastError() { return emulated::runtime.last; }
inline cudaError_t cudaGetLastError() {
    const cudaError_t e = emulated::runtime.last;
    emulated::runtime.last = cudaSuccess;
    return e;
}
inline cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
inline cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) {
    return device ? emulated::note(cudaErrorInvalidDevice) : cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (device) return emulated::note(cudaErrorInvalidDevice);
    const emulated::card_type *c = emulated::find_card();
    *value = attribute == cudaDevAttrMultiProcessorCount ? c->multiprocessors
           : attribute == cudaDevAttrComputeCapabilityMajor ? c->major
           : attribute == cudaDevAttrComputeCapabilityMinor ? c->minor
           : attribute == cudaDevAttrL2CacheSize ? c->l2
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? c->shared : c->shared + 1024;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() {
    for (const cudaStream_t s : emulated::runtime.streams)
        if (s->capturing) return emulated::note(cudaErrorStreamCaptureUnsupported);
    return emulated::waited();
}

/* --------------------------------------------------------------------------------- memory */

template <typename T> cudaError_t cudaMalloc(T **p, size_t bytes) {
    return emulated::allocate((void **)p, bytes, cudaMemoryTypeDevice);
}
template <typename T> cudaError_t cudaMallocHost(T **p, size_t bytes) {
    return emulated::allocate((void **)p, bytes, cudaMemoryTypeHost);
}
template <typename T> cudaError_t cudaMallocManaged(T **p, size_t bytes, unsigned = 1) {
    return emulated::allocate((void **)p, bytes, cudaMemoryTypeManaged);
}
inline cudaError_t cudaFree(void *p) { return emulated::release(p, true); }
inline cudaError_t cudaFreeHost(void *p) { return emulated::release(p, false); }
/* A small card: cases that want gigabytes are not for it. */
inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *left = *all = (size_t)1 << 30;
    return cudaSuccess;
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *p) {
    const emulated::allocation *m = emulated::find_memory(p);
    attributes->type = m ? m->type : cudaMemoryTypeUnregistered;
    attributes->device = 0;
    attributes->devicePointer = attributes->hostPointer = (void *)(uintptr_t)p;
    return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s = nullptr) {
    if (!emulated::find_memory(p, bytes)) return emulated::note(cudaErrorInvalidValue);
    return emulated::in_stream(s, [=]() {
        emulated::opened memory;
        memset(p, value, bytes);
        return cudaSuccess;
    });
}
inline cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    return bytes ? cudaMemsetAsync(p, value, bytes, nullptr) : cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t s = nullptr) {
    return emulated::in_stream(s, [=]() { return emulated::copy_memory(to, from, bytes, kind); });
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, nullptr), before = emulated::waited();
    return e != cudaSuccess ? e : before;
}

/* ------------------------------------------------------------------------ streams, graphs */

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    *s = new emulated::stream;
    (*s)->blocking = !(flags & cudaStreamNonBlocking);
    emulated::runtime.streams.push_back(*s);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
inline cudaError_t cudaStreamDestroy(cudaStream_t s) {
    auto &all = emulated::runtime.streams;
    all.erase(std::remove(all.begin(), all.end(), s), all.end());
    delete s;
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (s && s->capturing) return emulated::note(cudaErrorStreamCaptureUnsupported);
    return emulated::waited();
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    if (!s || s->capturing) return emulated::note(cudaErrorInvalidValue);
    s->capturing = true;
    s->invalid = false;
    s->recorded.operations.clear();
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    *graph = nullptr;
    if (!s || !s->capturing) return emulated::note(cudaErrorInvalidValue);
    s->capturing = false;
    if (s->invalid) return emulated::note(cudaErrorStreamCaptureInvalidated);
    *graph = new emulated::graph(s->recorded);
    return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long = 0) {
    *exec = new emulated::graph(*graph);
    return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    for (const emulated::operation &run : exec->operations) {
        const cudaError_t e = emulated::in_stream(s, run);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete graph; return cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { delete exec; return cudaSuccess; }

inline cudaError_t cudaEventCreate(cudaEvent_t *e) { *e = new emulated::event(); return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { delete e; return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t = nullptr) {
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return emulated::waited(); }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    *ms = (float)(1e3 * (double)(b->at.tv_sec - a->at.tv_sec)
                  + 1e-6 * (double)(b->at.tv_nsec - a->at.tv_nsec));
    return cudaSuccess;
}

/* ------------------------------------------------------------------------------- launches */

inline cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > emulated::find_card()->shared) return emulated::note(cudaErrorInvalidValue);
    emulated::runtime.most_dynamic[kernel] = value;
    return cudaSuccess;
}

/* Whether a kernel is more than an empty one. What it declares shows when it runs. */
struct cudaFuncAttributes { int numRegs; size_t sharedSizeBytes; };
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    attributes->numRegs = __CUDA_ARCH__ == 900 ? 168 : 0;
    attributes->sharedSizeBytes = 0;
    return cudaSuccess;
}

/* Of the driver's functions the one that santa_cuda.cu asks for. */
enum { cudaEnableDefault };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
inline cudaError_t cudaGetDriverEntryPoint(const char *, void **function, unsigned long long,
                                           cudaDriverEntryPointQueryResult *result) {
    *function = (void *)cuTensorMapEncodeTiled;
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&... arguments) {
    const dim3 g = config->gridDim, b = config->blockDim;
    const emulated::card_type *card = emulated::find_card();
    const size_t dynamic = config->dynamicSmemBytes;
    unsigned ctas = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization
            && config->attrs[i].val.programmaticStreamSerializationAllowed && card->major < 9)
            return emulated::note(cudaErrorNotSupported);
        else if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            ctas = config->attrs[i].val.clusterDim.x;
    if (ctas < 1 || ctas > emulated::MOST_CTAS || g.x % ctas || (ctas > 1 && card->major < 9))
        return emulated::note(cudaErrorInvalidValue);
    if (g.x < 1 || g.x > 0x7fffffffu || g.y < 1 || g.y > 65535 || g.z < 1 || g.z > 65535 || b.x < 1
        || b.y < 1 || b.z < 1 || (emulated::u64)b.x * b.y * b.z > emulated::MOST_THREADS)
        return emulated::note(cudaErrorInvalidValue);
    const auto most = emulated::runtime.most_dynamic.find((const void *)kernel);
    const long long asked = most == emulated::runtime.most_dynamic.end() ? 0 : most->second;
    if (dynamic > (size_t)card->shared || (dynamic > emulated::DECLARED_MOST && (long long)dynamic > asked))
        return emulated::note(cudaErrorInvalidValue);
    const std::function<void()> body = [kernel, tuple = std::make_tuple((P)arguments...)]() {
        std::apply(kernel, tuple);
    };
    return emulated::in_stream(
        config->stream, [=]() {
            return emulated::run_kernel((const void *)kernel, g, b, dynamic, body, ctas);
        });
}

#endif
