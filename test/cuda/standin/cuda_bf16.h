/* See cuda_runtime.h. */
#ifndef SANTA_STANDIN_CUDA_BF16_H
#define SANTA_STANDIN_CUDA_BF16_H
struct __nv_bfloat16 { unsigned short bits; };
#endif
