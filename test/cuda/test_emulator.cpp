/* Tests of the emulator in test/cuda/emulator: its numbers against the library's, its
   instructions against plain sums, and that it stops kernels that are wrong. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cfenv>
#include <functional>
#include <string>
#include <vector>
#include "../harness.h"

/* -------------------------------------------------------------------------------- numbers */

static void half_numbers(void) {
    int64_t wrong = 0;
    for (unsigned i = 0; i < 65536; i++) {
        const unsigned short u = (unsigned short)i;
        const float x = __half2float(__ushort_as_half(u)), want = santa_f16_to_f32(u);
        wrong += !(x == want || (x != x && want != want));
        wrong += x == x && __half_as_ushort(__float2half_rn(x)) != u;
    }
    test_rng r = test_rng_make(1);
    for (int i = 0; i < 2000000; i++) {
        const float x = emulated::bits<float>((unsigned)test_next(&r));
        if (x != x) continue;
        wrong += __half_as_ushort(__float2half_rn(x)) != santa_f32_to_f16(x);
        wrong += __bfloat16_as_ushort(__float2bfloat16_rn(x)) != santa_f32_to_bf16(x);
        const unsigned char e = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
        wrong += fabsf(x) < 448.0f && e != santa_f32_to_e4m3(x);
    }
    for (int i = 0; i < 256; i++) {
        const float x = __half2float(__half(__nv_cvt_fp8_to_halfraw((unsigned char)i, __NV_E4M3))),
                    want = santa_e4m3_to_f32((unsigned char)i);
        wrong += !(x == want || (x != x && want != want));
    }
    CHECK_INT(wrong, 0);
}

static void rounding(void) {
    test_rng r = test_rng_make(2);
    int64_t wrong = 0;
    for (int i = 0; i < 200000; i++) {
        const int span = (int)test_below(&r, 60) - 30;
        volatile float a = (float)test_normal(&r), b = (float)ldexp(test_normal(&r), span);
        volatile double d = test_normal(&r) * 1e-3;
        fesetround(FE_DOWNWARD);
        volatile float sum = a + b, low = (float)d;
        fesetround(FE_TONEAREST);
        wrong += __fadd_rd(a, b) != sum || __double2float_rd(d) != low;
    }
    CHECK_INT(wrong, 0);
    CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x0073) == 0x00007733u
          && __byte_perm(0x33221100u, 0x77665544u, 0x5410) == 0x55441100u);
    CHECK(__umulhi(0xffffffffu, 0xfffffffeu) == 0xfffffffdu && __clz(0) == 32 && __ffs(0) == 0
          && __ffs(8) == 4);
    CHECK(__umul64hi(~0ull, ~0ull) == ~0ull - 1 && __brev(1) == 0x80000000u);
    CHECK(pow2(-127.0f) == 0.0f && pow2(0.0f) == 1.0f && pow2(-1.5f) == exp2f(-1.5f));
}

/* ------------------------------------------------------------------------------- launches */

/* Device memory of n numbers, zeros at first. */
template <typename T> struct numbers {
    T *p = nullptr;
    size_t n;
    explicit numbers(size_t n_) : n(n_) { cudaMalloc(&p, n * sizeof(T)); cudaMemset(p, 0, n * sizeof(T)); }
    ~numbers() { cudaFree(p); }
    std::vector<T> get() const {
        std::vector<T> x(n);
        cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
        return x;
    }
    void put(const std::vector<T> &x) { cudaMemcpy(p, x.data(), n * sizeof(T), cudaMemcpyHostToDevice); }
};

template <typename... P, typename... A>
static cudaError_t run_clusters(unsigned ctas, void (*kernel)(P...), unsigned grid, unsigned block,
                                size_t shared, A... a) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    config.gridDim = dim3(grid);
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = shared;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = dim3(ctas);
    config.attrs = &attribute;
    config.numAttrs = ctas > 1;
    const cudaError_t e = cudaLaunchKernelEx(&config, kernel, a...), later = cudaDeviceSynchronize();
    cudaGetLastError();
    return e != cudaSuccess ? e : later;
}

