/* The one file of the test program that holds the library's code. */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
