/* What santa.h wants of <math.h>, for a clang without a libc: the host's functions. */
double exp(double x), log(double x), pow(double x, double y), tanh(double x), erfc(double x);
double sqrt(double x), floor(double x), ceil(double x), fabs(double x);
