/* A stand-in for the CUDA runtime: what the host code of santa_cuda.cu calls, and no more, so
   that its checks, layouts and launches are tested where there is no GPU and no nvcc. There is
   no memory behind a device pointer and no kernel runs: calls are held against the rules of the
   card that it pretends to be, and recorded. Written from the documented behaviour of the
   runtime. */
#ifndef SANTA_STANDIN_CUDA_RUNTIME_H
#define SANTA_STANDIN_CUDA_RUNTIME_H
#define SANTA_CUDA_STANDIN

#include "cuda.h"
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __forceinline__ inline

struct float2 { float x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct double2 { double x, y; };
struct float4 { float x, y, z, w; };
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) { }
};
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidDevice = 101 };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor, cudaDevAttrL2CacheSize,
    cudaDevAttrMaxSharedMemoryPerBlockOptin
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaMemoryType {
    cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged
};
enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore, cudaLaunchAttributeProgrammaticStreamSerialization,
    cudaLaunchAttributeClusterDimension
};
typedef struct CUstream_st *cudaStream_t;

struct cudaPointerAttributes { cudaMemoryType type; void *devicePointer; };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct { int programmaticStreamSerializationAllowed; struct { unsigned x, y, z; } clusterDim; } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* Bytes of L2, and of shared memory that a CTA can have when it asks. */
struct standin_card { const char *name; int major, multiprocessors, l2, shared; };
static const standin_card standin_cards[] = {
    {"sm_80",  8, 108,  40 << 20, 163 << 10}, {"sm_86",   8,  84,   6 << 20,  99 << 10},
    {"sm_89",  8, 142,  96 << 20,  99 << 10}, {"sm_90",   9, 132,  50 << 20, 227 << 10},
    {"sm_100", 10, 148, 126 << 20, 227 << 10}, {"sm_120", 12, 170, 128 << 20,  99 << 10},
};

struct standin_launch {
    const void *kernel;
    dim3 grid;
    int threads;
    size_t dynamic, declared;
    unsigned cluster;
    bool overlap;
    cudaStream_t stream;
    std::vector<char> parameters;
};
/* apart: another device's, which the current one does not reach */
struct standin_memory { uintptr_t begin; uint64_t bytes; cudaMemoryType type; bool apart = false; };

struct standin_state {
    const standin_card *card = &standin_cards[0];
    std::vector<standin_memory> memory;             /* what is not the host's own */
    std::vector<standin_launch> launches;
    std::vector<standin_memory> cleared;            /* by cudaMemsetAsync */
    std::map<const void *, int> most_dynamic;       /* set by cudaFuncSetAttribute */
    /* the same in all calls: the kernel is not one thread's */
    std::map<std::pair<const void *, const standin_card *>, int> always_asked;
    bool warpgroups = true;                         /* compiled for sm_90a */
    int64_t calls = 0, fail_at = 0;                 /* the call of that number fails */
    cudaError_t fail_with = cudaErrorInvalidValue;
    std::string broken;                             /* the first rule that was broken */

    void start() {
        launches.clear();
        cleared.clear();
        most_dynamic.clear();
        calls = 0;
        broken.clear();
    }
    bool fails() { return ++calls == fail_at; }
    cudaError_t breaks(const char *rule, long long got, long long most) {
        char text[200];
        snprintf(text, sizeof text, "%s: %lld, %lld on %s", rule, got, most, card->name);
        if (broken.empty()) broken = text;
        return cudaErrorInvalidValue;
    }
    const standin_memory *find(const void *p) const {
        for (const standin_memory &m : memory) if ((uintptr_t)p - m.begin < m.bytes) return &m;
        return nullptr;
    }
};
inline standin_state standin;

enum { STANDIN_DECLARED = 48 << 10 };               /* shared memory that need not be asked for */

/* Called by the kernels: their threads, the shared memory that they declare and what else they
   need. */
