/* Vector maximum, 2^x and e^x: the parts of a softmax. */
#ifndef ADDNORM_EXP_H
#define ADDNORM_EXP_H

#include "common/vectors.h"

#define LOG2E 1.44269504088896341f

/* Lane-wise maximum; `b` where either lane is NaN. */
INLINE vfloat vmax(vfloat a, vfloat b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    vfloat v;
    for (int i = 0; i < LANES; i++) v[i] = a[i] > b[i] ? a[i] : b[i];
    return v;
#endif
}

/* 1.5 * 2^23: adding it rounds a float to the nearest integer, which is then in the lowest bits. */
#define ROUNDING_SHIFT 0x1.8p23f

/* 2^x * 2^n for |x| <= 1/2 and shifted = n + ROUNDING_SHIFT, n from -127, which gives 0, to 127.
 * The polynomial is that of Cephes' exp2f; 2^n is built from the exponent bits. */
INLINE vfloat exp2_with_exponent(vfloat x, vfloat shifted) {
    vfloat y = x * 1.535336188319500e-4f + 1.339887440266574e-3f;
    y = y * x + 9.618437357674640e-3f;
    y = y * x + 5.550332471162809e-2f;
    y = y * x + 2.402264791363012e-1f;
    y = y * x + 6.931472028550421e-1f;
    y = y * x + 1.0f;
    return y * (vfloat)(((vuint)shifted << 23) + ((vuint){0} + (127u << 23)));
}

/* 2^x for x <= 127; 0 below about -126.5. Relative error 1e-7. NaN gives NaN. */
INLINE vfloat vexp2(vfloat x) {
    const vfloat shifted = (x = vmax(vset(-127), x)) + ROUNDING_SHIFT;
    return exp2_with_exponent(x - (shifted - ROUNDING_SHIFT), shifted);
}

/* e^x for x <= 88; 0 below about -87.7. Relative error 2e-7. NaN gives NaN. n * ln 2 is subtracted
 * in two parts, the first of which is exact (Cody and Waite, 1980). */
INLINE vfloat vexp(vfloat x) {
    const vfloat shifted = (x = vmax(vset(-88), x)) * LOG2E + ROUNDING_SHIFT;
    const vfloat n = shifted - ROUNDING_SHIFT;
    return exp2_with_exponent((x - n * 0.693359375f + n * 2.12194440e-4f) * LOG2E, shifted);
}

#endif
