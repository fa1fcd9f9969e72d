/* accuracy.c with the answers' attention on the GPU: the same options and tables, less the
   methods that the GPU does not have. Its interval beside the CPU's shows whether the two
   agree.
   Build and run:
     mkdir -p build
     nvcc -std=c++17 -O2 -arch=native -Xcompiler -pthread bench/accuracy/accuracy_cuda.cu \
          santa_cuda.cu -o build/accuracy_cuda
     build/accuracy_cuda --methods prop,flash */
#include "../../examples/llama_cuda.h"
#define main accuracy_main
#include "accuracy.c"
#undef main

int main(int argc, char **argv) { return llama_have_device() ? accuracy_main(argc, argv) : 0; }
