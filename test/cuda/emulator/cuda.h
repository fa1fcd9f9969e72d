/* See there. */
#include "../standin/cuda.h"
