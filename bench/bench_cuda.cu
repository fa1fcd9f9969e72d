/* GPU benchmark: our methods against the floor of reading K once, in one run.
     mkdir -p build
     nvcc -std=c++17 -O3 -arch=native bench/bench_cuda.cu santa_cuda.cu -o build/bench_cuda
     build/bench_cuda [--quick] [--saap | --vattention | --prefill | --dense | --copies |
                      --encode | --lists | --latent] [--csv FILE]
                      with a method: its rows alone; --copies: what draws from a copy of K;
                      --encode: making it, against reading K;
                      --lists: a caller's lists of keys, against reading as many bytes;
                      --dense: dense and prop 128 of every type and of more shapes, against
                      reading K and V once and K once; several query rows from a copy, too;
                      --latent: MLA's rows
   Protocol (appendix R of the SANTA paper, with graph replay so that launch cost on the host is
   out): before each sample a 512 MB buffer is read and written (cold, dirty L2); 10 warm-up and
   40 timed replays of a captured call between two events; median. Ratios are of calls timed in
   turns, by the least times, with 10 and 90 % of what single rounds say; none where the machine
   is too busy: see gain.h. */
#define SANTA_IMPLEMENTATION
#include "../santa_cuda.h"
#include "gain.h"
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CUDA(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { \
    fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

enum { HEADS = 32, KV_HEADS = 8, DIM = 128 };

/* Gaussian data from a counter hash; type 0 = f32, 1 = f16, 2 = bf16, 3 = e4m3. */
__global__ void fill(unsigned char *p, size_t n, int type, unsigned seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        unsigned long long x = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        x ^= x >> 31;
        float u = ((x >> 40) + 1) * (1.0f / 16777217.0f), v = (x & 0xffffff) * (1.0f / 16777216.0f);
        float g = sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
        unsigned bits = __float_as_uint(g);
        if (type == 0) ((float *)p)[i] = g;
        else if (type == 2)
            ((unsigned short *)p)[i] = (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        else if (type == 1)
            asm("{ .reg .f16 h; cvt.rn.f16.f32 h, %1; mov.b16 %0, h; }"
                : "=h"(((unsigned short *)p)[i])
                : "f"(g));
        else { /* e4m3 of a clamped value, through its bits: 3 mantissa bits, bias 7 */
            float a = fminf(fabsf(g), 8.0f);
            int e = a > 0.0f ? max(ilogbf(a), -6) : -6;
            int m = (int)rintf(a * exp2f((float)(3 - e)));
            if (m == 16) { m = 8; e++; }
            p[i] = (unsigned char)((g < 0.0f ? 128 : 0) | (m < 8 ? m : (e + 7) << 3 | (m & 7)));
        }
    }
}

/* Bytes of K or V that stand for numbers between -2 and 2: of e5m2, or of blocks whose scale is
   2^-6. */
__global__ void fill_codes(unsigned char *p, size_t n, int block, unsigned seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const unsigned long long x = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
        const unsigned char random = (unsigned char)((x ^ x >> 30) * 0xBF58476D1CE4E5B9ull >> 56);
        const int at = block ? (int)(i % block) : 2;
        p[i] = at == 0 ? 0 : at == 1 ? 0x24 : block ? random : random & 0xbf;
    }
}

__global__ void thrash(float *p, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] += 1.0f;
}

/* The floor: every CTA reads one contiguous 64 KB block of n times 16 bytes. */
__global__ void __launch_bounds__(256) read_all(const uint4 *p, size_t n, unsigned *out) {
    unsigned a = 0;
    uint4 v[16];
    const size_t base = (size_t)blockIdx.x * 4096;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const size_t at = base + j * 256 + threadIdx.x;
        v[j] = __ldcs(p + (at < n ? at : n - 1));
    }
#pragma unroll
    for (int j = 0; j < 16; j++) a ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    if (a == 0x12345) *out = a;
}

/* bf16 numbers times 2^-6. */
__global__ void shrink(unsigned short *p, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        if ((p[i] & 0x7f80) > 6 << 7) p[i] -= 6 << 7;
}

struct timer {
    cudaStream_t stream;
    float *buffer;
    size_t n = (size_t)128 << 20;
    cudaEvent_t from, to;
    unsigned *sink;
    timer() {
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA(cudaMalloc(&buffer, n * 4));
        CUDA(cudaMemset(buffer, 0, n * 4));
        CUDA(cudaEventCreate(&from));
        CUDA(cudaEventCreate(&to));
        CUDA(cudaMalloc(&sink, 4));
    }
    cudaGraphExec_t capture(const std::function<void()> &f) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        f();
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&exec, graph, 0));
        CUDA(cudaGraphDestroy(graph));
        return exec;
    }
    cudaGraphExec_t capture_read(const void *p, size_t bytes) {
        return capture([&] {
            read_all<<<(unsigned)((bytes + 65535) / 65536), 256, 0, stream>>>((const uint4 *)p, bytes / 16,
                                                                              sink);
        });
    }
    double median(const std::function<void()> &f, int runs) { return median(capture(f), runs); }
    double median(cudaGraphExec_t exec, int runs) {
        const double us = middle(in_turns({ exec }, runs)[0]);
        CUDA(cudaGraphExecDestroy(exec));
        return us;
    }
    /* us of each call in each round */
    std::vector<std::vector<double>> in_turns(const std::vector<cudaGraphExec_t> &calls, int runs) {
        std::vector<std::vector<double>> t(calls.size());
        for (int i = -runs / 4; i < runs; i++)
            for (size_t c = 0; c < calls.size(); c++) {
                thrash<<<1024, 256, 0, stream>>>(buffer, n);
                CUDA(cudaEventRecord(from, stream));
                CUDA(cudaGraphLaunch(calls[c], stream));
                CUDA(cudaEventRecord(to, stream));
                CUDA(cudaEventSynchronize(to));
                float ms;
                CUDA(cudaEventElapsedTime(&ms, from, to));
                if (i >= 0) t[c].push_back(1e3 * ms);
            }
        CUDA(cudaGetLastError());
        return t;
    }
    static double middle(std::vector<double> t) {
        std::sort(t.begin(), t.end());
        return t[t.size() / 2];
    }
};

/* slow over fast, of one run in turns; busy: the largest so far. */
static gain ratio(const std::vector<double> &slow, const std::vector<double> &fast, double *busy) {
    const gain g = gain_of(slow.data(), fast.data(), (int)slow.size());
    if (g.busy > *busy) *busy = g.busy;
    return g;
}
static void print_ratio(const gain &g, const char *of) {
    if (g.busy > TOO_BUSY) printf("      ? x %s (%.2f .. %.2f)", of, g.low, g.high);
    else printf("  %5.2f x %s (%.2f .. %.2f)", g.best, of, g.low, g.high);
}
static void print_verdict(double busy) {
    if (busy > TOO_BUSY) printf("  ?: no verdict (machine too busy: p90/p10 = %.2f)\n", busy);
}
/* In the CSV file; empty where there is no verdict. */
static const char *csv_ratio(const gain &g) {
    static char text[4][24];
    static int at = 0;
    char *to = text[at++ % 4];
    snprintf(to, sizeof text[0], g.busy > TOO_BUSY ? "" : "%.3f", g.best);
    return to;
}

/* A block table, on the device: pages in an order that is always the same. */
static int *shuffled_table(int pages) {
    std::vector<int> order(pages);
    for (int i = 0; i < pages; i++) order[i] = i;
    unsigned long long x = 1;
    for (int i = pages - 1; i > 0; i--) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[i], order[(x >> 33) % (i + 1)]);
    }
    int *table;
    CUDA(cudaMalloc(&table, pages * sizeof(int)));
    CUDA(cudaMemcpy(table, order.data(), pages * sizeof(int), cudaMemcpyHostToDevice));
    return table;
}

/* bits: of a copy of K, or 0; rescued: of every head, not of those that want it, of which these
   data have none */
struct method {
    const char *name; santa_method method; int samples; santa_stash stash; int bits; bool rescued = false;
};

static const char *const type_name[] = { "f32", "f16", "bf16", "e4m3" };
static const char *const stash_name[] = {"         ", "stash f32", "stash f16",
                                         "stash u8 "}; /* none: dense */

