/* The random numbers: published known answers, a second Philox, the documented composition,
   moments. */
#include "reference.h"

/* Philox4x32-10 once more, from the definition: 16-bit multiplication, recursion over
   rounds. */
static void multiply(uint32_t a, uint32_t b, uint32_t *high, uint32_t *low) {
    const uint32_t a0 = a & 0xffffu, a1 = a >> 16, b0 = b & 0xffffu, b1 = b >> 16;
    const uint32_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0, p11 = a1 * b1;
    const uint32_t middle = (p00 >> 16) + (p01 & 0xffffu) + (p10 & 0xffffu);
    *low  = middle << 16 | (p00 & 0xffffu);
    *high = p11 + (p01 >> 16) + (p10 >> 16) + (middle >> 16);
}

static void philox(int rounds, const uint32_t counter[4], uint32_t key0, uint32_t key1,
                   uint32_t result[4]) {
    if (rounds == 0) {
        memcpy(result, counter, 4 * sizeof *result);
        return;
    }
    uint32_t high0, low0, high2, low2, next[4];
    multiply(0xD2511F53u, counter[0], &high0, &low0);
    multiply(0xCD9E8D57u, counter[2], &high2, &low2);
    next[0] = high2 ^ counter[1] ^ key0;
    next[1] = low2;
    next[2] = high0 ^ counter[3] ^ key1;
    next[3] = low0;
    philox(rounds - 1, next, key0 + 0x9E3779B9u, key1 + 0xBB67AE85u, result);
}

static uint32_t word(uint64_t seed, uint64_t offset, uint64_t request, uint32_t stream, uint32_t head,
                     uint32_t row, uint32_t index) {
    const uint32_t outer[4] = {(uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)request,
                               (uint32_t)(request >> 32)};
    const uint32_t inner[4] = {index / 4, head, row, stream};
    uint32_t key[4], result[4];
    philox(10, outer, (uint32_t)seed, (uint32_t)(seed >> 32), key);
    philox(10, inner, key[0], key[1], result);
    return result[index % 4];
}

