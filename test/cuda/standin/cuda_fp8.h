/* See cuda_runtime.h. */
#ifndef SANTA_STANDIN_CUDA_FP8_H
#define SANTA_STANDIN_CUDA_FP8_H
struct __nv_fp8_e4m3 { unsigned char bits; };
#endif
