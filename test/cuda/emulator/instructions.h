/* Intrinsics of CUDA, and the twins of >>instructions in santa_cuda.cu; see cuda_runtime.h. */
#ifndef SANTA_EMULATOR_INSTRUCTIONS_H
#define SANTA_EMULATOR_INSTRUCTIONS_H
#include "cuda.h"
#include "fibers.h"

/* Where a collective is called: a last argument by default. */
#define HERE(what) emulated::place { what, file, line }
#define CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* -------------------------------------------------------------------------------- numbers */

template <typename A, typename B>
inline typename std::common_type<A, B>::type min(A a, B b) {
    static_assert(std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, "numbers");
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value) return std::fmin((T)a, (T)b);
    else return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B>
inline typename std::common_type<A, B>::type max(A a, B b) {
    static_assert(std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, "numbers");
    typedef typename std::common_type<A, B>::type T;
    if constexpr (std::is_floating_point<T>::value) return std::fmax((T)a, (T)b);
    else return (T)a < (T)b ? (T)b : (T)a;
}

inline float __uint_as_float(unsigned x) { return emulated::bits<float>(x); }
inline int __double2hiint(double x) { return (int)(emulated::bits<unsigned long long>(x) >> 32); }
inline double __hiloint2double(int high, int low) {
    return emulated::bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}
inline float __int_as_float(int x) { return emulated::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulated::bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulated::bits<int>(x); }
inline double __longlong_as_double(long long x) { return emulated::bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulated::bits<long long>(x); }

inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    const uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32,
                   m = ah * bl + (al * bl >> 32), n = al * bh + (uint32_t)m;
    return ah * bh + (m >> 32) + (n >> 32);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline int __ffsll(unsigned long long x) { return __builtin_ffsll((long long)x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
    return y;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 255u) << 8 * i;
    return r;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (n & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((uint64_t)high << 32 | low) << (n & 31) >> 32);
}
inline unsigned __vcmpeq2(unsigned a, unsigned b) {
    return ((a ^ b) & 0xffffu ? 0u : 0xffffu) | ((a ^ b) >> 16 ? 0u : 0xffff0000u);
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}