inline void standin_kernel(int threads, size_t declared, size_t dynamic) {
    standin_launch &l = standin.launches.back();
    const size_t total = declared + l.dynamic;
    l.declared = declared;
    if (l.threads != threads) standin.breaks("threads of a CTA", l.threads, threads);
    if (declared > STANDIN_DECLARED)
        standin.breaks("declared shared memory", (long long)declared, STANDIN_DECLARED);
    if (l.dynamic < dynamic)
        standin.breaks("too little shared memory", (long long)l.dynamic, (long long)dynamic);
    if (total > (size_t)standin.card->shared)
        standin.breaks("shared memory", (long long)total, standin.card->shared);
    if (total > STANDIN_DECLARED && (long long)l.dynamic > standin.most_dynamic[l.kernel])
        standin.breaks("shared memory that was not asked for", (long long)l.dynamic,
                       standin.most_dynamic[l.kernel]);
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline cudaError_t cudaGetDevice(int *device) {
    if (standin.fails()) return standin.fail_with;
    *device = 3;
    return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (standin.fails()) return standin.fail_with;
    if (device != 3) return cudaErrorInvalidDevice;
    const standin_card *c = standin.card;
    *value = attribute == cudaDevAttrMultiProcessorCount ? c->multiprocessors
           : attribute == cudaDevAttrComputeCapabilityMajor ? c->major
           : attribute == cudaDevAttrL2CacheSize ? c->l2 : c->shared;
    return cudaSuccess;
}

inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *p) {
    if (standin.fails()) return standin.fail_with;
    const standin_memory *m = standin.find(p);
    attributes->type = m ? m->type : cudaMemoryTypeUnregistered;
    attributes->devicePointer = m && m->apart ? nullptr : (void *)(uintptr_t)p;
    return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void *p, int, size_t bytes, cudaStream_t) {
    if (standin.fails()) return standin.fail_with;
    const standin_memory *m = standin.find(p);
    if (!m || (uintptr_t)p + bytes > m->begin + m->bytes)
        return standin.breaks("bytes to clear", (long long)bytes, 0);
    standin.cleared.push_back({(uintptr_t)p, bytes, m->type});
    return cudaSuccess;
}

inline cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value) {
    if (standin.fails()) return standin.fail_with;
    if (value < 0 || value > standin.card->shared)
        return standin.breaks("shared memory to ask for", value, standin.card->shared);
    const int always = standin.always_asked.insert({{kernel, standin.card}, value}).first->second;
    if (always != value) return standin.breaks("shared memory to ask for, in another call", value, always);
    standin.most_dynamic[kernel] = value;
    return cudaSuccess;
}

/* Registers of a kernel: more than a few where its code is for the card. What it declares it
   tells when it is launched. */
struct cudaFuncAttributes { int numRegs; size_t sharedSizeBytes; };
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    if (standin.fails()) return standin.fail_with;
    attributes->numRegs = standin.card->major == 9 && standin.warpgroups ? 168 : 0;
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

template <typename P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(const P), const P &p) {
    static_assert(sizeof p <= 4096, "parameters of a kernel end at 4 KB");
    if (standin.fails()) return standin.fail_with;
    const dim3 g = config->gridDim, b = config->blockDim;
    bool overlap = false;
    unsigned cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute &x = config->attrs[i];
        if (x.id == cudaLaunchAttributeClusterDimension) cluster = x.val.clusterDim.x;
        else if (x.id == cudaLaunchAttributeProgrammaticStreamSerialization)
            overlap = x.val.programmaticStreamSerializationAllowed != 0;
        else return standin.breaks("a launch attribute", x.id, 0);
    }
    if (cluster > 1 && (standin.card->major < 9 || cluster > 8 || g.x % cluster))
        return standin.breaks("a cluster", cluster, 8);
    if (g.x < 1 || g.x > INT32_MAX) return standin.breaks("grid x", g.x, INT32_MAX);
    if (g.y < 1 || g.y > 65535) return standin.breaks("grid y", g.y, 65535);
    if (g.z < 1 || g.z > 65535) return standin.breaks("grid z", g.z, 65535);
    if (b.x < 1 || b.x > 1024 || b.y != 1 || b.z != 1) return standin.breaks("CTA x", b.x, 1024);
    if (overlap && standin.card->major < 9)
        return standin.breaks("a dependent launch", 1, 0);
    standin_launch l = {(const void *)kernel, g, (int)b.x, config->dynamicSmemBytes, 0, cluster,
                        overlap, config->stream, {}};
    l.parameters.assign((const char *)&p, (const char *)&p + sizeof p);
    standin.launches.push_back(std::move(l));
    kernel(p);
    return standin.broken.empty() ? cudaSuccess : cudaErrorInvalidValue;
}

#endif
