/* What softmax is made of: the greater of two, and powers. */
#ifndef ADDNORM_POWERS_H
#define ADDNORM_POWERS_H

#include "vectors.h"

#define LOG2E 1.44269504088896341f

/* The greater; `b` where either is no number. */
INLINE floats most(floats a, floats b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    floats v;
    for (int i = 0; i < WIDE; i++) v[i] = a[i] > b[i] ? a[i] : b[i];
    return v;
#endif
}

#define MAGIC 0x1.8p23f /* a sum with it has the nearest whole number in its lowest bits */

/* 2^x * 2^n for |x| <= 1/2 and shifted = n + MAGIC, n from -127, which gives 0, to 127. The polynomial
 * is that of Cephes' exp2f. */
INLINE floats raised(floats x, floats shifted) {
    floats y = x * 1.535336188319500e-4f + 1.339887440266574e-3f;
    y = y * x + 9.618437357674640e-3f;
    y = y * x + 5.550332471162809e-2f;
    y = y * x + 2.402264791363012e-1f;
    y = y * x + 6.931472028550421e-1f;
    y = y * x + 1.0f;
    return y * (floats)(((bits)shifted << 23) + ((bits){0} + (127u << 23)));
}

/* 2^x for x <= 127, 0 below -126.5 or so; relative error 1e-7. What is no number stays none. */
INLINE floats power(floats x) {
    const floats shifted = (x = most(all(-127), x)) + MAGIC;
    return raised(x - (shifted - MAGIC), shifted);
}

/* e^x for x <= 88, 0 below -87.7 or so; relative error 2e-7. What is no number stays none. ln 2 is
 * taken off in two parts, of which n times the first is exact (Cody and Waite). */
INLINE floats exponential(floats x) {
    const floats shifted = (x = most(all(-88), x)) * LOG2E + MAGIC, n = shifted - MAGIC;
    return raised((x - n * 0.693359375f + n * 2.12194440e-4f) * LOG2E, shifted);
}

#endif