template <typename... P, typename... A>
static cudaError_t run(void (*kernel)(P...), unsigned grid, unsigned block, size_t shared, A... a) {
    return run_clusters(1, kernel, grid, block, shared, a...);
}

static void k_lanes(unsigned *out) {
    const unsigned lane = threadIdx.x & 31, full = 0xffffffffu;
    unsigned *mine = out + 16 * (blockIdx.x * blockDim.x + threadIdx.x);
    mine[0] = __shfl_xor_sync(full, lane, 5);
    mine[1] = __shfl_up_sync(full, lane, 3);
    mine[2] = __shfl_down_sync(full, lane, 30);
    mine[3] = __shfl_sync(full, lane, 9, 8);
    mine[4] = __ballot_sync(full, lane % 3 == 0);
    mine[5] = (unsigned)__any_sync(full, lane == 7) + 2 * (unsigned)__any_sync(full, 0);
    mine[6] = (unsigned)__all_sync(full, lane != 7) + 2 * (unsigned)__all_sync(full, 5);
    mine[7] = __reduce_add_sync(full, lane);
    mine[8] = lane < 10 ? __shfl_xor_sync(0x3ffu, lane, 1) : __reduce_max_sync(~0x3ffu, lane);
    mine[9] = (unsigned)__syncthreads_or(threadIdx.x == 40) + 2 * (unsigned)__syncthreads_and(1)
            + 4 * (unsigned)__syncthreads_count(lane < 2);
    mine[10] = __match_any_sync(full, lane / 4);
    mine[11] = (unsigned)(int)__shfl_xor_sync(full, (double)lane, 1);
}

static void collectives(void) {
    numbers<unsigned> out(16 * 192);
    CHECK(run(k_lanes, 2, 96, 0, out.p) == cudaSuccess);
    const std::vector<unsigned> x = out.get();
    int64_t wrong = 0;
    for (unsigned i = 0; i < 192; i++) {
        const unsigned *m = &x[16 * i], l = i % 32;
        wrong += m[0] != (l ^ 5) || m[1] != (l < 3 ? l : l - 3) || m[2] != (l < 2 ? l + 30 : l)
              || m[3] != (l & ~7u) + 1 || m[4] != 0x49249249u || m[5] != 1 || m[6] != 2 || m[7] != 496
              || m[8] != (l < 10 ? l ^ 1 : 31) || m[9] != 1 + 2 + 4 * 6 || m[10] != 15u << (l & ~3u)
              || m[11] != (l ^ 1);
    }
    CHECK_INT(wrong, 0);
}

/* A product on tensor cores against plain sums; A as 16 x 16 and B as 16 x 8 by ldmatrix and by
   hand. */
