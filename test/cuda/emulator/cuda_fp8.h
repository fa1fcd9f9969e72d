/* See cuda_runtime.h. */
#include "numbers.h"