/* Numbers on the card as f32. */
static std::vector<float> numbers(const void *device, santa_dtype type, size_t n) {
    const int size = type == SANTA_F32 ? 4 : type == SANTA_E4M3 ? 1 : 2;
    std::vector<unsigned char> raw(n * (size_t)size);
    std::vector<float> x(n);
    CUDA(cudaMemcpy(raw.data(), device, raw.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        uint16_t half = 0;
        if (size == 4) memcpy(&x[i], &raw[4 * i], 4);
        else if (size == 1) x[i] = santa_e4m3_to_f32(raw[i]);
        else {
            memcpy(&half, &raw[2 * i], 2);
            x[i] = type == SANTA_F16 ? santa_f16_to_f32(half) : santa_bf16_to_f32(half);
        }
    }
    return x;
}
static double rms(const std::vector<float> &x, const std::vector<float> *from) {
    double squares = 0.0;
    for (size_t i = 0; i < x.size(); i++) {
        const double off = (double)x[i] - (from ? (double)(*from)[i] : 0.0);
        squares += off * off;
    }
    return sqrt(squares / (double)x.size());
}

static void bench(timer &t, int type, int batch, int n, bool hnd, int page,
                  const std::vector<method> &methods, int runs, FILE *csv) {
    const int size = type == 0 ? 4 : type == 3 ? 1 : 2;
    const size_t elements = (size_t)batch * n * KV_HEADS * DIM, bytes = elements * size;
    unsigned char *k, *v, *q, *out;
    int *table = nullptr;
    CUDA(cudaMalloc(&k, bytes));
    CUDA(cudaMalloc(&v, bytes));
    CUDA(cudaMalloc(&q, (size_t)batch * HEADS * DIM * 2));
    CUDA(cudaMalloc(&out, (size_t)batch * HEADS * DIM * 2));
    fill<<<2048, 256, 0, t.stream>>>(k, elements, type, 1);
    fill<<<2048, 256, 0, t.stream>>>(v, elements, type, 2);
    const santa_dtype q_type =
        type == 1 ? SANTA_F16 : SANTA_BF16; /* as K where there is a fast path for it */
    fill<<<64, 256, 0, t.stream>>>(q, (size_t)batch * HEADS * DIM, (int)q_type, 3);
    CUDA(cudaStreamSynchronize(t.stream));

    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(q, q_type, batch, 1, HEADS, DIM);
    a.out = santa_view(out, q_type, batch, 1, HEADS, DIM);
    if (page) {
        const int pages = batch * n / page;
        table = shuffled_table(pages);
        a.k = santa_view(k, (santa_dtype)type, pages, page, KV_HEADS, DIM);
        a.v = santa_view(v, (santa_dtype)type, pages, page, KV_HEADS, DIM);
        a.block_table = table;
        a.max_pages = n / page;
    } else {
        const auto view = hnd ? santa_view_hnd : santa_view;
        a.k = view(k, (santa_dtype)type, batch, n, KV_HEADS, DIM);
        a.v = view(v, (santa_dtype)type, batch, n, KV_HEADS, DIM);
    }
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;

    char layout[32];
    snprintf(layout, sizeof layout, page ? "page %d" : hnd ? "HND" : "NHD", page);
    const double floor = t.median(t.capture_read(k, bytes), runs);
    const cudaGraphExec_t read_k = t.capture_read(k, bytes);
    printf("\n%s, batch %d x %d, %s: read K once (%.1f MB): %.1f us, %.2f TB/s\n", type_name[type], batch,
           n, layout, bytes / 1e6, floor, bytes / floor * 1e-6);
    cudaGraphExec_t dense = nullptr;
    void *dense_workspace = nullptr;
    double busy = 0.0;
    int bits = 0;
    std::vector<float> exact;
    const double of_v = rms(numbers(v, (santa_dtype)type, 64 * DIM), nullptr);
    for (const method &m : methods) {
        if (m.bits && m.bits != bits) {
            if (a.proxy) CUDA(cudaFree(a.proxy));
            a.proxy = nullptr;
            a.proxy_bits = bits = m.bits;
            const size_t size = santa_proxy_size(&a);
            if (!size) { printf("  no copy of such pages\n"); break; }
            CUDA(cudaMalloc(&a.proxy, size));
            if (santa_proxy_encode(&a, 0, n, t.stream) != SANTA_OK) exit(1);
            const double once = t.median(t.capture_read(a.proxy, size), runs);
            printf("  copy of %d bits, %.1f MB: read %.1f us, %.2f TB/s\n", bits, size / 1e6, once,
                   size / once * 1e-6);
        }
        santa_options o;
        memset(&o, 0, sizeof o);
        o.method = m.method;
        o.num_samples = m.samples;
        o.stash = m.stash;
        if (m.bits) o.scores = SANTA_SCORES_PROXY;
        if (m.rescued) o.proxy.rescue_above = 1e-9;
        santa_clear_unused_options(&o);
        o.seed = 7;
        o.stream = t.stream;
        const size_t need = santa_workspace_size(&a, &o);
        void *workspace;
        if (!need) { printf("  %-14s %s\n", m.name, santa_status_string(santa_check(&a, &o))); continue; }
        CUDA(cudaMalloc(&workspace, need));
        const cudaGraphExec_t call = t.capture([&] {
            santa_status s = santa_decode(&a, &o, workspace, need, nullptr);
            if (s != SANTA_OK) {
                fprintf(stderr, "%s (%d)\n", santa_status_string(s), santa_cuda_error(s));
                exit(1);
            }
        });
        if (!dense) {
            dense = call;
            dense_workspace = workspace;
        } /* the first of all sets */
        const auto times = t.in_turns({ read_k, dense, call }, runs);
        const double us = t.middle(times[2]);
        const gain over_floor = ratio(times[2], times[0], &busy),
                   over_dense = ratio(times[1], times[2], &busy);
        santa_stats *stats, host;
        CUDA(cudaMalloc(&stats, sizeof *stats));
        if (santa_decode(&a, &o, workspace, need, stats) != SANTA_OK) exit(1);
        CUDA(cudaStreamSynchronize(t.stream));
        CUDA(cudaMemcpy(&host, stats, sizeof host, cudaMemcpyDeviceToHost));
        double moved = (double)(host.k_rows_read + host.v_rows_read) * DIM * size;
        if (m.bits) moved += (double)santa_proxy_size(&a);
        printf("  %-16s S=%-5d %s  %9.1f us  %8.1f MB  %5.2f TB/s", m.name, m.samples, stash_name[m.stash],
               us, moved / 1e6, moved / us * 1e-6);
        print_ratio(over_floor, "floor");
        if (call != dense) print_ratio(over_dense, "dense");
        const std::vector<float> got = numbers(out, q_type, (size_t)batch * HEADS * DIM);
        if (call == dense) exact = got;
        const double error = rms(got, &exact) / of_v;
        if (call != dense) printf("  error %.3f", error);
        printf("\n");
        fflush(stdout);
        if (csv)
            fprintf(csv, "%s,%d,%d,%s,%s,%d,%d,%.2f,%.2f,%.0f,%.3f,%s,%s,%.3g\n", type_name[type], batch, n,
                    layout, m.name, m.samples, (int)m.stash, us, t.middle(times[0]), moved,
                    moved / us * 1e-6, csv_ratio(over_floor), csv_ratio(over_dense), error);
        if (call != dense) {
            CUDA(cudaGraphExecDestroy(call));
            CUDA(cudaFree(workspace));
        }
        CUDA(cudaFree(stats));
    }
    print_verdict(busy);
    CUDA(cudaGraphExecDestroy(read_k));
    if (dense) CUDA(cudaGraphExecDestroy(dense));
    CUDA(cudaFree(dense_workspace));
    CUDA(cudaFree(k)); CUDA(cudaFree(v)); CUDA(cudaFree(q)); CUDA(cudaFree(out));
    if (table) CUDA(cudaFree(table));
    if (a.proxy) CUDA(cudaFree(a.proxy));
}

/* Peaked attention, bf16: the queries of a group share `agree` of their direction, and one key
   in 64 of each KV head has so much of it that it holds most of the mass. */
__global__ void join_queries(unsigned short *q, int heads, float agree) {
    const int group = HEADS / KV_HEADS;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < heads / group * DIM;
         i += gridDim.x * blockDim.x) {
        unsigned short *at = q + (size_t)(i / DIM) * group * DIM + i % DIM;
        const float common = __uint_as_float((unsigned)at[0] << 16);
        for (int g = 1; g < group; g++) {
            const float own = __uint_as_float((unsigned)at[g * DIM] << 16),
                        x = agree * common + sqrtf(1.0f - agree * agree) * own;
            at[g * DIM] = (unsigned short)(__float_as_uint(x) >> 16);
        }
    }
}
__global__ void lift_keys(unsigned short *k, const unsigned short *q, int batch, int n, float lift) {
    const size_t rows = (size_t)batch * n * KV_HEADS;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < rows * DIM;
         i += (size_t)gridDim.x * blockDim.x) {
        const size_t row = i / DIM, token = row / KV_HEADS, b = token / n;
        const int kv = (int)(row % KV_HEADS);
        if ((int)((token * 0x9E3779B97F4A7C15ull >> 40) % 64) != kv) continue;
        const size_t from = (b * HEADS + (size_t)kv * (HEADS / KV_HEADS)) * DIM + i % DIM;
        const float x =
            __uint_as_float((unsigned)k[i] << 16) + lift * __uint_as_float((unsigned)q[from] << 16);
        k[i] = (unsigned short)(__float_as_uint(x) >> 16);
    }
}