static void k_product(const __half *a, const __half *b, float *c, const signed char *codes, int *sums) {
    typedef __half matrix[16][16];
    SHARED(s, matrix);
    const unsigned lane = threadIdx.x, r = lane / 4, q = lane % 4;
    for (unsigned i = lane; i < 256; i += 32) s[i / 16][i % 16] = a[i];
    __syncwarp();
    unsigned w[4], bw[2];
    load_matrices((unsigned)__cvta_generic_to_shared(&s[lane % 16][8 * (lane / 16)]), w);
    for (unsigned i = 0; i < 2; i++)
        bw[i] = __half_as_ushort(b[(2 * q + 8 * i) * 8 + r])
              | (unsigned)__half_as_ushort(b[(2 * q + 8 * i + 1) * 8 + r]) << 16;
    float acc[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    mma(acc, w[0], w[1], w[2], w[3], bw[0], bw[1], __half());
    for (unsigned i = 0; i < 4; i++) c[(r + 8 * (i / 2)) * 8 + 2 * q + i % 2] = acc[i];
    unsigned x[4], y[2];
    for (unsigned i = 0; i < 4; i++)
        memcpy(&x[i], codes + (r + 8 * (i % 2)) * 32 + 4 * q + 16 * (i / 2), 4);
    for (unsigned i = 0; i < 2; i++) memcpy(&y[i], codes + 512 + r * 32 + 4 * q + 16 * i, 4);
    int n[4] = {0, 0, 0, 0};
    mma_codes(n, x[0], x[1], x[2], x[3], make_uint2(y[0], y[1]));
    for (unsigned i = 0; i < 4; i++) sums[(r + 8 * (i / 2)) * 8 + 2 * q + i % 2] = n[i];
}

static void tensor_cores(void) {
    test_rng r = test_rng_make(3);
    std::vector<__half> a(256), b(128);
    std::vector<signed char> codes(512 + 256);
    for (__half &x : a) x = (float)test_normal(&r);
    for (__half &x : b) x = (float)test_normal(&r);
    for (signed char &x : codes) x = (signed char)test_next(&r);
    numbers<__half> da(256), db(128);
    numbers<float> dc(128);
    numbers<signed char> dx(codes.size());
    numbers<int> ds(128);
    da.put(a);
    db.put(b);
    dx.put(codes);
    CHECK(run(k_product, 1, 32, 0, (const __half *)da.p, (const __half *)db.p, dc.p,
              (const signed char *)dx.p, ds.p)
          == cudaSuccess);
    const std::vector<float> c = dc.get();
    const std::vector<int> sums = ds.get();
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++) {
            double want = 1.0;
            int whole = 0;
            for (size_t k = 0; k < 16; k++)
                want += (double)(float)a[i * 16 + k] * (double)(float)b[k * 8 + j];
            for (size_t k = 0; k < 32; k++)
                whole += (int)(unsigned char)codes[i * 32 + k] * (int)codes[512 + j * 32 + k];
            CHECK_NEAR(c[i * 8 + j], want, 1e-5, 0.0);
            CHECK_INT(sums[i * 8 + j], whole);
        }
}

/* --------------------------------------------------------------------------------- faults */

#define FULL 0xffffffffu
static const unsigned NONE = 0;

static void k_right(float *out, const float *in) {
    DYNAMIC_SHARED(slots);
    copy16(slots + threadIdx.x, (const char *)(in + 4 * threadIdx.x));
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    out[threadIdx.x] = ((const float *)slots)[threadIdx.x];
}
static void k_unwaited(float *out, const float *in) {       /* one group too few */
    DYNAMIC_SHARED(slots);
    copy16(slots + threadIdx.x, (const char *)(in + 4 * threadIdx.x));
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    out[threadIdx.x] = ((const float *)slots)[threadIdx.x];
}
static void k_unset(float *out, const float *) {            /* shared memory before its first use */
    typedef float floats[64];
    SHARED(s, floats);
    if (threadIdx.x == 5) s[5] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
static void k_bulk(float *out, const float *in) {
    DYNAMIC_SHARED(slots);
    SHARED(full, unsigned long long);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&full);
    if (threadIdx.x == 0) barrier_make(bar);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        barrier_expect(bar, 256);
        copy_bytes((unsigned)__cvta_generic_to_shared(slots), (const char *)in, 256, bar);
    }
#else
    if (threadIdx.x < 32) {
        if (threadIdx.x < 16)
            copy16_to((unsigned)__cvta_generic_to_shared(slots + threadIdx.x),
                      (const char *)(in + 4 * threadIdx.x));
        barrier_after_copies(bar);
    }
#endif
    const float before = ((const float *)slots)[threadIdx.x];
    __syncthreads();
    barrier_wait(bar, 0);
    out[threadIdx.x] = before == before ? -1.0f : ((const float *)slots)[threadIdx.x];
}

