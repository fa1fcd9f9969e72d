/* See cuda_runtime.h. */
#ifndef SANTA_STANDIN_CUDA_FP16_H
#define SANTA_STANDIN_CUDA_FP16_H
struct __half { unsigned short bits; };
#endif
