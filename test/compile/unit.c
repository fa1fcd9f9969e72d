/* The second unit of the matrix' two-unit programs: the implementation, asked for after a plain
   include. */
#include "../../santa.h"
#ifndef SANTA_IMPLEMENTATION
#define SANTA_IMPLEMENTATION
#endif
#include "../../santa.h"

#ifdef __cplusplus
extern "C"
#endif
santa_status unit_decode(const santa_attention *a, const santa_options *o, void *workspace, size_t bytes);

santa_status unit_decode(const santa_attention *a, const santa_options *o, void *workspace, size_t bytes) {
    return santa_decode(a, o, workspace, bytes, NULL);
}