/* The three published vectors of Random123 for philox4x32 with 10 rounds. */
static void known_answers(void) {
    static const uint32_t counter[3][4] = {{0, 0, 0, 0}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                                           {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    static const uint32_t key[3][2]     = {{0, 0}, {0xffffffff, 0xffffffff}, {0xa4093822, 0x299f31d0}};
    static const uint32_t want[3][4]    = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                           {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                           {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t mine[4], got[4];
        philox(10, counter[i], key[i][0], key[i][1], mine);
        santa_philox(counter[i], key[i], got);
        for (int j = 0; j < 4; j++) {
            CHECK_INT(mine[j], want[i][j]);
            CHECK_INT(got[j], want[i][j]);
        }
    }
}

static void against_second_philox(void) {
    test_rng r = test_rng_make(1);
    for (int i = 0; i < 20000; i++) {
        uint32_t counter[4], key[2], got[4], want[4];
        for (int j = 0; j < 4; j++) counter[j] = (uint32_t)test_next(&r);
        for (int j = 0; j < 2; j++) key[j] = (uint32_t)test_next(&r);
        santa_philox(counter, key, got);
        philox(10, counter, key[0], key[1], want);
        if (!CHECK(!memcmp(got, want, sizeof got))) return;
    }
}

static void documented_composition(void) {
    test_rng r = test_rng_make(2);
    for (int i = 0; i < 20000; i++) {
        const uint64_t seed = test_next(&r), offset = test_next(&r), request = test_next(&r);
        const uint32_t stream = (uint32_t)test_next(&r), head = (uint32_t)test_next(&r),
                       row = (uint32_t)test_next(&r);
        const uint32_t index = (uint32_t)test_next(&r) >> (i % 32);
        if (!CHECK_INT(santa_random(seed, offset, request, stream, head, row, index),
                       word(seed, offset, request, stream, head, row, index))) return;
    }
    /* the known answer of the header's documentation */
    CHECK_INT(word(7, 65537, 3, 0, 5, 0, 2), 0x1825d098);
    CHECK_INT(santa_random(7, 65537, 3, 0, 5, 0, 2), 0x1825d098);
    CHECK_INT(santa_offset(1, 1), 65537);
    CHECK_INT(santa_offset(65535, 3), 3 * 65536 + 65535);
    CHECK(santa_offset(0, INT64_C(1) << 40) == UINT64_C(1) << 56);
}

/* Every argument matters: one bit of any of them changes about half of the result's bits. */
static void every_argument_counts(void) {
    double flipped[7] = {0, 0, 0, 0, 0, 0, 0};
    const int rounds = 4000;
    test_rng r = test_rng_make(3);
    for (int i = 0; i < rounds; i++)
        for (int which = 0; which < 7; which++) {
            uint64_t a[7];
            for (int j = 0; j < 7; j++) a[j] = test_next(&r) >> (j < 3 ? 0 : 32);
            const uint32_t one = santa_random(a[0], a[1], a[2], (uint32_t)a[3], (uint32_t)a[4],
                                              (uint32_t)a[5], (uint32_t)a[6]);
            a[which] ^= UINT64_C(1) << test_below(&r, which < 3 ? 64 : 32);
            uint32_t changed = one ^ santa_random(a[0], a[1], a[2], (uint32_t)a[3], (uint32_t)a[4],
                                                  (uint32_t)a[5], (uint32_t)a[6]);
            for (; changed; changed &= changed - 1) flipped[which] += 1.0;
        }
    for (int which = 0; which < 7; which++)
        CHECK_NEAR(flipped[which] / rounds, 16.0, 5.0 * sqrt(8.0 / rounds), 0.0);
}

/* Moments of the uniform, correlation of neighbours in every direction, chi-square of high and
   low bytes. */
static void moments(void) {
    const int n = test_quick ? 40000 : 400000;
    double sum[4] = {0, 0, 0, 0}, squares[4] = {0, 0, 0, 0}, product[5] = {0, 0, 0, 0, 0},
           product2[5] = {0, 0, 0, 0, 0};
    static double high[256], low[256];
    memset(high, 0, sizeof high);
    memset(low, 0, sizeof low);
    for (int i = 0; i < n; i++) {
        const uint32_t m = (uint32_t)i % 64, head = (uint32_t)i / 64 % 32;
        const uint64_t offset = (uint64_t)i / 2048;
        const uint32_t w = santa_random(test_seed, offset, 0, 0, head, 0, m);
        const double   u = ldexp((double)w, -32);
        const double   other[5] = {ldexp((double)santa_random(test_seed, offset, 0, 0, head, 0, m + 1),
                                         -32),
                                   ldexp((double)santa_random(test_seed, offset, 0, 0, head + 1, 0, m),
                                         -32),
                                   ldexp((double)santa_random(test_seed, offset, 0, 0, head, 1, m), -32),
                                   ldexp((double)santa_random(test_seed, offset, 1, 0, head, 0, m), -32),
                                   ldexp((double)santa_random(test_seed, offset + 1, 0, 0, head, 0, m),
                                         -32)};
        for (int k = 0; k < 4; k++) {
            const double x = pow(u, k + 1);
            sum[k] += x;
            squares[k] += x * x;
        }
        for (int k = 0; k < 5; k++) {
            const double x = (u - 0.5) * (other[k] - 0.5);
            product[k]  += x;
            product2[k] += x * x;
        }
        high[w >> 24]   += 1.0;
        low[w & 0xffu] += 1.0;
    }
    for (int k = 0; k < 4; k++)
        CHECK_MEAN_Z("moment of the uniform", sum[k], squares[k], n, 1.0 / (k + 2), 5.0);
    for (int k = 0; k < 5; k++)
        CHECK_MEAN_Z("product with a neighbour", product[k], product2[k], n, 0.0, 5.0);
    double chi_high = 0.0, chi_low = 0.0;
    const double expected = (double)n / 256.0;
    for (int i = 0; i < 256; i++) {
        chi_high += (high[i] - expected) * (high[i] - expected) / expected;
        chi_low  += (low[i] - expected) * (low[i] - expected) / expected;
    }
    CHECK_NEAR(chi_high, 255.0, 5.0 * sqrt(2.0 * 255.0), 0.0);   /* chi-square, 255 degrees of freedom */
    CHECK_NEAR(chi_low, 255.0, 5.0 * sqrt(2.0 * 255.0), 0.0);
}

const test_case suite_random[] = {
    {"Philox: the published vectors", known_answers},
    {"Philox: a second implementation", against_second_philox},
    {"seed, offset, request, stream, head, row, index: as documented", documented_composition},
    {"each bit of each argument flips half of the result", every_argument_counts},
    {"moments, neighbours, bytes", moments},
    {0, 0},
};