/* vAttention as the target of its speed has it: 128 sinks, 128 local tokens, 2.5 % heavy by a
   copy of K in 4 bits, a base sample of 2.5 %, epsilon = delta = .05. Against exact attention
   and against reading as many bytes. */
static void bench_vattention(timer &t, int batch, int n, float agree, int runs, FILE *csv) {
    const size_t elements = (size_t)batch * n * KV_HEADS * DIM, bytes = elements * 2;
    unsigned char *k, *v, *q, *out;
    santa_audit *audit;
    santa_stats *stats, host;
    CUDA(cudaMalloc(&k, bytes));
    CUDA(cudaMalloc(&v, bytes));
    CUDA(cudaMalloc(&q, (size_t)batch * HEADS * DIM * 2));
    CUDA(cudaMalloc(&out, (size_t)batch * HEADS * DIM * 2));
    CUDA(cudaMalloc(&stats, sizeof *stats));
    CUDA(cudaMalloc(&audit, (size_t)batch * HEADS * sizeof *audit));
    fill<<<2048, 256, 0, t.stream>>>(k, elements, 2, 1);
    fill<<<2048, 256, 0, t.stream>>>(v, elements, 2, 2);
    fill<<<64, 256, 0, t.stream>>>(q, (size_t)batch * HEADS * DIM, 2, 3);
    join_queries<<<64, 256, 0, t.stream>>>((unsigned short *)q, batch * HEADS, agree);
    lift_keys<<<2048, 256, 0, t.stream>>>((unsigned short *)k, (const unsigned short *)q, batch, n, 0.7f);
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(q, SANTA_BF16, batch, 1, HEADS, DIM);
    a.out = santa_view(out, SANTA_BF16, batch, 1, HEADS, DIM);
    a.k = santa_view(k, SANTA_BF16, batch, n, KV_HEADS, DIM);
    a.v = santa_view(v, SANTA_BF16, batch, n, KV_HEADS, DIM);
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;
    const size_t copy = santa_proxy_size(&a);
    CUDA(cudaMalloc(&a.proxy, copy));
    if (santa_proxy_encode(&a, 0, n, t.stream) != SANTA_OK) exit(1);
    printf("\nbf16, batch %d x %d, NHD, peaked, heads of a group agree by %.2f\n", batch, n, (double)agree);
    double busy = 0.0;
    cudaGraphExec_t dense = nullptr;
    void *dense_workspace = nullptr;
    for (int adapts = 0; adapts < 2; adapts++) {
        santa_options o;
        memset(&o, 0, sizeof o);
        o.seed = 7;
        o.stream = t.stream;
        if (adapts) {
            o.method = SANTA_VATTENTION;
            o.scores = SANTA_SCORES_PROXY;
        }
        const size_t need = santa_workspace_size(&a, &o);
        void *workspace;
        CUDA(cudaMalloc(&workspace, need));
        const auto call = [&](santa_stats *to) {
            const santa_status s = santa_decode(&a, &o, workspace, need, to);
            if (s != SANTA_OK) {
                fprintf(stderr, "%s (%d)\n", santa_status_string(s), santa_cuda_error(s));
                exit(1);
            }
        };
        const cudaGraphExec_t captured = t.capture([&] { call(nullptr); });
        if (!adapts) { dense = captured; dense_workspace = workspace; }
        if (adapts) o.vattention.audit = audit;
        call(stats);
        CUDA(cudaStreamSynchronize(t.stream));
        CUDA(cudaMemcpy(&host, stats, sizeof host, cudaMemcpyDeviceToHost));
        const double moved =
            (double)(host.k_rows_read + host.v_rows_read) * DIM * 2 + (adapts ? (double)copy : 0.0);
        const size_t as_many = std::min((size_t)moved, t.n * 4);
        const cudaGraphExec_t read = t.capture_read(t.buffer, as_many);
        auto times = t.in_turns({ read, dense, captured }, runs);
        for (double &x : times[0]) x *= moved / (double)as_many;
        const double us = t.middle(times[2]), once = t.middle(times[0]);
        const gain over_once = ratio(times[2], times[0], &busy),
                   over_dense = ratio(times[1], times[2], &busy);
        printf("  %-10s %9.1f us  %8.1f MB  %5.2f TB/s", adapts ? "vattention" : "dense", us, moved / 1e6,
               moved / us * 1e-6);
        print_ratio(over_once, "reading that");
        if (adapts) print_ratio(over_dense, "dense");
        if (adapts) {
            santa_audit x;
            CUDA(cudaMemcpy(&x, audit, sizeof x, cudaMemcpyDeviceToHost));
            printf("  (head 0: %lld fixed, %lld of %lld others)", (long long)x.num_fixed,
                   (long long)x.budget, (long long)x.num_residual);
        }
        printf("\n");
        fflush(stdout);
        if (csv) fprintf(csv, "bf16,%d,%d,NHD,%s peaked %.2f,0,0,%.2f,%.2f,%.0f,%.3f,%s,%s\n", batch, n,
                         adapts ? "vattention" : "dense", (double)agree, us, once, moved, moved / us * 1e-6,
                         csv_ratio(over_once), csv_ratio(over_dense));
        CUDA(cudaGraphExecDestroy(read));
        if (adapts) {
            CUDA(cudaGraphExecDestroy(captured));
            CUDA(cudaFree(workspace));
        }
    }
    print_verdict(busy);
    CUDA(cudaGraphExecDestroy(dense));
    CUDA(cudaFree(dense_workspace));
    CUDA(cudaFree(k)); CUDA(cudaFree(v)); CUDA(cudaFree(q)); CUDA(cudaFree(out));
    CUDA(cudaFree(stats)); CUDA(cudaFree(audit)); CUDA(cudaFree(a.proxy));
}
#include "prefill_cuda.h"

/* Keys in buckets. Far keys lie in buckets of given sizes at random places, and a bias makes
   the router take `probes` of them: together 4.4 % of the keys, as in the paper. All alike, or
   one of these has 28 times the mean, and the others fall off so that the imbalance is about
   10. */
/* copied: a quarter of the buckets by a copy of K in 4 bits, a window of 64. */
struct routed_case { int kv_heads, batch, n, hidden, samples; bool imbalanced, copied = false; };

