/* Broken .saap files: saap_load says what is wrong, or all that it gives can be read and is
   finite. The first byte says if the file gets the hash that fits it, so that changes reach
   what lies behind that check. */
#include "fuzz.h"

static size_t saap_largest; /* bytes asked for at once since it was set to 0 */

static inline void *saap_malloc(size_t n) {
    if (n > saap_largest) saap_largest = n;
    return malloc(n);
}

#define malloc(n) saap_malloc(n)
#include "../../examples/saap.h"
#undef malloc

static int saap_finite(const void *array, santa_dtype dtype, int64_t n) {
    for (int64_t i = 0; array && i < n; i++) {
        const float x = dtype == SANTA_F32   ? ((const float *)array)[i]
                        : dtype == SANTA_F16 ? santa_f16_to_f32(((const uint16_t *)array)[i])
                                             : santa_bf16_to_f32(((const uint16_t *)array)[i]);
        if (!fuzz_is_finite(x)) return 0;
    }
    return 1;
}

static void saap_seal(uint8_t *file, size_t size) {
    if (size < SAAP_HEADER) return;
    const uint64_t h = saap_hash(saap_hash(14695981039346656037u, file, SAAP_HASHED), file + SAAP_HEADER,
                                 size - SAAP_HEADER);
    for (int i = 0; i < 8; i++) file[SAAP_HASHED + i] = (uint8_t)(h >> 8 * i);
}

static int saap_one(const uint8_t *data, size_t size) {
    static uint8_t file[FUZZ_MAX_INPUT];
    saap_file f;
    santa_buckets l;
    char message[256] = "";
    if (size < 1) return 1;
    memcpy(file, data + 1, size - 1);
    if (data[0] & 1) saap_seal(file, size - 1);
    saap_largest = 0;
    const char *path = fuzz_file(file, size - 1);
    const int status = saap_load(path, &f, message, sizeof message);
    remove(path);
    int ok = CHECK_MSG(saap_largest <= size + SAAP_ALIGN, "%lu bytes asked for a file of %lu",
                       (unsigned long)saap_largest, (unsigned long)size);
    if (status != 0) return ok & CHECK(status == -1 && message[0] != 0 && f.memory == NULL);
    for (int64_t i = 0; i < f.layers; i++) {
        saap_get_layer(&f, i, &l);
        ok &= CHECK((l.hidden == 0) == (l.w1 == NULL) && (l.hidden == 0) == (l.b2 == NULL));
        ok &= CHECK(saap_finite(l.centroids, l.dtype, f.kv_heads * f.num_buckets * f.head_dim)
                    && saap_finite(l.w1, l.dtype, f.kv_heads * f.hidden * f.head_dim)
                    && saap_finite(l.b1, SANTA_F32, f.kv_heads * f.hidden)
                    && saap_finite(l.w2, l.dtype, f.kv_heads * f.num_buckets * f.hidden)
                    && saap_finite(l.b2, SANTA_F32, f.kv_heads * f.num_buckets));
    }
    saap_free(&f);
    return ok;
}

/* Small files of every type, with and without a classifier, sealed or not; all numbers are 0 or
   small. */
static size_t saap_seed(int number, uint8_t *data, size_t capacity) {
    const uint32_t type = (uint32_t)number % 3, hidden = number / 3 % 2 ? 3 : 0;
    const uint32_t field[15] = {1, 2, 2, 4, 6, 5, hidden, type, 512, 0, 0, 0, 0, 0, 0};
    const uint32_t count[5] = {2 * 5 * 6, 2 * hidden * 6, 2 * hidden, 2 * 5 * hidden, hidden ? 10u : 0u};
    fuzz_bytes b = {data, 0, capacity};
    if (number >= 12) return 0;
    const uint8_t sealed = number < 6;
    fuzz_put(&b, &sealed, 1);
    fuzz_put(&b, "SAAP", 4);
    for (int i = 0; i < 15; i++) fuzz_put_u32(&b, field[i]);
    for (int layer = 0; layer < 2; layer++)
        for (int k = 0; k < 5; k++) {
            const uint32_t bytes = count[k] * (type == 0 || k == 2 || k == 4 ? 4 : 2);
            for (uint32_t i = 0; i < (bytes + 63) / 64 * 16; i++) fuzz_put_u32(&b, i % 3 ? 0 : i << 8);
        }
    return b.size;
}

FUZZ_TARGET(saap, saap_one, saap_seed);