/* A box that reaches over the last row and the last feature. */
struct boxed { CUtensorMap map; };
static void k_box(float *out, const boxed x) {
    DYNAMIC_SHARED(slots);
    SHARED(full, unsigned long long);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&full),
                   at = ((unsigned)__cvta_generic_to_shared(slots) + 1023u) & ~1023u;
    if (threadIdx.x == 0) {
        barrier_make_for(bar, 1);
        barrier_expect(bar, 1024);
        copy_box(at, &x.map, 64, 3, 1, 1, bar);
    }
    __syncthreads();
    barrier_wait(bar, 0);
    const unsigned short *box = (const unsigned short *)emulated::shared_pointer(at);
    for (int i = (int)threadIdx.x; i < 512; i += 64) out[i] = (float)box[i];
}
static void boxes(void) {
    enum { FEATURES = 96, ROWS = 5, HEADS = 2, PLANES = 2 };
    numbers<unsigned short> in(FEATURES * ROWS * HEADS * PLANES);
    numbers<float> out(512);
    std::vector<unsigned short> x(in.n);
    for (size_t i = 0; i < x.size(); i++) x[i] = (unsigned short)(i + 1);
    in.put(x);
    const cuuint64_t shape[4] = {FEATURES, ROWS, HEADS, PLANES},
                     strides[3] = {2 * FEATURES * HEADS, 2 * FEATURES, 2 * FEATURES * HEADS * ROWS};
    const cuuint32_t box[4] = {64, 8, 1, 1}, every[4] = {1, 1, 1, 1};
    boxed b;
    CHECK(cuTensorMapEncodeTiled(&b.map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, (void *)in.p, shape, strides,
                                 box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
          == CUDA_SUCCESS);
    CHECK(run(k_box, 1, 64, 4096, out.p, b) == cudaSuccess);
    const std::vector<float> y = out.get();
    int right = 0;
    for (int line = 0; line < 8; line++)
        for (int i = 0; i < 64; i++) {
            const bool have = line < ROWS - 3 && i < FEATURES - 64;
            const int from = ((ROWS + 3 + line) * HEADS + 1) * FEATURES + 64 + i;
            const size_t to = (size_t)(64 * line + 8 * (i / 8 ^ line) + i % 8);
            right += y[to] == (have ? (float)(from + 1) : 0.0f);
        }
    CHECK_MSG(right == 512, "%d of 512 numbers of a box", right);
}

static void copies(void) {
    numbers<float> in(256), out(64);
    std::vector<float> x(256);
    for (size_t i = 0; i < x.size(); i++) x[i] = (float)i;
    in.put(x);
    const auto count = [&](float (*want)(int)) {
        int right = 0;
        const std::vector<float> y = out.get();
        for (int i = 0; i < 64; i++) right += y[(size_t)i] == want(i);
        return right;
    };
    const auto same = [](int i) { return (float)i; };
    CHECK(run(k_right, 1, 64, 1024, out.p, (const float *)in.p) == cudaSuccess && count(same) == 64);
    CHECK(run(k_unwaited, 1, 64, 1024, out.p, (const float *)in.p) == cudaSuccess && count(same) == 0);
    CHECK(run(k_unset, 1, 64, 0, out.p, (const float *)in.p) == cudaSuccess);
    CHECK(count([](int i) { return i == 5 ? 1.0f : (float)i; }) == 1);
    CHECK(run(k_bulk, 1, 64, 1024, out.p, (const float *)in.p) == cudaSuccess && count(same) == 64);
}

static void k_split(unsigned) {
    if (threadIdx.x < 16) __syncwarp();
    else __shfl_xor_sync(FULL, 1, 1);
}
static void k_two_lines(unsigned) {
    if (threadIdx.x < 16) __syncwarp();
    else
        __syncwarp();
}
static void k_left(unsigned) {
    if (threadIdx.x == 3) return;
    __syncwarp();
}
static void k_not_mine(unsigned) { __syncwarp(1u); }
static void k_stranger(unsigned) { if (threadIdx.x < 16) __shfl_xor_sync(0xffffu, 1, 16); }
static void k_missing(unsigned) { if (threadIdx.x < 32) __syncthreads(); }
static void k_two_barriers(unsigned) {
    if (threadIdx.x < 32) __syncthreads();
    else
        __syncthreads();
}
/* An mbarrier that nobody arrives at. */
static unsigned lonely_barrier() {
    SHARED(full, unsigned long long);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&full);
    if (threadIdx.x == 0) barrier_make(bar);
    __syncthreads();
    return bar;
}
static void k_waits(unsigned) { barrier_wait(lonely_barrier(), 0); }
static void k_no_barrier(unsigned) {
    SHARED(full, unsigned long long);
    barrier_wait((unsigned)__cvta_generic_to_shared(&full), 0);
}
static void k_odd_copy(unsigned) {
    DYNAMIC_SHARED(slots);
    copy16((uint4 *)((char *)slots + 8), (const char *)slots);
}
static void k_not_shared(unsigned) {
    int x = 0;
    (void)__cvta_generic_to_shared(&x);
}
static void k_declared(unsigned) {
    typedef char bytes[50000];
    SHARED(s, bytes);
    s[threadIdx.x] = 1;
}
static void k_dynamic(unsigned) {
    typedef char bytes[1000];
    SHARED(s, bytes);
    s[0] = 1;
}
#if __CUDA_ARCH__ >= 900
static float bulk_source[4096];
/* CTAs read from, and write to, the next one of their cluster; its variables have the same
   addresses. */