static void bench_routed(timer &t, const routed_case &x, int runs, FILE *csv) {
    enum { GROUP = 4, BUCKETS = 1024, PROBES = 32 };
    const int kv_heads = x.kv_heads, heads = GROUP * kv_heads, n = x.n;
    const size_t elements = (size_t)x.batch * n * kv_heads * DIM, queries = (size_t)x.batch * heads * DIM;
    const size_t rows = (size_t)kv_heads * BUCKETS, w1 = (size_t)kv_heads * x.hidden * DIM,
                 w2 = rows * x.hidden;
    unsigned short *k, *v, *q, *out, *router;
    float *bias;
    CUDA(cudaMalloc(&k, 2 * elements));
    CUDA(cudaMalloc(&v, 2 * elements));
    CUDA(cudaMalloc(&q, 2 * queries));
    CUDA(cudaMalloc(&out, 2 * queries));
    CUDA(cudaMalloc(&router, 2 * (rows * DIM + w1 + w2)));
    CUDA(cudaMalloc(&bias, 4 * ((size_t)kv_heads * x.hidden + rows)));
    fill<<<2048, 256, 0, t.stream>>>((unsigned char *)k, elements, 2, 1);
    fill<<<2048, 256, 0, t.stream>>>((unsigned char *)v, elements, 2, 2);
    fill<<<64, 256, 0, t.stream>>>((unsigned char *)q, queries, 2, 3);
    fill<<<256, 256, 0, t.stream>>>((unsigned char *)router, rows * DIM + w1 + w2, 2, 4);
    shrink<<<256, 256, 0, t.stream>>>(router + rows * DIM, w1 + w2);
    CUDA(cudaStreamSynchronize(t.stream));

    /* shares of the buckets; the first PROBES are the router's choice, and at random places */
    std::vector<double> share(BUCKETS);
    std::vector<int> place(BUCKETS);
    unsigned long long state = 1;
    const auto below = [&](int limit) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (int)((state >> 33) % (unsigned long long)limit);
    };
    double sum[2] = { 0.0, 0.0 };
    for (int c = 0; c < BUCKETS; c++) {
        share[c] = x.imbalanced ? pow(5.0 + (c < PROBES ? 30.0 * c : c - PROBES), -1.15) : 1.0;
        sum[c >= PROBES] += share[c];
        place[c] = c;
    }
    for (int c = 0; c < BUCKETS; c++) share[c] *= (c < PROBES ? 0.044 : 0.956) / sum[c >= PROBES];
    if (x.imbalanced) {
        double others[2] = { 0.0, 0.0 };
        for (int c = 0; c < BUCKETS; c++)
            others[c >= PROBES] += c ? share[c] = std::min(share[c], 28.0 / BUCKETS) : 0.0;
        share[0] = 28.0 / BUCKETS;
        for (int c = 1; c < BUCKETS; c++)
            share[c] *= (c < PROBES ? 0.044 - share[0] : 0.956) / others[c >= PROBES];
    }
    for (int c = BUCKETS - 1; c > 0; c--) std::swap(place[c], place[below(c + 1)]);
    std::vector<float> biases((size_t)kv_heads * x.hidden + rows, 0.0f);
    for (int h = 0; h < kv_heads; h++)
        for (int c = 0; c < PROBES; c++)
            biases[(size_t)kv_heads * x.hidden + h * BUCKETS + place[c]] = 3.0f;
    CUDA(cudaMemcpy(bias, biases.data(), 4 * biases.size(), cudaMemcpyHostToDevice));
    std::vector<double> ends(BUCKETS);
    for (int c = 0; c < BUCKETS; c++) ends[c] = share[c] + (c ? ends[c - 1] : 0.0);

    santa_attention a;
    santa_buckets   r;
    memset(&a, 0, sizeof a);
    memset(&r, 0, sizeof r);
    a.q = santa_view(q, SANTA_BF16, x.batch, 1, heads, DIM);
    a.out = santa_view(out, SANTA_BF16, x.batch, 1, heads, DIM);
    a.k = santa_view(k, SANTA_BF16, x.batch, n, kv_heads, DIM);
    a.v = santa_view(v, SANTA_BF16, x.batch, n, kv_heads, DIM);
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;
    a.buckets = &r;
    r.num_buckets = BUCKETS;
    r.hidden = x.hidden;
    r.dtype = SANTA_BF16;
    r.centroids = router;
    r.w1 = router + rows * DIM;
    r.w2 = router + rows * DIM + w1;
    r.b1 = bias;
    r.b2 = bias + (size_t)kv_heads * x.hidden;
    const size_t bytes = santa_buckets_size(&a), ints = bytes / 4 / (size_t)(x.batch * kv_heads);
    CUDA(cudaMalloc(&r.index, bytes));

    /* the real thing first: all keys at once, then the last one again: 64 are whole with it, or
       not */
    santa_options none;
    memset(&none, 0, sizeof none);
    none.stream = t.stream;
    const auto assign = [&](int from, int count) {
        santa_tensor keys = a.k;
        keys.data = k + (size_t)from * kv_heads * DIM;
        keys.shape[1] = count;
        if (santa_buckets_assign(&a, &keys, from, &none) != SANTA_OK) exit(1);
    };
    const double all = t.median([&] { assign(0, n); }, runs),
                 one = t.median([&] { assign(n - 1, 1); }, runs);
    const std::vector<int> shorter(x.batch, n - 20);
    int *lens;
    CUDA(cudaMalloc(&lens, 4 * shorter.size()));
    CUDA(cudaMemcpy(lens, shorter.data(), 4 * shorter.size(), cudaMemcpyHostToDevice));
    a.seq_lens = lens;
    assign(0, n);
    const double next = t.median([&] { assign(n - 21, 1); }, runs);
    a.seq_lens = nullptr;

    /* then an index of those sizes, as it lies in memory: see santa__index_of in santa.h */
    std::vector<int> index(ints);
    std::vector<std::vector<int>> in(BUCKETS);
    for (int i = 0; i < x.batch * kv_heads; i++) {
        for (std::vector<int> &bucket : in) bucket.clear();
        const int sorted = n / 64 * 64, header[] = { 0x53414150, BUCKETS, n, n, sorted };
        memcpy(index.data(), header, sizeof header);
        unsigned short *id = (unsigned short *)(index.data() + 16 + 2 * (BUCKETS + 1) + n);
        for (int j = 0; j < n; j++) {
            const double u = below(1 << 30) / (double)(1 << 30);
            const int c = place[std::min(
                (int)(std::lower_bound(ends.begin(), ends.end(), u) - ends.begin()), BUCKETS - 1)];
            id[j] = (unsigned short)c;
            if (j < sorted) in[c].push_back(j);
        }
        for (int c = 0, at = 0; c < BUCKETS; c++) {
            index[16 + c] = at;
            for (int j : in[c]) index[16 + 2 * (BUCKETS + 1) + at++] = j;
            index[16 + c + 1] = at;
        }
        CUDA(cudaMemcpy((int *)r.index + i * ints, index.data(), bytes / (size_t)(x.batch * kv_heads),
                        cudaMemcpyHostToDevice));
    }
    santa_options o;
    memset(&o, 0, sizeof o);
    o.method = SANTA_SAAP;
    o.num_samples = x.samples;
    o.saap.num_probes = x.copied ? BUCKETS / 4 : PROBES;
    o.saap.sink_tokens = 1;
    o.saap.local_tokens = x.copied ? 64 : 2047;
    if (x.copied) {
        o.scores = SANTA_SCORES_PROXY;
        CUDA(cudaMalloc(&a.proxy, santa_proxy_size(&a)));
        if (santa_proxy_encode(&a, 0, n, t.stream) != SANTA_OK) exit(1);
    }
    o.seed = 7;
    o.stream = t.stream;
    santa_stats *stats, host;
    CUDA(cudaMalloc(&stats, sizeof *stats));
    void *workspace[2];
    const auto decode = [&](int which) {
        const size_t need = santa_workspace_size(&a, &o);
        if (!need) { fprintf(stderr, "%s\n", santa_status_string(santa_check(&a, &o))); exit(1); }
        CUDA(cudaMalloc(&workspace[which], need));
        const auto call = [&](santa_stats *to) {
            santa_status s = santa_decode(&a, &o, workspace[which], need, to);
            if (s != SANTA_OK) {
                fprintf(stderr, "%s (%d)\n", santa_status_string(s), santa_cuda_error(s));
                exit(1);
            }
        };
        call(stats);
        CUDA(cudaStreamSynchronize(t.stream));
        CUDA(cudaMemcpy(&host, stats, sizeof host, cudaMemcpyDeviceToHost));
        return t.capture([&] { call(nullptr); });
    };
    const cudaGraphExec_t routed = decode(0);
    const santa_stats saap = host;
    /* of a key of the copy 66 bytes */
    const double moved = (double)(host.k_rows_read + host.v_rows_read) * DIM * 2
                       + (double)host.proxy_rows_read * (DIM / 2 + 2);
    const cudaGraphExec_t read = t.capture_read(k, (size_t)moved);
    o = none;
    o.method = SANTA_DENSE;
    const cudaGraphExec_t dense = decode(1);
    const auto times = t.in_turns({ read, dense, routed }, runs);
    const double floor = t.middle(times[0]), us = t.middle(times[2]);
    double busy = 0.0;
    const gain over_floor = ratio(times[2], times[0], &busy), over_dense = ratio(times[1], times[2], &busy);
    const char *const kind = x.imbalanced ? ", imbalanced" : x.copied ? ", a quarter by the copy" : "";
    printf("  saap, %d KV heads, batch %d x %d, hidden %d, S=%d%s: %.1f us; far %.2f %%, imbalance %.1f, "
           "largest %.1f x mean; "
           "its rows, %.1f MB: read in %.1f us; dense %.1f us;",
           kv_heads, x.batch, n, x.hidden, x.samples == SANTA_NONE ? 0 : x.samples,
           kind, us, 1e2 * (double)saap.visited_rows / (double)saap.far_rows,
           saap.imbalance, saap.largest_bucket * BUCKETS, moved / 1e6, floor, t.middle(times[1]));
    print_ratio(over_dense, "dense");
    printf("; assign %.1f us, a key %.1f us, with which 64 are whole %.1f us\n", all, next, one);
    print_verdict(busy);
    fflush(stdout);
    if (csv)
        fprintf(csv, "bf16,%d,%d,%d KV heads hidden %d,saap%s,%d,0,%.2f,%.2f,%.0f,%.3f,%s,%s\n", x.batch, n,
                kv_heads, x.hidden, x.imbalanced ? " imbalanced" : x.copied ? " copy" : "", x.samples, us,
                floor, moved,
                moved / us * 1e-6, csv_ratio(over_floor), csv_ratio(over_dense));
    for (const cudaGraphExec_t g : { routed, read, dense }) CUDA(cudaGraphExecDestroy(g));
    for (void *w : workspace) CUDA(cudaFree(w));
    for (void *p : {(void *)k, (void *)v, (void *)q, (void *)out, (void *)router, (void *)bias,
                    r.index, (void *)stats, (void *)lens, a.proxy})
        CUDA(cudaFree(p));
}

