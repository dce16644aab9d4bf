/* Transpose of a 4 x 4 tile in registers, and the small integer helpers of the blocked kernels. */
#ifndef ADDNORM_TRANSPOSE4_H
#define ADDNORM_TRANSPOSE4_H

#include "common/vectors.h"

INLINE int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE float4 load4_f32(const f32 *from) {
    float4 v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE float4 load4_bf16(const bf16 *from) {
    VECTOR(uint16_t, 4) h;
    memcpy(&h, from, sizeof h);
    return (float4)(__builtin_convertvector(h, VECTOR(uint32_t, 4)) << 16);
}

#ifdef __clang__
#define SHUFFLE4(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE4(a, b, ...) __builtin_shuffle(a, b, (VECTOR(int32_t, 4)){__VA_ARGS__})
#endif

INLINE void transpose4(float4 v[4]) {
    const float4 a = SHUFFLE4(v[0], v[1], 0, 4, 1, 5), b = SHUFFLE4(v[2], v[3], 0, 4, 1, 5);
    const float4 c = SHUFFLE4(v[0], v[1], 2, 6, 3, 7), d = SHUFFLE4(v[2], v[3], 2, 6, 3, 7);
    v[0] = SHUFFLE4(a, b, 0, 1, 4, 5), v[1] = SHUFFLE4(a, b, 2, 3, 6, 7);
    v[2] = SHUFFLE4(c, d, 0, 1, 4, 5), v[3] = SHUFFLE4(c, d, 2, 3, 6, 7);
}

#endif