static int behind_late(int x) {
    typedef int one[2];
    SHARED(late, one);                              /* later than the first barrier */
    late[threadIdx.x & 1] = x;
    return late[threadIdx.x & 1];
}
static void k_cluster(int *out) {
    typedef int ints[64];
    SHARED(s, ints);
    SHARED(from, ints);
    DYNAMIC_SHARED(slots);
    const int i = (int)threadIdx.x, rank = cta_in_cluster(), next = (rank + 1) % 4;
    int *const more = (int *)slots;
    s[i] = 100 * (int)blockIdx.x + i;
    more[i] = 2 * s[i];
    cluster_sync();
    if (i == 9) return;                             /* counts no more */
    *in_cta(&from[i], next) = s[i] + *in_cta(&more[63 - i], next);
    cluster_arrive();
    const int late = behind_late(rank);
    cluster_wait();
    const bool good = late == rank && s[i] == 100 * (int)blockIdx.x + i;
    out[64 * blockIdx.x + (unsigned)i] = good ? from[i] : -1;
    cluster_sync();
}
static void k_cluster_waits(unsigned) {
    const unsigned bar = lonely_barrier();
    if (cta_in_cluster() == 1 && threadIdx.x < 32) barrier_wait(bar, 0);
    cluster_sync();
}
static void k_cluster_early(unsigned) {
    SHARED(s, unsigned long long);
    if (cta_in_cluster() == 0) *in_cta(&s, 1) = 1;
    cluster_sync();
}
static void k_no_such_cta(unsigned) {
    SHARED(s, unsigned long long);
    cluster_sync();
    *in_cta(&s, 2) = 1;
}
static void k_unwaited_bulk(unsigned) {
    DYNAMIC_SHARED(slots);
    SHARED(full, unsigned long long);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&full);
    if (threadIdx.x) return;
    barrier_make(bar);
    barrier_expect(bar, 256);
    alignas(16) static const char *const from = (const char *)(((uintptr_t)bulk_source + 15) / 16 * 16);
    copy_bytes((unsigned)__cvta_generic_to_shared(slots), from, 256, bar);
}
#endif
#ifndef EMULATED_ASAN
static void k_behind(char *p, size_t at) { if (threadIdx.x == 0) p[at] = 1; }
static void k_behind_declared(char *, size_t at) {
    typedef char bytes[320];
    SHARED(s, bytes);
    if (threadIdx.x == 0) ((volatile char *)s)[at] = 1;
}
static void k_behind_dynamic(char *, size_t at) {
    DYNAMIC_SHARED(slots);
    if (threadIdx.x == 0) ((volatile char *)slots)[at] = 1;
}
#endif

static void stopped(cudaError_t e, const char *what, const char *words) {
    const std::string &report = emulated::state.report;
    CHECK_MSG(e == cudaErrorLaunchFailure, "%s went through", what);
    CHECK_MSG(report.find(words) != std::string::npos, "%s: no \"%s\" in: %s", what, words, report.c_str());
    emulated::state.report.clear();
}
#define STOPS(kernel, block, shared, words) stopped(run(kernel, 2, block, shared, NONE), #kernel, words)