/* Dense, and prop 128 where it takes the types, of 8 KV heads. */
struct dense_case {
    santa_dtype type; int dim, group; santa_dtype q_type;
    float cap = 0.0f;
    bool scales = false;
    int page = 0, more_rows = 0;
};
static const dense_case dense_cases[] = {
    { SANTA_BF16, 64, 4, SANTA_BF16, 0.0f },   { SANTA_BF16, 96, 4, SANTA_BF16, 0.0f },
    { SANTA_BF16, 128, 1, SANTA_BF16, 0.0f },  { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f },
    { SANTA_BF16, 128, 8, SANTA_BF16, 0.0f },  { SANTA_BF16, 128, 16, SANTA_BF16, 0.0f },
    { SANTA_BF16, 256, 1, SANTA_BF16, 0.0f },  { SANTA_BF16, 256, 4, SANTA_BF16, 0.0f },
    { SANTA_BF16, 256, 16, SANTA_BF16, 0.0f }, { SANTA_F16, 128, 4, SANTA_F16, 0.0f },
    { SANTA_E4M3, 64, 4, SANTA_BF16, 0.0f },   { SANTA_E4M3, 128, 4, SANTA_BF16, 0.0f },
    { SANTA_E4M3, 128, 16, SANTA_BF16, 0.0f }, { SANTA_E4M3, 256, 4, SANTA_BF16, 0.0f },
    { SANTA_F32, 64, 4, SANTA_F32, 0.0f },     { SANTA_F32, 128, 1, SANTA_F32, 0.0f },
    { SANTA_F32, 128, 4, SANTA_F32, 0.0f },    { SANTA_F32, 128, 16, SANTA_F32, 0.0f },
    { SANTA_F32, 256, 4, SANTA_F32, 0.0f },    { SANTA_Q8_0, 128, 4, SANTA_BF16, 0.0f },
    { SANTA_Q4_0, 128, 4, SANTA_BF16, 0.0f },  { SANTA_E5M2, 128, 4, SANTA_BF16, 0.0f },
    { SANTA_BF16, 128, 4, SANTA_F32, 0.0f },   { SANTA_BF16, 256, 2, SANTA_BF16, 50.0f },
    { SANTA_F16, 128, 4, SANTA_F32, 0.0f },    { SANTA_F16, 128, 8, SANTA_F32, 0.0f },
    { SANTA_Q8_0, 128, 4, SANTA_F32, 0.0f },   { SANTA_Q4_0, 128, 4, SANTA_F32, 0.0f },
    { SANTA_BF16, 128, 4, SANTA_BF16, 50.0f }, { SANTA_E4M3, 128, 4, SANTA_F32, 0.0f },
    { SANTA_E4M3, 64, 4, SANTA_BF16, 0.0f, true },  { SANTA_E4M3, 128, 4, SANTA_BF16, 0.0f, true },
    { SANTA_E4M3, 256, 4, SANTA_BF16, 0.0f, true }, { SANTA_E5M2, 128, 4, SANTA_BF16, 0.0f, true },
    { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f, true }, { SANTA_BF16, 64, 4, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_BF16, 128, 8, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_BF16, 256, 4, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_E4M3, 64, 4, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_E4M3, 128, 4, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_E4M3, 128, 4, SANTA_BF16, 0.0f, true, 16 },
    { SANTA_BF16, 128, 32, SANTA_BF16, 0.0f }, { SANTA_BF16, 512, 2, SANTA_BF16, 0.0f },
    { SANTA_BF16, 512, 8, SANTA_BF16, 0.0f },  { SANTA_BF16, 64, 8, SANTA_BF16, 0.0f },
    { SANTA_E4M3, 64, 8, SANTA_BF16, 0.0f },   { SANTA_E4M3, 128, 8, SANTA_BF16, 0.0f },
    { SANTA_BF16, 128, 16, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_E4M3, 128, 16, SANTA_BF16, 0.0f, false, 16 },
    { SANTA_BF16, 128, 12, SANTA_BF16, 0.0f }, { SANTA_F16, 128, 16, SANTA_F32, 0.0f },
    { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f, false, 0, 1 },
    { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f, false, 0, 3 },
    { SANTA_BF16, 128, 8, SANTA_BF16, 0.0f, false, 0, 1 },
    { SANTA_E4M3, 128, 4, SANTA_BF16, 0.0f, false, 0, 3 },
    { SANTA_BF16, 64, 8, SANTA_BF16, 0.0f, false, 0, 1 },
    { SANTA_BF16, 64, 16, SANTA_BF16, 0.0f },
    { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f, false, 16, 3 },
    { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f, false, 0, 31 },
};