namespace emulated {
/* The float at or below x + error. */
inline float round_down(double x, double error) {
    const float r = (float)x;
    return (double)r > x || ((double)r == x && error < 0.0) ? std::nextafter(r, -INFINITY) : r;
}
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
}  /* namespace emulated */
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fadd_rd(float a, float b) {
    const double x = (double)a, y = (double)b, sum = x + y, part = sum - x;
    return emulated::round_down(sum, (x - (sum - part)) + (y - part));
}
inline float __fmaf_rd(float a, float b, float c) {
    const double x = (double)a * (double)b, y = (double)c, sum = x + y, part = sum - x;
    return emulated::round_down(sum, (x - (sum - part)) + (y - part));
}
inline float __saturatef(float x) { return x > 0.0f ? std::fmin(x, 1.0f) : 0.0f; }
inline float __double2float_rd(double x) { return emulated::round_down(x, 0.0); }
inline float __double2float_rn(double x) { return (float)x; }
inline int __float2int_rn(float x) { return (int)std::nearbyint(x); }
inline int __float2int_rd(float x) { return (int)std::floor(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline float __fdividef(float a, float b) {
    return std::fabs(b) > 0x1p126f && std::isfinite(b) ? a * 0.0f : a / b;
}
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }

/* --------------------------------------------------------------------------------- memory */

template <typename T> T __ldg(const T *p) { return *p; }
template <typename T> T __ldcg(const T *p) { return *p; }
template <typename T> T __ldca(const T *p) { return *p; }
template <typename T> T __ldcs(const T *p) { return *p; }
template <typename T> T __ldlu(const T *p) { return *p; }
template <typename T> void __stcg(T *p, T x) { *p = x; }
template <typename T> void __stcs(T *p, T x) { *p = x; }
template <typename T> void __stwt(T *p, T x) { *p = x; }
inline size_t __cvta_generic_to_shared(const void *p, CALLER) {
    return emulated::shared_address(p, HERE("an address"));
}

inline void __threadfence() { }
inline void __threadfence_block() { }
inline void __threadfence_system() { }

/* One thread of the host runs all: nothing comes between. */
namespace emulated {
template <typename T> T exchange(T *p, T x) {
    const T old = *p;
    *p = x;
    return old;
}
template <typename T> struct plain { typedef T type; };
template <typename T> using as = typename plain<T>::type;             /* an argument that has no say in T */
}
template <typename T> T atomicAdd(T *p, emulated::as<T> x) { return emulated::exchange(p, (T)(*p + x)); }
template <typename T> T atomicSub(T *p, emulated::as<T> x) { return emulated::exchange(p, (T)(*p - x)); }
template<typename T> T atomicMax(T *p, emulated::as<T> x) { return emulated::exchange(p, *p < x ? x : *p); }
template<typename T> T atomicMin(T *p, emulated::as<T> x) { return emulated::exchange(p, x < *p ? x : *p); }
template <typename T> T atomicAnd(T *p, emulated::as<T> x) { return emulated::exchange(p, (T)(*p & x)); }
template <typename T> T atomicOr(T *p, emulated::as<T> x) { return emulated::exchange(p, (T)(*p | x)); }
template <typename T> T atomicXor(T *p, emulated::as<T> x) { return emulated::exchange(p, (T)(*p ^ x)); }
template <typename T> T atomicExch(T *p, emulated::as<T> x) { return emulated::exchange(p, x); }
template <typename T> T atomicCAS(T *p, emulated::as<T> was, emulated::as<T> x) {
    return emulated::exchange(p, *p == was ? x : *p);
}
inline unsigned atomicInc(unsigned *p, unsigned most) {
    return emulated::exchange(p, *p >= most ? 0 : *p + 1);
}

/* ---------------------------------------------------------------------------- collectives */

namespace emulated {
/* Each lane's value, the lane that it wants one from, and what it gets. */
template <typename T> struct shuffled { T value; unsigned from; T got; place at; };
template <typename T> void finish_shuffle(void **arguments, unsigned mask) {
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        shuffled<T> &x = *(shuffled<T> *)arguments[__builtin_ctz(rest)];
        if (!(mask >> x.from & 1u))
            fail(x.at, "%s from lane %u, which is not in the mask %08x", x.at.what, x.from, mask);
        x.got = ((const shuffled<T> *)arguments[x.from])->value;
    }
}
template <typename T> T shuffle(unsigned mask, T value, unsigned from, place at) {
    shuffled<T> x = {value, from, value, at};
    meet(mask, &x, finish_shuffle<T>, at);
    return x.got;
}
inline unsigned lane() { return state.now->lane; }

/* All lanes get one result of all values. */
struct voted { unsigned value, got; };
template <typename F> void finish_vote(void **arguments, unsigned mask, F join, unsigned start) {
    unsigned got = start;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const int i = __builtin_ctz(rest);
        got = join(got, ((const voted *)arguments[i])->value, i);
    }
    for (unsigned rest = mask; rest; rest &= rest - 1) ((voted *)arguments[__builtin_ctz(rest)])->got = got;
}
#define EMULATED_JOIN(name, start, expression)                                                             \
    struct name {                                                                                          \
        static void finish(void **a, unsigned m) {                                                         \
            finish_vote(                                                                                   \
                a, m,                                                                                      \
                [](unsigned x, unsigned y, int i) {                                                        \
                    (void)i;                                                                               \
                    return (unsigned)(expression);                                                         \
                },                                                                                         \
                start);                                                                                    \
        }                                                                                                  \
    }
EMULATED_JOIN(join_ballot, 0u, x | (unsigned)(y != 0) << i);
EMULATED_JOIN(join_and, ~0u, x &y);
EMULATED_JOIN(join_or, 0u, x | y);
EMULATED_JOIN(join_xor, 0u, x ^ y);
EMULATED_JOIN(join_add, 0u, x + y);
EMULATED_JOIN(join_min, ~0u, y < x ? y : x);
EMULATED_JOIN(join_max, 0u, y < x ? x : y);
EMULATED_JOIN(join_min_int, 0x7fffffffu, (int)y < (int)x ? y : x);
EMULATED_JOIN(join_max_int, 0x80000000u, (int)y < (int)x ? x : y);
#undef EMULATED_JOIN
template <typename J> unsigned joined(unsigned mask, unsigned value, place at) {
    voted x = {value, 0};
    meet(mask, &x, J::finish, at);
    return x.got;
}
inline void finish_nothing(void **, unsigned) { }
}  /* namespace emulated */

