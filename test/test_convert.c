/* f16 and bf16: every 16-bit value, every rounding border, against arithmetic in double. */
#include "reference.h"

static uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float widen(santa_dtype t, uint16_t h) {
    return t == SANTA_F16 ? santa_f16_to_f32(h) : santa_bf16_to_f32(h);
}
static uint16_t narrow(santa_dtype t, float f) {
    return t == SANTA_F16 ? santa_f32_to_f16(f) : santa_f32_to_bf16(f);
}

static int is_nan16(santa_dtype t, uint16_t h) {
    return (h & 0x7fffu) > (t == SANTA_F16 ? 0x7c00u : 0x7f80u);
}
static int is_quiet16(santa_dtype t, uint16_t h) {
    return is_nan16(t, h) && (h & (t == SANTA_F16 ? 0x0200u : 0x0040u));
}

/* One float to 16 bits. */
static int narrows(santa_dtype t, uint32_t bits) {
    const float    f   = bits_float(bits);
    const uint16_t got = narrow(t, f);
    if (test_is_nan(f))
        return CHECK_MSG(is_quiet16(t, got) && (got >> 15) == (bits >> 31), "NaN %08x became %04x",
                         (unsigned)bits, (unsigned)got);
    const uint16_t want = ref_encode16(t, (double)f);
    return CHECK_MSG(got == want, "%08x = %.9g: got %04x, want %04x", (unsigned)bits, (double)f,
                     (unsigned)got, (unsigned)want);
}

static void every_value(santa_dtype t) {
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = widen(t, (uint16_t)h);
        if (is_nan16(t, (uint16_t)h)) {
            CHECK_MSG(test_is_nan(f) && (float_bits(f) & 0x400000u) && float_bits(f) >> 31 == h >> 15,
                      "NaN %04x became %08x", (unsigned)h, (unsigned)float_bits(f));
            CHECK_MSG(is_quiet16(t, narrow(t, f)), "NaN %04x went to %04x", (unsigned)h,
                      (unsigned)narrow(t, f));
        } else {
            CHECK_MSG(float_bits(f) == float_bits((float)ref_decode16(t, (uint16_t)h)),
                      "%04x became %.9g, want %.9g", (unsigned)h, (double)f, ref_decode16(t, (uint16_t)h));
            CHECK_MSG(narrow(t, f) == h, "%04x went to %.9g and came back as %04x", (unsigned)h, (double)f,
                      (unsigned)narrow(t, f));
        }
    }
}

/* The floats at each value, at the middle to its neighbour, and one float to either side of
   both. */
static void every_border(santa_dtype t) {
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t next = (uint16_t)(h + 1);
        if (is_nan16(t, (uint16_t)h) || is_nan16(t, next) || (h & 0x7fffu) == 0x7fffu) continue;
        const uint32_t value  = float_bits((float)ref_decode16(t, (uint16_t)h));
        const uint32_t middle =
            float_bits((float)(0.5 * (ref_decode16(t, (uint16_t)h) + ref_decode16(t, next))));
        for (uint32_t i = 0; i < 3; i++) {
            if (value + i != 0 && value + i != 0x80000000u) narrows(t, value + i - 1);
            narrows(t, middle + i - 1);
        }
    }
}

static void every_high_half(santa_dtype t) {
    static const uint32_t low[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t high = 0; high < 65536; high++)
        for (size_t i = 0; i < sizeof low / sizeof low[0]; i++) narrows(t, high << 16 | low[i]);
}

static void random_floats(santa_dtype t) {
    test_rng r = test_rng_make(1);
    for (int i = 0; i < (test_quick ? 20000 : 1000000); i++) narrows(t, (uint32_t)test_next(&r));
}

static void f16_values(void)   { every_value(SANTA_F16); }
static void bf16_values(void)  { every_value(SANTA_BF16); }
static void f16_borders(void)  { every_border(SANTA_F16); }
static void bf16_borders(void) { every_border(SANTA_BF16); }

static void all_bit_patterns(void) {
    every_high_half(SANTA_F16);
    every_high_half(SANTA_BF16);
    random_floats(SANTA_F16);
    random_floats(SANTA_BF16);
}