static void bench_dense(timer &t, int batch, int n, const dense_case &x, int runs, FILE *csv) {
    static const char *const names[] = { "f32", "f16", "bf16", "e4m3", "q8_0", "e5m2", "q4_0" };
    const int heads = KV_HEADS * x.group;
    const int q_len = 1 + x.more_rows;
    const size_t elements = (size_t)batch * n * KV_HEADS * x.dim,
                 queries = (size_t)batch * q_len * heads * x.dim;
    const bool direct = x.type <= SANTA_E4M3;
    const int block = x.type == SANTA_Q8_0 ? 34 : x.type == SANTA_Q4_0 ? 18 : 0;
    const size_t bytes = block ? elements / 32 * block
                               : elements * (x.type == SANTA_F32 ? 4
                                             : x.type == SANTA_F16 || x.type == SANTA_BF16 ? 2 : 1);
    unsigned char *kv, *q, *out;
    CUDA(cudaMalloc(&kv, 2 * bytes));
    CUDA(cudaMalloc(&q, 4 * queries));
    CUDA(cudaMalloc(&out, 4 * queries));
    if (direct) fill<<<2048, 256, 0, t.stream>>>(kv, 2 * elements, (int)x.type, 1);
    else fill_codes<<<2048, 256, 0, t.stream>>>(kv, 2 * bytes, block, 1);
    fill<<<64, 256, 0, t.stream>>>(q, queries, (int)x.q_type, 3);

    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(q, x.q_type, batch, q_len, heads, x.dim);
    a.out = santa_view(out, x.q_type, batch, q_len, heads, x.dim);
    a.causal = q_len > 1;
    const int rows = x.page ? batch * n / x.page : batch, of_row = x.page ? x.page : n;
    a.k = santa_view(kv, x.type, rows, of_row, KV_HEADS, x.dim);
    a.v = santa_view(kv + bytes, x.type, rows, of_row, KV_HEADS, x.dim);
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;
    a.soft_cap = x.cap;
    int *const table = x.page ? shuffled_table(rows) : nullptr;
    if (x.page) {
        a.block_table = table;
        a.max_pages = n / x.page;
    }
    float *scales = nullptr;                        /* of rows, f32 */
    if (x.scales) {
        const size_t all = (size_t)batch * n * KV_HEADS;
        CUDA(cudaMalloc(&scales, 8 * all));
        fill<<<64, 256, 0, t.stream>>>((unsigned char *)scales, 2 * all, (int)SANTA_F32, 4);
        a.k_scales = santa_view(scales, SANTA_F32, rows, of_row, KV_HEADS, 1);
        a.v_scales = santa_view(scales + all, SANTA_F32, rows, of_row, KV_HEADS, 1);
        a.k_scales.device = a.v_scales.device = SANTA_CUDA;
    }
    struct timed { const char *name; santa_method method; size_t bytes; bool copied = false; };
    std::vector<timed> methods = { { "dense", SANTA_DENSE, 2 * bytes }, { "prop", SANTA_PROP, bytes } };
    if (q_len > 1 && q_len < 32 && x.type == SANTA_BF16) {            /* rows that share a copy */
        const size_t copy = santa_proxy_size(&a);
        CUDA(cudaMalloc(&a.proxy, copy));
        if (santa_proxy_encode(&a, 0, n, t.stream) != SANTA_OK) exit(1);
        methods.push_back({ "pps", SANTA_PPS, bytes, false });
        methods.push_back({ "prop u4", SANTA_PROP, copy, true });
        methods.push_back({ "pps u4", SANTA_PPS, copy, true });
        methods.push_back({ "top-k", SANTA_TOP_K, bytes, false });
        methods.push_back({ "top-k u4", SANTA_TOP_K, copy, true });
        methods.push_back({ "vattention u4", SANTA_VATTENTION, copy, true });
    }
    std::vector<cudaGraphExec_t> calls;
    std::vector<void *> workspaces;
    for (const auto &m : methods) {
        santa_options o;
        memset(&o, 0, sizeof o);
        o.method = m.method;
        o.num_samples = m.method == SANTA_TOP_K ? 2048 : 128;
        o.scores = m.copied ? SANTA_SCORES_PROXY : SANTA_SCORES_EXACT;
        santa_clear_unused_options(&o);
        o.seed = 7;
        o.stream = t.stream;
        const size_t need = santa_workspace_size(&a, &o);
        if (!need) break;                           /* prop does not take every type of V */
        void *workspace;
        CUDA(cudaMalloc(&workspace, need));
        workspaces.push_back(workspace);
        calls.push_back(t.capture_read(kv, m.bytes));
        calls.push_back(t.capture([&] {
            const santa_status s = santa_decode(&a, &o, workspace, need, nullptr);
            if (s == SANTA_OK) return;
            fprintf(stderr, "%s (%d)\n", santa_status_string(s), santa_cuda_error(s));
            exit(1);
        }));
    }
    const auto times = t.in_turns(calls, runs);
    char shape[64], rows_of_q[20] = "";
    if (q_len > 1) snprintf(rows_of_q, sizeof rows_of_q, " %d rows", q_len);
    snprintf(shape, sizeof shape, "%s%s%s%s%s", names[x.type],
             x.q_type != x.type && x.q_type == SANTA_F32 ? " q f32" : "",
             x.cap > 0.0f ? " soft cap" : x.scales ? " scales" : "", x.page ? " paged" : "", rows_of_q);
    printf("  %-17s d %-3d group %-2d %d x %-6d", shape, x.dim, x.group, batch, n);
    double busy = 0.0;
    for (size_t i = 0; i < calls.size(); i += 2) {
        const double once = t.middle(times[i]), us = t.middle(times[i + 1]);
        const gain over = ratio(times[i + 1], times[i], &busy);
        printf("  %s %8.1f us, floor %7.1f", methods[i / 2].name, us, once);
        print_ratio(over, "floor");
        if (csv) fprintf(csv, "%s,%d,%d,%d,%d,%s,%.2f,%.2f,%.3f,%s\n", shape, batch, n, x.dim, x.group,
                         methods[i / 2].name, us, once, (double)methods[i / 2].bytes / us * 1e-6,
                         csv_ratio(over));
    }
    printf("\n");
    print_verdict(busy);
    fflush(stdout);
    for (const cudaGraphExec_t g : calls) CUDA(cudaGraphExecDestroy(g));
    for (void *w : workspaces) CUDA(cudaFree(w));
    for (void *p : {(void *)kv, (void *)q, (void *)out, (void *)scales,
                    (void *)table, a.proxy}) CUDA(cudaFree(p));
}

/* Device memory with `most` keys of each of so many lists, one from each most'th part of n. */
static int *scattered_lists(size_t lists, int most, int n) {
    std::vector<int> keys(lists * most);
    unsigned long long x = 1;
    int *list;
    for (size_t i = 0; i < keys.size(); i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        keys[i] = (int)((long long)(i % most) * n / most + (long long)(x >> 33) % (n / most));
    }
    CUDA(cudaMalloc(&list, keys.size() * sizeof(int)));
    CUDA(cudaMemcpy(list, keys.data(), keys.size() * sizeof(int), cudaMemcpyHostToDevice));
    return list;
}

/* Dense of a, and reading so many bytes of K in one piece, in turns: medians, and how many
   times as long. */
struct against_read { double us, once, busy; gain over; };
static against_read time_dense(timer &t, const santa_attention &a, size_t bytes, int runs) {
    santa_options o = {};
    o.method = SANTA_DENSE;
    o.stream = t.stream;
    const size_t need = santa_workspace_size(&a, &o);
    void *workspace;
    CUDA(cudaMalloc(&workspace, need));
    const std::vector<cudaGraphExec_t> calls = {
        t.capture_read(a.k.data, bytes),
        t.capture([&] { if (santa_decode(&a, &o, workspace, need, nullptr) != SANTA_OK) exit(1); }) };
    const auto times = t.in_turns(calls, runs);
    against_read x = { t.middle(times[1]), t.middle(times[0]), 0.0, {} };
    x.over = ratio(times[1], times[0], &x.busy);
    for (const cudaGraphExec_t g : calls) CUDA(cudaGraphExecDestroy(g));
    CUDA(cudaFree(workspace));
    return x;
}

/* MLA: one KV head whose row is the latent, which is V, and the RoPE part; all keys, or a list
   of `most`. Against reading those rows once. */
static void bench_latent(timer &t, int batch, int n, int heads, int most, int runs, FILE *csv) {
    enum { LATENT = 512, ROW = 576 };
    const size_t rows = (size_t)batch * n, bytes = (size_t)batch * (most ? most : n) * ROW * 2;
    unsigned char *k, *q, *out;
    int *const list = most ? scattered_lists(batch, most, n) : nullptr;
    CUDA(cudaMalloc(&k, rows * ROW * 2));
    CUDA(cudaMalloc(&q, (size_t)batch * heads * ROW * 2));
    CUDA(cudaMalloc(&out, (size_t)batch * heads * LATENT * 2));
    fill<<<2048, 256, 0, t.stream>>>(k, rows * ROW, SANTA_BF16, 1);
    fill<<<64, 256, 0, t.stream>>>(q, (size_t)batch * heads * ROW, SANTA_BF16, 3);
    santa_attention a = {};
    a.q = santa_view(q, SANTA_BF16, batch, 1, heads, ROW);
    a.k = santa_view(k, SANTA_BF16, batch, n, 1, ROW);
    a.out = santa_view(out, SANTA_BF16, batch, 1, heads, LATENT);
    a.q.device = a.k.device = a.out.device = SANTA_CUDA;
    a.v = a.k;
    a.v.shape[3] = LATENT;
    a.key_list = list;
    a.max_list = most;
    const against_read x = time_dense(t, a, bytes, runs);
    const double flops = 2.0 * batch * (most ? most : n) * heads * (ROW + LATENT);
    printf("  MLA %d / %d, %3d heads, %2d x %6d", ROW, (int)LATENT, heads, batch, n);
    if (most) printf(", %d keys a list", most);
    printf(": %8.1f us, %4.0f TFLOP/s, floor %7.1f", x.us, flops / x.us * 1e-6, x.once);
    print_ratio(x.over, "floor");
    printf("\n");
    print_verdict(x.busy);
    fflush(stdout);
    if (csv) fprintf(csv, "bf16 mla,%d,%d,%d,%d,%s,%.2f,%.2f,%.3f,%s\n", batch, n, (int)ROW, heads,
                     most ? "list" : "dense", x.us, x.once, (double)bytes / x.us * 1e-6,
                     csv_ratio(x.over));
    for (void *p : { (void *)k, (void *)q, (void *)out, (void *)list }) CUDA(cudaFree(p));
}

