/* The list of santa_cuda.cu's kernels, by its hook: every instance that a launch was compiled
   for is in it, by the compiler's own doing, with the number of its launches. Include it before
   santa_cuda.cu. */
#ifndef SANTA_TEST_LAUNCHED_H
#define SANTA_TEST_LAUNCHED_H
/* Room for the rows that tiles want copied: so little that small calls go in parts. */
#ifndef SANTA_CUDA_TILE_ROWS
#define SANTA_CUDA_TILE_ROWS ((i64)200000)
#endif
#include <ctype.h>
#include <cxxabi.h>
#include <stdlib.h>
#include <string>
#include <typeinfo>

struct launched {
    const void *kernel;
    std::string name;                               /* "k_scores<sixteen, 2, true>" */
    long long   count;
    launched   *next;

    launched(const void *k, const std::type_info &type);
};
inline launched *all_launched;

/* What a type that has the kernel as its argument is called, without namespaces, is
   "launched_kernel<&(void k_scores<sixteen, 2, true>(params))>" or nearly so. */
inline launched::launched(const void *k, const std::type_info &type)
    : kernel(k), count(0), next(all_launched) {
    char *readable = abi::__cxa_demangle(type.name(), NULL, NULL, NULL);
    name = readable ? readable : type.name();
    free(readable);
    for (size_t at; (at = name.rfind("::")) != std::string::npos;) {
        size_t from = at;
        const char *const anonymous = "(anonymous namespace)";
        if (at >= 21 && name.compare(at - 21, 21, anonymous) == 0) from = at - 21;
        else while (from > 0 && (isalnum((unsigned char)name[from - 1]) || name[from - 1] == '_')) from--;
        name.erase(from, at + 2 - from);
    }
    const size_t from = name.find("k_", name.find('&'));
    if (from != std::string::npos) {                /* the word and its <...>, which hold no others */
        const size_t end = name.find_first_of("<(>", from), last = name.find('>', from);
        name = name.substr(from, (end != std::string::npos && name[end] == '<' ? last + 1 : end) - from);
    }
    all_launched = this;
}

template <auto kernel> struct launched_kernel {
    static launched entry;
};
template <auto kernel>
launched launched_kernel<kernel>::entry((const void *)kernel, typeid(launched_kernel<kernel>));

#define SANTA_CUDA_LAUNCHED(kernel) (launched_kernel<kernel>::entry.count++)
#endif
