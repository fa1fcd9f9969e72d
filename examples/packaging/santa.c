/* The one file of santa::impl: the code of santa.h. */
#define SANTA_IMPLEMENTATION
#include "santa.h"
