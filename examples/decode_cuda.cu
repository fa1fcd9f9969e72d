/* decode.c with attention on the GPU: the same options and table, less the methods that the GPU
   does not have.
   Build and run:
     mkdir -p build
     nvcc -std=c++17 -O2 -arch=native examples/decode_cuda.cu santa_cuda.cu -o build/decode_cuda
     build/decode_cuda --demo */
#include "llama_cuda.h"
#define main decode_main
#include "decode.c"
#undef main

int main(int argc, char **argv) { return llama_have_device() ? decode_main(argc, argv) : 0; }