#if __CUDA_ARCH__ >= 900
static void clusters(void) {
    numbers<int> out(64 * 8);
    CHECK(run_clusters(4, k_cluster, 8, 64, 256, out.p) == cudaSuccess);
    const std::vector<int> got = out.get();
    for (int b = 0; b < 8; b++) {
        const int before = b % 4 ? b - 1 : b + 3;    /* writes to b what it has, and what b has */
        for (int i = 0; i < 64; i++)
            CHECK_INT(got[(size_t)(64 * b + i)], i == 9 ? 0 : 100 * before + i + 2 * (100 * b + 63 - i));
    }
    CHECK(run_clusters(3, k_cluster, 8, 64, 256, out.p) == cudaErrorInvalidValue);
    CHECK(run_clusters(9, k_cluster, 9, 64, 256, out.p) == cudaErrorInvalidValue);
    emulated::state.quiet = true;
#define CLUSTER_STOPS(kernel, words) stopped(run_clusters(2, kernel, 4, 64, 0, NONE), #kernel, words)
    CLUSTER_STOPS(k_cluster_waits, "wait for each other");
    CLUSTER_STOPS(k_cluster_early, "no such variable yet");
    CLUSTER_STOPS(k_no_such_cta, "CTA 2 of a cluster of 2");
    emulated::state.quiet = false;
    CHECK(run_clusters(4, k_cluster, 8, 64, 256, out.p) == cudaSuccess);  /* as before */
    CHECK(out.get() == got);
}
#endif

static void faults(void) {
    emulated::state.quiet = true;
    STOPS(k_split, 32, 0, "others wait elsewhere");
    STOPS(k_two_lines, 32, 0, "others wait elsewhere");
    STOPS(k_left, 32, 0, "left");
    STOPS(k_not_mine, 32, 0, "without the lane");
    STOPS(k_stranger, 32, 0, "not in the mask");
    STOPS(k_missing, 64, 0, "nobody can go on");
    STOPS(k_two_barriers, 64, 0, "another one");
    STOPS(k_waits, 64, 0, "nobody can go on");
    STOPS(k_no_barrier, 64, 0, "nobody has made");
    STOPS(k_odd_copy, 64, 64, "odd addresses");
    STOPS(k_not_shared, 64, 0, "not in shared memory");
    STOPS(k_declared, 64, 0, "are declared");
    CHECK(run(k_dynamic, 1, 64, 60000, NONE) == cudaErrorInvalidValue);
    STOPS(k_dynamic, 64, 48 << 10, "not asked for");
    const auto ask = [](int bytes) {
        return cudaFuncSetAttribute((const void *)k_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    bytes);
    };
    CHECK(ask(60000) == cudaSuccess);
    CHECK(run(k_dynamic, 1, 64, 60000, NONE) == cudaSuccess);
    const int all = emulated::find_card()->shared;
    CHECK(ask(all) == cudaSuccess);
    STOPS(k_dynamic, 64, (size_t)all, "are the most on");
    CHECK(ask(all + 1) != cudaSuccess);
#if __CUDA_ARCH__ >= 900
    STOPS(k_unwaited_bulk, 32, 1024, "nobody waited for");
#endif
#ifndef EMULATED_ASAN
    char *p = nullptr;
    CHECK(cudaMalloc(&p, 1000) == cudaSuccess);
    CHECK(run(k_behind, 1, 32, 0, p, (size_t)999) == cudaSuccess);
    stopped(run(k_behind, 1, 32, 0, p, (size_t)1000), "one byte behind", "wrote beside");
    stopped(run(k_behind, 1, 32, 0, p, ~(size_t)0), "one byte before", "wrote beside");
    stopped(run(k_behind, 1, 32, 0, p, (size_t)5000), "far behind", "no memory of the device");
    stopped(run(k_behind_declared, 1, 32, 0, p, (size_t)320), "behind declared memory",
            "beside its shared");
    stopped(run(k_behind_dynamic, 1, 32, 1000, p, (size_t)1010), "behind dynamic memory", "wrote");
    stopped(run(k_behind_dynamic, 1, 32, 1000, p, (size_t)1024), "far behind dynamic memory",
            "beside its shared");
    cudaFree(p);
#endif
    emulated::state.quiet = false;
    numbers<unsigned> out(16 * 192);                /* and nothing sticks */
    CHECK(run(k_lanes, 2, 96, 0, out.p) == cudaSuccess);
}