static void known_values(void) {
    CHECK_INT(santa_f32_to_f16(1.0f), 0x3c00);
    CHECK_INT(santa_f32_to_f16(-2.0f), 0xc000);
    CHECK_INT(santa_f32_to_f16(65504.0f), 0x7bff);
    CHECK_INT(santa_f32_to_f16(65519.996f), 0x7bff);
    CHECK_INT(santa_f32_to_f16(65520.0f), 0x7c00);      /* half way to 2^16: to even, which is infinity */
    CHECK_INT(santa_f32_to_f16(5.9604645e-8f), 0x0001); /* 2^-24, the smallest */
    CHECK_INT(santa_f32_to_f16(2.9802322e-8f), 0x0000); /* 2^-25 ties to 0 */
    CHECK_INT(santa_f32_to_f16(-0.0f), 0x8000);
    CHECK_INT(santa_f32_to_bf16(1.0f), 0x3f80);
    CHECK_INT(santa_f32_to_bf16(1.00390625f), 0x3f80);           /* 1 + 2^-8 ties to even */
    CHECK_INT(santa_f32_to_bf16(1.01171875f), 0x3f82);           /* 1 + 3 * 2^-8 too, upwards */
    CHECK_INT(santa_f32_to_bf16(3.4028235e38f), 0x7f80);
    CHECK(santa_f16_to_f32(0x3555) == 0.333251953125f);
    CHECK(santa_bf16_to_f32(0xc049) == -3.140625f);
}

/* e4m3 by its definition: sign, 4 exponent bits of bias 7, 3 mantissa bits, no infinity. */
static double e4m3_value(int e) {
    const int exponent = e >> 3 & 15, mantissa = e & 7;
    const double v = exponent ? ldexp(1.0 + mantissa / 8.0, exponent - 7) : ldexp(mantissa, -9);
    return e & 128 ? -v : v;
}

static void e4m3(void) {
    for (int e = 0; e < 256; e++) {
        const float f = santa_e4m3_to_f32((uint8_t)e);
        if ((e & 127) == 127) {
            CHECK_MSG(test_is_nan(f) && float_bits(f) >> 31 == (unsigned)e >> 7, "NaN %02x became %g",
                      (unsigned)e, (double)f);
            CHECK_INT(santa_f32_to_e4m3(f), e);
            continue;
        }
        CHECK_MSG((double)f == e4m3_value(e), "%02x became %g, want %g", (unsigned)e, (double)f,
                  e4m3_value(e));
        CHECK_INT(santa_f32_to_e4m3(f), e);
    }
    /* the nearest value, ties to the even code, beyond the largest the largest */
    for (int64_t i = 0; i < (test_quick ? 20000 : 400000); i++) {
        test_rng r = test_rng_make((uint64_t)i);
        const int near = (int)test_below(&r, 126);
        const double low = e4m3_value(near), high = e4m3_value(near + 1), middle = 0.5 * (low + high);
        const float f = i % 3 == 0 ? (float)middle : (float)(low + (high - low) * test_uniform(&r));
        const int want = (double)f < middle || ((double)f == middle && near % 2 == 0) ? near : near + 1;
        CHECK_MSG(santa_f32_to_e4m3(f) == want && santa_f32_to_e4m3(-f) == (want | 128),
                  "%.9g became %02x, want %02x", (double)f, (unsigned)santa_f32_to_e4m3(f), (unsigned)want);
    }
    CHECK_INT(santa_f32_to_e4m3(448.0f), 0x7e);
    CHECK_INT(santa_f32_to_e4m3(1e30f), 0x7e);
    CHECK_INT(santa_f32_to_e4m3(-bits_float(0x7f800000u)), 0xfe);
    CHECK_INT(santa_f32_to_e4m3(bits_float(0x7fc00000u)), 0x7f);
}

