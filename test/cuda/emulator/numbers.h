/* The numbers and vectors of CUDA's headers, see cuda_runtime.h. Rounding is to nearest
   even. */
#ifndef SANTA_EMULATOR_NUMBERS_H
#define SANTA_EMULATOR_NUMBERS_H
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

/* -------------------------------------------------------------------------------- vectors */

#define EMULATED_VECTORS(T, name, one, two, four)                                                        \
    struct name##1 { T x; };                                                                             \
    struct alignas(two) name##2 { T x, y; };                                                             \
    struct name##3 { T x, y, z; };                                                                       \
    struct alignas(four) name##4 { T x, y, z, w; };                                                      \
    inline name##1 make_##name##1(T x) { return {x}; }                                                   \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                           \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                   \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }                           \
    static_assert(sizeof(name##1) == one, "no holes")
EMULATED_VECTORS(signed char, char, 1, 2, 4);
EMULATED_VECTORS(unsigned char, uchar, 1, 2, 4);
EMULATED_VECTORS(short, short, 2, 4, 8);
EMULATED_VECTORS(unsigned short, ushort, 2, 4, 8);
EMULATED_VECTORS(int, int, 4, 8, 16);
EMULATED_VECTORS(unsigned, uint, 4, 8, 16);
EMULATED_VECTORS(long long, longlong, 8, 16, 16);
EMULATED_VECTORS(unsigned long long, ulonglong, 8, 16, 16);
EMULATED_VECTORS(float, float, 4, 8, 16);
EMULATED_VECTORS(double, double, 8, 16, 16);
#undef EMULATED_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) { }
};

/* ----------------------------------------------------------------------------------- bits */

namespace emulated {
template <typename To, typename From> To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "another size");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

inline float half_to_float(unsigned short h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    if ((h & 0x7c00u) == 0x7c00u) return bits<float>(sign | 0x7f800000u | (rest & 0x7fffffu));
    return bits<float>(sign | bits<uint32_t>(bits<float>(rest) * 0x1p112f));      /* subnormals, too */
}

inline unsigned short float_to_half(float f) {
    const uint32_t x = bits<uint32_t>(f), sign = x >> 16 & 0x8000u, a = x & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7fff;
    if (a >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);                /* from 65520 on */
    if (a < 0x38800000u) {                          /* a multiple of 2^-24; the sum's low bits are it */
        const float y = bits<float>(a) + 0.5f;
        return (unsigned short)(sign | (bits<uint32_t>(y) - 0x3f000000u));
    }
    return (unsigned short)(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13));
}

inline float bf16_to_float(unsigned short h) { return bits<float>((uint32_t)h << 16); }

inline unsigned short float_to_bf16(float f) {
    const uint32_t x = bits<uint32_t>(f);
    if ((x & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
}

/* 4 bits of exponent, 3 of mantissa, no infinity. */
inline float e4m3_to_float(unsigned char b) {
    const int e = b >> 3 & 15, m = b & 7;
    float x = e == 15 && m == 7 ? bits<float>(0x7fffffffu)
            : e == 0 ? (float)m * 0x1p-9f : std::ldexp((float)(8 + m), e - 10);
    return b & 0x80 ? -x : x;
}

/* What is too large becomes the largest. */
inline unsigned char float_to_e4m3(float f) {
    const unsigned sign = bits<uint32_t>(f) >> 24 & 0x80u;
    const float a = std::fabs(f);
    if (a != a) return 0x7f;
    if (a >= 448.0f) return (unsigned char)(sign | 0x7eu);
    int e = 0;
    std::frexp(a, &e);                              /* a < 2^e */
    const int step = (e < -5 ? -5 : e) - 4;
    const float units = std::nearbyint(std::ldexp(a, -step));
    const unsigned at = step == -9 ? (unsigned)units : (unsigned)(units + (float)(8 * (step + 9)));
    return (unsigned char)(sign | (at > 0x7eu ? 0x7eu : at));
}
}  /* namespace emulated */

/* -------------------------------------------------------------------------------- 16 bits */

struct __half_raw { unsigned short x; };
struct __half2_raw { unsigned short x, y; };
struct __half {
    unsigned short x;
    __half() = default;
    __half(float f) : x(emulated::float_to_half(f)) { }
    __half(__half_raw r) : x(r.x) { }
    operator float() const { return emulated::half_to_float(x); }
};
struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __half2(__half a, __half b) : x(a), y(b) { }
    __half2(__half2_raw r) : x(__half_raw{r.x}), y(__half_raw{r.y}) { }
};
struct __nv_bfloat16 {
    unsigned short x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : x(emulated::float_to_bf16(f)) { }
    operator float() const { return emulated::bf16_to_float(x); }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) { }
};
typedef __half half;
typedef __half2 half2;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline float2 __half22float2(__half2 h) { return {h.x, h.y}; }
inline __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
inline __half2 __float22half2_rn(float2 f) { return __floats2half2_rn(f.x, f.y); }
inline __half2 __float2half2_rn(float f) { return __floats2half2_rn(f, f); }
inline __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline float __low2float(__half2 h) { return h.x; }
inline float __high2float(__half2 h) { return h.y; }
inline unsigned short __half_as_ushort(__half h) { return h.x; }
inline __half __ushort_as_half(unsigned short u) { return __half(__half_raw{u}); }
inline __half2 __hmul2(__half2 a, __half2 b) {
    return __floats2half2_rn((float)a.x * (float)b.x, (float)a.y * (float)b.y);
}
inline __half2 __hadd2(__half2 a, __half2 b) {
    return __floats2half2_rn((float)a.x + (float)b.x, (float)a.y + (float)b.y);
}

inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return {h.x, h.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 f) { return __floats2bfloat162_rn(f.x, f.y); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) {
    __nv_bfloat16 h;
    h.x = u;
    return h;
}

/* --------------------------------------------------------------------------------- 8 bits */

enum __nv_fp8_interpretation_t { __NV_E4M3 };
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;

struct __nv_fp8_e4m3 {
    unsigned char __x;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(float f) : __x(emulated::float_to_e4m3(f)) { }
    explicit operator float() const { return emulated::e4m3_to_float(__x); }
};

namespace emulated {
inline const unsigned short *e4m3_table() {
    static const struct table {
        unsigned short half[256];
        table() { for (int i = 0; i < 256; i++) half[i] = float_to_half(e4m3_to_float((unsigned char)i)); }
    } t;
    return t.half;
}
}  /* namespace emulated */

inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t) {
    return {emulated::e4m3_table()[x]};
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t) {
    return {emulated::e4m3_table()[x & 255], emulated::e4m3_table()[x >> 8]};
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float f, __nv_saturation_t, __nv_fp8_interpretation_t) {
    return emulated::float_to_e4m3(f);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 f, __nv_saturation_t,
                                                     __nv_fp8_interpretation_t) {
    return (unsigned short)(emulated::float_to_e4m3(f.x) | emulated::float_to_e4m3(f.y) << 8);
}

#endif