/* A caller's list of `most` keys for each KV head, one from each most'th part of the context,
   against reading as many bytes in one piece. */
static void bench_lists(timer &t, int batch, int n, int most, int runs, FILE *csv) {
    const size_t elements = (size_t)batch * n * KV_HEADS * DIM, lists = (size_t)batch * KV_HEADS,
                 bytes = lists * most * DIM * 2 * 2;
    unsigned char *k, *v, *q, *out;
    int *const list = scattered_lists(lists, most, n);
    CUDA(cudaMalloc(&k, 2 * elements));
    CUDA(cudaMalloc(&v, 2 * elements));
    CUDA(cudaMalloc(&q, (size_t)batch * HEADS * DIM * 2));
    CUDA(cudaMalloc(&out, (size_t)batch * HEADS * DIM * 2));
    fill<<<2048, 256, 0, t.stream>>>(k, elements, SANTA_BF16, 1);
    fill<<<2048, 256, 0, t.stream>>>(v, elements, SANTA_BF16, 2);
    fill<<<64, 256, 0, t.stream>>>(q, (size_t)batch * HEADS * DIM, SANTA_BF16, 3);
    santa_attention a = {};
    a.q = santa_view(q, SANTA_BF16, batch, 1, HEADS, DIM);
    a.k = santa_view(k, SANTA_BF16, batch, n, KV_HEADS, DIM);
    a.v = santa_view(v, SANTA_BF16, batch, n, KV_HEADS, DIM);
    a.out = santa_view(out, SANTA_BF16, batch, 1, HEADS, DIM);
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;
    a.key_list = list;
    a.max_list = most;
    const against_read x = time_dense(t, a, bytes, runs);
    printf("%3d x %6d, %4d keys a list: %8.1f us, %5.2f TB/s", batch, n, most, x.us,
           (double)bytes / x.us * 1e-6);
    print_ratio(x.over, "reading as much");
    printf("\n");
    print_verdict(x.busy);
    fflush(stdout);
    if (csv) fprintf(csv, "%d,%d,%d,%.2f,%.2f\n", batch, n, most, x.us, x.once);
    for (void *p : { (void *)k, (void *)v, (void *)q, (void *)out, (void *)list }) CUDA(cudaFree(p));
}

/* Making a copy of K, whole, and of a step's key, against reading K once. */
struct encode_case { santa_dtype type; int dim, page, bits; };
static const encode_case encode_cases[] = {
    { SANTA_BF16, 128, 0, 4 },  { SANTA_BF16, 128, 0, 2 },  { SANTA_BF16, 64, 0, 4 },
    { SANTA_BF16, 256, 0, 4 },  { SANTA_BF16, 128, 64, 4 }, { SANTA_BF16, 128, 16, 4 },
    { SANTA_E4M3, 128, 0, 4 },
};
static void bench_encode(timer &t, int batch, int n, const encode_case &x, int runs, FILE *csv) {
    const size_t elements = (size_t)batch * n * KV_HEADS * x.dim,
                 bytes = elements * (x.type == SANTA_E4M3 ? 1 : 2);
    unsigned char *k, *q;
    CUDA(cudaMalloc(&k, bytes));
    CUDA(cudaMalloc(&q, (size_t)batch * HEADS * x.dim * 2));
    fill<<<2048, 256, 0, t.stream>>>(k, elements, (int)x.type, 1);
    int *const table = x.page ? shuffled_table(batch * n / x.page) : nullptr;
    santa_attention a = {};
    a.q = a.out = santa_view(q, SANTA_BF16, batch, 1, HEADS, x.dim);
    a.k = x.page ? santa_view(k, x.type, batch * n / x.page, x.page, KV_HEADS, x.dim)
                 : santa_view(k, x.type, batch, n, KV_HEADS, x.dim);
    a.block_table = table;
    a.max_pages = x.page ? n / x.page : 0;
    a.q.device = a.k.device = a.out.device = SANTA_CUDA;
    a.v = a.k;
    a.proxy_bits = x.bits;
    const size_t size = santa_proxy_size(&a);
    CUDA(cudaMalloc(&a.proxy, size));
    const auto done = [](santa_status s) {
        if (s == SANTA_OK) return;
        fprintf(stderr, "%s\n", santa_status_string(s));
        exit(1);
    };
    const cudaGraphExec_t read_k = t.capture_read(k, bytes);
    const auto times = t.in_turns(
        { read_k, t.capture([&] { done(santa_proxy_encode(&a, 0, n, t.stream)); }),
          t.capture([&] { done(santa_proxy_append(&a, 1, t.stream)); }) }, runs);
    double busy = 0.0;
    const gain over = ratio(times[1], times[0], &busy);
    const double once = t.middle(times[0]), made = t.middle(times[1]), added = t.middle(times[2]);
    printf("%s, head_dim %3d, page %2d, %d bits, %d x %6d: %8.1f us, of a step %4.1f us", type_name[x.type],
           x.dim, x.page, x.bits, batch, n, made, added);
    print_ratio(over, "reading K");
    printf("\n");
    print_verdict(busy);
    fflush(stdout);
    if (csv) fprintf(csv, "%s,%d,%d,%d,%d,%d,%.2f,%.2f,%.2f,%s\n", type_name[x.type], batch, n, x.dim,
                     x.page, x.bits, made, added, once, csv_ratio(over));
    for (void *p : { (void *)k, (void *)q, a.proxy, (void *)table }) CUDA(cudaFree(p));
}