template <typename T> T __shfl_sync(unsigned mask, T v, int from, int width = 32, CALLER) {
    const unsigned base = emulated::lane() & ~(unsigned)(width - 1);
    return emulated::shuffle(mask, v, base + ((unsigned)from & (unsigned)(width - 1)), HERE("__shfl_sync"));
}
template <typename T> T __shfl_xor_sync(unsigned mask, T v, int o, int width = 32, CALLER) {
    const unsigned me = emulated::lane(), to = me ^ (unsigned)o,
                   end = (me & ~(unsigned)(width - 1)) + (unsigned)width;
    return emulated::shuffle(mask, v, to < end ? to : me, HERE("__shfl_xor_sync"));
}
template <typename T> T __shfl_up_sync(unsigned mask, T v, unsigned o, int width = 32, CALLER) {
    const unsigned me = emulated::lane();
    return emulated::shuffle(mask, v, (me & (unsigned)(width - 1)) >= o ? me - o : me,
                             HERE("__shfl_up_sync"));
}
template <typename T> T __shfl_down_sync(unsigned mask, T v, unsigned o, int width = 32, CALLER) {
    const unsigned me = emulated::lane();
    return emulated::shuffle(mask, v, (me & (unsigned)(width - 1)) + o < (unsigned)width ? me + o : me,
                             HERE("__shfl_down_sync"));
}
inline unsigned __ballot_sync(unsigned mask, int v, CALLER) {
    return emulated::joined<emulated::join_ballot>(mask, (unsigned)(v != 0), HERE("__ballot_sync"));
}
inline int __any_sync(unsigned mask, int v, CALLER) {
    return (int)emulated::joined<emulated::join_or>(mask, (unsigned)(v != 0), HERE("__any_sync"));
}
inline int __all_sync(unsigned mask, int v, CALLER) {
    return emulated::joined<emulated::join_and>(mask, v ? ~0u : 0u, HERE("__all_sync")) != 0;
}
inline unsigned __match_any_sync(unsigned mask, unsigned v, CALLER) {
    unsigned same = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const int from = __builtin_ctz(rest);
        same |= (unsigned)(emulated::shuffle(mask, v, (unsigned)from, HERE("__match_any_sync")) == v)
                << from;
    }
    return same;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v, CALLER) {
    return emulated::joined<emulated::join_add>(mask, v, HERE("__reduce_add_sync"));
}
inline int __reduce_add_sync(unsigned mask, int v, CALLER) {
    return (int)emulated::joined<emulated::join_add>(mask, (unsigned)v, HERE("__reduce_add_sync"));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v, CALLER) {
    return emulated::joined<emulated::join_min>(mask, v, HERE("__reduce_min_sync"));
}
inline int __reduce_min_sync(unsigned mask, int v, CALLER) {
    return (int)emulated::joined<emulated::join_min_int>(mask, (unsigned)v, HERE("__reduce_min_sync"));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, CALLER) {
    return emulated::joined<emulated::join_max>(mask, v, HERE("__reduce_max_sync"));
}
inline int __reduce_max_sync(unsigned mask, int v, CALLER) {
    return (int)emulated::joined<emulated::join_max_int>(mask, (unsigned)v, HERE("__reduce_max_sync"));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, CALLER) {
    return emulated::joined<emulated::join_or>(mask, v, HERE("__reduce_or_sync"));
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v, CALLER) {
    return emulated::joined<emulated::join_and>(mask, v, HERE("__reduce_and_sync"));
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v, CALLER) {
    return emulated::joined<emulated::join_xor>(mask, v, HERE("__reduce_xor_sync"));
}
inline void __syncwarp(unsigned mask = 0xffffffffu, CALLER) {
    emulated::meet(mask, nullptr, emulated::finish_nothing, HERE("__syncwarp"));
}
inline unsigned __activemask() { return ~emulated::state.warps_of[emulated::state.now->warp].left; }

inline void __syncthreads(CALLER) { emulated::barrier(0, 0, false, 0, HERE("__syncthreads")); }
inline int __syncthreads_or(int v, CALLER) {
    return emulated::barrier(0, 0, v != 0, 0, HERE("__syncthreads_or"));
}
inline int __syncthreads_and(int v, CALLER) {
    return emulated::barrier(0, 0, v != 0, 1, HERE("__syncthreads_and"));
}
inline int __syncthreads_count(int v, CALLER) {
    return emulated::barrier(0, 0, v != 0, 2, HERE("__syncthreads_count"));
}
inline void __nanosleep(unsigned, CALLER) { emulated::poll(HERE("__nanosleep")); }
[[noreturn]] inline void __trap() { emulated::fail({"", nullptr, 0}, "__trap"); }
inline long long clock64() { return 0; }