/* --------------------------------------------------------------------------------- orders */

static void k_order(int *list, int *count) {
    if (threadIdx.x == 0) list[atomicAdd(count, 1)] = (int)blockIdx.x;
}
static void k_lane_order(int *list, int *count) { list[atomicAdd(count, 1)] = (int)threadIdx.x; }

static void orders(void) {
    const int before = emulated::state.order;
    for (int order = 0; order < 3; order++) {
        emulated::state.order = order;
        for (int lanes = 0; lanes < 2; lanes++) {
            numbers<int> list(64), count(1);
            CHECK(run(lanes ? k_lane_order : k_order, lanes ? 1 : 64, lanes ? 64 : 32, 0, list.p, count.p)
                  == cudaSuccess);
            std::vector<int> x = list.get();
            int up = 1, down = 1;
            for (size_t i = 0; i < 64; i++) {
                up &= x[i] == (int)i;
                down &= x[i] == 63 - (int)i;
            }
            CHECK(up == (order == 0) && down == (order == 1));
            std::sort(x.begin(), x.end());
            for (size_t i = 0; i < 64; i++) CHECK_INT(x[i], i);
        }
    }
    emulated::state.order = before;
}

/* -------------------------------------------------------------------------------- runtime */

static void k_add(int *x) { if (threadIdx.x == 0) x[0]++; }

static void runtime(void) {
    numbers<int> x(1);
    cudaStream_t s;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(3);
    config.blockDim = dim3(32);
    CHECK(cudaStreamCreate(&s) == cudaSuccess);
    config.stream = s;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaLaunchKernelEx(&config, k_add, x.p) == cudaSuccess);
    void *p = nullptr;
    CHECK(cudaMalloc(&p, 10) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    CHECK_INT(x.get()[0], 0);
    CHECK(cudaGraphInstantiate(&exec, graph) == cudaSuccess);
    for (int i = 0; i < 2; i++) CHECK(cudaGraphLaunch(exec, s) == cudaSuccess);
    CHECK_INT(x.get()[0], 6);
    cudaGraphDestroy(graph);
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(cudaMemset(x.p, 0, 4) == cudaErrorStreamCaptureImplicit);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
    cudaGraphExecDestroy(exec);
    cudaStreamDestroy(s);
    cudaGetLastError();
    int host = 0;
    cudaPointerAttributes at;
    CHECK(cudaPointerGetAttributes(&at, &host) == cudaSuccess && at.type == cudaMemoryTypeUnregistered);
    CHECK(cudaPointerGetAttributes(&at, x.p) == cudaSuccess && at.type == cudaMemoryTypeDevice);
    CHECK(cudaPointerGetAttributes(&at, x.p + 1) == cudaSuccess && at.type == cudaMemoryTypeUnregistered);
    CHECK(cudaMemcpy(x.p, &host, 8, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(&host, &host, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaFree(&host) == cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(run(k_add, 65536, 32, 0, x.p) == cudaSuccess);
    config = {};
    config.gridDim = dim3(1, 65536);
    config.blockDim = dim3(32);
    CHECK(cudaLaunchKernelEx(&config, k_add, x.p) == cudaErrorInvalidValue);
    config.gridDim = dim3(1);
    config.blockDim = dim3(1025);
    CHECK(cudaLaunchKernelEx(&config, k_add, x.p) == cudaErrorInvalidValue);
    cudaGetLastError();
}

static const test_case emulator[] = {{"half_numbers", half_numbers},
                                     {"rounding", rounding},
                                     {"collectives", collectives},
                                     {"tensor_cores", tensor_cores},
                                     {"copies", copies},
                                     {"boxes", boxes},
                                     {"faults", faults},
#if __CUDA_ARCH__ >= 900
                                     {"clusters", clusters},
#endif
                                     {"orders", orders},
                                     {"runtime", runtime},
                                     {0, 0}};
#define TEST_SUITES {"emulator", emulator},
#include "../main.c"