int main(int argc, char **argv) {
    bool quick = false, only_routed = false, only_adaptive = false, prefill = false,
         dense = false, only_copies = false, lists = false, latent = false, encode = false;
    FILE *csv = nullptr;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) quick = true;
        else if (!strcmp(argv[i], "--saap")) only_routed = true;
        else if (!strcmp(argv[i], "--prefill")) prefill = true;
        else if (!strcmp(argv[i], "--dense")) dense = true;
        else if (!strcmp(argv[i], "--vattention")) only_adaptive = true;
        else if (!strcmp(argv[i], "--copies")) only_copies = true;
        else if (!strcmp(argv[i], "--lists")) lists = true;
        else if (!strcmp(argv[i], "--latent")) latent = true;
        else if (!strcmp(argv[i], "--encode")) encode = true;
        else if (!strcmp(argv[i], "--csv") && i + 1 < argc) {
            if (!(csv = fopen(argv[++i], "w"))) {
                perror(argv[i]);
                return 1;
            }
        } else {
            const bool help = !strcmp(argv[i], "--help");
            fprintf(help ? stdout : stderr, "usage: %s [--quick] [--saap | --vattention | --prefill | "
                    "--dense | --copies | --encode | --lists | --latent] [--csv FILE]\n", argv[0]);
            return !help;
        }
    }
    if (only_routed + prefill + dense + only_adaptive + only_copies + lists + latent + encode > 1) {
        fprintf(stderr, "%s: one table at a time\n", argv[0]);
        return 1;
    }
    int count = 0, driver = 0, runtime = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || !count) { printf("skipped: no device\n"); return 0; }
    cudaDeviceProp prop;
    CUDA(cudaGetDeviceProperties(&prop, 0));
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    printf("# %s, %d multiprocessors, %d MB L2, driver %d, runtime %d; %d query heads, %d KV heads, "
           "head_dim %d\n",
           prop.name, prop.multiProcessorCount, prop.l2CacheSize >> 20, driver, runtime, HEADS, KV_HEADS,
           DIM);
    timer t;
    if (prefill) {
        bench_prefill(t, quick, csv);
        if (csv) fclose(csv);
        return 0;
    }
    if (dense) {
        if (csv) fprintf(csv, "type,batch,context,head_dim,group,method,us,floor_us,tb_per_s,over_floor\n");
        for (const int batch : {1, 8})
            for (const dense_case &x : dense_cases)
                bench_dense(t, batch, batch == 1 ? 131072 : 32768, x, quick ? 20 : 40, csv);
        const struct { int batch, n; } shapes[]
            = { { 1, 512 },  { 1, 1024 },  { 1, 2048 },  { 1, 4096 },  { 1, 8192 },  { 1, 32768 },
                { 8, 1024 }, { 8, 8192 },  { 16, 8192 }, { 64, 1024 }, { 64, 2048 }, { 256, 1024 } };
        for (const auto &x : shapes)
            for (const santa_dtype type : { SANTA_BF16, SANTA_E4M3 })
                bench_dense(t, x.batch, x.n, { type, 128, 4, SANTA_BF16 }, quick ? 20 : 40, csv);
        if (csv) fclose(csv);
        return 0;
    }
    if (encode) {
        if (csv)
            fprintf(csv, "type,batch,context,head_dim,page,bits,us,append_us,floor_us,over_floor\n");
        const int shapes[][2] = { { 1, 8192 }, { 1, 32768 }, { 1, 131072 }, { 8, 32768 }, { 8, 131072 } };
        for (const encode_case &x : encode_cases)
            for (const auto &y : shapes) bench_encode(t, y[0], y[1], x, quick ? 20 : 40, csv);
        if (csv) fclose(csv);
        return 0;
    }
    if (latent) {
        if (csv) fprintf(csv, "type,batch,context,head_dim,heads,method,us,floor_us,tb_per_s,over_floor\n");
        const struct { int batch, n, heads, most; } rows[]
            = { { 1, 8192, 128, 0 },     { 1, 32768, 128, 0 },     { 1, 131072, 128, 0 },
                { 8, 8192, 128, 0 },     { 8, 32768, 128, 0 },     { 32, 8192, 128, 0 },
                { 128, 4096, 128, 0 },   { 8, 32768, 64, 0 },      { 8, 32768, 32, 0 },
                { 1, 32768, 16, 0 },     { 8, 32768, 16, 0 },      { 64, 8192, 16, 0 },
                { 1, 32768, 128, 2048 }, { 8, 32768, 128, 2048 },  { 32, 32768, 128, 2048 },
                { 32, 32768, 16, 2048 }, { 128, 16384, 128, 2048 } };
        for (const auto &x : rows) bench_latent(t, x.batch, x.n, x.heads, x.most, quick ? 20 : 40, csv);
        if (csv) fclose(csv);
        return 0;
    }
    if (lists) {
        if (csv) fprintf(csv, "batch,context,keys,us,floor_us\n");
        const int shapes[][3] = { { 1, 32768, 2048 }, { 4, 32768, 2048 }, { 8, 32768, 2048 },
                                  { 16, 32768, 2048 }, { 32, 32768, 2048 }, { 64, 32768, 2048 },
                                  { 1, 131072, 8192 }, { 8, 131072, 8192 }, { 32, 32768, 512 },
                                  { 128, 16384, 512 }, { 128, 16384, 1024 }, { 256, 8192, 512 } };
        for (const auto &x : shapes) bench_lists(t, x[0], x[1], x[2], quick ? 20 : 40, csv);
        if (csv) fclose(csv);
        return 0;
    }
    if (csv)
        fprintf(csv,
                "type,batch,context,layout,method,num_samples,stash,us,floor_us,bytes,tb_per_s,over_floor,"
                "dense_over_method,error\n");
    const std::vector<method> main_set = { { "dense", SANTA_DENSE, 0, SANTA_STASH_DEFAULT, 0 },
                                           { "prop", SANTA_PROP, 128, SANTA_STASH_U8, 0 },
                                           { "prop", SANTA_PROP, 128, SANTA_STASH_F32, 0 },
                                           { "flash", SANTA_FLASH, 2048, SANTA_STASH_U8, 0 } };
    std::vector<method> copies = main_set;
    copies.push_back({ "prop u4", SANTA_PROP, 128, SANTA_STASH_U8, 4 });
    copies.push_back({ "prop u4", SANTA_PROP, 128, SANTA_STASH_F32, 4 });
    copies.push_back({ "prop u4", SANTA_PROP, 512, SANTA_STASH_U8, 4 });
    copies.push_back({ "pps u4", SANTA_PPS, 128, SANTA_STASH_U8, 4 });
    copies.push_back({ "prop u4, rescued", SANTA_PROP, 128, SANTA_STASH_U8, 4, true });
    copies.push_back({ "prop u4, rescued", SANTA_PROP, 128, SANTA_STASH_F32, 4, true });
    copies.push_back({ "pps u4, rescued", SANTA_PPS, 128, SANTA_STASH_U8, 4, true });
    copies.push_back({ "top-k u4", SANTA_TOP_K, 2048, SANTA_STASH_U8, 4 });
    copies.push_back({ "top-k u4", SANTA_TOP_K, 2048, SANTA_STASH_F32, 4 });
    copies.push_back({ "prop u2", SANTA_PROP, 128, SANTA_STASH_U8, 2 });
    copies.push_back({ "pps", SANTA_PPS, 128, SANTA_STASH_U8, 0 });
    copies.push_back({ "top-k", SANTA_TOP_K, 128, SANTA_STASH_DEFAULT, 0 });
    std::vector<method> full = copies;
    full.push_back({ "prop", SANTA_PROP, 128, SANTA_STASH_F16, 0 });
    full.push_back({ "iid", SANTA_IID, 128, SANTA_STASH_U8, 0 });
    full.push_back({ "strat", SANTA_STRAT, 128, SANTA_STASH_U8, 0 });
    full.push_back({ "prop", SANTA_PROP, 1024, SANTA_STASH_U8, 0 });
    const int runs = quick ? 20 : 40;
    if (only_copies) {
        for (const int keys : { 8192, 32768, 131072 })
            for (const int batch : { 1, 8, 32 })
                if (batch * keys <= 8 * 131072) bench(t, 2, batch, keys, false, 0, copies, runs, csv);
        for (const int batch : { 1, 8 })
            for (const int rows : { 2, 4, 8 })
                bench_dense(t, batch, batch == 1 ? 131072 : 32768,
                            { SANTA_BF16, 128, 4, SANTA_BF16, 0.0f, false, 0, rows - 1 }, runs, csv);
        if (csv) fclose(csv);
        return 0;
    }
    for (const float agree : { 0.85f, 0.5f }) {
        if (only_routed) break;
        for (const int batch : {1, 8})
            bench_vattention(t, batch, batch == 1 ? 131072 : 32768, agree, runs, csv);
    }
    if (only_adaptive) return csv ? fclose(csv) : 0;
    printf("\nkeys in buckets: 1024 of them, 32 read whole, 2048 keys of the window\n");
    static const routed_case routed[] = {{1, 1, 171008, 1024, SANTA_NONE, false},
                                         {1, 1, 171008, 128, SANTA_NONE, false},
                                         {1, 1, 171008, 128, 128, false},
                                         {8, 1, 131072, 1024, SANTA_NONE, false},
                                         {8, 1, 131072, 128, SANTA_NONE, false},
                                         {8, 1, 131072, 128, 128, false},
                                         {8, 8, 131072, 1024, SANTA_NONE, false},
                                         {8, 8, 131072, 128, SANTA_NONE, false},
                                         {8, 8, 131072, 128, SANTA_NONE, true},
                                         {8, 1, 131072, 128, SANTA_NONE, true},
                                         {8, 1, 131072, 128, 512, false, true},
                                         {8, 8, 131072, 128, 512, false, true},
                                         {8, 1, 131072, 128, 512, false, false}};
    for (const routed_case &x : routed) bench_routed(t, x, runs, csv);
    if (only_routed) { if (csv) fclose(csv); return 0; }
    bench(t, 2, 1, 32768, false, 0, quick ? copies : full, runs, csv);
    bench(t, 2, 1, 131072, false, 0, copies, runs, csv);
    bench(t, 2, 8, 32768, false, 0, quick ? copies : full, runs, csv);
    bench(t, 2, 32, 32768, false, 0, copies, runs, csv);
    bench(t, 2, 8, 131072, false, 0, copies, runs, csv);
    if (!quick) {
        bench(t, 2, 1, 8192, false, 0, copies, runs, csv);
        bench(t, 2, 8, 8192, false, 0, copies, runs, csv);
        bench(t, 2, 1, 1048576, false, 0, main_set, runs, csv);
        bench(t, 2, 8, 32768, true, 0, main_set, runs, csv);
        bench(t, 2, 8, 32768, false, 16, copies, runs, csv);
        bench(t, 2, 8, 32768, false, 64, copies, runs, csv);
        bench(t, 1, 8, 32768, false, 0, main_set, runs, csv);
    }
    bench(t, 3, 8, 32768, false, 0, main_set, runs, csv);
    if (!quick) bench(t, 0, 1, 32768, false, 0, main_set, runs, csv);
    if (csv) fclose(csv);
    return 0;
}
