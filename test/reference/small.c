// Specification of the small ops. See reference.h.
#include "test/reference/reference.h"
#include <math.h>

void ref_tensor_axpby(double *out, double a, const double *x, double b, const double *y,
                      int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a * x[i] + b * y[i];
}

static const double REF_RMS_MIN = 0x1p-60;

void ref_normalize(double *out, const double *in, double sumsq, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = in[i] / fmax(sqrt(sumsq), sqrt((double)n) * REF_RMS_MIN);
}
