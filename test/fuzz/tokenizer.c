/* Broken tokenizer files: llama_load_tokenizer says what is wrong, or tokens can be made of any
   text and text of any tokens. Three bytes say how many tokens the model has and what text to
   encode, the rest is the file. */
#include "loaders.h"

static int tokenizer_use(const llama_tokenizer *t, const uint8_t *text, size_t length) {
    llama_error e = {""};
    size_t      count = 0;
    int         ok = 1;
    int32_t    *token = llama_encode(t, (const char *)text, length, &count, &e);
    if (!token)
        return CHECK_MSG(t->vocab_size < LLAMA_BYTE + 256 && fuzz_is_message(e.text), "not encoded: %s",
                         e.text);
    ok &= CHECK_MSG(count >= 1 && count <= length + 2 && token[0] == LLAMA_BOS, "%lu tokens of %lu bytes",
                    (unsigned long)count, (unsigned long)length);
    for (size_t i = 0; ok && i < count; i++)
        ok &= CHECK_MSG(token[i] >= 0 && token[i] < t->vocab_size, "token %d", (int)token[i]);
    for (int32_t i = 0; ok && i < t->vocab_size; i++) {
        const llama_piece p = llama_decode_token(t, i % 2 ? LLAMA_BOS : 0, i);
        int64_t sum = 0;
        for (int32_t k = 0; k < p.length; k++) sum += p.text[k];                /* all of it can be read */
        ok &= CHECK_MSG(p.length >= 0 && sum < INT64_MAX, "piece %d", (int)i);
    }
    free(token);
    return ok;
}

static int tokenizer_one(const uint8_t *data, size_t size) {
    llama_tokenizer t;
    llama_error     e = {""};
    if (size < 3) return 1;
    const int32_t tokens = (int32_t)(data[0] | data[1] << 8) % 700 + 1 +
                           (data[2] & 128 ? INT32_MAX - 700 : 0);
    const size_t  bytes = size - 3, length = bytes < 128 ? bytes : data[2] & 127;
    fuzz_largest = 0;
    const char *path = fuzz_file(data + 3, bytes);
    const int   status = llama_load_tokenizer(&t, path, tokens, &e);
    remove(path);
    int ok = CHECK_MSG(fuzz_largest <= 4 * bytes + (1 << 16), "%lu bytes asked for a file of %lu",
                       (unsigned long)fuzz_largest, (unsigned long)bytes);
    if (status != 0)
        return ok & CHECK(status == -1 && fuzz_is_message(e.text) && t.file == NULL && t.table == NULL);
    ok &= tokenizer_use(&t, data + size - length, length);
    ok &= tokenizer_use(&t, (const uint8_t *)"abab b\xc3\xa9\xff", 9);
    llama_free_tokenizer(&t);
    return ok;
}

/* Specials, bytes (or only some), and pairs that merge. */
static size_t tokenizer_seed(int number, uint8_t *data, size_t capacity) {
    static const char *const words[] = {"<unk>", "<s>", "</s>", " ",    "a",        "b",
                                        "ab",    " ab", "aba",  "abab", "\xc3\xa9", ""};
    enum { WORDS = sizeof words / sizeof *words };
    const int  bytes = number % 3 == 0 ? 256 : number % 3 == 1 ? 5 : 0, tokens = bytes + WORDS;
    fuzz_bytes b = {data, 0, capacity};
    if (number >= 6) return 0;
    const uint8_t head[3] = {(uint8_t)((tokens - 1) & 255), (uint8_t)((tokens - 1) >> 8),
                             (uint8_t)(20 * number)};
    fuzz_put(&b, head, 3);
    fuzz_put_u32(&b, number < 3 ? 6 : 40);
    for (int i = 0; i < tokens; i++) {
        char text[8];
        if (i < 3)                snprintf(text, sizeof text, "%s", words[i]);
        else if (i < 3 + bytes)   snprintf(text, sizeof text, "<0x%02X>", (unsigned)(i - 3) & 255u);
        else                      snprintf(text, sizeof text, "%s", words[i - bytes]);
        fuzz_put_f32(&b, (float)(i % 11) - 5.0f);
        fuzz_put_u32(&b, (uint32_t)strlen(text));
        fuzz_put(&b, text, strlen(text));
    }
    return b.size;
}

FUZZ_TARGET(tokenizer, tokenizer_one, tokenizer_seed);