/* --------------------------------------------------------------------------- instructions */

#define DYNAMIC_SHARED(name) uint4 *const name = emulated::dynamic_shared<uint4>()
#define SHARED(name, ...) __VA_ARGS__ &name = emulated::declared<__VA_ARGS__, __LINE__>()

inline float pow2(float x) { return emulated::flushed(std::exp2(emulated::flushed(x))); }
inline double near_reciprocal(double x) { return 1.0 / x; }
inline void keep(unsigned &) { }
inline float max_or_nan(float a, float b) { return a != a ? a : b != b ? b : a < b ? b : a; }
inline void prefetch(const char *) { }
inline void barrier_among(int id, int threads, CALLER) {
    emulated::barrier((unsigned)id, (unsigned)threads, false, 0, HERE("barrier_among"));
}
inline int cta_in_cluster() { return (int)emulated::state.rank; }
inline void cluster_arrive() { emulated::arrive_at_cluster(); }
inline void cluster_wait(CALLER) { emulated::wait_for_cluster(HERE("cluster_wait")); }
inline void cluster_sync(CALLER) {
    emulated::arrive_at_cluster();
    emulated::wait_for_cluster(HERE("cluster_sync"));
}
template <typename T> T *in_cta(T *at, int rank, CALLER) {
    return (T *)emulated::of_other((char *)at, (unsigned)rank, HERE("in_cta"));
}
inline void wait_for_previous() { }
inline void launch_dependents() { }

namespace emulated {
/* Copies happen when they are waited for; until then NaN is there. */
inline void begin_copy(std::vector<copy> &list, char *to, const char *from, int bytes, int zeros,
                       place at, unsigned aligned = 16) {
    shared_address(to, at);
    if ((uintptr_t)to % aligned || (uintptr_t)from % aligned)
        fail(at, "a copy from %p to %p: odd addresses", (const void *)from, (void *)to);
    for (int i = 0; i < bytes; i += 16) (void)*(const volatile char *)(from + i);
    memset(to, POISON, (size_t)(bytes + zeros));
    list.push_back({to, from, bytes, zeros});
}
inline void finish_copy(const copy &x) {
    memcpy(x.to, x.from, (size_t)x.bytes);
    memset(x.to + x.bytes, 0, (size_t)x.zeros);
}
inline void close_group() {
    thread &me = *state.now;
    size_t before = 0;
    for (size_t n : me.groups) before += n;
    me.groups.push_back(me.copies.size() - before);
}
/* All groups but the last n. */
inline void wait_groups(size_t n) {
    thread &me = *state.now;
    if (me.groups.size() <= n) return;
    const size_t end = me.groups.size() - n;
    size_t done = 0;
    for (size_t i = 0; i < end; i++) done += me.groups[i];
    for (size_t i = 0; i < done; i++) finish_copy(me.copies[i]);
    me.copies.erase(me.copies.begin(), me.copies.begin() + (long)done);
    me.groups.erase(me.groups.begin(), me.groups.begin() + (long)end);
}
}  /* namespace emulated */

inline void copy16(uint4 *to, const char *from, CALLER) {
    emulated::begin_copy(emulated::state.now->copies, (char *)to, from, 16, 0, HERE("cp.async"));
}
inline void copy16_once(uint4 *to, const char *from, CALLER) { copy16(to, from, file, line); }
inline void copy16_or_zero(uint4 *to, const char *from, bool have, CALLER) {
    emulated::begin_copy(emulated::state.now->copies, (char *)to, from, have ? 16 : 0, have ? 0 : 16,
                         HERE("cp.async"));
}
inline void copy_some_or_zero(void *to, const char *from, int bytes, bool have, CALLER) {
    emulated::begin_copy(emulated::state.now->copies, (char *)to, from, have ? bytes : 0, have ? 0 : bytes,
                         HERE("cp.async"), (unsigned)bytes);
}
template <int BYTES> void copy_some_at(unsigned to, const char *from, CALLER) {
    emulated::begin_copy(emulated::state.now->copies, emulated::shared_pointer(to), from, BYTES, 0,
                         HERE("cp.async"), (unsigned)BYTES);
}
inline void copy16_or_zero_at(unsigned to, const char *from, bool have, CALLER) {
    copy16_or_zero((uint4 *)emulated::shared_pointer(to), from, have, file, line);
}
inline void store16_at(unsigned to, uint4 x) { memcpy(emulated::shared_pointer(to), &x, 16); }
inline void copy_commit() { emulated::close_group(); }
template <int N> void copy_wait() { emulated::wait_groups(N); }