static void e5m2(void) {
    for (int e = 0; e < 256; e++) {
        const double want = ref_decode52(e);
        const float  f = santa_e5m2_to_f32((uint8_t)e);
        if (test_is_nan((float)want)) {
            CHECK(test_is_nan(f) && test_is_nan(santa_e5m2_to_f32(santa_f32_to_e5m2(f))));
            CHECK_INT(santa_f32_to_e5m2(f) >> 7, e >> 7);
            continue;
        }
        CHECK_MSG((double)f == want, "%02x became %g, want %g", (unsigned)e, (double)f, want);
        CHECK_INT(santa_f32_to_e5m2(f), e);
    }
    test_rng r = test_rng_make(3);
    for (int64_t i = 0; i < (test_quick ? 20000 : 400000); i++) {
        const int near = (int)test_below(&r, 0x7b);
        const double low = ref_decode52(near), high = ref_decode52(near + 1);
        const double part = i % 3 == 0 ? 0.5 : test_uniform(&r);
        const float  f = (float)(low + (high - low) * part);
        const int want = ref_encode52((double)f);
        CHECK_MSG(santa_f32_to_e5m2(f) == want && santa_f32_to_e5m2(-f) == (want | 128),
                  "%.9g became %02x, want %02x", (double)f, (unsigned)santa_f32_to_e5m2(f), (unsigned)want);
    }
    CHECK_INT(santa_f32_to_e5m2(57344.0f), 0x7b);
    CHECK_INT(santa_f32_to_e5m2(61439.996f), 0x7b);
    CHECK_INT(santa_f32_to_e5m2(61440.0f), 0x7c);
    CHECK_INT(santa_f32_to_e5m2(-1e30f), 0xfc);
    CHECK_INT(santa_f32_to_e5m2(7.6293945e-6f), 0);             /* 2^-17 ties to 0 */
    CHECK_INT(santa_f32_to_e5m2(7.63e-6f), 1);
}

/* Blocks as ggml has them, and what its quantize_row_q4_0 makes of numbers. */
static void q4_0(void) {
    static const int sizes[] = {0, 1, 100};
    const uint16_t half = 0x3800;                               /* 0.5, in the machine's order of bytes */
    unsigned char known[18];
    float f[64], back[64];
    double x[32];
    test_rng r = test_rng_make(4);
    memcpy(known, &half, 2);
    for (int i = 0; i < 16; i++) known[2 + i] = (unsigned char)(i + 16 * (15 - i));
    santa_q4_0_to_f32(known, 32, f);
    for (int i = 0; i < 16; i++) {
        CHECK(f[i] == 0.5f * (float)(i - 8));
        CHECK(f[16 + i] == 0.5f * (float)(7 - i));
    }
    for (int turn = 0; turn < 3000; turn++) {
        unsigned char blocks[36], want[18];
        for (int i = 0; i < 64; i++) f[i] = (float)((double)sizes[turn % 3] * test_normal(&r));
        santa_f32_to_q4_0(f, 64, blocks);
        santa_q4_0_to_f32(blocks, 64, back);
        for (int b = 0; b < 2; b++) {
            double top = 0.0;
            for (int i = 0; i < 32; i++) top = fmax(top, fabs((double)f[32 * b + i]));
            for (int i = 0; i < 32; i++) {
                const double got = (double)back[32 * b + i], was = (double)f[32 * b + i];
                /* half a step; the side that -8 is not on ends at 7 */
                if (!CHECK(fabs(got - was) <= top / 8.0 * 1.002)) break;
                if (fabs(was) == top) CHECK(fabs(got - was) <= top * 0.0006);
            }
        }
        for (int i = 0; i < 32; i++) x[i] = (double)f[i];
        memset(want, 0, sizeof want);
        ref_store_row(SANTA_Q4_0, want, 0, 32, x);
        CHECK_MSG(!memcmp(blocks, want, 18), "turn %d: another block", turn);
        for (int i = 0; i < 32; i++) CHECK((double)back[i] == ref_load(SANTA_Q4_0, blocks, i));
        f[turn % 32] = turn % 2 ? test_nan() : INFINITY;
        santa_f32_to_q4_0(f, 64, blocks);
        santa_q4_0_to_f32(blocks, 64, back);
        for (int i = 0; i < 64; i++) CHECK_INT(test_is_nan(back[i]), i < 32);
    }
}

const test_case suite_convert[] = {
    {"e5m2: every value, rounding, infinity", e5m2},
    {"q4_0: known blocks, rounding, NaN", q4_0},
    {"known values", known_values},
    {"e4m3: every value, rounding, saturation", e4m3},
    {"every f16 to f32 and back", f16_values},
    {"every bf16 to f32 and back", bf16_values},
    {"f32 to f16 at every rounding border", f16_borders},
    {"f32 to bf16 at every rounding border", bf16_borders},
    {"f32 bit patterns, infinities and NaN", all_bit_patterns},
    {0, 0},
};