/* Tensor cores. Row-major A of 16 rows, column-major B of 8 columns; lane 4 r + c has of A rows
   r and r + 8, of B column r, of the result rows r and r + 8, columns 2c and 2c + 1. */
namespace emulated {
template <typename T> struct product { T *c; unsigned a[4], b[2]; };
inline float element(unsigned word, int i, __half) {
    return half_to_float((unsigned short)(word >> 16 * i));
}
inline float element(unsigned word, int i, __nv_bfloat16) {
    return bf16_to_float((unsigned short)(word >> 16 * i));
}
struct tf32 { };
inline float element(unsigned word, int, tf32) { return bits<float>(word & 0xffffe000u); }
inline int element(unsigned word, int i, signed char) { return (signed char)(word >> 8 * i); }
inline int element(unsigned word, int i, unsigned char) { return (unsigned char)(word >> 8 * i); }

/* PER numbers in a word: a lane has PER adjacent ones, and again 4 * PER further on. */
template <typename C, typename A, typename B, int PER> void finish_mma(void **arguments, unsigned) {
    enum { K = 8 * PER };
    C a[16][K], b[K][8], sum[16][8];
    for (int l = 0; l < 32; l++) {
        const product<C> &x = *(const product<C> *)arguments[l];
        const int r = l / 4, c = l % 4;
        for (int i = 0; i < PER; i++) {
            a[r][PER * c + i] = element(x.a[0], i, A());
            a[r + 8][PER * c + i] = element(x.a[1], i, A());
            a[r][PER * (c + 4) + i] = element(x.a[2], i, A());
            a[r + 8][PER * (c + 4) + i] = element(x.a[3], i, A());
            b[PER * c + i][r] = element(x.b[0], i, B());
            b[PER * (c + 4) + i][r] = element(x.b[1], i, B());
        }
        for (int i = 0; i < 4; i++) sum[r + 8 * (i / 2)][2 * c + i % 2] = x.c[i];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < 8; j++) sum[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            ((const product<C> *)arguments[l])->c[i] = sum[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
}

struct matrices { unsigned at, *w; place where; };
inline void finish_matrices(void **arguments, unsigned) {
    for (int l = 0; l < 32; l++) {
        const matrices &x = *(const matrices *)arguments[l];
        for (int i = 0; i < 4; i++) {
            const unsigned row = ((const matrices *)arguments[8 * i + l / 4])->at;
            if (row % 16) fail(x.where, "ldmatrix at %u", row);
            memcpy(&x.w[i], shared_pointer(row) + 4 * (l % 4), 4);
        }
    }
}
/* Word c of row r, of a matrix with its rows and columns exchanged. */
inline void finish_transposed(void **arguments, unsigned) {
    for (int l = 0; l < 32; l++) {
        const matrices &x = *(const matrices *)arguments[l];
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 2; k++) {
                const unsigned row = ((const matrices *)arguments[8 * i + 2 * (l % 4) + k])->at;
                if (row % 16) fail(x.where, "ldmatrix at %u", row);
                memcpy((char *)&x.w[i] + 2 * k, shared_pointer(row) + 2 * (l / 4), 2);
            }
    }
}
struct one_matrix { unsigned from, to; };
inline void finish_transpose(void **arguments, unsigned) {
    for (int l = 0; l < 32; l++) {
        unsigned word = 0;
        for (int k = 0; k < 2; k++) {
            const one_matrix &x = *(const one_matrix *)arguments[4 * (2 * (l % 4) + k) + l / 8];
            word |= (x.from >> 16 * (l / 4 % 2) & 0xffffu) << 16 * k;
        }
        ((one_matrix *)arguments[l])->to = word;
    }
}
}  /* namespace emulated */

template<typename T> void mma(float *c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                              unsigned b1, T, CALLER) {
    emulated::product<float> x = {c, {a0, a1, a2, a3}, {b0, b1}};
    emulated::meet(0xffffffffu, &x, emulated::finish_mma<float, T, T, 2>, HERE("mma"));
}
inline void mma_tf32(float *c, const float *a, const float *b, CALLER) {
    emulated::product<float> x = {c, {}, {__float_as_uint(b[0]), __float_as_uint(b[1])}};
    for (int i = 0; i < 4; i++) x.a[i] = __float_as_uint(a[i]);
    emulated::meet(0xffffffffu, &x, emulated::finish_mma<float, emulated::tf32, emulated::tf32, 1>,
                   HERE("mma"));
}
inline void mma_codes(int *c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b, CALLER) {
    emulated::product<int> x = {c, {a0, a1, a2, a3}, {b.x, b.y}};
    emulated::meet(0xffffffffu, &x, emulated::finish_mma<int, unsigned char, signed char, 4>, HERE("mma"));
}
inline void mma_centre(int *c, const unsigned (&a)[4], uint2 b, CALLER) {
    emulated::product<int> x = {c, {a[0], a[1], a[2], a[3]}, {b.x, b.y}};
    emulated::meet(0xffffffffu, &x, emulated::finish_mma<int, signed char, signed char, 4>, HERE("mma"));
}
inline void mma_bytes(int *c, const unsigned (&a)[4], uint2 b, int first, CALLER) {
    for (int i = 0; i < 4; i++) c[i] = first;
    emulated::product<int> x = {c, {a[0], a[1], a[2], a[3]}, {b.x, b.y}};
    emulated::meet(0xffffffffu, &x, emulated::finish_mma<int, signed char, signed char, 4>, HERE("mma"));
}
inline unsigned add_pairs(unsigned a, unsigned b) {
    unsigned y = 0;
    for (int i = 0; i < 2; i++) {
        const float x = __uint_as_float(a >> 16 * i << 16) + __uint_as_float(b >> 16 * i << 16);
        y |= (unsigned)__bfloat16_as_ushort(__float2bfloat16_rn(x)) << 16 * i;
    }
    return y;
}
inline void load_matrices(unsigned at, unsigned w[4], CALLER) {
    emulated::matrices x = {at, w, HERE("ldmatrix")};
    emulated::meet(0xffffffffu, &x, emulated::finish_matrices, x.where);
}
inline void load_transposed(unsigned at, unsigned w[4], CALLER) {
    emulated::matrices x = {at, w, HERE("ldmatrix")};
    emulated::meet(0xffffffffu, &x, emulated::finish_transposed, x.where);
}
inline unsigned transpose(unsigned from, CALLER) {
    emulated::one_matrix x = {from, 0};
    emulated::meet(0xffffffffu, &x, emulated::finish_transpose, HERE("movmatrix"));
    return x.to;
}

/* An mbarrier: the phase's parity, arrivals of a phase, those that are still to come, bytes
   that are. */
namespace emulated {
struct mbarrier { unsigned short phase : 1, expected : 15; unsigned short pending; int bytes; };
static_assert(sizeof(mbarrier) == 8, "as large as the card's");

inline mbarrier *barrier_at(unsigned at, place where) {
    if (at % 8) fail(where, "an mbarrier at %u", at);
    mbarrier *b = (mbarrier *)shared_pointer(at);
    if (b->expected == 0x7fff) fail(where, "nobody has made this mbarrier");
    return b;
}
inline void barrier_step(mbarrier *b, int arrivals, long long bytes) {
    b->pending = (unsigned short)(b->pending - arrivals);
    b->bytes += (int)bytes;
    if (b->pending || b->bytes) return;
    b->phase = !b->phase;
    b->pending = b->expected;
    state.progress++;
    state.polling = false;
}
inline void make_barrier(unsigned at, int arrivals, place where) {
    if (at % 8) fail(where, "an mbarrier at %u", at);
    *(mbarrier *)shared_pointer(at) = {0, (unsigned short)arrivals, (unsigned short)arrivals, 0};
}
inline void wait_barrier(unsigned at, unsigned phase, place where) {
    mbarrier *b = barrier_at(at, where);
    while (b->phase == (phase & 1u)) {
        bool any = false;
        for (size_t i = 0; i < state.deferred.size();) {
            if (state.deferred[i].barrier != (u64 *)b) { i++; continue; }
            const behind x = state.deferred[i];
            state.deferred.erase(state.deferred.begin() + (long)i);
            for (const copy &c : x.copies) finish_copy(c);
            barrier_step(b, x.arrivals, -x.bytes);
            any = true;
        }
        if (!any) poll(where);
    }
    poll_succeeded();
}
}  /* namespace emulated */

inline void barrier_make(unsigned at, CALLER) {
    emulated::make_barrier(at, __CUDA_ARCH__ >= 900 ? 1 : 32, HERE("mbarrier.init"));
}
inline void barriers_are_made(CALLER) { __syncwarp(0xffffffffu, file, line); }
inline void barrier_wait(unsigned at, unsigned phase, CALLER) {
    emulated::wait_barrier(at, phase, HERE("mbarrier.wait"));
}
inline void barrier_expect(unsigned at, int bytes, CALLER) {
    emulated::barrier_step(emulated::barrier_at(at, HERE("mbarrier.expect_tx")), 1, bytes);
}
inline void copy_bytes(unsigned to, const char *from, int bytes, unsigned barrier, CALLER) {
    if (bytes % 16) emulated::fail(HERE("cp.async.bulk"), "a bulk copy of %d bytes", bytes);
    emulated::state.deferred.push_back(
        {(emulated::u64 *)emulated::barrier_at(barrier, HERE("cp.async.bulk")), {}, bytes, 0});
    emulated::begin_copy(emulated::state.deferred.back().copies, emulated::shared_pointer(to), from, bytes,
                         0, HERE("cp.async.bulk"));
}
inline void copy16_to(unsigned to, const char *from, CALLER) {
    copy16((uint4 *)emulated::shared_pointer(to), from, file, line);
}
inline void barrier_after_copies(unsigned at, CALLER) {
    emulated::thread &me = *emulated::state.now;
    emulated::state.deferred.push_back(
        {(emulated::u64 *)emulated::barrier_at(at, HERE("cp.async.mbarrier")), {}, 0, 1});
    emulated::state.deferred.back().copies.swap(me.copies);
    me.groups.clear();
}

/* ----------------------------------------------------------------------------- warpgroups */

/* A product is done when it is asked for: what reads a sum too early is not found. */
#define HAS_WARPGROUPS (__CUDA_ARCH__ == 900)

inline void barrier_make_for(unsigned at, int arrivals, CALLER) {
    emulated::make_barrier(at, arrivals, HERE("mbarrier.init"));
}
inline void barrier_arrive(unsigned at, CALLER) {
    emulated::barrier_step(emulated::barrier_at(at, HERE("mbarrier.arrive")), 1, 0);
}
/* A box of the tensor copy engine by the map that cuda.h's twin has made: pieces of 16 bytes
   exchanged by their line's place in 1 KB. */
inline void copy_box(unsigned to, const CUtensorMap *map, int feature, int row, int head, int plane,
                     unsigned barrier, CALLER) {
    const emulated::place where = HERE("cp.async.bulk.tensor");
    const long long start[4] = {feature, row, head, plane};
    const int lines = (int)map->box[1];
    if (to % 1024) emulated::fail(where, "a box at %u", to);
    emulated::state.deferred.push_back({(emulated::u64 *)emulated::barrier_at(barrier, where), {},
                                        128 * lines, 0});
    for (int line = 0; line < lines; line++)
        for (int piece = 0; piece < 8; piece++) {
            const long long at[4] = {start[0] + 8 * piece, start[1] + line, start[2], start[3]};
            const char *from = map->data;
            bool have = true;
            for (int i = 0; i < 4; i++) {
                have &= at[i] >= 0 && at[i] < (long long)map->shape[i];
                from += at[i] * (i ? (long long)map->stride[i - 1] : 2);
            }
            emulated::begin_copy(emulated::state.deferred.back().copies,
                                 emulated::shared_pointer(to + (unsigned)(128 * line
                                                                          + 16 * (piece ^ line % 8))),
                                 have ? from : map->data, have ? 16 : 0, have ? 0 : 16, where);
        }
}
inline void fence_tensor_cores() { }
template <int N> void fewer_registers() { }
template <int N> void more_registers() { }
inline void products_begin() { }
inline void products_commit() { }
template <int N> void products_wait() { }
template <int N> void products_are(float (&)[N][4]) { }

namespace emulated {
/* A number in shared memory by a descriptor: lines of 128 bytes whose pieces of 16 are
   exchanged by the line's place in 1 KB; 8 lines are `groups` bytes apart, chunks of 64 numbers
   across `chunks`. */
struct operand {
    unsigned at, chunks, groups;
    operand(u64 x, place where)
        : at((unsigned)(x & 0x3fffu) << 4), chunks((unsigned)(x >> 16 & 0x3fffu) << 4),
          groups((unsigned)(x >> 32 & 0x3fffu) << 4) {
        if (x >> 62 != 1) fail(where, "a layout that is not emulated");
        const unsigned dynamic = (unsigned)(state.dynamic_at - state.window);      /* 18 bits are known */
        at |= dynamic & ~0x3ffffu;
        if (at < dynamic) at += 0x40000u;
    }
    unsigned short number(int line, int across) const {
        unsigned a = at + (unsigned)(line / 8) * groups + (unsigned)(line % 8) * 128
                   + (unsigned)(across / 64) * chunks + (unsigned)(across % 64) * 2;
        unsigned short x;
        a ^= (a >> 7 & 7u) << 4;
        memcpy(&x, shared_pointer(a), 2);
        return x;
    }
};
struct group_product {
    float (*sum)[4];
    unsigned a[4];
    u64 left, right;
    bool in_registers, by_columns, more;            /* by_columns: the right side */
    place where;
};
template <typename T, int N> void finish_group_product(void **arguments, unsigned) {
    const group_product &x = *(const group_product *)arguments[0];
    const operand right(x.right, x.where);
    const int row = (int)(state.now->warp % 4) * 16;
    static float a[16][16], b[16][N], sum[16][N];
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++) {
            const group_product &y = *(const group_product *)arguments[r % 8 * 4 + k % 8 / 2];
            a[r][k] = x.in_registers ? element(y.a[r / 8 + 2 * (k / 8)], k % 2, T())
                                     : element(operand(x.left, x.where).number(row + r, k), 0, T());
        }
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < N; j++)
            b[k][j] = element(x.by_columns ? right.number(k, j) : right.number(j, k), 0, T());
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < N / 2; i++)
            sum[l / 4 + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * (l % 4) + i % 2] =
                x.more ? ((const group_product *)arguments[l])->sum[i / 4][i % 4] : 0.0f;
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < N; j++) sum[r][j] += a[r][k] * b[k][j];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < N / 2; i++)
            ((const group_product *)arguments[l])->sum[i / 4][i % 4] =
                sum[l / 4 + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * (l % 4) + i % 2];
}
}  /* namespace emulated */

namespace emulated {
template <typename T, int N> void multiply(const group_product &x) {
    meet(0xffffffffu, (void *)&x, finish_group_product<T, N>, x.where);
}
}  /* namespace emulated */
template<typename T>
void products(float (&sum)[16][4], unsigned long long a, unsigned long long b, int more, T, CALLER) {
    emulated::multiply<T, 128>({sum, {}, a, b, false, false, more != 0, HERE("wgmma")});
}
template<typename T>
void products(float (&sum)[16][4], const unsigned (&a)[4], unsigned long long b, T, CALLER) {
    emulated::multiply<T, 128>({sum, {a[0], a[1], a[2], a[3]}, 0, b, true, true, true, HERE("wgmma")});
}
template<typename T>
void products(float (&sum)[6][4], unsigned long long a, unsigned long long b, int more, T, CALLER) {
    emulated::multiply<T, 48>({sum, {}, a, b, false, false, more != 0, HERE("wgmma")});
}
template<typename T>
void products(float (&sum)[6][4], const unsigned (&a)[4], unsigned long long b, int more, T, CALLER) {
    emulated::multiply<T, 48>({sum, {a[0], a[1], a[2], a[3]}, 0, b, true, false, more != 0, HERE("wgmma")});
}
template<typename T>
void products(float (&sum)[8][4], const unsigned (&a)[4], unsigned long long b, int more, T, CALLER) {
    emulated::multiply<T, 64>({sum, {a[0], a[1], a[2], a[3]}, 0, b, true, false, more != 0, HERE("wgmma")});
}
#undef HERE
#undef CALLER
#endif
